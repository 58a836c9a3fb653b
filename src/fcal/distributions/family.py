"""Families of distributions and their registry; a prediction as a law: family, parameters, monotone transforms."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import (
    Distribution,
    Independent,
    MixtureSameFamily,
    TransformedDistribution,
    Uniform,
)
from torch.distributions.transforms import Transform

from fcal._checks import is_tracing
from fcal.distributions.tails import normal_quantile_of_log
from fcal.distributions.transforms import (
    check_domains,
    detach_shift,
    flattened,
    inverse_of,
    is_inverse_sigmoid,
    map_transform,
)

Formula = Callable[..., Tensor]
_CENTRAL = 0.02  # residuals closer to 0 are refined


@dataclass(frozen=True, kw_only=True, eq=False)  # an entry is itself, so it can be a key
class Family:
    """Formulas of a family, as functions of a value and the parameters.

    The arguments are float64 tensors that broadcast against each other; autograd differentiates the formulas.

    Args:
        parameters: Attribute names of the distribution, in the order the formulas take them.
        log_cdf: ``(value, *parameters)`` to the log-CDF, accurate in the lower tail.
        log_survival: ``(value, *parameters)`` to the log-survival, accurate in the upper tail.
        quantile: ``(lower, upper, *parameters)`` to the value with these tail probabilities, which add up to 1 and of
            which the smaller is exact.
        log_prob: ``(value, *parameters)`` to the log-density; default: the ``log_prob`` of the class.
        residual: ``(value, *parameters)`` to z, if there is a shorter way than by the CDF.
        central: ``(value, *parameters)`` to the CDF minus one half, accurate near the median.
        support: ``(value, *parameters)`` to True where a value is in the support; default: everywhere.
        bounds: ``(*parameters)`` to the ends of the support, if they depend on parameters.
        ordered: Names of two parameters of which the second must exceed the first.
        unbounded: Names of parameters that may be infinite.
        crps: ``(value, *parameters)`` to the continuous ranked probability score, if it has a closed form.
        crps_where: ``(*parameters)`` to True where ``crps`` is accurate; default: everywhere.
        location: Name of the location parameter, if any.
        curve: Whether residuals of float32 batches may be computed by a polynomial fitted to the formulas, for
            symmetric families of ``loc`` and ``scale`` with exponential tails.
        slopes: ``(value, *parameters)``, flat float32 tensors, to residuals and their derivatives with respect to each
            argument: a faster way for large batches, without autograd. It may return None.
        event_dim: 0 for scalars, 1 for vectors (with ``residual`` and ``log_prob`` but no CDF).
        parameter_dims: Number of event dimensions of each parameter; default: 0.
        constraints: Constraints of the parameters; default: the ``arg_constraints`` of the class.
        component: Family of the components of a mixture; their parameters follow the weights.
        build: ``(*parameters)`` to a distribution, if the class does not take them by name.
        native: Whether the formulas are accurate in float32, so that nothing is cast to float64.

    Example:
        A family in ten lines: Kumaraswamy, which torch provides without a log-CDF.

        >>> from torch.distributions import Kumaraswamy
        >>> from fcal.distributions import Family, log1mexp_of_log, register
        >>> def log_survival(y, a, b):
        ...     return b * torch.log1p(-y.pow(a))
        >>> kumaraswamy = Family(
        ...     parameters=("concentration1", "concentration0"),
        ...     log_cdf=lambda y, a, b: log1mexp_of_log((-log_survival(y, a, b)).log()),
        ...     log_survival=log_survival,
        ...     quantile=lambda lower, upper, a, b: (-torch.expm1(upper.log() / b)).pow(1 / a),
        ...     support=lambda y, a, b: (y > 0) & (y < 1),
        ... )
        >>> register(Kumaraswamy, kumaraswamy)
        >>> fcal.standardize(Kumaraswamy(torch.tensor(1.0), torch.tensor(1.0)), torch.tensor(0.5))
        tensor(0.)
    """

    parameters: tuple[str, ...]
    log_cdf: Formula | None = None
    log_survival: Formula | None = None
    quantile: Formula | None = None
    log_prob: Formula | None = None
    residual: Formula | None = None
    central: Formula | None = None
    support: Formula | None = None
    bounds: Callable[..., tuple[Tensor, Tensor]] | None = None
    ordered: tuple[str, str] | None = None
    unbounded: tuple[str, ...] = ()
    crps: Formula | None = None
    crps_where: Formula | None = None
    location: str | None = None
    curve: bool = False
    slopes: Callable[..., tuple[Tensor, tuple[Tensor, ...]] | None] | None = None
    event_dim: int = 0
    parameter_dims: tuple[int, ...] | None = None
    constraints: Mapping[str, Any] | None = None
    component: "Family | None" = None
    build: Callable[..., Distribution] | None = None
    native: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.parameters, str) or not all(isinstance(name, str) for name in self.parameters):
            raise TypeError(f"expected `parameters` a tuple of names, got {self.parameters!r}")
        if self.event_dim not in (0, 1) or len(self.dims()) != len(self.parameters):
            raise ValueError(f"expected `event_dim` 0, or 1 with `parameter_dims`, got {self.event_dim!r}")
        if self.residual is None and (self.log_cdf is None or self.log_survival is None):
            raise ValueError("expected `Family` with both `log_cdf` and `log_survival`, or with `residual`, got less")
        if self.location is not None and self.location not in self.parameters:
            raise ValueError(f"expected `location` one of {self.parameters}, got {self.location!r}")

    def dims(self) -> tuple[int, ...]:
        """Number of event dimensions of each parameter."""
        return self.parameter_dims or (0,) * len(self.parameters)

    def log_density(self, kind: type[Distribution], value: Tensor, *parameters: Tensor) -> Tensor:
        """Log-density by the field ``log_prob``, or by the ``log_prob`` of the class ``kind``."""
        if self.log_prob is not None:
            return self.log_prob(value, *parameters)
        return self.distribution(kind, parameters).log_prob(value)

    def distribution(self, kind: type[Distribution], parameters: tuple[Tensor, ...]) -> Distribution:
        """The distribution of class ``kind`` with these parameters."""
        if self.build is not None:
            return self.build(*parameters)
        make: Callable[..., Distribution] = kind
        return make(**dict(zip(self.parameters, parameters, strict=True)), validate_args=False)


_FAMILIES: dict[type[Distribution], Family] = {}


def register(kind: type[Distribution], family: Family) -> None:
    """Register the family of a class and its subclasses; an earlier entry is replaced.

    Example:
        See :class:`Family`.
    """
    if not (isinstance(kind, type) and issubclass(kind, Distribution)):
        raise TypeError(f"expected `kind` a subclass of torch.distributions.Distribution, got {kind!r}")
    if not isinstance(family, Family):
        raise TypeError(f"expected `family` a fcal.distributions.Family, got {type(family).__name__}")
    _FAMILIES[kind] = family


def family_of(pred: Distribution) -> tuple[type[Distribution], Family] | None:
    """First registered class in the MRO of ``pred`` and its family, or None."""
    for kind in type(pred).__mro__:
        family = _FAMILIES.get(kind)
        if family is not None:
            return kind, family
    return None


def families() -> list[str]:
    """Names of the registered classes.

    Example:
        >>> "Laplace" in families()
        True
    """
    return [kind.__name__ for kind in _FAMILIES]


def family_residual(family: Family, value: Tensor, *parameters: Tensor) -> Tensor:
    """Standard normal residual of a value, in the precision of the tensors: by ``residual`` or from the nearer tail."""
    if family.residual is not None:
        z = family.residual(value, *parameters)
    else:
        assert family.log_cdf is not None  # Family guarantees both
        assert family.log_survival is not None
        z = _from_nearer_tail(family.log_cdf(value, *parameters), family.log_survival(value, *parameters))
    return z if family.central is None else _refined_near_median(z, family.central, (value, *parameters))


def _refined_near_median(z: Tensor, central: Formula, arguments: tuple[Tensor, ...]) -> Tensor:
    """Replace residuals near 0, where log F is inaccurate, by the series of the normal quantile about 1/2."""
    near = z.detach().abs() < _CENTRAL
    if is_tracing():
        return torch.where(near, _from_central(torch.where(near, central(*arguments), 0.0)), z)
    where = near.reshape(-1).nonzero().squeeze(1)
    if not len(where):
        return z
    few = (_selected(x, z.shape, where) for x in arguments)
    return z.reshape(-1).index_copy(0, where, _from_central(central(*few))).reshape(z.shape)


def _selected(values: Tensor, shape: torch.Size, where: Tensor) -> Tensor:
    event = values.shape[len(shape) :]
    return values if not values.dim() else values.expand(shape + event).reshape(-1, *event).index_select(0, where)


def _from_central(c: Tensor) -> Tensor:
    square = c.square()
    series = c * (1 + square * (math.pi / 3 + square * (7 * math.pi**2 / 30 + square * 127 * math.pi**3 / 630)))
    return math.sqrt(2 * math.pi) * series


def _from_nearer_tail(log_cdf: Tensor, log_survival: Tensor) -> Tensor:
    below = log_cdf <= log_survival
    z = normal_quantile_of_log(torch.where(below, log_cdf, log_survival))
    return torch.where(below, z, -z)


class Law(NamedTuple):
    """A distribution in terms of its family.

    Attributes:
        kind: The registered class.
        family: Its formulas.
        parameters: Their arguments after the value.
        transforms: Transforms from the variable of the family to the predicted variable.
        name: Name of the whole in error messages.
    """

    kind: type[Distribution]
    family: Family
    parameters: tuple[Tensor, ...]
    transforms: tuple[Transform, ...] = ()
    name: str = ""

    def map(self, change: Callable[[Tensor, int], Tensor], of_transform: Callable[[Tensor], Tensor]) -> "Law":
        """Apply ``change(tensor, event_dim)`` to the parameters and ``of_transform(tensor)`` to those of transforms."""
        parameters = tuple(change(p, d) for p, d in zip(self.parameters, self.family.dims(), strict=True))
        transforms = tuple(map_transform(t, of_transform) for t in self.transforms)
        return self._replace(parameters=parameters, transforms=transforms)

    def to(self, dtype: torch.dtype) -> "Law":
        """The same distribution with parameters of another dtype."""
        return self.map(lambda parameter, _: parameter.to(dtype), lambda parameter: parameter.to(dtype))

    def leaves(self, elements: torch.Size) -> list[Tensor]:
        """All parameters, also those of transforms, with one row per element."""
        rows: list[Tensor] = []

        def collect(value: Tensor, event_dim: int) -> Tensor:
            rows.append(in_rows(value, elements, event_dim))
            return value

        self.map(collect, lambda value: collect(value, self.family.event_dim))
        return rows

    def with_leaves(self, leaves: Iterable[Tensor]) -> "Law":
        """Replace all parameters, in the order of :meth:`leaves`."""
        rest = iter(leaves)
        return self.map(lambda *_: next(rest), lambda _: next(rest))

    def location(self) -> str:
        """Name of the location parameter."""
        if self.family.location is None:
            reason = "a family with a location where the mean is detached (or detach_mean=False)"
            raise ValueError(f"expected `pred` of {reason}, got {self.name}")
        return self.family.location

    def detach_location(self) -> "Law":
        """The same distribution with its location detached."""
        name = self.location()
        named = zip(self.family.parameters, self.parameters, strict=True)
        parameters = tuple(p.detach() if n == name else p for n, p in named)
        return self._replace(parameters=parameters, transforms=tuple(map(detach_shift, self.transforms)))

    def pull_back(self, value: Tensor) -> tuple[Tensor, Tensor | int, Tensor | float]:
        """Invert the transforms: the family's variable x of a value y, the direction (+1 or -1) and log |dy/dx|."""
        direction: Tensor | int = 1
        log_slope: Tensor | float = 0.0
        for transform in reversed(self.transforms):
            inner = inverse_of(transform, value)
            log_slope = log_slope + transform.log_abs_det_jacobian(inner, value)
            direction = direction * transform.sign
            value = inner
        return value, direction, log_slope

    def push_forward(self, value: Tensor) -> Tensor:
        """Apply the transforms to a variable of the family."""
        for transform in self.transforms:
            value = transform(value)
        return value

    def distribution(self) -> Distribution:
        """The torch distribution with these parameters."""
        base = self.family.distribution(self.kind, self.parameters)
        return TransformedDistribution(base, list(self.transforms), validate_args=False) if self.transforms else base


