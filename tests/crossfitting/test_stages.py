"""Stages of a training: each network's is chosen by the rows that the other networks left out."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from crossfitting.lines import fit_line, full_crossfit, noisy_line
from scipy import optimize, stats
from torch.distributions import Normal
from torch.utils.data import TensorDataset
from training.toys import net, wave

import fcal
from fcal import training
from fcal.crossfitting import Bags, chosen_stages, scaled_nll
from fcal.data.folds import left_out_rows
from fcal.training import FitConfig, Stages

BAGS = Bags(members=4, leave_out=0.25)


def constant(location, sigma=1.0):
    """A model that predicts one location everywhere; NaN means that it has diverged."""
    return lambda x: Normal(torch.full_like(x, location), torch.full_like(x, sigma), validate_args=False)


def fit_constants(*locations):
    return lambda _: [constant(location) for location in locations]


def rows_left_out_once(rows=400, seed=0):
    """Targets around 0, missing where two networks left out the row, and the network that left out each other row."""
    left_out = left_out_rows(rows, members=BAGS.members, share=BAGS.leave_out)
    y = torch.randn(rows, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    y[left_out.sum(0) > 1] = math.nan
    return left_out, y


def dataset_of(y):
    return TensorDataset(torch.zeros_like(y), y)


# The score and the choice.


def best_nll(mean, sigma, y):
    """Mean negative log-likelihood with the best factor on all scales, by SciPy."""
    found = optimize.minimize_scalar(
        lambda log_factor: -stats.norm.logpdf(y, mean, math.exp(log_factor) * sigma).mean(),
        bounds=(-15, 15),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return found.fun


def normal_case(rows=200, seed=0):
    draw = partial(torch.randn, rows, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return draw(), (0.5 * draw()).exp(), draw() * 2


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_scaled_nll_is_the_likelihood_with_the_best_factor(seed, scale):
    mean, sigma, y = normal_case(seed=seed)
    expected = best_nll(mean.numpy(), scale * sigma.numpy(), y.numpy())
    assert scaled_nll(Normal(mean, scale * sigma), y) == pytest.approx(expected, rel=1e-6)


def test_scaled_nll_does_not_depend_on_the_level_of_the_scales():
    mean, sigma, y = normal_case()
    scores = [scaled_nll(Normal(mean, factor * sigma), y) for factor in (1e-4, 1.0, 30.0)]
    np.testing.assert_allclose(scores, scores[0], rtol=1e-9)


def test_scaled_nll_depends_on_the_shape_of_the_scales():
    """Scales that follow the errors are better than equal ones; for 2,000 rows the difference is far beyond chance."""
    mean, sigma, _ = normal_case(rows=2000)
    y = mean + sigma * torch.randn(2000, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    assert scaled_nll(Normal(mean, sigma), y) < scaled_nll(Normal(mean, torch.ones_like(sigma)), y) - 0.1


def test_scaled_nll_does_not_count_missing_and_masked_targets():
    mean, sigma, y = normal_case()
    missing = torch.arange(200) % 3 == 0
    expected = best_nll(mean[~missing].numpy(), sigma[~missing].numpy(), y[~missing].numpy())
    absent = scaled_nll(Normal(mean, sigma), torch.where(missing, math.nan, y))
    masked = scaled_nll(Normal(mean, sigma), torch.where(missing, 1e5, y), valid_mask=~missing)
    assert absent == pytest.approx(expected, rel=1e-6)
    assert masked == pytest.approx(expected, rel=1e-6)


def wild_scores(dtype, size=1e6):
    """Scores of a model that is right but for a wild row, and of one with twice the errors that predicts that row."""
    y = torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y[3] = size
    good, bad = torch.zeros(1000, dtype=torch.float64), torch.where(torch.arange(1000) % 2 > 0, 2.0, -2.0).double()
    bad[3] = size
    return [
        scaled_nll(Normal(mean.to(dtype), torch.full((1000,), 0.1, dtype=dtype)), y.to(dtype)) for mean in (good, bad)
    ]


@pytest.mark.parametrize("size", [1e3, 1e6])
def test_scaled_nll_does_not_follow_a_wild_row(size):
    good, bad = wild_scores(torch.float64, size)
    assert good < bad


def test_scaled_nll_does_not_follow_a_wild_row_in_single_precision():
    good, bad = wild_scores(torch.float32)
    np.testing.assert_allclose([good, bad], wild_scores(torch.float64), rtol=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_chosen_stages_are_the_best_of_the_other_networks(seed):
    curves = np.random.default_rng(seed).normal(size=(5, 7))
    expected = [int(np.delete(curves, number, 0).sum(0).argmin()) for number in range(5)]
    assert chosen_stages(torch.from_numpy(curves)) == expected


def test_chosen_stage_does_not_depend_on_the_scores_of_the_network_itself():
    curves = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    for number in range(4):
        other = curves.clone()
        other[number] = torch.randn(6, generator=torch.Generator().manual_seed(1)) * 100
        assert chosen_stages(other)[number] == chosen_stages(curves)[number]


def test_chosen_stages_do_not_depend_on_the_level_of_the_scores():
    curves = torch.randn(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    level = torch.tensor([[0.0], [5.0], [-3.0], [50.0]], dtype=torch.float64)
    assert chosen_stages(curves + level) == chosen_stages(curves)


# Cross-fits whose fit returns stages.


@pytest.mark.parametrize("keep", ["ensemble", "full"])
def test_crossfit_chooses_the_stage_that_predicts_held_out_rows_best(keep):
    _, y = rows_left_out_once()
    result = fcal.crossfit(fit_constants(5.0, 0.3, 0.0, -4.0), dataset_of(y), keep=keep)
    assert set(result.stages) == {2}
    x = torch.zeros(1, 1, dtype=torch.float64)
    assert result.calibrated()(x).mean.item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("keep", ["ensemble", "full"])
def test_models_are_those_of_the_chosen_stages(keep):
    _, y = rows_left_out_once()
    result = fcal.crossfit(fit_constants(5.0, 0.0), dataset_of(y), keep=keep)
    models = result.members if keep == "ensemble" else (result.full, *result.without)
    assert [model(torch.zeros(1)).mean.item() for model in models] == [0.0] * len(models)


@pytest.mark.parametrize("number", range(4))
def test_stage_of_a_network_does_not_depend_on_the_targets_it_left_out(number):
    """Its own held-out targets would choose the other stage so strongly that all other networks follow."""
    left_out, y = rows_left_out_once()
    constants = fit_constants(0.0, 5.0)
    before = fcal.crossfit(constants, dataset_of(y), bags=BAGS)
    own = (left_out[number] & (left_out.sum(0) == 1)).unsqueeze(1)
    after = fcal.crossfit(constants, dataset_of(torch.where(own, 5 + 1e-3 * y, y)), bags=BAGS)
    assert torch.equal(after.left_out, left_out)
    assert before.stages == (0, 0, 0, 0)
    assert after.stages == tuple(0 if other == number else 1 for other in range(4))


def test_stages_of_full_crossfit_are_those_of_the_other_folds_and_of_all():
    """The curves are recomputed with SciPy."""
    y = torch.randn(40, 1, generator=torch.Generator().manual_seed(30), dtype=torch.float64)
    locations = (0.4, 0.1, -0.1, -0.4)
    result = full_crossfit(fit_constants(*locations), dataset_of(y), folds=5)
    held_out = [y[result.fold == number].numpy() for number in range(5)]
    curves = np.array([[best_nll(location, 1.0, rows) for location in locations] for rows in held_out])
    without = [int(np.delete(curves, number, 0).sum(0).argmin()) for number in range(5)]
    assert result.stages == (int(curves.sum(0).argmin()), *without)
    assert len(set(result.stages)) > 1, "the test needs folds that choose differently"


def test_stages_of_an_ensemble_are_those_of_the_other_networks():
    """The curves are recomputed with SciPy."""
    y = torch.randn(40, 1, generator=torch.Generator().manual_seed(30), dtype=torch.float64)
    locations = (0.4, 0.1, -0.1, -0.4)
    result = fcal.crossfit(fit_constants(*locations), dataset_of(y))
    curves = np.array([[best_nll(place, 1.0, y[out].numpy()) for place in locations] for out in result.left_out])
    assert result.stages == tuple(int(np.delete(curves, number, 0).sum(0).argmin()) for number in range(4))
    assert len(set(result.stages)) > 1, "the test needs networks that choose differently"


def test_one_model_is_its_only_stage():
    alone = fcal.crossfit(fit_line, noisy_line(60))
    listed = fcal.crossfit(lambda rows: [fit_line(rows)], noisy_line(60))
    assert alone.stages == listed.stages == (0, 0, 0, 0)
    assert torch.equal(alone.target, listed.target)


def test_stages_may_be_a_tuple():
    _, y = rows_left_out_once()
    result = fcal.crossfit(lambda _: (constant(5.0), constant(0.0)), dataset_of(y))
    assert result.stages == (1, 1, 1, 1)


def test_stages_do_not_follow_a_wild_row():
    """One target of 1e6 among 400, which the stage with twice the errors predicts."""
    left_out, y = rows_left_out_once()
    row = int((left_out.sum(0) == 1).nonzero()[0])
    y[row] = 1e6
    x = torch.arange(400.0, dtype=torch.float64).unsqueeze(1)
    sign = 2.0 * (-1.0) ** x

    def wrong(given):
        loc = torch.where(given == row, 1e6, sign[given.long().squeeze(1)])
        return Normal(loc, torch.ones_like(given))

    result = fcal.crossfit(lambda _: [constant(0.0), lambda given: wrong(given)], TensorDataset(x, y))
    assert result.stages == (0, 0, 0, 0)


def fit_shrunk(rows):
    """Lines of a third and two thirds of the slope of least squares, and of all of it."""
    stages = [fit_line(rows) for _ in range(3)]
    for share, line in zip((1 / 3, 2 / 3, 1.0), stages, strict=True):
        line.weights.data[0] *= share
    return stages


def test_stages_of_lines_end_at_least_squares():
    result = fcal.crossfit(fit_shrunk, noisy_line(60))
    assert result.stages == (2, 2, 2, 2)


def test_stage_at_which_one_network_has_diverged_is_not_chosen_for_the_others():
    _, y = rows_left_out_once()
    numbers = iter(range(4))

    def fit(_):
        return [constant(0.5), constant(math.nan if next(numbers) == 1 else 0.0)]

    result = fcal.crossfit(fit, dataset_of(y))
    assert [stage for number, stage in enumerate(result.stages) if number != 1] == [0, 0, 0]


def test_stage_at_which_a_network_has_diverged_itself_is_not_chosen():
    _, y = rows_left_out_once()
    numbers = iter(range(4))

    def fit(_):
        return [constant(0.5), constant(math.nan if next(numbers) == 1 else 0.0)]

    result = fcal.crossfit(fit, dataset_of(y))
    assert all(member(torch.zeros(1)).mean.isfinite() for member in result.members)


# Bad input.


def in_turn(*stages):
    turn = iter(stages)
    return lambda _: next(turn)


@pytest.mark.parametrize("keep", ["ensemble", "full"])
def test_crossfit_refuses_different_numbers_of_stages(keep):
    lists = [[constant(0.0) for _ in range(count)] for count in (2, 3, 2, 2, 2)]
    message = "expected `fit` to return as many stages for every network, got 2 and 3"
    with pytest.raises(ValueError, match=message):
        fcal.crossfit(in_turn(*lists), noisy_line(60), keep=keep)


@pytest.mark.parametrize("keep", ["ensemble", "full"])
@pytest.mark.parametrize("empty", [[], ()])
def test_crossfit_refuses_no_stages_after_the_first_training(keep, empty):
    calls = []

    def fit(_):
        calls.append(1)
        return empty

    message = "expected `fit` to return a model or the stages of its training, got an empty list"
    with pytest.raises(ValueError, match=message):
        fcal.crossfit(fit, noisy_line(60), keep=keep)
    assert len(calls) == 1


def test_crossfit_refuses_stages_that_are_one_model():
    def fit(rows):
        line = fit_line(rows)
        return [line, line]

    with pytest.raises(ValueError, match="expected `fit` to return a new model each time, got weights of an earlier"):
        fcal.crossfit(fit, noisy_line(60))


def test_crossfit_refuses_a_last_stage_that_is_no_model():
    with pytest.raises(TypeError, match="expected `fit` to return a model to call, got int"):
        fcal.crossfit(lambda _: [constant(0.0), 3], noisy_line(60))


# The callback that keeps stages.

QUIET = (
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
    pytest.mark.filterwarnings("ignore:The '.*' does not have many workers"),
)


def quiet(test):
    """Without the warnings of Lightning."""
    for mark in QUIET:
        test = mark(test)
    return test


def trained_stages(rows, seed=0):
    """The model after each of three epochs, and the model itself."""
    stages, model = Stages(), net(seed)
    training.fit(model, None, rows, None, FitConfig(epochs=3, batch_size=32), callbacks=[stages], progress=False)
    return stages.models, model


@quiet
def test_stages_callback_keeps_one_model_for_every_epoch():
    models, _ = trained_stages(wave(64))
    heads = [model.head.weight for model in models]
    assert len(models) == 3
    assert not torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[1], heads[2])


@quiet
def test_stages_callback_keeps_the_trained_model_last():
    models, model = trained_stages(wave(64))
    for name, value in model.state_dict().items():
        assert torch.equal(models[-1].state_dict()[name], value)


@quiet
def test_stages_callback_keeps_copies_that_share_no_weights():
    models, model = trained_stages(wave(64))
    pointers = [weight.data_ptr() for each in (*models, model) for weight in each.parameters()]
    assert len(set(pointers)) == len(pointers)


@quiet
def test_stages_callback_keeps_models_in_evaluation_mode():
    models, _ = trained_stages(wave(64))
    assert not any(module.training for model in models for module in model.modules())


@quiet
def test_stages_callback_keeps_what_crossfit_chooses_from():
    kept = []

    def fit_stages(rows, seed):
        kept.append(trained_stages(rows, seed)[0])
        return kept[-1]

    result = fcal.crossfit(fit_stages, wave(80), folds=2)
    for member, stage, models in zip(result.members, result.stages, kept, strict=True):
        assert member is models[stage]
