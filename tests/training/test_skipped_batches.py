"""Batches in which no target counts take no step; they are counted, reported once, and refused where they are many."""

import warnings
from dataclasses import replace

import pytest
import torch
from lightning.pytorch import Callback
from torch.utils.data import Dataset, TensorDataset
from training.toys import net, wave

from fcal._datasets import has_target
from fcal.training import CalibrationLogger, FitConfig, ObjectiveConfig, fit, objective
from fcal.training.checkpoints import read_checkpoint
from fcal.training.reproducibility import derived_seed

CONFIG = FitConfig(epochs=3, batch_size=4, learning_rate=0.01, schedule="one-cycle", checkpoint_every_steps=1)
BATCHES = 15  # of 60 rows
ROWS = 60
SKIPPED = 8  # batch of one row that is skipped in the first epoch of a resumed training


class Holed(Dataset):
    """Waves whose batches of some numbers, counted over all epochs, have no target."""

    def __init__(self, holes, rows=ROWS, *, seed=0, how="nan"):
        self.waves, self.holes, self.how, self.served = wave(rows, seed=seed), holes, how, 0

    def __len__(self):
        return len(self.waves)

    def __getitems__(self, indices):
        x, y = self.waves[indices]
        batch = {"input": x, "target": y.clone()}
        if self.served in self.holes:
            batch |= {
                "nan": {"target": torch.full_like(y, torch.nan)},
                "mask": {"valid_mask": torch.zeros(len(y), dtype=torch.bool)},
                "weight": {"weight": torch.zeros(len(y))},
            }[self.how]
        self.served += 1
        return batch


class Rates(Callback):
    def __init__(self):
        self.rates, self.weights, self.moments = [], [], []

    def on_train_batch_end(self, trainer, module, *_):
        optimizer = trainer.optimizers[0]
        self.rates.append(optimizer.param_groups[0]["lr"])
        self.weights.append([parameter.detach().clone() for parameter in module.model.state_dict().values()])
        self.moments.append([x.clone() for state in optimizer.state.values() for x in state.values()])


def trained(holes, *, config=CONFIG, how="nan", **options):
    model = net()
    return model, fit(model, None, Holed(holes, how=how), wave(40, seed=1), config, **options)


def watched(holes, **options):
    seen = Rates()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model, result = trained(holes, callbacks=[seen], **options)
    return model, result, seen


def all_equal(one, two):
    return len(one) == len(two) and all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("how", ["nan", "mask", "weight"])
def test_skipped_batch_changes_neither_weights_nor_optimizer(how):
    _, _, seen = watched({7, BATCHES}, how=how)
    changed = [not all_equal(a, b) for a, b in zip(seen.weights, seen.weights[1:], strict=False)]
    assert [step + 1 for step, moved in enumerate(changed) if not moved] == [7, BATCHES]
    assert all_equal(seen.moments[6], seen.moments[7])
    assert not all_equal(seen.moments[7], seen.moments[8])


def test_first_batch_may_be_skipped():
    _, result, seen = watched({0})
    assert result.step_count == 3 * BATCHES - 1
    assert seen.moments[0] == []


def test_skipped_batches_are_in_the_result_and_the_history():
    with pytest.warns(
        UserWarning, match=r"^skipped batches without a target that counts: 2 of 45 of training$"
    ) as seen:
        _, result = trained({2, BATCHES + 3})
    assert len(seen) == 1
    assert (result.skipped_batches, result.step_count) == (2, 3 * BATCHES - 2)
    assert [line.get("train/skipped") for line in result.history] == [1, 1, None]
    assert [line["step"] for line in result.history] == [BATCHES - 1, 2 * BATCHES - 2, 3 * BATCHES - 2]


def test_schedule_ends_as_without_skipped_batches():
    rates = watched({7})[2].rates
    assert rates == watched(set())[2].rates


def test_mean_of_an_epoch_is_that_of_the_other_batches():
    class Constant(torch.nn.Module):
        def forward(self, model, batch):
            return {"first": batch["input"][0, 0] + 0 * model(batch["input"]).mean.sum()}

    class Seen(Holed):
        firsts = []

        def __getitems__(self, indices):
            batch = super().__getitems__(indices)
            self.firsts.append((batch["input"][0, 0].item(), bool(batch["target"].isnan().all())))
            return batch

    data = Seen({4})
    with pytest.warns(UserWarning, match="skipped batches"):
        result = fit(net(), Constant(), data, None, replace(CONFIG, epochs=1))
    expected = [first for first, is_skipped in data.firsts if not is_skipped]
    assert len(expected) == BATCHES - 1
    assert result.history[0]["train/first"] == pytest.approx(sum(expected) / len(expected), abs=1e-6)


class Interrupted(Exception):  # noqa: N818
    pass


class Interrupt(Callback):
    def __init__(self, batches):
        self.batches = batches

    def on_train_batch_start(self, _, module, *__):
        if module.record.batches == self.batches:
            raise Interrupted


