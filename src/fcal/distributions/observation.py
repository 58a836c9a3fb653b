"""Predictions with their targets: checked, missing targets hidden, precision widened."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from fcal._checks import (
    check_pair,
    check_valid_mask,
    check_values,
    check_weight,
    is_tracing,
)
from fcal.distributions.family import Law, check_parameter_kinds, in_rows, law_of, result_dtype
from fcal.distributions.transforms import transform_parameters

_WEIGHTS = (1e-100, 1e100)  # squares of weights are summed


@dataclass(frozen=True)
class Observation:
    """A batch in the form that formulas take.

    Attributes:
        law: The prediction; hidden elements have the parameters of the first valid one.
        target: The targets; hidden ones are replaced likewise.
        valid: True where an element counts; None if all do. An element is a scalar, or a vector of a vector family.
            Shape of the targets without the event dimension of the family.
        weight: Weights of the elements, zero where hidden; None for equal weights. Shaped like ``valid``.
        dtype: Dtype of results: that of the inputs, at least float32.
        row_dims: Number of batch dimensions of the prediction.
    """

    law: Law
    target: Tensor
    valid: Tensor | None
    weight: Tensor | None
    dtype: torch.dtype
    row_dims: int

    def elements(self) -> torch.Size:
        """Shape of the elements."""
        return self.target.shape[: self.target.dim() - self.law.family.event_dim]

    def event_size(self) -> int:
        """Number of elements in one event of the prediction."""
        return self.elements()[self.row_dims :].numel()

    def total_weight(self) -> Tensor:
        """Sum of the weights; without weights, the number of valid elements."""
        if self.weight is not None:
            return self.weight.sum()
        if self.valid is not None:
            return self.valid.sum(dtype=torch.float64)
        return torch.tensor(float(self.elements().numel()), dtype=torch.float64, device=self.target.device)

    def count(self) -> int:
        """Number of valid elements."""
        return self.elements().numel() if self.valid is None else int(self.valid.sum().item())

    def hide(self, values: Tensor, fill: float) -> Tensor:
        """Replace hidden elements by ``fill``; they get no gradient."""
        if self.valid is None:
            return values
        return torch.where(_aligned(self.valid, values.dim() - self.valid.dim()), values, fill)


@dataclass(frozen=True)
class Selection:
    """The elements of a batch that count, one after another.

    Attributes:
        observation: These elements, as rows.
        index: Their positions among all elements, row by row; None if all count. Shape ``(n,)``.
        target: All targets, as given.
        elements: Shape of all elements.
        rows: Batch shape of the prediction.
    """

    observation: Observation
    index: Tensor | None
    target: Tensor
    elements: torch.Size
    rows: torch.Size


class _Widen(torch.autograd.Function):
    """Cast to a wider dtype; in backward, gradients are clamped to the range of the narrow dtype."""

    @staticmethod
    def forward(value: Tensor, dtype: torch.dtype) -> Tensor:
        return value.to(dtype, copy=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, torch.dtype], output: Tensor) -> None:
        ctx.narrow = inputs[0].dtype

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        largest = torch.finfo(ctx.narrow).max
        return grads[0].clamp(-largest, largest).to(ctx.narrow), None


def observe(
    pred: Distribution,
    target: Tensor,
    *,
    valid_mask: Tensor | None = None,
    weight: Tensor | None = None,
    name: str = "target",
    widest: bool = False,
    anywhere: bool = False,
    as_given: bool = False,
) -> Observation:
    """Check a prediction and its targets, and convert them to the form that formulas take.

    Args:
        pred: Prediction of a registered family.
        target: Targets, NaN where missing.
        valid_mask: True where a target counts.
        weight: Non-negative weights.
        name: Name of the targets in error messages.
        widest: Use float64 even if the formulas of the family are accurate in float32.
        anywhere: Allow targets outside the support.
        as_given: Keep the dtypes, for callers that convert chunk by chunk.

    Raises:
        TypeError: Types or dtypes are wrong, or the family is not registered.
        ValueError: Shapes or devices do not match, or parameters, targets or weights are out of range.
    """
    law, elements, rows = _checked(pred, target, name)
    dtype = result_dtype(law, target)
    valid = _valid_elements(valid_mask, target, elements, rows)
    if weight is not None:
        weight, valid = _element_weight(weight, target, elements, rows, valid)
    if valid is not None and valid.numel():
        law, target = _hide_missing(law, target, valid)
    if not as_given:
        native = law.family.native and len(law.transforms) == 0 and not widest
        widen = partial(widened, dtype=dtype if native else torch.float64)
        law, target = law.map(lambda p, _: widen(p), widen), widen(target)
    if not is_tracing() and target.numel() and (valid is None or bool(valid.any())):
        _check_numbers(law, target, name, anywhere)
    return Observation(
        law=law,
        target=target,
        valid=valid,
        weight=weight,
        dtype=dtype,
        row_dims=len(rows),
    )


def observe_valid(pred: Distribution, target: Tensor, *, valid_mask: Tensor | None = None) -> Selection:
    """Check a prediction and its targets, and select what counts, without gradients and with dtypes as given.

    For metrics, which need no values in the place of missing ones: where few pixels of a map are measured, selecting
    these costs much less than hiding the others.

    Args:
        pred: Prediction of a registered family.
        target: Targets, NaN where missing.
        valid_mask: True where a target counts.

    Raises:
        TypeError: As for :func:`observe`.
        ValueError: As for :func:`observe`.
    """
    law, elements, rows = _checked(pred, target, "target")
    dtype, event_dim, index = result_dtype(law, target), law.family.event_dim, None
    valid = _valid_elements(valid_mask, target, elements, rows)
    if valid is not None:
        index = true_positions(valid)
    leaves = [in_rows(target, elements, event_dim), *law.leaves(elements)]
    chosen, *parameters = (leaf.detach() if index is None else leaf.detach().index_select(0, index) for leaf in leaves)
    law = law.with_leaves(parameters)
    if chosen.numel():
        _check_numbers(law, chosen, "target", anywhere=False)
    observation = Observation(law=law, target=chosen, valid=None, weight=None, dtype=dtype, row_dims=1)
    return Selection(observation=observation, index=index, target=target, elements=elements, rows=rows)


def true_positions(mask: Tensor) -> Tensor:
    """Positions of True in a flattened mask.

    Example:
        >>> true_positions(torch.tensor([[False, True], [True, False]]))
        tensor([1, 2])
    """
    flat = mask.detach().reshape(-1)
    if flat.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(flat.numpy()))  # several times faster than torch
    return flat.nonzero().squeeze(1)


def _checked(pred: Distribution, target: Tensor, name: str) -> tuple[Law, torch.Size, torch.Size]:
    """The law of a prediction, the shape of its elements, and that of its rows."""
    check_pair(pred, target, name)
    law = law_of(pred)
    check_parameter_kinds(law, target)
    elements = target.shape[: target.dim() - law.family.event_dim]
    return law, elements, target.shape[: target.dim() - len(pred.event_shape)]


def _check_numbers(law: Law, target: Tensor, name: str, anywhere: bool) -> None:
    """Check the values of parameters and targets that count."""
    check_parameter_values(law)
    if not _surely_finite(target):
        check_values(name, "finite (NaN where missing)", target.detach(), torch.isfinite(target))
    if not anywhere:
        _check_support(law, target.detach(), name)


def widened(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast to a wider dtype, with gradients clamped to the range of the narrow one."""
    # float64 passes through _Widen too: its gradient may overflow in a tail formula.
    if not value.requires_grad or (value.dtype == dtype == torch.float32):
        return value.to(dtype)
    wide: Tensor = _Widen.apply(value, dtype)
    return wide


