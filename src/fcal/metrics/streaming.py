"""The streaming evaluation: a torchmetrics metric whose states add up over batches, shards and ranks."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.distributions import Distribution

from fcal._checks import check_flag, check_integer, check_number
from fcal.metrics.evaluation import MOST_GROUPS, checked_grid, fitted_on
from fcal.metrics.gathering import gathered
from fcal.metrics.report import Report
from fcal.metrics.reporting import Options, report_of
from fcal.metrics.state import State, empty_state

try:
    from torchmetrics import Metric
except ModuleNotFoundError as error:
    raise ImportError("expected torchmetrics for fcal.metrics.Calibration; pip install 'fcal[metrics]'") from error


class Calibration(Metric):  # type: ignore[misc]
    """What :func:`fcal.evaluate` computes, from data that come in batches.

    Counts are exact and sums agree to rounding, whatever the order of batches and however they are spread over ranks.
    The state has a fixed size, below a megabyte per group.

    Args:
        df: Number K of squared residuals in a sum q.
        bins: Number S of equal-probability bins of ECE and MCE.
        groups: Number of groups, or their names; then ``update`` takes ``group``.
        clustered: Whether ``update`` takes ``cluster``.
        tolerance: As for :func:`fcal.evaluate`.
        **options: Of :class:`torchmetrics.Metric`.

    Example:
        >>> from torch.distributions import Normal
        >>> metric = fcal.metrics.Calibration(df=75, bins=20)
        >>> for _ in range(4):
        ...     metric.update(Normal(torch.zeros(500), torch.tensor(4.0)), torch.randn(500))
        >>> metric.compute().verdict
        'under-confident'
    """

    is_differentiable = False
    higher_is_better = None
    full_state_update = False
    _update_count: int  # by torchmetrics

    def __init__(
        self,
        df: int = 75,
        bins: int = 20,
        *,
        groups: int | Sequence[str] | None = None,
        clustered: bool = False,
        tolerance: float = 0.05,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._grid = checked_grid(df, bins)
        self._tolerance = check_number("tolerance", tolerance, low=0.0, high=1.0)
        self._names = _names(groups)
        self._clustered = check_flag("clustered", clustered)
        self._fitted_on: frozenset[str] = frozenset()
        start = empty_state(self._grid, groups=self._groups(), clustered=clustered)
        for name, value in start._asdict().items():
            self.add_state(f"{name}_", default=value, dist_reduce_fx="sum")

    def _groups(self) -> int:
        return 1 if self._names is None else len(self._names)

    def _state(self) -> State:
        return State(*(getattr(self, f"{name}_") for name in State._fields))

    def update(
        self,
        pred: Distribution,
        target: Tensor,
        *,
        valid_mask: Tensor | None = None,
        cluster: Tensor | None = None,
        group: Tensor | None = None,
    ) -> None:
        """Count a batch; arguments as for :func:`fcal.evaluate`."""
        for name, given, wanted in (
            ("cluster", cluster, self._clustered),
            ("group", group, self._names is not None),
        ):
            if (given is not None) != wanted:
                expected = "a tensor of integers" if wanted else "None"
                raise ValueError(f"expected `{name}` {expected}, as the metric was made, got {type(given).__name__}")
        batch = gathered(
            pred,
            target,
            self._grid,
            valid_mask=valid_mask,
            group=group,
            groups=self._groups(),
            cluster=cluster,
            fingerprinted=bool(fitted_on(pred)),
        )
        self._state().add_(batch)
        self._fitted_on |= fitted_on(pred)

    def compute(self) -> Report:
        """The report of everything counted so far, on all ranks."""
        options = Options(grid=self._grid, tolerance=self._tolerance, fitted_on=self._fitted_on, groups=self._names)
        return report_of(self._state(), options)

    def _wrap_compute(self, compute: Callable[[], Report]) -> Callable[[], Report]:
        """Torchmetrics walks through what ``compute`` returns and refuses frozen dataclasses: hand it a sealed one."""
        sealed = super()._wrap_compute(lambda: _Sealed(compute()))

        @functools.wraps(compute)
        def opened() -> Report:
            found: _Sealed = sealed()
            return found.report

        return opened

    def forward(self, *args: Any, **kwargs: Any) -> Report:
        """Count a batch and report on it alone; a batch that cannot be reported on is not counted."""
        states = {name: getattr(self, name).clone() for name in self._defaults}
        count: int = self._update_count
        fitted = self._fitted_on
        try:
            report: Report = super().forward(*args, **kwargs)
        except Exception:
            self._update_count, self._fitted_on = count, fitted
            for name, value in states.items():
                setattr(self, name, value)
            raise
        self._fitted_on |= fitted  # torchmetrics resets between the batch and the rest
        return report

    def merge_state(self, incoming_state: Any) -> None:
        """Add what another metric, or a dictionary of its states, has counted."""
        super().merge_state(incoming_state)
        self._computed = None  # torchmetrics would go on returning what it computed before
        if isinstance(incoming_state, Calibration):
            self._fitted_on |= incoming_state._fitted_on

    def reset(self) -> None:
        """Forget everything counted so far."""
        super().reset()
        self._fitted_on = frozenset()


class _Sealed:
    def __init__(self, report: Report) -> None:
        self.report = report


def _names(groups: int | Sequence[str] | None) -> list[str] | None:
    if groups is None:
        return None
    if isinstance(groups, Sequence) and not isinstance(groups, str):
        names = [str(name) for name in groups]
    else:
        names = [str(index) for index in range(check_integer("groups", groups, at_least=1, at_most=MOST_GROUPS))]
    if len(set(names)) != len(names) or not 1 <= len(names) <= MOST_GROUPS:
        raise ValueError(f"expected `groups` 1 to {MOST_GROUPS} different names, got {len(names)}")
    return names
