"""CV+ intervals: against a loop over rows, and their coverage."""

import math

import pytest
import torch
from crossfitting.lines import fit_line, full_crossfit, noisy_line
from torch.distributions import Normal

from fcal.crossfitting import cv_plus


def by_loop(found, x, level):
    """The definition, number by number."""
    errors = (found.target - found.held_out.mean).abs() / found.held_out.stddev
    ends = []
    for given in x:
        preds = [model(given[None]) for model in found.without]
        lower = [
            preds[k].mean.item() - preds[k].stddev.item() * e.item()
            for k, e in zip(found.fold, errors[:, 0], strict=True)
        ]
        upper = [
            preds[k].mean.item() + preds[k].stddev.item() * e.item()
            for k, e in zip(found.fold, errors[:, 0], strict=True)
        ]
        n = len(lower)
        rank = math.floor((1 - level) * (n + 1) + 1e-9)
        ends.append((sorted(lower)[rank - 1], sorted(upper)[n - rank]))
    return torch.tensor(ends, dtype=torch.float64)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95])
def test_intervals_are_those_of_a_loop(level):
    found = full_crossfit(fit_line, noisy_line(), folds=4)
    x = torch.linspace(-2, 2, 7, dtype=torch.float64).unsqueeze(1)
    low, high = found.intervals(x, level)
    torch.testing.assert_close(torch.cat([low, high], 1), by_loop(found, x, level))


def test_coverage_of_new_rows():
    """Of 200 trainings on 30 rows, new rows inside; 3 standard errors of 4000 rows are 1.5 %, and CV+ is cautious."""
    inside = []
    for seed in range(200):
        found = full_crossfit(fit_line, noisy_line(30, seed), folds=5)
        x, y = noisy_line(20, 1000 + seed).tensors
        low, high = found.intervals(x, 0.9)
        inside.append(((y >= low) & (y <= high)).double().mean())
    assert 0.885 < torch.stack(inside).mean() < 0.945


def test_too_few_rows_for_the_level_make_them_infinite():
    low, high = full_crossfit(fit_line, noisy_line(9), folds=3).intervals(torch.zeros(2, 1).double(), 0.95)
    assert low.isneginf().all()
    assert high.isposinf().all()


def test_missing_targets_do_not_count():
    held_out, new = Normal(torch.zeros(4), torch.ones(4)), [Normal(torch.zeros(1), 1.0)] * 2
    target, fold = torch.tensor([1.0, 2.0, 3.0, torch.nan]), torch.tensor([0, 1, 0, 1])
    mask = torch.tensor([True, True, False, True])
    low, high = cv_plus(held_out, target, fold, new, level=0.5, valid_mask=mask)
    assert (low.item(), high.item()) == (-2.0, 2.0)


def test_refuses_a_level():
    with pytest.raises(ValueError, match="expected `level`"):
        full_crossfit(fit_line, noisy_line()).intervals(torch.zeros(1, 1).double(), 1.0)


@pytest.mark.parametrize(
    ("fold", "message"),
    [
        (torch.tensor([0, 1, 2, 0]), "expected `fold` from 0 and as many `preds`, got 0 to 2 and 2"),
        (torch.tensor([0, -1, 1, 0]), "got -1 to 1 and 2"),
        (torch.tensor([0.0, 1.0, 0.0, 1.0]), "expected `fold` of 4 integers, got torch.float32"),
        (torch.tensor([0, 1]), "expected `fold` of 4 integers"),
    ],
)
def test_refuses_folds_that_are_not_those_of_the_models(fold, message):
    held_out, new = Normal(torch.zeros(4), torch.ones(4)), [Normal(torch.zeros(1), 1.0)] * 2
    with pytest.raises(ValueError, match=message):
        cv_plus(held_out, torch.ones(4), fold, new)


def test_refuses_laws_without_a_standard_deviation():
    heavy = torch.distributions.StudentT(1.5, torch.zeros(4), 1.0)
    new = [torch.distributions.StudentT(1.5, torch.zeros(1), 1.0)] * 2
    with pytest.raises(ValueError, match="expected predictions with finite means and standard deviations"):
        cv_plus(heavy, torch.ones(4), torch.tensor([0, 1, 0, 1]), new)
