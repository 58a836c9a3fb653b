"""The distribution behind samples: its formulas against quadrature and SciPy, its honesty, and what it refuses."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate
from torch.distributions import Laplace, Normal, StudentT, Uniform

import fcal
from fcal.distributions import Empirical, QuantileLaw
from fcal.distributions.empirical import _ranks

SIZES = (3, 4, 10, 30, 100)


def _samples(count: int, rows: int = 4, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("count", SIZES)
def test_cdf_at_order_statistics_is_their_rank(count: int) -> None:
    samples = _samples(count)
    law, ordered = Empirical(samples), samples.sort(-1).values
    for rank in (1, count // 2 if count // 2 in _ranks(count) else 1, count):
        torch.testing.assert_close(law.cdf(ordered[:, rank - 1]), torch.full((4,), rank / (count + 1)).double())


@pytest.mark.parametrize("count", SIZES)
def test_ranks_are_symmetric_and_hold_the_extremes(count: int) -> None:
    ranks = _ranks(count)
    assert ranks[0] == 1
    assert ranks[-1] == count
    assert tuple(count + 1 - rank for rank in reversed(ranks)) == ranks


@pytest.mark.parametrize("count", SIZES)
def test_tails_have_the_pareto_quantiles(count: int) -> None:
    ordered = _samples(count).sort(-1).values.numpy()
    law = Empirical(torch.from_numpy(ordered))
    most = min(math.ceil(math.sqrt(count)), count - 1)
    scale = ordered[:, -most:].mean(-1) - ordered[:, -most - 1]
    for share in (0.1, 0.001):
        expected = ordered[:, -1] + most * scale * (share ** (-1 / most) - 1)
        found = fcal.distributions.quantile(law, 1 - share / (count + 1))
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("count", SIZES)
def test_density_integrates_to_the_cdf_and_the_moments(count: int) -> None:
    law = Empirical(_samples(count, rows=1)[0])
    nodes, weights = (torch.from_numpy(v) for v in np.polynomial.legendre.leggauss(60))
    knots, reach = law.values, law.values[-1] - law.values[0]
    far = reach * torch.tensor([0.1, 0.3, 0.7, 1.5, 4.0]).double()
    edges = torch.cat([knots[0] - far.flip(0), knots, knots[-1] + far])
    low, width = edges[:-1, None], edges.diff()[:, None]
    y = (low + width * (nodes + 1) / 2).reshape(-1)
    mass = (width * weights / 2).reshape(-1) * law.log_prob(y).exp()
    mean = (mass * y).sum()
    torch.testing.assert_close(mass.sum(), torch.ones(()).double(), rtol=0, atol=1e-10)
    torch.testing.assert_close(mass[y < knots[9]].sum(), law.cdf(knots[9]), rtol=0, atol=1e-10)
    torch.testing.assert_close(law.mean, mean, rtol=0, atol=1e-9)
    torch.testing.assert_close(law.variance, (mass * (y - mean).square()).sum(), rtol=1e-8, atol=0)


def test_crps_is_its_definition_by_quadrature() -> None:
    law, target = Empirical(_samples(10, rows=1)[0]), 0.4
    below = integrate.quad(lambda x: law.cdf(torch.tensor(x).double()).item() ** 2, -200, target, limit=400)[0]
    above = integrate.quad(lambda x: (1 - law.cdf(torch.tensor(x).double()).item()) ** 2, target, 200, limit=400)[0]
    found = fcal.crps(law, torch.tensor(target, dtype=torch.float64)).item()
    assert found == pytest.approx(below + above, rel=1e-6)


@pytest.mark.parametrize("count", SIZES)
def test_icdf_inverts_cdf_also_far_out(count: int) -> None:
    law = Empirical(_samples(count))
    for p in (1e-9, 0.01, 0.37, 0.5, 0.99, 1 - 1e-9):
        levels = torch.full((4,), p, dtype=torch.float64)
        torch.testing.assert_close(law.cdf(law.icdf(levels)), levels, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("target", [-1e30, -1e6, 0.0, 1e6, 1e30])
def test_log_density_is_finite_everywhere(target: float) -> None:
    law = Empirical(_samples(10))
    assert law.log_prob(torch.full((4,), target).double()).isfinite().all()
    assert fcal.nll(law, torch.full((4,), target).double()).isfinite().all()


def test_log_density_is_differentiable_in_samples_and_target() -> None:
    samples, target = _samples(7, rows=3).requires_grad_(), torch.tensor([0.1, 5.0, -7.0]).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda s, y: Empirical(s).log_prob(y), (samples, target))
    assert torch.autograd.gradcheck(lambda s, y: fcal.crps(Empirical(s), y), (samples, target))
    assert torch.autograd.gradcheck(lambda s: Empirical(s).mean, (samples,))


def test_order_shift_and_scale_of_samples() -> None:
    samples, target = _samples(12), torch.tensor([0.0, 0.5, 3.0, -4.0]).double()
    z = fcal.standardize(Empirical(samples), target)
    torch.testing.assert_close(fcal.standardize(Empirical(samples.flip(-1)), target), z)
    torch.testing.assert_close(fcal.standardize(Empirical(5e3 + 1e-3 * samples), 5e3 + 1e-3 * target), z)
    torch.testing.assert_close(fcal.standardize(Empirical(-samples), -target), -z)
    torch.testing.assert_close(fcal.standardize(Empirical(1e100 * samples), 1e100 * target), z)


LAWS = {
    "normal": Normal(0.0, 1.0),
    "uniform": Uniform(-1.0, 1.0),
    "laplace": Laplace(0.0, 1.0),
    "student-t": StudentT(4.0),
}
# Coverage of 50, 90 and 95 % intervals, each at most this far below and above, and bounds of the mean of z squared.
# Light tails are covered with something to spare; heavy ones fall short by at most 3 points.
HONEST = {10: (0.03, 0.08, 0.80, 1.10), 30: (0.025, 0.05, 0.88, 1.10), 100: (0.02, 0.03, 0.92, 1.08)}


@pytest.mark.parametrize("count", HONEST)
@pytest.mark.parametrize("name", LAWS)
def test_draws_of_the_same_law_are_covered(name: str, count: int) -> None:
    """The standard error of a coverage is below 0.0036 with 20,000 rows, that of the mean of z squared below 0.016.

    Bounds lie 3 standard errors or more beyond what 100,000 rows gave (experiments/samples), a false-alarm rate
    of less than 0.003 for each of them; the seed is fixed.
    """
    torch.manual_seed(count)
    samples, target = LAWS[name].sample((20_000, count)), LAWS[name].sample((20_000,))
    z = fcal.standardize(Empirical(samples), target).double()
    short, spare, least, most = HONEST[count]
    for level in (0.5, 0.9, 0.95):
        half = Normal(0.0, 1.0).icdf(torch.tensor((1 + level) / 2)).item()
        assert level - short <= (z.abs() < half).double().mean().item() <= level + spare, level
    assert least <= z.square().mean().item() <= most


def test_plain_empirical_quantiles_would_be_over_confident() -> None:
    """What the law corrects: 10 samples hold only 9 / 11 of the targets, not all of them."""
    torch.manual_seed(0)
    samples, target = torch.randn(20_000, 10), torch.randn(20_000)
    inside = ((target > samples.amin(-1)) & (target < samples.amax(-1))).double().mean().item()
    assert inside == pytest.approx(9 / 11, abs=0.012)  # 4.4 standard errors, a false alarm in 100,000 seeds
    law = Empirical(samples)
    assert (law.cdf(samples.amax(-1)) - law.cdf(samples.amin(-1))).mean().item() == pytest.approx(9 / 11, abs=1e-4)


def test_some_equal_samples_leave_a_finite_density() -> None:
    law = Empirical(torch.tensor([[0.0] * 28 + [1.0, 2.0]]))
    assert law.log_prob(torch.tensor([0.0])).isfinite().all()
    assert law.mean.item() == pytest.approx(0.1, abs=0.3)
    assert law.variance.isfinite().all()


def test_float32_samples_a_rounding_step_apart_are_read() -> None:
    samples = torch.tensor([[1000.0, 1000.0 + 6.2e-5, 1000.0 + 1.3e-4]])
    law = Empirical(samples)
    assert law.values.dtype == torch.float32
    assert (law.values.diff() > 0).all()
    assert law.log_prob(torch.tensor([1000.0])).isfinite().all()


def test_batches_selections_and_expansions_agree() -> None:
    samples, target = _samples(9, rows=6), torch.linspace(-2, 2, 6).double()
    law = Empirical(samples)
    whole = fcal.nll(law, target)
    rows = fcal.distributions.functional.index_select(law, torch.tensor([4, 1]))
    torch.testing.assert_close(fcal.nll(rows, target[[4, 1]]), whole[[4, 1]])
    assert isinstance(law.expand((2, 6)), QuantileLaw)
    assert Empirical(samples.reshape(2, 3, 9)).batch_shape == (2, 3)
    assert Empirical(samples).rsample((5,)).shape == (5, 6)


def test_many_rows_are_sorted_in_parts_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = _samples(10, rows=50)
    whole = Empirical(samples).values
    monkeypatch.setattr("fcal.distributions.empirical._MOST_NUMBERS", 64)
    torch.testing.assert_close(Empirical(samples).values, whole, rtol=0, atol=0)


@pytest.mark.parametrize("samples", [np.arange(6.0).reshape(2, 3), [[0, 1, 5], [3, 4, 6]]])
def test_arrays_of_other_libraries_are_read(samples: object) -> None:
    assert Empirical(samples).batch_shape == (2,)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (torch.zeros(4, 2), r"of shape \(\.\.\., S\) with S >= 3, got shape \(4, 2\); draw more"),
        (torch.zeros(()), r"got shape \(\)"),
        (torch.tensor([[0.0, 1.0, math.nan]]), "finite in every row, got 1 of 1 rows that are not; the first is row 0"),
        (torch.tensor([[0.0, 1.0, 2.0], [0.0, math.inf, 1.0]]), "the first is row 1: 0, inf, 1"),
        (torch.full((3, 5), 2.5), "differ in every row, got 3 of 3 rows"),
        (torch.tensor([[1e30, 2e30, 3e30]]), "another unit"),
        (torch.tensor([[1e-30, 2e-30, 3e-30]]), "another unit"),
    ],
)
def test_samples_without_a_law_are_refused(samples: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Empirical(samples)


def test_texts_and_integers_are_refused() -> None:
    with pytest.raises(TypeError, match="`samples` of numbers"):
        Empirical([["a", "b", "c"]])
    with pytest.raises(TypeError, match="floating"):
        Empirical(torch.ones(2, 3, dtype=torch.long))


@pytest.mark.parametrize("method", ["temperature", "isotonic", "conformal"])
def test_too_narrow_samples_can_be_repaired(method: str) -> None:
    torch.manual_seed(0)
    noise, centre = torch.randn(3000), torch.randn(3000)
    samples = centre[:, None] + 0.5 * torch.randn(3000, 20)
    law, target = Empirical(samples), centre + noise
    assert fcal.evaluate(law, target).verdict == "over-confident"
    repaired = fcal.recalibration.by_name(method)().fit(law, target).transform(law)
    z = fcal.standardize(repaired, target)
    assert (z.abs() < 1.645).double().mean().item() == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize("count", [10, 30])
def test_samples_that_are_counts_leave_room_beyond_the_outermost(count):
    """Rounded samples of a normal law: z of its targets has an sd of some 1, not of hundreds."""
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(4000, count, generator=generator).round()
    samples = samples[samples.amax(1) > samples.amin(1)]  # rows of equal samples are refused
    z = fcal.standardize(Empirical(samples), torch.randn(len(samples), generator=generator))
    assert z.square().mean().sqrt() < 2
