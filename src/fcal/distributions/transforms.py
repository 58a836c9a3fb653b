"""Monotone transforms between the variable of a family and the predicted variable."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions import transforms as torch_transforms
from torch.distributions.transforms import Transform

# Attributes of transforms that hold one number per prediction.
_TRANSFORM_PARAMETERS: dict[type[Transform], tuple[str, ...]] = {
    torch_transforms.AffineTransform: ("loc", "scale"),
    torch_transforms.PowerTransform: ("exponent",),
}


def flattened(transform: Transform) -> list[Transform]:
    """The parts of a composed transform, each of which must be monotone and elementwise."""
    if isinstance(transform, torch_transforms.ComposeTransform):
        return [simple for inner in transform.parts for simple in flattened(inner)]
    try:
        elementwise = not transform.domain.event_dim and not transform.codomain.event_dim
        usable = elementwise and transform.bijective and transform.sign is not None
    except (NotImplementedError, AttributeError):
        usable = False
    if not usable:
        name = type(transform).__name__
        raise TypeError(f"expected `pred` with elementwise, monotone transforms, got {name}")
    return [transform]


def check_domains(support: object, transforms: Sequence[Transform]) -> None:
    """Reject a transform that is monotone on part of the real line if its input can be any real number."""
    whole_line = support is constraints.real
    for transform in transforms:
        if whole_line and transform.domain is not constraints.real:
            name = type(transform).__name__
            raise TypeError(f"expected `pred` with transforms of all its values, got {name} of {transform.domain}")
        whole_line = whole_line and transform.codomain is constraints.real


def is_inverse_sigmoid(transform: Transform) -> bool:
    """Whether a transform is the logit."""
    inverse = isinstance(transform, torch_transforms._InverseTransform)
    return inverse and isinstance(transform.inv, torch_transforms.SigmoidTransform)


def inverse_of(transform: Transform, value: Tensor) -> Tensor:
    """The argument at which a transform has this value."""
    if isinstance(transform, torch_transforms.SigmoidTransform):
        return torch.logit(value)  # torch's own inverse clamps
    inverse: Tensor = transform.inv(value)
    return inverse


def map_transform(transform: Transform, change: Callable[[Tensor], Tensor]) -> Transform:
    """The transform with changed parameters."""
    if isinstance(transform, torch_transforms._InverseTransform):
        return map_transform(transform.inv, change).inv
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


def detach_shift(transform: Transform) -> Transform:
    """The transform with its shift detached."""
    if isinstance(transform, torch_transforms._InverseTransform):
        return detach_shift(transform.inv).inv
    if isinstance(transform, torch_transforms.AffineTransform) and isinstance(transform.loc, Tensor):
        return torch_transforms.AffineTransform(transform.loc.detach(), transform.scale)
    return transform
