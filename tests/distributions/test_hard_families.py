"""Families without a closed-form CDF, over the whole range of their parameters: accuracy, no NaN, masks, mixtures."""

import math
import random
from functools import cache

import mpmath as mp
import numpy as np
import pytest
import torch
from distributions import accuracy
from references import REFERENCES
from scipy import stats
from torch import Tensor, distributions
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

import fcal
from fcal.distributions import (
    AsymmetricLaplace,
    TruncatedNormal,
    families,
    log_cdf,
    log_survival,
    quantile,
)
from fcal.residuals import unstandardize

QUANTITIES = ["z", "log_cdf", "log_survival", "quantile", "d z", "d log_cdf", "d log_survival", "d quantile"]
ROWS, POINTS = 14, 60  # of the whole grid, which experiments/family_accuracy walks
# df1 of FisherSnedecor(1e5, 0.5) hardly matters: a derivative of 5e-11 is the difference of two of 1e-5.
LOOSER = {("FisherSnedecor", title): 3e-6 for title in QUANTITIES if title.startswith("d ")}


@cache
def errors_of(name: str, dtype: torch.dtype) -> tuple[accuracy.Points, dict[str, Tensor]]:
    grid = accuracy.HARD[name]
    rows = grid.rows if len(grid.rows) <= ROWS else random.Random(name).sample(grid.rows, ROWS)
    z_values = accuracy.Z64 if dtype == torch.float64 else accuracy.Z32
    at = accuracy.chosen(accuracy.points(name, rows=rows, z_values=z_values, dtype=dtype), POINTS, seed=1)
    wanted = accuracy.expected(at, list(accuracy.exact_points(grid, at)))
    return at, accuracy.relative_errors(accuracy.measured(grid, at), wanted, at)


def assert_right(name: str, dtype: torch.dtype, quantity: str) -> None:
    at, errors = errors_of(name, dtype)
    error = errors[quantity].nan_to_num(0.0, posinf=math.inf).reshape(len(at.y), -1)
    worst = error.amax(1).argmax()
    where = f"{name}{tuple(at.parameters[worst].tolist())} at {at.y[worst].item()!r}: {error[worst].tolist()}"
    assert error.max() <= LOOSER.get((name, quantity), 1e-6), where


@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("name", accuracy.HARD)
def test_hard_family_is_right_to_1e_6_over_its_whole_range(name, quantity):
    assert_right(name, torch.float64, quantity)


@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("name", [name for name in accuracy.HARD if name != "TruncatedNormal"])
def test_hard_family_in_float32_is_right_to_1e_6_up_to_12_sigma(name, quantity):
    assert_right(name, torch.float32, quantity)


# Sweeps

COUNT = 100_000


def log_uniform(low: float, high: float, count: int) -> Tensor:
    return torch.exp(math.log(low) + (math.log(high) - math.log(low)) * torch.rand(count, dtype=torch.float64))


def uniform(low: float, high: float, count: int) -> Tensor:
    return low + (high - low) * torch.rand(count, dtype=torch.float64)


SWEEPS = {
    "StudentT": (
        distributions.StudentT,
        lambda n: (log_uniform(0.5, 1e5, n), uniform(-1, 1, n), log_uniform(1e-3, 1e3, n)),
    ),
    "Gamma": (distributions.Gamma, lambda n: (log_uniform(0.05, 1e4, n), log_uniform(1e-3, 1e3, n))),
    "Chi2": (distributions.Chi2, lambda n: (log_uniform(0.5, 1e5, n),)),
    "InverseGamma": (distributions.InverseGamma, lambda n: (log_uniform(0.05, 1e4, n), log_uniform(1e-3, 1e3, n))),
    "Beta": (distributions.Beta, lambda n: (log_uniform(0.05, 1e4, n), log_uniform(0.05, 1e4, n))),
    "FisherSnedecor": (distributions.FisherSnedecor, lambda n: (log_uniform(0.5, 1e5, n), log_uniform(0.5, 1e5, n))),
    "GeneralizedPareto": (
        distributions.GeneralizedPareto,
        lambda n: (uniform(-1, 1, n), log_uniform(1e-3, 1e3, n), uniform(-0.9, 3.0, n)),
    ),
    "AsymmetricLaplace": (
        AsymmetricLaplace,
        lambda n: (uniform(-1, 1, n), log_uniform(1e-3, 1e3, n), log_uniform(0.05, 20.0, n)),
    ),
    "TruncatedNormal": (
        TruncatedNormal,
        lambda n: (uniform(-30, 30, n), log_uniform(0.5, 1e4, n), uniform(-2, 0, n), uniform(1e-3, 2, n)),
    ),
}