def _aligned(mask: Tensor, extra_dims: int) -> Tensor:
    """Append dimensions so that a mask of elements broadcasts over their event dimensions."""
    return mask.reshape(mask.shape + (1,) * extra_dims)


def _valid_elements(valid_mask: Tensor | None, target: Tensor, elements: torch.Size, rows: torch.Size) -> Tensor | None:
    if valid_mask is None and not is_tracing() and _surely_finite(target):
        return None
    valid = target == target  # False for NaN, and several times faster than isnan
    if valid_mask is not None:
        mask = check_valid_mask(valid_mask, target, rows)
        valid = valid & _aligned(mask, target.dim() - mask.dim())
    return valid if valid.shape == elements else valid.all(-1)


def _element_weight(
    weight: Tensor, target: Tensor, elements: torch.Size, rows: torch.Size, valid: Tensor | None
) -> tuple[Tensor, Tensor]:
    checked = check_weight(weight, target, rows).detach().to(torch.float64)
    if checked.dim() > len(elements):
        raise ValueError(f"expected `weight` of shape {tuple(elements)}, one per row, got {tuple(checked.shape)}")
    checked = _aligned(checked, len(elements) - checked.dim()).expand(elements)
    if valid is not None:
        checked = torch.where(valid, checked, 0.0)
    usable = (checked == 0) | ((checked >= _WEIGHTS[0]) & (checked <= _WEIGHTS[1]))
    check_values("weight", f">= 0 (and from {_WEIGHTS[0]:g} to {_WEIGHTS[1]:g} if not 0)", checked, usable)
    counts = checked > 0
    return checked, counts if valid is None else valid & counts


