"""Evaluation of a prediction that is in memory."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal._checks import check_integer, check_number
from fcal.metrics.gathering import gathered
from fcal.metrics.grid import Grid
from fcal.metrics.report import Report
from fcal.metrics.reporting import Options, report_of

MOST_GROUPS = 1000
_MOST_BINS = 10_000
_MOST_DF = 10_000


def evaluate(
    pred: Distribution,
    target: Tensor,
    *,
    df: int = 75,
    bins: int = 20,
    valid_mask: Tensor | None = None,
    cluster: Tensor | None = None,
    group: Tensor | None = None,
    group_names: Sequence[str] | None = None,
    tolerance: float = 0.05,
) -> Report:
    """Are these error bars true?

    Args:
        pred: Prediction of any registered family, scalar or multivariate.
        target: Targets, shaped like the prediction's samples; NaN where missing.
        df: Number K of squared residuals in a sum q.
        bins: Number S of equal-probability bins of ECE and MCE.
        valid_mask: True where a target counts; shaped like ``target`` or its rows.
        cluster: Integers that say which rows belong together (one image, drive or track): intervals, bands and tests
            then work on clusters. Shaped like ``target`` or its rows.
        group: Integers that say which group a row belongs to; each gets a report of its own, its intervals and verdict
            corrected for their number. Shaped like ``target`` or its rows.
        group_names: Names of groups 0, 1, ...; their numbers where absent.
        tolerance: Relative error of the scale, and error of the mean in sd, that still counts as calibrated.

    Returns:
        Numbers with their noise, a verdict, curves for pictures, and the same for every group.

    Raises:
        TypeError: Wrong types or dtypes, or a family that is not registered.
        ValueError: Shapes that do not fit, values out of range, or fewer than 2 targets that count.

    Example:
        >>> from torch.distributions import Normal
        >>> target = torch.randn(5000, generator=torch.Generator().manual_seed(0))
        >>> report = fcal.evaluate(Normal(torch.zeros(5000), 0.5), target)
        >>> report.verdict, report.reason
        ('over-confident', 'errors are 1.98 (1.94 to 2.02) times as large as the predicted sd says')
    """
    grid = checked_grid(df, bins)
    check_number("tolerance", tolerance, low=0.0, high=1.0)
    codes, names = _groups(group, group_names)
    count = len(names) if names is not None else 1
    seen = fitted_on(pred)
    state = gathered(
        pred,
        target,
        grid,
        valid_mask=valid_mask,
        group=codes,
        groups=count,
        cluster=cluster,
        fingerprinted=bool(seen),
    )
    return report_of(state, Options(grid=grid, tolerance=tolerance, fitted_on=seen, groups=names))


def checked_grid(df: int, bins: int) -> Grid:
    """Bins of an evaluation, within bounds that keep its state below a megabyte."""
    return Grid(
        check_integer("df", df, at_least=1, at_most=_MOST_DF),
        check_integer("bins", bins, at_least=2, at_most=_MOST_BINS),
    )


def fitted_on(pred: Distribution) -> frozenset[str]:
    """Fingerprint of the targets that the recalibrator of a prediction was fitted on, if it was recalibrated."""
    found = getattr(pred, "fitted_on", None)
    return frozenset([found] if isinstance(found, str) else [])


def _groups(group: Tensor | None, names: Sequence[str] | None) -> tuple[Tensor | None, list[str] | None]:
    """Codes from 0 on, and a name for each that occurs or is named."""
    if group is None:
        if names is not None:
            raise ValueError("expected `group` beside `group_names`, got None")
        return None, None
    if not isinstance(group, Tensor) or group.is_floating_point() or group.is_complex():
        found = group.dtype if isinstance(group, Tensor) else type(group).__name__
        raise TypeError(f"expected `group` a tensor of integers, got {found}")
    if names is not None:
        named = [str(name) for name in names]
        if len(set(named)) != len(named):
            raise ValueError("expected `group_names` all different, got one twice")
        _check_number_of_groups(len(named))
        return group, named
    values, codes = torch.unique(group, return_inverse=True)
    _check_number_of_groups(len(values))
    return codes, [str(value) for value in values.tolist()]


def _check_number_of_groups(count: int) -> None:
    if not 1 <= count <= MOST_GROUPS:
        raise ValueError(f"expected `group` with 1 to {MOST_GROUPS} groups, got {count}")
