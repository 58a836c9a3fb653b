"""Layouts of prediction tables: columns of moments, of a covariance matrix, or of quantiles."""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import count, pairwise

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, MultivariateNormal

from fcal.distributions import QuantileLaw
from fcal.tables.errors import file_error, missing_column, shown
from fcal.tables.families import MomentFamily
from fcal.tables.readers import Block, TableFile

_SYMMETRY = 1e-4  # largest difference of cov_i_j and cov_j_i, relative to both standard deviations
_MANY_LEVELS = 7
_MAX_SINGLE_DIGITS = 10  # up to this dimension `cov_01` is unambiguous


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
        quantiles: Pattern of quantile columns, in which the star stands for per cent: ``q*`` matches ``q05``,
            ``q2.5`` and ``q50``. By default ``q*`` is tried where there is no standard deviation.
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
    quantiles: str | None = None
    target_optional: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "target_optional":
                continue
            if not isinstance(value, str) and (value is not None or field.default is not None):
                raise TypeError(f"expected `{field.name}` a column name, got {value!r}")
        if self.quantiles is not None and self.quantiles.count("*") != 1:
            raise ValueError(f"expected `quantiles` a pattern with one star, as 'q*', got {self.quantiles!r}")

    def labels(self) -> tuple[str, ...]:
        """Columns of labels, if any."""
        return tuple(dict.fromkeys(name for name in (self.group, self.cluster) if name is not None))

    def covariance_prefix(self) -> str:
        """Prefix of the names of covariances."""
        if self.cov is not None:
            return self.cov
        return self.mean.replace("mean", "cov") if "mean" in self.mean else "cov"


class Layout(ABC):
    """Columns that hold a prediction and a target."""

    outputs: tuple[str, ...] = ()  # names of the means, where there are several
    keeps_family: bool = True  # whether a rescaled prediction has the same columns

    @property
    @abstractmethod
    def numbers(self) -> tuple[str, ...]:
        """Columns that are read."""

    @abstractmethod
    def describe(self) -> str:
        """Layout and columns in a few words."""

    @abstractmethod
    def prediction(self, block: Block) -> tuple[Distribution, Tensor]:
        """Prediction and target of a block.

        Raises:
            TableError: A value is invalid.
        """


