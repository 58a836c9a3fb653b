"""``fit``: its results, its repeatability and its errors."""

import importlib
import random
import sys
import threading
import time
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Normal
from torch.utils.data import TensorDataset
from training.toys import net, wave

import fcal
from fcal.data import BokehConfig, BokehSplits
from fcal.models import ConvNet
from fcal.training import Batches, Diverged, FitConfig, ObjectiveConfig, fit, objective, predict

SHORT = FitConfig(epochs=3, batch_size=32, learning_rate=0.01)


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([value.double().flatten() for value in model.state_dict().values()])


def trained(config: FitConfig = SHORT, **options):
    model = net()
    return model, fit(model, options.pop("objective", None), wave(100), wave(60, seed=1), config, **options)


def test_fit_is_the_loop_one_would_write_by_hand():
    """Without dropout, batch norm or schedule, and with full batches, it equals ten lines of plain PyTorch."""
    rows = wave(40)
    torch.manual_seed(0)
    ours, theirs = (nn.Linear(1, 1) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    config = FitConfig(
        epochs=5, batch_size=40, schedule="constant", learning_rate=0.1, weight_decay=0.01, clip_norm=0.5
    )
    result = fit(ours, objective(ObjectiveConfig(name="mse")), rows, None, config, progress=False)
    optimizer = torch.optim.Adam(theirs.parameters(), lr=0.1, weight_decay=0.01)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = (theirs(rows.tensors[0]) - rows.tensors[1]).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    torch.testing.assert_close(weights(ours), weights(theirs))
    np.testing.assert_allclose([line["train/loss"] for line in result.history], losses, rtol=1e-5)
    assert result.step_count == 5
    assert result.best_epoch == 4


def test_fit_repeats_bit_for_bit_and_leaves_the_random_state_alone():
    runs = []
    for seed in (1, 2):  # what the caller drew before does not matter
        model = net()
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        runs.append((model, fit(model, None, wave(100), wave(60, seed=1), SHORT, progress=False)))
        after = torch.rand(1), np.random.rand(), random.random()  # noqa: NPY002
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        assert after == (torch.rand(1), np.random.rand(), random.random())  # noqa: NPY002
    assert runs[0][1].history == runs[1][1].history
    assert torch.equal(weights(runs[0][0]), weights(runs[1][0]))


def test_seed_of_fit_matters():
    assert trained()[1].history != trained(FitConfig(epochs=3, batch_size=32, learning_rate=0.01, seed=1))[1].history


def test_fit_keeps_the_weights_of_the_best_epoch():
    model, result = trained(FitConfig(epochs=12, batch_size=32, learning_rate=1.0, schedule="constant", monitor="crps"))
    values = [line["validation/crps"] for line in result.history]
    assert result.best_epoch == int(np.argmin(values))
    assert result.best_epoch < 11, "the test needs a best epoch before the last"
    pred, target, _ = predict(model, wave(60, seed=1))
    np.testing.assert_allclose(fcal.crps(pred, target).mean().item(), min(values), rtol=1e-6)


def test_fit_keeps_the_last_weights_without_a_validation_set():
    rows = wave(40)
    model = nn.Linear(1, 1)
    result = fit(model, objective(ObjectiveConfig(name="mse")), rows, None, SHORT, progress=False)
    assert result.best_epoch == 2
    assert not any(name.startswith("validation") for name in result.history[-1])


def test_patience_stops_early():
    config = FitConfig(epochs=50, batch_size=32, learning_rate=0.3, schedule="constant", patience=2)
    _, result = trained(config)
    assert result.stopped_early
    assert result.epochs_run == result.best_epoch + 3 < 50


def stopped_after(stop_after: int, epochs: int = 4):
    config = FitConfig(epochs=epochs, stop_after=stop_after, batch_size=16)
    return fit(net(), None, wave(60), None, config, progress=False)


def test_stop_after_is_the_beginning_of_the_longer_training():
    stopped = stopped_after(2)
    assert stopped.epochs_run == 2
    assert stopped.history == stopped_after(0).history[:2]


def test_stop_after_differs_from_a_shorter_schedule():
    assert stopped_after(2).history[-1]["learning_rate"] > stopped_after(0, epochs=2).history[-1]["learning_rate"]


def test_stop_after_beyond_the_schedule_is_refused():
    with pytest.raises(ValueError, match="expected `stop_after` <= 4, got 5"):
        FitConfig(epochs=4, stop_after=5)


def test_validation_metrics_are_those_of_evaluate():
    model, result = trained()
    pred, target, _ = predict(model, wave(60, seed=1))
    report = fcal.evaluate(pred, target)
    line = result.best()
    for name in ("nll", "crps", "rmse", "ece_z", "ece_q", "ence"):
        np.testing.assert_allclose(line[f"validation/{name}"], getattr(report, name), rtol=1e-6, err_msg=name)
    np.testing.assert_allclose(line["validation/z_sq"], fcal.standardize(pred, target).square().mean(), rtol=1e-5)
    l1 = nn.functional.smooth_l1_loss(pred.mean, target)
    np.testing.assert_allclose(line["validation/l1"], l1, rtol=1e-5)
    np.testing.assert_allclose(line["validation/loss"], line["validation/nll"], rtol=1e-5)


def test_deterministic_network_has_errors_but_no_calibration():
    model = net(deterministic=True)
    result = fit(model, objective(ObjectiveConfig(name="smooth-l1")), wave(80), wave(40, seed=1), SHORT, progress=False)
    names = {name.partition("/")[2] for name in result.history[-1] if name.startswith("validation/")}
    assert names == {"loss", "l1", "mse", "rmse"}
    np.testing.assert_allclose(result.history[-1]["validation/loss"], result.history[-1]["validation/l1"], rtol=1e-5)


def test_head_only_training_leaves_the_rest_untouched():
    model = net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fit(model, None, wave(80), wave(40, seed=1), FitConfig(epochs=2, trained="head"), progress=False)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]) != name.startswith("head"), name  # batch norm's running means too
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_fit_of_the_head_alone_keeps_the_mean_of_a_network_that_names_its_uncertainty_head():
    network, data = ConvNet(size=16), BokehSplits(BokehConfig(images=100, extra=0, size=16))
    images = data.test[:]["input"]
    network.eval()
    before = network(images)
    fit(network, None, data.train, data.validation, FitConfig(epochs=2, trained="head"), progress=False)
    after = network(images)
    assert torch.equal(before.mean, after.mean)
    assert not torch.equal(before.stddev, after.stddev)


