"""The MMD loss against the n x n definition."""

import math

import pytest
import torch
from fixed_draws import FixedDraws, learn
from torch.distributions import (
    Cauchy,
    Gumbel,
    Independent,
    Laplace,
    LogNormal,
    MultivariateNormal,
    Normal,
)

import fcal
from fcal.distributions import Family, register
from fcal.losses import MMDLoss, mmd

WIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)


@pytest.fixture(autouse=True)
def _family():
    learn()


def batch(n=60, spread=1.0):
    generator = torch.Generator().manual_seed(0)
    loc, error, noise = torch.randn(3, n, dtype=torch.float64, generator=generator)
    scale = spread * (torch.rand(n, dtype=torch.float64, generator=generator) + 0.5)
    return loc.requires_grad_(), scale.requires_grad_(), noise, loc.detach() + error


def by_pairs(y, drawn, widths, weight=None):
    """The definition, with every pair of values."""
    weight = torch.ones_like(y) if weight is None else weight
    share = weight / weight.sum()

    def mean_kernel(a, b):
        kernels = [torch.exp(-((a.unsqueeze(-1) - b) ** 2) / (2 * h * h)) for h in widths]
        return share @ (sum(kernels) / len(kernels)) @ share

    return mean_kernel(y, y) - 2 * mean_kernel(y, drawn) + mean_kernel(drawn, drawn)


def assert_same_with_gradients(found, expected, inputs, **tolerance):
    torch.testing.assert_close(found, expected, **tolerance)
    theirs = torch.autograd.grad(expected, inputs)
    for ours, theirs_ in zip(torch.autograd.grad(found, inputs), theirs, strict=True):
        torch.testing.assert_close(ours, theirs_, **tolerance)


@pytest.mark.parametrize("spread", [0.01, 1.0, 3.0, 30.0])
def test_loss_is_the_sum_over_pairs(spread):
    loc, scale, noise, y = batch(spread=spread)
    found = MMDLoss()(FixedDraws(loc, scale, noise), y)
    widths = [width * y.std(correction=0).item() for width in WIDTHS]
    expected = by_pairs(y, loc + scale * noise, widths)
    assert_same_with_gradients(found, expected, [loc, scale], rtol=1e-9, atol=1e-12)


