"""The fused pass agrees with the plain definition of the loss: value and gradients, whatever the batch."""

import pytest
import torch
from torch.distributions import Independent, Laplace, LogNormal, MultivariateNormal, Normal, StudentT

from fcal import FCalLoss
from fcal.losses._fused import complex_step
from fcal.losses.batch import Batch

N = 600


def vectors(loc, scale):
    return MultivariateNormal(loc.unsqueeze(-1) + torch.zeros(2), torch.diag_embed(scale.unsqueeze(-1) + torch.ones(2)))


FAMILIES = {
    "normal": Normal,
    "laplace": Laplace,
    "student": lambda loc, scale: StudentT(torch.full_like(loc, 4.0), loc, scale),
    "lognormal": LogNormal,
    "independent": lambda loc, scale: Independent(Normal(loc.reshape(-1, 3), scale.reshape(-1, 3)), 1),
    "vectors": vectors,
}
OPTIONS = {
    "default": {},
    "kl of both": {"divergence": "kl", "df": 20, "on": "both"},
    "kl of z": {"divergence": "kl", "on": "z"},
    "finite batch kept": {"divergence": "renyi(2)", "finite_batch": False},
    "by autograd": {"divergence": "jensen_shannon", "on": "both"},
}


def batch(family, how, dtype):
    generator = torch.Generator().manual_seed(0)
    loc, noise = torch.randn(2, N, generator=generator, dtype=torch.float64).to(dtype)
    scale = (torch.rand(N, generator=generator, dtype=torch.float64) + 0.5).to(dtype)
    parameters = loc.requires_grad_(), scale.requires_grad_()
    pred = FAMILIES[family](*parameters)
    target = 1.2 * torch.cat([noise, noise.flip(0)])[: pred.batch_shape.numel() * pred.event_shape.numel()]
    target = (target.exp() if family == "lognormal" else target).reshape(pred.batch_shape + pred.event_shape)
    rows = torch.arange(pred.batch_shape.numel())
    if how == "missing":
        target[rows % 5 == 0] = torch.nan
    mask = rows % 3 > 0 if how == "mask" else None
    weight = torch.linspace(0, 2, len(rows)) if how == "weight" else None
    return parameters, Batch(pred, target, mask, weight)


def agree(loss, parameters, batch, *, rtol, atol):
    fused, plain = loss.of_batch(batch), loss.plain_loss(batch)
    assert fused.dtype == plain.dtype
    torch.testing.assert_close(fused, plain, rtol=rtol, atol=atol)
    by_fused, by_plain = (
        torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True, materialize_grads=True)
        for value in (fused, plain)
    )
    for ours, theirs in zip(by_fused, by_plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol * max(1.0, theirs.abs().max().item()))


@pytest.mark.parametrize("how", ["whole", "missing", "mask", "weight"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_fused_loss_is_the_plain_one(family, options, how):
    parameters, examples = batch(family, how, torch.float64)
    agree(FCalLoss(**options), parameters, examples, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("family", ["normal", "laplace", "student"])
def test_fused_loss_detaches_the_mean_like_the_plain_one(family):
    parameters, examples = batch(family, "mask", torch.float64)
    agree(FCalLoss("kl", on="both", detach_mean=True), parameters, examples, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("family", FAMILIES)
def test_fused_loss_in_float32_is_close_to_the_plain_one(family):
    parameters, examples = batch(family, "whole", torch.float32)
    agree(FCalLoss("kl", df=20), parameters, examples, rtol=1e-3, atol=2e-5)


def test_complex_step_gives_derivatives_to_the_last_bit():
    def function(sums):
        return sums.square * sums.square / sums.total + 3 * sums.fourth

    value, derivatives = complex_step(function, [4.0, 4.0, 0.0, 6.0, 18.0, 0.0], by=("square", "fourth"))
    assert value == 63.0
    assert derivatives == [0.0, 0.0, 0.0, 3.0, 3.0, 0.0]
