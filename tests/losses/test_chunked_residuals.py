"""Losses of families other than normal, computed in chunks: equal to the plain definition by every formula."""

import math

import pytest
import torch
from torch.distributions import (
    Beta,
    Categorical,
    Gamma,
    Gumbel,
    Independent,
    Laplace,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    StudentT,
    TransformedDistribution,
    transforms,
)

import fcal
from fcal.distributions.mixture import _MIXTURES
from fcal.losses import CombinedLoss, FCalLoss
from fcal.losses._fused import chunked_residuals

SEED = 3


def uniform(low, high, *shape):
    return low + (high - low) * torch.rand(*shape, generator=SOURCE, dtype=torch.float64)


def normal(*shape):
    return torch.randn(*shape, generator=SOURCE, dtype=torch.float64)


def mixture(logits, loc, scale):
    return MixtureSameFamily(Categorical(logits=logits), Normal(loc, scale))


SOURCE = torch.Generator().manual_seed(SEED)
N = 700
# Builders, parameters and targets; ranges cross the limits of the float32 formulas.
CASES = {
    "laplace": (Laplace, [normal(N), uniform(0.3, 1.5, N)], 2 * normal(N)),
    "student": (StudentT, [10 ** uniform(-0.2, 2.5, N), normal(N), uniform(0.3, 1.5, N)], 2 * normal(N)),
    "student of one df": (StudentT, [uniform(4, 4.1, 1), normal(N), uniform(0.3, 1.5, N)], normal(N)),
    "gamma": (Gamma, [10 ** uniform(-1.2, 2.0, N), uniform(0.3, 1.5, N)], normal(N).exp()),
    "beta": (Beta, [uniform(0.3, 9, N), uniform(0.3, 9, N)], torch.sigmoid(normal(N))),
    "gumbel": (Gumbel, [normal(N), uniform(0.3, 1.5, N)], normal(N)),
    "mixture": (mixture, [normal(N, 3), normal(N, 3), uniform(0.1, 1.5, N, 3)], 2 * normal(N)),
    "mixture of shared weights": (mixture, [normal(3), normal(N, 3), uniform(0.1, 1.5, N, 3)], 2 * normal(N)),
}


def criterion_by_definition(pred, y, keep):
    """The loss on both q and z from torch's own moments of the public residuals."""
    z = fcal.standardize(pred, y)
    z = z if keep is None else z[keep]
    kl = fcal.divergences.kl
    return kl(20 * z.square().mean(), 20 * z.square().var(), 20) + kl(z.mean(), z.var(), None)


def gradients(loss, parameters):
    return torch.autograd.grad(loss, parameters, retain_graph=True)


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("name", CASES)
def test_loss_in_chunks_is_its_definition(name, masked, monkeypatch):
    monkeypatch.setattr(chunked_residuals, "_CHUNK", 64)  # many chunks, the last one short
    build, parameters, y = CASES[name]
    keep = torch.arange(N) % 3 > 0 if masked else None
    parameters = [p.clone().requires_grad_() for p in parameters]
    target = y if keep is None else torch.where(keep, y, math.nan)
    loss = FCalLoss("kl", df=20, on="both")(build(*parameters), target)
    expected = criterion_by_definition(build(*parameters), y, keep)
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-12)
    for ours, theirs in zip(gradients(loss, parameters), gradients(expected, parameters), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_float32_batches_agree_with_float64(name):
    build, parameters, y = CASES[name]
    narrow = [p.float().requires_grad_() for p in parameters]
    wide = [p.detach().double().requires_grad_() for p in narrow]
    y = y.float()
    loss, expected = (FCalLoss("kl", df=20, on="both")(build(*ps), t) for ps, t in ((narrow, y), (wide, y.double())))
    torch.testing.assert_close(loss.double(), expected, rtol=3e-6, atol=1e-7)
    for ours, theirs in zip(gradients(loss, narrow), gradients(expected, wide), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-3, atol=2e-5 * theirs.abs().max().item())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["student", "mixture", "gumbel"])
def test_second_backward_pass_gives_the_same_gradients(name, dtype):
    # the derivatives of the first pass were overwritten by its gradients
    build, parameters, y = CASES[name]
    parameters = [p.to(dtype).requires_grad_() for p in parameters]
    loss = FCalLoss()(build(*parameters), y.to(dtype))
    for first, second in zip(gradients(loss, parameters), gradients(loss, parameters), strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["laplace", "student", "gamma", "mixture"])
