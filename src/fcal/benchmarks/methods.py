"""The rows of every benchmark by name; a method that a user adds to ``METHODS`` appears in all of their tables."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from fcal._registry import Registry
from fcal.benchmarks.method_kinds import (
    CrossFitted,
    CVPlus,
    Ensemble,
    Heads,
    HeadTrained,
    HeldOutEnsemble,
    Method,
    Oracle,
    OutOfBag,
    PointEnsemble,
    Repaired,
    Stated,
    Trained,
)
from fcal.benchmarks.problem import Options
from fcal.plots.styles import RowStyle

RECOMMENDED = "oob_auto"  # what fcal.crossfit does by default
USUAL_ROWS = (  # the methods that most readers want beside each other
    "oracle",
    RECOMMENDED,
    "deterministic",
    "nll",
    "calibration_loss",
    "temperature",
    "isotonic",
    "conformal",
    "fcal_kl",
    "fcal_wass",
    "ensemble_3",
)
ALL_ROWS = "_all"  # suffix of the row of a method that also trains on the rows that others hold out


def _repeated(name: str) -> tuple[Options, ...]:
    return tuple({"name": name, "repetition": repetition} for repetition in range(3))


def _weighted(name: str, *weights: float, **options: Any) -> tuple[Options, ...]:
    return tuple({"name": name, "lam": lam, **options} for lam in weights)


_BETA_NLL = {"name": "beta-nll", "beta": 0.5}
_FCAL_SCALES = {"name": "fcal", "divergence": "kl", "lam": 0.3, "df": 20}
_FCAL_BATCH = 512  # each of eight strata must hold many times df residuals

METHODS: Registry[Method] = Registry("method")
METHODS.add("stated", Stated(title="stated noise"))
METHODS.add("oracle", Oracle(title="oracle (knows the noise)"))
METHODS.add(
    "deterministic",
    Trained(
        title="deterministic", plain="smooth-l1", candidates=_repeated("smooth-l1"), deterministic=True, monitor="l1"
    ),
)
METHODS.add("nll", Trained(title="NLL", candidates=_repeated("nll")))
METHODS.add(
    "nll_base",
    HeadTrained(
        title="NLL, uncertainty head alone",
        plain="smooth-l1",
        candidates=tuple({"name": "nll", "trained": "head", "repetition": repetition} for repetition in (1, 2, 3)),
    ),
)
METHODS.add(
    "calibration_loss",
    Trained(
        title="calibration loss",
        candidates=_weighted("calibration-loss", 0.1, 1.0, 10.0, form="additive", on="variance"),
    ),
)
METHODS.add(
    "beta_nll",
    Trained(title="beta-NLL", candidates=tuple({"name": "beta-nll", "beta": beta} for beta in (0.5, 0.25, 1.0))),
)
METHODS.add("mmd", Trained(title="MMD", candidates=_weighted("mmd", 1.0, 10.0, 0.1, form="additive")))
METHODS.add("pce_kde", Trained(title="PCE-KDE", candidates=_weighted("pce-kde", 0.2, 0.05, 0.5)))
METHODS.add("temperature", Repaired(title="temperature", recalibrator="temperature"))
METHODS.add("isotonic", Repaired(title="isotonic", recalibrator="isotonic"))
METHODS.add("isotonic_moments", Repaired(title="isotonic, mean and sd", recalibrator="isotonic", moments=True))
METHODS.add("gp_beta", Repaired(title="GP-Beta", recalibrator="gp-beta"))
METHODS.add("conformal", Repaired(title="conformal", recalibrator="conformal"))
METHODS.add("fcal_kl", Trained(title="f-Cal-KL", candidates=_weighted("fcal", 0.02, 0.005, 0.1, divergence="kl")))
METHODS.add(
    "fcal_wass", Trained(title="f-Cal-Wass", candidates=_weighted("fcal", 0.02, 0.005, 0.1, divergence="wasserstein"))
)
METHODS.add("ensemble", Ensemble(title="ensemble of 5"))
METHODS.add("ensemble_3", Ensemble(title="ensemble of 3", members=3))
for _count in (3, 5):
    for _name in ("temperature", "conformal"):
        METHODS.add(
            f"ensemble_{_count}_{_name}",
            HeldOutEnsemble(title=f"ensemble of {_count}, {_name}", recalibrator=_name, members=_count),
        )
METHODS.add("deterministic_3", PointEnsemble(title="deterministic, ensemble of 3", members=3))
METHODS.add("deterministic_5", PointEnsemble(title="deterministic, ensemble of 5", members=5))
METHODS.add("oob_auto", OutOfBag(title="out-of-bag ensemble", objective=_BETA_NLL))
METHODS.add("oob_auto_5", OutOfBag(title="out-of-bag ensemble, cost 5", objective=_BETA_NLL, cost=5))
METHODS.add(
    "oob_temperature",
    OutOfBag(title="out-of-bag ensemble, one factor", recalibrator="temperature", objective=_BETA_NLL),
)
METHODS.add(
    "oob_conformal",
    OutOfBag(title="out-of-bag ensemble, conformal", recalibrator="conformal-centred", objective=_BETA_NLL),
)
METHODS.add(
    "oob_power", OutOfBag(title="out-of-bag ensemble, power of sigma", recalibrator="power", objective=_BETA_NLL)
)
METHODS.add("oob_nll", OutOfBag(title="out-of-bag ensemble by NLL", objective={"name": "nll"}))
METHODS.add(
    "oob_mse",
    OutOfBag(title="out-of-bag ensemble, mean by squared error", objective={"name": "beta-nll", "beta": 1.0}),
)
METHODS.add("oob_heads", Heads(title="out-of-bag heads on one trunk", objective=_BETA_NLL))
METHODS.add("oof_temperature", CrossFitted(title="out-of-fold temperature"))
METHODS.add("oof_nll", CrossFitted(title="out-of-fold NLL", scales={"name": "nll"}))
METHODS.add("oof_fcal", CrossFitted(title="out-of-fold f-Cal", scales=_FCAL_SCALES, batch=_FCAL_BATCH))
METHODS.add(
    "oof_fcal_strata",
    CrossFitted(title="out-of-fold f-Cal, 8 strata", scales={**_FCAL_SCALES, "strata": 8}, batch=_FCAL_BATCH),
)
METHODS.add("oof_conformal", CrossFitted(title="out-of-fold conformal", recalibrator="conformal"))
METHODS.add(
    "oof_nll_conformal",
    CrossFitted(title="out-of-fold NLL, conformal", recalibrator="conformal", scales={"name": "nll"}),
)
METHODS.add("cv_plus", CVPlus(title="CV+"))
METHODS.add("cv_plus_absolute", CVPlus(title="CV+ of absolute errors", scaled=False))

_SHIPPED = frozenset(METHODS.names())
_HIGHLIGHTED = ("fcal_wass", "nll", "fcal_kl", "temperature", "calibration_loss", RECOMMENDED)  # most often compared
_ALL_ROWS_NOTE = (
    "Rows “..._all”, or “all data”, are also trained on the held-out data, which the others choose by and post-hoc "
    "methods are fitted on: every method has then seen as many."
)


def added() -> list[str]:
    """Names of the methods that users have added."""
    return [name for name in METHODS.names() if name not in _SHIPPED]


def method_of(row: str, changes: Mapping[str, Mapping[str, Any]] | None = None) -> Method:
    """The method of a row.

    Args:
        row: Name of a method, or of one that trains with :data:`ALL_ROWS` behind it.
        changes: What a task sets otherwise, by method.

    Raises:
        ValueError: It is unknown; the known ones are listed.

    Example:
        >>> method_of("nll").title, method_of("nll_all").all_rows
        ('NLL', True)
    """
    base = row.removesuffix(ALL_ROWS)
    whole = row not in METHODS.names() and base in METHODS.names() and isinstance(METHODS[base], Trained)
    name = base if whole else row
    options = {**(changes or {}).get(name, {}), **({"all_rows": True} if whole else {})}
    method = METHODS[name]
    if not isinstance(method, Method):
        raise TypeError(f"expected `method` {name!r} an instance of fcal.benchmarks.Method, got {method!r:.60}")
    return dataclasses.replace(method, **options)


def row_styles(rows: Iterable[str]) -> dict[str, RowStyle]:
    """How rows are presented in tables and pictures.

    Example:
        >>> row_styles(["nll_all"])["nll_all"].full_title
        'NLL, all data'
    """
    ranks = {name: rank for rank, name in enumerate(_HIGHLIGHTED)}
    styles = {}
    for row in rows:
        method = method_of(row)
        all_rows = isinstance(method, Trained) and method.all_rows
        styles[row] = RowStyle(
            f"{method.title} (recommended)" if row == RECOMMENDED else method.title,
            variant="all data" if all_rows else "",
            footnote=_ALL_ROWS_NOTE if all_rows else "",
            highlight=ranks.get(row),
            reference=method.reference,
        )
    return styles
