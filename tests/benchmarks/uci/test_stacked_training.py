"""Standardised splits, and the training of stacked networks: against plain loops."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from uci_tables import write_table

from fcal.benchmarks.uci.settings import Schedule
from fcal.benchmarks.uci.splits import standardised
from fcal.benchmarks.uci.stacked_training import each_network, error_bar_loss, nll_sum, predicted, train
from fcal.benchmarks.uci.trainings import choose_epochs, fold_trace, held_out_prediction, without_folds
from fcal.data.uci import read_uci
from fcal.losses import FCalLoss, NLLLoss
from fcal.models.ensembles import StackedMLP


@pytest.fixture
def splits(tmp_path):
    return standardised(read_uci(write_table(tmp_path), "yacht"), folds=5, seed=0)


def test_features_and_targets_are_standardised_by_rows_to_train_on_alone(splits):
    for split in range(splits.count):
        seen = splits.x[split, splits.train[split]]
        assert_close(seen[:, :2].mean(0), torch.zeros(2), atol=1e-6, rtol=0)
        assert_close(seen[:, :2].std(0), torch.ones(2))
        assert_close(seen[:, 2], torch.zeros(len(seen)))  # the constant feature is centred, not divided by 0
        assert_close(splits.raw[splits.train[split]].mean(), splits.shift[split])
        assert_close(splits.raw[splits.train[split]].std(), splits.unit[split])


def test_other_targets_of_test_rows_change_nothing_that_is_trained_on(tmp_path):
    table = read_uci(write_table(tmp_path), "yacht", splits=1)
    changed = table.y.clone()
    changed[table.test[0]] += 1000
    one, two = (standardised(each, folds=5, seed=0) for each in (table, dataclasses.replace(table, y=changed)))
    assert_close(one.y[0, one.train[0]], two.y[0, two.train[0]], rtol=0, atol=0)
    assert_close(one.x, two.x, rtol=0, atol=0)


def test_folds_part_the_rows(splits):
    for split in range(splits.count):
        held = [splits.of_fold(split, fold) for fold in range(splits.folds)]
        assert sorted(torch.cat(held).tolist()) == sorted(splits.train[split].tolist())
        for fold, rows in enumerate(held):
            assert not set(rows.tolist()) & set(splits.without_fold(split, fold).tolist())
            assert not set(rows.tolist()) & set(splits.test[split].tolist())


def test_fold_networks_never_see_their_fold(splits):
    """Targets of a fold may be anything: the network without it stays the same, and the others change."""
    schedule = Schedule(epochs=2, batch=16, rate=1e-2, checkpoints=1)
    before = fold_trace(splits, (5,), schedule, seed=0).thetas[-1]
    spoilt = splits.y.clone()
    spoilt[0, splits.of_fold(0, 3)] += 100
    after = fold_trace(dataclasses.replace(splits, y=spoilt), (5,), schedule, seed=0).thetas[-1]
    same = [torch.equal(a, b) for a, b in zip(before, after, strict=True)]
    # Networks are fold by fold, two splits each; only split 0 was spoilt.
    assert same == [split == 1 or fold == 3 for fold in range(5) for split in range(2)]


def test_one_step_is_that_of_adam_on_each_network(splits):
    """One full batch: the same step as plain AdamW takes on a plain network, gradients short enough to stay whole."""
    start = StackedMLP(2, 3, (5,), generator=torch.Generator().manual_seed(0))
    plain = [start.alone(member) for member in range(2)]
    rows = splits.train[:, :16]
    schedule = Schedule(epochs=1, batch=16, rate=1e-2)
    train(start, splits.x, splits.y, rows, loss=nll_sum, schedule=schedule, seed=0)
    for member, network in enumerate(plain):
        optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2, weight_decay=0.0, betas=(0.9, 0.99))
        mean, spread = network(splits.x[member, rows[member]]).unbind(-1)
        sigma = nn.functional.softplus(spread) + start.floor
        loss = (sigma.log() + 0.5 * ((splits.y[member, rows[member]] - mean) / sigma).square()).mean()
        loss.backward()
        assert sum(p.grad.square().sum() for p in network.parameters()).sqrt() < 5
        optimizer.step()
        expected = [p for layer in network if isinstance(layer, nn.Linear) for p in (layer.weight.T, layer.bias)]
        assert_close(start.theta[member], torch.cat([p.flatten() for p in expected]), rtol=1e-4, atol=1e-5)


def test_every_network_trains_as_if_it_were_alone(splits):
    """A further network in the stack changes nothing about the first, given the same order of rows."""
    schedule = Schedule(epochs=3, batch=54, rate=1e-2)  # whole batches: their order does not matter
    start = StackedMLP(2, 3, (5,), generator=torch.Generator().manual_seed(0))
    alone = start.select(torch.tensor([0]))
    both = train(start, splits.x, splits.y, splits.train, loss=nll_sum, schedule=schedule, seed=0)
    one = train(alone, splits.x, splits.y, splits.train[:1], loss=nll_sum, schedule=schedule, seed=0)
    assert_close(both.thetas[-1][:1], one.thetas[-1], rtol=1e-4, atol=1e-5)


def test_held_out_prediction_is_that_of_the_network_without_the_row(splits):
    networks = StackedMLP(10, 3, (5,), generator=torch.Generator().manual_seed(0))
    pred = held_out_prediction(splits, networks)
    for split in range(2):
        for place in range(0, splits.train.shape[1], 7):
            fold, row = int(splits.fold[split, place]), int(splits.train[split, place])
            with torch.no_grad():
                mean, _ = networks.alone(fold * 2 + split)(splits.x[split, row]).unbind(-1)
            assert_close(pred.loc[split, place], mean)


def test_predicted_in_parts_is_predicted_at_once(splits, monkeypatch):
    networks, rows = StackedMLP(2, 3, (5,)), splits.test
    whole = predicted(networks, splits.x, rows)
    monkeypatch.setattr("fcal.benchmarks.uci.stacked_training._AT_ONCE", 1)
    parts = predicted(networks, splits.x, rows)
    assert_close(whole.loc, parts.loc)
    assert_close(whole.scale, parts.scale)


def test_epochs_are_chosen_by_likelihood_of_held_out_rows(splits):
    trace = fold_trace(splits, (5,), Schedule(epochs=20, batch=16, rate=3e-2, checkpoints=4), seed=0)
    chosen = choose_epochs(splits, trace)
    rows = [splits.of_fold(1, 0)]
    scores = []
    for place in range(len(trace.epochs)):
        network = trace.at(place).alone(1)  # fold 0 of split 1
        with torch.no_grad():
            mean, spread = network(splits.x[1, rows[0]]).unbind(-1)
        sigma = nn.functional.softplus(spread) + 1e-3
        z = (splits.y[1, rows[0]] - mean) / sigma
        scores.append(
            (sigma.log().mean() + 0.5 * z.square().mean(), sigma.log().mean() + 0.5 * z.square().mean().log())
        )
    plain, repaired = zip(*scores, strict=True)
    assert int(chosen["nll"][1]) == min(range(len(plain)), key=plain.__getitem__)
    assert int(chosen["repaired"][1]) == min(range(len(plain)), key=repaired.__getitem__)


def test_kept_weights_may_be_of_another_epoch_for_each_network(splits):
    rows = without_folds(splits)
    start = StackedMLP(len(rows), 3, (5,))
    schedule = Schedule(epochs=4, batch=16, rate=1e-2, checkpoints=3)
    trace = train(start, splits.x, splits.y, rows, loss=nll_sum, schedule=schedule, seed=0)
    places = torch.arange(len(rows)) % len(trace.epochs)
    mixed = trace.at(places).theta.detach()
    for member, place in enumerate(places.tolist()):
        assert_close(mixed[member], trace.thetas[place, member], rtol=0, atol=0)


def test_objectives_apply_to_every_network_by_itself():
    pred = torch.distributions.Normal(torch.randn(3, 60), torch.rand(3, 60) + 0.5)
    target = torch.randn(3, 60)
    options = {"name": "fcal", "lam": 0.3, "divergence": "kl", "df": 20}
    criterion, nll = FCalLoss("kl", 20), NLLLoss()
    laws = [torch.distributions.Normal(pred.loc[i], pred.scale[i]) for i in range(3)]
    expected = sum(0.7 * nll(law, target[i]) + 0.3 * criterion(law, target[i]) for i, law in enumerate(laws))
    assert_close(each_network(options)(pred, target), expected)


def test_error_bar_loss_has_the_gradient_of_the_objective_of_every_network():
    mean, target = torch.randn(3, 60), torch.randn(3, 60)
    sigma = (torch.rand(3, 60) + 0.5).requires_grad_()
    pred = torch.distributions.Normal(mean, sigma)
    for options in (
        {"name": "nll"},
        {"name": "beta-nll", "beta": 0.5},
        {"name": "fcal", "lam": 0.3, "divergence": "kl", "df": 20},
        {"name": "calibration-loss", "lam": 2.0, "form": "additive"},
    ):
        grads = [torch.autograd.grad(make(options)(pred, target), sigma)[0] for make in (error_bar_loss, each_network)]
        assert_close(*grads)
