"""SiLog against its definition in NumPy: values, gradients, masks, weights, edges, and two ranks."""

import numpy as np
import pytest
import torch
from torch.distributions import Laplace, LogNormal, Normal
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close
from two_ranks import run_on_two_ranks

from fcal.losses import SiLogLoss


def by_definition(pred, target, weight=None, variance_focus=0.85, factor=10.0):
    weight = np.ones(target.size) if weight is None else weight
    gap = np.log(pred) - np.log(target)
    mean, square = np.average(gap, weights=weight), np.average(gap**2, weights=weight)
    return factor * np.sqrt(square - variance_focus * mean**2)


def depths(count=50, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(2, count, dtype=torch.float64, generator=generator)).exp()


@pytest.mark.parametrize("variance_focus", [0.0, 0.5, 0.85, 1.0])
@pytest.mark.parametrize("factor", [1.0, 10.0])
def test_loss_is_its_definition(variance_focus, factor):
    pred, target = depths()
    loss = SiLogLoss(variance_focus=variance_focus, factor=factor)(pred, target)
    expected = by_definition(pred.numpy(), target.numpy(), None, variance_focus, factor)
    np.testing.assert_allclose(loss.item(), expected, rtol=1e-10)


def test_loss_of_a_distribution_is_that_of_its_median():
    depth, target = depths()
    scale = torch.linspace(0.1, 2, 50, dtype=torch.float64)
    expected = by_definition(depth.numpy(), target.numpy())
    for pred in (Normal(depth, scale), Laplace(depth, scale), LogNormal(depth.log(), scale)):
        np.testing.assert_allclose(SiLogLoss()(pred, target).item(), expected, rtol=1e-10)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_result_has_the_dtype_of_the_inputs_float32_at_least(dtype):
    pred, target = depths().to(dtype)
    loss = SiLogLoss()(pred, target)
    assert loss.dtype == torch.promote_types(dtype, torch.float32)
    np.testing.assert_allclose(loss.item(), by_definition(pred.double().numpy(), target.double().numpy()), rtol=1e-6)


@pytest.mark.parametrize("variance_focus", [0.0, 0.85, 1.0])
def test_gradient_is_that_of_the_definition(variance_focus):
    pred, target = depths(8)
    loss = SiLogLoss(variance_focus=variance_focus)
    weight = torch.linspace(0, 1, 8, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: loss(x, target, weight=weight), (pred.requires_grad_(),))


def test_no_gradient_reaches_sigma():
    depth, target = depths()
    scale = torch.ones(50, dtype=torch.float64, requires_grad=True)
    SiLogLoss()(LogNormal(depth.log(), scale), target).backward()
    assert_close(scale.grad, torch.zeros_like(scale), rtol=0, atol=0)


# Elements that do not count.


def test_missing_masked_and_weightless_targets_do_not_count():
    pred, target = depths().reshape(2, 5, 10)
    holed = target.clone()
    holed[0, :3] = torch.nan
    holed[1, :2] = -1.0  # masked out
    mask = torch.ones(5, 10, dtype=torch.bool)
    mask[1, :2] = False
    weight = torch.rand(5, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    weight[2, 4:] = 0
    counts = (mask & ~holed.isnan() & (weight > 0)).numpy()
    found = SiLogLoss()(pred.clone().requires_grad_(), holed, valid_mask=mask, weight=weight)
    expected = by_definition(pred.numpy()[counts], target.numpy()[counts], weight.numpy()[counts])
    np.testing.assert_allclose(found.item(), expected, rtol=1e-10)


def test_gradient_of_elements_that_do_not_count_is_zero_also_where_the_prediction_is_invalid():
    pred, target = depths(6)
    pred[0], target[0] = -1.0, torch.nan
    pred.requires_grad_()
    SiLogLoss()(pred, target).backward()
    assert pred.grad.isfinite().all()
    assert pred.grad[0] == 0
    assert (pred.grad[1:] != 0).all()


# Edges.


@pytest.mark.parametrize("factor", [1.0, 1.5])
@pytest.mark.parametrize("variance_focus", [0.0, 0.85, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradient_is_finite_where_all_differences_are_the_same(factor, variance_focus, dtype):
    _, target = depths().to(dtype)
    pred = (factor * target).requires_grad_()
    loss = SiLogLoss(variance_focus=variance_focus)(pred, target)
    loss.backward()
    expected = 10 * np.log(factor) * np.sqrt(1 - variance_focus)
    np.testing.assert_allclose(loss.item(), expected, rtol=1e-5, atol=1e-4)
    assert pred.grad.isfinite().all()
    assert (pred.grad.abs() * target).max() < 10  # by log-depth; the norm of the root is at most 1


def test_extreme_depths_are_finite():
    pred = torch.tensor([1e-30, 1e30], requires_grad=True)
    loss = SiLogLoss()(pred, torch.tensor([1e30, 1e-30]))
    loss.backward()
    assert loss.isfinite()
    assert pred.grad.isfinite().all()


@pytest.mark.parametrize(
    ("pred", "target", "message"),
    [
        ([1.0, 2.0], [1.0, 0.0], r"expected `target` > 0 \(NaN where missing\), got 0 \(1 of 2 values\)"),
        ([1.0, 0.0], [1.0, 1.0], r"expected `pred` with a median > 0, got 0 \(1 of 2 values\)"),
        ([1.0, 2.0], [torch.nan, torch.nan], "expected `target` with at least 1 value that counts, got 0"),
        ([1.0, 2.0], [1.0], r"expected `target` of shape \(2,\)"),
    ],
)
def test_loss_refuses_values(pred, target, message):
    with pytest.raises(ValueError, match=message):
        SiLogLoss()(torch.tensor(pred), torch.tensor(target))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variance_focus": 1.1}, r"expected `variance_focus` within \[0, 1\], got 1.1"),
        ({"factor": 0.0}, "expected `factor` within"),
    ],
)
def test_loss_refuses_options(options, message):
    with pytest.raises(ValueError, match=message):
        SiLogLoss(**options)


# Two ranks.


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(3, 1).double()

    def forward(self, x):
        return self.layer(x).squeeze(-1).exp()


def check_ranks(rank):
    x = torch.randn(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    _, target = depths()
    whole = Net()
    expected = SiLogLoss(sync=False)(whole(x), target)
    expected.backward()
    for cut in (30, 50):  # the second rank of the latter has nothing
        rows = slice(0, cut) if rank == 0 else slice(cut, 50)
        model = DistributedDataParallel(Net())
        loss = SiLogLoss()(model(x[rows]), target[rows])
        loss.backward()
        assert_close(loss, expected)
        for ours, theirs in zip(model.module.parameters(), whole.parameters(), strict=True):
            assert_close(ours.grad, theirs.grad)
        del model


def test_loss_and_gradient_of_two_ranks_are_those_of_the_whole_batch():
    run_on_two_ranks(check_ranks)