def test_head_only_training_needs_a_head():
    with pytest.raises(ValueError, match="expected `model` with a module `head` where trained is 'head', got Linear"):
        fit(nn.Linear(1, 1), None, wave(8), None, FitConfig(trained="head"))


def test_channels_last_changes_the_layout_alone():
    images = torch.rand(24, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(images, images.mean((1, 2, 3)).unsqueeze(1))
    layouts = []

    class Seen(nn.Sequential):
        def forward(self, x):
            layouts.append(x.is_contiguous(memory_format=torch.channels_last))
            return super().forward(x)

    results = []
    for channels_last in (False, True):
        torch.manual_seed(0)
        model = Seen(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 1))
        config = FitConfig(epochs=2, batch_size=8, channels_last=channels_last)
        results.append(fit(model, objective(ObjectiveConfig(name="mse")), data, None, config, progress=False))
    assert layouts == [False] * 6 + [True] * 6
    np.testing.assert_allclose(*([line["train/loss"] for line in r.history] for r in results), rtol=1e-3)


def test_training_prints_and_warns_nothing(capfd):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trained()
    out = capfd.readouterr()
    assert not caught
    assert (out.out, out.err) == ("", "")


class Exploding(nn.Module):
    """Finite for some steps, then its loss is NaN."""

    def __init__(self, good: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.left = good

    def forward(self, x):
        self.left -= 1
        return x * self.weight + (torch.nan if self.left < 0 else 0.0)


def test_divergence_names_step_and_term():
    with pytest.raises(Diverged, match="training diverged: mse = nan after 3 steps") as caught:
        fit(Exploding(3), objective(ObjectiveConfig(name="mse")), wave(80), None, FitConfig(batch_size=16))
    assert (caught.value.step, caught.value.term) == (3, "mse")


def test_prediction_with_invalid_parameters_is_a_divergence():
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(torch.inf))

        def forward(self, x):
            return Normal(x * self.weight, 1.0)

    with pytest.raises(Diverged, match="invalid prediction after 0 steps: Normal with loc -?inf, expected Real"):
        fit(Broken(), None, wave(8), None)


def test_error_of_the_user_is_no_divergence():
    class Wide(nn.Linear):
        def forward(self, x):
            return Normal(super().forward(x), 1.0)

    with pytest.raises(ValueError, match=r"expected `target` of shape \(8, 3\)"):
        fit(Wide(1, 3), None, wave(8), None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "`epochs` >= 1, got 0"),
        ({"learning_rate": -1.0}, "`learning_rate` within"),
        ({"monitor": "ece"}, "`monitor` one of .* got 'ece'"),
        ({"optimizer": "sgdd"}, "`optimizer` one of 'adam', 'adamw', got 'sgdd'"),
        ({"trained": "tail"}, "`trained` one of 'full', 'head', got 'tail'"),
        ({"schedule": "cosin"}, "`schedule` one of .* got 'cosin' .did you mean 'cosine'"),
        ({"checkpoint_every_steps": 0}, "`checkpoint_every_steps` >= 1"),
    ],
)
def test_fit_config_refuses(options, message):
    with pytest.raises(ValueError, match=f"expected {message}"):
        FitConfig(**options)


