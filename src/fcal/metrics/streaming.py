"""Streaming evaluation: torchmetrics metrics whose states add up over batches, shards and ranks."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.distributions import Distribution

from fcal._checks import check_flag, check_integer, check_number
from fcal.metrics.accumulation import accumulate
from fcal.metrics.evaluation import fitted_on
from fcal.metrics.report import Report
from fcal.metrics.report_from_state import report_from_state
from fcal.metrics.state import MAX_GROUPS, Grid, State, empty_state

try:
    from torchmetrics import Metric
except ModuleNotFoundError as error:
    raise ImportError("expected torchmetrics for streaming metrics; pip install 'fcal[metrics]'") from error


class StreamingReport(Metric):  # type: ignore[misc]
    """A metric whose states are sums, and whose result is a frozen dataclass."""

    is_differentiable = False
    higher_is_better = None
    full_state_update = False
    _update_count: int  # set by torchmetrics

    def __init__(self, start: NamedTuple, **options: Any) -> None:
        super().__init__(**options)
        for name, value in start._asdict().items():
            self.add_state(f"{name}_", default=value, dist_reduce_fx="sum")

    def _state(self) -> list[Tensor]:
        """Tensors of the state, in its order."""
        return [getattr(self, name) for name in self._defaults]

    def _wrap_compute(self, compute: Callable[[], Any]) -> Callable[[], Any]:
        """Box the report for torchmetrics, which traverses the result of ``compute`` and rejects frozen dataclasses."""
        boxed = super()._wrap_compute(lambda: _Box(compute()))

        @functools.wraps(compute)
        def unboxed() -> Any:
            box: _Box = boxed()
            return box.report

        return unboxed

    def _copied_states(self) -> dict[str, Any]:
        """States by name, to return to where a batch has no report."""
        current = {name: getattr(self, name) for name in self._defaults}
        return {name: value.clone() if isinstance(value, Tensor) else list(value) for name, value in current.items()}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Add a batch and return the report of it alone; a batch without a report is not added."""
        states = self._copied_states()
        count: int = self._update_count
        try:
            return super().forward(*args, **kwargs)
        except Exception:
            self._update_count = count
            for name, value in states.items():
                setattr(self, name, value)
            raise

    def merge_state(self, incoming_state: Any) -> None:
        """Add the state of another metric, or a dictionary of its states."""
        super().merge_state(incoming_state)
        self._computed = None  # torchmetrics would return the cached report


class _Box:
    def __init__(self, report: Any) -> None:
        self.report = report


class Calibration(StreamingReport):
    """Streaming version of :func:`fcal.evaluate`, for data in batches.

    Counts are exact and sums agree to rounding for any order of batches and any distribution over ranks. The state has
    a fixed size, below a megabyte per group.

    Args:
        df: Number K of squared residuals in a sum q.
        bins: Number S of equal-probability bins of ECE and MCE.
        groups: Number of groups, or their names; ``update`` then takes ``group``.
        clustered: Whether ``update`` takes ``cluster``.
        tolerance: As for :func:`fcal.evaluate`.
        **options: Options of :class:`torchmetrics.Metric`.

    Example:
        >>> from torch.distributions import Normal
        >>> metric = fcal.metrics.Calibration(df=75, bins=20)
        >>> for _ in range(4):
        ...     metric.update(Normal(torch.zeros(500), torch.tensor(4.0)), torch.randn(500))
        >>> metric.compute().verdict
        'under-confident'
    """

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
        grid, names = Grid(df, bins), _names(groups)
        count = 1 if names is None else len(names)
        super().__init__(empty_state(grid, groups=count, clustered=check_flag("clustered", clustered)), **options)
        self._grid, self._names, self._groups = grid, names, count
        self._tolerance = check_number("tolerance", tolerance, low=0.0, high=1.0)
        self._clustered = clustered
        self._fitted_on: frozenset[str] = frozenset()

    def update(
        self,
        pred: Distribution,
        target: Tensor,
        *,
        valid_mask: Tensor | None = None,
        cluster: Tensor | None = None,
        group: Tensor | None = None,
    ) -> None:
        """Add a batch; arguments as for :func:`fcal.evaluate`."""
        for name, labels, required in (
            ("cluster", cluster, self._clustered),
            ("group", group, self._names is not None),
        ):
            if (labels is not None) != required:
                expected = "a tensor of integers" if required else "None"
                raise ValueError(f"expected `{name}` {expected}, as the metric was made, got {type(labels).__name__}")
        accumulate(
            pred,
            target,
            self._grid,
            valid_mask=valid_mask,
            group=group,
            groups=self._groups,
            cluster=cluster,
            fingerprinted=bool(fitted_on(pred)),
            state=State(*self._state()),
        )
        self._fitted_on |= fitted_on(pred)

    def compute(self) -> Report:
        """Report of all batches so far, on all ranks."""
        return report_from_state(
            State(*self._state()),
            self._grid,
            tolerance=self._tolerance,
            fitted_on=self._fitted_on,
            group_names=self._names,
        )

    def forward(self, *args: Any, **kwargs: Any) -> Report:
        """Add a batch and return the report of it alone; a batch without a report is not added."""
        fitted = self._fitted_on
        try:
            report: Report = super().forward(*args, **kwargs)
        except Exception:
            self._fitted_on = fitted
            raise
        self._fitted_on |= fitted  # torchmetrics resets in between
        return report

    def merge_state(self, incoming_state: Any) -> None:
        """Add the state of another metric, or a dictionary of its states."""
        super().merge_state(incoming_state)
        if isinstance(incoming_state, Calibration):
            self._fitted_on |= incoming_state._fitted_on

    def reset(self) -> None:
        """Remove all batches."""
        super().reset()
        self._fitted_on = frozenset()


def _names(groups: int | Sequence[str] | None) -> list[str] | None:
    if groups is None:
        return None
    if isinstance(groups, Sequence) and not isinstance(groups, str):
        names = [str(name) for name in groups]
    else:
        names = [str(index) for index in range(check_integer("groups", groups, at_least=1, at_most=MAX_GROUPS))]
    if len(set(names)) != len(names) or not 1 <= len(names) <= MAX_GROUPS:
        raise ValueError(f"expected `groups` 1 to {MAX_GROUPS} different names, got {len(names)}")
    return names
