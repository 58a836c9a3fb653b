"""Heads, the small convolutional network and the registry of networks."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal

import fcal
from fcal import models
from fcal.models import ConvNet, NormalHead, PointHead


def images(count: int = 4, size: int = 16) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _same_weights():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.mark.parametrize(("size", "outputs", "width"), [(8, 1, 2), (16, 2, 4), (40, 5, 3), (64, 2, 16)])
def test_network_predicts_a_normal_law_per_output(size, outputs, width):
    law = ConvNet(size=size, outputs=outputs, width=width, hidden=8)(images(3, size))
    assert isinstance(law, Normal)
    assert law.loc.shape == law.scale.shape == (3, outputs)
    assert (law.scale > 0).all()
    assert fcal.nll(law, torch.zeros(3, outputs)).shape == (3, outputs)


def test_network_of_no_images_predicts_nothing():
    assert ConvNet(size=16)(images(0)).loc.shape == (0, 2)


def test_untrained_network_starts_near_the_middle_and_a_tenth():
    law = ConvNet()(images(8, 64))
    torch.testing.assert_close(law.mean, torch.full((8, 2), 0.5), rtol=0, atol=0.2)
    assert (law.stddev > 0.05).all()
    assert (law.stddev < 0.2).all()


def test_bytes_are_shares_of_255():
    network = ConvNet(size=16)
    from_bytes, from_floats = network(images()), network(images().float() / 255)
    assert torch.equal(from_bytes.loc, from_floats.loc)
    assert torch.equal(from_bytes.scale, from_floats.scale)


def test_order_of_axes_in_memory_does_not_matter():
    network = ConvNet(size=16)
    plain = network(images())
    network = network.to(memory_format=torch.channels_last)
    other = network(images().to(memory_format=torch.channels_last))
    torch.testing.assert_close(other.loc, plain.loc)
    torch.testing.assert_close(other.scale, plain.scale)


def test_every_image_is_predicted_by_itself():
    network, batch = ConvNet(size=16).eval(), images()
    alone = torch.cat([network(batch[i : i + 1]).loc for i in range(4)])
    torch.testing.assert_close(network(batch).loc, alone)


def test_deterministic_network_predicts_a_tensor_of_the_same_shape():
    points = ConvNet(size=16, deterministic=True)(images())
    assert isinstance(points, torch.Tensor)
    assert points.shape == (4, 2)


def test_deterministic_network_takes_the_weights_of_the_other_but_for_its_spread():
    whole, points = ConvNet(size=16), ConvNet(size=16, deterministic=True)
    missing, unexpected = points.load_state_dict(whole.state_dict(), strict=False)
    assert missing == []
    assert unexpected == ["head.spread.weight", "head.spread.bias"]
    torch.testing.assert_close(points(images()), whole(images()).mean)


def test_weights_have_these_names():
    # Files of weights are read by them: a change is a break.
    layers = [f"trunk.{k}" for k in (0, 2, 4, 7)] + ["head.mean", "head.spread"]
    assert list(ConvNet().state_dict()) == [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]


def test_head_is_the_last_layer_alone():
    network = ConvNet(size=16)
    for parameter in network.trunk.parameters():
        parameter.requires_grad_(False)
    network(images()).stddev.sum().backward()
    assert all(parameter.grad is None for parameter in network.trunk.parameters())
    assert network.head.spread.weight.grad is not None


def test_dropout_acts_in_training_only():
    network = ConvNet(size=16, dropout=0.5)
    assert not torch.equal(network(images()).loc, network(images()).loc)
    network.eval()
    assert torch.equal(network(images()).loc, network(images()).loc)


def test_network_learns_where_the_red_disc_is():
    from fcal.data import Bokeh, BokehConfig

    batch = Bokeh("train", BokehConfig(images=200, size=16, radius=0.2))[:]
    network = ConvNet(size=16, width=8, hidden=32)
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    start = fcal.nll(network(batch["input"]), batch["target"]).mean().item()
    for _ in range(60):
        optimizer.zero_grad()
        loss = fcal.nll(network(batch["input"]), batch["target"]).mean()
        loss.backward()
        optimizer.step()
    error = (network(batch["input"]).mean - batch["truth"]).square().mean().sqrt()
    assert loss.item() < start - 0.3
    assert error < 0.5 * batch["truth"].std()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"size": 20}, ValueError, "expected `size` a multiple of 8, got 20"),
        ({"outputs": 0}, ValueError, "expected `outputs` >= 1, got 0"),
        ({"width": 2.5}, TypeError, "expected `width` an int, got float 2.5"),
        ({"hidden": -1}, ValueError, "expected `hidden` >= 1, got -1"),
        ({"dropout": 1.0}, ValueError, "expected `dropout` within \\[0, 0.99\\], got 1.0"),
        ({"deterministic": 1}, TypeError, "expected `deterministic` a bool, got int 1"),
    ],
)
def test_network_refuses_options_that_make_no_sense(options, error, message):
    with pytest.raises(error, match=message):
        ConvNet(**options)


def test_network_refuses_images_that_it_was_not_made_for():
    network = ConvNet(size=16)
    with pytest.raises(ValueError, match=r"expected `images` of shape \(N, 3, 16, 16\), got \(4, 3, 24, 24\)"):
        network(images(4, 24))
    with pytest.raises(ValueError, match=r"got \(3, 16, 16\)"):
        network(images()[0])
    with pytest.raises(TypeError, match="expected `images` of dtype uint8 or a floating one, got torch.int64"):
        network(images().long())
    for other in (None, [1.0], images().numpy()):
        with pytest.raises(TypeError, match="expected `images` a torch.Tensor, got "):
            network(other)


def test_network_that_no_memory_holds_is_refused_before_it_is_made():
    with pytest.raises(ValueError, match="expected `width` <= 4096, got 65536"):
        ConvNet(width=65536)
    with pytest.raises(ValueError, match="`width` and `hidden` of at most 536,870,912 weights together"):
        ConvNet(width=4096, hidden=4096)


def test_options_called_name_are_options(monkeypatch):
    monkeypatch.setattr(models._FACTORIES, "_entries", dict(models._FACTORIES._entries))
    models.register("named", lambda name: name)
    assert models.by_name("named")(name="x") == "x"
    assert models.by_name("named")(3) == 3
    with pytest.raises(TypeError, match="expected `factory` to call with options, got NoneType"):
        models.register("zz", None)


def test_networks_are_known_by_name(monkeypatch):
    monkeypatch.setattr(models._FACTORIES, "_entries", dict(models._FACTORIES._entries))
    assert isinstance(models.by_name("convnet")(size=16), ConvNet)
    with pytest.raises(ValueError, match="expected `model` one of 'convnet'.*did you mean 'convnet'"):
        models.by_name("convnat")

    class Own(nn.Module):
        def __init__(self, *, scale: float = 1.0) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(scale))

        def forward(self, x: torch.Tensor) -> Normal:
            return Normal(x, self.scale.expand_as(x))

    models.register("own", Own)
    assert "own" in models.names()
    assert models.by_name("own")(scale=2.0)(torch.zeros(3)).stddev.tolist() == [2.0] * 3
    with pytest.raises(ValueError, match="expected `model` name that is not taken, got 'own'"):
        models.register("own", Own)


# -- heads


@pytest.mark.parametrize(("sigma", "floor"), [(0.1, 1e-3), (1.0, 0.0), (200.0, 1e-3), (1e-6, 1e-9)])
def test_untrained_head_predicts_the_centre_and_sigma_asked_for(sigma, floor):
    law = NormalHead(8, 2, centre=0.5, sigma=sigma, floor=floor)(torch.zeros(3, 8))
    assert isinstance(law, Normal)
    torch.testing.assert_close(law.mean, torch.full((3, 2), 0.5))
    torch.testing.assert_close(law.stddev, torch.full((3, 2), sigma), rtol=1e-5, atol=0)


def test_head_is_two_linear_maps_and_a_softplus():
    head, features = NormalHead(4, 3, centre=1.0, sigma=0.2, floor=0.01), torch.randn(5, 4)
    law = head(features)
    raw = features @ head.spread.weight.T + head.spread.bias
    torch.testing.assert_close(law.loc, features @ head.mean.weight.T + head.mean.bias)
    torch.testing.assert_close(law.scale, torch.log1p(raw.exp()) + 0.01)


def test_sigma_stays_above_its_floor():
    head = NormalHead(4, 2, floor=0.01)
    torch.nn.init.constant_(head.spread.bias, -1000.0)
    torch.testing.assert_close(head(torch.zeros(1, 4)).stddev, torch.full((1, 2), 0.01))


def test_gradient_reaches_both_layers():
    head = NormalHead(4, 2)
    (-head(torch.ones(3, 4)).log_prob(torch.ones(3, 2))).mean().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in head.parameters())


def test_point_head_predicts_the_mean_alone():
    head, features = PointHead(4, 2, centre=0.5), torch.randn(3, 4)
    torch.testing.assert_close(head(features), features @ head.mean.weight.T + 0.5)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"sigma": 1e-3}, ValueError, "expected `sigma` above its floor of 0.001, got 0.001"),
        ({"sigma": -1.0}, ValueError, "expected `sigma` within"),
        ({"sigma": math.nan}, ValueError, "expected `sigma` within"),
        ({"floor": -1.0}, ValueError, "expected `floor` within"),
        ({"centre": math.inf}, ValueError, "expected `centre` within"),
        ({"centre": "middle"}, TypeError, "expected `centre` a number, got str 'middle'"),
    ],
)
def test_head_refuses_what_it_cannot_start_from(options, error, message):
    with pytest.raises(error, match=message):
        NormalHead(4, 2, **options)


@pytest.mark.parametrize("kind", [NormalHead, PointHead])
def test_heads_refuse_empty_sizes(kind):
    with pytest.raises(ValueError, match="expected `features` >= 1, got 0"):
        kind(0, 2)
    with pytest.raises(ValueError, match="expected `outputs` >= 1, got 0"):
        kind(4, 0)