def test_monitor_that_the_model_does_not_have_is_refused():
    with pytest.raises(ValueError, match="expected `monitor` one of 'loss', 'l1', 'mse', 'rmse' for this model"):
        fit(
            net(deterministic=True),
            objective(ObjectiveConfig(name="mse")),
            wave(8),
            wave(8),
            FitConfig(monitor="nll"),
        )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((3, None, wave(8), None), TypeError, "`model` a torch.nn.Module, got int"),
        ((nn.Linear(1, 1), nn.MSELoss, wave(8), None), TypeError, "`objective` to call"),
        ((nn.Linear(1, 1), None, iter([]), None), TypeError, "a dataset with a length"),
        ((nn.Linear(1, 1), None, [], None), ValueError, "a dataset with at least 1 row, got 0"),
        ((nn.Linear(1, 1), None, [torch.zeros(1)] * 4, None), TypeError, "a batch as a mapping or a tuple"),
        ((nn.Linear(1, 1), None, [{"input": 1.0}] * 4, None), ValueError, "a batch with 'input' and 'target'"),
        ((nn.Flatten(), None, wave(8), None), ValueError, "`model` with parameters to train"),
        ((nn.Linear(1, 1), lambda *_: 1.0, wave(8), None), TypeError, "`objective` to return named terms, got float"),
        (
            (nn.Linear(1, 1), lambda _, batch: {"a": batch["target"]}, wave(8), None),
            TypeError,
            "scalar tensors, got 'a'",
        ),
    ],
)
def test_fit_refuses(arguments, error, message):
    with pytest.raises(error, match=f"expected .*{message}"):
        fit(*arguments)


def test_batches_use_every_row_once_and_are_about_equal():
    batches = Batches(wave(101), 10, seed=0)
    sizes = [len(batch["target"]) for batch in batches]
    assert len(sizes) == len(batches) == 11
    assert set(sizes) == {9, 10}
    rows = torch.cat([batch["input"] for batch in batches]).flatten()
    torch.testing.assert_close(rows.sort().values, wave(101).tensors[0].flatten().sort().values, rtol=0, atol=0)


def test_order_of_batches_depends_on_seed_and_epoch_alone():
    def order(seed, epoch):
        return torch.cat([b["input"] for b in Batches(wave(50), 8, seed=seed, position=lambda: (epoch, 0))]).flatten()

    assert torch.equal(order(0, 1), order(0, 1))
    assert not torch.equal(order(0, 1), order(0, 2))
    assert not torch.equal(order(0, 1), order(1, 1))


def test_stacked_batches_of_a_dataset_are_not_collated():
    class Stacked:
        def __len__(self):
            return 10

        def __getitems__(self, indices):
            chosen = torch.tensor(indices, dtype=torch.float32)
            return {"input": chosen.unsqueeze(1), "target": chosen.unsqueeze(1), "sigma": chosen}

    batches = list(Batches(Stacked(), 4))
    assert [batch["sigma"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_schedules_begin_and_end_where_they_should():
    from fcal.training.optimization import rate_factor

    assert [rate_factor("constant", step, 10) for step in (0, 9)] == [1, 1]
    np.testing.assert_allclose([rate_factor("cosine", step, 10) for step in (0, 5, 10)], [1, 0.5, 0], atol=1e-15)
    np.testing.assert_allclose([rate_factor("one-cycle", s, 10) for s in (0, 3, 10)], [0.04, 1, 4e-6], rtol=1e-9)


def test_progress_bar_is_shown_on_a_terminal_alone_and_is_removed(capsys, monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    trained(progress=True)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes stderr for a terminal
    threads = threading.active_count()
    trained(progress=False)
    assert capsys.readouterr() == ("", "")
    trained(progress=True)
    out = capsys.readouterr()
    assert out.out == ""
    assert "training" in out.err
    with pytest.raises(Diverged):
        fit(Exploding(3), objective(ObjectiveConfig(name="mse")), wave(80), None, FitConfig(batch_size=16))
    deadline = time.monotonic() + 5  # the thread that draws the bar ends at its next beat
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.05)
    assert threading.active_count() == threads, "the thread that draws the bar has ended, also after an error"


def test_missing_lightning_is_one_line(monkeypatch):
    monkeypatch.setattr(fcal, "training", sys.modules["fcal.training"])  # importing anew replaces it
    for name in [*sys.modules]:
        if name.startswith(("fcal.training", "lightning")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lightning", None)
    training = importlib.import_module("fcal.training")
    for name in ("fit", "CalibrationLogger", "train"):
        with pytest.raises(ImportError, match=r"^expected lightning for training; pip install 'fcal\[train\]'$"):
            getattr(training, name)
    assert training.FitConfig().epochs == 30, "FitConfig does not need Lightning"


def test_public_names_resolve():
    import fcal.training

    assert all(getattr(fcal.training, name) is not None for name in fcal.training.__all__)
    with pytest.raises(AttributeError, match="module 'fcal.training' has no attribute 'fitt'"):
        _ = fcal.training.fitt
