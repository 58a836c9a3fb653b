"""Predictions concatenated, indexed and with other parameters, whatever their family."""

import pytest
import torch
from torch.distributions import (
    AffineTransform,
    Gamma,
    Independent,
    LogNormal,
    MultivariateNormal,
    Normal,
    StudentT,
    TransformedDistribution,
)

from fcal.distributions.functional import cat, index_select, with_parameters

LOC, SCALE = torch.arange(6.0).reshape(3, 2), torch.linspace(0.5, 2.0, 6).reshape(3, 2)
LAWS = {
    "normal": Normal(LOC, SCALE),
    "broadcast": Normal(LOC, 2.0),
    "independent": Independent(Normal(LOC, SCALE), 1),
    "student": StudentT(torch.tensor(4.0), LOC, SCALE),
    "lognormal": LogNormal(LOC, SCALE),
    "shifted gamma": TransformedDistribution(Gamma(SCALE, SCALE), [AffineTransform(LOC, SCALE)]),
    "vectors": MultivariateNormal(LOC, scale_tril=torch.diag_embed(SCALE)),
}


@pytest.mark.parametrize("name", LAWS)
def test_joined_parts_are_the_whole(name):
    pred, y = LAWS[name], LOC + 1.5
    parts = [index_select(pred, torch.tensor([0])), index_select(pred, torch.tensor([1, 2]))]
    again = cat(parts)
    assert again.batch_shape == pred.batch_shape
    torch.testing.assert_close(again.log_prob(y), pred.log_prob(y))


@pytest.mark.parametrize("name", LAWS)
def test_taken_rows_are_in_the_order_asked_for(name):
    pred, y, rows = LAWS[name], LOC + 1.5, torch.tensor([2, 0])
    torch.testing.assert_close(index_select(pred, rows).log_prob(y[rows]), pred.log_prob(y)[rows])


def test_tensors_are_joined_and_taken_too():
    assert torch.equal(cat([LOC[:1], LOC[1:]]), LOC)
    assert torch.equal(index_select(LOC, torch.tensor([1])), LOC[1:2])


@pytest.mark.parametrize("name", ["normal", "independent", "student"])
def test_with_parameters_changes_these_alone(name):
    pred = LAWS[name]
    moved = with_parameters(pred, loc=LOC + 3)
    torch.testing.assert_close(moved.log_prob(LOC + 4), pred.log_prob(LOC + 1))
    assert moved.event_shape == pred.event_shape
