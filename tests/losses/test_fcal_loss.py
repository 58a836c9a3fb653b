"""The f-Cal loss: against its definition, under masks and weights, in low precision, compiled, and at the extremes."""

import math

import pytest
import torch
from references import gaussian_loss_by_definition
from torch.distributions import (
    Exponential,
    Independent,
    Laplace,
    LogNormal,
    MultivariateNormal,
    Normal,
    TransformedDistribution,
    Weibull,
    transforms,
)

import fcal
from fcal import FCalLoss
from fcal.losses import BetaNLLLoss, CalibrationLoss, CombinedLoss, NLLLoss

NAMES = ["kl", "reverse_kl", "wasserstein", "wasserstein_printed"]


def batch(count: int, dtype: torch.dtype = torch.float64, seed: int = 0):
    torch.manual_seed(seed)
    loc = torch.randn(count, dtype=torch.float64)
    scale = torch.rand(count, dtype=torch.float64) + 0.5
    target = loc + 1.3 * scale * torch.randn(count, dtype=torch.float64) + 0.2
    return loc.to(dtype).requires_grad_(), scale.to(dtype).requires_grad_(), target.to(dtype)


@pytest.mark.parametrize("finite_batch", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_loss_on_q_is_its_definition(name, finite_batch):
    loc, scale, y = batch(400)
    loss = FCalLoss(name, df=75, finite_batch=finite_batch)(Normal(loc, scale), y)
    divergence = fcal.divergences.by_name(name)
    expected = gaussian_loss_by_definition((y - loc) / scale, 75, divergence, finite_batch=finite_batch)
    torch.testing.assert_close(loss, expected)
    for ours, autograd in zip(
        torch.autograd.grad(loss, [loc, scale]), torch.autograd.grad(expected, [loc, scale]), strict=True
    ):
        torch.testing.assert_close(ours, autograd)


@pytest.mark.parametrize("name", NAMES)
def test_loss_on_z_is_its_definition_and_both_is_the_sum(name):
    loc, scale, y = batch(400)
    pred, divergence = Normal(loc, scale), fcal.divergences.by_name(name)
    z = (y - loc) / scale
    on_z = FCalLoss(name, on="z")(pred, y)
    torch.testing.assert_close(on_z, divergence(z.mean(), z.var(), None))
    torch.testing.assert_close(FCalLoss(name, on="both")(pred, y), FCalLoss(name, on="q")(pred, y) + on_z)


def test_written_out_forms_of_the_default_hold():
    # W / 2K = (K/2)(m - 1)^2 + (s / sqrt 2 - 1)^2 and KL = 0.5 (log(2 / s^2) + s^2 / 2 - 1 + (K/2)(m - 1)^2)
    loc, scale, y = batch(300)
    q = ((y - loc) / scale).detach().square()
    m, s = q.mean().item(), q.std().item()
    offset = 75 / 2 * (m - 1) ** 2
    assert FCalLoss()(Normal(loc, scale), y).item() == pytest.approx(offset + (s / math.sqrt(2) - 1) ** 2)
    kl = 0.5 * (math.log(2 / s**2) + s**2 / 2 - 1 + offset)
    assert FCalLoss("kl")(Normal(loc, scale), y).item() == pytest.approx(kl)


def test_q_is_blind_to_bias_and_z_is_not():
    # Residuals of mean 1/2 and variance 3/4 have mean square 1. Gaussian quantiles make the batch exact enough.
    p = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    y = 0.5 + math.sqrt(0.75) * torch.special.ndtri(p)
    pred = Normal(torch.zeros_like(y), torch.ones_like(y))
    assert FCalLoss("kl", on="z")(pred, y).item() > 0.1
    # variance of z^2 is 2 * 0.75^2 + 4 * 0.25 * 0.75 = 1.875: KL = 0.5 (log(2 / 1.875) + 1.875 / 2 - 1) = 0.001
    assert FCalLoss("kl", on="q")(pred, y).item() < 0.003
    assert y.square().mean().item() == pytest.approx(1, abs=1e-3)


def test_calibrated_predictions_cost_little_and_wrong_ones_much():
    torch.manual_seed(0)
    y, one = torch.randn(100_000, dtype=torch.float64), torch.ones(100_000, dtype=torch.float64)
    right, wrong = (FCalLoss()(Normal(0 * one, s * one), y).item() for s in (1.0, 0.8))
    # Under calibration E = (K/2)(2/n) + O(1/n) = 7.5e-4; 50 times that is far beyond its chi-squared tail.
    assert right < 0.04
    assert wrong > 5


@pytest.mark.parametrize("on", ["q", "z", "both"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("family", [Normal, Laplace, LogNormal, Weibull])
def test_loss_passes_gradcheck(family, name, on):
    torch.manual_seed(0)
    first, second = ((torch.rand(20, dtype=torch.float64) + 0.5).requires_grad_() for _ in range(2))
    y = torch.rand(20, dtype=torch.float64) + 0.3
    assert torch.autograd.gradcheck(lambda a, b: FCalLoss(name, df=10, on=on)(family(a, b), y), (first, second))


def test_gradient_reaches_the_target():
    loc, scale, y = batch(30)
    y = y.requires_grad_()
    loc_grad, y_grad = torch.autograd.grad(FCalLoss(df=10)(Normal(loc, scale), y), [loc, y])
    torch.testing.assert_close(loc_grad, -y_grad)


def test_sampled_loss_converges_to_the_exact_one():
    # The loss is smooth in the moments; 200,000 draws put it within 2 % (over 5 standard errors) of the closed form.
    loc, scale, y = batch(300)
    pred = Normal(loc.detach(), scale.detach())
    for finite_batch in (True, False):
        options = {"df": 75, "finite_batch": finite_batch}
        exact = FCalLoss("kl", **options)(pred, y)
        generator = torch.Generator().manual_seed(0)
        sampled = FCalLoss("kl", estimator="sampled", draws=200_000, generator=generator, **options)(pred, y)
        torch.testing.assert_close(sampled, exact, rtol=0.02, atol=0)


def test_sampled_loss_repeats_from_its_generator_and_leaves_the_global_one_alone():
    loc, scale, y = batch(300)
    before = torch.get_rng_state()
    losses = [
        FCalLoss(estimator="sampled", generator=torch.Generator().manual_seed(3))(Normal(loc, scale), y)
        for _ in range(2)
    ]
    assert torch.equal(*losses)
    assert torch.equal(torch.get_rng_state(), before)


def test_sampled_loss_has_the_gradient_of_its_draws():
    torch.manual_seed(0)
    scale = (torch.rand(12, dtype=torch.float64) + 0.5).requires_grad_()
    y = torch.randn(12, dtype=torch.float64)

    def loss(s):
        generator = torch.Generator().manual_seed(0)
        criterion = FCalLoss("kl", df=5, on="both", estimator="sampled", draws=7, generator=generator)
        return criterion(Normal(torch.zeros_like(s), s), y)

    assert torch.autograd.gradcheck(loss, (scale,))


def test_independent_and_reshaped_predictions_have_the_same_loss():
    loc, scale, y = batch(60)
    flat = FCalLoss(df=10)(Normal(loc, scale), y)
    shaped = Normal(loc.reshape(3, 4, 5), scale.reshape(3, 4, 5))
    torch.testing.assert_close(FCalLoss(df=10)(shaped, y.reshape(3, 4, 5)), flat)
    torch.testing.assert_close(FCalLoss(df=10)(Independent(shaped, 2), y.reshape(3, 4, 5)), flat)


def test_scalar_prediction_broadcasts_over_all_targets():
    loc, scale = torch.tensor(0.1, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    y = torch.randn(50)
    shared = FCalLoss(df=10)(Normal(loc, scale), y)
    torch.testing.assert_close(shared, FCalLoss(df=10)(Normal(loc.expand(50), scale.expand(50)), y))
    shared.backward()
    assert scale.grad.shape == ()


def test_multivariate_loss_is_that_of_its_whitened_residuals():
    torch.manual_seed(0)
    tril = (torch.randn(40, 3, 3).tril(-1) + torch.eye(3)).double()
    pred = MultivariateNormal(torch.zeros(40, 3).double(), scale_tril=tril)
    y = torch.randn(40, 3).double()
    z = fcal.standardize(pred, y)
    torch.testing.assert_close(FCalLoss(df=10)(pred, y), FCalLoss(df=10)(Normal(0 * z, 1 + 0 * z), z))


@pytest.mark.parametrize("family", [Normal, Laplace])
def test_detached_mean_gets_no_gradient_and_the_spread_the_same(family):
    loc, scale, y = batch(200)
    full = torch.autograd.grad(FCalLoss("kl", on="both")(family(loc, scale), y), [loc, scale])
    loss = FCalLoss("kl", on="both", detach_mean=True)(family(loc, scale), y)
    by_loc, by_scale = torch.autograd.grad(loss, [loc, scale], allow_unused=True)
    assert by_loc is None or not by_loc.any()
    torch.testing.assert_close(by_scale, full[1])


def test_detached_mean_needs_a_location():
    rate = torch.ones(10, requires_grad=True)
    with pytest.raises(
        ValueError, match="family with a location where the mean is detached .or detach_mean=False., got Exponential"
    ):
        FCalLoss(detach_mean=True)(Exponential(rate), torch.rand(10))


# Masks and weights

LOSSES = {
    "exact": lambda: FCalLoss("kl", df=20, on="both"),
    "sampled": lambda: FCalLoss("kl", df=20, estimator="sampled", generator=torch.Generator().manual_seed(0)),
    "combined": lambda: CombinedLoss(FCalLoss(df=20), lam=0.3),
    "nll": NLLLoss,
    "beta": BetaNLLLoss,
    "calibration": CalibrationLoss,
    "nll scores": lambda: lambda *a, **k: fcal.nll(*a, **k).sum(),
    "crps scores": lambda: lambda *a, **k: fcal.crps(*a, **k).sum(),
}


@pytest.mark.parametrize("family", [Normal, Laplace, LogNormal])
@pytest.mark.parametrize("name", LOSSES)
def test_masked_values_change_no_bit(name, family):
    torch.manual_seed(0)
    keep = torch.rand(200) > 0.3
    raw = [torch.rand(200) + 0.5 for _ in range(3)]
    results = []
    for hidden in (0.7, math.nan, 1e9, -math.inf):
        y, *parameters = (torch.where(keep, value, hidden) for value in raw)
        parameters = [p.requires_grad_() for p in parameters]
        value = LOSSES[name]()(family(*parameters, validate_args=False), y, valid_mask=keep)
        results.append([value.detach(), *torch.autograd.grad(value, parameters)])
    for other in results[1:]:
        for ours, theirs in zip(results[0], other, strict=True):
            assert torch.equal(ours, theirs)
    assert all(torch.isfinite(value).all() for value in results[0])
    assert not any(gradient[~keep].any() for gradient in results[0][1:])


@pytest.mark.parametrize("family", [Normal, Laplace, LogNormal])
@pytest.mark.parametrize("name", LOSSES)
def test_masked_loss_is_that_of_the_rest(name, family):
    torch.manual_seed(0)
    keep = torch.rand(200) > 0.3
    y, first, second = (torch.rand(200, dtype=torch.float64) + 0.5 for _ in range(3))
    masked = LOSSES[name]()(family(first, second), y, valid_mask=keep)
    missing = LOSSES[name]()(family(first, second), torch.where(keep, y, math.nan))
    rest = LOSSES[name]()(family(first[keep], second[keep]), y[keep])
    torch.testing.assert_close(masked, rest)
    assert torch.equal(masked, missing)


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "sampled"])
def test_weight_zero_is_a_mask_and_the_scale_of_weights_does_not_matter(name):
    torch.manual_seed(0)
    keep = torch.rand(200) > 0.3
    y, loc, scale = (torch.rand(200, dtype=torch.float64) + 0.5 for _ in range(3))
    pred, criterion = Normal(loc, scale), LOSSES[name]()
    masked = criterion(pred, y, valid_mask=keep)
    torch.testing.assert_close(criterion(pred, torch.where(keep, y, math.nan), weight=keep.double()), masked)
    if "scores" not in name:
        torch.testing.assert_close(criterion(pred, y, weight=7 * keep.double()), masked)


def test_weighted_loss_is_its_definition():
    loc, scale, y = batch(100)
    weight = torch.rand(100, dtype=torch.float64)
    q = ((y - loc) / scale).square()
    mean = (weight * q).sum() / weight.sum()
    effective = weight.sum().square() / weight.square().sum()
    variance = (weight * (q - mean).square()).sum() / weight.sum() * effective / (effective - 1)
    for finite_batch, factor in ((True, 1.0), (False, 1 - 20 / effective)):
        expected = fcal.divergences.kl(20 * mean, 20 * variance * factor, 20)
        loss = FCalLoss("kl", df=20, finite_batch=finite_batch)(Normal(loc, scale), y, weight=weight)
        torch.testing.assert_close(loss, expected)
        found = torch.autograd.grad(loss, [loc, scale])
        for ours, autograd in zip(found, torch.autograd.grad(expected, [loc, scale], retain_graph=True), strict=True):
            torch.testing.assert_close(ours, autograd)


def test_rows_may_be_masked_and_weighted_as_one():
    torch.manual_seed(0)
    base = Normal(torch.randn(30, 2), torch.rand(30, 2) + 0.5)
    y, keep, weight = torch.randn(30, 2), torch.rand(30) > 0.2, torch.rand(30)
    criterion = CombinedLoss(FCalLoss(df=10))
    by_row = criterion(Independent(base, 1), y, valid_mask=keep, weight=weight)
    whole = keep.unsqueeze(1).expand(30, 2), weight.unsqueeze(1).expand(30, 2)
    torch.testing.assert_close(by_row, criterion(Independent(base, 1), y, valid_mask=whole[0], weight=whole[1]))


def test_row_of_a_vector_with_a_missing_coordinate_is_missing():
    torch.manual_seed(0)
    pred = MultivariateNormal(torch.zeros(30, 2), torch.eye(2).expand(30, 2, 2))
    y = torch.randn(30, 2)
    holed = y.clone()
    holed[4, 1] = math.nan
    keep = torch.arange(30) != 4
    assert torch.equal(FCalLoss(df=10)(pred, holed), FCalLoss(df=10)(pred, y, valid_mask=keep))
    z = fcal.standardize(pred, holed)
    assert torch.isnan(z[4]).all()
    assert torch.isfinite(z[keep]).all()


# Precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", [Normal, Laplace])
def test_half_precision_inputs_accumulate_in_float32(family, dtype):
    loc, scale, y = (value.detach() for value in batch(50_000, dtype))
    half = [loc.requires_grad_(), scale.requires_grad_()]
    wide = [value.detach().double().requires_grad_() for value in half]
    loss, expected = FCalLoss()(family(*half), y), FCalLoss()(family(*wide), y.double())
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=0)
    # gradients come back in half precision: as good as its rounding
    for ours, theirs in zip(torch.autograd.grad(loss, half), torch.autograd.grad(expected, wide), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


def test_autocast_changes_nothing_in_the_loss():
    loc, scale, y = batch(1000, torch.float32)
    plain = CombinedLoss()(Normal(loc, scale), y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        linear = torch.nn.Linear(4, 4)(torch.ones(1, 4))
        assert linear.dtype == torch.bfloat16
        cast = CombinedLoss()(Normal(loc, scale), y)
    assert torch.equal(cast, plain)


@pytest.mark.parametrize("on", ["q", "z", "both"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sigma", [1e-38, 1e-30, 1e-12, 1e-4, 1e4, 1e12, 1e38])
def test_gradient_stays_finite_at_tiny_and_huge_sigma(sigma, name, on):
    torch.manual_seed(0)
    y = torch.randn(200)
    for family in (Normal, Laplace, fcal.distributions.Logistic):
        loc, scale = torch.zeros(200, requires_grad=True), torch.full((200,), sigma, requires_grad=True)
        FCalLoss(name, on=on)(family(loc, scale), y).backward()
        assert torch.isfinite(loc.grad).all()
        assert torch.isfinite(scale.grad).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("on", ["q", "z"])
@pytest.mark.parametrize("sigma", [1e-12, 1e-4, 1e4, 1e8, 1e12])
def test_far_too_small_or_large_sigma_still_has_the_right_gradient(sigma, on, dtype):
    torch.manual_seed(0)
    y = torch.randn(1000).to(dtype)
    scale = torch.full((1000,), sigma, dtype=dtype, requires_grad=True)
    (by_scale,) = torch.autograd.grad(FCalLoss("kl", on=on)(Normal(torch.zeros_like(y), scale), y), [scale])
    wide = scale.detach().double().requires_grad_()
    z = y.double() / wide
    values = (75 * z.square().mean(), 75 * z.square().var(), 75) if on == "q" else (z.mean(), z.var(), None)
    (expected,) = torch.autograd.grad(fcal.divergences.kl(*values), [wide])
    inside = expected.abs() < torch.finfo(dtype).max
    torch.testing.assert_close(by_scale.double()[inside], expected[inside], rtol=1e-4, atol=1e-30)


def test_overflow_beside_a_target_at_the_mean_is_not_nan():
    scale = torch.full((2,), 1e-32, requires_grad=True)
    loss = FCalLoss("kl", on="z")(Normal(torch.zeros(2), scale), torch.tensor([0.0, 1e-24]))
    (loss * 1e15).backward()
    assert torch.isfinite(scale.grad).all()
    assert scale.grad[0] == 0


def test_steep_upstream_gradients_do_not_overflow_the_work():
    scale = torch.ones(3, requires_grad=True)
    y = torch.tensor([1.0, 1 + 1e-6, 1.0])
    (FCalLoss("reverse_kl", df=2)(Normal(torch.zeros(3), scale), y) * 1e20).backward()
    assert torch.isfinite(scale.grad).all()


@pytest.mark.parametrize("sigma", [1e-300, 1e-100, 1e100, 1e300])
def test_gradient_stays_finite_at_the_ends_of_float64(sigma):
    torch.manual_seed(0)
    y = torch.randn(200, dtype=torch.float64)
    scale = torch.full((200,), sigma, dtype=torch.float64, requires_grad=True)
    loss = FCalLoss("kl", on="both")(Normal(torch.zeros_like(y), scale), y)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(scale.grad).all()


@pytest.mark.parametrize("estimator", ["exact", "sampled"])
@pytest.mark.parametrize("finite_batch", [True, False])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("family", [Normal, Laplace, LogNormal])
def test_batch_of_identical_rows_at_n_equal_k_has_finite_value_and_gradient(family, name, finite_batch, estimator):
    loc, scale = (torch.full((75,), value, requires_grad=True) for value in (0.2, 1.3))
    criterion = FCalLoss(name, df=75, on="both", finite_batch=finite_batch, estimator=estimator)
    loss = criterion(family(loc, scale), torch.full((75,), 2.0))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(loc.grad).all()
    assert torch.isfinite(scale.grad).all()


def test_zero_variance_of_q_still_pulls_the_mean_right():
    # |z| = 2 everywhere: the variance of q is zero, its mean too large, so sigma must grow.
    scale = torch.full((100,), 0.5, requires_grad=True)
    y = torch.ones(100) * torch.tensor([1.0, -1.0]).repeat(50)
    FCalLoss("kl")(Normal(torch.zeros(100), scale), y).backward()
    assert (scale.grad < 0).all()


# torch.compile

COMPILED = {
    "f-Cal": lambda: FCalLoss("kl", on="both"),
    "combined": lambda: CombinedLoss(FCalLoss(), lam=0.3),
    "warmed up": lambda: CombinedLoss(FCalLoss("kl"), lam=0.3, warmup_steps=4),
    "calibration": lambda: CalibrationLoss(on="std", p=2),
    "beta": BetaNLLLoss,
}


def assert_compiled_equals_eager(make, family, backend: str, *, masked: bool) -> None:
    torch._dynamo.reset()
    loc, scale, y = batch(200, torch.float32)
    y = y.exp() if family in (LogNormal, Weibull) else y
    first = scale if family is Weibull else loc
    weight = torch.rand(200) if masked else None
    if masked:
        y = torch.where(torch.rand(200) < 0.1, math.nan, y)
    eager, traced = make(), make()

    def loss(a, b, target, criterion):
        return criterion(family(a, b, validate_args=False), target, weight=weight)

    compiled = torch.compile(lambda a, b, target: loss(a, b, target, traced), backend=backend, fullgraph=True)
    for _ in range(2):
        expected, found = loss(first, scale, y, eager), compiled(first, scale, y)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        inputs = [first, scale] if first is not scale else [scale]
        gradients = (torch.autograd.grad(value, inputs, allow_unused=True) for value in (found, expected))
        for ours, theirs in zip(*gradients, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("_without_validation")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("family", [Normal, Laplace, LogNormal, Weibull])
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_whole_graph_equals_eager(name, family, masked):
    assert_compiled_equals_eager(COMPILED[name], family, "aot_eager", masked=masked)


STRUCTURED = {
    "validated, of any length": lambda loc, scale: Normal(loc, scale),
    "independent": lambda loc, scale: Independent(Normal(loc.view(100, 2), scale.view(100, 2)), 1),
    "vector": lambda loc, scale: MultivariateNormal(
        loc.view(100, 2), scale_tril=torch.diag_embed(scale.view(100, 2)), validate_args=False
    ),
    "affine": lambda loc, scale: TransformedDistribution(
        Normal(torch.zeros_like(loc), torch.ones_like(loc)), [transforms.AffineTransform(loc, scale)]
    ),
    "tanh": lambda loc, scale: TransformedDistribution(Laplace(loc, scale), [transforms.TanhTransform()]),
}


@pytest.mark.usefixtures("_without_validation")
@pytest.mark.parametrize("name", STRUCTURED)
def test_compiled_structured_predictions_equal_eager(name):
    torch._dynamo.reset()
    loc, scale, y = batch(200, torch.float32)
    y = torch.tanh(y) if name == "tanh" else y
    criterion = CombinedLoss(FCalLoss("kl"))

    def loss(a, b):
        pred = STRUCTURED[name](a, b)
        return criterion(pred, y.view(pred.batch_shape + pred.event_shape))

    dynamic = True if "any length" in name else None
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    expected, found = loss(loc, scale), compiled(loc, scale)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    gradients = (torch.autograd.grad(value, [loc, scale]) for value in (found, expected))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("_without_validation")
@pytest.mark.parametrize("family", [Normal, Laplace])
def test_inductor_equals_eager_where_a_compiler_is_present(family):
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        pytest.skip("no C++ compiler on this machine, which inductor needs on a CPU")
    assert_compiled_equals_eager(COMPILED["combined"], family, "inductor", masked=True)


# Bad input


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"df": 0}, ValueError, "expected `df` >= 1, got 0"),
        ({"df": 7.5}, TypeError, "expected `df` an int, got float 7.5"),
        ({"df": True}, TypeError, "expected `df` an int, got bool"),
        ({"divergence": "hellingr"}, ValueError, "expected `divergence` one of 'kl'"),
        ({"on": "x"}, ValueError, "expected `on` one of 'q', 'z', 'both', got 'x'"),
        ({"estimator": "approximate"}, ValueError, "expected `estimator` one of 'exact', 'sampled'"),
        ({"draws": 1}, ValueError, "expected `draws` >= 2, got 1"),
        ({"generator": 3}, TypeError, "expected `generator` a torch.Generator, got int"),
        ({"finite_batch": 1}, TypeError, "expected `finite_batch` a bool, got int 1"),
    ],
)
def test_bad_options_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        FCalLoss(**options)


def normal(*shape: int, scale: float = 1.0) -> Normal:
    return Normal(torch.zeros(*shape), torch.full(shape, scale), validate_args=False)


@pytest.mark.parametrize("estimator", ["exact", "sampled"])
@pytest.mark.parametrize(
    ("pred", "target", "error", "message"),
    [
        (
            normal(100),
            torch.zeros(100, 1),
            ValueError,
            r"expected `target` of shape \(100,\) like `pred`, got \(100, 1\)",
        ),
        (normal(100, 1), torch.zeros(100), ValueError, r"shape \(100, 1\) like `pred`, got \(100,\)"),
        (normal(100), torch.zeros(99), ValueError, r"shape \(100,\) like `pred`, got \(99,\)"),
        (normal(1, 100), torch.zeros(100, 100), ValueError, r"shape \(1, 100\) like `pred`"),
        (
            normal(100, scale=-1.0),
            torch.zeros(100),
            ValueError,
            r"expected `pred.scale` > 0, got -1 \(100 of 100 values\)",
        ),
        (normal(100, scale=0.0), torch.zeros(100), ValueError, "expected `pred.scale` > 0, got 0"),
        (normal(100, scale=math.nan), torch.zeros(100), ValueError, "expected `pred.scale` finite, got nan"),
        (normal(100, scale=math.inf), torch.zeros(100), ValueError, "expected `pred.scale` finite, got inf"),
        (normal(100), torch.full((100,), math.inf), ValueError, "expected `target` finite .*, got inf"),
        (
            normal(100),
            torch.zeros(100, dtype=torch.int64),
            TypeError,
            "expected `target` of a floating dtype, got torch.int64",
        ),
        (normal(100), [0.0] * 100, TypeError, "expected `target` a torch.Tensor, got list"),
        (
            torch.zeros(100),
            torch.zeros(100),
            TypeError,
            "expected `pred` a torch.distributions.Distribution, got Tensor",
        ),
        (
            normal(100),
            torch.zeros(100, device="meta"),
            ValueError,
            "expected `target` on the device of `pred.loc`, cpu, got meta",
        ),
    ],
)
def test_bad_batches_are_refused(pred, target, error, message, estimator):
    with pytest.raises(error, match=message):
        FCalLoss(estimator=estimator)(pred, target)


@pytest.mark.parametrize(
    ("beside", "error", "message"),
    [
        ({"valid_mask": torch.zeros(100, dtype=torch.bool)}, ValueError, "at least 2 values that count, got 0"),
        ({"valid_mask": torch.ones(100)}, TypeError, "expected `valid_mask` of dtype torch.bool, got torch.float32"),
        ({"valid_mask": torch.ones(99, dtype=torch.bool)}, ValueError, r"expected `valid_mask` of shape \(100,\)"),
        ({"valid_mask": torch.arange(100) < 1}, ValueError, "at least 2 values that count, got 1"),
        (
            {"weight": torch.ones(100, 1)},
            ValueError,
            r"expected `weight` of shape \(100,\) like `target`, got \(100, 1\)",
        ),
        ({"weight": -torch.ones(100)}, ValueError, r"expected `weight` >= 0 .*, got -1"),
        ({"weight": torch.full((100,), math.nan)}, ValueError, r"expected `weight` >= 0 .*, got nan"),
        ({"weight": torch.zeros(100)}, ValueError, "at least 2 values that count, got 0"),
        ({"weight": [1.0] * 100}, TypeError, "expected `weight` a torch.Tensor, got list"),
        ({"weight": torch.ones(100, device="meta")}, ValueError, "expected `weight` on the device of `target`"),
    ],
)
def test_bad_masks_and_weights_are_refused(beside, error, message):
    with pytest.raises(error, match=message):
        FCalLoss(df=2)(normal(100), torch.randn(100), **beside)


def test_too_few_targets_are_refused():
    with pytest.raises(ValueError, match="at least 2 values that count, got 1"):
        FCalLoss()(normal(1), torch.zeros(1))
    with pytest.raises(ValueError, match="at least 2 values that count, got 0"):
        FCalLoss()(normal(0), torch.zeros(0))
    with pytest.raises(ValueError, match="at least 75 values that count, got 74"):
        FCalLoss(estimator="sampled")(normal(74), torch.randn(74))
    with pytest.raises(ValueError, match="at least `df` = 75 values that count, got 74"):
        FCalLoss(finite_batch=False)(normal(74), torch.randn(74))
    assert torch.isfinite(FCalLoss()(normal(74), torch.randn(74)))


def test_nan_prediction_is_refused_by_name():
    loc = torch.zeros(10)
    loc[3] = math.nan
    with pytest.raises(ValueError, match=r"expected `pred.loc` finite, got nan \(1 of 10 values\)"):
        FCalLoss()(Normal(loc, torch.ones(10), validate_args=False), torch.randn(10))


def test_users_divergence_trains_by_autograd():
    def absolute(mean, variance, df):
        return ((mean - df) / df).abs() + ((variance - 2 * df) / df).abs()

    fcal.divergences.register("absolute", absolute)
    loc, scale, y = batch(100)
    q = ((y - loc) / scale).square()
    expected = absolute(10 * q.mean(), 10 * q.var(), 10)
    loss = FCalLoss("absolute", df=10)(Normal(loc, scale), y)
    torch.testing.assert_close(loss, expected)
    for ours, theirs in zip(
        torch.autograd.grad(loss, [loc, scale]), torch.autograd.grad(expected, [loc, scale]), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_second_derivatives_are_refused_rather_than_dropped():
    loc, scale, y = batch(50)
    loss = fcal.nll(Normal(loc, scale), y).mean() + FCalLoss()(Normal(loc, scale), y)
    with pytest.raises(RuntimeError, match="differentiable once"):
        torch.autograd.grad(loss, [loc], create_graph=True)


def test_loss_shows_its_options():
    shown = repr(FCalLoss("kl", df=50, detach_mean=True))
    assert shown.startswith("FCalLoss('kl', df=50, on='q', estimator='exact', finite_batch=True, detach_mean=True")


def test_memory_beyond_the_inputs_is_two_gradients():
    # Nothing of size N may live between forward and backward but the inputs themselves.
    loc, scale, y = batch(1000, torch.float32)
    loss = FCalLoss()(Normal(loc, scale), y)
    saved = loss.grad_fn.saved_tensors
    inputs = {tensor.data_ptr() for tensor in (loc, scale, y)}
    assert {tensor.data_ptr() for tensor in saved if tensor is not None} == inputs


@pytest.mark.parametrize(
    ("name", "divergence", "message"),
    [
        ("vector", lambda mean, variance, _: torch.stack([mean, variance]), r"real scalar tensor, got \(2,\)"),
        ("number", lambda mean, *_: mean.item(), "real scalar tensor, got float"),
        ("constant", lambda mean, *_: mean.detach(), "by autograd, got a constant"),
    ],
)
def test_users_divergence_must_return_a_differentiable_scalar(name, divergence, message):
    fcal.divergences.register(name, divergence)
    loc, scale, y = batch(100)
    with pytest.raises(ValueError, match=message):
        FCalLoss(name, df=10)(Normal(loc, scale), y)


@pytest.mark.parametrize("factor", [1e-90, 1e-25, 1.0, 1e60])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loss_and_gradient_do_not_depend_on_the_scale_of_weights(factor, dtype):
    loc, scale, y = batch(100, dtype)
    weight = torch.rand(100, dtype=torch.float64) + 0.1
    criterion = FCalLoss("kl", df=20, on="both", finite_batch=False)
    pred = Normal(loc, scale)
    expected, found = criterion(pred, y, weight=weight), criterion(pred, y, weight=factor * weight)
    torch.testing.assert_close(found, expected)
    gradients = (torch.autograd.grad(value, [loc, scale]) for value in (found, expected))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_sampled_loss_refuses_the_same_weights_as_the_exact_one():
    weight = torch.full((100,), 1e-3)
    weight[0] = 1.0
    for estimator in ("exact", "sampled"):
        with pytest.raises(ValueError, match="at least `df` = 50 values that count, got 1.2"):
            FCalLoss(df=50, finite_batch=False, estimator=estimator)(normal(100), torch.randn(100), weight=weight)
        with pytest.raises(ValueError, match="at least 2 values that count, got 1"):
            FCalLoss(df=1, estimator=estimator)(normal(2), torch.randn(2), weight=torch.tensor([1.0, 1e-20]))


def test_all_missing_targets_standardize_to_nan():
    assert torch.isnan(fcal.standardize(normal(4), torch.full((4,), math.nan))).all()


# Every divergence of moments

MORE = ["jeffreys", "hellinger", "jensen_shannon", "total_variation", "chi_square", "renyi", "renyi(2)", "chi2_moments"]


@pytest.mark.parametrize("name", MORE)
def test_loss_by_every_divergence_is_its_definition(name):
    loc, scale, y = batch(400)
    pred, divergence = Normal(loc, scale), fcal.divergences.by_name(name)
    z = (y - loc) / scale
    expected = {
        "q": gaussian_loss_by_definition(z, 75, divergence),
        "z": divergence(z.mean(), z.var(), None),
    }
    expected["both"] = expected["q"] + expected["z"]
    for on, definition in expected.items():
        loss = FCalLoss(name, df=75, on=on)(pred, y)
        torch.testing.assert_close(loss, definition)
        found = torch.autograd.grad(loss, [loc, scale])
        for ours, theirs in zip(found, torch.autograd.grad(definition, [loc, scale], retain_graph=True), strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", MORE)
@pytest.mark.parametrize("family", [Normal, Laplace])
def test_loss_by_every_divergence_passes_gradcheck(family, name):
    torch.manual_seed(0)
    first, second = ((torch.rand(20, dtype=torch.float64) + 0.5).requires_grad_() for _ in range(2))
    y = torch.rand(20, dtype=torch.float64) + 0.3
    for on in ("q", "z", "both"):
        assert torch.autograd.gradcheck(
            lambda a, b, on=on: FCalLoss(name, df=10, on=on)(family(a, b), y), (first, second)
        )


@pytest.mark.parametrize("on", ["q", "z", "both"])
@pytest.mark.parametrize("name", MORE)
@pytest.mark.parametrize("sigma", [1e-38, 1e-12, 1e-4, 1e4, 1e12, 1e38])
def test_every_gradient_stays_finite_at_tiny_and_huge_sigma(sigma, name, on):
    torch.manual_seed(0)
    y = torch.randn(200)
    loc, scale = torch.zeros(200, requires_grad=True), torch.full((200,), sigma, requires_grad=True)
    FCalLoss(name, on=on)(Normal(loc, scale), y).backward()
    assert torch.isfinite(loc.grad).all()
    assert torch.isfinite(scale.grad).all()


def trained_scale(criterion, sigma: float) -> tuple[float, float, float]:
    """Sigma after steps on its logarithm, and the loss before and after, for targets of deviation 1."""
    y = torch.special.ndtri((torch.arange(2000, dtype=torch.float64) + 0.5) / 2000)
    log_sigma = torch.tensor(math.log(sigma), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Rprop([log_sigma], lr=0.3)  # by the gradient's sign: its size spans twenty powers of ten
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = criterion(Normal(torch.zeros_like(y), log_sigma.exp().expand_as(y)), y)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    return log_sigma.exp().item(), losses[0], losses[-1]


TRAINED = [(name, on) for name in [*fcal.divergences.names(), "renyi(2)"] for on in ("q", "z", "both")]
TRAINED = [(name, on) for name, on in TRAINED if name != "sorted_wasserstein" or on == "z"]


@pytest.mark.parametrize("sigma", [0.01, 100.0])
@pytest.mark.parametrize(("name", "on"), TRAINED)
def test_every_divergence_pulls_sigma_back_from_far_away(name, on, sigma):
    found, before, after = trained_scale(FCalLoss(name, df=20, on=on), sigma)
    # 2000 quantiles have a fourth moment 1 % short of 3, so the best sigma is not quite 1
    assert found == pytest.approx(1, rel=0.02)
    assert after < before


@pytest.mark.usefixtures("_without_validation")
@pytest.mark.parametrize("name", MORE)
def test_every_divergence_compiles_as_a_whole_graph(name):
    assert_compiled_equals_eager(lambda: FCalLoss(name, on="both"), Normal, "aot_eager", masked=False)


@pytest.mark.parametrize("name", MORE)
def test_every_divergence_takes_the_sampled_estimator(name):
    loc, scale, y = batch(300)
    criterion = FCalLoss(name, df=20, on="both", estimator="sampled", generator=torch.Generator().manual_seed(0))
    loss = criterion(Normal(loc, scale), y)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(scale.grad).all()


def test_bad_parameter_of_a_divergence_is_refused_by_the_loss():
    with pytest.raises(
        ValueError, match=r"expected `divergence` 'renyi\(alpha\)' with alpha within .*, got 'renyi\(-1\)'"
    ):
        FCalLoss("renyi(-1)")


# A divergence of the residuals themselves


def of_residuals(**options) -> FCalLoss:
    return FCalLoss("sorted_wasserstein", on="z", **options)


@pytest.mark.parametrize("family", [Normal, Laplace, LogNormal])
def test_loss_of_residuals_is_its_definition_with_masks_and_weights(family):
    torch.manual_seed(0)
    y, loc, scale = (torch.rand(200, dtype=torch.float64) + 0.5 for _ in range(3))
    parameters = [loc.requires_grad_(), scale.requires_grad_()]
    keep, weight = torch.rand(200) > 0.3, torch.rand(200, dtype=torch.float64)
    weight[:10] = 0
    pred = family(*parameters)
    z = fcal.standardize(pred, y)
    expected = fcal.divergences.sorted_wasserstein(z[keep], weight[keep])
    loss = of_residuals()(pred, torch.where(keep, y, math.nan), weight=weight)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(of_residuals()(pred, y, valid_mask=keep, weight=7 * weight), expected)
    found, autograd = (torch.autograd.grad(value, parameters, retain_graph=True) for value in (loss, expected))
    for ours, theirs in zip(found, autograd, strict=True):
        torch.testing.assert_close(ours, theirs)
        assert not ours[~keep].any()


@pytest.mark.parametrize("estimator", ["exact", "sampled"])
@pytest.mark.parametrize("family", [Normal, Laplace])
def test_loss_of_residuals_passes_gradcheck(family, estimator):
    torch.manual_seed(0)
    first, second = ((torch.rand(20, dtype=torch.float64) + 0.5).requires_grad_() for _ in range(2))
    y = torch.rand(20, dtype=torch.float64) + 0.3
    assert torch.autograd.gradcheck(lambda a, b: of_residuals(estimator=estimator)(family(a, b), y), (first, second))


def test_masked_values_change_no_bit_of_the_loss_of_residuals():
    torch.manual_seed(0)
    keep = torch.rand(200) > 0.3
    raw = [torch.rand(200) + 0.5 for _ in range(3)]
    results = []
    for hidden in (0.7, math.nan, 1e9, -math.inf):
        y, *parameters = (torch.where(keep, value, hidden) for value in raw)
        parameters = [p.requires_grad_() for p in parameters]
        value = of_residuals()(Normal(*parameters, validate_args=False), y, valid_mask=keep)
        results.append([value.detach(), *torch.autograd.grad(value, parameters)])
    for other in results[1:]:
        for ours, theirs in zip(results[0], other, strict=True):
            assert torch.equal(ours, theirs)


def test_loss_of_residuals_may_detach_the_mean():
    loc, scale, y = batch(100)
    full = torch.autograd.grad(of_residuals()(Normal(loc, scale), y), [loc, scale])
    loss = of_residuals(detach_mean=True)(Normal(loc, scale), y)
    by_loc, by_scale = torch.autograd.grad(loss, [loc, scale], allow_unused=True)
    assert by_loc is None or not by_loc.any()
    torch.testing.assert_close(by_scale, full[1])


def test_loss_of_whitened_vectors_counts_every_coordinate():
    torch.manual_seed(0)
    pred = MultivariateNormal(torch.zeros(40, 3).double(), torch.eye(3).double().expand(40, 3, 3))
    y, weight = torch.randn(40, 3).double(), torch.rand(40).double()
    expected = fcal.divergences.sorted_wasserstein(y.reshape(-1), weight.repeat_interleave(3))
    torch.testing.assert_close(of_residuals()(pred, y, weight=weight), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sigma", [1e-38, 1e-4, 1.0, 1e4, 1e38])
def test_loss_of_residuals_has_finite_gradients_at_tiny_and_huge_sigma(sigma, dtype):
    torch.manual_seed(0)
    scale = torch.full((200,), sigma, dtype=dtype, requires_grad=True)
    loss = of_residuals()(Normal(torch.zeros(200, dtype=dtype), scale), torch.randn(200).to(dtype))
    loss.backward()
    assert loss.dtype == torch.float32
    assert torch.isfinite(scale.grad).all()


@pytest.mark.parametrize("on", ["q", "both"])
def test_divergence_of_residuals_is_refused_elsewhere(on):
    with pytest.raises(ValueError, match=rf"expected `on` 'z' with 'sorted_wasserstein', .*, got '{on}'"):
        FCalLoss("sorted_wasserstein", on=on)


def test_loss_of_residuals_needs_two_of_them():
    for count in (0, 1):
        with pytest.raises(ValueError, match=f"at least 2 values that count, got {count}"):
            of_residuals()(normal(count), torch.zeros(count))
    with pytest.raises(ValueError, match="at least 2 values that count, got 0"):
        of_residuals()(normal(5), torch.full((5,), math.nan))
    with pytest.raises(ValueError, match="expected `pred.scale` > 0, got -1"):
        of_residuals()(normal(5, scale=-1.0), torch.zeros(5))


def test_loss_of_residuals_has_no_objective_of_sums():
    with pytest.raises(ValueError, match="expected `divergence` of moments, got 'sorted_wasserstein'"):
        of_residuals().sums_objective()


@pytest.mark.parametrize("option", ["divergence", "on", "estimator"])
def test_options_that_decide_how_the_loss_is_computed_are_read_only(option):
    criterion = fcal.FCalLoss()
    with pytest.raises(AttributeError, match=option):
        setattr(criterion, option, "z")