def test_weights_count_targets_with_their_draws():
    loc, scale, noise, y = batch()
    weight = torch.rand(60, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 5
    found = MMDLoss(bandwidths=(0.7, 2.0), scale=1.3)(FixedDraws(loc, scale, noise), y, weight=weight)
    expected = by_pairs(y, loc + scale * noise, [0.7 * 1.3, 2.6], weight)
    assert_same_with_gradients(found, expected, [loc, scale], rtol=1e-9, atol=1e-12)


def test_whole_weights_are_repeated_rows():
    loc, scale, noise, y = batch()
    times = torch.arange(60) % 4
    found = MMDLoss()(FixedDraws(loc, scale, noise), y, weight=times)
    rows = [part.repeat_interleave(times) for part in (loc, scale, noise, y)]
    torch.testing.assert_close(found, MMDLoss()(FixedDraws(*rows[:3]), rows[3]), rtol=1e-9, atol=0)


def test_several_draws_share_the_weight_of_one():
    loc, scale, noise, y = batch()
    found = MMDLoss(draws=3, scale=1.0)(FixedDraws(loc, scale, noise), y)
    drawn = loc + scale * noise * torch.tensor([[1.0], [-1.5], [2.0]], dtype=torch.float64)
    values = torch.cat([y.repeat(3), drawn.reshape(-1)])
    signs = torch.cat([-torch.ones(180), torch.ones(180)]).double() / 180
    kernel = sum(torch.exp(-((values.unsqueeze(-1) - values) ** 2) / (2 * h * h)) for h in WIDTHS) / 5
    torch.testing.assert_close(found, signs @ kernel @ signs, rtol=1e-9, atol=1e-12)


def test_gradient_is_that_of_differences():
    loc, scale, noise, y = batch(12)
    criterion = MMDLoss(scale=1.0)
    assert torch.autograd.gradcheck(lambda a, b: criterion(FixedDraws(a, b, noise), y), (loc, scale))


def test_coordinates_of_vectors_are_compared_separately():
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(50, 2, dtype=torch.float64, generator=generator) * torch.tensor([1.0, 100.0])
    pred = MultivariateNormal(torch.zeros(50, 2).double(), torch.diag(torch.tensor([1.0, 1e4])).double())
    found = MMDLoss(generator=torch.Generator().manual_seed(3))(pred, y)
    torch.manual_seed(3)
    drawn = pred.rsample((1,))[0]
    widths = [[width * y[:, d].std(correction=0).item() for width in WIDTHS] for d in range(2)]
    expected = sum(by_pairs(y[:, d], drawn[:, d], widths[d]) for d in range(2)) / 2
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_independent_coordinates_count_as_scalars():
    y = torch.randn(40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    flat = Normal(torch.zeros(40, 3).double(), torch.ones(40, 3).double())
    alike = [MMDLoss(generator=torch.Generator().manual_seed(3))(pred, y) for pred in (flat, Independent(flat, 1))]
    torch.testing.assert_close(*alike)


def test_kernel_is_periodic_for_distant_values(monkeypatch):
    monkeypatch.setattr(mmd, "_MOST_FREQUENCIES", 40)
    loc, scale, noise, y = batch(20, spread=50.0)
    found = MMDLoss(bandwidths=(1.0,), scale=1.0)(FixedDraws(loc, scale, noise), y)
    period = 2 * math.pi * 39 / 7
    values = torch.cat([y, loc + scale * noise])
    signs = torch.cat([-torch.ones(20), torch.ones(20)]).double() / 20
    gap = values.unsqueeze(-1) - values
    kernel = sum(torch.exp(-((gap + k * period) ** 2) / 2) for k in range(-20, 21))
    torch.testing.assert_close(found, signs @ kernel @ signs, rtol=1e-8, atol=1e-10)
    assert found > 0


@pytest.mark.parametrize("family", [Laplace, Cauchy, Gumbel, LogNormal, fcal.distributions.Logistic])
def test_every_family_with_draws_has_a_finite_gradient(family):
    loc, scale, _, y = batch()
    pred = family(loc, scale)
    target = y.exp() if family is LogNormal else y
    loss = MMDLoss(generator=torch.Generator().manual_seed(0))(pred, target)
    for gradient in torch.autograd.grad(loss, [loc, scale]):
        assert torch.isfinite(gradient).all()
        assert gradient.any()


def test_generator_decides_and_the_default_one_is_left_alone():
    loc, scale, _, y = batch()
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first, again = (MMDLoss(generator=torch.Generator().manual_seed(5))(Normal(loc, scale), y) for _ in range(2))
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    torch.testing.assert_close(torch.get_rng_state(), before)
    generator = torch.Generator().manual_seed(5)
    criterion = MMDLoss(generator=generator)
    assert criterion(Normal(loc, scale), y) != criterion(Normal(loc, scale), y)


def test_equal_laws_score_within_the_bound_of_gretton_and_wrong_ones_above():
    # MMD <= sqrt(2 / n) (1 + sqrt(2 log 1/alpha)) for equal laws and 0 <= k <= 1: Gretton et al., JMLR 2012, Cor. 9.
    # With alpha = 1e-6 that is the false-alarm rate of this test.
    generator = torch.Generator().manual_seed(0)
    n = 4000
    y = torch.randn(n, dtype=torch.float64, generator=generator)
    bound = 2 / n * (1 + math.sqrt(2 * math.log(1e6))) ** 2
    scores = [
        MMDLoss(generator=generator)(Normal(torch.zeros(n).double(), factor * torch.ones(n).double()), y).item()
        for factor in (1.0, 1 / 3, 3.0)
    ]
    assert scores[0] < bound < min(scores[1:])


def test_bad_options_are_refused():
    for widths in ((0.0,), (-1.0, 1.0)):
        with pytest.raises(ValueError, match=r"expected `bandwidths` within \[0.001, 1000\], got"):
            MMDLoss(bandwidths=widths)
    with pytest.raises(TypeError, match=r"expected `bandwidths` a sequence of numbers, got \(\)"):
        MMDLoss(bandwidths=())
    with pytest.raises(ValueError, match="expected `scale` within"):
        MMDLoss(scale=0.0)
    with pytest.raises(ValueError, match="expected `draws` >= 1, got 0"):
        MMDLoss(draws=0)
    with pytest.raises(TypeError, match="expected `generator` a torch.Generator, got int"):
        MMDLoss(generator=3)


def test_equal_targets_need_a_scale():
    pred = Normal(torch.zeros(5), torch.ones(5))
    with pytest.raises(ValueError, match="expected `target` with two different values"):
        MMDLoss()(pred, torch.ones(5))
    assert torch.isfinite(MMDLoss(scale=1.0)(pred, torch.ones(5)))


def test_family_without_reparametrised_draws_is_refused():
    class Rough(Normal):
        has_rsample = False

    register(Rough, Family(parameters=("loc", "scale"), residual=lambda y, loc, scale: (y - loc) / scale))
    with pytest.raises(
        TypeError, match=r"expected `pred` with reparametrised draws \(rsample\) or quantiles, got Rough"
    ):
        MMDLoss()(Rough(torch.zeros(3), torch.ones(3)), torch.tensor([0.0, 1.0, 2.0]))


def test_family_without_rsample_draws_quantiles_of_uniform_numbers():
    class Rough(Normal):
        has_rsample = False

    register(Rough, fcal.distributions.location_scale.NORMAL)
    loc, scale, _, y = batch()
    found = MMDLoss(generator=torch.Generator().manual_seed(3), scale=1.0)(Rough(loc, scale), y)
    uniform = torch.rand(60, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    expected = by_pairs(y, loc + scale * torch.special.ndtri(uniform), WIDTHS)
    assert_same_with_gradients(found, expected, [loc, scale], rtol=1e-9, atol=1e-12)


def test_generator_on_another_device_is_refused():
    class Elsewhere:
        device = torch.device("cuda")

    criterion = MMDLoss()
    criterion.generator = Elsewhere()
    with pytest.raises(ValueError, match="expected `generator` on the device of `target`, cpu, got cuda"):
        criterion(Normal(torch.zeros(3), torch.ones(3)), torch.tensor([0.0, 1.0, 2.0]))


def test_infinite_draws_are_refused():
    pred = LogNormal(torch.full((3,), 800.0), torch.ones(3))
    with pytest.raises(ValueError, match="expected `pred` with finite draws, got inf"):
        MMDLoss()(pred, torch.tensor([1.0, 2.0, 3.0]))


@pytest.mark.parametrize("factor", [1e-200, 1e200])
def test_mmd_does_not_depend_on_the_unit(factor):
    torch.manual_seed(0)
    y, loc = torch.randn(50, dtype=torch.float64), torch.zeros(50, dtype=torch.float64)
    losses = [
        fcal.losses.MMDLoss(generator=torch.Generator().manual_seed(1))(Normal(unit * loc, unit * (loc + 1)), unit * y)
        for unit in (1.0, factor)
    ]
    torch.testing.assert_close(*losses, rtol=1e-9, atol=0)
