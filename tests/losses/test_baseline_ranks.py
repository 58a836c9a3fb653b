"""Two real gloo processes: losses of a whole batch and their gradients are those of the global batch."""

import pytest
import torch
from fixed_draws import FixedDraws, learn
from torch.distributions import Laplace, MultivariateNormal, Normal
from torch.nn.parallel import DistributedDataParallel
from two_ranks import run_on_two_ranks

from fcal.losses import CombinedLoss, CRPSLoss, EnergyLoss, MMDLoss, PCELoss, QuantileRecalibrationLoss

CRITERIA = {
    "mmd": lambda sync=True: MMDLoss(sync=sync),
    "mmd of two draws": lambda sync=True: MMDLoss(draws=2, sync=sync),
    "pce kde": lambda sync=True: PCELoss(levels=20, sharpness=20.0, sync=sync),
    "pce sort": lambda sync=True: PCELoss("sort", sync=sync),
    "qrt": lambda sync=True: QuantileRecalibrationLoss(sync=sync),
    "energy": lambda sync=True: EnergyLoss(draws=3, sync=sync),
    "crps": lambda sync=True: CRPSLoss(sync=sync),
    "combined": lambda sync=True: CombinedLoss(PCELoss("sort", sync=sync), lam=0.4),
}
SPLITS = {"uneven": 60, "empty": 96, "other empty": 0}


class Net(torch.nn.Module):
    """A heteroscedastic regressor whose draws depend on its input alone."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).double()

    def forward(self, x):
        loc, raw = self.layers(x).unbind(-1)
        scale = torch.nn.functional.softplus(raw) + 0.1
        return FixedDraws(loc, scale, torch.sin(7 * x[:, 0]), validate_args=False)


def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(96, 3, dtype=torch.float64, generator=generator)
    y = x.sum(1) + torch.randn(96, dtype=torch.float64, generator=generator)
    weight = torch.rand(96, dtype=torch.float64, generator=generator)
    return x, y, torch.where(weight < 0.3, 0.0, weight)


def step(model, criterion, x, y, weight):
    loss = criterion(model(x), y, weight=weight)
    loss.backward()
    return loss.detach(), [p.grad.clone() for p in model.parameters()]


def assert_global(rank, name, weight, cut):
    """Loss and gradients of two shards are those of the whole."""
    x, y, _ = data()
    loss, expected = step(Net(), CRITERIA[name](sync=False), x, y, weight)
    shard = slice(0, cut) if rank == 0 else slice(cut, 96)
    model = DistributedDataParallel(Net())
    mine = None if weight is None else weight[shard]
    found_loss, found = step(model, CRITERIA[name](), x[shard], y[shard], mine)
    for ours, theirs in zip([found_loss, *found], [loss, *expected], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9, msg=lambda m: f"{name}, cut at {cut}: {m}")
    del model


def _compare(rank: int) -> None:
    learn()
    for cut in SPLITS.values():
        for name in CRITERIA:
            for weight in (None, data()[2]):
                assert_global(rank, name, weight, cut)


def _fully_masked_shard(rank: int) -> None:
    learn()
    for name in CRITERIA:
        assert_global(rank, name, (torch.arange(96) >= 60).double(), 60)


def _error_on_one_rank(rank: int) -> None:
    pred = Normal(torch.zeros(50), torch.ones(50) if rank == 0 else -torch.ones(50), validate_args=False)
    for make in CRITERIA.values():
        expected = RuntimeError if rank == 0 else ValueError
        message = "got an error on 1 other rank" if rank == 0 else "expected `pred.scale` > 0"
        for _ in range(2):  # the ranks are still in step afterwards
            with pytest.raises(expected, match=message):
                make()(pred, torch.randn(50))


def _nothing_on_any_rank(rank: int) -> None:
    pred = Normal(torch.zeros(rank), torch.ones(rank))
    for make in CRITERIA.values():
        with pytest.raises(ValueError, match="expected `target` with at least"):
            make()(pred, torch.full((rank,), torch.nan))


def _own_batch_of_one_rank(rank: int) -> None:
    if rank == 0:  # the other rank takes no part: nothing may wait for it
        for make in CRITERIA.values():
            assert torch.isfinite(make(sync=False)(Laplace(torch.zeros(50), torch.ones(50)), torch.randn(50)))


def _vectors_and_an_empty_shard(rank: int) -> None:
    y = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    whole = MultivariateNormal(torch.zeros(30, 3), torch.eye(3))
    mine = y if rank == 0 else y[:0]
    part = MultivariateNormal(
        torch.zeros(len(mine), 3), scale_tril=torch.eye(3).expand(len(mine), 3, 3), validate_args=False
    )
    for name, make in CRITERIA.items():
        if name == "crps":
            continue
        torch.manual_seed(0)
        found = make()(part, mine)
        torch.manual_seed(0)
        torch.testing.assert_close(found, make(sync=False)(whole, y), msg=lambda m, name=name: f"{name}: {m}")


CHECKS = [
    _compare,
    _fully_masked_shard,
    _error_on_one_rank,
    _nothing_on_any_rank,
    _own_batch_of_one_rank,
    _vectors_and_an_empty_shard,
]


@pytest.mark.parametrize("check", CHECKS)
def test_two_ranks(check):
    run_on_two_ranks(check)
