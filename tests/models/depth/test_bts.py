"""The depth network: shapes, ranges, families, gradients, extreme inputs, and heads on one encoder."""

import copy
import math

import pytest
import torch
from torch.distributions import Distribution, Laplace, LogNormal, Normal
from torch.testing import assert_close

import fcal
from fcal import models
from fcal.models.depth import BTS, encoder_names


@pytest.fixture(autouse=True)
def _same_weights():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def images(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("encoder", encoder_names())
def test_network_predicts_every_pixel_at_any_size_with_any_encoder(encoder):
    network = BTS(encoder=encoder, width=8).eval()
    with torch.no_grad():
        for size in ((31, 45), (64, 33)):
            pred = network(images(2, 3, *size))
            assert isinstance(pred, Normal)
            assert pred.batch_shape == (2, *size)


def test_untrained_network_starts_at_15_metres_and_a_tenth():
    for mode in (True, False):
        pred = BTS().train(mode)(images(4, 3, 64, 96))
        assert 10 < pred.mean.min() < pred.mean.max() < 20
        assert 0.05 < (pred.stddev / pred.mean).min() < (pred.stddev / pred.mean).max() < 0.15


def test_range_scales_with_the_largest_depth():
    pred = BTS(width=8, max_depth=10.0).eval()(images(1, 3, 32, 32))
    assert_close(pred.mean, torch.full((1, 32, 32), 3 / 16 * 10), rtol=0.2, atol=0)


def test_mean_of_an_image_does_not_depend_on_the_other_images_of_a_batch():
    network, batch = BTS(width=8).eval(), images(3, 3, 40, 50)
    assert_close(network(batch).mean[1:2], network(batch[1:2]).mean, rtol=1e-4, atol=1e-4)


# Families.

CLASSES = {"normal": Normal, "laplace": Laplace, "log-normal": LogNormal}


def same_network(**options):
    torch.manual_seed(3)
    return BTS(width=8, **options).eval()


@pytest.mark.parametrize("family", CLASSES)
def test_family_centres_on_the_depth_of_the_deterministic_network(family):
    network = same_network(family=family)
    image = images(1, 3, 32, 48)
    pred = network(image)
    assert type(pred) is CLASSES[family]
    depth = deterministic_twin(network)(image)
    median = pred.icdf(torch.tensor(0.5))
    assert_close(median, depth, rtol=1e-5, atol=0)


def deterministic_twin(network):
    """The same encoder and depth decoder, without uncertainty."""
    twin = copy.deepcopy(network)
    twin.head.uncertainty = None
    return twin


def test_log_normal_depth_is_the_median_unless_the_mean_is_asked_for():
    image = images(1, 3, 32, 48)
    by_median, by_mean = same_network(family="log-normal"), same_network(family="log-normal", depth_is="mean")
    assert by_median.depth_is == "median"
    assert by_mean.depth_is == "mean"
    depth = deterministic_twin(by_median)(image)
    assert_close(by_median(image).loc.exp(), depth, rtol=1e-5, atol=0)
    assert_close(by_mean(image).mean, depth, rtol=1e-5, atol=0)
    assert (by_median(image).mean > depth).all()


def test_families_have_the_same_standard_deviation():
    image = images(1, 3, 32, 48)
    assert_close(same_network(family="laplace")(image).stddev, same_network()(image).stddev)


def test_deterministic_network_predicts_a_tensor():
    network = BTS(width=8, deterministic=True)
    assert network.uncertainty_head is None
    assert network.eval()(images(2, 3, 33, 40)).shape == (2, 33, 40)


# Gradients.


def gradient_norms(network, image, loss_of):
    network.zero_grad()
    loss_of(network(image)).backward()

    def norm(module):
        return sum(float(p.grad.square().sum()) for p in module.parameters() if p.grad is not None)

    return {
        "encoder": norm(network.encoder),
        "depth": norm(network.head.depth),
        "uncertainty": norm(network.head.uncertainty),
    }


@pytest.mark.parametrize("family", CLASSES)
def test_likelihood_reaches_encoder_and_both_decoders(family):
    network = BTS(width=8, family=family)
    norms = gradient_norms(
        network, images(2, 3, 32, 64), lambda pred: fcal.nll(pred, torch.full((2, 32, 64), 9.0)).mean()
    )
    assert all(value > 0 for value in norms.values()), norms
    assert all(p.grad is not None for p in network.parameters())


def test_no_gradient_of_sigma_reaches_depth_nor_of_depth_the_uncertainty():
    network, image = BTS(width=8), images(2, 3, 32, 64)
    assert gradient_norms(network, image, lambda pred: pred.stddev.mean())["depth"] == 0
    assert gradient_norms(network, image, lambda pred: pred.mean.mean())["uncertainty"] == 0


def test_frozen_encoder_gets_no_gradient():
    network = BTS(width=8, freeze="encoder").train()
    norms = gradient_norms(network, images(2, 3, 32, 64), lambda pred: fcal.nll(pred, torch.ones(2, 32, 64)).mean())
    assert norms["encoder"] == 0
    assert norms["depth"] > 0


# Numerics.


def extremes(dtype):
    return {
        "zeros": torch.zeros(2, 3, 32, 40, dtype=dtype),
        "large": torch.full((2, 3, 32, 40), 1e4, dtype=dtype),
        "negative": torch.full((2, 3, 32, 40), -1e4, dtype=dtype),
        "constant": torch.full((2, 3, 32, 40), 0.3, dtype=dtype),
        "contrast": 1e4 * (torch.arange(40) % 2).to(dtype).expand(2, 3, 32, 40),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("encoder", "family"), [("resnet18", "normal"), *(("mobilenet_v2", family) for family in CLASSES)]
)
def test_extreme_images_give_valid_laws_and_finite_gradients(dtype, encoder, family):
    network = BTS(encoder=encoder, width=8, family=family).to(dtype)
    target = torch.full((2, 32, 40), 60.0)
    for mode in (True, False):
        for name, image in extremes(dtype).items():
            network.train(mode).zero_grad()
            pred = network(image)
            assert pred.mean.dtype == torch.float32
            for value in (pred.mean, pred.stddev):
                assert value.isfinite().all(), (name, mode)
                assert (value > 0).all(), (name, mode)
            fcal.nll(pred, target).mean().backward()
            assert all(p.grad.isfinite().all() for p in network.parameters()), (name, mode)


@pytest.mark.parametrize("logit", [-1e4, 1e4])
@pytest.mark.parametrize("family", CLASSES)
def test_saturated_decoders_stay_within_the_range(logit, family):
    network = BTS(width=8, family=family).eval()
    for decoder in (network.head.depth, network.head.uncertainty):
        torch.nn.init.constant_(decoder.last.bias, logit)
    pred = network(images(1, 3, 32, 32))
    median = pred.icdf(torch.tensor(0.5)).detach()
    expected = 1e-3 if logit < 0 else 80.0
    assert_close(median, torch.full_like(median, expected), rtol=1e-4, atol=0)
    relative = 1e-3 if logit < 0 else 1.0
    spread = pred.scale if family == "log-normal" else pred.stddev - 80 * 1e-4
    scale = 1.0 if family == "log-normal" else expected
    assert_close(spread.detach(), torch.full_like(spread, relative * scale), rtol=2e-3, atol=0)
    assert fcal.nll(pred, torch.full((1, 32, 32), 5.0)).isfinite().all()


def test_memory_format_does_not_matter():
    network, image = BTS(width=8).eval(), images(2, 3, 40, 40)
    expected = network(image)
    network = network.to(memory_format=torch.channels_last)
    pred = network(image.contiguous(memory_format=torch.channels_last))
    assert_close(pred.mean, expected.mean, rtol=1e-4, atol=1e-4)
    assert_close(pred.stddev, expected.stddev, rtol=1e-4, atol=1e-4)


# Heads on one encoder.


def test_heads_predict_as_networks_of_their_own():
    network, image = BTS.with_heads(3, width=8).eval(), images(2, 3, 33, 40)
    preds = network(image)
    assert len(preds) == 3
    for index, pred in enumerate(preds):
        alone = network.alone(index)(image)
        assert isinstance(pred, Distribution)
        assert_close(pred.mean, alone.mean)
        assert_close(pred.stddev, alone.stddev)


def test_heads_have_their_own_weights_and_one_encoder():
    network, image = BTS.with_heads(2, width=8).eval(), images(1, 3, 32, 32)
    first, second = network(image)
    assert not torch.equal(first.mean, second.mean)
    assert network.alone(0).trunk is network.alone(1).trunk


def test_training_a_member_trains_its_head_alone_on_a_frozen_encoder():
    network = BTS.with_heads(2, width=8, freeze="encoder")
    before = [copy.deepcopy(head.state_dict()) for head in network.heads]
    member = network.alone(1).train()
    optimizer = torch.optim.SGD([p for p in member.parameters() if p.requires_grad], lr=0.1)
    fcal.nll(member(images(2, 3, 32, 32)), torch.full((2, 32, 32), 9.0)).mean().backward()
    optimizer.step()
    changed = [
        any(not torch.equal(value, old[key]) for key, value in head.state_dict().items())
        for head, old in zip(network.heads, before, strict=True)
    ]
    assert changed == [False, True]


# The registry, and refusals.


def test_network_is_found_by_name_with_plain_options():
    network = models.by_name("bts")(encoder="mobilenet_v2", weights="", width=8, family="laplace", max_depth=10.0)
    assert isinstance(network, BTS)


@pytest.mark.parametrize(
    ("image", "error", "message"),
    [
        ("picture", TypeError, "expected `image` a torch.Tensor, got str"),
        (torch.zeros(3, 32, 32), ValueError, r"expected `image` of shape \(B, 3, H, W\), got \(3, 32, 32\)"),
        (torch.zeros(1, 1, 32, 32), ValueError, r"expected `image` of shape \(B, 3, H, W\), got \(1, 1, 32, 32\)"),
        (torch.zeros(1, 3, 0, 32), ValueError, r"expected `image` of shape \(B, 3, H, W\), got \(1, 3, 0, 32\)"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), TypeError, "expected `image` of a floating dtype, normalised"),
    ],
)
def test_network_refuses_images(image, error, message):
    with pytest.raises(error, match=message):
        BTS(width=8)(image)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"family": "gamma"}, ValueError, "expected `family` one of 'normal', 'laplace', 'log-normal', got 'gamma'"),
        ({"depth_is": "mode"}, ValueError, "expected `depth_is` one of 'median', 'mean', got 'mode'"),
        ({"width": 0}, ValueError, "expected `width` >= 1, got 0"),
        ({"max_depth": math.inf}, ValueError, "expected `max_depth` within"),
        ({"min_depth": 0.0}, ValueError, "expected `min_depth` within"),
        ({"deterministic": 1}, TypeError, "expected `deterministic` a bool, got int 1"),
    ],
)
def test_network_refuses_options(options, error, message):
    with pytest.raises(error, match=message):
        BTS(**options)
