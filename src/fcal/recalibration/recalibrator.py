"""What all recalibrators share: fit, transform, save and load, and the table of their names."""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal._registry import Registry
from fcal.distributions.law import law_of
from fcal.metrics import fingerprint
from fcal.recalibration.rows import Rows, calibration_rows, elementwise, shaped_like, signature
from fcal.recalibration.saving import read, write

METHODS: "Registry[type[Recalibrator]]" = Registry("method")

_FEW_NUMBERS = 8


class Recalibrator(ABC):
    """Learns from predictions and their targets how to repair further predictions of the same kind.

    Attributes:
        method: Its name; see :func:`fcal.recalibration.names`.
        fitted_on: Fingerprint of the targets it was fitted on; None before. Repaired predictions carry it too.

    Example:
        See :class:`fcal.recalibration.Temperature` and its siblings.
    """

    method: ClassVar[str]
    least_rows: ClassVar[int] = 2
    fitted_on: str | None = None
    _tensors: Mapping[str, Tensor] | None = None
    _family: str = ""

    def fit(self, pred: Distribution, target: Tensor, *, valid_mask: Tensor | None = None) -> Self:
        """Learn from predictions and what became of them.

        Args:
            pred: Predictions of a registered family, on data that the model was not trained on.
            target: Their targets, NaN where missing. Shape of the prediction's samples.
            valid_mask: True where a target counts; shaped like ``target`` or its rows.

        Returns:
            Itself.

        Raises:
            TypeError: A family that this method cannot repair.
            ValueError: Too few targets that count, or values that do not fit.
        """
        rows = calibration_rows(pred, target, valid_mask, at_least=self.least_rows)
        self._check_law(rows)
        with torch.no_grad():
            self._tensors = self._fitted(rows)
        self._family = signature(rows.law)
        self.fitted_on = fingerprint(target, valid_mask)
        return self

    def transform(self, pred: Distribution) -> Distribution:
        """Repair predictions.

        Args:
            pred: Predictions of the family that it was fitted on.

        Returns:
            Repaired predictions of the same shape and dtype, with ``fitted_on`` as an attribute.

        Raises:
            ValueError: It is not fitted yet, or was fitted on another family.
        """
        tensors = self._fitted_tensors()
        if not isinstance(pred, Distribution):
            raise TypeError(f"expected `pred` a torch.distributions.Distribution, got {type(pred).__name__}")
        found = signature(law_of(pred))
        if found != self._family:
            raise ValueError(f"expected `pred` of the family at fit, {self._family}, got {found}")
        repaired: Any = shaped_like(pred, self._repaired(elementwise(pred), tensors))
        repaired.fitted_on = self.fitted_on
        return repaired

    def fit_transform(self, pred: Distribution, target: Tensor, *, valid_mask: Tensor | None = None) -> Distribution:
        """Learn from predictions and repair the same; what is measured on them then flatters."""
        return self.fit(pred, target, valid_mask=valid_mask).transform(pred)

    def numbers(self) -> dict[str, Any]:
        """What was fitted, by name: numbers where there are few, else how many there are."""
        tensors = self._fitted_tensors()
        return {
            name: t.tolist() if t.numel() <= _FEW_NUMBERS else f"{t.numel()} numbers" for name, t in tensors.items()
        }

    def __repr__(self) -> str:
        named = {} if self._tensors is None else self.numbers()
        shown = ", ".join(
            f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in named.items()
        )
        return f"{type(self).__name__}({shown or 'not fitted'})"

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a fitted recalibrator: tensors and a JSON document with checksums, whole or not at all.

        Args:
            folder: Where to; made if absent, an earlier recalibrator in it is replaced.

        Raises:
            ValueError: It is not fitted yet.
        """
        tensors = self._fitted_tensors()
        facts = {
            "method": self.method,
            "options": self._options(),
            "family": self._family,
            "fitted_on": self.fitted_on,
        }
        write(folder, facts, tensors)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Read what :meth:`save` wrote.

        Raises:
            ValueError: Files are missing, damaged, of an unknown version, or of another method.
        """
        facts, tensors = read(folder)
        kind = METHODS[facts.get("method", "")]
        if not issubclass(kind, cls):
            raise ValueError(f"expected `folder` with a recalibrator {cls.method!r}, got {kind.method!r}")
        try:
            loaded = kind(**facts["options"])
            loaded._family, loaded.fitted_on = facts["family"], facts["fitted_on"]
            missing = [name for name in loaded.tensor_names if name not in tensors]
        except (KeyError, TypeError) as error:
            raise ValueError(f"expected `folder` with a whole recalibrator, got one without {error}") from None
        if missing:
            raise ValueError(f"expected `folder` with tensors {', '.join(missing)}, got {', '.join(tensors)}")
        loaded._tensors = tensors
        return loaded

    def _fitted_tensors(self) -> Mapping[str, Tensor]:
        if self._tensors is None:
            raise ValueError(f"expected `{type(self).__name__}` to be fitted before this, got one that is not")
        return self._tensors

    def _check_law(self, rows: Rows) -> None:
        """Refuse what cannot be repaired; by default vectors, whose whitened residuals have no CDF of their own."""
        if rows.law.family.event_dim:
            raise TypeError(f"expected `pred` of scalars for {type(self).__name__}, got {rows.law.name}")

    tensor_names: ClassVar[tuple[str, ...]]

    @abstractmethod
    def _options(self) -> dict[str, Any]:
        """What its class is called with."""

    @abstractmethod
    def _fitted(self, rows: Rows) -> dict[str, Tensor]:
        """What it learns, by name; float64."""

    @abstractmethod
    def _repaired(self, pred: Distribution, tensors: Mapping[str, Tensor]) -> Distribution:
        """Elementwise predictions, repaired."""


def add(kind: type[Recalibrator]) -> type[Recalibrator]:
    """Enter a class into the table of names."""
    METHODS.add(kind.method, kind)
    return kind
