"""Probability that a pixel belongs to a detected box, and what a heat map of it costs beside a truth.

A pixel is the square from its column and row to the next; it belongs to a box that overlaps it. Corners are Gaussian,
and the two corners independent of each other, as Hall et al. (2020) define a probabilistic box: of a 4 x 4 covariance
only the blocks of the two corners are used. So a pixel belongs to the box with the probability that the upper left
corner is left of and above the end of the pixel, times the probability that the lower right one is right of and below
its start. Where x and y of a corner are independent the map is an outer product of two vectors.
"""

import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fcal.metrics.detection.records import Detections, Truths

FLOOR = 1e-14  # added to every probability within a logarithm, as in the authors' evaluator: a pixel costs up to 32
ZERO = 1e-8  # qualities up to here count as 0, as in the authors' evaluator
_REACH = 9.5  # standard deviations; beyond, probabilities are below 2e-21, nothing beside the floor
_SINGULAR = 1 - 1e-12  # correlations from here on count as 1
_LARGEST = 40.0  # standard scores; beyond, nothing changes
_CANCELLED = 1e-6
_LOG_FLOOR = math.log(FLOOR)
_MOST_PIXELS = 1 << 21  # of a heat map that exist at once; more than 1080 x 1920


@dataclass(frozen=True, kw_only=True, eq=False)
class SpatialQuality:
    """Qualities of all pairs of detections and truths, 0 where the spatial quality is numerically 0.

    Attributes:
        spatial: Product of the other two. Shape ``(n, m)``, float64.
        foreground: Geometric mean of the probabilities of the truth's pixels. Shape ``(n, m)``.
        background: Product of the probabilities that pixels outside of the truth's box are background, to the power of
            one over the number of pixels of the truth. Shape ``(n, m)``.
    """

    spatial: Tensor
    foreground: Tensor
    background: Tensor


