"""Layouts of prediction tables: columns of moments, of a covariance matrix, of quantiles or of samples."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import count, pairwise

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, MultivariateNormal

from fcal._checks import check_number
from fcal.distributions import Empirical, QuantileLaw
from fcal.distributions.empirical import FEWEST_SAMPLES
from fcal.tables import families
from fcal.tables.readers import Block, OtherColumnsError, TableError, TableFile, file_error, shown

_SYMMETRY = 1e-4  # largest difference of cov_i_j and cov_j_i, relative to both standard deviations
_MANY_LEVELS = 7
_SAMPLES = ("s", "sample", "samples", "draw", "draws")
_MAX_SINGLE_DIGITS = 10  # up to this dimension `cov_01` is unambiguous


_AS_DEVIATION: dict[str, Callable[[Tensor], Tensor]] = {
    "std": lambda values: values,
    "variance": torch.sqrt,
    "log_variance": lambda values: (values.double() / 2).exp(),  # in float64, since their range is wide
}
_WORDS = {"std": "std", "variance": "variance", "log_variance": "log-variance"}
_LARGEST_LOG = 700.0  # of a variance: beyond, it is infinite or 0 in float64


def _deviation(block: Block, name: str, kind: str) -> Tensor:
    """Standard deviations of a column of them, of variances or of their logarithms."""
    if kind != "log_variance":
        return _AS_DEVIATION[kind](block.positive(name))
    values = block.finite(name)
    block.check((name,), f"within {_LARGEST_LOG:g} of 0", lambda column: column.abs() > _LARGEST_LOG)
    return _AS_DEVIATION[kind](values)


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Names of the columns.

    Attributes:
        mean: Column of predicted means, or the prefix of ``mean_0``, ``mean_1``, ...
        std: The same for predicted standard deviations.
        target: The same for true values, NaN or null where missing.
        group: Column of group labels.
        cluster: Column of cluster labels.
        cov: Prefix of ``cov_0_1``. By default ``mean`` with "mean" replaced by "cov", so that ``mean_recalibrated``
            goes with ``cov_recalibrated``.
        variance: Column, or prefix, of predicted variances in place of standard deviations.
        log_variance: The same for logarithms of variances.
        lower: Column of the lower bounds of central intervals, in place of mean and standard deviation.
        upper: Column of their upper bounds.
        level: Probability of these intervals.
        quantiles: Pattern of quantile columns, in which the star stands for per cent: ``q*`` matches ``q05``,
            ``q2.5`` and ``q50``. By default ``q*`` is tried where there is no standard deviation.
        samples: Pattern of columns of samples, in which the star stands for their numbers: ``s*`` matches ``s0``,
            ``s1``, ...; or the name of an array of shape (N, S). By default the usual names are tried where there are
            no quantiles either.
        target_optional: Whether the targets may be absent; all are missing then.

    Example:
        >>> Columns(mean="prediction").target
        'target'
    """

    mean: str = "mean"
    std: str = "std"
    target: str = "target"
    group: str | None = None
    cluster: str | None = None
    cov: str | None = None
    variance: str | None = None
    log_variance: str | None = None
    lower: str | None = None
    upper: str | None = None
    level: float = 0.9
    quantiles: str | None = None
    samples: str | None = None
    target_optional: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("target_optional", "level"):
                continue
            if not isinstance(value, str) and (value is not None or field.default is not None):
                raise TypeError(f"expected `{field.name}` a column name, got {value!r}")
        if self.quantiles is not None and self.quantiles.count("*") != 1:
            raise ValueError(f"expected `quantiles` a pattern with one star, as 'q*', got {self.quantiles!r}")
        if self.samples is not None and self.samples.count("*") > 1:
            raise ValueError(f"expected `samples` a pattern with one star, as 's*', got {self.samples!r}")
        if isinstance(self.level, int | float) and 1 < self.level < 100:
            raise ValueError(f"expected `level` a probability, got {self.level:g}: did you mean {self.level / 100:g}?")
        check_number("level", self.level, low=1e-6, high=1 - 1e-6)
        if (self.lower is None) != (self.upper is None):
            given, other = ("upper", "lower") if self.lower is None else ("lower", "upper")
            raise ValueError(f"expected `{given}` together with `{other}`, got no {other}")
        spreads = [
            name for name in ("variance", "log_variance", "lower", "quantiles", "samples") if getattr(self, name)
        ]
        if len(spreads) > 1:
            raise ValueError(f"expected one way to tell the size of error bars, got {' and '.join(spreads)}")

    def labels(self) -> tuple[str, ...]:
        """Columns of labels, if any."""
        return tuple(dict.fromkeys(name for name in (self.group, self.cluster) if name is not None))

    def spread(self) -> tuple[str, str]:
        """What tells the size of error bars, ``"std"``, ``"variance"`` or ``"log_variance"``, and its column."""
        for name in ("variance", "log_variance"):
            column = getattr(self, name)
            if column is not None:
                return name, column
        return "std", self.std

    def covariance_prefix(self) -> str:
        """Prefix of the names of covariances."""
        if self.cov is not None:
            return self.cov
        return self.mean.replace("mean", "cov") if "mean" in self.mean else "cov"


