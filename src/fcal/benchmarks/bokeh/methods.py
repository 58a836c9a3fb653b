"""The rows of the table: what each method trains by, or repairs with, and what it may choose from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fcal._registry import Registry

_WEIGHTS = (0.2, 0.1, 0.5)
_RATES = (1.0, 0.3, 2.0)  # a method without a hyper-parameter of its own chooses its learning rate


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A method that trains the network.

    Args:
        title: What people call it.
        plain: Name of the objective of the epochs before its own.
        candidates: Options of its own objective, each with a factor ``rate`` on the learning rate, best guess first.
        deterministic: Whether the network predicts points.
        monitor: What is lowest on validation for the chosen epoch and candidate: a proper score, the same for all.
    """

    title: str
    plain: str = "nll"
    candidates: tuple[Mapping[str, Any], ...]
    deterministic: bool = False
    monitor: str = "nll"


@dataclass(frozen=True, kw_only=True)
class PostHoc:
    """A method that repairs the predictions of the network trained by likelihood, with the validation images.

    Args:
        title: What people call it.
        recalibrator: Its name in ``fcal.recalibration``.
        moments: Whether the repaired law is reduced to a normal one of its mean and standard deviation.
    """

    title: str
    recalibrator: str
    moments: bool = False


@dataclass(frozen=True, kw_only=True)
class Oracle:
    """The law that the labels were drawn from.

    Args:
        title: What people call it.
    """

    title: str = "oracle (knows the noise)"


Method = Trained | PostHoc | Oracle


def _by_rate(name: str) -> tuple[Mapping[str, Any], ...]:
    return tuple({"name": name, "rate": rate} for rate in _RATES)


def _by_weight(name: str, **options: Any) -> tuple[Mapping[str, Any], ...]:
    return tuple({"name": name, "lam": lam, "rate": 1.0, **options} for lam in _WEIGHTS)


def _by_beta() -> tuple[Mapping[str, Any], ...]:
    return tuple({"name": "beta-nll", "beta": beta, "rate": 1.0} for beta in (0.5, 0.25, 1.0))


METHODS: Registry[Method] = Registry("method")
METHODS.add("oracle", Oracle())
METHODS.add(
    "deterministic",
    Trained(
        title="deterministic", plain="smooth-l1", candidates=_by_rate("smooth-l1"), deterministic=True, monitor="l1"
    ),
)
METHODS.add("nll", Trained(title="NLL", candidates=_by_rate("nll")))
METHODS.add("calibration_loss", Trained(title="calibration loss", candidates=_by_weight("calibration-loss")))
METHODS.add("beta_nll", Trained(title="beta-NLL", candidates=_by_beta()))
METHODS.add("mmd", Trained(title="MMD", candidates=_by_weight("mmd")))
METHODS.add("pce_kde", Trained(title="PCE-KDE", candidates=_by_weight("pce-kde")))
METHODS.add("temperature", PostHoc(title="temperature", recalibrator="temperature"))
METHODS.add("isotonic", PostHoc(title="isotonic", recalibrator="isotonic"))
METHODS.add("isotonic_moments", PostHoc(title="isotonic, mean and sd", recalibrator="isotonic", moments=True))
METHODS.add("gp_beta", PostHoc(title="GP-Beta", recalibrator="gp-beta"))
METHODS.add("conformal", PostHoc(title="conformal", recalibrator="conformal"))
METHODS.add("fcal_kl", Trained(title="f-Cal-KL", candidates=_by_weight("fcal", divergence="kl")))
METHODS.add("fcal_wass", Trained(title="f-Cal-Wass", candidates=_by_weight("fcal", divergence="wasserstein")))

ALL_IMAGES = "_all"  # suffix of the row of a method that also trains on the images others hold out