def test_combined_loss_in_chunks_is_the_sum_of_its_terms(name):
    build, parameters, y = CASES[name]
    parameters = [p.clone().requires_grad_() for p in parameters]
    pred = build(*parameters)
    loss = CombinedLoss(FCalLoss("kl", df=20), lam=0.3)(pred, y)
    expected = 0.7 * fcal.nll(pred, y).mean() + 0.3 * FCalLoss("kl", df=20)(pred, y)
    torch.testing.assert_close(loss, expected)
    for ours, theirs in zip(gradients(loss, parameters), gradients(expected, parameters), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["laplace", "student", "mixture"])
def test_detached_mean_gets_no_gradient(name, dtype):
    build, parameters, y = CASES[name]
    parameters = [p.to(dtype).requires_grad_() for p in parameters]
    location = {"laplace": 0, "student": 1, "mixture": 1}[name]
    found = torch.autograd.grad(FCalLoss(detach_mean=True)(build(*parameters), y.to(dtype)), parameters)
    free = torch.autograd.grad(FCalLoss()(build(*parameters), y.to(dtype)), parameters)
    for index, (detached, whole) in enumerate(zip(found, free, strict=True)):
        if index == location:
            assert not detached.any()
        else:
            torch.testing.assert_close(detached, whole)


@pytest.mark.parametrize("name", ["laplace", "student", "gamma", "mixture"])
def test_targets_beyond_the_float32_formulas_are_accurate(name):
    # float32 probabilities end at |z| = 13; the exact formulas take over
    build, parameters, y = CASES[name]
    far = y.clone().float()
    far[5] = 300.0
    narrow = [p.float().requires_grad_() for p in parameters]
    wide = [p.detach().double().requires_grad_() for p in narrow]
    loss, expected = FCalLoss()(build(*narrow), far), FCalLoss()(build(*wide), far.double())
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-6)
    for ours, theirs in zip(gradients(loss, narrow), gradients(expected, wide), strict=True):
        assert torch.isfinite(ours).all()
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-2, atol=1e-4 * theirs.abs().max().item())


@pytest.mark.parametrize(
    ("make", "index", "message"),
    [
        (CASES["mixture"], 2, "expected `pred.component_distribution.scale` > 0, got -1"),
        (CASES["student"], 0, "expected `pred.df` > 0, got -1"),
        (CASES["gamma"], 0, "expected `pred.concentration` > 0, got -1"),
        (CASES["laplace"], 1, "expected `pred.scale` > 0, got -1"),
    ],
    ids=["mixture", "student", "gamma", "laplace"],
)
def test_float32_formulas_refuse_bad_parameters(make, index, message):
    build, parameters, y = make
    parameters = [p.float() for p in parameters]
    parameters[index].view(-1)[7] = -1.0
    torch.distributions.Distribution.set_default_validate_args(False)
    with pytest.raises(ValueError, match=message):
        FCalLoss()(build(*parameters), y.float())


def test_vectors_and_transforms_are_computed_in_chunks(monkeypatch):
    monkeypatch.setattr(chunked_residuals, "_CHUNK", 32)
    loc, factor, y = normal(90, 3).requires_grad_(), normal(90, 3, 3), normal(90, 3)
    tril = (factor.tril(-1) + torch.eye(3)).requires_grad_()
    shift = normal(90, 3).requires_grad_()
    base = MultivariateNormal(loc, scale_tril=tril, validate_args=False)
    laws = (
        base,
        Independent(
            TransformedDistribution(Laplace(loc, 1 + shift.square()), [transforms.AffineTransform(shift, 2.0)]), 1
        ),
    )
    for law in laws:
        loss, expected = FCalLoss("kl", df=20, on="both")(law, y), criterion_by_definition(law, y, None)
        torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-12)
        wanted = [loc, tril] if law is base else [loc, shift]
        for ours, theirs in zip(gradients(loss, wanted), gradients(expected, wanted), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-12)


