"""Depth of single images: what the network sees of them, and where its predictions go."""

import math

import numpy as np
import pytest
import torch
from depth_files import noise_image
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn
from torch.distributions import Normal

from fcal.data import DepthView, StreetConfig, StreetDepth
from fcal.data.street import street_frame
from fcal.export import DepthPredictor, as_16_bits, predicts_depth
from fcal.export.depth_prediction import _VIEWS
from fcal.models import ConvNet
from fcal.models.depth import BTS
from fcal.recalibration import Temperature
from fcal.training import DataConfig, ModelConfig, Run, RunConfig


class Numbered(nn.Module):
    """Predicts the number of each cell as its depth, and keeps what it has seen."""

    def forward(self, images):
        self.seen = images
        shape = images.shape[0], *images.shape[2:]
        numbers = torch.arange(1.0, 1 + images[0, 0].numel()).reshape(shape)
        return Normal(numbers, 0.25 * numbers)


@pytest.mark.parametrize(("size", "shape"), [((4, 6), (13, 29)), ((8, 20), (5, 7)), ((6, 9), (6, 9))])
def test_every_pixel_takes_the_prediction_of_the_cell_that_its_centre_falls_into(size, shape):
    maps = DepthPredictor(Numbered(), view=DepthView(size=size, focal=5.0))(noise_image(shape))
    expected = [
        [1 + size[1] * math.floor((i + 0.5) * size[0] / shape[0]) + math.floor((j + 0.5) * size[1] / shape[1])
         for j in range(shape[1])]
        for i in range(shape[0])
    ]  # fmt: skip
    assert_array_equal(maps.depth, np.array(expected, np.float32))
    assert_array_equal(maps.sigma, np.array(expected, np.float32) / 4)
    assert maps.network_size == size


def test_focal_length_cuts_the_bottom_centre_out_of_the_resized_image():
    """An image of twice the focal length is halved: 20 x 30 to 10 x 15, of which 4 x 6 are seen."""
    maps = DepthPredictor(Numbered(), view=DepthView(size=(4, 6), focal=50.0))(noise_image((20, 30)), focal=100.0)
    expected = np.full((20, 30), np.nan, np.float32)
    for i in range(12, 20):
        for j in range(8, 20):  # the window begins in column (15 - 6) // 2 = 4 of the halved image
            expected[i, j] = 1 + 6 * (i // 2 - 6) + (j // 2 - 4)
    assert_array_equal(maps.depth, expected)
    assert_array_equal(np.isnan(maps.sigma), np.isnan(expected))


def test_without_a_view_the_image_keeps_its_size():
    maps = DepthPredictor(Numbered())(noise_image((3, 5)))
    assert_array_equal(maps.depth, np.arange(1, 16, dtype=np.float32).reshape(3, 5))


def test_network_sees_a_street_frame_as_in_training():
    config = StreetConfig(frames=5, frames_per_drive=1, height=16, width=52)
    network = Numbered()
    DepthPredictor(network, view=_VIEWS["street"]({"height": 16, "width": 52}))(street_frame(config, 3).image)
    torch.testing.assert_close(network.seen[0], StreetDepth(config)[3]["input"], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "options", "size", "focal"),
    [
        ("street", {"height": 32, "width": 621}, (32, 621), 721.5377 / 2),
        ("kitti-mini", {"root": "nowhere", "size": [96, 320], "focal": 186.0}, (96, 320), 186.0),
        ("kitti-depth", {"root": "nowhere", "train_list": "a", "test_list": "b", "focal": 0.0}, (352, 1216), None),
    ],
)
def test_view_of_a_run_is_that_of_its_data(name, options, size, focal):
    view = _VIEWS[name](options)
    assert view.size == size
    assert view.focal == pytest.approx(focal)


def test_recalibrator_is_applied():
    recalibrator = Temperature().fit(Normal(torch.zeros(4), 1.0), torch.tensor([3.0, -3.0, 3.0, -3.0]))
    plain, repaired = (
        DepthPredictor(Numbered(), recalibrator=each)(noise_image((3, 5))) for each in (None, recalibrator)
    )
    assert_allclose(repaired.sigma, 3 * plain.sigma, rtol=1e-6)  # the root mean square of these errors
    assert_array_equal(repaired.depth, plain.depth)


def test_network_predicts_in_evaluation_mode_and_keeps_its_own():
    network = BTS(encoder="resnet18", width=8).train()
    predictor = DepthPredictor(network, view=DepthView(size=(32, 64)))
    first, second = (predictor(noise_image((32, 64))) for _ in range(2))
    assert_array_equal(first.depth, second.depth)
    assert network.training
    assert first.depth.dtype == first.sigma.dtype == np.float32


@pytest.mark.parametrize(
    ("network", "image", "focal", "message"),
    [
        (Numbered(), np.zeros((4, 6, 3)), None, r"expected `image` an array uint8 of shape \(H, W, 3\), got float64"),
        (Numbered(), np.zeros((4, 6), np.uint8), None, r"got uint8 \(4, 6\)"),
        (Numbered(), "image.png", None, "got str"),
        (Numbered(), noise_image((4, 6)), 100.0, "expected no `focal` for a network of images of any focal length"),
        (Numbered(), noise_image((4, 6)), math.nan, "expected `focal`"),
        (lambda x: x[:, 0], noise_image((4, 6)), None, "expected a network that predicts a distribution, got one that"),
        (lambda x: Normal(x[:, 0, 0], 1.0), noise_image((4, 6)), None, r"of shape \(1, 4, 6\), got \(1, 6\)"),
    ],
)
def test_predictor_refuses_what_does_not_fit(network, image, focal, message):
    with pytest.raises(ValueError, match=message):
        DepthPredictor(network)(image, focal=focal)


def test_predictor_refuses_an_image_smaller_than_its_crop():
    predictor = DepthPredictor(Numbered(), view=DepthView(size=(4, 6), crop="kb"))
    with pytest.raises(
        ValueError, match="expected an image of at least 352 x 1216 pixels for the crop 'kb', got 4 x 6"
    ):
        predictor(noise_image((4, 6)))


@pytest.mark.parametrize(
    ("data", "network", "is_depth"),
    [
        ("street", ConvNet(size=16), True),
        ("bokeh", BTS(encoder="resnet18", width=8), True),
        ("bokeh", ConvNet(size=16), False),
    ],
)
def test_depth_runs_are_known_by_their_network_or_their_data(tmp_path, data, network, is_depth):
    config = RunConfig(data=DataConfig(name=data), model=ModelConfig(name="convnet"))
    assert predicts_depth(Run(folder=tmp_path, config=config, model=network, report={})) is is_depth


def test_integers_of_16_bits_are_the_nearest_ones_and_never_zero():
    rng = np.random.default_rng(0)
    values = rng.uniform(0.01, 250.0, (20, 30)).astype(np.float32)
    whole, saturated = as_16_bits(values, 256.0)
    assert whole.dtype == np.uint16
    assert_allclose(whole / 256, values, atol=0.5 / 256)
    assert saturated == 0
    assert as_16_bits(np.array([1e-6]), 256.0)[0] == 1


def test_integers_of_16_bits_saturate_and_count_it():
    whole, saturated = as_16_bits(np.array([255.99, 256.0, 1e9, np.inf, np.nan]), 256.0)
    assert whole.tolist() == [65533, 65535, 65535, 65535, 0]
    assert saturated == 3
