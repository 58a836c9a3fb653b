"""The rows of the table: what each method trains by, or repairs with, and what it may choose from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fcal._registry import Registry


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A method that trains the network.

    Args:
        title: What people call it.
        plain: Name of the objective of the epochs before its own.
        candidates: Options of its own objective, best guess first. A method without a hyper-parameter has repetitions
            with other orders of the images instead, so that all have as many to choose from; its repetition 0 is the
            network that the others start from.
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


def _repeated(name: str) -> tuple[Mapping[str, Any], ...]:
    return tuple({"name": name, "repetition": repetition} for repetition in range(3))


def _weighted(name: str, *weights: float, **options: Any) -> tuple[Mapping[str, Any], ...]:
    return tuple({"name": name, "lam": lam, **options} for lam in weights)


# Weights span what each loss needs beside the likelihood: at the weight given first its gradient is about as large,
# which for f-Cal is a small one, and for the calibration loss and MMD, in image units, a large one.
METHODS: Registry[Method] = Registry("method")
METHODS.add("oracle", Oracle())
METHODS.add(
    "deterministic",
    Trained(
        title="deterministic", plain="smooth-l1", candidates=_repeated("smooth-l1"), deterministic=True, monitor="l1"
    ),
)
METHODS.add("nll", Trained(title="NLL", candidates=_repeated("nll")))
METHODS.add(
    "calibration_loss",
    Trained(
        title="calibration loss (of the variance, power 1)",
        candidates=_weighted("calibration-loss", 100.0, 10.0, 1000.0, form="additive", on="variance", p=1),
    ),
)
METHODS.add(
    "beta_nll",
    Trained(title="beta-NLL", candidates=tuple({"name": "beta-nll", "beta": beta} for beta in (0.5, 0.25, 1.0))),
)
METHODS.add(
    "mmd",
    Trained(
        title="MMD",
        # The last one is MMD alone, as its authors tune by it.
        candidates=(*_weighted("mmd", 100.0, 10.0, form="additive"), {"name": "mmd", "lam": 1.0}),
    ),
)
METHODS.add("pce_kde", Trained(title="PCE-KDE", candidates=_weighted("pce-kde", 0.2, 0.05, 0.5)))
METHODS.add("temperature", PostHoc(title="temperature", recalibrator="temperature"))
METHODS.add("isotonic", PostHoc(title="isotonic", recalibrator="isotonic"))
METHODS.add("isotonic_moments", PostHoc(title="isotonic, mean and sd", recalibrator="isotonic", moments=True))
METHODS.add("gp_beta", PostHoc(title="GP-Beta", recalibrator="gp-beta"))
METHODS.add("conformal", PostHoc(title="conformal", recalibrator="conformal"))
METHODS.add("fcal_kl", Trained(title="f-Cal-KL", candidates=_weighted("fcal", 0.02, 0.005, 0.1, divergence="kl")))
METHODS.add(
    "fcal_wass", Trained(title="f-Cal-Wass", candidates=_weighted("fcal", 0.02, 0.005, 0.1, divergence="wasserstein"))
)

ALL_IMAGES = "_all"  # suffix of the row of a method that also trains on the images others hold out
