"""The base class of recalibrators: fit, transform, save and load (safetensors and JSON with checksums, no pickle)."""

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from torch.distributions import Distribution, Independent

from fcal._arrays import as_flags, as_numbers
from fcal._files import atomic_path, provenance, write_json
from fcal._registry import Registry
from fcal.distributions.family import Law, law_of
from fcal.metrics import fingerprint
from fcal.recalibration.calibration_data import CalibrationData, WildRows, calibration_data

METHODS: "Registry[type[Recalibrator]]" = Registry("method")

_FEW_NUMBERS = 8
_DOCUMENT = "recalibrator.json"
_FORMAT = "fcal.recalibrator"
_VERSION = 1


class Recalibrator(ABC):
    """Learns from predictions and their targets how to repair further predictions of the same family.

    A single wild row must not ruin a repair. Rows whose errors (in predicted scales) are more than 20, and whose
    residuals are more than 8 robust standard deviations from the median of their output are left out of the fit and
    reported in ``wild`` (of families without a scale and of log-normal ones, those whose residuals are more than 10). A
    robust standard deviation is that of a normal distribution with the same quartiles, or, where that is larger, with
    the same 99 % quantile of distances. So at most one row in a hundred is left out (three of few rows): where more are
    far out, they are the shape of the errors.

    Attributes:
        method: Its name; see :func:`fcal.recalibration.names`.
        fitted_on: Fingerprint of the targets it was fitted on, which repaired predictions carry too; None before.
        wild: Rows that were left out of the fit; None if there were none.

    Example:
        See :class:`fcal.recalibration.Temperature` and its siblings.
    """

    method: ClassVar[str]
    least_rows: ClassVar[int] = 2
    fitted_on: str | None = None
    wild: WildRows | None = None
    _tensors: Mapping[str, Tensor] | None = None
    _family: str = ""

    def fit(self, pred: Distribution, target: Tensor, *, valid_mask: Tensor | None = None) -> Self:
        """Fit to predictions and their targets.

        Args:
            pred: Predictions of a registered family, on data that the model was not trained on.
            target: Their targets, NaN where missing; a tensor, or an array, series or list. Shape of the prediction's
                samples.
            valid_mask: True where a target counts; shaped like ``target`` or its rows.

        Returns:
            Itself.

        Raises:
            TypeError: A family that this method cannot repair.
            ValueError: Too few valid targets, or invalid values.
        """
        target = as_numbers("target", target)
        valid_mask = None if valid_mask is None else as_flags("valid_mask", valid_mask)
        data = calibration_data(pred, target, valid_mask, at_least=self.least_rows)
        self._check_law(data)
        with torch.no_grad():
            tensors = self._fitted(data)
            _check_finite(tensors)
            self._tensors = tensors
            count = int(data.wild.sum())
        farthest = float(data.distance.max())
        self.wild = WildRows(count=count, rows=len(data.z), farthest=farthest) if count else None
        self._family = signature(data.law)
        self.fitted_on = fingerprint(target, valid_mask)
        return self

    def transform(self, pred: Distribution) -> Distribution:
        """Repair predictions.

        Args:
            pred: Predictions of the family at fit.

        Returns:
            Repaired predictions of the same shape and dtype, with ``fitted_on`` as an attribute.

        Raises:
            ValueError: It is not fitted, or was fitted on another family.
        """
        tensors = self._fitted_tensors()
        if not isinstance(pred, Distribution):
            raise TypeError(f"expected `pred` a torch.distributions.Distribution, got {type(pred).__name__}")
        family = signature(law_of(pred))
        if family != self._family:
            raise ValueError(f"expected `pred` of the family at fit, {self._family}, got {family}")
        repaired: Any = self._repaired(elementwise(pred), tensors)
        event_dims = len(pred.event_shape) - len(repaired.event_shape)
        repaired = Independent(repaired, event_dims, validate_args=False) if event_dims else repaired
        repaired.fitted_on = self.fitted_on
        return repaired

    @property
    def keeps_family(self) -> bool:
        """Whether repaired predictions are of the family of the predictions, with other parameters."""
        return False

    def fit_transform(self, pred: Distribution, target: Tensor, *, valid_mask: Tensor | None = None) -> Distribution:
        """Fit to predictions and repair the same ones; an evaluation on them is optimistic."""
        return self.fit(pred, target, valid_mask=valid_mask).transform(pred)

    def numbers(self) -> dict[str, Any]:
        """Fitted parameters by name, or how many there are where they are more than a few."""
        tensors = self._fitted_tensors()
        return {
            name: t.tolist() if t.numel() <= _FEW_NUMBERS else f"{t.numel()} numbers" for name, t in tensors.items()
        }

    def __repr__(self) -> str:
        numbers = {} if self._tensors is None else self.numbers()
        shown = ", ".join(
            f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in numbers.items()
        )
        left_out = "" if self.wild is None else f"; {self.wild}"
        return f"{type(self).__name__}({shown or 'not fitted'}{left_out})"

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the fitted recalibrator, atomically: tensors, and a JSON document with checksums.

        Args:
            folder: Created if it does not exist; an earlier recalibrator in it is replaced.

        Raises:
            ValueError: It is not fitted.
        """
        tensors = self._fitted_tensors()
        facts = {
            "method": self.method,
            "options": self._options(),
            "family": self._family,
            "fitted_on": self.fitted_on,
            "wild": None if self.wild is None else asdict(self.wild),
        }
        _write(Path(folder), facts, tensors)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Read a recalibrator written by :meth:`save`.

        Raises:
            ValueError: Files are missing, damaged, of an unknown version, or of another method.
        """
        facts, tensors = _read(Path(folder))
        method = METHODS[facts.get("method", "")]
        if not issubclass(method, cls):
            raise ValueError(f"expected `folder` with a recalibrator {cls.method!r}, got {method.method!r}")
        try:
            loaded = method._from_options(facts["options"])
            loaded._family, loaded.fitted_on = facts["family"], facts["fitted_on"]
            loaded.wild = None if facts.get("wild") is None else WildRows(**facts["wild"])
            missing = [name for name in loaded.tensor_names if name not in tensors]
        except (KeyError, TypeError) as error:
            raise ValueError(f"expected `folder` with a whole recalibrator, got one without {error}") from None
        if missing:
            raise ValueError(f"expected `folder` with tensors {', '.join(missing)}, got {', '.join(tensors)}")
        loaded._tensors = {name: tensors[name] for name in loaded.tensor_names}  # files have no order
        loaded._restored()
        return loaded

    @classmethod
    def _from_options(cls, options: Mapping[str, Any]) -> Self:
        return cls(**options)

    def _restored(self) -> None:  # noqa: B027 - most methods have nothing to do
        """Called after the tensors were read."""

    def _fitted_tensors(self) -> Mapping[str, Tensor]:
        if self._tensors is None:
            raise ValueError(f"expected `{type(self).__name__}` to be fitted before this, got one that is not")
        return self._tensors

    def _check_law(self, data: CalibrationData) -> None:
        """Reject families that cannot be repaired; by default vectors, as the map acts on the CDF of scalars."""
        if data.law.family.event_dim:
            raise TypeError(f"expected `pred` of scalars for {type(self).__name__}, got {data.law.name}")

    tensor_names: ClassVar[tuple[str, ...]]

    @abstractmethod
    def _options(self) -> dict[str, Any]:
        """Keyword arguments of the class."""

    @abstractmethod
    def _fitted(self, data: CalibrationData) -> dict[str, Tensor]:
        """Fitted tensors by name; float64."""

    @abstractmethod
    def _repaired(self, pred: Distribution, tensors: Mapping[str, Tensor]) -> Distribution:
        """Repaired elementwise predictions."""


