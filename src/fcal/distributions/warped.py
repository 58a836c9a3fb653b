"""A prediction whose residuals are passed through a rising map: what a recalibrated prediction is."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from fcal._checks import is_tracing
from fcal.distributions.law import Law, law_of, taken_apart_by
from fcal.distributions.monotone import MonotoneMap, normal_cdf
from fcal.distributions.tails import normal_quantile
from fcal.distributions.warp import WARP_OF, Warp
from fcal.distributions.warped_moments import moments_of


class Warped(Distribution):
    r"""The law whose residuals are a rising map of a prediction's, :math:`z' = g(z)`.

    Its CDF is :math:`\Phi(g(\Phi^{-1}(F(y))))`, and its density that of :math:`y` under :math:`F` times
    :math:`g'(z) \varphi(g(z)) / \varphi(z)`. As the map acts on residuals and not on probabilities, nothing rounds to 0
    or 1 however far out y lies.

    Args:
        base: Prediction of a scalar family with a quantile, also under rising transforms.
        warp: The map :math:`g`; its tensors broadcast against the base's batch shape.
        validate_args: As in every torch distribution.

    Raises:
        TypeError: The base is not a distribution of a known family.
        ValueError: The base is of vectors, or a transform of it falls.

    Note:
        Values of a base that is not normal end at its quantiles of probability 1e-307.

    Example:
        A normal law with half the scale and a shift of one:

        >>> from torch.distributions import Normal
        >>> from fcal.distributions import AffineMap
        >>> law = Warped(Normal(torch.tensor(0.0), torch.tensor(2.0)), AffineMap(torch.tensor(0.5), torch.tensor(0.5)))
        >>> law.mean, law.stddev
        (tensor(1.), tensor(1.))
        >>> law.cdf(torch.tensor(1.0))
        tensor(0.5000)
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    has_rsample = True
    fitted_on: str | None = None  # which targets the map was fitted on, where it was

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
        """The same law with a larger batch shape."""
        shape = torch.Size(batch_shape)
        tensors = tuple(t.expand(shape) for t in self.warp.tensors)
        new = Warped(self.base.expand(shape), self.warp.rebuilt(tensors), validate_args=False)
        new._validate_args, new.fitted_on = self._validate_args, self.fitted_on
        return new

    @constraints.dependent_property
    def support(self) -> constraints.Constraint | None:
        """That of the base."""
        return self.base.support

    @property
    def dtype(self) -> torch.dtype:
        """What results come in: the widest of the parameters', but at least float32."""
        found = torch.float32
        for parameter in self._law.parameters:
            found = torch.promote_types(found, parameter.dtype)
        return found

    @property
    def mean(self) -> Tensor:
        """By a closed form or quadrature; NaN where the law has none."""
        return self._moments()[0]

    @property
    def variance(self) -> Tensor:
        """By a closed form or quadrature; infinite where the law has none."""
        return self._moments()[1]

    @property
    def stddev(self) -> Tensor:
        """Root of the variance, formed before it is rounded to the law's dtype."""
        return self._moments()[2]

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density."""
        return self._formula(value, lambda law, y: law.family.log_prob(y, *law.parameters), density=True)  # type: ignore[misc]

    def cdf(self, value: Tensor) -> Tensor:
        """Probability below ``value``."""
        return self._formula(value, lambda law, y: normal_cdf(law.family.residual(y, *law.parameters)))  # type: ignore[misc]

    def icdf(self, value: Tensor) -> Tensor:
        """Quantile of a probability."""
        p = value.to(torch.float64)
        return self._value_at(normal_quantile(p, 1 - p))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Differentiable draws: those of a standard normal law as residuals."""
        shape = self._extended_shape(torch.Size(sample_shape))
        like = self._law.parameters[0]
        return self._value_at(torch.randn(shape, dtype=torch.float64, device=like.device))

    def _formula(self, value: Tensor, formula: Callable[[Law, Tensor], Tensor], *, density: bool = False) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        law = _widened(self._law)
        inner, _, log_slope = law.pull_back(value.to(torch.float64))
        result = formula(law, inner)
        return (result - log_slope if density else result).to(torch.promote_types(self.dtype, value.dtype))

    def _value_at(self, z: Tensor) -> Tensor:
        law = _widened(self._law)
        return law.push_forward(WARP_OF[law.family].value_at(z, *law.parameters)).to(self.dtype)

    def _moments(self) -> tuple[Tensor, Tensor, Tensor]:
        mean, variance = moments_of(_widened(self._law), self.batch_shape)
        largest = torch.finfo(self.dtype).max
        narrow = torch.where(variance.isinf(), variance, variance.clamp(max=largest))
        return mean.to(self.dtype), narrow.to(self.dtype), variance.sqrt().to(self.dtype)


def _widened(law: Law) -> Law:
    return law.map(lambda p, _: p.to(torch.float64), lambda p: p.to(torch.float64))


def _law_of(base: Distribution, warp: MonotoneMap) -> Law:
    law = law_of(base)
    family, name = law.family, type(base).__name__
    if family.event_dim or family.quantile is None or family.log_cdf is None or family.log_survival is None:
        raise TypeError(f"expected `base` of a scalar family with a quantile, got {name}")
    for transform in law.transforms:
        if not is_tracing() and bool((torch.as_tensor(transform.sign) < 0).any()):
            raise ValueError(f"expected `base` under rising transforms, got a falling {type(transform).__name__}")
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


@taken_apart_by(Warped)
def _taken_apart(pred: Distribution) -> Law:
    assert isinstance(pred, Warped)
    return pred._law
