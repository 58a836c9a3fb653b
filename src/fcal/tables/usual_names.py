"""Names that people give to the columns of predictions, and which of them a file has."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fcal.tables.layout import Columns, has_quantiles, samples_pattern, vector_endings
from fcal.tables.readers import OtherColumnsError, TableFile, shown

# Lower case, without the signs between words: `Pred_Mean`, `pred mean` and `predMean` are all "predmean".
_USUAL: Mapping[str, tuple[str, ...]] = {
    "mean": (
        "mean", "mu", "loc", "pred", "prediction", "predictions", "predicted", "ypred", "yhat", "ymean", "predmean",
        "meanpred", "predictedmean", "predictionmean", "forecast", "estimate",
    ),
    "std": (
        "std", "sigma", "scale", "sd", "stdev", "stddev", "uncertainty", "ystd", "ysigma", "predstd", "stdpred",
        "predsigma", "sigmapred", "predictedstd", "predictionstd", "standarddeviation",
    ),
    "target": (
        "target", "targets", "y", "ytrue", "ytest", "label", "labels", "truth", "true", "truevalue", "groundtruth",
        "gt", "actual", "observed", "observation", "obs", "measured",
    ),
    "variance": (
        "variance", "var", "sigma2", "sigmasquared", "yvar", "yvariance", "predvar", "varpred", "predvariance",
        "predictedvariance", "predictionvariance",
    ),
    "log_variance": ("logvariance", "logvar", "logsigma2", "predlogvar", "predlogvariance", "logvarpred"),
}  # fmt: skip
_SPREADS = ("std", "variance", "log_variance")


def recognised(file: TableFile, columns: Columns) -> Columns:
    """Columns with the names that a file has in place of default names that it does not have.

    Args:
        file: The file.
        columns: Names that were asked for. Names that are not those of :class:`Columns` by default stay as they are.

    Raises:
        OtherColumnsError: Several columns may be meant, or a column that is a variance by its name is to be read as a
            standard deviation.
    """
    _check_is_no_variance(file, columns)
    if vector_endings(file, columns):
        return columns
    own = _with_target(file, columns)
    if own.quantiles is not None or own.samples is not None or own.lower is not None:
        return own
    is_default = own.mean == Columns.mean and own.std == Columns.std and not own.variance and not own.log_variance
    if is_default and not _candidates(file, "mean", own):
        if has_quantiles(file):
            return own
        pattern = samples_pattern(file)
        if pattern is not None:
            return replace(own, samples=pattern)
    named = replace(own, mean=_single(file, "mean", own) or own.mean)
    if own.std != Columns.std or own.variance or own.log_variance or _has(file, own.std):
        return named
    for role in _SPREADS:
        name = _single(file, role, named)
        if name is not None:
            options: dict[str, Any] = {role: name}
            return replace(named, **options)
    return named


def _with_target(file: TableFile, columns: Columns) -> Columns:
    name = _single(file, "target", columns)
    return columns if name is None else replace(columns, target=name)


def _single(file: TableFile, role: str, columns: Columns) -> str | None:
    """The one column of a role under another name than the default; None if none is needed, or there is none."""
    default = getattr(Columns, role) or role
    asked = getattr(columns, role) or role
    if asked != default or _has(file, default):
        return None
    names = _candidates(file, role, columns)
    if len(names) > 1:
        listed = " and ".join(map(shown, names[:2]))
        message = f"with one column of the {role.replace('_', ' ')}, got {listed}; name the one that is meant"
        options = {**_guessed(file, columns), role: names[0]}
        raise OtherColumnsError(f"expected `{file.path}` {message}", options)
    return names[0] if names else None


def _candidates(file: TableFile, role: str, columns: Columns) -> list[str]:
    """Columns, or prefixes of numbered columns, with one of the usual names of a role."""
    taken = {getattr(columns, other) for other in ("mean", "std", "target", "group", "cluster") if other != role}
    usual = _USUAL[role]
    exact = [name for name in file.names if _plain(name) in usual and name not in taken]
    if exact:
        return exact
    prefixes = (name.removesuffix("_0") for name in file.names if name.endswith("_0"))
    return [prefix for prefix in prefixes if _plain(prefix) in usual and prefix not in taken]


def _guessed(file: TableFile, columns: Columns) -> dict[str, str]:
    """First candidate of every role that has to be named."""
    found: dict[str, str] = {}
    for role in ("mean", "std", "target"):
        names = [] if _has(file, role) else _candidates(file, role, columns)
        found |= {role: names[0]} if names else {}
    return found


def _check_is_no_variance(file: TableFile, columns: Columns) -> None:
    for role in ("variance", "log_variance"):
        if columns.std in file.names and _plain(columns.std) in _USUAL[role]:
            words = role.replace("_", " ")
            message = f"with standard deviations in {shown(columns.std)}, got a name of {words}s: read it as `{role}`"
            raise OtherColumnsError(f"expected `{file.path}` {message}", {"std": None, role: columns.std})


def _has(file: TableFile, name: str) -> bool:
    """Whether a file has a column of this name, or several outputs of it."""
    return name in file.names or f"{name}_0" in file.names


def _plain(name: str) -> str:
    return re.sub(r"[\s_.\-]+", "", name).lower()
