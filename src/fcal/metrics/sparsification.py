"""Sparsification: the error of the pixels that remain as the most uncertain ones are removed."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fcal._checks import check_count
from fcal.metrics.depth_accuracy import valid_pixels
from fcal.metrics.report import Sparsification, plain
from fcal.metrics.report_from_state import DROPPED, mean_gap, remaining_mean
from fcal.metrics.state import LOG_BINS, Array, log_index


@dataclass(frozen=True, kw_only=True)
class RankedErrors:
    """One error score as pixels are removed, and two areas that summarise the curves.

    Curves and areas are relative to the score of all pixels; times ``error`` they are in its unit.

    Attributes:
        error: Score of all pixels.
        ause: Mean gap between the curves by sigma and by error, over shares removed from 0 to 0.99; 0 when sigma ranks
            pixels exactly as their errors do.
        aurg: Mean gap between removing at random, which keeps the score at 1, and the curve by sigma: what the ranking
            gains; negative when sigma ranks worse than chance.
        curve: The curves.
    """

    error: float
    ause: float
    aurg: float
    curve: Sparsification


@dataclass(frozen=True, kw_only=True)
class SparsificationReport:
    """Sparsification of two scores.

    Attributes:
        n: Number of valid pixels.
        rmse: RMSE; in the best possible order, pixels are removed by absolute error.
        abs_rel: AbsRel; in the best possible order, pixels are removed by absolute error divided by depth.

    Example:
        >>> depth, target = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([2.0, 2.0, 4.0])
        >>> report = sparsification_curves(depth, torch.tensor([3.0, 2.0, 1.0]), target)
        >>> report.rmse.ause, report.rmse.curve.by_sigma[0], report.rmse.curve.by_sigma[-1]
        (0.0, 1.0, 0.0)
    """

    n: int
    rmse: RankedErrors
    abs_rel: RankedErrors

    def as_dict(self, *, curves: bool = False) -> dict[str, Any]:
        """Plain numbers and dictionaries for JSON."""
        document: dict[str, Any] = {"n": self.n, "rmse": plain(self.rmse), "abs_rel": plain(self.abs_rel)}
        if not curves:
            del document["rmse"]["curve"], document["abs_rel"]["curve"]
        return document


class SparsificationState(NamedTuple):
    """Counts and sums by value. Shape of each ``(values,)``, values rising; or ``(LOG_BINS,)``, fixed bins of values.

    Attributes:
        sigma: Counts of sigma.
        sigma_square: Sums of squared errors by sigma.
        sigma_ratio: Sums of relative errors by sigma.
        error: Counts of absolute errors.
        error_square: Sums of squared errors by absolute error.
        ratio: Counts of relative errors.
        ratio_sum: Sums of relative errors by relative error.
    """

    sigma: Tensor
    sigma_square: Tensor
    sigma_ratio: Tensor
    error: Tensor
    error_square: Tensor
    ratio: Tensor
    ratio_sum: Tensor


def sparsification_curves(
    depth: Tensor, sigma: Tensor, target: Tensor, *, valid_mask: Tensor | None = None
) -> SparsificationReport:
    r"""Sparsification curves, AUSE and AURG, exact: every value has a place of its own.

    With a share x of the pixels removed, :math:`s(x)` is the score of the remaining ones relative to that of all; for
    RMSE and AbsRel in turn,

    .. math::
        \mathrm{AUSE} = \frac{1}{0.99} \int_0^{0.99} s_\sigma(x) - s_\mathrm{error}(x) \, dx, \quad
        \mathrm{AURG} = \frac{1}{0.99} \int_0^{0.99} 1 - s_\sigma(x) \, dx.

    Pixels with the same sigma are removed together, in shares: the order of ties does not matter. The AUSE of RMSE is
    ``ause`` of :func:`fcal.evaluate` up to the width of the bins there.

    Args:
        depth: Predicted depth. Any shape.
        sigma: Predicted sd, or any positive score of uncertainty. Shape of ``depth``.
        target: Measured depth, NaN where missing. Shape of ``depth``.
        valid_mask: True where a pixel counts. Shape of ``depth``.

    Returns:
        Curves and areas for both scores.

    Raises:
        TypeError: A dtype that is not floating.
        ValueError: Shapes that differ, values that are not positive and finite where they count, or no valid pixel.

    Example:
        >>> depth, target = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.1, 2.2, 3.6])
        >>> fcal.metrics.sparsification_curves(depth, torch.tensor([0.1, 0.2, 0.3]), target).rmse.ause
        0.0
    """
    with torch.no_grad():
        values = _values(depth, sigma, target, valid_mask)
        check_count(len(values.sigma), at_least=1)
        ranks = [torch.unique(x, return_inverse=True) for x in (values.sigma, values.error, values.ratio)]
        return sparsification_report(_sums(values, *((index, len(rising)) for rising, index in ranks)))


def empty_sparsification_state(device: torch.device | None = None) -> SparsificationState:
    """State of fixed bins before any data."""
    names = SparsificationState._fields
    dtypes = [torch.int64 if name in ("sigma", "error", "ratio") else torch.float64 for name in names]
    return SparsificationState(*(torch.zeros(LOG_BINS, dtype=dtype, device=device) for dtype in dtypes))


def sparsification_state(
    depth: Tensor, sigma: Tensor, target: Tensor, *, valid_mask: Tensor | None = None
) -> SparsificationState:
    """State of one batch, in bins of sigma and of errors that are 2 to 3 % wide."""
    with torch.no_grad():
        values = _values(depth, sigma, target, valid_mask)
        return _sums(values, *((log_index(x), LOG_BINS) for x in (values.sigma, values.error, values.ratio)))


class _Values(NamedTuple):
    """Valid pixels in float64: predicted sd, absolute error, absolute error divided by depth. Shape ``(n,)``."""

    sigma: Tensor
    error: Tensor
    ratio: Tensor


def _values(depth: Tensor, sigma: Tensor, target: Tensor, valid_mask: Tensor | None) -> _Values:
    _, *values = valid_pixels(target, valid_mask, depth=depth, sigma=sigma)
    measured, predicted, spread = (x.double() for x in values)
    error = (predicted - measured).abs()
    return _Values(spread, error, error / measured)


def _sums(
    values: _Values, by_sigma: tuple[Tensor, int], by_error: tuple[Tensor, int], by_ratio: tuple[Tensor, int]
) -> SparsificationState:
    """Counts and sums from the bin of each value, and the number of bins, in the three orders."""

    def sums(place: tuple[Tensor, int], weight: Tensor | None = None) -> Tensor:
        index, count = place
        return torch.bincount(index, weight, minlength=count)

    square = values.error.square()
    return SparsificationState(
        sigma=sums(by_sigma),
        sigma_square=sums(by_sigma, square),
        sigma_ratio=sums(by_sigma, values.ratio),
        error=sums(by_error),
        error_square=sums(by_error, square),
        ratio=sums(by_ratio),
        ratio_sum=sums(by_ratio, values.ratio),
    )


def sparsification_report(state: SparsificationState) -> SparsificationReport:
    """Report of a state.

    Raises:
        ValueError: No valid pixel.
    """
    n = int(state.sigma.sum())
    check_count(n, at_least=1)
    sigma, square, ratio, error, error_square, relative, relative_sum = (x.cpu().double().numpy() for x in state)
    rmse = (np.sqrt(remaining_mean(*counts)) for counts in ((sigma, square), (error, error_square)))
    abs_rel = (remaining_mean(*counts) for counts in ((sigma, ratio), (relative, relative_sum)))
    return SparsificationReport(
        n=n,
        rmse=_ranked(float(np.sqrt(square.sum() / n)), *rmse),
        abs_rel=_ranked(float(ratio.sum() / n), *abs_rel),
    )


def _ranked(error: float, by_sigma: Array, by_error: Array) -> RankedErrors:
    return RankedErrors(
        error=error,
        ause=mean_gap(by_sigma, by_error),
        aurg=mean_gap(np.ones_like(by_sigma), by_sigma) if error > 0 else 0.0,
        curve=Sparsification(*(tuple(x.tolist()) for x in (DROPPED, by_sigma, by_error))),
    )
