"""A distribution decomposed into its family, the parameters as tensors, and monotone transforms."""

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import (
    Distribution,
    Independent,
    MixtureSameFamily,
    TransformedDistribution,
    Uniform,
    constraints,
)
from torch.distributions import transforms as torch_transforms
from torch.distributions.transforms import Transform

from fcal._checks import is_tracing
from fcal.distributions.family import Family, families, family_of
from fcal.distributions.location_scale import LOGISTIC, Logistic
from fcal.distributions.mixture import mixture_family

# Attributes of transforms that hold one number per prediction.
_TRANSFORM_PARAMETERS: dict[type[Transform], tuple[str, ...]] = {
    torch_transforms.AffineTransform: ("loc", "scale"),
    torch_transforms.PowerTransform: ("exponent",),
}


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
        transforms = tuple(_map_transform(t, of_transform) for t in self.transforms)
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
        return self._replace(parameters=parameters, transforms=tuple(map(_detach_shift, self.transforms)))

    def pull_back(self, value: Tensor) -> tuple[Tensor, Tensor | int, Tensor | float]:
        """Invert the transforms: the family's variable x of a value y, the direction (+1 or -1) and log |dy/dx|."""
        direction: Tensor | int = 1
        log_slope: Tensor | float = 0.0
        for transform in reversed(self.transforms):
            inner = _inverse(transform, value)
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
        family = mixture_family(pred)
        return Law(MixtureSameFamily, family, _attributes(pred, family.parameters), name=name)
    own = getattr(pred, "_law", None)  # of a class whose family depends on the instance
    if isinstance(own, Law):
        return own
    if isinstance(pred, TransformedDistribution):
        base = law_of(pred.base_dist)
        transforms = [simple for transform in pred.transforms for simple in _flattened(transform)]
        _check_domains(base, transforms)
        return _absorb(base._replace(transforms=(*base.transforms, *transforms), name=name))
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


def _flattened(transform: Transform) -> list[Transform]:
    if isinstance(transform, torch_transforms.ComposeTransform):
        return [simple for inner in transform.parts for simple in _flattened(inner)]
    try:
        elementwise = not transform.domain.event_dim and not transform.codomain.event_dim
        usable = elementwise and transform.bijective and transform.sign is not None
    except (NotImplementedError, AttributeError):
        usable = False
    if not usable:
        name = type(transform).__name__
        raise TypeError(f"expected `pred` with elementwise, monotone transforms, got {name}")
    return [transform]


def _check_domains(base: Law, transforms: list[Transform]) -> None:
    """Reject a transform that is monotone on part of the real line if its input can be any real number."""
    support: object = base.kind.support
    whole_line = support is constraints.real
    for transform in (*base.transforms, *transforms):
        if whole_line and transform.domain is not constraints.real:
            name = type(transform).__name__
            raise TypeError(f"expected `pred` with transforms of all its values, got {name} of {transform.domain}")
        whole_line = whole_line and transform.codomain is constraints.real


def _absorb(law: Law) -> Law:
    """Recognize logit(Uniform(0, 1)), torch's recipe for a logistic distribution: 1 - sigmoid(y) would lose a tail."""
    if law.kind is not Uniform or not law.transforms or not _is_inverse_sigmoid(law.transforms[0]):
        return law
    low, high = law.parameters
    if not is_tracing() and not bool(((low == 0) & (high == 1)).all()):
        return law
    return Law(Logistic, LOGISTIC, (torch.zeros_like(low), torch.ones_like(low)), law.transforms[1:], law.name)


def _is_inverse_sigmoid(transform: Transform) -> bool:
    inverse = isinstance(transform, torch_transforms._InverseTransform)
    return inverse and isinstance(transform.inv, torch_transforms.SigmoidTransform)


def _inverse(transform: Transform, value: Tensor) -> Tensor:
    if isinstance(transform, torch_transforms.SigmoidTransform):
        return torch.logit(value)  # torch's own inverse clamps
    inverse: Tensor = transform.inv(value)
    return inverse


def _map_transform(transform: Transform, change: Callable[[Tensor], Tensor]) -> Transform:
    if isinstance(transform, torch_transforms._InverseTransform):
        return _map_transform(transform.inv, change).inv
    names = _TRANSFORM_PARAMETERS.get(type(transform))
    if names is None:
        return transform
    values = {name: getattr(transform, name) for name in names}
    changed = {name: change(v) if isinstance(v, Tensor) else v for name, v in values.items()}
    make: Callable[..., Transform] = type(transform)
    return make(**changed)


def transform_parameters(transform: Transform) -> dict[str, Tensor | float]:
    """Parameters of a transform, or of the transform that it inverts, by name."""
    if isinstance(transform, torch_transforms._InverseTransform):
        return transform_parameters(transform.inv)
    return {name: getattr(transform, name) for name in _TRANSFORM_PARAMETERS.get(type(transform), ())}


def _detach_shift(transform: Transform) -> Transform:
    if isinstance(transform, torch_transforms._InverseTransform):
        return _detach_shift(transform.inv).inv
    if isinstance(transform, torch_transforms.AffineTransform) and isinstance(transform.loc, Tensor):
        return torch_transforms.AffineTransform(transform.loc.detach(), transform.scale)
    return transform
