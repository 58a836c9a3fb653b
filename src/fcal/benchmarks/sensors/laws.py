"""Laws of test rows: kept as tensors, and what they say of the errors of many rows together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal.distributions import log_cdf
from fcal.distributions.batching import index_select
from fcal.distributions.law import law_of
from fcal.selection.candidates import CANDIDATES

_NORMAL_QUARTILE = 0.6745
_SIZES = 161  # from which a median is read
_ROWS = 300  # of which it is read, about


def parameters(pred: Distribution) -> dict[str, Tensor]:
    """Location, scale and shape of every row, to be kept.

    Example:
        >>> from torch.distributions import Normal
        >>> sorted(parameters(Normal(torch.zeros(2), torch.ones(2))))
        ['df', 'loc', 'scale']
    """
    law = law_of(pred)
    known = dict(zip(law.family.parameters, law.parameters, strict=True))
    shape = pred.batch_shape
    values = {name: known.get(name, torch.ones(())) for name in ("loc", "scale", "df")}
    return {name: value.detach().double().expand(shape).contiguous() for name, value in values.items()}


def law(family: str, kept: Mapping[str, Tensor]) -> Distribution:
    """The prediction that :func:`parameters` were of.

    Example:
        >>> law("normal", {"loc": torch.zeros(1), "scale": torch.ones(1), "df": torch.ones(1)}).mean
        tensor([0.])
    """
    return CANDIDATES[family].law(kept["loc"], kept["scale"], kept["df"])


@dataclass(frozen=True)
class Spread:
    """How far errors of several rows spread, as laws say: together, and around their corrections alone.

    Attributes:
        total: Root of the mean variance and the variance of the means: the sd of all errors about the known model.
        noise: Root of the mean variance.
        mean: Mean of the standard deviations.
        robust: 1.4826 times the median of the errors' sizes; None where it was not asked for.
    """

    total: float
    noise: float
    mean: float
    robust: float | None = None


def spread(parts: Sequence[Distribution], *, robust: bool = False) -> Spread:
    r"""What laws say of the errors of all their rows together.

    .. math:: \mathrm{sd}^2 = \overline{\sigma_i^2} + \overline{(\mu_i - \bar\mu)^2}

    Args:
        parts: Predictions, of one row each or of many.
        robust: Whether the median of the sizes is wanted too.

    Example:
        >>> from torch.distributions import Normal
        >>> spread([Normal(torch.tensor([-4.0, 4.0]), 3.0)]).total
        5.0
    """
    mean = torch.cat([part.mean.double() for part in parts])
    variance = torch.cat([part.variance.double().expand(part.mean.shape) for part in parts])
    noise = variance.mean()
    return Spread(
        float((noise + mean.var(correction=0)).sqrt()),
        float(noise.sqrt()),
        float(variance.sqrt().mean()),
        _robust(parts) if robust else None,
    )


def _robust(parts: Sequence[Distribution]) -> float:
    """The size that half of the errors stay below, from the shares below many sizes."""
    step = -(-sum(len(part.mean) for part in parts) // _ROWS)
    some = [kept for part in parts if len((kept := _thinned(part, step)).mean)]
    usual = torch.cat([part.stddev + part.mean.abs() for part in some]).median()
    sizes = usual * torch.logspace(-2, 2, _SIZES, dtype=torch.float64)
    below = torch.cat([_shares_below(part, sizes) for part in some]).mean(0)
    at = int((below < 0.5).sum().clamp(1, _SIZES - 1))
    share = (0.5 - below[at - 1]) / (below[at] - below[at - 1])
    return float(torch.lerp(sizes[at - 1], sizes[at], share)) / _NORMAL_QUARTILE


def _thinned(part: Distribution, step: int) -> Distribution:
    some = index_select(part, torch.arange(0, len(part.mean), step))
    assert isinstance(some, Distribution)
    return some


def _shares_below(part: Distribution, sizes: Tensor) -> Tensor:
    """Probability that an error of each row is smaller than each size. Shape ``(rows, sizes)``."""
    rows, count = torch.arange(len(part.mean)).repeat_interleave(len(sizes)), len(part.mean)
    each = index_select(part, rows)
    assert isinstance(each, Distribution)
    edge = sizes.repeat(count)
    return (log_cdf(each, edge).exp() - log_cdf(each, -edge).exp()).reshape(count, -1)