@dataclass(frozen=True)
class Layout:
    """Columns that hold a prediction and a target.

    Attributes:
        numbers: Columns that are read.
        description: Layout and columns in a few words.
        prediction: Function of a block to its prediction and target; an invalid value raises a ``TableError``.
        outputs: Names of the means, where there are several independent ones.
        keeps_family: Whether a rescaled prediction has the same columns.
    """

    numbers: tuple[str, ...]
    description: str
    prediction: Callable[[Block], tuple[Distribution, Tensor]]
    outputs: tuple[str, ...] = ()
    keeps_family: bool = True


def layout_of(file: TableFile, columns: Columns, family: str) -> Layout:
    """The layout of a file, by the names of its columns.

    Raises:
        TableError: A column is missing, or a name is invalid.
    """
    for name in columns.labels():
        file.require(name)
    if columns.lower is not None and columns.upper is not None:
        tail = (1 - columns.level) / 2
        bounds = {columns.lower: 100 * tail, columns.upper: 100 * (1 - tail)}
        levels = {file.require(name): level for name, level in bounds.items()}
        return _quantiles(file, columns, levels, rising="with the lower bound below the upper one")
    if columns.quantiles is not None:
        return _quantiles(
            file, columns, _checked_levels(file, columns.quantiles), rising=_rising(file, columns.quantiles)
        )
    if columns.samples is not None:
        return _samples(file, columns, _checked_samples(file, columns.samples))
    spread = columns.spread()[1]
    if columns.mean in file.names and spread in file.names:
        return _moments((columns.mean,), (spread,), _target(file, columns), columns, family, scalar=True)
    endings = vector_endings(file, columns) if columns.mean not in file.names else ()
    if endings:
        return _vectors(file, columns, family, endings)
    is_default = columns.mean == Columns.mean and spread == Columns.std
    if is_default and has_quantiles(file):
        return _quantiles(file, columns, _checked_levels(file, "q*"))
    pattern = samples_pattern(file) if is_default else None
    if pattern is not None:
        return _samples(file, columns, _checked_samples(file, pattern))
    file.require(columns.mean)
    raise file.missing(spread)


def _rising(file: TableFile, pattern: str) -> str:
    rising = "strictly rising from level to level"
    return (
        f"{rising} (samples, in any order, are read by `samples`)"
        if _are_consecutive(_numbered(file, pattern))
        else rising
    )


def has_quantiles(file: TableFile) -> bool:
    """Whether a file has columns of quantiles under their usual names, ``q05`` and so on."""
    return bool(_levels(file, "q*"))


def samples_pattern(file: TableFile) -> str | None:
    """Pattern of the columns of samples under their usual names, ``s0``, ``sample_0``, ...; None without them."""
    found = (f"{name}{sign}*" for name in _SAMPLES for sign in ("", "_"))
    return next((pattern for pattern in found if len(_numbered(file, pattern)) >= FEWEST_SAMPLES), None)


def vector_endings(file: TableFile, columns: Columns) -> tuple[str, ...]:
    """Endings of the columns of several outputs: ``0``, ``1``, ..., or those that means and error bars share."""
    if f"{columns.mean}_0" in file.names:
        return tuple(map(str, range(_count_numbered(file, columns.mean))))
    prefix, spread = f"{columns.mean}_", columns.spread()[1]
    endings = (name.removeprefix(prefix) for name in file.names if name.startswith(prefix))
    return tuple(ending for ending in endings if f"{spread}_{ending}" in file.names)


