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
class CrossFitted:
    """A method that trains on all images and learns error bars from networks that have not seen an image.

    Args:
        title: What people call it.
        recalibrator: Its name in ``fcal.recalibration``, fitted to held-out predictions; none where empty.
        scales: Objective of networks of error bars, fitted to held-out errors; None for the network's own.
        batch: Images in a batch of it; that of the settings where 0.
        intervals: Whether it says no law but intervals, CV+.
    """

    title: str
    recalibrator: str = "temperature"
    scales: Mapping[str, Any] | None = None
    batch: int = 0
    intervals: bool = False


@dataclass(frozen=True, kw_only=True)
class Ensembled:
    """A deep ensemble of networks trained by likelihood on all images; its law is their mixture.

    Args:
        title: What people call it.
        members: How many networks.
    """

    title: str = "ensemble"
    members: int = 5


@dataclass(frozen=True, kw_only=True)
class Oracle:
    """The law that the labels were drawn from.

    Args:
        title: What people call it.
    """

    title: str = "oracle (knows the noise)"


Method = Trained | PostHoc | CrossFitted | Ensembled | Oracle


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

# Small batches of few degrees of freedom: each of eight strata must hold many times df residuals.
_OOF_FCAL = {"name": "fcal", "divergence": "kl", "lam": 0.3, "df": 20}
_OOF_BATCH = 512
METHODS.add("ensemble", Ensembled(title="ensemble of 5 (mixture)"))
METHODS.add("oof_temperature", CrossFitted(title="out-of-fold temperature"))
METHODS.add("oof_nll", CrossFitted(title="out-of-fold error bars, likelihood", scales={"name": "nll"}))
METHODS.add("oof_fcal", CrossFitted(title="out-of-fold error bars, f-Cal", scales=_OOF_FCAL, batch=_OOF_BATCH))
METHODS.add(
    "oof_fcal_strata",
    CrossFitted(
        title="out-of-fold error bars, f-Cal in 8 strata of sigma",
        scales={**_OOF_FCAL, "strata": 8},
        batch=_OOF_BATCH,
    ),
)
METHODS.add("oof_conformal", CrossFitted(title="out-of-fold conformal law", recalibrator="conformal"))
METHODS.add(
    "oof_nll_conformal",
    CrossFitted(title="out-of-fold error bars, conformal law", recalibrator="conformal", scales={"name": "nll"}),
)
METHODS.add("cv_plus", CrossFitted(title="CV+ (intervals only)", recalibrator="", intervals=True))

ALL_IMAGES = "_all"  # suffix of the row of a method that also trains on the images others hold out
