"""Whether what a model makes is still a law: torch refuses some parameters, and NaNs slip in where it is not asked."""

import math
import re
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

_INNER = ("base_dist", "_mixture_distribution", "_component_distribution")
_REFUSAL = re.compile(
    r"Expected parameter (?P<parameter>\w+) .*? of distribution (?P<law>\w+).*? to "
    r"(?:satisfy the constraint|be) (?P<constraint>.+?),? but found invalid values",
    re.DOTALL,
)
_LONGEST = 60  # characters of a refused value, or of what torch asks for


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A law that torch refused to make.

    Attributes:
        law: Its family.
        parameter: Which of its parameters is at fault.
        constraint: What torch asks of that.
        value: The first number at fault; NaN where it takes several together, as in a matrix.
        shown: What is at fault, in words.
        is_finite: Whether it is made of numbers, if the wrong ones.
    """

    law: str
    parameter: str
    constraint: str
    value: float
    shown: str
    is_finite: bool

    def __str__(self) -> str:
        return f"{self.law} with {self.parameter} {self.shown}, where torch asks for {self.constraint}"


def refusal_of(error: BaseException) -> Refusal | None:
    """What torch refused, where an error is its refusal of a law; None for any other error.

    Example:
        >>> try:
        ...     torch.distributions.Normal(torch.zeros(2), torch.tensor([1.0, 0.0]))
        ... except ValueError as error:
        ...     print(refusal_of(error))
        Normal with scale 0.0, where torch asks for GreaterThan(lower_bound=0.0)
        >>> refusal_of(ValueError("expected rain, got sun")) is None
        True
    """
    found = _REFUSAL.match(str(error))
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if found is None or not frames or not frames[-1].f_globals.get("__name__", "").startswith("torch.distributions"):
        return None
    law, parameter, constraint = (_cut(" ".join(found[name].split())) for name in ("law", "parameter", "constraint"))
    return Refusal(law=law, parameter=parameter, constraint=constraint, **_at_fault(frames[-1].f_locals))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _at_fault(seen: Mapping[str, Any]) -> dict[str, Any]:
    """The first value that torch refused, from what it had before it: of a large tensor its message shows a part."""
    value, valid = seen.get("value"), seen.get("valid")
    if not isinstance(value, Tensor) or not isinstance(valid, Tensor):
        return {"value": math.nan, "shown": "out of bounds", "is_finite": True}
    value, wrong = value.detach(), value.detach()[~value.isfinite()]
    if wrong.numel():
        return {"value": wrong[0].item(), "shown": str(wrong[0].item()), "is_finite": False}
    first = value[~valid][0]
    number = math.nan if first.dim() else first.item()
    return {"value": number, "shown": _cut(str(first.tolist())), "is_finite": True}


def is_finite(given: Any) -> bool:
    """Whether a tensor has numbers alone; of anything else nothing is known that speaks against it."""
    return not isinstance(given, Tensor) or bool(given.isfinite().all())


def is_sane(model: nn.Module, given: Any) -> bool:
    """Whether a model's parameters and those of the law that it makes of an input are finite."""
    if not all(is_finite(parameter) for parameter in model.parameters()):
        return False
    try:
        with torch.no_grad():
            pred = model(given)
    except Exception as error:  # what was raised first counts, unless this one tells more of numbers
        refusal = refusal_of(error)
        return refusal is None or refusal.is_finite
    return all(is_finite(x) for x in _parameters(pred))


def _parameters(pred: Any) -> Iterator[Any]:
    """What a law was made of. Not its mean or spread: some laws have none, and say so by a NaN."""
    if not isinstance(pred, Distribution):
        yield pred
        return
    for name in getattr(pred, "arg_constraints", {}):
        value = vars(pred).get(name)
        yield value.clamp(min=0) if name == "logits" and isinstance(value, Tensor) else value  # -inf is a share of 0
    for name in _INNER:
        if isinstance(vars(pred).get(name), Distribution):
            yield from _parameters(vars(pred)[name])