def _vectors(file: TableFile, columns: Columns, family: str, endings: Sequence[str]) -> Layout:
    numbered = endings[0] == "0"
    target = () if columns.target_optional and f"{columns.target}_{endings[0]}" not in file.names else columns.target
    if numbered:  # a gap or another number of columns is told
        for name in (columns.mean, *([target] if target else [])):
            _check_numbered(file, name, len(endings))
    mean = _ending(file, columns.mean, endings)
    targets = _ending(file, target, endings) if target else ()
    prefix = columns.covariance_prefix()
    if not numbered or _covariance_name(file, prefix, 0, 0, len(mean)) is None:
        spread = columns.spread()[1]
        if numbered:
            _check_numbered(file, spread, len(endings))
        return _moments(mean, _ending(file, spread, endings), targets, columns, family, scalar=False)
    if family != "normal":
        raise file_error(file.path, "of the family normal where it has covariances", shown(family))
    indices = range(len(mean))
    return _covariances(mean, [[_covariance(file, prefix, i, j, len(mean)) for j in indices] for i in indices], targets)


def _ending(file: TableFile, prefix: str, endings: Sequence[str]) -> tuple[str, ...]:
    return tuple(file.require(f"{prefix}_{ending}") for ending in endings)


def _moments(
    mean: tuple[str, ...],
    spread: tuple[str, ...],
    target: tuple[str, ...],
    columns: Columns,
    family: str,
    *,
    scalar: bool,
) -> Layout:
    """Means and standard deviations, or variances, of one or several targets per row."""
    moments, (kind, _) = families.family(family), columns.spread()

    def stacked(columns: list[Tensor]) -> Tensor:
        return columns[0] if scalar else torch.stack(columns, -1)

    def prediction(block: Block) -> tuple[Distribution, Tensor]:
        """A distribution per row, of batch shape (N,), or per row and output, as ``Independent``."""
        loc = stacked([block.finite(name) for name in mean])
        scale = stacked([_deviation(block, name, kind) for name in spread])
        true_values = stacked([block.target(name) for name in target]) if target else torch.full_like(loc, torch.nan)
        if moments.impossible is not None:
            assert moments.requirement is not None
            for pair in zip(mean, spread, strict=True):
                block.check(pair, moments.requirement, partial(_of_moments, moments.impossible, kind))
        dtype = torch.promote_types(loc.dtype, scale.dtype)
        pred = moments.law(loc.to(dtype), scale.to(dtype))
        return pred if scalar else Independent(pred, 1, validate_args=False), true_values

    count = "" if scalar else f"{len(mean)} outputs, "
    return Layout(
        numbers=(*mean, *spread, *target),
        description=f"{family}: {count}mean {_span(mean)}, {_WORDS[kind]} {_span(spread)}, target {_span(target)}",
        prediction=prediction,
        outputs=() if scalar else mean,
    )


def _of_moments(impossible: Callable[..., Tensor], kind: str, mean: Tensor, spread: Tensor) -> Tensor:
    return impossible(mean, _AS_DEVIATION[kind](spread))


def _covariances(mean: tuple[str, ...], cov: list[list[str]], target: tuple[str, ...]) -> Layout:
    """A mean vector and a covariance matrix per row."""
    entries = tuple(dict.fromkeys(name for row in cov for name in row))

    def matrix(*values: Tensor) -> Tensor:
        by_name = dict(zip(entries, values, strict=True))
        return torch.stack([torch.stack([by_name[n].double() for n in row], -1) for row in cov], -2)

    def asymmetric(*values: Tensor) -> Tensor:
        covariance = matrix(*values)
        scale = covariance.diagonal(dim1=-2, dim2=-1).abs().sqrt()
        allowed = _SYMMETRY * scale.unsqueeze(-1) * scale.unsqueeze(-2)
        return ((covariance - covariance.mT).abs() > allowed).flatten(1).any(1)

    def indefinite(*values: Tensor) -> Tensor:
        return torch.linalg.cholesky_ex(matrix(*values))[1] != 0

    def prediction(block: Block) -> tuple[Distribution, Tensor]:
        """A multivariate normal distribution per row, in float64: covariances are squares of scales."""
        loc = torch.stack([block.finite(name) for name in mean], -1).double()
        true_values = torch.stack([block.target(name) for name in target], -1) if target else loc * torch.nan
        values = [block.finite(name) for name in entries]
        block.check(entries, "a symmetric matrix", asymmetric)
        factor, failed = torch.linalg.cholesky_ex(matrix(*values))
        if bool(failed.any()):
            block.check(entries, "a positive definite matrix", indefinite)
        return MultivariateNormal(loc, scale_tril=factor, validate_args=False), true_values

    columns = f"mean {_span(mean)}, covariance {_span((cov[0][0], cov[-1][-1]))}, target {_span(target)}"
    return Layout((*mean, *entries, *target), f"multivariate normal of {len(mean)}: {columns}", prediction)


