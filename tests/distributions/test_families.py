"""Every family against mpmath: residuals, tails, quantiles, gradients."""

import math

import mpmath as mp
import pytest
import torch
from references import REFERENCES, normal_quantile
from torch import distributions
from torch.autograd import gradcheck
from torch.distributions import transforms

import fcal
from fcal.distributions import Family, Logistic, log_cdf, log_survival, quantile, register

Z64 = [-37, -30, -20, -12, -8.3, -5, -2, -0.7, -1e-3, 1e-3, 0.5, 1.9, 5.5, 8, 12, 20, 31, 37]
Z32 = [-12, -9, -5.5, -2, -0.7, -1e-3, 1e-3, 0.5, 1.9, 5.5, 9, 12]
PRECISIONS = [pytest.param(torch.float64, Z64, id="float64"), pytest.param(torch.float32, Z32, id="float32")]


def targets(name: str, dtype: torch.dtype, z_values: list[float]) -> list[float]:
    found = [REFERENCES[name].target(z, dtype) for z in z_values]
    usable = [y for y in found if y is not None]
    assert len(usable) >= len(z_values) // 2
    return usable


@pytest.mark.parametrize(("dtype", "z_values"), PRECISIONS)
@pytest.mark.parametrize("name", REFERENCES)
def test_standardize_is_right_to_1e_6_in_both_tails(name, dtype, z_values):
    reference = REFERENCES[name]
    y = targets(name, dtype, z_values)
    z = fcal.standardize(reference.law(dtype), torch.tensor(y, dtype=dtype))
    expected = torch.tensor([float(reference.residual(v, dtype)) for v in y], dtype=dtype)
    assert z.dtype == dtype
    torch.testing.assert_close(z, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("dtype", "z_values"), PRECISIONS)
@pytest.mark.parametrize("name", REFERENCES)
def test_standardize_has_the_right_gradient_for_target_and_every_parameter(name, dtype, z_values):
    reference = REFERENCES[name]
    y = targets(name, dtype, z_values)
    target = torch.tensor(y, dtype=dtype, requires_grad=True)
    parameters = [torch.full((len(y),), p, dtype=dtype, requires_grad=True) for p in reference.parameters]
    z = fcal.standardize(reference.kind(*parameters), target)
    found = torch.stack(torch.autograd.grad(z.sum(), [target, *parameters]), dim=1)
    expected = torch.tensor([reference.residual_gradient(v, dtype) for v in y], dtype=torch.float64).to(dtype)
    inside = torch.isfinite(expected)  # a slope beyond the dtype's range ends at its largest number
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found[inside], expected[inside], rtol=2e-6, atol=1e-30)


@pytest.mark.parametrize("name", REFERENCES)
def test_log_cdf_and_log_survival_are_right_far_into_their_tails(name):
    reference, dtype = REFERENCES[name], torch.float64
    y = targets(name, dtype, Z64)
    value, law = torch.tensor(y, dtype=dtype), reference.law(dtype)
    tails = [reference.tails(mp.mpf(v), *reference.exact_parameters(dtype)) for v in y]
    for function, side in ((log_cdf, 0), (log_survival, 1)):
        logs = [mp.log(pair[side]) if pair[side] < 0.5 else mp.log1p(-pair[1 - side]) for pair in tails]
        expected = torch.tensor([float(value) for value in logs], dtype=dtype)
        torch.testing.assert_close(function(law, value), expected, rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("name", REFERENCES)
def test_quantile_from_both_tails_matches_mpmath(name):
    reference, dtype = REFERENCES[name], torch.float64
    lower = torch.tensor([1e-300, 1e-20, 1e-3, 0.4, 0.5, 0.9, 1.0, 1.0], dtype=dtype)
    upper = torch.tensor([1.0, 1.0, 0.999, 0.6, 0.5, 0.1, 1e-20, 1e-300], dtype=dtype)
    expected = [
        float(reference.quantile(mp.mpf(a), mp.mpf(b), *reference.exact_parameters(dtype)))
        for a, b in zip(lower.tolist(), upper.tolist(), strict=True)
    ]
    found = quantile(reference.law(dtype), lower, upper)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=dtype), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", REFERENCES)