@dataclass(frozen=True)
class Moments(Layout):
    """Means and standard deviations of one or several targets per row."""

    mean: tuple[str, ...]
    std: tuple[str, ...]
    target: tuple[str, ...]
    family: str
    moment_family: MomentFamily
    scalar: bool

    @property
    def outputs(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the means, where there are several."""
        return () if self.scalar else self.mean

    @property
    def numbers(self) -> tuple[str, ...]:
        """Columns that are read."""
        return (*self.mean, *self.std, *self.target)

    def describe(self) -> str:
        """Layout and columns in a few words."""
        outputs = "" if self.scalar else f"{len(self.mean)} outputs, "
        return f"{self.family}: {outputs}mean {_span(self.mean)}, std {_span(self.std)}, target {_span(self.target)}"

    def prediction(self, block: Block) -> tuple[Distribution, Tensor]:
        """A distribution per row, of batch shape (N,), or per row and output, as ``Independent``."""
        mean = [block.finite(name) for name in self.mean]
        std = [block.positive(name) for name in self.std]
        target = [block.target(name) for name in self.target] or [torch.full_like(m, torch.nan) for m in mean]
        if self.moment_family.impossible is not None:
            assert self.moment_family.requirement is not None
            for pair in zip(self.mean, self.std, strict=True):
                block.check(pair, self.moment_family.requirement, self.moment_family.impossible)
        pred = self.moment_family.law(*_one_dtype(_stacked(mean, self.scalar), _stacked(std, self.scalar)))
        return pred if self.scalar else Independent(pred, 1, validate_args=False), _stacked(target, self.scalar)


@dataclass(frozen=True)
class Covariances(Layout):
    """A mean vector and a covariance matrix per row."""

    mean: tuple[str, ...]
    cov: tuple[tuple[str, ...], ...]
    target: tuple[str, ...]

    @property
    def numbers(self) -> tuple[str, ...]:
        """Columns that are read."""
        return (*self.mean, *self._unique(), *self.target)

    def describe(self) -> str:
        """Layout and columns in a few words."""
        size, cov = len(self.mean), _span((self.cov[0][0], self.cov[-1][-1]))
        return f"multivariate normal of {size}: mean {_span(self.mean)}, covariance {cov}, target {_span(self.target)}"

    def prediction(self, block: Block) -> tuple[MultivariateNormal, Tensor]:
        """A multivariate normal distribution per row, in float64: covariances are squares of scales."""
        mean = torch.stack([block.finite(name) for name in self.mean], -1).double()
        target = torch.stack([block.target(name) for name in self.target], -1) if self.target else mean * torch.nan
        entries = [block.finite(name) for name in self._unique()]
        block.check(self._unique(), "a symmetric matrix", lambda *values: self._asymmetric(self._matrix(values)))
        cov = self._matrix(entries)
        factor, failed = torch.linalg.cholesky_ex(cov)
        if bool(failed.any()):
            block.check(self._unique(), "a positive definite matrix", self._indefinite)
        return MultivariateNormal(mean, scale_tril=factor, validate_args=False), target

    def _unique(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for row in self.cov for name in row))

    def _matrix(self, entries: Sequence[Tensor]) -> Tensor:
        by_name = dict(zip(self._unique(), entries, strict=True))
        return torch.stack([torch.stack([by_name[n].double() for n in row], -1) for row in self.cov], -2)

    def _indefinite(self, *entries: Tensor) -> Tensor:
        return torch.linalg.cholesky_ex(self._matrix(entries))[1] != 0

    @staticmethod
    def _asymmetric(cov: Tensor) -> Tensor:
        scale = cov.diagonal(dim1=-2, dim2=-1).abs().sqrt()
        allowed = _SYMMETRY * scale.unsqueeze(-1) * scale.unsqueeze(-2)
        return ((cov - cov.mT).abs() > allowed).flatten(1).any(1)


@dataclass(frozen=True)
class Quantiles(Layout):
    """Quantiles of one target per row, at the same levels in every row."""

    keeps_family = False

    levels: tuple[float, ...]
    columns: tuple[str, ...]
    target: tuple[str, ...]

    @property
    def numbers(self) -> tuple[str, ...]:
        """Columns that are read."""
        return (*self.columns, *self.target)

    def describe(self) -> str:
        """Layout and columns in a few words."""
        levels = ", ".join(f"{100 * level:g} %" for level in self.levels)
        if len(self.levels) > _MANY_LEVELS:
            levels = f"{len(self.levels)} levels from {100 * self.levels[0]:g} % to {100 * self.levels[-1]:g} %"
        return f"quantiles at {levels}: {_span(self.columns)}, target {_span(self.target)}"

    def prediction(self, block: Block) -> tuple[Distribution, Tensor]:
        """The distribution through the quantiles of each row."""
        columns = [block.finite(name) for name in self.columns]
        block.check(self.columns, "strictly rising from level to level", _crossing)
        values = torch.stack(_one_dtype(*columns), -1)
        levels = torch.tensor(self.levels, dtype=torch.float64)
        target = block.target(self.target[0]) if self.target else values[:, 0] * torch.nan
        return QuantileLaw(levels, values, validate_args=False), target


def layout_of(file: TableFile, columns: Columns, family: str, moment_family: MomentFamily) -> Layout:
    """The layout of a file, by the names of its columns.

    Raises:
        TableError: A column is missing, or a name is invalid.
    """
    for name in columns.labels():
        file.require(name)
    if columns.quantiles is not None:
        return _quantiles(file, columns, columns.quantiles)
    if columns.mean in file.names and columns.std in file.names:
        return Moments((columns.mean,), (columns.std,), _target(file, columns), family, moment_family, scalar=True)
    if columns.mean not in file.names and f"{columns.mean}_0" in file.names:
        return _vectors(file, columns, family, moment_family)
    is_default = columns.mean == Columns.mean and columns.std == Columns.std
    if is_default and _levels(file, "q*"):
        return _quantiles(file, columns, "q*")
    file.require(columns.mean)
    raise missing_column(file.path, columns.std, file.names)


def _vectors(file: TableFile, columns: Columns, family: str, moment_family: MomentFamily) -> Layout:
    mean = _numbered(file, columns.mean)
    without_target = columns.target_optional and f"{columns.target}_0" not in file.names
    target = () if without_target else _numbered(file, columns.target, len(mean))
    prefix = columns.covariance_prefix()
    if _covariance_name(file, prefix, 0, 0, len(mean)) is None:
        return Moments(mean, _numbered(file, columns.std, len(mean)), target, family, moment_family, scalar=False)
    if family != "normal":
        raise file_error(file.path, "of the family normal where it has covariances", shown(family))
    indices = range(len(mean))
    return Covariances(
        mean, tuple(tuple(_covariance(file, prefix, i, j, len(mean)) for j in indices) for i in indices), target
    )


def _numbered(file: TableFile, prefix: str, size: int | None = None) -> tuple[str, ...]:
    """Names ``prefix_0``, ``prefix_1``, ... without a gap, ``size`` of them where it is given."""
    names = set(file.names)
    number = next(i for i in count() if f"{prefix}_{i}" not in names)
    pattern = re.compile(re.escape(prefix) + r"_(\d+)")
    has_gap = any((match := pattern.fullmatch(name)) and int(match[1]) >= number for name in names)
    if (size is not None and number < size) or has_gap:
        file.require(f"{prefix}_{number}")
    if size is not None and number > size:
        requirement = f"with {size} columns {shown(prefix + '_0')} and on, one for each mean"
        raise file_error(file.path, requirement, f"{number}")
    return tuple(file.require(f"{prefix}_{i}") for i in range(number))


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


def _quantiles(file: TableFile, columns: Columns, pattern: str) -> Quantiles:
    levels = sorted(_levels(file, pattern).items(), key=lambda item: item[1])
    if len(levels) < 2:
        raise missing_column(file.path, pattern if levels else pattern.replace("*", "05"), file.names)
    if levels[-1][1] <= 1:
        first = ", ".join(shown(name) for name, _ in levels[:3])
        raise file_error(file.path, "with per cent in names of quantiles, as q05 and q97.5", f"fractions: {first}")
    for name, level in levels:
        if not 0 < level < 100:
            raise file_error(file.path, "with per cent within (0, 100) in names of quantiles, as q97.5", shown(name))
    for (first, level), (second, other) in pairwise(levels):
        if level == other:
            raise file_error(file.path, "with one column of each quantile", f"{shown(first)} and {shown(second)}")
    names = tuple(file.require(name) for name, _ in levels)
    return Quantiles(tuple(level / 100 for _, level in levels), names, _target(file, columns))


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


def _stacked(values: list[Tensor], scalar: bool) -> Tensor:
    return values[0] if scalar else torch.stack(_one_dtype(*values), -1)


def _one_dtype(*values: Tensor) -> list[Tensor]:
    dtype = values[0].dtype
    for value in values[1:]:
        dtype = torch.promote_types(dtype, value.dtype)
    return [value.to(dtype) for value in values]


def _span(names: Sequence[str]) -> str:
    if not names:
        return "none"
    return shown(names[0]) if len(names) == 1 else f"{shown(names[0])} to {shown(names[-1])}"
