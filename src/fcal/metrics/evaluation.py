"""``evaluate`` for predictions in memory, and ready-made groups for it."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal

from fcal._arrays import as_flags, as_labels, as_numbers, check_same_index
from fcal._checks import check_integer, check_number, check_values
from fcal.distributions import Empirical
from fcal.metrics.accumulation import accumulate
from fcal.metrics.report import Report
from fcal.metrics.report_from_state import report_from_state
from fcal.metrics.row_sample import RowSampler
from fcal.metrics.state import MAX_GROUPS, Grid

ArrayLike = Any  # a tensor, or an array, series or list of another library
_OCTAVES = 64  # of sigma, on either side of 1


def evaluate(
    pred: Distribution | None = None,
    target: ArrayLike | None = None,
    *,
    mean: ArrayLike | None = None,
    std: ArrayLike | None = None,
    variance: ArrayLike | None = None,
    samples: ArrayLike | None = None,
    df: int = 75,
    bins: int = 20,
    valid_mask: ArrayLike | None = None,
    cluster: ArrayLike | None = None,
    group: ArrayLike | None = None,
    group_names: Sequence[str] | None = None,
    tolerance: float = 0.05,
) -> Report:
    """Are these error bars true?

    Targets, means and all others may be tensors, NumPy arrays, pandas or polars series, or lists.

    Args:
        pred: Prediction of any registered family, scalar or multivariate; or pass ``mean`` and ``std``, or ``samples``.
        target: Targets, shaped like the prediction's samples; NaN (or None) where missing.
        mean: Predicted means of normal distributions, in place of ``pred``.
        std: Their standard deviations, or one for all.
        variance: Their variances, in place of ``std``.
        samples: Draws of MC dropout, or outputs of an ensemble, in place of ``pred``: S of each row. Shape ``(N, S)``,
            or ``(N, S, D)`` of D outputs. See :class:`fcal.distributions.Empirical`.
        df: Number K of squared residuals in a sum q.
        bins: Number S of equal-probability bins of ECE and MCE.
        valid_mask: True where a target counts; shaped like ``target`` or its rows.
        cluster: Equal for rows that belong together (one image, drive or track), numbers or names: intervals, bands and
            tests then treat clusters as independent, not rows. Shaped like ``target`` or its rows.
        group: The group of each row, numbers or names; every group gets a report of its own, its intervals and verdict
            corrected for the number of groups. Shaped like ``target`` or its rows.
        group_names: Names of groups 0, 1, ...; by default what ``group`` has.
        tolerance: Relative error of the scale, and error of the mean in sd, that still counts as calibrated.

    Returns:
        Numbers with their noise, a verdict, curves for figures, and a report of every group; ``print`` shows it.

    Raises:
        TypeError: Wrong types or dtypes, or a family that is not registered.
        ValueError: Shapes that do not fit, values out of range, or fewer than 2 valid targets.

    Example:
        >>> from torch.distributions import Normal
        >>> target = torch.randn(5000, generator=torch.Generator().manual_seed(0))
        >>> report = fcal.evaluate(Normal(torch.zeros(5000), 0.5), target)
        >>> report.verdict, report.reason
        ('over-confident', 'errors are 1.98 (1.94 to 2.02) times as large as the predicted sd says')
        >>> fcal.evaluate(mean=[1.0, 2.0, 3.0], std=[0.5, 0.5, 0.5], target=[1.1, None, 2.6]).n
        2
        >>> draws = target.unsqueeze(1) + torch.randn(5000, 30, generator=torch.Generator().manual_seed(1))
        >>> fcal.evaluate(samples=draws, target=target).verdict  # the truth is nearer than the draws say
        'under-confident'
    """
    grid = Grid(df, bins)
    check_number("tolerance", tolerance, low=0.0, high=1.0)
    arrays = {"mean": mean, "std": std, "variance": variance, "samples": samples}
    check_same_index(**arrays, target=target, valid_mask=valid_mask, cluster=cluster, group=group)
    if target is None:
        raise TypeError("expected `target`, the true values, got None")
    true_values = as_numbers("target", target)
    pred = _prediction(pred, {name: values for name, values in arrays.items() if values is not None}, true_values)
    codes, names = _groups(group, group_names)
    count = len(names) if names is not None else 1
    fingerprints, rows = fitted_on(pred), RowSampler()
    state = accumulate(
        pred,
        true_values,
        grid,
        valid_mask=None if valid_mask is None else as_flags("valid_mask", valid_mask),
        group=codes,
        groups=count,
        cluster=_clusters(cluster),
        fingerprinted=bool(fingerprints),
        rows=rows,
    )
    return report_from_state(state, grid, tolerance=tolerance, fitted_on=fingerprints, group_names=names, rows=rows)


def _prediction(pred: Distribution | None, given: Mapping[str, ArrayLike], target: Tensor) -> Distribution:
    """The prediction, or that of moments or samples."""
    got = " and ".join(f"`{name}`" for name in given) or "nothing"
    if pred is not None:
        if given:
            raise TypeError(f"expected `pred`, moments or samples, got both `pred` and {got}")
        if not isinstance(pred, Distribution):
            kind = type(pred).__name__
            raise TypeError(f"expected `pred` a Distribution (or the options mean= and std=, or samples=), got {kind}")
        return pred
    if given.keys() == {"samples"}:
        return _of_samples(as_numbers("samples", given["samples"]), target)
    for spread in ("std", "variance"):
        if given.keys() == {"mean", spread}:
            return _of_moments(as_numbers("mean", given["mean"]), spread, as_numbers(spread, given[spread]))
    raise TypeError(f"expected `pred`, or `mean` with `std` or `variance`, or `samples`, got {got}")


def _of_moments(loc: Tensor, name: str, spread: Tensor) -> Distribution:
    """Normal distributions of means and, by name, standard deviations or variances."""
    for argument, values, requirement, good in (
        ("mean", loc, "finite", loc.isfinite()),
        (name, spread, "> 0 and finite", (spread > 0) & spread.isfinite()),
    ):
        check_values(argument, requirement, values, good)
    if spread.dim() and spread.shape != loc.shape:
        raise ValueError(f"expected `{name}` of shape {tuple(loc.shape)} like `mean`, got {tuple(spread.shape)}")
    return Normal(loc, (spread.sqrt() if name == "variance" else spread).expand(loc.shape), validate_args=False)


def _of_samples(samples: Tensor, target: Tensor) -> Distribution:
    """The distribution behind samples, whose dimension is the second."""
    shape = tuple(samples.shape)
    if samples.dim() != target.dim() + 1 or (shape[0], *shape[2:]) != tuple(target.shape):
        rows = ", ".join(str(size) for size in ("N", "S", "D")[: max(samples.dim(), 2)])
        hint = "; transpose them" if shape[::-1][:1] == tuple(target.shape) and samples.dim() == 2 else ""
        raise ValueError(f"expected `samples` of shape ({rows}) for {tuple(target.shape)} targets, got {shape}{hint}")
    law = Empirical(samples.movedim(1, -1))
    return Independent(law, 1, validate_args=False) if target.dim() > 1 else law


def _clusters(cluster: ArrayLike | None) -> Tensor | None:
    return cluster if cluster is None or isinstance(cluster, Tensor) else as_labels("cluster", cluster)[0]


def fitted_on(pred: Distribution) -> frozenset[str]:
    """Fingerprint of the targets that the recalibrator of a prediction was fitted on; empty without one."""
    fingerprint = getattr(pred, "fitted_on", None)
    return frozenset([fingerprint] if isinstance(fingerprint, str) else [])


def _groups(group: ArrayLike | None, names: Sequence[str] | None) -> tuple[Tensor | None, list[str] | None]:
    """Codes from 0 on, and the name of each."""
    if group is None:
        if names is not None:
            raise ValueError("expected `group` beside `group_names`, got None")
        return None, None
    if names is None:
        codes, known = as_labels("group", group)
        _check_number_of_groups(len(known))
        return codes, known
    numbers = group if isinstance(group, Tensor) else as_numbers("group", group)
    if numbers.is_complex() or (numbers.is_floating_point() and not bool((numbers == numbers.round()).all())):
        raise TypeError(f"expected `group` of integers beside `group_names`, got {numbers.dtype}")
    named = [str(name) for name in names]
    if len(set(named)) != len(named):
        raise ValueError("expected `group_names` all different, got one twice")
    _check_number_of_groups(len(named))
    return numbers.long(), named


def _check_number_of_groups(count: int) -> None:
    if not 1 <= count <= MAX_GROUPS:
        raise ValueError(f"expected `group` with 1 to {MAX_GROUPS} groups, got {count}")


def sigma_groups(pred: Distribution) -> tuple[Tensor, list[str]]:
    """Groups by predicted sd, one per factor of two; fixed, so that shards of a data set agree.

    Args:
        pred: A prediction with an sd.

    Returns:
        ``group`` and ``group_names`` for :func:`fcal.evaluate`: the group of every element, shaped like the
        prediction's samples (a multivariate prediction has one group per vector, by its mean variance), and the names
        of all groups.

    Example:
        >>> from torch.distributions import Normal
        >>> codes, names = sigma_groups(Normal(torch.zeros(2), torch.tensor([0.3, 5.0])))
        >>> [names[code] for code in codes]
        ['sigma 0.25 to 0.5', 'sigma 4 to 8']
    """
    sigma = pred.stddev.detach().to(torch.float64)
    if pred.event_shape and not hasattr(pred, "base_dist"):  # coordinates of an Independent have their own groups
        sigma = sigma.square().mean(-1).sqrt()
    octave = torch.frexp(sigma).exponent.to(torch.int64) - 1
    edges = [2.0**k for k in range(-_OCTAVES, _OCTAVES + 1)]
    names = [f"sigma {low:.3g} to {high:.3g}" for low, high in pairwise(edges)]
    names[0], names[-1] = f"sigma below {edges[1]:.3g}", f"sigma above {edges[-2]:.3g}"
    return (octave + _OCTAVES).clamp(0, 2 * _OCTAVES - 1), names


def depth_groups(
    depth: Tensor, *, edges: Sequence[float] = (0.0, 10.0, 20.0, 40.0, 80.0), name: str = "depth"
) -> tuple[Tensor, list[str]]:
    """Groups by depth, for predicted or measured depth; fixed, so that shards of a data set agree.

    A prediction that is right given its input is calibrated in every group by *predicted* depth. Groups by *measured*
    depth select by the error: of the pixels measured far away, more have a positive error than a negative one, so that
    even such a prediction looks biased there, the more the larger its sigma is beside the width of a group.

    Args:
        depth: Predicted or measured depth, NaN where missing. Any shape.
        edges: Rising edges in metres; depths below the first or from the last on have a group of their own.
        name: What the names of groups begin with, such as "predicted depth".

    Returns:
        ``group`` and ``group_names`` for :func:`fcal.evaluate`: the group of every pixel, shaped like ``depth``, the
        first where it is NaN, and the names of all groups.

    Raises:
        TypeError: A dtype that is not floating.
        ValueError: Edges that do not rise, or fewer than 2.

    Example:
        >>> codes, names = depth_groups(torch.tensor([3.0, 10.0, 90.0]))
        >>> [names[code] for code in codes]
        ['depth 0 to 10 m', 'depth 10 to 20 m', 'depth from 80 m']
    """
    if not isinstance(depth, Tensor) or not depth.is_floating_point():
        got = depth.dtype if isinstance(depth, Tensor) else type(depth).__name__
        raise TypeError(f"expected `depth` a tensor of a floating dtype, got {got}")
    limits = [check_number("edges", edge, low=-math.inf, high=math.inf) for edge in edges]
    if len(limits) < 2 or any(low >= high for low, high in pairwise(limits)):
        raise ValueError(f"expected `edges` at least 2 rising numbers, got {limits}")
    names = [f"{name} {low:g} to {high:g} m" for low, high in pairwise(limits)]
    names = [f"{name} below {limits[0]:g} m", *names, f"{name} from {limits[-1]:g} m"]
    values = torch.where(torch.isnan(depth), -math.inf, depth.detach())
    codes = torch.bucketize(values, torch.tensor(limits, dtype=depth.dtype, device=depth.device), right=True)
    return codes, names


def region_groups(target: Tensor, *, rows: int = 3, columns: int = 3) -> tuple[Tensor, list[str]]:
    """Groups by position in an image: a grid of regions.

    Args:
        target: Images, height and width last. Shape ``(..., H, W)``.
        rows: Number of regions from top to bottom.
        columns: Number of regions from left to right.

    Returns:
        The group of every pixel, shaped like ``target``, and the names of all groups.

    Example:
        >>> codes, names = region_groups(torch.zeros(2, 4), rows=1, columns=2)
        >>> codes.tolist(), names
        ([[0, 0, 1, 1], [0, 0, 1, 1]], ['row 1 of 1, column 1 of 2', 'row 1 of 1, column 2 of 2'])
    """
    check_integer("rows", rows, at_least=1)
    check_integer("columns", columns, at_least=1)
    if target.dim() < 2:
        raise ValueError(f"expected `target` of shape (..., H, W), got {tuple(target.shape)}")
    height, width = target.shape[-2:]
    down = torch.arange(height, device=target.device) * rows // max(height, 1)
    across = torch.arange(width, device=target.device) * columns // max(width, 1)
    codes = down.unsqueeze(1) * columns + across
    names = [f"row {i + 1} of {rows}, column {j + 1} of {columns}" for i in range(rows) for j in range(columns)]
    return codes.expand(target.shape), names
