"""Streaming metrics of depth maps: errors, calibration within images, and sparsification, in bounded memory."""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal.metrics.clusters import (
    ClusterReport,
    ClusterState,
    cluster_grid,
    cluster_report,
    count_clusters_,
    draw_seed,
    empty_cluster_state,
)
from fcal.metrics.depth_accuracy import DepthReport, DepthState, depth_report, depth_state, empty_depth_state
from fcal.metrics.sparsification import (
    SparsificationReport,
    SparsificationState,
    empty_sparsification_state,
    sparsification_report,
    sparsification_state,
)
from fcal.metrics.streaming import StreamingReport


class DepthErrors(StreamingReport):
    """Streaming version of :func:`fcal.metrics.depth_errors`; every image must be whole in one batch.

    Args:
        **options: Options of :class:`torchmetrics.Metric`.

    Example:
        >>> metric = fcal.metrics.DepthErrors()
        >>> for depth in (2.0, 4.0):  # images of one pixel
        ...     metric.update(torch.tensor([[depth]]), torch.tensor([[2.0]]))
        >>> metric.compute().pooled["abs_rel"], metric.compute().images
        (0.5, 2)
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(empty_depth_state(), **options)

    def update(self, depth: Tensor, target: Tensor, *, valid_mask: Tensor | None = None) -> None:
        """Add a batch; arguments as for :func:`fcal.metrics.depth_errors`."""
        for total, batch in zip(self._state(), depth_state(depth, target, valid_mask=valid_mask), strict=True):
            total.add_(batch)

    def compute(self) -> DepthReport:
        """Report of all batches so far, on all ranks."""
        return depth_report(DepthState(*self._state()))


class ClusterCalibration(StreamingReport):
    """Streaming version of :func:`fcal.metrics.cluster_calibration`; its state has a fixed size of 4 to 8 megabytes.

    Sums q within a cluster are those of its residuals in one batch: where every image is whole in one batch, batches
    of any size and order give the same report. More than 2048 clusters share buckets, which then count as one.

    Args:
        df: Number K of squared residuals in a sum q.
        bins: Number S of equal-probability bins, at most 100.
        generator: Source of randomness; torch's default where None. One number is drawn from it, here.
        **options: Options of :class:`torchmetrics.Metric`.

    Example:
        >>> from torch.distributions import Normal
        >>> metric = fcal.metrics.ClusterCalibration(df=20, generator=torch.Generator().manual_seed(0))
        >>> for batch in range(5):
        ...     image = torch.arange(4) + 4 * batch
        ...     metric.update(Normal(torch.zeros(4, 6, 10), 1.0), torch.randn(4, 6, 10), cluster=image)
        >>> metric.compute().clusters, metric.compute().sums_within  # 60 residuals in each image
        (20, 60)
    """

    def __init__(
        self, df: int = 75, bins: int = 20, *, generator: torch.Generator | None = None, **options: Any
    ) -> None:
        grid = cluster_grid(df, bins)
        super().__init__(empty_cluster_state(grid), **options)
        self._grid, self._seed = grid, draw_seed(generator)

    def update(self, pred: Distribution, target: Tensor, *, cluster: Tensor, valid_mask: Tensor | None = None) -> None:
        """Add a batch; arguments as for :func:`fcal.metrics.cluster_calibration`."""
        state = ClusterState(*self._state())
        count_clusters_(state, pred, target, self._grid, cluster=cluster, valid_mask=valid_mask, seed=self._seed)

    def compute(self) -> ClusterReport:
        """Report of all batches so far, on all ranks."""
        return cluster_report(ClusterState(*self._state()), self._grid, seed=self._seed)


class SparsificationCurves(StreamingReport):
    """Streaming version of :func:`fcal.metrics.sparsification_curves`, in fixed bins that are 2 to 3 % wide.

    Args:
        **options: Options of :class:`torchmetrics.Metric`.

    Example:
        >>> metric = fcal.metrics.SparsificationCurves()
        >>> for target in ([1.1, 2.2], [3.6, 5.2]):
        ...     metric.update(torch.tensor([1.0, 2.0]), torch.tensor([0.1, 0.2]), torch.tensor(target))
        >>> metric.compute().n
        4
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(empty_sparsification_state(), **options)

    def update(self, depth: Tensor, sigma: Tensor, target: Tensor, *, valid_mask: Tensor | None = None) -> None:
        """Add a batch; arguments as for :func:`fcal.metrics.sparsification_curves`."""
        batch = sparsification_state(depth, sigma, target, valid_mask=valid_mask)
        for total, more in zip(self._state(), batch, strict=True):
            total.add_(more)

    def compute(self) -> SparsificationReport:
        """Report of all batches so far, on all ranks."""
        return sparsification_report(SparsificationState(*self._state()))
