"""Maximum mean discrepancy between the targets of a batch and draws of its predictions."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fcal._checks import check_count, check_flag, check_integer, check_number
from fcal._ranks import gather_rows
from fcal.losses.batch import (
    Batch,
    BatchLoss,
    check_generator,
    counting,
    counting_weight,
    no_values,
    reparametrised_draws,
)
from fcal.losses.fourier import fourier_sums

_REACH = 7.0  # bandwidths beyond which a Gaussian kernel and its spectrum are below 2.3e-11 of their peak
_MOST_FREQUENCIES = 1024
_SUMMARY = 5  # statistics per coordinate


class MMDLoss(BatchLoss):
    r"""Squared maximum mean discrepancy between targets and reparametrised draws of the predictions.

    .. math:: \frac 1{n^2} \sum_{i,j} k(y_i, y_j) - 2 k(y_i, \hat y_j) + k(\hat y_i, \hat y_j), \qquad
        k(x, x') = \frac 1B \sum_b e^{-(x - x')^2 / 2 h_b^2}

    A kernel of differences is a mixture of cosines, so the loss is
    :math:`\sum_m c_m |\frac 1n \sum_i e^{i m \delta y_i} - e^{i m \delta \hat y_i}|^2` with the spectrum of the
    kernel at evenly spaced frequencies: sums that are additive over chunks and ranks, in time :math:`n M` and without
    an n x n matrix. The kernel is exact to 1e-10 as long as the range of all values plus 7 times the widest bandwidth
    is at most 918 times the smallest one, which 1024 frequencies resolve (by default, a range of 200 standard
    deviations of the targets). Beyond, the kernel is periodic, which is still a valid kernel.

    Args:
        bandwidths: Bandwidths :math:`h_b` in units of ``scale``.
        scale: Their unit; the standard deviation of the targets of the batch if None, a constant for autograd.
        draws: Draws :math:`\hat y` per prediction, which share its weight. Families without ``rsample``, such as
            mixtures, draw quantiles of uniform numbers.
        generator: Source of randomness, torch's default if None. Give every rank its own seed.
        sync: Under ``torch.distributed``, use the batch of all ranks; every rank must then call the loss.

    Shape:
        As for :class:`fcal.FCalLoss`. Coordinates of an ``Independent`` prediction count as scalars; for a vector
        family the loss is the mean over its coordinates, each compared separately: it ignores their correlation.

    Note:
        The loss compares all targets with all draws, ignoring which belong together: predicting the marginal
        distribution everywhere is optimal. Train by the likelihood first, as the paper does, or combine both. The loss
        couples the elements of a batch, so accumulating gradients over micro-batches is not the same as one large
        batch. Equal distributions score about :math:`2 (1 - E k) / n`, not 0, as every value is also compared with
        itself. A weight applies to a target and its draws. The loss is once differentiable and cannot be traced by
        ``torch.compile``.

    Reference:
        Cui, Hu and Zhu, "Calibrated reliable regression using maximum mean discrepancy", NeurIPS 2020.

    Example:
        >>> from torch.distributions import Normal
        >>> target = torch.tensor([0.0, 0.0])
        >>> certain = Normal(torch.tensor([1.0, 1.0]), torch.tensor([1e-6, 1e-6]))  # all draws are 1
        >>> fcal.losses.MMDLoss(bandwidths=(1.0,), scale=1.0)(certain, target)  # 2 - 2 exp(-1/2)
        tensor(0.7869)
    """

    def __init__(
        self,
        *,
        bandwidths: Sequence[float] = (0.25, 0.5, 1.0, 2.0, 4.0),
        scale: float | None = None,
        draws: int = 1,
        generator: torch.Generator | None = None,
        sync: bool = True,
    ) -> None:
        super().__init__()
        self.bandwidths = _checked_bandwidths(bandwidths)
        self.scale = None if scale is None else check_number("scale", scale, low=1e-100, high=1e100)
        self.draws = check_integer("draws", draws, at_least=1, at_most=10_000)
        self.generator = check_generator(generator)
        self.sync = check_flag("sync", sync)

    def of_batch(self, batch: Batch) -> Tensor:
        """The loss of a batch."""
        samples: list[_Samples] = []

        def summaries() -> Tensor:
            samples.append(self._samples(batch))
            return _summaries(samples[0])

        rows, _ = gather_rows(summaries, columns=_SUMMARY, device=batch.device(), sync=self.sync)
        coordinates = samples[0].values.shape[1]
        summary = _merged(rows.reshape(-1, coordinates, _SUMMARY))
        frequencies = [self._frequencies(*numbers) for numbers in summary[:, 1:].tolist()]

        def differences() -> Tensor:
            return torch.cat([_difference(samples[0], index, wave) for index, wave in enumerate(frequencies)])

        size = sum(2 * wave.number for wave in frequencies)
        sums = self.over_ranks(differences, size, batch)
        gaps = (sums / summary[0, 0]).split([2 * wave.number for wave in frequencies])
        distances = [wave.spectrum(gap) @ gap.square() for wave, gap in zip(frequencies, gaps, strict=True)]
        return torch.stack(distances).mean().to(batch.dtype())

    def extra_repr(self) -> str:
        """The options, for ``print``."""
        return f"bandwidths={self.bandwidths}, scale={self.scale}, draws={self.draws}, sync={self.sync}"

    def _samples(self, batch: Batch) -> "_Samples":
        observation = batch.observe(widest=True)
        width = self.draws + 1
        coordinates = observation.target.shape[len(observation.elements()) :].numel()
        if not observation.count():
            values = no_values(observation)
            weight = values.detach()
        else:
            draws = reparametrised_draws(observation, self.draws, self.generator)
            both = torch.cat([observation.target.unsqueeze(0), draws]).movedim(0, -1)
            values, weight = counting(both, observation), counting_weight(observation)
        share = torch.full((width,), 1 / self.draws, dtype=torch.float64, device=values.device)
        share[0] = -1.0
        return _Samples(values.reshape(len(weight), coordinates, width), weight, weight.unsqueeze(-1) * share)

    def _frequencies(self, spread: float, low: float, high: float) -> "_Frequencies":
        scale = spread if self.scale is None else self.scale
        if not scale > 0:
            raise ValueError("expected `target` with two different values (or a `scale`), got only equal ones")
        widths = tuple(multiple * scale for multiple in self.bandwidths)
        period = min(high - low + _REACH * max(widths), 2 * math.pi * min(widths) * (_MOST_FREQUENCIES - 1) / _REACH)
        step = 2 * math.pi / period
        return _Frequencies((low + high) / 2, step, int(_REACH / (min(widths) * step)) + 1, widths)


class _Samples(NamedTuple):
    """Targets and draws of this rank.

    Attributes:
        values: The target, then its draws. Shape ``(n, coordinates, 1 + draws)``.
        weight: Weight of every target. Shape ``(n,)``.
        signed: Minus the weight for the target, plus its share for each draw. Shape ``(n, 1 + draws)``.
    """

    values: Tensor
    weight: Tensor
    signed: Tensor


class _Frequencies(NamedTuple):
    """Frequencies at which one coordinate is compared: multiples of ``step`` from 0 on."""

    centre: float
    step: float
    number: int
    widths: tuple[float, ...]

    def spectrum(self, like: Tensor) -> Tensor:
        """Weights of the frequencies in the kernel, each twice: for the real and the imaginary part."""
        frequency = self.step * torch.arange(self.number, dtype=torch.float64, device=like.device)
        widths = torch.tensor(self.widths, dtype=torch.float64, device=like.device).unsqueeze(-1)
        density = widths * torch.exp(-0.5 * (widths * frequency).square()) / math.sqrt(2 * math.pi)
        weights = 2 * self.step * density.mean(0)
        weights[0] /= 2  # all others also stand for their negative frequency
        return weights.repeat_interleave(2)


def _difference(samples: _Samples, index: int, wave: _Frequencies) -> Tensor:
    values = (samples.values[:, index] - wave.centre).reshape(-1)
    sums = fourier_sums(values, samples.signed.reshape(-1), wave.step, wave.number)
    return torch.view_as_real(sums).reshape(-1)


@torch.no_grad()
def _summaries(samples: _Samples) -> Tensor:
    """Weight, mean, standard deviation, minimum and maximum of each coordinate. Shape ``(coordinates, 5)``."""
    values, weight = samples.values, samples.weight
    total = weight.sum()
    if not len(weight):
        return values.new_tensor([0.0, 0.0, 0.0, math.inf, -math.inf]).expand(values.shape[1], _SUMMARY)
    target = values[..., 0]
    share = weight / total
    mean = share @ target
    gap = (target - mean).abs()
    unit = gap.amax(0).clamp(min=torch.finfo(gap.dtype).tiny)  # without it, squares may overflow or underflow
    spread = unit * (share @ (gap / unit).square()).sqrt()
    columns = [total.expand(mean.shape), mean, spread, values.amin((0, 2)), values.amax((0, 2))]
    return torch.stack(columns, dim=-1)


def _merged(rows: Tensor) -> Tensor:
    """Weight, standard deviation, minimum and maximum over ranks. Shape ``(coordinates, 4)``."""
    weight, mean, spread, low, high = rows.unbind(-1)
    total = weight.sum(0)
    if not bool((total > 0).all()):
        check_count(0, at_least=1)
    share = weight / total
    centre = (share * mean).sum(0)
    deviation = torch.hypot(spread, mean - centre)  # of the targets of a rank from the centre of all
    unit = deviation.amax(0).clamp(min=torch.finfo(deviation.dtype).tiny)
    whole = unit * (share * (deviation / unit).square()).sum(0).sqrt()
    return torch.stack([total, whole, low.amin(0), high.amax(0)], dim=-1)


def _checked_bandwidths(bandwidths: Any) -> tuple[float, ...]:
    if isinstance(bandwidths, str) or not isinstance(bandwidths, Sequence) or not bandwidths:
        raise TypeError(f"expected `bandwidths` a sequence of numbers, got {bandwidths!r}")
    return tuple(check_number("bandwidths", width, low=1e-3, high=1e3) for width in bandwidths)
