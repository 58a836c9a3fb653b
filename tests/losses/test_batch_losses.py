"""Properties of all losses of a whole batch: masks, dtypes, memory, refusals, and a minimum at the right scale."""

import pickle

import pytest
import torch
from fixed_draws import FixedDraws, learn
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fcal.losses import CombinedLoss, CRPSLoss, EnergyLoss, MMDLoss, NLLLoss, PCELoss, QuantileRecalibrationLoss

LOSSES = {
    "mmd": lambda: MMDLoss(generator=torch.Generator().manual_seed(0)),
    "pce_kde": PCELoss,
    "pce_sort": lambda: PCELoss("sort"),
    "qrt": QuantileRecalibrationLoss,
    "energy": lambda: EnergyLoss(generator=torch.Generator().manual_seed(0)),
    "crps": CRPSLoss,
}
every_loss = pytest.mark.parametrize("make", LOSSES.values(), ids=LOSSES)


@pytest.fixture(autouse=True)
def _family():
    learn()


def batch(n=30):
    generator = torch.Generator().manual_seed(0)
    loc, noise, y = torch.randn(3, n, dtype=torch.float64, generator=generator)
    scale = torch.rand(n, dtype=torch.float64, generator=generator) + 0.5
    return loc.requires_grad_(), scale.requires_grad_(), noise, y


@pytest.mark.parametrize("how", ["mask", "nan", "weight"])
@every_loss
def test_missing_targets_are_rows_that_were_dropped(make, how):
    loc, scale, noise, y = batch()
    keep = torch.arange(30) % 3 > 0
    expected = make()(FixedDraws(loc[keep], scale[keep], noise[keep]), y[keep])
    broken = torch.where(keep, y, torch.nan if how == "nan" else 1e30)
    beside = {"mask": {"valid_mask": keep}, "nan": {}, "weight": {"weight": keep.double()}}[how]
    found = make()(FixedDraws(loc, scale, noise), broken, **beside)
    torch.testing.assert_close(found, expected)
    gradients = torch.autograd.grad(found, [loc, scale])
    for ours, theirs in zip(gradients, torch.autograd.grad(expected, [loc, scale]), strict=True):
        torch.testing.assert_close(ours, theirs)
        assert not ours[~keep].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@every_loss
def test_result_has_the_dtype_of_the_inputs_but_at_least_float32(make, dtype):
    loc, scale, _, y = batch()
    loc, scale = (part.detach().to(dtype).requires_grad_() for part in (loc, scale))
    loss = make()(Normal(loc, scale), y.to(dtype))
    assert loss.dtype == torch.promote_types(dtype, torch.float32)
    assert loss.shape == ()
    loss.backward()
    assert scale.grad.dtype == dtype
    assert torch.isfinite(scale.grad).all()
    wide = make()(Normal(loc.detach().double(), scale.detach().double()), y.to(dtype).double())
    torch.testing.assert_close(loss.double(), wide, rtol=1e-6, atol=1e-6)


@every_loss
def test_batch_without_a_target_is_refused(make):
    for n in (0, 3):
        with pytest.raises(ValueError, match="expected `target` with at least . values? that counts?, got 0"):
            make()(Normal(torch.zeros(n), torch.ones(n)), torch.full((n,), torch.nan))


@every_loss
def test_bad_prediction_is_refused(make):
    with pytest.raises(ValueError, match="expected `pred.scale` > 0, got -1"):
        make()(Normal(torch.zeros(3), -torch.ones(3), validate_args=False), torch.zeros(3))
    with pytest.raises(ValueError, match=r"expected `target` of shape \(3,\) like `pred`, got \(3, 1\)"):
        make()(Normal(torch.zeros(3), torch.ones(3)), torch.zeros(3, 1))


@every_loss
def test_one_prediction_broadcasts_over_all_targets(make):
    _, _, _, y = batch()
    one = Normal(torch.tensor(0.1).double(), torch.tensor(1.2).double())
    each = Normal(torch.full((30,), 0.1).double(), torch.full((30,), 1.2).double())
    torch.testing.assert_close(make()(one, y), make()(each, y))


@pytest.mark.parametrize("factor", [1 / 3, 3.0])
@every_loss
def test_step_from_a_wrong_scale_goes_the_right_way(make, factor):
    # Every slope is at least 12 of its standard deviations over 100 seeds; the smallest is that of quantile
    # recalibration at 3, which depends on the factor only through the blur of its kernel.
    n = 4000
    y = torch.randn(n, generator=torch.Generator().manual_seed(1))
    log_scale = torch.tensor(factor).log().requires_grad_()
    make()(Normal(torch.zeros(n), log_scale.exp().expand(n)), y).backward()
    assert (log_scale.grad > 0) == (factor > 1)
    assert log_scale.grad.abs() > 1e-3


@every_loss
def test_right_scale_is_the_best_of_many(make):
    # Draws are the same for all factors. Failures of any loss in 100 seeds: none.
    n = 4000
    y = torch.randn(n, generator=torch.Generator().manual_seed(1))
    factors = (0.33, 0.5, 0.75, 1.0, 1.33, 2.0, 3.0)
    scores = [make()(Normal(torch.zeros(n), s * torch.ones(n)), y).item() for s in factors]
    assert factors[scores.index(min(scores))] == 1.0


@every_loss
def test_losses_can_be_copied_and_combined(make):
    loc, scale, _, y = batch()
    criterion = make()
    criterion.generator = None
    copy = pickle.loads(pickle.dumps(criterion))
    torch.manual_seed(0)
    loss = copy(Normal(loc, scale), y)
    torch.manual_seed(0)
    both = CombinedLoss(criterion, lam=0.25)(Normal(loc, scale), y)
    torch.testing.assert_close(both, 0.75 * NLLLoss()(Normal(loc, scale), y) + 0.25 * loss)
    assert repr(copy) == repr(criterion)


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "crps"])
def test_mixtures_have_finite_gradients(name):
    loc, scale, _, y = batch()
    weights = Categorical(logits=torch.stack([loc, scale], -1))
    pred = MixtureSameFamily(weights, Normal(torch.stack([loc, -loc], -1), torch.stack([scale, 2 * scale], -1)))
    for gradient in torch.autograd.grad(LOSSES[name]()(pred, y), [loc, scale]):
        assert torch.isfinite(gradient).all()
        assert gradient.any()


class LargestTensor(TorchDispatchMode):
    """Remembers the largest tensor that an operation made."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        sizes = [leaf.untyped_storage().nbytes() // 8 for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.numel = max([self.numel, *sizes])
        return result


@every_loss
def test_memory_grows_with_the_batch_alone(make):
    # No n x n or n x levels table, neither for a moment nor kept for the backward pass.
    n = 100_000
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(n, dtype=torch.float64, generator=generator)
    scale = torch.ones(n, dtype=torch.float64, requires_grad=True)
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // 8
        return tensor

    with LargestTensor() as largest, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = make()(Normal(torch.zeros_like(y), scale), y)
        held = sum(kept.values())
        loss.backward()
    assert largest.numel <= 8 * n
    assert held <= 40 * n


@every_loss
def test_missing_coordinates_of_independent_rows_do_not_count(make):
    loc, scale, _, y = batch()
    y[::4] = torch.nan
    pred = Independent(Normal(loc.reshape(10, 3), scale.reshape(10, 3)), 1)
    loss = make()(pred, y.reshape(10, 3))
    loss.backward()
    assert torch.isfinite(loss)
    assert not scale.grad[::4].any()