def _quantiles(
    file: TableFile,
    columns: Columns,
    levels: Mapping[str, float],
    *,
    rising: str = "strictly rising from level to level",
) -> Layout:
    """Quantiles of one target per row, at the same levels in every row; levels in per cent by column, rising."""
    names = tuple(file.require(name) for name in levels)
    fractions = [level / 100 for level in levels.values()]
    target = _target(file, columns)

    def prediction(block: Block) -> tuple[Distribution, Tensor]:
        """The distribution through the quantiles of each row."""
        quantiles = torch.stack([block.finite(name) for name in names], -1)
        block.check(names, rising, _crossing)
        true_values = block.target(target[0]) if target else quantiles[:, 0] * torch.nan
        return QuantileLaw(torch.tensor(fractions, dtype=torch.float64), quantiles, validate_args=False), true_values

    percents = [f"{100 * fraction:g} %" for fraction in fractions]
    listed = ", ".join(percents)
    if len(percents) > _MANY_LEVELS:
        listed = f"{len(percents)} levels from {percents[0]} to {percents[-1]}"
    description = f"quantiles at {listed}: {_span(names)}, target {_span(target)}"
    return Layout((*names, *target), description, prediction, keeps_family=False)


def _samples(file: TableFile, columns: Columns, names: Sequence[str]) -> Layout:
    """Samples of one target per row."""
    target = _target(file, columns)

    def prediction(block: Block) -> tuple[Distribution, Tensor]:
        """The distribution behind the samples of each row."""
        samples = torch.stack([block.finite(name) for name in names], -1)
        block.check(names, "that differ within a row, as the spread is not known otherwise", _equal)
        true_values = block.target(target[0]) if target else samples[:, 0] * torch.nan
        return Empirical(samples, validate_args=False), true_values

    description = f"{len(names)} samples: {_span(names)}, target {_span(target)}"
    return Layout((*names, *target), description, prediction, keeps_family=False)


def _equal(*samples: Tensor) -> Tensor:
    rows = torch.stack(samples, -1)
    return ~(rows.amax(-1) > rows.amin(-1))


def _numbered(file: TableFile, pattern: str) -> dict[str, int]:
    """Columns of a pattern in which the star is a whole number, by these numbers; a name alone is that of an array."""
    whole = pattern if "*" in pattern else f"{pattern}_*"
    before, after = map(re.escape, whole.split("*"))
    matches = ((name, re.fullmatch(before + r"(\d{1,9})" + after, name)) for name in file.names)
    return dict(sorted(((name, int(match[1])) for name, match in matches if match), key=lambda item: item[1]))


def _checked_samples(file: TableFile, pattern: str) -> list[str]:
    """Columns of samples, in the order of their numbers, which have no gap."""
    numbers = _numbered(file, pattern)
    if len(numbers) < FEWEST_SAMPLES:
        if not numbers:
            raise _no_columns(file, "samples", pattern if "*" in pattern else f"{pattern}_0")
        names = ", ".join(map(shown, numbers))
        remedy = "name mean and std columns, or draw more"
        raise file_error(file.path, f"with at least {FEWEST_SAMPLES} columns of samples", f"{names}; {remedy}")
    for (first, number), (second, other) in pairwise(numbers.items()):
        if other != number + 1:
            message = f"with samples numbered one after the other, got {shown(second)} after {shown(first)}"
            if min(numbers.values()) > 0 and max(numbers.values()) < 100 and "*" in pattern:
                options = {"samples": None, "quantiles": pattern}
                raise OtherColumnsError(f"expected `{file.path}` {message}: are these quantiles?", options)
            raise TableError(f"expected `{file.path}` {message}")
    return list(numbers)