def test_formulas_pass_gradcheck(name):
    reference = REFERENCES[name]
    torch.manual_seed(3)
    count = 2 if name.startswith("mixture") else 6  # they have many parameters
    p = (0.1 + 0.8 * torch.rand(count, dtype=torch.float64)).requires_grad_()
    parameters = [torch.full((count,), v, dtype=torch.float64, requires_grad=True) for v in reference.parameters]
    value = quantile(reference.kind(*parameters), p).detach().requires_grad_()
    for function in (log_cdf, log_survival, fcal.standardize, fcal.nll):
        assert gradcheck(lambda y, *a, f=function: f(reference.kind(*a), y), (value, *parameters))
    assert gradcheck(lambda u, *a: quantile(reference.kind(*a), u), (p, *parameters))


@pytest.mark.parametrize("name", [name for name in REFERENCES if name not in ("HalfNormal", "Exponential", "Uniform")])
def test_standardize_at_the_median_has_a_gradient(name):
    # |y - loc| has none at 0; the residual has one everywhere
    reference = REFERENCES[name]
    parameters = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in reference.parameters]
    median = quantile(reference.kind(*parameters), torch.tensor(0.5, dtype=torch.float64)).detach()
    slopes = torch.autograd.grad(fcal.standardize(reference.kind(*parameters), median), parameters)
    expected = reference.residual_gradient(median.item(), torch.float64)[1:]
    torch.testing.assert_close(torch.stack(slopes), torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-12)


def test_laplace_residual_exactly_at_its_location_has_slope_of_the_density():
    loc = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    fcal.standardize(distributions.Laplace(loc, torch.ones(1, dtype=torch.float64)), torch.zeros(1).double()).backward()
    # dz/dloc = -f(0) / phi(0) = -(1/2) sqrt(2 pi)
    torch.testing.assert_close(loc.grad, torch.tensor([-0.5 * math.sqrt(2 * math.pi)], dtype=torch.float64))


@pytest.mark.parametrize("name", REFERENCES)
def test_residuals_of_own_draws_are_standard_normal(name):
    # Mean and mean square of 20,000 draws within 4.5 standard errors: false-alarm rate below 2e-5 per family.
    torch.manual_seed(0)
    law = REFERENCES[name].law(torch.float64)
    z = fcal.standardize(law, law.sample((20_000,)))
    assert abs(z.mean().item()) < 4.5 / math.sqrt(20_000)
    assert abs(z.square().mean().item() - 1) < 4.5 * math.sqrt(2 / 20_000)


@pytest.mark.parametrize("z", [-37.0, -12.0, -1e-3, 0.5, 12.0, 37.0])
def test_logit_of_uniform_keeps_both_tails(z):
    # torch's recipe for a logistic distribution; 1 - sigmoid(y) would be 0 from y = 37 on
    loc, scale = torch.tensor(0.3, dtype=torch.float64), torch.tensor(1.7, dtype=torch.float64)
    base = distributions.Uniform(torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64))
    recipe = [transforms.SigmoidTransform().inv, transforms.AffineTransform(loc, scale)]
    y = torch.tensor(REFERENCES["Logistic"].target(z, torch.float64), dtype=torch.float64)
    found = fcal.standardize(distributions.TransformedDistribution(base, recipe), y)
    torch.testing.assert_close(found, fcal.standardize(Logistic(loc, scale), y), rtol=1e-12, atol=0)


