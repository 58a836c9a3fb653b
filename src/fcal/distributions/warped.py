"""A distribution whose residuals are passed through an increasing map: the prediction of a recalibrator."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from fcal._checks import is_tracing
from fcal.distributions.family import Law, law_of
from fcal.distributions.implicit import legendre
from fcal.distributions.location_scale import NORMAL
from fcal.distributions.monotone import WARP_OF, MonotoneMap, PiecewiseLinear, Warp
from fcal.distributions.piecewise import Segments
from fcal.distributions.tails import log_normal_density, normal_cdf, normal_quantile
from fcal.distributions.warped_integrals import fast_moments

_NO_MEAN = 30.0  # a moment does not exist if residuals beyond this one contribute to it
_COUNTS = 1e-6  # smallest share that counts as a contribution
_SPACING = 0.5  # of the trapezoidal rule under a normal density: exact to 1e-13 for smooth maps
_REACH = 9.0
_PANELS = 64
_RULE = legendre(6)
_TAIL = [10.0, 11.5, 13.5, 16.0, 19.0, 23.0, 28.0, 34.0, 40.0, 46.5]
_EDGES = [*(-v for v in reversed(_TAIL)), *(0.5 * k for k in range(-18, 19)), *_TAIL]
_CHUNK = 1 << 18
_PANELS_OF_MIXTURE = 16  # for each panel
_MIXTURE_SPACING = 0.15  # of nodes of a component of a normal mixture, in its standard deviations,
_MIXTURE_RATIO = 1.03  # and ratio of those farther out
_FARTHEST_NODE = 1e3  # standard deviations of a component


class Warped(Distribution):
    r"""A distribution whose residuals are an increasing map of those of a base, :math:`z' = g(z)`.

    Its CDF is :math:`\Phi(g(\Phi^{-1}(F(y))))`, and its density is that of :math:`F` times
    :math:`g'(z) \varphi(g(z)) / \varphi(z)`. Because the map acts on residuals and not on probabilities, nothing rounds
    to 0 or 1, however far in the tails y lies.

    Args:
        base: Distribution of a scalar family with a quantile, also under increasing transforms.
        warp: The map :math:`g`; its tensors broadcast against the batch shape of the base.
        validate_args: As in every torch distribution.

    Raises:
        TypeError: The base is not a distribution of a registered family.
        ValueError: The base is multivariate, or one of its transforms is decreasing.

    Note:
        Unless the base is normal, samples and quantiles are limited to the base's quantiles at probability 1e-307.

    Example:
        A normal distribution with half the scale, shifted by one:

        >>> from torch.distributions import Normal
        >>> from fcal.distributions import AffineMap
        >>> pred = Warped(Normal(torch.tensor(0.0), torch.tensor(2.0)), AffineMap(torch.tensor(0.5), torch.tensor(0.5)))
        >>> pred.mean, pred.stddev
        (tensor(1.), tensor(1.))
        >>> pred.cdf(torch.tensor(1.0))
        tensor(0.5000)
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    has_rsample = True
    fitted_on: str | None = None  # the targets that the map was fitted on, if any
    _known_moments: tuple[Tensor, Tensor, Tensor] | None = None  # computed once, unless they have gradients

    def __init__(self, base: Distribution, warp: MonotoneMap, validate_args: bool | None = None) -> None:
        if not isinstance(base, Distribution):
            raise TypeError(f"expected `base` a torch.distributions.Distribution, got {type(base).__name__}")
        if not isinstance(warp, MonotoneMap):
            raise TypeError(f"expected `warp` a fcal.distributions.MonotoneMap, got {type(warp).__name__}")
        if base.event_shape:
            raise ValueError(f"expected `base` of scalars, got {type(base).__name__} of {tuple(base.event_shape)}")
        shape = torch.broadcast_shapes(base.batch_shape, *(t.shape for t in warp.tensors))
        self.base = base if base.batch_shape == shape else base.expand(shape)
        self.warp = warp
        self._law = _law_of(self.base, warp)
        super().__init__(shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "Warped":
        """Expand to a larger batch shape."""
        shape = torch.Size(batch_shape)
        tensors = tuple(t.expand(shape) for t in self.warp.tensors)
        new = Warped(self.base.expand(shape), self.warp.rebuilt(tensors), validate_args=False)
        new._validate_args, new.fitted_on = self._validate_args, self.fitted_on
        return new

    @constraints.dependent_property
    def support(self) -> constraints.Constraint | None:
        """Support of the base."""
        return self.base.support

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of results, the widest of the parameters and at least float32."""
        dtype = torch.float32
        for parameter in self._law.parameters:
            dtype = torch.promote_types(dtype, parameter.dtype)
        return dtype

    @property
    def mean(self) -> Tensor:
        """Closed form or quadrature; NaN where the mean does not exist."""
        return self._moments()[0]

    @property
    def variance(self) -> Tensor:
        """Closed form or quadrature; infinite where the variance does not exist."""
        return self._moments()[1]

    @property
    def stddev(self) -> Tensor:
        """Square root of the variance, taken before it is rounded to :attr:`dtype`."""
        return self._moments()[2]

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density."""
        return self._formula(value, lambda law, y: law.family.log_prob(y, *law.parameters), density=True)  # type: ignore[misc]

    def cdf(self, value: Tensor) -> Tensor:
        """Probability below ``value``."""
        return self._formula(value, lambda law, y: normal_cdf(law.family.residual(y, *law.parameters)))  # type: ignore[misc]

    def icdf(self, value: Tensor | float) -> Tensor:
        """Quantile of a probability."""
        p = torch.as_tensor(value, dtype=torch.float64, device=self._law.parameters[0].device)
        return self._value_at(normal_quantile(p, 1 - p))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Differentiable samples, whose residuals are standard normal."""
        shape = self._extended_shape(torch.Size(sample_shape))
        like = self._law.parameters[0]
        return self._value_at(torch.randn(shape, dtype=torch.float64, device=like.device))

    def _formula(self, value: Tensor, formula: Callable[[Law, Tensor], Tensor], *, density: bool = False) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        law = self._law.to(torch.float64)
        inner, _, log_slope = law.pull_back(value.to(torch.float64))
        result = formula(law, inner)
        return (result - log_slope if density else result).to(torch.promote_types(self.dtype, value.dtype))

    def _value_at(self, z: Tensor) -> Tensor:
        law = self._law.to(torch.float64)
        return law.push_forward(WARP_OF[law.family].value_at(z, *law.parameters)).to(self.dtype)

    def _moments(self) -> tuple[Tensor, Tensor, Tensor]:
        if self._known_moments is not None:
            return self._known_moments
        mean, variance = _moments(self._law.to(torch.float64), self.batch_shape)
        largest = torch.finfo(self.dtype).max
        narrow = torch.where(variance.isinf(), variance, variance.clamp(max=largest))
        moments = mean.to(self.dtype), narrow.to(self.dtype), variance.sqrt().to(self.dtype)
        if not (mean.requires_grad or is_tracing()):
            self._known_moments = moments
        return moments


def _law_of(base: Distribution, warp: MonotoneMap) -> Law:
    law = law_of(base)
    family, name = law.family, type(base).__name__
    if family.event_dim or family.quantile is None or family.log_cdf is None or family.log_survival is None:
        raise TypeError(f"expected `base` of a scalar family with a quantile, got {name}")
    for transform in law.transforms:
        if not is_tracing() and bool((torch.as_tensor(transform.sign) < 0).any()):
            raise ValueError(
                f"expected `base` under increasing transforms, got a decreasing {type(transform).__name__}"
            )
    rows = [d > 0 for d in family.dims()]
    sizes = tuple(p.shape[-1] if row else None for p, row in zip(law.parameters, rows, strict=True))
    split = [p.unbind(-1) if row else (p,) for p, row in zip(law.parameters, rows, strict=True)]
    parameters = (*warp.tensors, *(column for group in split for column in group))
    return Law(
        Warped,
        Warp(warp, law.kind, family, sizes, partial(Warped, validate_args=False)).as_family(),
        parameters,
        law.transforms,
        "Warped " + name,
    )


def _moments(law: Law, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Mean and variance of warped distributions, in float64. Shape ``shape`` each."""
    own = WARP_OF[law.family]
    fast = fast_moments(law, shape)
    if fast is not None:
        return fast
    if own.has_closed_forms() and not law.transforms:
        assert isinstance(own.warp, PiecewiseLinear)
        loc, scale = law.parameters
        mean, variance = own.warp.moments
        return (loc + scale * mean).expand(shape), (scale.square() * variance).expand(shape)
    shared = not own.warp.names and not law.transforms
    if shared and own.family.parameters == ("loc", "scale") and own.family.support is None:
        loc, scale = law.parameters
        standard = law._replace(parameters=(loc.new_zeros(()), loc.new_ones(())))
        first, second = _by_quadrature(standard, torch.Size(), most=10_000)
        return (loc + scale * first).expand(shape), (scale.square() * second).expand(shape)
    if own.family.component is NORMAL and isinstance(own.warp, PiecewiseLinear) and not law.transforms:
        return _of_normal_mixture(law, shape)
    return _by_quadrature(law, shape, most=_PANELS)


def _of_normal_mixture(law: Law, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Moments of a mixture of normal distributions under a piecewise linear map, without a quantile of the mixture.

    Values between neighbouring quantiles of components, of which there are some hundred, count as their middle, with
    the probability that the warped distribution has between them: exact where slopes of the map jump.
    """
    own = WARP_OF[law.family]
    assert isinstance(own.warp, PiecewiseLinear)
    reach = min(_REACH / min(1.0, float(own.warp.segments.slope.min())), _FARTHEST_NODE)
    nodes = _mixture_nodes(reach).to(law.parameters[0].device)
    leaves = law.leaves(shape)
    components = own.split(law.parameters)[1][0].shape[-1]
    step = max(_CHUNK // (len(nodes) * components), 1)
    chunks = []
    for start in range(0, max(len(leaves[0]), 1), step):
        rows = law.with_leaves([leaf[start : start + step].unsqueeze(-1) for leaf in leaves])
        chunks.append(_mixture_moments(rows, nodes))
    mean, variance = (torch.cat(moment) for moment in zip(*chunks, strict=True))
    return mean.reshape(shape), variance.reshape(shape)


def _mixture_nodes(reach: float) -> Tensor:
    """Residuals of a component, evenly spaced where most of it lies and ever wider apart beyond. Shape ``(nodes,)``."""
    inner = torch.arange(0, _REACH + _MIXTURE_SPACING, _MIXTURE_SPACING, dtype=torch.float64)
    count = math.ceil(math.log(max(reach / _REACH, 1.0)) / math.log(_MIXTURE_RATIO))
    outer = inner[-1] * _MIXTURE_RATIO ** torch.arange(1, count + 1, dtype=torch.float64)
    half = torch.cat([inner, outer])
    return torch.cat([-half[1:].flip(0), half])


def _mixture_moments(law: Law, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of rows, whose parameters have shape ``(n, 1)``. Shape ``(n,)`` each."""
    own = WARP_OF[law.family]
    _, (logits, locs, scales) = own.split(law.parameters)
    assert own.family.residual is not None
    edges = torch.cat([(locs + scales * nodes[:, None]).flatten(1), _around_median(law)], -1).sort(-1).values
    mapped, _ = own.warp.value_and_log_slope(own.family.residual(edges, logits, locs, scales))
    below = normal_cdf(mapped)
    ends = torch.zeros_like(below[:, :1])
    mass = torch.cat([ends, below, 1 - ends], -1).diff()
    middle = torch.cat([edges[:, :1], (edges[:, 1:] + edges[:, :-1]) / 2, edges[:, -1:]], -1)
    mean = (mass * middle).sum(-1)
    return mean, (mass * (middle - mean.unsqueeze(-1)).square()).sum(-1)


def _around_median(law: Law) -> Tensor:
    """Values near the median, as close together as a steep map makes the warped law narrow. Shape ``(n, m)``."""
    own = WARP_OF[law.family]
    assert isinstance(own.warp, PiecewiseLinear)
    assert own.family.quantile is not None
    assert own.family.log_prob is not None
    _, parameters = own.split(law.parameters)
    half = torch.full_like(parameters[0][..., 0], 0.5)
    median = own.family.quantile(half, half, *parameters)
    spread = (log_normal_density(torch.zeros_like(median)) - own.family.log_prob(median, *parameters)).exp()
    steep = max(1.0, float(own.warp.segments.slope.max()))
    return median + spread / steep * _mixture_nodes(_REACH).to(median.device)


def _by_quadrature(law: Law, shape: torch.Size, most: int) -> tuple[Tensor, Tensor]:
    """Moments of the value as a function of its standard normal residual; many rows in chunks."""
    leaves = law.leaves(shape)
    step = max(_CHUNK // 512, 1)
    chunks = []
    for start in range(0, max(len(leaves[0]), 1), step):
        own = law.with_leaves([leaf[start : start + step].unsqueeze(-1) for leaf in leaves])
        chunks.append(_weighted_moments(own, *_nodes(own, most)))
    mean, variance = (torch.cat(moment) for moment in zip(*chunks, strict=True))
    return mean.reshape(shape), variance.reshape(shape)


def _weighted_moments(law: Law, nodes: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    own = WARP_OF[law.family]
    inner = own.warp.inverse(nodes, *own.split(law.parameters)[0]).detach()
    far = (inner.abs() > _NO_MEAN) | (nodes.abs() > _NO_MEAN)
    values = law.push_forward(own.value_at(nodes, *law.parameters))
    terms = weights * values
    mean = terms.sum(-1)
    squares = weights * (values - mean.unsqueeze(-1)).square()
    variance = squares.sum(-1)
    if _is_plainly_normal(law):
        return mean, variance
    no_mean, no_variance = (_share(p.abs(), far) > _COUNTS for p in (terms, squares))
    return torch.where(no_mean, math.nan, mean), torch.where(no_variance, math.inf, variance)


def _is_plainly_normal(law: Law) -> bool:
    return WARP_OF[law.family].family is NORMAL and not law.transforms


def _share(terms: Tensor, where: Tensor) -> Tensor:
    """Share of a sum that comes from ``where``; infinite where it is undefined."""
    return torch.nan_to_num((terms * where).sum(-1) / terms.sum(-1), nan=math.inf)


def _nodes(law: Law, most: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights of an integral under the normal density. Shapes ``(nodes,)`` or ``(n, nodes)``.

    A smooth map of a normal distribution takes the trapezoidal rule. Otherwise panels end at the median of the base
    and at the knots of the map, where the integrand may have a kink.
    """
    own = WARP_OF[law.family]
    tensors, like = own.split(law.parameters)[0], law.parameters[0]
    if isinstance(own.warp, PiecewiseLinear):
        edges = _panel_edges(own.warp.on(like), most)
    elif _is_plainly_normal(law):
        nodes = torch.arange(-_REACH, _REACH + _SPACING, _SPACING, dtype=torch.float64, device=like.device)
        return nodes, _SPACING * log_normal_density(nodes).exp()
    else:
        middle, _ = own.warp.value_and_log_slope(like.new_zeros(()), *tensors)
        edges = middle.clamp(-_REACH, _REACH) + like.new_tensor(_EDGES)
    if own.family.component is not None:  # quantiles of a mixture may jump between components
        edges = _refined(edges, _PANELS_OF_MIXTURE)
    low, width = edges[..., :-1], edges.diff()
    nodes = torch.cat([low + node * width for node, _ in _RULE], -1)
    weights = torch.cat([weight * width for _, weight in _RULE], -1)
    return nodes, weights * log_normal_density(nodes).exp()


def _refined(edges: Tensor, count: int) -> Tensor:
    """Edges of panels, each split into ``count`` panels."""
    share = torch.arange(count, dtype=edges.dtype, device=edges.device) / count
    inner = (edges[..., :-1, None] + edges.diff()[..., None] * share).flatten(-2)
    return torch.cat([inner, edges[..., -1:]], -1)


def _panel_edges(segments: Segments, most: int) -> Tensor:
    """Knots of the map (at most ``most``), fixed edges, and the median of the base."""
    knots, middle = segments.y, segments.value_and_slope(segments.x.new_zeros(1))[0]
    kept = knots[torch.linspace(0, len(knots) - 1, min(len(knots), most), device=knots.device).round().long()]
    return torch.cat([kept, middle, knots.new_tensor(_EDGES)]).unique()
