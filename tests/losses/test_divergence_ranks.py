"""Two real gloo processes: divergences that need the whole batch, or special functions, give that of the global one."""

import pytest
import torch
from torch.distributions import Laplace, Normal
from torch.nn.parallel import DistributedDataParallel
from two_ranks import run_on_two_ranks

from fcal import FCalLoss

CRITERIA = {
    "sorted": lambda sync=True: FCalLoss("sorted_wasserstein", on="z", sync=sync),
    "detached": lambda sync=True: FCalLoss("sorted_wasserstein", on="z", detach_mean=True, sync=sync),
    "gamma": lambda sync=True: FCalLoss("chi2_moments", df=20, on="both", sync=sync),
    "quadrature": lambda sync=True: FCalLoss("jensen_shannon", df=20, on="both", sync=sync),
}
SPLITS = {"uneven": 60, "empty": 96, "other empty": 0}


class Net(torch.nn.Module):
    """A heteroscedastic regressor small enough to compare every gradient."""

    def __init__(self, family):
        super().__init__()
        torch.manual_seed(0)
        self.family = family
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).double()

    def forward(self, x):
        loc, raw = self.layers(x).unbind(-1)
        return self.family(loc, torch.nn.functional.softplus(raw) + 0.1, validate_args=False)


def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(96, 3, dtype=torch.float64, generator=generator)
    x[50:70] = x[50]  # tied residuals, also across the ranks
    y = x.sum(1) + torch.randn(96, dtype=torch.float64, generator=generator)
    y[50:70] = y[50]
    keep = torch.rand(96, generator=generator) > 0.3
    weight = torch.rand(96, dtype=torch.float64, generator=generator)
    return x, y, keep, weight


def step(model, criterion, x, y, keep, weight):
    loss = criterion(model(x), y, valid_mask=keep, weight=weight)
    (3 * loss).backward()
    return loss.detach(), [p.grad.clone() for p in model.parameters()]


def assert_global(rank: int, cut: int, family, make, keep, weight, where: str) -> None:
    x, y, *_ = data()
    loss, expected = step(Net(family), make(sync=False), x, y, keep, weight)
    shard = slice(0, cut) if rank == 0 else slice(cut, 96)
    model = DistributedDataParallel(Net(family))
    mine = [None if value is None else value[shard] for value in (keep, weight)]
    found_loss, found = step(model, make(), x[shard], y[shard], *mine)
    torch.testing.assert_close(found_loss, loss, rtol=1e-6, atol=1e-12, msg=lambda m: f"{where}: {m}")
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-12, msg=lambda m: f"{where}: {m}")
    del model


def _compare(rank: int) -> None:
    _, _, keep, weight = data()
    for split, cut in SPLITS.items():
        for family in (Normal, Laplace):
            for name, make in CRITERIA.items():
                for beside in ((None, None), (keep, None), (keep, weight)):
                    assert_global(rank, cut, family, make, *beside, where=f"{split}, {family.__name__}, {name}")


def _fully_masked_shard(rank: int) -> None:
    for name, make in CRITERIA.items():
        assert_global(rank, 60, Normal, make, torch.arange(96) >= 60, None, where=name)


def _bad_input_on_one_rank(rank: int) -> None:
    scale = torch.ones(50) if rank == 0 else -torch.ones(50)
    pred = Normal(torch.zeros(50), scale, validate_args=False)
    expected = RuntimeError if rank == 0 else ValueError
    for _ in range(2):  # the ranks are still in step afterwards
        with pytest.raises(
            expected, match="got an error on 1 other rank" if rank == 0 else "expected `pred.scale` > 0"
        ):
            CRITERIA["sorted"]()(pred, torch.randn(50))


def _too_few_on_all_ranks(rank: int) -> None:
    pred = Normal(torch.zeros(1 - rank), torch.ones(1 - rank))
    with pytest.raises(ValueError, match="at least 2 values that count, got 1"):
        CRITERIA["sorted"]()(pred, torch.zeros(1 - rank))


def _own_batches(rank: int) -> None:
    if rank == 0:  # the other rank takes no part: nothing may wait for it
        CRITERIA["sorted"](sync=False)(Normal(torch.zeros(9), torch.ones(9)), torch.randn(9))


CHECKS = [_compare, _fully_masked_shard, _bad_input_on_one_rank, _too_few_on_all_ranks, _own_batches]


@pytest.mark.parametrize("check", CHECKS)
def test_two_ranks(check):
    run_on_two_ranks(check)