TRANSFORMED = {
    "exp": ([transforms.ExpTransform()], lambda y: y.log()),
    "decreasing affine": ([transforms.AffineTransform(2.0, -3.0)], lambda y: (y - 2) / -3),
    "sigmoid": ([transforms.SigmoidTransform()], lambda y: y.log() - torch.log1p(-y)),
    "decreasing, then exp": (
        [transforms.AffineTransform(0.0, -1.0), transforms.ExpTransform()],
        lambda y: -y.log(),
    ),
    "composed": ([transforms.ComposeTransform([transforms.TanhTransform()])], torch.atanh),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformed_laws_follow_their_base(name):
    recipe, inverse = TRANSFORMED[name]
    base = distributions.Laplace(torch.tensor(0.1, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64))
    law = distributions.TransformedDistribution(base, recipe)
    torch.manual_seed(0)
    y = law.sample((50,))
    increasing = bool((law.cdf(y.sort().values).diff() >= 0).all())
    assert increasing
    probability = law.cdf(y)
    z = fcal.standardize(law, y)
    torch.testing.assert_close(z, torch.special.ndtri(probability), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(log_cdf(law, y), probability.log(), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(log_survival(law, y), torch.log1p(-probability), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(fcal.nll(law, y), -law.log_prob(y))
    torch.testing.assert_close(quantile(law, probability), y)
    direction = torch.sign(z * fcal.standardize(base, inverse(y)))
    assert (direction == direction[0]).all()


def test_independent_residuals_are_those_of_the_base():
    torch.manual_seed(0)
    base = distributions.Laplace(torch.randn(5, 3), torch.rand(5, 3) + 0.5)
    y = torch.randn(5, 3)
    torch.testing.assert_close(fcal.standardize(distributions.Independent(base, 1), y), fcal.standardize(base, y))


def multivariate(kind: str, dtype: torch.dtype = torch.float64):
    torch.manual_seed(1)
    loc = torch.randn(4, 3, dtype=dtype)
    if kind == "low rank":
        factor, diagonal = torch.randn(4, 3, 2, dtype=dtype), torch.rand(4, 3, dtype=dtype) + 0.1
        return distributions.LowRankMultivariateNormal(loc, factor, diagonal)
    raw = torch.randn(4, 3, 3, dtype=dtype)
    return distributions.MultivariateNormal(loc, raw @ raw.mT + 0.5 * torch.eye(3, dtype=dtype))


@pytest.mark.parametrize("kind", ["full", "low rank"])
def test_multivariate_residuals_are_whitened_by_the_cholesky_factor(kind):
    law = multivariate(kind)
    y = law.sample()
    z = fcal.standardize(law, y)
    expected = torch.stack(
        [
            torch.linalg.inv(torch.linalg.cholesky(c)) @ (v - m)
            for c, v, m in zip(law.covariance_matrix, y, law.loc, strict=True)
        ]
    )
    torch.testing.assert_close(z, expected)
    torch.testing.assert_close(fcal.nll(law, y), -law.log_prob(y))


@pytest.mark.parametrize("kind", ["full", "low rank"])
def test_multivariate_in_float32_is_right_to_1e_6(kind):
    law, wide = multivariate(kind, torch.float32), None
    y = law.sample()
    if kind == "full":
        wide = distributions.MultivariateNormal(law.loc.double(), scale_tril=law.scale_tril.double())
    else:
        wide = distributions.LowRankMultivariateNormal(law.loc.double(), law.cov_factor.double(), law.cov_diag.double())
    torch.testing.assert_close(fcal.standardize(law, y).double(), fcal.standardize(wide, y.double()), rtol=1e-6, atol=0)


def test_multivariate_residuals_pass_gradcheck():
    torch.manual_seed(0)
    loc = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    tril = (torch.randn(2, 3, 3, dtype=torch.float64).tril(-1) + torch.eye(3)).requires_grad_()
    y = torch.randn(2, 3, dtype=torch.float64)

    def whiten(m, raw):
        return fcal.standardize(distributions.MultivariateNormal(m, scale_tril=raw.tril()), y)

    assert gradcheck(whiten, (loc, tril))


class Triangular(distributions.Distribution):
    """A custom family on (0, 1): F(y) = y^2."""

    arg_constraints = {"top": distributions.constraints.positive}
    support = distributions.constraints.positive

    def __init__(self, top, validate_args=None):
        self.top = top
        super().__init__(top.shape, validate_args=validate_args)

    def log_prob(self, value):
        return math.log(2) + value.log() - 2 * self.top.log()


def test_unknown_family_is_refused_with_the_way_to_register_it():
    law = distributions.VonMises(torch.zeros(3), torch.ones(3))
    with pytest.raises(TypeError, match=r"got VonMises; add it with fcal\.distributions\.register\(VonMises"):
        fcal.standardize(law, torch.zeros(3))


def test_registered_family_works_everywhere():
    register(
        Triangular,
        Family(
            parameters=("top",),
            log_cdf=lambda y, top: 2 * (y / top).log(),
            log_survival=lambda y, top: torch.log1p(-(y / top).square()),
            quantile=lambda lower, _, top: top * lower.sqrt(),
        ),
    )
    top = torch.full((4,), 2.0, requires_grad=True)
    y = torch.tensor([0.2, 1.0, math.sqrt(2.0), 1.9])
    z = fcal.standardize(Triangular(top), y)
    torch.testing.assert_close(z, torch.special.ndtri((y / 2).square().double()).float())
    torch.testing.assert_close(fcal.nll(Triangular(top), y), -Triangular(top).log_prob(y))
    fcal.losses.CombinedLoss(lam=0.5)(Triangular(top), y).backward()
    assert torch.isfinite(top.grad).all()


def test_register_refuses_what_is_not_a_distribution_or_a_family():
    with pytest.raises(TypeError, match="expected `kind` a subclass"):
        register(int, Family(parameters=(), residual=lambda y: y))
    with pytest.raises(TypeError, match="expected `family` a"):
        register(Triangular, "triangular")
    with pytest.raises(ValueError, match="with both `log_cdf` and `log_survival`, or with `residual`"):
        Family(parameters=("a",))
    with pytest.raises(ValueError, match="expected `location` one of"):
        Family(parameters=("a",), residual=lambda y, _: y, location="b")


def test_transform_that_is_not_monotone_is_refused():
    law = distributions.TransformedDistribution(
        distributions.Laplace(torch.zeros(2), torch.ones(2)), [transforms.AbsTransform()]
    )
    with pytest.raises(TypeError, match="monotone transforms, got AbsTransform"):
        fcal.standardize(law, torch.ones(2))


def test_vector_family_has_no_cdf():
    law = distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
    with pytest.raises(TypeError, match="expected `pred` of a scalar family with a log_cdf, got MultivariateNormal"):
        log_cdf(law, torch.zeros(2))


def test_quantile_refuses_probabilities_outside_the_open_interval():
    law = distributions.Normal(torch.zeros(2), torch.ones(2))
    with pytest.raises(ValueError, match=r"expected `lower` within \(0, 1\), got 1\.5"):
        quantile(law, torch.tensor([0.5, 1.5]))


@pytest.mark.parametrize(("name", "y"), [("Exponential", -1.0), ("Uniform", 2.0), ("LogNormal", 0.0)])
def test_impossible_target_is_refused(name, y):
    law = REFERENCES[name].law(torch.float32)
    with pytest.raises(ValueError, match=f"possible under {name}, got"):
        fcal.standardize(law, torch.tensor([y]))


def test_registry_lists_its_families():
    assert {"Normal", "Laplace", "Logistic", "MultivariateNormal"} <= set(fcal.distributions.families())


@pytest.mark.parametrize(
    ("law", "y"),
    [
        (distributions.Exponential(torch.ones(1)), -1.0),
        (distributions.Uniform(torch.zeros(1), torch.ones(1)), 2.0),
        (distributions.HalfNormal(torch.ones(1)), -2.0),
        (distributions.LogNormal(torch.zeros(1), torch.ones(1)), -2.0),
        (distributions.Weibull(torch.ones(1), torch.ones(1)), 0.0),
        (
            distributions.TransformedDistribution(
                distributions.Normal(torch.zeros(1), torch.ones(1)), [transforms.SigmoidTransform()]
            ),
            1.5,
        ),
    ],
)
def test_value_outside_the_support_is_refused_by_scores_and_tails_too(law, y):
    for function in (fcal.nll, fcal.losses.NLLLoss(), log_cdf, log_survival, fcal.standardize):
        with pytest.raises(ValueError, match="possible under "):
            function(law, torch.tensor([y]))


def test_uniform_with_crossed_bounds_is_refused():
    law = distributions.Uniform(torch.ones(2), torch.zeros(2), validate_args=False)
    for function in (fcal.nll, fcal.standardize, fcal.crps):
        with pytest.raises(ValueError, match="expected `pred.high` > `pred.low`, got 0"):
            function(law, torch.full((2,), 0.5))


@pytest.mark.parametrize(("factor", "diagonal"), [(100.0, 1e-12), (1.0, 1e-14), (1.0, 1e-16), (1e-3, 1.0)])
def test_low_rank_residuals_keep_a_small_diagonal(factor, diagonal):
    loc = torch.zeros(3, dtype=torch.float64)
    columns = factor * torch.tensor([[1.0], [2.0], [-1.0]], dtype=torch.float64)
    spread = torch.full((3,), diagonal, dtype=torch.float64)
    y = torch.tensor([0.3, -0.7, 1.1], dtype=torch.float64) * math.sqrt(diagonal)
    law = distributions.LowRankMultivariateNormal(loc, columns, spread, validate_args=False)
    exact = mp.matrix([[mp.mpf(c) for c in row] for row in columns.tolist()])
    covariance = exact * exact.T + mp.diag([mp.mpf(v) for v in spread.tolist()])
    z = mp.lu_solve(mp.cholesky(covariance), mp.matrix([mp.mpf(v) for v in y.tolist()]))
    expected = torch.tensor([float(v) for v in z], dtype=torch.float64)
    torch.testing.assert_close(fcal.standardize(law, y), expected, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(("scale", "y"), [(1e-10, -5.56e288), (1e-30, 1e250)])
def test_cauchy_gradient_survives_a_tiny_scale_far_out(scale, y):
    parameter = torch.tensor(scale, dtype=torch.float64, requires_grad=True)
    law = distributions.Cauchy(torch.zeros((), dtype=torch.float64), parameter)
    target = torch.tensor(y, dtype=torch.float64)
    (by_scale,) = torch.autograd.grad(fcal.standardize(law, target), [parameter])
    # log tail = log(scale / (pi |y|)) so far out, and dz / dlog tail = Phi / phi = 1 / |z| to 1e-3
    z = fcal.standardize(law, target).abs().item()
    expected = -math.copysign(1, y) / (z * scale)
    assert by_scale.item() == pytest.approx(expected, rel=2e-3)
    (by_scale,) = torch.autograd.grad(fcal.nll(law, target), [parameter])
    assert by_scale.item() == pytest.approx(-1 / scale, rel=1e-9)


@pytest.mark.parametrize("t", [1e-15, -1e-12, 1e-6, 3e-3, 0.02])
@pytest.mark.parametrize("name", ["Laplace", "Logistic", "Cauchy"])
def test_residuals_near_the_median_keep_relative_precision(name, t):
    reference = REFERENCES[name]
    law = reference.kind(torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    zero, one = mp.mpf(0), mp.mpf(1)
    expected = float(normal_quantile(*reference.tails(mp.mpf(t), zero, one)))
    assert fcal.standardize(law, torch.tensor([t], dtype=torch.float64)).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("sign", [1, -1])
def test_lognormal_nll_does_not_overflow_on_the_way(sign):
    loc, scale, y = (
        torch.tensor(v, dtype=torch.float64) for v in (300 * sign * math.log(10), 1e30, 10.0 ** (300 * sign))
    )
    found = fcal.nll(distributions.LogNormal(loc, scale), y)
    expected = (30 + 300 * sign) * math.log(10) + 0.5 * math.log(2 * math.pi)
    assert found.item() == pytest.approx(expected, rel=1e-9)


def test_transform_of_half_the_line_is_refused_for_a_law_on_all_of_it():
    law = distributions.TransformedDistribution(
        distributions.Normal(torch.zeros(2), torch.ones(2)), [transforms.PowerTransform(torch.tensor(2.0))]
    )
    with pytest.raises(TypeError, match="transforms of all its values, got PowerTransform"):
        fcal.standardize(law, torch.ones(2))


@pytest.mark.parametrize("scale", [0.0, math.inf, math.nan])
def test_bad_parameters_of_a_transform_are_refused_by_name(scale):
    base = distributions.Normal(torch.zeros(2), torch.ones(2))
    law = distributions.TransformedDistribution(
        base, [transforms.AffineTransform(torch.zeros(2), torch.full((2,), scale))]
    )
    with pytest.raises(ValueError, match="expected `pred.transforms: scale` finite and not 0"):
        fcal.nll(law, torch.ones(2))


def test_masked_row_of_a_transformed_vector_leaves_the_others_alone():
    torch.manual_seed(0)
    shift, stretch = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 4.0])
    base = distributions.MultivariateNormal(torch.zeros(5, 3), torch.eye(3))
    law = distributions.TransformedDistribution(base, [transforms.AffineTransform(shift, stretch)])
    y, keep = torch.randn(5, 3), torch.tensor([True, False, True, True, True])
    torch.testing.assert_close(fcal.nll(law, y, valid_mask=keep)[keep], -law.log_prob(y)[keep])
    torch.testing.assert_close(fcal.standardize(law, y, valid_mask=keep)[keep], fcal.standardize(law, y)[keep])


def test_inverse_affine_transform_is_masked_and_detached_like_any_other():
    base = distributions.Normal(torch.zeros(3).double(), torch.ones(3).double())
    loc = torch.tensor([0.5, 1.0, 2.0]).double().requires_grad_()
    scale = torch.tensor([2.0, 3.0, 0.5]).double().requires_grad_()
    y = torch.tensor([0.1, 0.7, 0.3]).double()
    law = distributions.TransformedDistribution(base, [transforms.AffineTransform(loc, scale).inv])
    loss = fcal.FCalLoss(df=1, detach_mean=True)(law, y)
    by_loc, by_scale = torch.autograd.grad(loss, [loc, scale], allow_unused=True)
    assert by_loc is None or not by_loc.any()
    assert by_scale.any()
    holed = torch.tensor([0.5, 1.0, math.nan]).double()
    law = distributions.TransformedDistribution(base, [transforms.AffineTransform(holed, scale).inv])
    assert torch.isfinite(fcal.FCalLoss(df=1)(law, y, valid_mask=torch.tensor([True, True, False])))


@pytest.mark.parametrize(
    ("upper", "error", "message"),
    [
        (torch.full((2, 1), 0.7), ValueError, r"expected `upper` of shape \(2,\) like `lower`"),
        (torch.full((2,), 0.9), ValueError, "such that lower \\+ upper = 1, got 0.9"),
        (torch.ones(2, dtype=torch.int64), TypeError, "expected `upper` a tensor of a floating dtype"),
        ([0.9, 0.9], ValueError, "such that lower \\+ upper = 1, got 0.9"),
        (["a", "b"], TypeError, "expected `upper` of numbers, got a list of str"),
    ],
)
def test_quantile_refuses_an_upper_tail_that_does_not_fit(upper, error, message):
    law = distributions.Normal(torch.zeros(2), torch.ones(2))
    with pytest.raises(error, match=message):
        quantile(law, torch.full((2,), 0.3), upper)


def test_quantile_refuses_bad_parameters():
    law = distributions.Normal(torch.zeros(2), -torch.ones(2), validate_args=False)
    with pytest.raises(ValueError, match="expected `pred.scale` > 0, got -1"):
        quantile(law, torch.full((2,), 0.3))


def test_parameters_that_are_not_floating_are_refused():
    law = distributions.Normal(torch.zeros(2, dtype=torch.complex64), torch.ones(2), validate_args=False)
    with pytest.raises(TypeError, match="expected `pred.loc` a tensor of a floating dtype, got torch.complex64"):
        fcal.nll(law, torch.zeros(2))


def test_family_whose_residuals_have_the_wrong_shape_is_refused():
    class Odd(distributions.Normal):
        pass

    register(Odd, Family(parameters=("loc", "scale"), residual=lambda y, m, s: (y - m).mean() / s.mean()))
    with pytest.raises(ValueError, match=r"expected Odd residuals of shape \(3,\), got \(\)"):
        fcal.standardize(Odd(torch.zeros(3), torch.ones(3)), torch.zeros(3))


def test_subclass_with_its_own_constructor_works_by_its_family():
    class ByPrecision(distributions.Normal):
        def __init__(self, loc, precision):
            super().__init__(loc, precision.rsqrt())

    pred, y = ByPrecision(torch.zeros(4), torch.full((4,), 4.0)), torch.randn(4)
    same = distributions.Normal(torch.zeros(4), torch.full((4,), 0.5))
    torch.testing.assert_close(fcal.losses.CalibrationLoss()(pred, y), fcal.losses.CalibrationLoss()(same, y))


def test_transforms_of_a_law_on_part_of_the_line_are_accepted():
    # torch builds Kumaraswamy from a uniform distribution by powers and a reflection
    law = distributions.Kumaraswamy(torch.tensor(2.0).double(), torch.tensor(3.0).double())
    y = torch.tensor([0.1, 0.5, 0.9]).double()
    probability = 1 - (1 - y**2) ** 3
    torch.testing.assert_close(fcal.standardize(law, y), torch.special.ndtri(probability))


def test_quantile_takes_one_probability_for_all():
    law = distributions.Normal(torch.zeros(3), torch.ones(3))
    expected = quantile(law, torch.full((3,), 0.95))
    torch.testing.assert_close(quantile(law, 0.95), expected)
    torch.testing.assert_close(quantile(law, torch.tensor(0.95)), expected)
    torch.testing.assert_close(quantile(law, 1.0, upper=1e-20), quantile(law, torch.ones(3), torch.full((3,), 1e-20)))


def test_family_with_a_misspelt_parameter_is_refused_by_name():
    register(Triangular, Family(parameters=("summit",), residual=lambda y, _: y))
    with pytest.raises(TypeError, match=r"expected `parameters` of the family attributes of Triangular, got .'summit'"):
        fcal.standardize(Triangular(torch.ones(2)), torch.ones(2))
