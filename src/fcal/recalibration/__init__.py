"""Repair of predictions without retraining: a distribution in, a calibrated one out."""

import os

from fcal.recalibration.by_group import ByGroup
from fcal.recalibration.choosing import Candidate, Choice, choose
from fcal.recalibration.gp_beta import GPBeta
from fcal.recalibration.quantile_maps import Conformal, Isotonic
from fcal.recalibration.recalibrator import METHODS, Recalibrator
from fcal.recalibration.scale_and_shape import ScaleAndShape
from fcal.recalibration.scaling import Affine, Power, Temperature

__all__ = [
    "Affine",
    "ByGroup",
    "Candidate",
    "Choice",
    "Conformal",
    "GPBeta",
    "Isotonic",
    "Power",
    "Recalibrator",
    "ScaleAndShape",
    "Temperature",
    "by_name",
    "choose",
    "load",
    "names",
]


def names() -> list[str]:
    """Names of all methods, as on the command line; :class:`ByGroup` combines one of them with groups.

    Example:
        >>> names()
        ['affine', 'conformal', 'gp-beta', 'isotonic', 'power', 'scale-and-shape', 'temperature']
    """
    return sorted(name for name in METHODS.names() if name != ByGroup.method)


def by_name(method: str) -> type[Recalibrator]:
    """The class of a method.

    Raises:
        ValueError: No method has this name; the known ones are listed.

    Example:
        >>> by_name("temperature").__name__
        'Temperature'
    """
    return METHODS[method]


def load(folder: str | os.PathLike[str]) -> Recalibrator:
    """Read a recalibrator of any method, written by :meth:`Recalibrator.save`; nothing is unpickled.

    Raises:
        ValueError: Files are missing, damaged, of an unknown version or method.

    Example:
        >>> import tempfile
        >>> from torch.distributions import Normal
        >>> pred, folder = Normal(torch.zeros(2), torch.ones(2)), tempfile.mkdtemp()
        >>> fcal.recalibration.Temperature().fit(pred, torch.tensor([-3.0, 3.0])).save(folder)
        >>> load(folder).transform(pred).stddev
        tensor([3., 3.])
    """
    return Recalibrator.load(folder)
