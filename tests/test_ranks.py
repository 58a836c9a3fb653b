"""Two real gloo processes: loss and gradients are those of the global batch, and no error leaves a rank waiting."""

import pytest
import torch
from torch.distributions import Laplace, MultivariateNormal, Normal
from torch.nn.parallel import DistributedDataParallel
from two_ranks import run_on_two_ranks

from fcal import FCalLoss
from fcal.losses import BetaNLLLoss, CalibrationLoss, CombinedLoss, NLLLoss

CRITERIA = {
    "f-Cal": lambda sync=True: FCalLoss("kl", df=20, on="both", sync=sync),
    "combined": lambda sync=True: CombinedLoss(FCalLoss(df=20, sync=sync), lam=0.4),
    "nll": lambda sync=True: NLLLoss(sync=sync),
    "beta": lambda sync=True: BetaNLLLoss(sync=sync),
    "calibration": lambda sync=True: CalibrationLoss(sync=sync),
}
FAMILIES = {"normal": Normal, "laplace": Laplace}
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


def data(masked: bool):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(96, 3, dtype=torch.float64, generator=generator)
    y = x.sum(1) + torch.randn(96, dtype=torch.float64, generator=generator)
    keep = torch.rand(96, generator=generator) > 0.3
    return x, y, keep if masked else None


def step(model, criterion, x, y, keep):
    loss = criterion(model(x), y, valid_mask=keep)
    loss.backward()
    return loss.detach(), [p.grad.clone() for p in model.parameters()]


def _compare(rank: int) -> None:
    for split, cut in SPLITS.items():
        for family in FAMILIES.values():
            for name, make in CRITERIA.items():
                for masked in (False, True):
                    x, y, keep = data(masked)
                    loss, expected = step(Net(family), make(sync=False), x, y, keep)
                    shard = slice(0, cut) if rank == 0 else slice(cut, 96)
                    model = DistributedDataParallel(Net(family))
                    mine = None if keep is None else keep[shard]
                    found_loss, found = step(model, make(), x[shard], y[shard], mine)
                    where = f"{split}, {family.__name__}, {name}, masked={masked}"
                    torch.testing.assert_close(
                        found_loss, loss, rtol=1e-6, atol=1e-9, msg=lambda m, w=where: f"{w}: {m}"
                    )
                    for ours, theirs in zip(found, expected, strict=True):
                        torch.testing.assert_close(
                            ours, theirs, rtol=1e-6, atol=1e-9, msg=lambda m, w=where: f"{w}: {m}"
                        )
                    del model


def _fully_masked_shard(rank: int) -> None:
    x, y, _ = data(False)
    keep = torch.arange(96) >= 60
    alone = CombinedLoss(FCalLoss(df=20, sync=False))
    loss, expected = step(Net(Normal), alone, x, torch.where(keep, y, torch.nan), keep)
    shard = slice(0, 60) if rank == 0 else slice(60, 96)
    model = DistributedDataParallel(Net(Normal))
    found_loss, found = step(model, CombinedLoss(FCalLoss(df=20)), x[shard], y[shard], keep[shard])
    torch.testing.assert_close(found_loss, loss, rtol=1e-6, atol=1e-9)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)
    del model


def _bad_input_on_one_rank(rank: int) -> None:
    scale = torch.ones(50) if rank == 0 else -torch.ones(50)
    pred = Normal(torch.zeros(50), scale, validate_args=False)
    for criterion in (FCalLoss(), CombinedLoss(), NLLLoss()):
        expected = RuntimeError if rank == 0 else ValueError
        message = "got an error on 1 other rank" if rank == 0 else "expected `pred.scale` > 0"
        with pytest.raises(expected, match=message):
            criterion(pred, torch.randn(50))


def _own_batches_and_sampling(rank: int) -> None:
    torch.manual_seed(rank)
    y = torch.randn(100)
    pred = Normal(torch.zeros(100), torch.ones(100))
    with pytest.raises(ValueError, match="expected `estimator` 'exact'"):
        FCalLoss(estimator="sampled")(pred, y)
    if rank == 0:  # the other rank takes no part: nothing may wait for it
        alone = FCalLoss(sync=False)(pred, y)
        q = y.square().double()
        torch.testing.assert_close(alone.double(), 37.5 * (q.mean() - 1) ** 2 + (q.std() / 2**0.5 - 1) ** 2)
        FCalLoss(estimator="sampled", sync=False)(pred, y)


def _task_that_fails_on_one_rank(rank: int) -> None:
    def task(pred, target, **_):
        if rank == 1:
            raise KeyError("label")
        return (pred.mean - target).square().mean()

    criterion = CombinedLoss(FCalLoss(df=5), task=task, lam=0.5)
    expected = RuntimeError if rank == 0 else KeyError
    for _ in range(2):  # the ranks are still in step afterwards
        with pytest.raises(expected):
            criterion(Normal(torch.zeros(20), torch.ones(20)), torch.randn(20))


def _empty_shard_of_vectors(rank: int) -> None:
    torch.manual_seed(0)
    y = torch.randn(30, 3)
    mine = y if rank == 0 else y[:0]
    pred = MultivariateNormal(
        torch.zeros(len(mine), 3), scale_tril=torch.eye(3).expand(len(mine), 3, 3), validate_args=False
    )
    whole = MultivariateNormal(torch.zeros(30, 3), scale_tril=torch.eye(3).expand(30, 3, 3))
    torch.testing.assert_close(FCalLoss(df=5)(pred, mine), FCalLoss(df=5, sync=False)(whole, y))


def _target_on_another_device(rank: int) -> None:
    target = torch.randn(20) if rank == 0 else torch.randn(20, device="meta")
    with pytest.raises(RuntimeError if rank == 0 else ValueError):
        FCalLoss(df=5)(Normal(torch.zeros(20), torch.ones(20)), target)


CHECKS = [
    _compare,
    _fully_masked_shard,
    _bad_input_on_one_rank,
    _own_batches_and_sampling,
    _task_that_fails_on_one_rank,
    _empty_shard_of_vectors,
    _target_on_another_device,
]


@pytest.mark.parametrize("check", CHECKS)
def test_two_ranks(check):
    run_on_two_ranks(check)