def interior(name: str, parameters: list[Tensor]) -> tuple[Tensor | float, Tensor | float]:
    """Bounds of the support."""
    if name == "GeneralizedPareto":
        loc, scale, concentration = parameters
        end = loc - scale / concentration  # less what its own rounding may be
        return loc, torch.where(concentration < 0, end - 4e-16 * (end.abs() + loc.abs()), math.inf)
    if name == "TruncatedNormal":
        return parameters[2], parameters[3]
    if name in ("StudentT", "AsymmetricLaplace"):
        return -math.inf, math.inf
    return 0.0, 1.0 if name == "Beta" else math.inf


def ulp(x: Tensor) -> Tensor:
    return torch.nextafter(x.abs(), torch.tensor(math.inf, dtype=x.dtype)) - x.abs()


@pytest.mark.parametrize("name", SWEEPS)
def test_round_trip_over_random_parameters_and_tails_is_finite_and_close(name):
    torch.manual_seed(0)
    kind, draw = SWEEPS[name]
    parameters = [p.requires_grad_() for p in draw(COUNT)]
    z = uniform(-37, 37, COUNT)
    y = unstandardize(kind(*parameters, validate_args=False), z)
    assert not y.isnan().any()
    by_quantile = torch.autograd.grad(y[y.isfinite()].sum(), parameters)
    low, high = interior(name, parameters)
    # derivatives overflow next to the largest number; subnormal y has few digits
    inside = (y > low) & (y < high) & (y.abs() > torch.finfo(y.dtype).tiny) & (y.abs() < 1e300)
    assert inside.sum() > COUNT / 5
    assert all(slope[inside].isfinite().all() for slope in by_quantile)
    chosen = [p.detach()[inside].requires_grad_() for p in parameters]
    target = y.detach()[inside].requires_grad_()
    for function in (log_cdf, log_survival, fcal.nll, fcal.standardize):
        value = function(kind(*chosen, validate_args=False), target)
        assert value.isfinite().all()
        slopes = torch.autograd.grad(value.sum(), [target, *chosen])
        assert all(slope.isfinite().all() for slope in slopes)
    # y comes out of a few roundings of itself or of the location it is added to, which move z by dz/dy times as much
    added = chosen[{"StudentT": 1, "GeneralizedPareto": 0, "AsymmetricLaplace": 0}.get(name, -1)].detach()
    rounding = ulp(target.detach())
    if name in ("StudentT", "GeneralizedPareto", "AsymmetricLaplace"):
        rounding = torch.maximum(rounding, ulp(added))
    close = 1e-8 * (1 + z[inside].abs()) + 8 * rounding * slopes[0].abs()
    assert ((value - z[inside]).abs() <= close).all()


SWITCHES = [
    *(("StudentT", (df, 0.0, 1.0), r * math.sqrt(df)) for df in (0.5, 4.9, 5.1, 1e5) for r in (0.1, -1.0)),
    *(("Gamma", (a, 1.0), a) for a in (0.05, 0.99, 1.01, 11.9, 12.1, 99.0, 101.0, 1e4)),
    *(("InverseGamma", (a, 1.0), 1 / a) for a in (0.05, 11.9, 12.1, 1e4)),
    *(("Beta", (a, b), a / (a + b)) for a in (0.3, 4.9, 5.1, 1e4) for b in (0.99, 5.1, 1e3)),
    *(("Beta", (a, b), 0.5) for a, b in ((0.3, 0.3), (4.9, 0.99), (4.9, 4.9))),
    *(("GeneralizedPareto", (0.0, 1.0, k), 0.1 / abs(k)) for k in (-0.5, 0.5)),
    ("GeneralizedPareto", (0.0, 1.0, -0.5), 1.5),
    ("AsymmetricLaplace", (0.0, 1.0, 3.0), 0.0),
    ("TruncatedNormal", (0.3, 1.7, 0.0, 2.5), 1.0),
]


