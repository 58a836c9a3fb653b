"""What is easily mistaken for an objective."""

import inspect
from typing import Any

from torch import nn

from fcal.training.objectives import ObjectiveConfig


def check_objective(candidate: Any) -> None:
    """Reject what is easily mistaken for an objective; the message says how to turn it into one.

    Raises:
        TypeError: A config, a name, a loss of prediction and target, or nothing to call.

    Example:
        >>> from fcal.training import ObjectiveConfig
        >>> check_objective(ObjectiveConfig())
        Traceback (most recent call last):
        ...
        TypeError: expected `objective` to call with model and batch, got an ObjectiveConfig; pass objective(config)
    """
    if isinstance(candidate, ObjectiveConfig):
        shown = "an ObjectiveConfig; pass objective(config)"
    elif isinstance(candidate, str):
        shown = f"{candidate!r}; pass objective(ObjectiveConfig(name={candidate!r}))"
    elif _arguments(candidate)[:2] in (["pred", "target"], ["input", "target"]):  # losses of this library and of torch
        shown = _loss_and_remedy(candidate)
    elif isinstance(candidate, type) or not callable(candidate):
        shown = repr(candidate)
    else:
        return
    raise TypeError(f"expected `objective` to call with model and batch, got {shown}")


def _arguments(candidate: Any) -> list[str]:
    """Names of the arguments of a callable; none if it has no signature."""
    function = getattr(candidate, "forward", candidate)  # the signature of a module's __call__ is generic
    try:
        return [name for name in inspect.signature(function).parameters if name != "self"]
    except (TypeError, ValueError):  # not callable, or built in
        return []


def _loss_and_remedy(loss: Any) -> str:
    """The name of a loss, and how to make an objective of it; this library's modules take masks and weights."""
    cls = loss if isinstance(loss, type) else type(loss)
    name = getattr(loss, "__name__", cls.__name__)
    wrapped = f"lambda model, batch: {{{name!r}: loss(model(batch['input']), batch['target']).mean()}}"
    if issubclass(cls, nn.Module) and "valid_mask" in _arguments(loss):
        wrapped = f"fcal.training.objectives.TermOf({name!r}, loss)"
    return f"{name}, a loss of prediction and target; pass {wrapped}"