def test_no_tensor_larger_than_an_input_is_kept_for_backward():
    # a Student-t batch: only residuals and gradients of the size of the inputs are stored, whatever the formulas need
    sizes = []

    class Recorder(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), options=None):
            result = function(*arguments, **(options or {}))
            if isinstance(result, torch.Tensor):
                sizes.append(result.numel())
            return result

    count = 4 * chunked_residuals._CHUNK
    parameters = [torch.full((count,), v, requires_grad=True) for v in (5.0, 0.0, 1.0)]
    y = torch.randn(count, generator=torch.Generator().manual_seed(0))
    with Recorder():
        FCalLoss()(StudentT(*parameters, validate_args=False), y).backward()
    assert max(sizes) <= count
    whole = sum(size == count for size in sizes)
    assert whole < 60  # views, checks and three gradients; the quadrature alone would make hundreds


def test_float32_formula_of_a_mixture_uses_the_smaller_tail():
    # a narrow, far component of small weight: the mean of the mixture is on the other side of most targets
    torch.manual_seed(0)
    logits = torch.log(torch.tensor([1e-6, 1 - 1e-6])).expand(1000, 2)
    loc, scale = torch.tensor([20.0, 0.0]).expand(1000, 2), torch.tensor([1e-6, 1.0]).expand(1000, 2)
    y = torch.cat([torch.randn(980), 5.5 + 0.2 * torch.rand(20)])
    loss = FCalLoss("kl", df=50)(mixture(logits, loc, scale), y)
    expected = FCalLoss("kl", df=50)(mixture(logits.double(), loc.double(), scale.double()), y.double())
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=0)


def test_component_weight_of_zero_may_be_an_infinite_logit():
    loc = torch.tensor([[0.0, 50.0]] * 6, dtype=torch.float64, requires_grad=True)
    law = mixture(torch.tensor([0.0, -math.inf], dtype=torch.float64), loc, torch.ones(6, 2, dtype=torch.float64))
    y = torch.linspace(-1, 1, 6, dtype=torch.float64)
    torch.testing.assert_close(fcal.standardize(law, y), y)
    FCalLoss(df=2)(law, y).backward()
    assert torch.isfinite(loc.grad).all()


def test_empty_mixture_and_one_without_components_are_refused():
    def unchecked(rows, count):  # torch's own checks fail on nothing
        weights = Categorical(logits=torch.zeros(rows, count), validate_args=False)
        components = Normal(torch.zeros(rows, count), torch.ones(rows, count))
        return MixtureSameFamily(weights, components, validate_args=False)

    empty = unchecked(0, 2)
    assert fcal.standardize(empty, torch.zeros(0)).shape == (0,)
    with pytest.raises(ValueError, match="at least 2 values that count, got 0"):
        FCalLoss()(empty, torch.zeros(0))
    with pytest.raises(ValueError, match="expected `pred` with at least one component, got 0"):
        fcal.nll(unchecked(6, 0), torch.zeros(6))


@pytest.mark.usefixtures("_without_validation")
def test_mixture_compiles_before_it_was_ever_used():
    torch._dynamo.reset()
    _MIXTURES.clear()
    shape, y = torch.rand(6) + 1, torch.rand(6) + 0.1

    def loss(a):
        components = Gamma(torch.stack([a, 2 * a], -1), torch.ones(6, 2))
        return FCalLoss(df=2)(MixtureSameFamily(Categorical(logits=torch.zeros(6, 2)), components), y)

    found = torch.compile(loss, backend="aot_eager", fullgraph=True)(shape)
    torch.testing.assert_close(found, loss(shape), rtol=1e-5, atol=1e-6)


def test_subclass_with_its_own_forward_is_called_by_the_combined_loss():
    class Seven(FCalLoss):
        def forward(self, *arguments, **options):
            return 0 * super().forward(*arguments, **options) + 7

    pred = StudentT(torch.full((6,), 3.0))
    assert CombinedLoss(Seven(df=2), lam=1.0)(pred, torch.linspace(-1, 1, 6)).item() == 7


def test_divergence_that_is_not_a_number_is_refused():
    fcal.divergences.register("broken", lambda mean, variance, _: (mean - variance) * math.nan)
    with pytest.raises(ValueError, match="expected `divergence` to give a number with finite slopes, got nan"):
        FCalLoss("broken", df=2)(StudentT(torch.full((6,), 3.0, requires_grad=True)), torch.linspace(-1, 1, 6))