def register(recalibrator: type[Recalibrator]) -> type[Recalibrator]:
    """Make a class known by its method's name."""
    METHODS.add(recalibrator.method, recalibrator)
    return recalibrator


def _write(folder: Path, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write facts and tensors; the earlier recalibrator stays readable until the new document replaces its own.

    The name of the tensors' file depends on its content, so the file of an earlier document is never overwritten.
    """
    content = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    checksum = hashlib.sha256(content).hexdigest()
    path = folder / f"recalibrator-{checksum[:12]}.safetensors"
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)
    document = {
        "format": _FORMAT,
        "version": _VERSION,
        **facts,
        "tensors": path.name,
        "tensors_sha256": checksum,
        "provenance": provenance(),
    }
    write_json(folder / _DOCUMENT, {**document, "sha256": _checksum(document)})
    for stale in folder.glob("recalibrator-*.safetensors"):
        if stale != path:
            stale.unlink(missing_ok=True)


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read facts and tensors, with both checksums verified."""
    document = _document(folder / _DOCUMENT)
    path = folder / Path(str(document.get("tensors"))).name
    content = _bytes(path)
    if hashlib.sha256(content).hexdigest() != document.get("tensors_sha256"):
        raise ValueError(f"expected {path} with the checksum in {_DOCUMENT}, got another: the file is damaged")
    try:
        return document, load(content)
    except SafetensorError as error:
        raise ValueError(f"expected {path} in the safetensors format, got {error}") from None


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(_bytes(path).decode("utf-8"))
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or nested too deeply
        raise ValueError(f"expected {path} a JSON document, got one that is damaged: {error}") from None
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise ValueError(f"expected {path} a saved recalibrator, got another document")
    if document.get("version") != _VERSION:
        raise ValueError(f"expected {path} of version {_VERSION}, got {document.get('version')!r}")
    if document.pop("sha256", None) != _checksum(document):
        raise ValueError(f"expected {path} with its own checksum, got another: the file is damaged")
    return document


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"expected a recalibrator's file {path}, got {error.strerror}") from None


def _checksum(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def elementwise(pred: Distribution) -> Distribution:
    """The prediction without ``Independent``: one distribution per scalar, or per vector of a vector family."""
    while isinstance(pred, Independent):
        pred = pred.base_dist
    law = law_of(pred)
    if len(pred.event_shape) == law.family.event_dim:
        return pred
    return law.distribution().expand(pred.batch_shape + pred.event_shape)


def _check_finite(tensors: Mapping[str, Tensor]) -> None:
    """Refuse a fit whose numbers have overflowed: what it repairs would be infinite or NaN."""
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            bad = tensor[~torch.isfinite(tensor)][0].item()
            raise ValueError(
                f"expected `pred` and `target` of which a finite `{name}` is fitted, got {bad:g}: errors, spreads or "
                f"their ratios are too large; give them in other units"
            )


def signature(law: Law) -> str:
    """Family and transforms of a prediction, which must be the same at ``fit`` and ``transform``."""
    return " under ".join([law.kind.__name__, *(type(t).__name__ for t in law.transforms)])
