"""Last layers."""

import math

import pytest
import torch
from torch.distributions import Normal

from fcal.models import NormalHead, PointHead


@pytest.fixture(autouse=True)
def _same_weights():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


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