def in_rows(value: Tensor, elements: torch.Size, event_dim: int) -> Tensor:
    """Expand a tensor to all elements and flatten them into one dimension."""
    event = value.shape[value.dim() - event_dim :]
    return value.expand(elements + event).reshape(elements.numel(), *event)


def result_dtype(law: Law, target: Tensor) -> torch.dtype:
    """Dtype of results: the widest of the inputs, at least float32."""
    dtype = target.dtype
    for parameter in law.parameters:
        if parameter.dtype != dtype:
            dtype = torch.promote_types(dtype, parameter.dtype)
    return dtype if dtype in (torch.float32, torch.float64) else torch.promote_types(dtype, torch.float32)


def check_parameter_kinds(law: Law, target: Tensor) -> None:
    """Check that parameters are floating-point and on the device of the targets (0-dimensional ones may be on any)."""
    device = target.device
    for name, parameter in zip(law.family.parameters, law.parameters, strict=True):
        if not (isinstance(parameter, Tensor) and parameter.is_floating_point()):
            got = parameter.dtype if isinstance(parameter, Tensor) else type(parameter).__name__
            raise TypeError(f"expected `pred.{name}` a tensor of a floating dtype, got {got}")
        if parameter.device != device and parameter.dim():
            raise ValueError(f"expected `target` on the device of `pred.{name}`, {parameter.device}, got {device}")