@pytest.mark.parametrize(("stop", "every"), [(3, 1), (SKIPPED, 1), (SKIPPED + 1, 1), (SKIPPED + 1, 4), (25, 7)])
def test_resumed_equals_uninterrupted_around_skipped_batches(tmp_path, stop, every):
    class Deterministic(Holed):
        """The holes are rows here: a batch is empty wherever it is read again."""

        def __getitems__(self, indices):
            x, y = self.waves[indices]
            return {"input": x, "target": torch.where(torch.isin(x, self.waves[self.holes][0]), torch.nan, y)}

    config = replace(CONFIG, batch_size=1, epochs=2, checkpoint_every_steps=every)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(derived_seed("order", config.seed, 0)))
    data, held_out = Deterministic(order[SKIPPED : SKIPPED + 1], rows=20), wave(8, seed=1)

    def run(folder, **options):
        model = net()
        model.trunk[1] = torch.nn.Identity()  # instead of batch normalisation: one row has no variance
        return model, fit(model, None, data, held_out, config, folder=folder, **options)

    with pytest.warns(UserWarning, match="2 of 40 of training"):
        model, result = run(tmp_path / "whole")
    with pytest.raises(Interrupted):
        run(tmp_path / "stopped", callbacks=[Interrupt(stop)])
    with pytest.warns(UserWarning, match="2 of 40 of training"):
        again, resumed = run(tmp_path / "stopped", resume=True)
    assert resumed.history == result.history
    assert (resumed.step_count, resumed.skipped_batches) == (38, 2)
    assert all_equal(list(model.state_dict().values()), list(again.state_dict().values()))
    one, two = (read_checkpoint(tmp_path / name / "checkpoint.fcal") for name in ("whole", "stopped"))
    for name, state in one["optimizer_states"][0]["state"].items():
        assert all_equal(list(state.values()), list(two["optimizer_states"][0]["state"][name].values()))
    whole, stopped = (tmp_path / name / "history.csv" for name in ("whole", "stopped"))
    assert whole.read_bytes() == stopped.read_bytes()


@pytest.mark.parametrize(
    ("rows", "holes", "message"),
    [
        (60, {0, 9}, "expected at most 1% of the batches of training without a target that counts, got 2 of 15"),
        (4, {0}, "expected `target` with at least 1 value that counts, got 0 in training"),
    ],
)
def test_more_than_one_batch_and_one_percent_is_an_error(rows, holes, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        fit(net(), None, Holed(holes, rows), None, replace(CONFIG, epochs=1))


def test_one_percent_of_the_batches_may_be_skipped():
    config = replace(CONFIG, epochs=1, batch_size=2)
    with pytest.warns(UserWarning, match="2 of 200 of training"):
        fit(net(), None, Holed({0, 199}, 400), None, config)
    with pytest.raises(ValueError, match="got 3 of 200"):
        fit(net(), None, Holed({0, 7, 199}, 400), None, config)


def test_validation_batch_without_targets_is_left_out_of_all_metrics():
    y = wave(40, seed=1).tensors[1].clone()
    y[8:12] = torch.nan  # the third batch of ten
    holed = TensorDataset(wave(40, seed=1).tensors[0], y)
    left = TensorDataset(*(torch.cat([column[:8], column[12:]]) for column in holed.tensors))
    seen = CalibrationLogger()
    with pytest.warns(UserWarning, match=r"that counts: 1 of validation$"):
        ours = fit(net(), None, wave(ROWS), holed, CONFIG, callbacks=[seen])
    expected = fit(net(), None, wave(ROWS), left, CONFIG)
    for line, other in zip(ours.history, expected.history, strict=True):
        assert line.pop("validation/skipped") == 1
        assert line == pytest.approx(other, rel=1e-6)


@pytest.mark.parametrize("deterministic", [False, True])
def test_validation_set_without_targets_is_an_error(deterministic):
    empty = TensorDataset(torch.zeros(12, 1), torch.full((12, 1), torch.nan))
    of = objective(ObjectiveConfig(name="mse" if deterministic else "nll"))
    with pytest.raises(ValueError, match="expected `target` with at least 1 value that counts, got 0 in validation"):
        fit(net(deterministic=deterministic), of, wave(ROWS), empty, replace(CONFIG, monitor="loss"))


def test_many_validation_batches_without_targets_are_an_error():
    x, y = wave(40, seed=1).tensors
    y = torch.where(torch.arange(40).unsqueeze(1) < 8, torch.nan, y)
    with pytest.raises(ValueError, match="at most 1% of the batches of validation .*, got 2 of 10"):
        fit(net(), None, wave(ROWS), TensorDataset(x, y), CONFIG)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ({"target": torch.tensor([torch.nan, 1.0])}, True),
        ({"target": torch.tensor([[torch.nan, torch.nan]])}, False),
        ({"target": torch.tensor([1, 2])}, True),
        ({"target": ["a", "b"]}, True),
        ({"target": torch.zeros(0)}, False),
        ({"target": torch.zeros(2, 3), "valid_mask": torch.tensor([False, True])}, True),
        ({"target": torch.zeros(2, 3), "valid_mask": torch.zeros(2, 3, dtype=torch.bool)}, False),
        ({"target": torch.zeros(2, 3), "valid_mask": torch.zeros(3, dtype=torch.bool)}, True),  # the loss refuses it
        ({"target": torch.tensor([1.0, torch.nan]), "weight": torch.tensor([0.0, 1.0])}, False),
    ],
)
def test_batch_has_a_target_if_one_counts(batch, expected):
    assert has_target(batch) is expected
