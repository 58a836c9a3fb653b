"""How predictions stand in columns: moments, a covariance matrix, or quantiles."""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import count, pairwise

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, MultivariateNormal

from fcal.distributions import QuantileLaw
from fcal.tables.block import Block
from fcal.tables.errors import file_error, missing_column, shown
from fcal.tables.families import MomentFamily
from fcal.tables.files import TableFile

_SYMMETRY = 1e-4  # largest difference of mirrored covariances, relative to the two standard deviations
_MANY_LEVELS = 7
_LETTERED = 10  # up to this dimension `cov_01` is unmistakable


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Which columns hold what.

    Attributes:
        mean: Column of predicted means, or the part of ``mean_0``, ``mean_1``, ... before the number.
        std: The same for predicted standard deviations.
        target: The same for true values; NaN or null where missing.
        group: Column of group labels.
        cluster: Column of cluster labels.
        cov: The part of ``cov_0_1`` before the numbers. Where absent it is ``mean`` with "cov" for "mean", so that
            ``mean_recalibrated`` goes with ``cov_recalibrated``.
        quantiles: Pattern of quantile columns, where the star stands for per cent: ``q*`` is ``q05``, ``q2.5``,
            ``q50``. Where absent, ``q*`` is tried if there is no standard deviation.
        target_optional: Whether there may be no column of targets; they are then all missing.

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
        """What names of covariances begin with."""
        if self.cov is not None:
            return self.cov
        return self.mean.replace("mean", "cov") if "mean" in self.mean else "cov"


class Layout(ABC):
    """Columns that make a prediction and a target."""

    outputs: tuple[str, ...] = ()  # names of means, where there are several
    keeps_family: bool = True  # whether a rescaled prediction can be written as the same columns

    @property
    @abstractmethod
    def numbers(self) -> tuple[str, ...]:
        """Columns that are read."""

    @abstractmethod
    def describe(self) -> str:
        """Layout and columns, in a few words."""

    @abstractmethod
    def prediction(self, block: Block) -> tuple[Distribution, Tensor]:
        """Prediction and target of the rows of a block, checked.

        Raises:
            TableError: A value is not what it must be.
        """


@dataclass(frozen=True)
class Moments(Layout):
    """A mean and a standard deviation for each target: one a row, or D of them."""

    mean: tuple[str, ...]
    std: tuple[str, ...]
    target: tuple[str, ...]
    family: str
    maker: MomentFamily
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
        """Layout and columns, in a few words."""
        outputs = "" if self.scalar else f"{len(self.mean)} outputs, "
        return f"{self.family}: {outputs}mean {_span(self.mean)}, std {_span(self.std)}, target {_span(self.target)}"

    def prediction(self, block: Block) -> tuple[Distribution, Tensor]:
        """A law of the family for each row, of shape (N,), or for each row and output, as vectors."""
        mean = [block.finite(name) for name in self.mean]
        std = [block.positive(name) for name in self.std]
        target = [block.target(name) for name in self.target] or [torch.full_like(m, torch.nan) for m in mean]
        if self.maker.impossible is not None:
            assert self.maker.requirement is not None
            for pair in zip(self.mean, self.std, strict=True):
                block.check(pair, self.maker.requirement, self.maker.impossible)
        law = self.maker.law(*_one_dtype(_stacked(mean, self.scalar), _stacked(std, self.scalar)))
        return law if self.scalar else Independent(law, 1, validate_args=False), _stacked(target, self.scalar)


@dataclass(frozen=True)
class Covariances(Layout):
    """A mean vector and a covariance matrix for each target vector."""

    mean: tuple[str, ...]
    cov: tuple[tuple[str, ...], ...]
    target: tuple[str, ...]

    @property
    def numbers(self) -> tuple[str, ...]:
        """Columns that are read."""
        return (*self.mean, *self._unique(), *self.target)

    def describe(self) -> str:
        """Layout and columns, in a few words."""
        size, cov = len(self.mean), _span((self.cov[0][0], self.cov[-1][-1]))
        return f"multivariate normal of {size}: mean {_span(self.mean)}, covariance {cov}, target {_span(self.target)}"

    def prediction(self, block: Block) -> tuple[MultivariateNormal, Tensor]:
        """A multivariate normal law for each row, in float64: a covariance has twice the digits of a scale."""
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
    """Quantiles of each target, at the same levels in every row."""

    keeps_family = False

    levels: tuple[float, ...]
    columns: tuple[str, ...]
    target: tuple[str, ...]

    @property
    def numbers(self) -> tuple[str, ...]:
        """Columns that are read."""
        return (*self.columns, *self.target)

    def describe(self) -> str:
        """Layout and columns, in a few words."""
        levels = ", ".join(f"{100 * level:g} %" for level in self.levels)
        if len(self.levels) > _MANY_LEVELS:
            levels = f"{len(self.levels)} levels from {100 * self.levels[0]:g} % to {100 * self.levels[-1]:g} %"
        return f"quantiles at {levels}: {_span(self.columns)}, target {_span(self.target)}"

    def prediction(self, block: Block) -> tuple[Distribution, Tensor]:
        """The law through the quantiles of each row."""
        columns = [block.finite(name) for name in self.columns]
        block.check(self.columns, "strictly rising from level to level", _crossing)
        values = torch.stack(_one_dtype(*columns), -1)
        levels = torch.tensor(self.levels, dtype=torch.float64)
        target = block.target(self.target[0]) if self.target else values[:, 0] * torch.nan
        return QuantileLaw(levels, values, validate_args=False), target


