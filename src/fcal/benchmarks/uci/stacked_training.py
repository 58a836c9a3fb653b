"""Training of stacked networks, each on its own rows; averaged weights are kept at several epochs."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from fcal.benchmarks.problem import Options
from fcal.benchmarks.uci.settings import Schedule
from fcal.models.ensembles import StackedMLP
from fcal.training import ObjectiveConfig, objective

Loss = Callable[[Normal, Tensor], Tensor]
_REMEMBERED = 0.1  # the average of weights reaches back over this share of the training so far
_LARGEST_GRADIENT = 5.0  # norm of the gradient of one network
_AT_ONCE = 4_000_000  # activations computed at once in a prediction


class Trace:
    """Averaged weights of stacked networks at several epochs.

    Args:
        network: Networks of the same shape.
        epochs: Epochs at which weights were kept.
        thetas: Parameters at each of these epochs. Shape ``(kept, m, parameters)``.
    """

    def __init__(self, network: StackedMLP, epochs: Sequence[int], thetas: Tensor) -> None:
        self.network, self.epochs, self.thetas = network, list(epochs), thetas

    def at(self, index: Tensor | int, members: Tensor | None = None) -> StackedMLP:
        """Networks, all if ``members`` is None, as they were at the kept epoch of an index, or of one for each."""
        if members is None:
            members = torch.arange(self.network.members)
        return self.network.with_theta(self.thetas[torch.as_tensor(index).expand(len(members)), members])


def train(
    network: StackedMLP,
    x: Tensor,
    target: Tensor,
    rows: Tensor,
    *,
    loss: Loss,
    schedule: Schedule,
    seed: int,
    center: Tensor | None = None,
) -> Trace:
    """Train stacked networks, in place.

    Args:
        network: Stack of ``m`` networks; number ``i`` is of split ``i % splits``.
        x: Features, once for each split. Shape ``(splits, n, features)``.
        target: Targets. Shape ``(splits, n)``.
        rows: Rows that each network is trained on, as indices into ``x``. Shape ``(m, r)``.
        loss: Loss of predictions and targets of shape ``(m, b)``, summed over networks.
        schedule: Epochs, batches and rate.
        seed: Seed of the order of rows.
        center: Replaces the predicted means if not None. Shape ``(splits, n)``.

    Returns:
        Averaged weights at the epochs that ``schedule`` keeps.
    """
    generator = torch.Generator().manual_seed(seed)
    count = rows.shape[1]
    # The rows of each network are shuffled once, so that one permutation per epoch serves all networks.
    shuffled = rows.gather(1, torch.rand(rows.shape, generator=generator).argsort(1))
    split = torch.arange(len(rows)) % len(x)
    indices = (shuffled + split[:, None] * x.shape[1]).T.contiguous()
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
            chosen = indices[order[start : start + batch]].T
            pred = network(features[chosen])
            if centers is not None:
                pred = Normal(centers[chosen], pred.scale, validate_args=False)
            theta.grad = None
            loss(pred, targets[chosen]).backward()
            assert theta.grad is not None
            # Clip the gradient of each network by its own norm.
            length = torch.linalg.vector_norm(theta.grad, dim=1, keepdim=True)
            theta.grad.mul_(_LARGEST_GRADIENT / length.clamp_(min=_LARGEST_GRADIENT))
            optimizer.step()
            step += 1
            average.lerp_(theta.detach(), 1 / (1 + _REMEMBERED * step))
        if epoch in kept:
            thetas.append(average.clone())
    return Trace(network, kept, torch.stack(thetas))


def predicted(network: StackedMLP, x: Tensor, rows: Tensor) -> Normal:
    """Predictions of each network for rows of its split, ``i % splits`` as in :func:`train`. Shape ``(m, r)``."""
    step = max(_AT_ONCE // (rows.shape[1] * max(network.sizes)), 1)
    preds = []
    with torch.no_grad():
        for start in range(0, len(rows), step):
            members = torch.arange(start, min(start + step, len(rows)))
            preds.append(network.select(members)(x[members[:, None] % len(x), rows[members]]))
    return Normal(torch.cat([pred.loc for pred in preds]), torch.cat([pred.scale for pred in preds]))


def nll_sum(pred: Normal, target: Tensor) -> Tensor:
    """Mean negative log-likelihood of each network, without its constant, summed over networks."""
    z = (target - pred.loc) / pred.scale
    return (pred.scale.log() + 0.5 * z.square()).mean(1).sum()


def beta_nll_sum(beta: float) -> Loss:
    """Beta-NLL of each network, summed over networks; the likelihood if ``beta`` is 0.

    Every row is weighted by the power ``2 * beta`` of its predicted sigma, without a gradient through the weight.
    """

    def loss(pred: Normal, target: Tensor) -> Tensor:
        z = (target - pred.loc) / pred.scale
        each = pred.scale.log() + 0.5 * z.square()
        return (each * pred.scale.detach().pow(2 * beta)).mean(1).sum()

    return loss if beta else nll_sum


def nll_each(pred: Normal, target: Tensor) -> Tensor:
    """Mean negative log-likelihood of each network. Shape ``(m,)``."""
    return -pred.log_prob(target).double().mean(1)


def squared_error_each(pred: Normal, target: Tensor) -> Tensor:
    """Mean squared error of each network's mean. Shape ``(m,)``."""
    return (target - pred.loc).square().mean(1)


def each_network(options: Options) -> Loss:
    """An objective of the library, applied to each network separately, because it depends on a whole batch."""
    terms = objective(ObjectiveConfig(**{name: value for name, value in options.items() if name != "repetition"}))

    def loss(pred: Normal, target: Tensor) -> Tensor:
        total = pred.loc.new_zeros(())
        for mean, sigma, y in zip(pred.loc, pred.scale, target, strict=True):
            dist = Normal(mean, sigma, validate_args=False)
            for term in terms(nn.Identity(), {"input": dist, "target": y}).values():
                total = total + term
        return total

    return loss


def in_shares(losses: Sequence[Loss]) -> Loss:
    """Several losses, each for an equal share of the networks."""

    def loss(pred: Normal, target: Tensor) -> Tensor:
        parts = zip(losses, *(tensor.chunk(len(losses)) for tensor in (pred.loc, pred.scale, target)), strict=True)
        return torch.stack([each(Normal(mean, sigma, validate_args=False), y) for each, mean, sigma, y in parts]).sum()

    return loss


def error_bar_loss(options: Options) -> Loss:
    """The loss of networks of error bars: the likelihood of all at once, a calibration loss network by network."""
    if options["name"] == "nll":
        return nll_sum
    if "lam" not in options or options.get("form", "convex") != "convex":
        return each_network(options)
    lam, calibration = options["lam"], each_network({**options, "lam": 1.0})
    return lambda pred, target: lam * calibration(pred, target) + (1 - lam) * nll_sum(pred, target)
