"""The depth network trained on random scenes with missing targets: by fit, and as a run from a TOML file."""

import pytest
import torch
import torchvision
from torch.utils.data import Dataset

from fcal import data
from fcal._config import read_config
from fcal.models import predict
from fcal.models.depth import BTS
from fcal.training import FitConfig, ObjectiveConfig, RunConfig, fit, load, objective, train


class Scenes(Dataset):
    """Images whose brightness tells their depth; four fifths of the pixels are missing."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        brightness = torch.rand(count, 1, 1, generator=generator).expand(count, 32, 40)
        noise = torch.randn(count, 32, 40, generator=generator)
        self.images = brightness.unsqueeze(1).expand(-1, 3, -1, -1) + 0.05 * noise.unsqueeze(1)
        self.depth = (2 + 40 * brightness) * (1 + 0.05 * noise)
        self.depth[torch.rand(count, 32, 40, generator=generator) < 0.8] = torch.nan

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input": self.images[index], "target": self.depth[index]}


class Splits:
    def __init__(self) -> None:
        self.train, self.validation, self.test = Scenes(8, 0), Scenes(4, 1), Scenes(4, 2)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("normal", {"name": "fcal", "task": "silog", "lam": 0.1, "form": "additive", "pixels": 500, "df": 20}),
        ("log-normal", {"name": "nll", "task": "silog", "lam": 0.1, "form": "additive"}),
        ("laplace", {"name": "fcal", "lam": 0.1, "strata": 2, "by": "region", "df": 20}),
    ],
)
def test_a_few_steps_lower_the_loss_on_scenes_with_missing_targets(family, options):
    torch.manual_seed(0)
    network = BTS(width=16, family=family)
    config = FitConfig(epochs=6, batch_size=4, learning_rate=3e-3, channels_last=True)
    result = fit(network, objective(ObjectiveConfig(**options)), Scenes(8, 0), Scenes(4, 1), config, progress=False)
    first, last = result.history[0]["train/loss"], result.history[-1]["train/loss"]
    assert last < 0.8 * first


def test_uncertainty_decoder_is_trained_alone_as_the_head():
    torch.manual_seed(0)
    network = BTS(width=16)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    fit(network, None, Scenes(8, 0), None, FitConfig(epochs=1, batch_size=4, trained="head"), progress=False)
    changed = {key for key, value in network.state_dict().items() if not torch.equal(value, before[key])}
    assert changed
    assert all(key.startswith("head.uncertainty.") for key in changed)


def test_deterministic_network_is_trained_by_silog():
    torch.manual_seed(0)
    network = BTS(width=16, deterministic=True)
    config = FitConfig(epochs=4, batch_size=4, learning_rate=3e-3, monitor="rmse")
    result = fit(network, objective(ObjectiveConfig(name="silog")), Scenes(8, 0), Scenes(4, 1), config, progress=False)
    assert result.history[-1]["train/loss"] < result.history[0]["train/loss"]


CONFIG = """
[data]
name = "scenes"

[model]
name = "bts"
options = {{encoder = "mobilenet_v2", weights = "{weights}", freeze = "batchnorm", width = 16}}

[objective]
name = "fcal"
task = "silog"
form = "additive"
lam = 0.1
df = 20

[fit]
epochs = 1
batch_size = 4
"""


@pytest.mark.usefixtures("names_forgotten")
def test_finished_run_is_loaded_without_the_pretrained_weights(tmp_path):
    data.register("scenes", Splits)
    weights = tmp_path / "mobilenet.pth"
    torch.save(torchvision.models.mobilenet_v2(weights=None).state_dict(), weights)
    path = tmp_path / "depth.toml"
    path.write_text(CONFIG.format(weights=weights))
    run = train(read_config(path, RunConfig), tmp_path / "run", progress=False)
    weights.unlink()
    again = load(tmp_path / "run")
    expected, ours = (predict(model, Splits().test).pred for model in (run.model, again.model))
    torch.testing.assert_close(ours.mean, expected.mean)
    torch.testing.assert_close(ours.stddev, expected.stddev)
