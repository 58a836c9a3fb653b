"""Stacked perceptrons against a loop of plain ones."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from fcal.models.stacked import StackedMLP

MEMBERS, ROWS, FEATURES = 4, 7, 3


def stacked(hidden=(5, 6)):
    return StackedMLP(MEMBERS, FEATURES, hidden, generator=torch.Generator().manual_seed(0)).double()


def rows():
    return torch.randn(MEMBERS, ROWS, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def loss_of(mean, sigma, target):
    return (sigma.log() + 0.5 * ((target - mean) / sigma).square()).mean()


@pytest.mark.parametrize("hidden", [(50,), (5, 6), ()])
def test_stacked_predicts_as_plain_networks_do(hidden):
    networks, x = stacked(hidden), rows()
    pred = networks(x)
    for member in range(MEMBERS):
        mean, spread = networks.alone(member).double()(x[member]).unbind(-1)
        assert_close(pred.loc[member], mean)
        assert_close(pred.scale[member], nn.functional.softplus(spread) + networks.floor)


def test_stacked_has_the_gradients_of_plain_networks():
    networks, x = stacked(), rows()
    target = x.sum(-1)
    pred = networks(x)
    sum(loss_of(pred.loc[i], pred.scale[i], target[i]) for i in range(MEMBERS)).backward()
    gradients = networks.theta.grad
    for member in range(MEMBERS):
        plain = networks.alone(member).double()
        mean, spread = plain(x[member]).unbind(-1)
        loss_of(mean, nn.functional.softplus(spread) + networks.floor, target[member]).backward()
        linear = [layer for layer in plain if isinstance(layer, nn.Linear)]
        expected = torch.cat([part.flatten() for layer in linear for part in (layer.weight.grad.T, layer.bias.grad)])
        assert_close(gradients[member], expected)


def test_stacked_starts_as_linear_layers_do_and_with_sigma_one():
    networks = StackedMLP(200, 16, (50,))
    weight, bias = networks.layers()[0]
    for part in (weight, bias):  # uniform within 1 / sqrt(16); its sd 0.25 / sqrt(3), here to 5 standard errors
        assert float(part.detach().abs().max()) <= 0.25
        assert_close(float(part.detach().std()), 0.25 / 3**0.5, rtol=0.05, atol=0.0)
    with torch.no_grad():
        assert_close(nn.functional.softplus(networks.theta[:, -1]) + networks.floor, torch.ones(200))


def test_stacked_is_repeatable_by_its_generator():
    one, two = (StackedMLP(2, 3, (4,), generator=torch.Generator().manual_seed(5)).theta for _ in range(2))
    assert_close(one, two, rtol=0, atol=0)


def test_taken_networks_are_copies():
    networks = stacked()
    copy = networks.taken(torch.tensor([2]))
    with torch.no_grad():
        copy.theta.zero_()
    assert float(networks.theta[2].detach().abs().sum()) > 0


def test_stacked_refuses_no_members():
    with pytest.raises(ValueError, match="expected `members` >= 1, got 0"):
        StackedMLP(0, 3, (4,))
