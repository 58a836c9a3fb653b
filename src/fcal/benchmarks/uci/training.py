"""Training of stacked networks: each on rows of its own, with averages of its weights kept along the way."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Normal

from fcal.models.ensembles import StackedMLP

Loss = Callable[[Normal, Tensor], Tensor]
_REMEMBERED = 0.1  # the average of weights reaches back over this share of the training so far
_LARGEST_GRADIENT = 5.0  # norm of one network's, per step
_AT_ONCE = 4_000_000  # activations of a prediction


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How stacked networks are trained.

    Args:
        epochs: Passes through the rows.
        batch: Rows of each network in a step.
        rate: Learning rate, the same to the end: averaged weights need no decay of it.
        weight_decay: As of AdamW.
        checkpoints: At how many epochs the averaged weights are kept, in geometric steps up to the last epoch.
    """

    epochs: int
    batch: int
    rate: float
    weight_decay: float = 0.0
    checkpoints: int = 16

    def kept(self) -> list[int]:
        """Epochs whose weights are kept.

        Example:
            >>> Schedule(epochs=64, batch=1, rate=0.1, checkpoints=4).kept()
            [2, 6, 20, 64]
        """
        first = max(self.epochs / 32, 1.0)
        steps = max(self.checkpoints - 1, 1)
        return sorted(
            {round(first * (self.epochs / first) ** (i / steps)) for i in range(self.checkpoints)} | {self.epochs}
        )


class Trace:
    """Averaged weights of stacked networks at some epochs.

    Args:
        network: Of the same shape.
        epochs: At which they were kept.
        thetas: Their parameters at each. Shape ``(kept, m, parameters)``.
    """

    def __init__(self, network: StackedMLP, epochs: Sequence[int], thetas: Tensor) -> None:
        self.network, self.epochs, self.thetas = network, list(epochs), thetas

    def at(self, place: Tensor | int) -> StackedMLP:
        """The networks as they were at a kept epoch, which may be another one for each of them."""
        members = torch.arange(self.network.members)
        return self.network.with_theta(self.thetas[torch.as_tensor(place).expand(len(members)), members])


def train(
    network: StackedMLP,
    x: Tensor,
    target: Tensor,
    rows: Tensor,
    split: Tensor,
    *,
    loss: Loss,
    schedule: Schedule,
    seed: int,
    center: Tensor | None = None,
) -> Trace:
    """Train stacked networks, in place.

    Args:
        network: ``m`` of them.
        x: Features, once for each split. Shape ``(splits, n, features)``.
        target: Shape ``(splits, n)``.
        rows: Which rows each network is trained on, by their place in ``x``. Shape ``(m, r)``.
        split: Which split each belongs to. Shape ``(m,)``.
        loss: Of predictions and targets of shape ``(m, b)``: the sum over networks of the loss of each.
        schedule: Epochs, batches and rate.
        seed: Of the order of rows.
        center: What the predicted law is moved to, if anything. Shape ``(splits, n)``.

    Returns:
        Averaged weights at the epochs that ``schedule`` keeps.
    """
    generator = torch.Generator().manual_seed(seed)
    count = rows.shape[1]
    # Every network has its rows in an order of its own, and one permutation per epoch then serves all of them.
    shuffled = rows.gather(1, torch.rand(rows.shape, generator=generator).argsort(1))
    places = (shuffled + split[:, None] * x.shape[1]).T.contiguous()
    features, targets = x.reshape(-1, x.shape[-1]), target.reshape(-1)
    centers = None if center is None else center.reshape(-1)
    batch = min(schedule.batch, count)
    theta = network.theta
    average = theta.detach().clone()
    optimizer = torch.optim.AdamW(
        [theta], lr=schedule.rate, weight_decay=schedule.weight_decay, betas=(0.9, 0.99), fused=True
    )
    kept, thetas, step = schedule.kept(), [], 0
    for epoch in range(1, schedule.epochs + 1):
        order = torch.randperm(count, generator=generator)
        for start in range(0, count - batch + 1, batch):
            now = places[order[start : start + batch]].T
            pred = network(features[now])
            if centers is not None:
                pred = Normal(centers[now], pred.scale, validate_args=False)
            theta.grad = None
            loss(pred, targets[now]).backward()
            assert theta.grad is not None
            # Too long a gradient is shortened, for each network by its own norm.
            length = torch.linalg.vector_norm(theta.grad, dim=1, keepdim=True)
            theta.grad.mul_(_LARGEST_GRADIENT / length.clamp_(min=_LARGEST_GRADIENT))
            optimizer.step()
            step += 1
            average.lerp_(theta.detach(), 1 / (1 + _REMEMBERED * step))
        if epoch in kept:
            thetas.append(average.clone())
    return Trace(network, kept, torch.stack(thetas))


def nll_sum(pred: Normal, target: Tensor) -> Tensor:
    """Mean negative log-likelihood of each network, without its constant, summed over networks."""
    z = (target - pred.loc) / pred.scale
    return (pred.scale.log() + 0.5 * z.square()).mean(1).sum()


def squared_error_sum(pred: Normal, target: Tensor) -> Tensor:
    """Mean squared error of each network's mean, summed over networks."""
    return (target - pred.loc).square().mean(1).sum()


def predicted(network: StackedMLP, x: Tensor, rows: Tensor, split: Tensor) -> Normal:
    """What each network says of some rows of its split. Shape ``(m, r)``."""
    widest = max(network.sizes)
    step = max(_AT_ONCE // (rows.shape[1] * widest), 1)
    parts = []
    with torch.no_grad():
        for start in range(0, len(rows), step):
            some = torch.arange(start, min(start + step, len(rows)))
            parts.append(network.select(some)(x[split[some, None], rows[some]]))
    return Normal(torch.cat([part.loc for part in parts]), torch.cat([part.scale for part in parts]))


def nll_each(pred: Normal, target: Tensor) -> Tensor:
    """Mean negative log-likelihood of each network. Shape ``(m,)``."""
    return -pred.log_prob(target).double().mean(1)
