"""The laws that pictures show the data beside."""

from collections.abc import Sequence

import torch
from torch.distributions import Chi2, Normal

from fcal.metrics.report import Histogram

_POINTS = 241


def normal_curve(histogram: Histogram) -> tuple[list[float], list[float]]:
    """Density of N(0, 1) over the range of a histogram.

    Returns:
        Points and densities.

    Example:
        >>> from fcal.metrics.report import Histogram
        >>> x, density = normal_curve(Histogram(edges=(-1.0, 1.0), density=(0.5,), beyond=0.0))
        >>> round(x[120], 9), round(density[120], 4)
        (0.0, 0.3989)
    """
    x = _grid(histogram.edges)
    return x.tolist(), Normal(0.0, 1.0).log_prob(x).exp().tolist()


def chi2_curve(histogram: Histogram, df: int) -> tuple[list[float], list[float]]:
    """Density of chi-squared with ``df`` degrees of freedom over the positive range of a histogram.

    Returns:
        Points and densities.

    Example:
        >>> from fcal.metrics.report import Histogram
        >>> x, density = chi2_curve(Histogram(edges=(0.0, 4.0), density=(0.25,), beyond=0.0), df=2)
        >>> x[119], round(density[119], 4)  # exp(-x / 2) / 2
        (2.0, 0.1839)
    """
    x = _grid(histogram.edges)
    x = x[x > 0]
    return x.tolist(), Chi2(torch.tensor(float(df), dtype=torch.float64)).log_prob(x).exp().tolist()


def _grid(edges: Sequence[float]) -> torch.Tensor:
    return torch.linspace(edges[0], edges[-1], _POINTS, dtype=torch.float64)