def _count_numbered(file: TableFile, prefix: str) -> int:
    """Number of the names ``prefix_0``, ``prefix_1``, ... before the first gap."""
    names = set(file.names)
    return next(i for i in count() if f"{prefix}_{i}" not in names)


def _check_numbered(file: TableFile, prefix: str, size: int) -> None:
    """Refuse names ``prefix_0``, ``prefix_1``, ... with a gap, or of which there are not ``size``."""
    number = _count_numbered(file, prefix)
    pattern = re.compile(re.escape(prefix) + r"_(\d+)")
    has_gap = any((match := pattern.fullmatch(name)) and int(match[1]) >= number for name in file.names)
    if number < size or has_gap:
        file.require(f"{prefix}_{number}")
    if number > size:
        requirement = f"with {size} columns {shown(prefix + '_0')} and on, one for each mean"
        raise file_error(file.path, requirement, f"{number}")


def _covariance(file: TableFile, prefix: str, i: int, j: int, size: int) -> str:
    name = _covariance_name(file, prefix, i, j, size) or _covariance_name(file, prefix, j, i, size)
    return file.require(name or f"{prefix}_{max(i, j)}_{min(i, j)}")


def _covariance_name(file: TableFile, prefix: str, i: int, j: int, size: int) -> str | None:
    names = [f"{prefix}_{i}_{j}"] + [f"{prefix}_{i}{j}"] * (size <= _MAX_SINGLE_DIGITS)
    return next((name for name in names if name in file.names), None)


def _levels(file: TableFile, pattern: str) -> dict[str, float]:
    """Quantile columns and their levels in per cent."""
    before, after = map(re.escape, pattern.split("*"))
    matches = ((name, re.fullmatch(before + r"(\d+(?:\.\d+)?)" + after, name)) for name in file.names)
    return {name: float(match[1]) for name, match in matches if match}


def _checked_levels(file: TableFile, pattern: str) -> dict[str, float]:
    """The same, rising and all different."""
    levels = sorted(_levels(file, pattern).items(), key=lambda item: item[1])
    _check_no_samples(file, pattern)
    if len(levels) < 2:
        raise _no_columns(file, "quantiles", pattern if levels else pattern.replace("*", "05"))
    if levels[-1][1] <= 1:
        first = ", ".join(shown(name) for name, _ in levels[:3])
        raise file_error(file.path, "with per cent in names of quantiles, as q05 and q97.5", f"fractions: {first}")
    for name, level in levels:
        if not 0 < level < 100:
            raise file_error(file.path, "with per cent within (0, 100) in names of quantiles, as q97.5", shown(name))
    for (first, level), (second, other) in pairwise(levels):
        if level == other:
            raise file_error(file.path, "with one column of each quantile", f"{shown(first)} and {shown(second)}")
    return dict(levels)


def _no_columns(file: TableFile, role: str, name: str) -> TableError:
    """The error about a pattern that no column has, with the command that reads what is there."""
    error, samples = file.missing(name), samples_pattern(file)
    options = {"quantiles": "q*"} if has_quantiles(file) else {"samples": samples} if samples else {}
    return OtherColumnsError(str(error), {role: None, **options}) if options else error


def _check_no_samples(file: TableFile, pattern: str) -> None:
    """Refuse columns s0, s1, s2, ... as quantiles."""
    numbers = _numbered(file, pattern)
    if len(numbers) >= FEWEST_SAMPLES and _are_consecutive(numbers) and 0 in numbers.values():
        message = f"with per cent in names of quantiles, got {_span(list(numbers))}: are these samples?"
        raise OtherColumnsError(f"expected `{file.path}` {message}", {"quantiles": None, "samples": pattern})


def _are_consecutive(numbers: Mapping[str, int]) -> bool:
    return all(other == number + 1 for number, other in pairwise(numbers.values()))


def _target(file: TableFile, columns: Columns) -> tuple[str, ...]:
    """The column of targets, as a tuple that is empty where it is absent and optional."""
    if columns.target_optional and columns.target not in file.names:
        return ()
    return (file.require(columns.target),)


def _crossing(*values: Tensor) -> Tensor:
    crossing = torch.zeros(values[0].shape, dtype=torch.bool)
    for low, high in pairwise(values):
        crossing |= ~(low < high)
    return crossing


def _span(names: Sequence[str]) -> str:
    if not names:
        return "none"
    return shown(names[0]) if len(names) == 1 else f"{shown(names[0])} to {shown(names[-1])}"