def _hide_missing(law: Law, target: Tensor, valid: Tensor) -> tuple[Law, Tensor]:
    first = valid.reshape(-1).to(torch.uint8).argmax().reshape(1)

    def hide(value: Tensor, event_dim: int) -> Tensor:
        event = value.shape[value.dim() - event_dim :]
        if value.shape[: value.dim() - event_dim].numel() == 1:
            return value  # shared by all elements
        full = value.expand(valid.shape + event)
        fill = full.reshape(-1, *event).index_select(0, first).squeeze(0).detach()
        return torch.where(_aligned(valid, event_dim), full, fill)

    def hide_of_transform(value: Tensor) -> Tensor:
        return value if value.numel() == 1 else hide(value.expand(target.shape), law.family.event_dim)

    return law.map(hide, hide_of_transform), hide(target, law.family.event_dim)


def check_parameter_values(law: Law) -> None:
    """Check that every parameter is finite and satisfies the constraints of its family."""
    named = {name: p.detach() for name, p in zip(law.family.parameters, law.parameters, strict=True)}
    known = law.kind.arg_constraints if law.family.constraints is None else law.family.constraints
    for name, value in named.items():
        if name in law.family.unbounded:
            check_values(f"pred.{name}", "not NaN", value, ~torch.isnan(value))
        elif not _surely_finite(value):
            check_values(f"pred.{name}", "finite", value, torch.isfinite(value))
        constraint = known.get(name) if isinstance(known, Mapping) else None
        if constraint is constraints.real or (constraint is constraints.positive and _surely_positive(value)):
            continue
        if constraint is not None and not constraints.is_dependent(constraint):
            good = constraint.check(value)
            check_values(f"pred.{name}", _requirement(constraint), _smallest(value, good.dim()), good)
    if law.family.ordered is not None:
        low, high = law.family.ordered
        check_values(f"pred.{high}", f"> `pred.{low}`", named[high], named[high] > named[low])
    for transform in law.transforms:
        for name, number in transform_parameters(transform).items():
            value = torch.as_tensor(number, dtype=torch.float64).detach()
            good = torch.isfinite(value) & ((value != 0) | (name == "loc"))
            check_values(f"pred.transforms: {name}", "finite" if name == "loc" else "finite and not 0", value, good)


def _surely_finite(value: Tensor) -> bool:
    """Whether the sum shows that all values are finite, which is much faster than to check each."""
    return math.isfinite(value.detach().sum().item())


def _surely_positive(value: Tensor) -> bool:
    return value.numel() > 0 and value.min().item() > 0


def _check_support(law: Law, target: Tensor, name: str) -> None:
    if law.family.support is None and not law.transforms:
        return
    inner, _, _ = law.pull_back(target)
    good = torch.isfinite(inner)
    if law.family.support is not None:
        good = good & law.family.support(inner, *(p.detach() for p in law.parameters))
    check_values(name, f"possible under {law.name}", target, good)


def _smallest(value: Tensor, dims: int) -> Tensor:
    """One number per element for an error message: itself, or the smallest entry of a vector or a diagonal."""
    if value.dim() - dims == 2:
        value = value.diagonal(dim1=-2, dim2=-1)
    return value if value.dim() == dims else value.amin(-1)


def _requirement(constraint: Any) -> str:
    base = getattr(constraint, "base_constraint", constraint)
    if base is constraints.positive:
        return "> 0"
    if isinstance(base, type(constraints.unit_interval)):
        return f"within [{base.lower_bound:g}, {base.upper_bound:g}]"
    if constraint is constraints.lower_cholesky:
        return "lower-triangular with a positive diagonal"
    return str(constraint)