def pixel_quality(detections: Detections, truths: Truths) -> SpatialQuality:
    r"""Spatial quality of Hall et al. (2020), of all pairs of one image.

    With the probability :math:`P` that a pixel belongs to the detected box, the set :math:`S` of pixels of the truth
    and its box :math:`B`,

    .. math::
        Q = \exp\Bigl(\frac{1}{|S|} \sum_{S} \log P + \frac{1}{|S|} \sum_{\bar B} \log(1 - P)\Bigr)

    and 1e-14 is added to each probability within a logarithm. A standard deviation of 0 is a step: the corner is where
    it is. Only pixels within 9.5 standard deviations of a detection are visited, one detection at a time and in strips
    of rows, so that memory is bounded for images of any size; beyond, a probability is below 2e-21, nothing beside
    1e-14.

    Args:
        detections: Detections of the image, n of them.
        truths: Its objects, m of them; without masks, all pixels that a box touches are its own.

    Returns:
        Qualities of all pairs; 1 only for a truth whose pixels are those of a box without variance.

    Raises:
        ValueError: A truth has no pixel within the image.
    """
    objects = _Objects.of(truths)
    boxes = detections.boxes.detach().cpu().double()
    covariances = detections.covariances.detach().cpu().double()
    exponents = torch.full((2, len(boxes), len(truths)), -math.inf, dtype=torch.float64)
    step = max(min(256, _MOST_PIXELS // max(objects.size)), 1)  # bounds the memory of the axes
    for start in range(0, len(boxes), step):
        part = slice(start, start + step)
        axes = [_Axis.of(boxes[part], covariances[part], k, size) for k, size in enumerate(objects.size[::-1])]
        possible = _least_loss(axes, objects) > math.log(ZERO)
        for index in possible.any(1).nonzero()[:, 0].tolist():
            pairs = possible[index].nonzero()[:, 0]
            strips = _heat_maps([axis.at(index) for axis in axes], covariances[start + index])
            exponents[:, start + index, pairs] = _exponents(strips, objects, pairs)
    foreground, background = exponents.exp()
    spatial = exponents.sum(0).exp()
    zero = ~(spatial > ZERO)
    spatial, foreground, background = (each.masked_fill(zero, 0.0) for each in (spatial, foreground, background))
    return SpatialQuality(spatial=spatial, foreground=foreground, background=background)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Objects:
    """Pixels of the truths: of the box, half-open ranges of columns and rows; how many of the object in each."""

    size: tuple[int, int]
    boxes: list[tuple[slice, slice]]
    extents: list[tuple[slice, slice]]
    counts: tuple[Tensor, Tensor]  # of columns, of rows; shapes (m, W), (m, H)
    pixels: Tensor
    masks: Tensor | None

    @classmethod
    def of(cls, truths: Truths) -> "_Objects":
        height, width = truths.image_size
        boxes = truths.boxes.detach().cpu().double()
        limit = torch.tensor([width, height], dtype=torch.float64)
        first = boxes[:, :2].floor().clamp(min=0).minimum(limit).long()
        last = boxes[:, 2:].ceil().clamp(min=0).minimum(limit).long()
        masks = None if truths.masks is None else truths.masks.detach().cpu()
        if masks is None:
            inside = [_within(first[:, k : k + 1], last[:, k : k + 1], int(limit[k])) for k in (0, 1)]
            counts = inside[0] * (last - first)[:, 1:], inside[1] * (last - first)[:, :1]
        else:
            counts = masks.sum(1).double(), masks.sum(2).double()
        pixels = counts[0].sum(1)
        if not bool((pixels > 0).all()):
            empty = int((pixels <= 0).nonzero()[0, 0])
            raise ValueError(
                f"expected `truths` with pixels inside the image of {height} x {width}, got object {empty}"
            )
        rectangles = _slices(torch.stack([first, last], 1))
        extents = rectangles if masks is None else _slices(_extents(counts))
        return cls(size=(height, width), boxes=rectangles, extents=extents, counts=counts, pixels=pixels, masks=masks)


def _within(first: Tensor, last: Tensor, size: int) -> Tensor:
    index = torch.arange(size)
    return ((index >= first) & (index < last)).double()


def _extents(counts: tuple[Tensor, Tensor]) -> Tensor:
    """First and one past the last column and row that have a pixel. Shape ``(m, 2, 2)``."""
    used = [count > 0 for count in counts]
    first = torch.stack([each.int().argmax(1) for each in used], 1)
    last = torch.stack([each.shape[1] - each.flip(1).int().argmax(1) for each in used], 1)
    return torch.stack([first, last], 1)


def _slices(ranges: Tensor) -> list[tuple[slice, slice]]:
    """Columns and rows from ranges of shape ``(m, 2, 2)``, first and last by x and y."""
    return [(slice(first[0], last[0]), slice(first[1], last[1])) for first, last in ranges.tolist()]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Axis:
    """Columns or rows beside both corners of detections: standard scores, positive where a pixel may be in the box.

    Attributes:
        start: Of the ends of pixels beside the first corner. Shape ``(n, size)``, or ``(size,)`` for one detection.
        end: Of the second corner beside the starts of pixels.
    """

    start: Tensor
    end: Tensor

    @classmethod
    def of(cls, boxes: Tensor, covariances: Tensor, k: int, size: int) -> "_Axis":
        """Axis x, ``k`` 0, or y, ``k`` 1."""
        edges = torch.arange(size + 1, dtype=torch.float64)
        sigmas = covariances.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()
        start = _standard_score(edges[1:] - boxes[:, k, None], sigmas[:, k, None])
        return cls(start=start, end=_standard_score(boxes[:, k + 2, None] - edges[:-1], sigmas[:, k + 2, None]))

    def at(self, index: int) -> "_Axis":
        return _Axis(start=self.start[index], end=self.end[index])

    def probability(self) -> Tensor:
        """That the column or row belongs to the box."""
        return _normal_cdf(self.start) * _normal_cdf(self.end)

    def reached(self) -> slice:
        """Columns or rows within reach of the box; a range, since one score rises and the other falls."""
        index = ((self.start > -_REACH) & (self.end > -_REACH)).nonzero()[:, 0]
        return slice(int(index[0]), int(index[-1]) + 1) if len(index) else slice(0, 0)

    def cut(self, part: slice) -> "_Axis":
        return _Axis(start=self.start[part], end=self.end[part])


def _standard_score(gaps: Tensor, sigmas: Tensor) -> Tensor:
    """Gaps in standard deviations; without variance a gap of 0 is none, so that a pixel at the edge is outside."""
    steps = torch.where(gaps > 0, math.inf, -math.inf)
    return torch.where(sigmas > 0, gaps / sigmas, steps)


def _normal_cdf(z: Tensor) -> Tensor:
    return 0.5 * torch.erfc(z * -math.sqrt(0.5))


def _least_loss(axes: list[_Axis], objects: _Objects) -> Tensor:
    """Upper bound on the logarithm of the quality of all pairs: a pixel has at most the probability of its column."""
    bounds = [
        (axis.probability() + FLOOR).log() @ counts.T / objects.pixels
        for axis, counts in zip(axes, objects.counts, strict=True)
    ]
    return torch.minimum(*bounds)


@dataclass(frozen=True, kw_only=True, eq=False)
class _HeatMap:
    """Probabilities of pixels within reach of one detection, or of a strip of them; beyond they are 0.

    Attributes:
        columns: Columns within reach.
        rows: Rows within reach, or those of the strip.
        probability: Shape ``(rows, columns)``.
        background: Logarithms of the probabilities that pixels are background.
        total: Their sum.
    """

    columns: slice
    rows: slice
    probability: Tensor
    background: Tensor
    total: Tensor

    def sums(self, objects: _Objects, k: int) -> Tensor:
        """Logarithms of foreground, pixels they are of, and logarithms of background of truth ``k``. Shape ``(3,)``."""
        columns, rows = objects.extents[k]
        foreground = (self.probability[self._local(columns, rows)] + FLOOR).log_()
        pixels = torch.tensor(foreground.numel())
        if objects.masks is not None:
            cut = objects.masks[k, _common(rows, self.rows), _common(columns, self.columns)]
            foreground, pixels = foreground * cut, cut.sum()
        outside = self.total - self.background[self._local(*objects.boxes[k])].sum()
        return torch.stack([foreground.sum(), pixels.double(), outside])

    def _local(self, columns: slice, rows: slice) -> tuple[slice, slice]:
        """Place of a range of the image within this map."""
        pairs = ((rows, self.rows), (columns, self.columns))
        cuts = [(_common(wanted, own), own.start) for wanted, own in pairs]
        return tuple(slice(cut.start - start, cut.stop - start) for cut, start in cuts)  # type: ignore[return-value]


def _common(one: slice, other: slice) -> slice:
    start = max(one.start, other.start)
    return slice(start, max(start, min(one.stop, other.stop)))


def _exponents(strips: Iterable[_HeatMap], objects: _Objects, pairs: Tensor) -> Tensor:
    """Logarithms of foreground and background quality of one detection beside some truths. Shape ``(2, pairs)``."""
    totals = torch.zeros(len(pairs), 3, dtype=torch.float64)
    for heat in strips:
        for total, k in zip(totals, pairs.tolist(), strict=True):
            total += heat.sums(objects, k)
    foreground, visited, background = totals.T
    pixels = objects.pixels[pairs]
    return torch.stack([foreground + (pixels - visited) * _LOG_FLOOR, background]) / pixels


def _heat_maps(axes: list[_Axis], covariance: Tensor) -> Iterator[_HeatMap]:
    """The map of one detection in strips of rows; of an image of usual size, one strip."""
    columns, rows = (axis.reached() for axis in axes)
    height = max(_MOST_PIXELS // max(columns.stop - columns.start, 1), 1)
    for start in range(rows.start, rows.stop, height):
        yield _heat_map(axes, covariance, columns, slice(start, min(start + height, rows.stop)))


def _heat_map(axes: list[_Axis], covariance: Tensor, columns: slice, rows: slice) -> _HeatMap:
    x, y = axes[0].cut(columns), axes[1].cut(rows)
    correlations = [_correlation(covariance[k : k + 2, k : k + 2]) for k in (0, 2)]
    if any(correlations):
        first, second = (
            _below_both(h, k, rho) for h, k, rho in zip((x.start, x.end), (y.start, y.end), correlations, strict=True)
        )
        probability, complement = first[0] * second[0], first[1] + first[0] * second[1]
    else:
        (a, outside_a), (b, outside_b) = (_both(axis) for axis in (x, y))
        probability = torch.outer(b, a)
        complement = torch.addcmul(outside_b[:, None], b[:, None], outside_a)
    background = complement.add_(FLOOR).log_()
    return _HeatMap(columns=columns, rows=rows, probability=probability, background=background, total=background.sum())


def _both(axis: _Axis) -> tuple[Tensor, Tensor]:
    """Probability that a column or row belongs to the box, and its complement, both exact where small."""
    start, end = _normal_cdf(axis.start), _normal_cdf(axis.end)
    return start * end, _normal_cdf(-axis.start) + start * _normal_cdf(-axis.end)


def _correlation(covariance: Tensor) -> float:
    """Correlation of x and y of a corner; 0 where one of them has no variance."""
    (xx, xy), (yx, yy) = covariance.tolist()
    if xx <= 0 or yy <= 0:
        return 0.0
    return max(-1.0, min(1.0, (xy + yx) / 2 / (math.sqrt(xx) * math.sqrt(yy))))  # xx * yy underflows


def _below_both(h: Tensor, k: Tensor, correlation: float) -> tuple[Tensor, Tensor]:
    r"""P(X < h, Y < k) of standard normals on a grid, and its complement, both exact where small.

    By Plackett's identity, with :math:`\sin\theta = \tanh w`, which spreads the integrand evenly up to correlation 1,

    .. math::
        P = \Phi(h) \Phi(k) + \frac{1}{2 \pi} \int_0^{\operatorname{artanh} \rho}
            \frac{\exp(-\tfrac12 [(h - k \tanh w)^2 \cosh^2 w + k^2])}{\cosh w} \, dw

    Args:
        h: Limits of X, one for each column. Shape ``(columns,)``.
        k: Limits of Y, one for each row. Shape ``(rows,)``.
        correlation: Correlation of X and Y.

    Returns:
        Probability and complement. Shapes ``(rows, columns)``.
    """
    columns, rows = h[None, :], k[:, None]
    below, above = (_normal_cdf(columns), _normal_cdf(rows)), (_normal_cdf(-columns), _normal_cdf(-rows))
    if correlation > _SINGULAR:
        return torch.minimum(*below), torch.maximum(*above)
    if correlation < -_SINGULAR:
        some = columns > -rows
        difference = torch.where(rows < 0, below[1] - above[0], below[0] - above[1])
        return difference.where(some, 0.0).clamp_(min=0), torch.where(some, above[0] + above[1], 1.0)
    end = math.atanh(correlation)
    h, k = columns.clamp(-_LARGEST, _LARGEST), rows.clamp(-_LARGEST, _LARGEST)
    joint = _plackett(h, k, 0.0, end)
    probability = (below[0] * below[1] + joint).clamp_(0, 1)
    if correlation < 0:  # a difference: where little is left of it, the integral from correlation -1, where P is 0
        probability = _plackett(h, k, end - 3, end).where((probability < _CANCELLED) & (h + k < 0), probability)
    return probability, (above[1] + below[1] * above[0] - joint).clamp_(0, 1)


def _plackett(h: Tensor, k: Tensor, start: float, end: float) -> Tensor:
    """Change of P(X < h, Y < k) as the inverse tanh of the correlation goes from one value to another."""
    total, length = torch.zeros(len(k), h.shape[1], dtype=torch.float64), end - start
    for node, weight in zip(*_quadrature(16 + 8 * math.ceil(abs(length))), strict=True):
        w = start + length * node
        exponent = (h - k * math.tanh(w)).square_().mul_(-0.5 * math.cosh(w) ** 2).sub_(0.5 * k.square())
        total.add_(exponent.exp_(), alpha=length * weight / (2 * math.pi * math.cosh(w)))
    return total


@functools.cache
def _quadrature(count: int) -> tuple[list[float], list[float]]:
    """Nodes and weights of Gauss and Legendre on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return ((nodes + 1) / 2).tolist(), (weights / 2).tolist()