def law_of(pred: Distribution) -> Law:
    """Decompose a distribution.

    Raises:
        TypeError: The family is not registered, or a transform is not monotone and elementwise.
    """
    name = type(pred).__name__
    known = family_of(pred)
    if known is not None:
        return Law(*known, _attributes(pred, known[1].parameters), name=name)
    if isinstance(pred, Independent):
        return law_of(pred.base_dist)
    if isinstance(pred, MixtureSameFamily):
        from fcal.distributions.mixture import mixture_family  # the families are written on top of this module

        family = mixture_family(pred)
        return Law(MixtureSameFamily, family, _attributes(pred, family.parameters), name=name)
    own = getattr(pred, "_law", None)  # of a class whose family depends on the instance
    if isinstance(own, Law):
        return own
    if isinstance(pred, TransformedDistribution):
        base = law_of(pred.base_dist)
        added = [simple for transform in pred.transforms for simple in flattened(transform)]
        transforms = (*base.transforms, *added)
        check_domains(base.kind.support, transforms)
        return _absorb(base._replace(transforms=transforms, name=name))
    if not isinstance(pred, Distribution):
        raise TypeError(f"expected `pred` a torch.distributions.Distribution such as Normal(mean, sigma), got {name}")
    raise TypeError(
        f"expected `pred` of a known family ({', '.join(families())}), got {name}; add it with "
        f"fcal.distributions.register({name}, fcal.distributions.Family(parameters=..., log_cdf=..., "
        f"log_survival=..., quantile=...))"
    )


def _attributes(pred: Distribution, names: tuple[str, ...]) -> tuple[Tensor, ...]:
    try:
        return tuple(attrgetter(name)(pred) for name in names)
    except AttributeError as error:
        kind = type(pred).__name__
        raise TypeError(f"expected `parameters` of the family attributes of {kind}, got {names}: {error}") from None


def _absorb(law: Law) -> Law:
    """Recognize logit(Uniform(0, 1)), torch's recipe for a logistic distribution: 1 - sigmoid(y) would lose a tail."""
    if law.kind is not Uniform or not law.transforms or not is_inverse_sigmoid(law.transforms[0]):
        return law
    from fcal.distributions.location_scale import LOGISTIC, Logistic

    low, high = law.parameters
    if not is_tracing() and not bool(((low == 0) & (high == 1)).all()):
        return law
    return Law(Logistic, LOGISTIC, (torch.zeros_like(low), torch.ones_like(low)), law.transforms[1:], law.name)
