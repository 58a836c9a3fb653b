"""The callbacks in a plain Lightning project, as users would write it."""

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from training.toys import net, wave

import fcal
from fcal.training import BestCalibration, CalibrationLogger, FitConfig, fit

pytestmark = pytest.mark.filterwarnings(
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated",
    "ignore:The '.*' does not have many workers",
)


class Theirs(pl.LightningModule):
    """A user's module that does not use this library."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def training_step(self, batch, _):
        x, y = batch
        return -self.net(x).log_prob(y).mean()

    def validation_step(self, batch, _):
        x, y = batch
        return {"pred": self.net(x), "target": y}

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)


class Collect(pl.Callback):
    """Collects weights and logged metrics of every epoch."""

    def __init__(self) -> None:
        self.seen: list[tuple[dict[str, float], dict[str, torch.Tensor]]] = []

    def on_train_epoch_end(self, trainer, module) -> None:
        weights = {name: value.clone() for name, value in module.state_dict().items()}
        self.seen.append(({name: float(x) for name, x in trainer.callback_metrics.items()}, weights))


def train(module, callbacks, epochs=4) -> pl.Trainer:
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=any(isinstance(callback, BestCalibration) for callback in callbacks),
        callbacks=callbacks,
    )
    trainer.fit(module, DataLoader(wave(96), batch_size=32), DataLoader(wave(50, seed=1), batch_size=16))
    return trainer


def test_logger_logs_the_metrics_of_evaluate_over_the_whole_epoch():
    module, collect = Theirs(), Collect()
    train(module, [CalibrationLogger(df=20, bins=10), collect])
    logged, weights = collect.seen[-1]
    module.load_state_dict(weights)
    x, y = wave(50, seed=1).tensors
    report = fcal.evaluate(module.net.eval()(x), y, df=20, bins=10)
    for name in ("nll", "crps", "rmse", "ece_z", "mce_q", "ence"):
        np.testing.assert_allclose(logged[f"validation/{name}"], getattr(report, name), rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(logged["validation/z_scale"], report.scale.value, rtol=1e-5)
    np.testing.assert_allclose(logged["validation/ece_q_floor"], report.ece_q_floor.expected, rtol=1e-5)
    assert len({line["validation/nll"] for line, _ in collect.seen}) == 4, "the metrics are reset every epoch"


def test_best_calibration_keeps_the_epoch_with_the_smallest_metric(tmp_path):
    module, collect = Theirs(), Collect()
    torch.manual_seed(0)
    train(module, [CalibrationLogger(prefix="val_"), collect, BestCalibration(tmp_path, "ece_z", prefix="val_")], 6)
    values = [line["val_ece_z"] for line, _ in collect.seen]
    assert [path.name for path in tmp_path.iterdir()] == ["best-ece_z.ckpt"]
    saved = torch.load(tmp_path / "best-ece_z.ckpt", weights_only=True)["state_dict"]
    best = collect.seen[int(np.argmin(values))][1]
    assert np.argmin(values) != 5, "the test needs a best epoch before the last"
    assert all(torch.equal(saved[name], best[name]) for name in best)


def test_logger_takes_a_function_for_other_modules():
    class Other(Theirs):
        def validation_step(self, batch, _):
            return self.net(batch[0]).mean.sum()

    module, collect = Other(), Collect()
    train(module, [CalibrationLogger(seen=lambda _, batch: (module.net(batch[0]), batch[1])), collect], epochs=1)
    assert "validation/ece_q" in collect.seen[0][0]


def test_logger_refuses_a_module_that_returns_something_else():
    class Other(Theirs):
        def validation_step(self, batch, _):
            return {"loss": self.net(batch[0]).mean.sum()}

    with pytest.raises(TypeError, match="expected `validation_step` to return .*, or `seen` .* got 'loss'"):
        train(Other(), [CalibrationLogger()], epochs=1)


@pytest.mark.parametrize("options", [{}, {"save_on_train_epoch_end": True}])
def test_best_calibration_without_a_logger_names_the_missing_callback(tmp_path, options):
    missing = "^expected `callbacks` with a CalibrationLogger beside BestCalibration, to log 'validation/crps', got "
    with pytest.raises(ValueError, match=f"{missing}nothing logged$"):
        train(Theirs(), [BestCalibration(tmp_path, "crps", **options)])
    with pytest.raises(ValueError, match=f"{missing}'val_nll', .*'val_crps', .* logged$"):
        train(Theirs(), [CalibrationLogger(prefix="val_"), BestCalibration(tmp_path, "crps", **options)])
    with pytest.raises(ValueError, match=f"{missing}nothing logged$"):
        fit(net(), None, wave(64), wave(50, seed=1), FitConfig(epochs=1), callbacks=[BestCalibration(tmp_path, "crps")])


def test_best_calibration_takes_a_metric_that_the_module_logs_itself(tmp_path):
    class Logs(Theirs):
        def validation_step(self, *_):
            self.log("validation/crps", 1.0)

    train(Logs(), [BestCalibration(tmp_path, "crps")], epochs=1)
    assert (tmp_path / "best-crps.ckpt").is_file()


def test_callbacks_work_in_fit(tmp_path):
    collect = Collect()
    config = FitConfig(epochs=3, batch_size=16, learning_rate=0.05)
    callbacks = [CalibrationLogger(), BestCalibration(tmp_path / "best", "nll"), collect]
    result = fit(net(), None, wave(64), wave(50, seed=1), config, folder=tmp_path / "run", callbacks=callbacks)
    for (logged, _), line in zip(collect.seen, result.history, strict=True):
        np.testing.assert_allclose(logged["validation/ece_q"], line["validation/ece_q"], rtol=1e-5)
    saved = torch.load(tmp_path / "best" / "best-nll.ckpt", weights_only=True)
    assert saved["fcal"]["record"]["epoch"] == result.best_epoch + 1, "epochs that were done when it was written"


def test_plain_function_is_an_objective():
    def squared(model: nn.Module, batch):
        return {"error": (model(batch["input"]).mean - batch["target"]).square().mean()}

    result = fit(net(), squared, wave(64), wave(32, seed=1), FitConfig(epochs=2, monitor="mse"), progress=False)
    np.testing.assert_allclose(result.history[-1]["validation/loss"], result.history[-1]["validation/mse"], rtol=1e-5)
