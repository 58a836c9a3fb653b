"""A loss of drawn targets: how many, which ones, their expectation, and refusals; and strata by region."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Independent, Normal

from fcal.losses import FCalLoss, NLLLoss, StratifiedLoss, SubsampledLoss


class Drawn(nn.Module):
    """A loss that keeps the mask it is called with."""

    def forward(self, pred, _, *, valid_mask=None, **__):
        self.mask = valid_mask
        return pred.mean.sum()


def batch(rows=400, seed=0):
    generator = torch.Generator().manual_seed(seed)
    loc, noise = torch.randn(2, rows, dtype=torch.float64, generator=generator)
    scale = torch.rand(rows, dtype=torch.float64, generator=generator) + 0.3
    return Normal(loc, scale), loc + 1.3 * scale * noise


def drawn_mask(count, target, **options):
    loss = Drawn()
    SubsampledLoss(loss, count)(Normal(torch.zeros_like(target), torch.ones_like(target)), target, **options)
    return loss.mask


def test_draws_that_many_targets_that_count():
    target = torch.zeros(10, 20)
    target[:, ::4] = torch.nan
    mask, weight = torch.rand(10, 20) < 0.8, torch.ones(10, 20)
    weight[3] = 0
    drawn = drawn_mask(40, target, valid_mask=mask, weight=weight)
    assert drawn.sum() == 40
    assert not (drawn & ~(mask & ~target.isnan() & (weight > 0))).any()


def test_every_target_is_drawn_equally_often():
    """Binomial counts of 2000 draws of 5 of 20, each within 5 standard errors: false alarm 1e-5."""
    torch.manual_seed(0)
    target = torch.zeros(25)
    target[::5] = torch.nan
    counts = sum(drawn_mask(5, target).double() for _ in range(2000))
    known = ~target.isnan()
    assert (counts[~known] == 0).all()
    np.testing.assert_allclose(counts[known], 500, atol=5 * (2000 * 0.25 * 0.75) ** 0.5)


def test_draws_are_independent_of_the_default_generator_if_they_have_their_own():
    pred, target = batch()
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        found.append(SubsampledLoss(NLLLoss(), 30, generator=torch.Generator().manual_seed(7))(pred, target))
    assert torch.equal(*found)


def test_mean_over_draws_is_the_loss_of_the_batch():
    """The standard error of 400 draws of 50 is measured; 5 of them: false alarm 1e-6."""
    pred, target = batch()
    loss = SubsampledLoss(NLLLoss(), 50, generator=torch.Generator().manual_seed(0))
    values = np.array([loss(pred, target).item() for _ in range(400)])
    exact = -pred.log_prob(target).mean().item()
    assert values.std() > 0
    np.testing.assert_allclose(values.mean(), exact, atol=5 * values.std() / 20)


def test_all_targets_are_drawn_if_there_are_not_more():
    pred, target = batch(60)
    torch.testing.assert_close(SubsampledLoss(FCalLoss(df=4), 60)(pred, target), FCalLoss(df=4)(pred, target))


def test_gradient_reaches_the_drawn_targets_alone():
    pred, target = batch(100)
    loc = pred.loc.clone().requires_grad_()
    SubsampledLoss(NLLLoss(), 10)(Normal(loc, pred.scale), target).backward()
    assert loc.grad.count_nonzero() == 10


def test_rows_of_independent_coordinates_are_drawn_by_coordinate():
    pred, target = batch(60)
    rows = Independent(Normal(pred.loc.reshape(30, 2), pred.scale.reshape(30, 2)), 1)
    found = SubsampledLoss(FCalLoss(df=4), 60)(rows, target.reshape(30, 2))
    torch.testing.assert_close(found, FCalLoss(df=4)(pred, target))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: SubsampledLoss(FCalLoss, 5), TypeError, "expected `loss` a loss to call, got <class"),
        (lambda: SubsampledLoss(FCalLoss(), 0), ValueError, "expected `count` >= 1, got 0"),
        (lambda: SubsampledLoss(FCalLoss(), 0.5), TypeError, "expected `count` an int, got float 0.5"),
        (lambda: SubsampledLoss(FCalLoss(), 5, generator=3), TypeError, "expected `generator` a torch.Generator"),
    ],
)
def test_refuses_options(make, error, message):
    with pytest.raises(error, match=message):
        make()


# Strata by region.


def image_batch(height=7, width=11):
    pred, target = batch(3 * height * width)
    shape = (3, height, width)
    return Normal(pred.loc.reshape(shape), pred.scale.reshape(shape)), target.reshape(shape)


@pytest.mark.parametrize(("strata", "rows", "columns"), [(1, 1, 1), (2, 1, 2), (4, 2, 2), (6, 2, 3), (5, 1, 5)])
def test_regions_are_tiles_of_all_images(strata, rows, columns):
    pred, target = image_batch()
    loss, expected = FCalLoss("kl", df=3), 0.0
    for number in range(strata):
        inside = [
            (y, x)
            for y in range(7)
            for x in range(11)
            if y * rows // 7 == number // columns and x * columns // 11 == number % columns
        ]
        y, x = torch.tensor(inside).unbind(1)
        part = loss(Normal(pred.loc[:, y, x], pred.scale[:, y, x]), target[:, y, x])
        expected += len(inside) / 77 * part
    torch.testing.assert_close(StratifiedLoss(loss, strata, by="region")(pred, target), expected)


def test_regions_detect_errors_that_cancel_over_the_image():
    generator = torch.Generator().manual_seed(3)
    wrong = torch.ones(16, 16, dtype=torch.float64) * 0.5**0.5
    wrong[:, 8:] = 1.5**0.5
    target = wrong * torch.randn(20, 16, 16, dtype=torch.float64, generator=generator)
    pred, whole = Normal(torch.zeros_like(target), torch.ones_like(target)), FCalLoss(df=20)
    assert whole(pred, target) < 0.5
    assert StratifiedLoss(whole, 2, by="region")(pred, target) > 2


def test_regions_need_images():
    pred, target = batch()
    with pytest.raises(ValueError, match=r"expected `target` of images for strata by region, got shape \(400,\)"):
        StratifiedLoss(FCalLoss(), 4, by="region")(pred, target)


def test_regions_take_no_group():
    pred, target = image_batch()
    with pytest.raises(ValueError, match="expected no `group` for strata by region, got one"):
        StratifiedLoss(FCalLoss(), 4, by="region")(pred, target, group=torch.zeros(3, dtype=torch.int64))