def layout_of(file: TableFile, columns: Columns, family: str, maker: MomentFamily) -> Layout:
    """The layout of a file, found from the columns that it has.

    Raises:
        TableError: A column is missing, or its name makes no sense.
    """
    for name in columns.labels():
        file.require(name)
    if columns.quantiles is not None:
        return _quantiles(file, columns, columns.quantiles)
    if columns.mean in file.names and columns.std in file.names:
        return Moments((columns.mean,), (columns.std,), _target(file, columns), family, maker, scalar=True)
    if columns.mean not in file.names and f"{columns.mean}_0" in file.names:
        return _vectors(file, columns, family, maker)
    untouched = columns.mean == Columns.mean and columns.std == Columns.std
    if untouched and _levels(file, "q*"):
        return _quantiles(file, columns, "q*")
    file.require(columns.mean)
    raise missing_column(file.path, columns.std, file.names)


def _vectors(file: TableFile, columns: Columns, family: str, maker: MomentFamily) -> Layout:
    mean = _numbered(file, columns.mean)
    bare = columns.target_optional and f"{columns.target}_0" not in file.names
    target = () if bare else _numbered(file, columns.target, len(mean))
    prefix = columns.covariance_prefix()
    if _covariance_name(file, prefix, 0, 0, len(mean)) is None:
        return Moments(mean, _numbered(file, columns.std, len(mean)), target, family, maker, scalar=False)
    if family != "normal":
        raise file_error(file.path, "of the family normal where it has covariances", shown(family))
    indices = range(len(mean))
    return Covariances(
        mean, tuple(tuple(_covariance(file, prefix, i, j, len(mean)) for j in indices) for i in indices), target
    )


def _numbered(file: TableFile, prefix: str, size: int | None = None) -> tuple[str, ...]:
    known = set(file.names)
    found = next(i for i in count() if f"{prefix}_{i}" not in known)
    beyond = [
        name for name in file.names if (m := re.fullmatch(re.escape(prefix) + r"_(\d+)", name)) and int(m[1]) >= found
    ]
    if (size is not None and found < size) or beyond:
        file.require(f"{prefix}_{found}")
    if size is not None and found > size:
        raise file_error(file.path, f"with {size} columns {shown(prefix + '_0')} and on, one for each mean", f"{found}")
    return tuple(file.require(f"{prefix}_{i}") for i in range(found))


def _covariance(file: TableFile, prefix: str, i: int, j: int, size: int) -> str:
    name = _covariance_name(file, prefix, i, j, size) or _covariance_name(file, prefix, j, i, size)
    return file.require(name or f"{prefix}_{max(i, j)}_{min(i, j)}")


def _covariance_name(file: TableFile, prefix: str, i: int, j: int, size: int) -> str | None:
    names = [f"{prefix}_{i}_{j}"] + [f"{prefix}_{i}{j}"] * (size <= _LETTERED)
    return next((name for name in names if name in file.names), None)


def _levels(file: TableFile, pattern: str) -> dict[str, float]:
    """Quantile columns and their per cent."""
    before, after = map(re.escape, pattern.split("*"))
    matches = ((name, re.fullmatch(before + r"(\d+(?:\.\d+)?)" + after, name)) for name in file.names)
    return {name: float(match[1]) for name, match in matches if match}


def _quantiles(file: TableFile, columns: Columns, pattern: str) -> Quantiles:
    found = sorted(_levels(file, pattern).items(), key=lambda item: item[1])
    if len(found) < 2:
        raise missing_column(file.path, pattern.replace("*", "05") if not found else pattern, file.names)
    if found[-1][1] <= 1:
        some = ", ".join(shown(name) for name, _ in found[:3])
        raise file_error(file.path, "with per cent in names of quantiles, as q05 and q97.5", f"fractions: {some}")
    for name, level in found:
        if not 0 < level < 100:
            raise file_error(file.path, "with per cent within (0, 100) in names of quantiles, as q97.5", shown(name))
    for (first, level), (second, other) in pairwise(found):
        if level == other:
            raise file_error(file.path, "with one column of each quantile", f"{shown(first)} and {shown(second)}")
    names = tuple(file.require(name) for name, _ in found)
    return Quantiles(tuple(level / 100 for _, level in found), names, _target(file, columns))


def _target(file: TableFile, columns: Columns) -> tuple[str, ...]:
    """The column of targets, in a tuple that is empty where it is missing and may be."""
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