@pytest.mark.parametrize(("name", "parameters", "y"), SWITCHES)
def test_residual_rises_without_a_jump_where_the_formula_changes(name, parameters, y):
    kind = REFERENCES[name].kind
    law = kind(*(torch.tensor(p, dtype=torch.float64) for p in parameters))
    center = torch.tensor(y, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(fcal.standardize(law, center), [center])
    steps = torch.arange(-200, 201, dtype=torch.float64) * 1e-6 / slope
    grid = center.detach() + steps
    rises = fcal.standardize(law, grid).diff() / (slope * grid.diff())  # the grid rounds too
    torch.testing.assert_close(rises, torch.ones_like(rises), rtol=0.02, atol=0)


@pytest.mark.parametrize("name", [name for name in accuracy.HARD if not name.startswith("mixture")])
def test_residual_rises_over_all_values(name):
    for row in accuracy.HARD[name].rows[:: max(1, len(accuracy.HARD[name].rows) // 12)]:
        law = accuracy.HARD[name].reference.kind(*(torch.tensor(p, dtype=torch.float64) for p in row))
        y = unstandardize(law.expand((3001,)), torch.linspace(-8, 8, 3001, dtype=torch.float64))
        y = y[y.isfinite()].unique()
        ends = fcal.standardize(law, y[1:-1])
        assert (ends.diff() > 0).all()


# Masks, missing targets, shapes


def several(name: str, count: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [torch.full((count,), p, dtype=dtype) for p in REFERENCES[name].parameters]


NEW = list(REFERENCES)[list(REFERENCES).index("StudentT") :]


@pytest.mark.parametrize("name", NEW)
def test_missing_and_masked_targets_of_hard_families_leave_the_others_alone(name):
    torch.manual_seed(0)
    reference = REFERENCES[name]
    parameters = [p.requires_grad_() for p in several(name, 12)]
    y = unstandardize(reference.kind(*parameters), torch.randn(12, dtype=torch.float64)).detach()
    holed, keep = y.clone(), torch.ones(12, dtype=torch.bool)
    holed[3] = math.nan
    keep[5] = False
    found = fcal.standardize(reference.kind(*parameters), holed, valid_mask=keep)
    valid = keep & ~holed.isnan()
    assert found[~valid].isnan().all()
    torch.testing.assert_close(found[valid], fcal.standardize(reference.kind(*parameters), y)[valid])
    loss = fcal.FCalLoss(df=2)(reference.kind(*parameters), holed, valid_mask=keep)
    slopes = torch.autograd.grad(loss, parameters)
    assert all(slope.isfinite().all() and not slope[~valid].any() for slope in slopes)
    alone = fcal.FCalLoss(df=2)(reference.kind(*(p[valid] for p in parameters)), y[valid])
    torch.testing.assert_close(loss, alone)


# torch builds a FisherSnedecor from Gammas that it validates, whatever it is told
@pytest.mark.parametrize("name", [name for name in NEW if name != "FisherSnedecor"])
def test_bad_parameters_behind_a_mask_do_not_matter(name):
    reference = REFERENCES[name]
    parameters = several(name, 4)
    y = unstandardize(reference.kind(*parameters), torch.tensor([-1.0, 0.2, 0.4, 2.0], dtype=torch.float64))
    expected = fcal.standardize(reference.kind(*parameters), y)
    hole = 1 if name == "StudentT" else 0  # its df is validated in the same way
    parameters[hole][2] = math.nan
    keep = torch.tensor([True, True, False, True])
    with_hole = [p.clone() for p in parameters]
    if name.startswith("mixture"):
        law = unchecked_mixture(*with_hole[:2], kind_of(name), with_hole[2:])
    else:
        law = reference.kind(*with_hole, validate_args=False)
    torch.testing.assert_close(fcal.standardize(law, y, valid_mask=keep)[keep], expected[keep])


def kind_of(name: str) -> type[distributions.Distribution]:
    return getattr(distributions, name.removeprefix("mixture of "))


def unchecked_mixture(first: Tensor, second: Tensor, kind, flat: list[Tensor]) -> MixtureSameFamily:
    weights = Categorical(logits=torch.stack([first, second], -1), validate_args=False)
    stacked = [torch.stack(flat[k : k + 2], -1) for k in range(0, len(flat), 2)]
    return MixtureSameFamily(weights, kind(*stacked, validate_args=False), validate_args=False)


# Mixtures


def components(kind, parameters: tuple[float, ...], count: int = 3, rows: int = 5) -> distributions.Distribution:
    """Distributions close to a given one."""
    near = 1 + 0.1 * torch.arange(rows * count, dtype=torch.float64).reshape(rows, count) / count
    return kind(*(p * near for p in parameters))


SCALAR = {
    name: reference
    for name, reference in REFERENCES.items()
    if not name.startswith("mixture")  # a mixture of mixtures is refused
}


def test_every_registered_scalar_family_is_in_the_mixtures_test():
    vectors = {"MultivariateNormal", "LowRankMultivariateNormal"}
    others = {"Triangular", "Odd", "Kumaraswamy"}  # registered by other tests and examples
    assert set(families()) - vectors - others <= set(SCALAR)


@pytest.mark.parametrize("name", SCALAR)
def test_mixture_of_any_scalar_family_agrees_with_torch_and_goes_round(name):
    torch.manual_seed(0)
    law = MixtureSameFamily(
        Categorical(logits=torch.randn(5, 3, dtype=torch.float64)),
        components(SCALAR[name].kind, SCALAR[name].parameters),
    )
    y = law.sample()
    z = fcal.standardize(law, y)
    torch.testing.assert_close(unstandardize(law, z), y, rtol=1e-9, atol=1e-9)
    if name == "GeneralizedPareto":  # torch's own log_prob is for float32 only
        base = components(SCALAR[name].kind, SCALAR[name].parameters)
        parts = stats.genpareto.logpdf(y.unsqueeze(-1), base.concentration, base.loc, base.scale)
        expected = torch.logsumexp(torch.tensor(parts) + law.mixture_distribution.logits, -1)
    else:
        expected = law.log_prob(y)
    torch.testing.assert_close(fcal.nll(law, y), -expected)
    torch.testing.assert_close(torch.exp(log_cdf(law, y)) + torch.exp(log_survival(law, y)), torch.ones(5).double())
    torch.testing.assert_close(quantile(law, torch.exp(log_cdf(law, y))), y, rtol=1e-9, atol=1e-9)


def test_mixture_of_one_component_is_that_component():
    base = distributions.StudentT(torch.full((4, 1), 3.0).double(), torch.zeros(4, 1).double())
    y = torch.tensor([-30.0, -0.1, 0.3, 200.0]).double()
    law = MixtureSameFamily(Categorical(logits=torch.zeros(4, 1).double()), base)
    alone = distributions.StudentT(torch.full((4,), 3.0).double())
    for function in (fcal.standardize, log_cdf, log_survival, fcal.nll):
        torch.testing.assert_close(function(law, y), function(alone, y), rtol=1e-9, atol=1e-300)


def test_shared_weights_equal_repeated_ones():
    torch.manual_seed(0)
    loc, scale = torch.randn(6, 3).double(), torch.rand(6, 3).double() + 0.5
    logits = torch.randn(3).double().requires_grad_()
    y = torch.randn(6).double()
    shared = MixtureSameFamily(Categorical(logits=logits.expand(6, 3)), Normal(loc, scale))
    repeated = MixtureSameFamily(Categorical(logits=logits.detach().expand(6, 3).clone()), Normal(loc, scale))
    torch.testing.assert_close(fcal.standardize(shared, y), fcal.standardize(repeated, y))
    (slope,) = torch.autograd.grad(fcal.standardize(shared, y).sum(), [logits])
    assert slope.shape == (3,)
    torch.testing.assert_close(slope.sum(), torch.zeros(()).double(), atol=1e-12, rtol=0)  # a common shift does nothing


def test_one_mixture_of_shape_k_serves_many_targets():
    torch.manual_seed(0)
    law = MixtureSameFamily(
        Categorical(logits=torch.randn(3).double()), Normal(torch.randn(3).double(), torch.ones(3).double())
    )
    y = torch.randn(6).double()
    many = MixtureSameFamily(
        Categorical(logits=law.mixture_distribution.logits.expand(6, 3)),
        Normal(law.component_distribution.loc.expand(6, 3), law.component_distribution.scale.expand(6, 3)),
    )
    torch.testing.assert_close(fcal.standardize(law, y), fcal.standardize(many, y))


def test_independent_mixture_is_the_mixture():
    torch.manual_seed(0)
    law = MixtureSameFamily(
        Categorical(logits=torch.randn(4, 2, 3)), distributions.Gamma(torch.rand(4, 2, 3) + 1, torch.rand(4, 2, 3) + 1)
    )
    y = law.sample()
    whole = Independent(law, 1)
    torch.testing.assert_close(fcal.standardize(whole, y), fcal.standardize(law, y))
    torch.testing.assert_close(fcal.nll(whole, y), fcal.nll(law, y).sum(-1))


def test_mixture_of_uniforms_with_different_supports_has_flat_and_steep_parts():
    low, high = torch.tensor([0.0, 2.0], dtype=torch.float64), torch.tensor([1.0, 3.0], dtype=torch.float64)
    law = MixtureSameFamily(
        Categorical(logits=torch.zeros(2).double()), distributions.Uniform(low, high, validate_args=False)
    )
    y = torch.tensor([0.2, 0.9, 2.5, 2.999], dtype=torch.float64)
    probability = torch.tensor([0.1, 0.45, 0.75, 0.9995], dtype=torch.float64)
    torch.testing.assert_close(torch.exp(log_cdf(law, y)), probability)
    torch.testing.assert_close(torch.exp(log_survival(law, y)), 1 - probability)
    torch.testing.assert_close(fcal.standardize(law, y), torch.special.ndtri(probability))
    torch.testing.assert_close(quantile(law, probability), y)
    torch.testing.assert_close(fcal.nll(law, y), torch.full((4,), math.log(2)).double())
    with pytest.raises(ValueError, match="possible under MixtureSameFamily, got 1.5"):
        fcal.standardize(law, torch.tensor([0.5, 1.5]).double())


def test_mixture_of_truncated_normals_with_different_supports_has_finite_slopes():
    parameters = [
        torch.tensor(row, dtype=torch.float64, requires_grad=True)
        for row in ([0.0, 4.0], [1.0, 2.0], [-1.0, 2.0], [1.0, math.inf])
    ]
    logits = torch.tensor([0.3, -0.2], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([-0.99, 0.0, 0.999, 2.001, 30.0], dtype=torch.float64)

    def law() -> MixtureSameFamily:
        return MixtureSameFamily(Categorical(logits=logits), TruncatedNormal(*parameters, validate_args=False))

    first, second = stats.truncnorm(-1, 1), stats.truncnorm(-1, np.inf, loc=4, scale=2)
    weight = torch.softmax(logits, 0).tolist()
    expected = weight[0] * first.cdf(y.numpy()) + weight[1] * second.cdf(y.numpy())
    torch.testing.assert_close(torch.exp(log_cdf(law(), y)), torch.tensor(expected), rtol=1e-9, atol=0)
    z = torch.linspace(-6, 6, 5, dtype=torch.float64)
    for value in (fcal.standardize(law(), y), fcal.nll(law(), y), unstandardize(law(), z)):
        assert value.isfinite().all()
        assert all(g.isfinite().all() for g in torch.autograd.grad(value.sum(), [logits, *parameters]))


BAD = {
    "component_distribution.scale": lambda: MixtureSameFamily(
        Categorical(logits=torch.zeros(3, 2)),
        Normal(torch.zeros(3, 2), -torch.ones(3, 2), validate_args=False),
        validate_args=False,
    ),
    "component_distribution.loc": lambda: MixtureSameFamily(
        Categorical(logits=torch.zeros(3, 2)),
        Normal(torch.full((3, 2), math.nan), torch.ones(3, 2), validate_args=False),
        validate_args=False,
    ),
    "mixture_distribution.logits": lambda: MixtureSameFamily(
        Categorical(logits=torch.full((3, 2), math.nan), validate_args=False),
        Normal(torch.zeros(3, 2), torch.ones(3, 2)),
        validate_args=False,
    ),
    "scale": lambda: distributions.StudentT(torch.ones(3), torch.zeros(3), torch.zeros(3), validate_args=False),
    "concentration": lambda: distributions.Gamma(torch.zeros(3), torch.ones(3), validate_args=False),
    "concentration0": lambda: distributions.Beta(torch.ones(3), -torch.ones(3), validate_args=False),
    "rate": lambda: distributions.InverseGamma(torch.ones(3), torch.full((3,), math.inf), validate_args=False),
    "asymmetry": lambda: AsymmetricLaplace(torch.zeros(3), torch.ones(3), torch.zeros(3), validate_args=False),
    "high": lambda: TruncatedNormal(torch.zeros(3), torch.ones(3), torch.ones(3), torch.zeros(3), validate_args=False),
    "low": lambda: TruncatedNormal(
        torch.zeros(3), torch.ones(3), torch.full((3,), math.nan), torch.ones(3), validate_args=False
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_parameters_of_hard_families_are_refused_by_name(name):
    for function in (fcal.standardize, fcal.nll, log_cdf):
        with pytest.raises(ValueError, match=f"expected `pred.{name}`"):
            function(BAD[name](), torch.full((3,), 0.5))


def test_mixture_of_vectors_is_refused():
    law = MixtureSameFamily(
        Categorical(logits=torch.zeros(3, 2)), distributions.MultivariateNormal(torch.zeros(3, 2, 2), torch.eye(2))
    )
    with pytest.raises(TypeError, match="`pred.component_distribution` of a scalar, registered family, got Multi"):
        fcal.standardize(law, torch.zeros(3, 2))


@pytest.mark.parametrize("low", [-math.inf, -0.5])
@pytest.mark.parametrize("high", [math.inf, 1.5])
def test_truncated_normal_with_infinite_bounds_has_finite_slopes_for_the_rest(low, high):
    parameters = [torch.full((4,), v, dtype=torch.float64, requires_grad=True) for v in (0.3, 1.7, low, high)]
    z = torch.tensor([-3.0, -0.2, 0.4, 5.0], dtype=torch.float64)
    y = unstandardize(TruncatedNormal(*parameters), z)
    values = [y, fcal.standardize(TruncatedNormal(*parameters), y.detach())]
    values += [fcal.nll(TruncatedNormal(*parameters), y.detach()), TruncatedNormal(*parameters).mean]
    values += [TruncatedNormal(*parameters).variance]
    torch.testing.assert_close(values[1], z, rtol=1e-9, atol=1e-9)
    for value in values:
        assert all(g.isfinite().all() for g in torch.autograd.grad(value.sum(), parameters))


# torch.compile

COMPILED = {
    "StudentT": lambda a, b: distributions.StudentT(a + 2, b, a, validate_args=False),
    "Gamma": lambda a, b: distributions.Gamma(a, b.exp(), validate_args=False),
    "Beta": lambda a, b: distributions.Beta(a, a + b.exp(), validate_args=False),
    "mixture of Normal": lambda a, b: MixtureSameFamily(
        Categorical(logits=torch.stack([b, -b], -1), validate_args=False),
        Normal(torch.stack([b, b + 1], -1), torch.stack([a, 2 * a], -1), validate_args=False),
        validate_args=False,
    ),
}


@pytest.mark.usefixtures("_without_validation")
@pytest.mark.parametrize("name", COMPILED)
def test_loss_of_a_hard_family_compiles_as_a_whole(name):
    torch._dynamo.reset()
    torch.manual_seed(0)
    a, b = (torch.rand(64) + 0.5).requires_grad_(), (0.3 * torch.randn(64)).requires_grad_()
    y = COMPILED[name](a, b).sample().clamp(1e-3, 1 - 1e-3)

    def loss(a: Tensor, b: Tensor) -> Tensor:
        return fcal.FCalLoss("kl")(COMPILED[name](a, b), y)

    expected = loss(a, b)
    found = torch.compile(loss, backend="aot_eager", fullgraph=True)(a, b)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    slopes = (torch.autograd.grad(value, [a, b]) for value in (found, expected))
    for ours, theirs in zip(*slopes, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


# The two classes that torch lacks

CLASSES = {
    f"AsymmetricLaplace {k}": (
        AsymmetricLaplace(*(torch.tensor(v, dtype=torch.float64) for v in (0.4, 1.3, k))),
        stats.laplace_asymmetric(k, loc=0.4, scale=1.3),
    )
    for k in (0.3, 1.0, 2.5)
} | {
    f"TruncatedNormal {low} {high}": (
        TruncatedNormal(*(torch.tensor(v, dtype=torch.float64) for v in (0.4, 1.3, low, high))),
        stats.truncnorm((low - 0.4) / 1.3, (high - 0.4) / 1.3, loc=0.4, scale=1.3),
    )
    for low, high in ((-1.0, 2.0), (-np.inf, 1.0), (0.0, np.inf), (3.0, 3.4), (-9.0, -6.0))
}


@pytest.mark.parametrize("name", CLASSES)
def test_class_agrees_with_scipy(name):
    law, theirs = CLASSES[name]
    low, high = theirs.support()
    y = np.linspace(max(low, -3.0), min(high, 4.0), 41)[1:-1] if high > -3 else theirs.ppf([0.1, 0.6])
    value, p = torch.tensor(y), np.linspace(0.01, 0.99, 25)
    np.testing.assert_allclose(law.log_prob(value).numpy(), theirs.logpdf(y), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(law.cdf(value).numpy(), theirs.cdf(y), rtol=1e-9)
    np.testing.assert_allclose(law.icdf(torch.tensor(p)).numpy(), theirs.ppf(p), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(law.mean.item(), theirs.mean(), rtol=1e-9)
    np.testing.assert_allclose(law.variance.item(), theirs.var(), rtol=1e-7)
    np.testing.assert_allclose(law.stddev.item(), theirs.std(), rtol=1e-7)
    if isinstance(law, AsymmetricLaplace):
        np.testing.assert_allclose(law.entropy().item(), theirs.entropy(), rtol=1e-9)
        np.testing.assert_allclose(law.mode.item(), 0.4)


@pytest.mark.parametrize("name", CLASSES)
def test_class_draws_from_its_own_law(name):
    # Kolmogorov-Smirnov on 2,000 draws; the false-alarm rate is 1e-4 per distribution
    torch.manual_seed(0)
    law, theirs = CLASSES[name]
    assert stats.kstest(law.sample((2000,)).numpy(), theirs.cdf).pvalue > 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [AsymmetricLaplace, TruncatedNormal])
def test_class_expands_and_keeps_its_dtype(kind, dtype):
    parameters = [torch.tensor(v, dtype=dtype) for v in ((0.1, 1.0, 2.0) + ((3.0,) if kind is TruncatedNormal else ()))]
    law = kind(*parameters)
    large = law.expand((4, 2))
    assert large.batch_shape == (4, 2)
    assert large.sample((3,)).shape == (3, 4, 2)
    assert large.sample().dtype == large.mean.dtype == large.variance.dtype == dtype
    y = torch.full((4, 2), 2.5, dtype=dtype)
    torch.testing.assert_close(large.log_prob(y), law.log_prob(y[0, 0]).expand(4, 2))
    torch.testing.assert_close(large.cdf(y), law.cdf(y[0, 0]).expand(4, 2))
    torch.testing.assert_close(large.mean, law.mean.expand(4, 2))


@pytest.mark.parametrize("kind", [AsymmetricLaplace, TruncatedNormal])
def test_class_draws_are_differentiable(kind):
    # the sample is the quantile of a fixed uniform number: its derivative with respect to loc is 1 without truncation
    loc = torch.zeros(100, dtype=torch.float64, requires_grad=True)
    rest = (1.0, 2.0) if kind is AsymmetricLaplace else (1.0, -50.0, 50.0)
    torch.manual_seed(0)
    draws = kind(loc, *(torch.full((100,), v, dtype=torch.float64) for v in rest)).rsample()
    (slope,) = torch.autograd.grad(draws.sum(), [loc])
    torch.testing.assert_close(slope, torch.ones_like(slope))


def test_truncated_normal_moments_hold_in_float32_and_for_a_nearly_uniform_law():
    law = TruncatedNormal(*(torch.tensor(v) for v in (0.4, 1e4, 0.0, 1.0)))
    assert law.mean.item() == pytest.approx(0.5, rel=1e-6)
    assert law.variance.item() == pytest.approx(1 / 12, rel=1e-6)


@pytest.mark.parametrize("loc", [-1e6, -1e3, -20.0, 0.4, 30.0, 1e3, 1e6])
@pytest.mark.parametrize("high", [1.0, math.inf])
def test_truncated_normal_moments_hold_far_outside_the_bounds(loc, high):
    law = TruncatedNormal(*(torch.tensor(v, dtype=torch.float64) for v in (loc, 1.0, 0.0, high)))
    with mp.workdps(30):
        mode = min(max(loc, 0.0), high)
        reach = 60 / (abs(mode - loc) + 3)  # far enough in either direction
        cuts = [max(0.0, mode - reach), mode, min(high, mode + reach)]
        weigh = [
            mp.quad(
                lambda x, k=k: (x - mode) ** k * mp.exp(-((x - loc) ** 2 - (mode - loc) ** 2) / 2), sorted(set(cuts))
            )
            for k in range(3)
        ]
        mean, square = weigh[1] / weigh[0], weigh[2] / weigh[0]
        assert law.mean.item() == pytest.approx(float(mode + mean), rel=1e-10)
        assert law.variance.item() == pytest.approx(float(square - mean**2), rel=1e-8)


@pytest.mark.parametrize(("scale", "high", "y"), [(1e-8, 1.0, 0.1), (1.0, math.inf, 1e10), (1e-3, 1.0, 0.9)])
def test_truncated_normal_slopes_hold_where_the_bounds_do_not_matter(scale, high, y):
    # so far out in the tail of a distribution that is hardly truncated, z is (y - loc) / scale
    loc = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    law = TruncatedNormal(loc, *(torch.tensor(v, dtype=torch.float64) for v in (scale, 0.0, high)))
    (slope,) = torch.autograd.grad(fcal.standardize(law, torch.tensor(y, dtype=torch.float64)), loc)
    assert slope.item() == pytest.approx(-1 / scale, rel=1e-6)


def test_truncated_normal_at_and_beyond_its_ends():
    law = TruncatedNormal(*map(torch.tensor, (0.0, 1.0, 0.0, 1.0)), validate_args=False)
    assert law.icdf(torch.tensor([0.0, 1.0])).tolist() == [0.0, 1.0]
    assert law.icdf(torch.tensor(2.0)).isnan()
    assert law.cdf(torch.tensor([-1.0, 0.0, 1.0, 2.0])).tolist() == [0.0, 0.0, 1.0, 1.0]
    assert law.log_prob(torch.tensor([-1.0, 2.0])).tolist() == [-math.inf, -math.inf]
    half_line = TruncatedNormal(*map(torch.tensor, (0.0, 1.0, 0.0, math.inf)))
    assert half_line.icdf(torch.tensor([0.0, 1.0])).tolist() == [0.0, math.inf]


def test_fisher_law_of_many_degrees_of_freedom_is_the_limit():
    # as df1 grows, df2 / y is chi-squared with df2 degrees of freedom
    df2, y = torch.tensor(3.0, dtype=torch.float64), torch.tensor(0.9, dtype=torch.float64)
    expected = log_survival(distributions.Chi2(df2), df2 / y)
    for df1 in (1e12, 1e16, 1e30):
        law = distributions.FisherSnedecor(torch.tensor(df1, dtype=torch.float64), df2)
        torch.testing.assert_close(log_cdf(law, y), expected, rtol=1e-7, atol=0)


def test_beta_law_of_immense_shapes_is_refused():
    law = distributions.Beta(torch.tensor(1e20), torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"expected `pred.concentration1` within \[1e-300, 1e\+09\], got 1e\+20"):
        log_cdf(law, torch.tensor(0.9))


def test_truncated_normal_with_crossed_bounds_is_refused():
    with pytest.raises(ValueError, match="expected `low` < `high`"):
        TruncatedNormal(torch.zeros(2), torch.ones(2), torch.ones(2), torch.zeros(2), validate_args=True)


def test_quantiles_of_a_mixture_with_a_narrow_mode_go_back_to_their_probabilities():
    """Newton's steps from one side of the narrow mode to the other must not go on for ever."""
    weights = torch.tensor([0.0157, 0.2974, 0.2869, 0.2168, 0.1832], dtype=torch.float64)
    locs = torch.tensor([4.8422, 0.1881, 4.7892, 6.1144, 5.8203], dtype=torch.float64)
    scales = torch.tensor([1.9057, 0.5074, 1.2066, 0.2466, 1.7875], dtype=torch.float64)
    levels = torch.linspace(0.0005, 0.9995, 2000, dtype=torch.float64)
    law = MixtureSameFamily(Categorical(weights), Normal(locs, scales)).expand(levels.shape)
    torch.testing.assert_close(law.cdf(fcal.distributions.quantile(law, levels)), levels, rtol=0, atol=1e-12)
