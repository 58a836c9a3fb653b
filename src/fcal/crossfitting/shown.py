"""What both results of cross-fitting show: how true error bars are on rows that were left out, and their repair."""

import os
from abc import ABC, abstractmethod
from html import escape
from typing import Any

from torch import Tensor
from torch.distributions import Distribution

from fcal.crossfitting.repairing import Calibrated
from fcal.metrics import Report, evaluate


class ShownResult(ABC):
    """``print``, notebooks, data frames and pages of a result, in the manner of a :class:`fcal.metrics.Report`."""

    def report(self) -> Report:
        """Are the error bars true on rows that were left out? Before the repair."""
        pred, target, valid_mask = self._judged()
        return evaluate(pred, target, valid_mask=valid_mask)

    def to_frame(self) -> Any:
        """The numbers of :meth:`report` as a pandas data frame.

        Raises:
            ImportError: pandas is not installed.
        """
        return self.report().to_frame()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write :meth:`report` as a page with pictures (``.html``) or as numbers (``.json``).

        Raises:
            ValueError: The name has another ending.
        """
        self.report().save(path)

    def __str__(self) -> str:
        """What was trained, the report of rows that were left out, and the repair."""
        return f"{self._heading()}\n\nbefore the repair, {self.report()}\n\n{self._ending()}"

    def _repr_html_(self) -> str:
        heading, ending = (f"<p>{escape(text)}</p>" for text in (self._heading(), self._ending()))
        return f"<div>{heading}<p>before the repair:</p>{self.report()._repr_html_()}{ending}</div>"

    def _ending(self) -> str:
        return f"calibrated() is the model to use; its repair is {self.calibrated().repair!r}"

    @abstractmethod
    def calibrated(self) -> Calibrated:
        """The model to use."""

    @abstractmethod
    def _heading(self) -> str:
        """What was trained."""

    @abstractmethod
    def _judged(self) -> tuple[Distribution, Tensor, Tensor | None]:
        """Predictions of rows that were left out, their targets, and those that count."""
