"""A loss without wild rows: which rows those are, by brute force; masks, weights, vectors, heavy tails and refusals."""

import numpy as np
import pytest
import torch
from torch.distributions import Independent, MultivariateNormal, Normal, StudentT
from torch.testing import assert_close

from fcal import FCalLoss
from fcal.losses import CombinedLoss, NLLLoss, StratifiedLoss, TrimmedLoss


def normal_batch(rows=1000, seed=0):
    generator = torch.Generator().manual_seed(seed)
    loc, noise = torch.randn(2, rows, dtype=torch.float64, generator=generator)
    scale = torch.rand(rows, dtype=torch.float64, generator=generator) + 0.3
    return Normal(loc, scale), loc + scale * noise


@pytest.mark.parametrize("loss", [NLLLoss(), FCalLoss(), CombinedLoss(), StratifiedLoss(FCalLoss(df=20))])
def test_usual_rows_have_the_plain_loss(loss):
    pred, target = normal_batch()
    assert TrimmedLoss(loss)(pred, target) == loss(pred, target)


def test_wild_rows_are_those_of_the_definition():
    """Brute force: sort, keep all but the share, and compare with 4 times the largest that is kept."""
    pred, target = normal_batch()
    wild = torch.tensor([3, 500, 998])
    target[wild] = pred.loc[wild] + torch.tensor([100.0, -40.0, 15.0]) * pred.scale[wild]
    size = np.abs(((target - pred.loc) / pred.scale).numpy())
    limit = 4 * np.sort(size)[: 1000 - 10].max()
    kept = torch.from_numpy(size <= limit)
    assert sorted((~kept).nonzero().squeeze(1).tolist()) == [3, 500, 998]
    expected = CombinedLoss()(Normal(pred.loc[kept], pred.scale[kept]), target[kept])
    assert_close(TrimmedLoss(CombinedLoss())(pred, target), expected, rtol=1e-12, atol=0)


def test_no_more_than_the_share_is_left_out():
    pred, target = normal_batch()
    target[:11] = (pred.loc + 1000 * pred.scale)[:11]
    assert TrimmedLoss(NLLLoss())(pred, target) == NLLLoss()(pred, target)  # 11 of 1,000 are a shape, not an accident
    assert TrimmedLoss(NLLLoss(), share=0.02)(pred, target) < 3
    few = Normal(pred.loc[:9], pred.scale[:9])
    assert TrimmedLoss(NLLLoss())(few, target[2:11]) == NLLLoss()(few, target[2:11])
    assert TrimmedLoss(NLLLoss(), share=0.0)(pred, target) == NLLLoss()(pred, target)


def test_wild_rows_have_no_gradient_and_the_others_their_own():
    pred, target = normal_batch(200)
    target[7] += 1e4
    loc, scale = pred.loc.requires_grad_(), pred.scale.requires_grad_()
    TrimmedLoss(NLLLoss())(Normal(loc, scale), target).backward()
    found = scale.grad.clone()
    assert found[7] == 0 == loc.grad[7]
    others = torch.arange(200) != 7
    scale.grad = None
    NLLLoss()(Normal(loc[others], scale[others]), target[others]).backward()
    assert_close(found, scale.grad)


def test_masks_missing_targets_and_weights_count_as_before():
    pred, target = normal_batch()
    target[::7] = torch.nan
    target[1] += 1e4
    mask, weight = torch.arange(1000) % 4 > 0, torch.rand(1000, dtype=torch.float64) + 0.5
    kept = mask.clone()
    kept[1] = False
    expected = CombinedLoss()(pred, target, valid_mask=kept, weight=weight)
    assert TrimmedLoss(CombinedLoss())(pred, target, valid_mask=mask, weight=weight) == expected
    hidden = mask & (torch.arange(1000) != 1)
    assert TrimmedLoss(NLLLoss())(pred, target, valid_mask=hidden) == NLLLoss()(pred, target, valid_mask=hidden)


def test_coordinates_are_judged_alone_and_vectors_as_a_whole():
    loc = torch.zeros(100, 2, dtype=torch.float64)
    target = torch.randn(100, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    target[4, 1] = 1e3
    row, coordinate = torch.ones(100, dtype=torch.bool), torch.ones(100, 2, dtype=torch.bool)
    row[4] = coordinate[4, 1] = False
    split = Independent(Normal(loc, torch.ones_like(loc)), 1)
    assert TrimmedLoss(FCalLoss())(split, target) == FCalLoss()(split, target, valid_mask=coordinate)
    whole = MultivariateNormal(loc, torch.eye(2, dtype=torch.float64))
    assert TrimmedLoss(FCalLoss())(whole, target) == FCalLoss()(whole, target, valid_mask=row)


def test_rows_that_heavy_tails_expect_stay():
    """Of Student's t with 2 degrees of freedom, an error of 100 scales has a residual of 3.9."""
    target = torch.linspace(-2, 2, 500, dtype=torch.float64)
    target[0] = 100.0
    ones = torch.ones(500, dtype=torch.float64)
    pred = StudentT(2 * ones, 0 * ones, ones)
    assert TrimmedLoss(NLLLoss())(pred, target) == NLLLoss()(pred, target)


def test_what_is_no_loss_and_no_share_is_refused():
    with pytest.raises(TypeError, match="expected `loss` a loss to call"):
        TrimmedLoss(NLLLoss)
    with pytest.raises(ValueError, match=r"expected `share` within \[0, 0.5\], got 0.9"):
        TrimmedLoss(NLLLoss(), share=0.9)
