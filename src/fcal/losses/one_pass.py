"""Any objective that depends on a batch through its sums: one pass forward, one back, the same over all ranks."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fcal._checks import check_once, check_pair, is_tracing
from fcal._ranks import all_reduced, sum_over_ranks, world_size
from fcal.constraints import (
    SIZE,
    BatchSums,
    SumInputs,
    SumOptions,
    are_sound,
    are_steep,
    batch_slopes,
    batch_sums,
    traced_sums,
)
from fcal.distributions.law import Law, law_of
from fcal.distributions.location_scale import NORMAL
from fcal.distributions.observation import Observation, check_parameter_kinds, result_dtype
from fcal.distributions.residual_curve import Curve, curve_of
from fcal.losses.batch import Batch
from fcal.losses.elements import nothing
from fcal.losses.pieces import Pieces, leaves_of
from fcal.losses.scalar_stage import Objective, value_and_slopes
from fcal.residuals import residuals_of
from fcal.scores import element_nll


class Plan(NamedTuple):
    """What to compute of a batch.

    Attributes:
        objective: A smooth function of the batch's sums.
        by: Names of the sums it depends on, if it takes complex numbers; None if it takes only tensors.
        detach_mean: Let only the likelihood's gradient reach the predicted location.
        with_nll: Whether the objective needs the likelihood.
        sync: Sum over all ranks.
        least_count: The effective number of targets that must count, beside more than one.
    """

    objective: Objective
    by: tuple[str, ...] | None
    detach_mean: bool
    with_nll: bool
    sync: bool
    least_count: float


class _Pass(NamedTuple):
    """One pass over this rank's batch: what went in, how, and the sums that came out.

    ``pieces`` are there for every law but the normal one; the inputs are then its residuals.
    """

    inputs: SumInputs
    options: SumOptions
    sums: list[float]
    dtype: torch.dtype
    pieces: Pieces | None = None


def evaluate(batch: Batch, plan: Plan) -> Tensor:
    """The objective of a batch, differentiable.

    Raises:
        ValueError: The batch is invalid, or fewer than two targets count.
    """
    if is_tracing():
        return _traced(batch, plan)
    run, sums = _run_on_all_ranks(batch, plan) if plan.sync and world_size() > 1 else _run_alone(batch, plan)
    _check_count(sums, plan.least_count)
    value, slopes = value_and_slopes(plan.objective, sums, plan.by)
    if run.options.curve is not None and are_steep(slopes):  # a curve has the range of float32 only
        run = _general_run(batch.observe(as_given=True), plan)
    rounded = math.inf if value > torch.finfo(run.dtype).max else value
    outcome = torch.tensor(rounded, dtype=run.dtype, device=run.inputs.target.device)
    if run.pieces is None:
        loss: Tensor = _Known.apply(*run.inputs, outcome, slopes, run.options, plan.sync)
    else:
        loss = _KnownPieces.apply(outcome, slopes, run.pieces, run.inputs.weight, plan.sync, *run.pieces.leaves)
    return loss


def _run_alone(batch: Batch, plan: Plan) -> tuple[_Pass, list[float]]:
    run = _run(batch, plan)
    return run, run.sums


def _run_on_all_ranks(batch: Batch, plan: Plan) -> tuple[_Pass, list[float]]:
    passes: list[_Pass] = []

    def local() -> Tensor:
        passes.append(_run(batch, plan))
        return torch.tensor(passes[0].sums, dtype=torch.float64, device=batch.device())

    sums = sum_over_ranks(local, size=SIZE, device=batch.device()).tolist()
    return passes[0], sums


class _Known(torch.autograd.Function):
    """A loss whose value and derivatives by the sums are known already; backward makes the second pass."""

    @staticmethod
    def forward(
        ctx: Any,
        target: Tensor,
        loc: Tensor | None,
        scale: Tensor | None,
        weight: Tensor | None,
        outcome: Tensor,
        slopes: list[float],
        options: SumOptions,
        sync: bool,
    ) -> Tensor:
        ctx.save_for_backward(target, loc, scale, weight)
        ctx.slopes, ctx.options, ctx.sync = slopes, options, sync
        return outcome

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        slopes = _scaled(ctx, grads[0])
        inputs = SumInputs(*ctx.saved_tensors)
        return (*batch_slopes(inputs, ctx.options, slopes, ctx.needs_input_grad[:3]), None, None, None, None, None)


class _KnownPieces(torch.autograd.Function):
    """The same for a law whose residuals were computed in pieces."""

    @staticmethod
    def forward(
        ctx: Any, outcome: Tensor, slopes: list[float], pieces: Pieces, weight: Tensor | None, sync: bool, *_: Tensor
    ) -> Tensor:
        ctx.slopes, ctx.pieces, ctx.weight, ctx.sync = slopes, pieces, weight, sync
        return outcome

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        slopes = _scaled(ctx, grads[0])
        return (None,) * 5 + tuple(ctx.pieces.gradients(slopes, list(ctx.needs_input_grad[5:]), ctx.weight))


def _scaled(ctx: Any, grad: Tensor) -> list[float]:
    """The derivatives by the sums times the gradient that arrives, that of all ranks together."""
    check_once("the f-Cal loss")
    factor = (all_reduced(grad.to(torch.float64)) if ctx.sync else grad).item()
    return [factor * slope for slope in ctx.slopes]


def _run(batch: Batch, plan: Plan) -> _Pass:
    if batch.valid_mask is None and batch.weight is None:
        run = _optimistic_run(batch, plan)
        if run is not None:
            return run
    observation = batch.observe(as_given=not _is_normal(law_of(batch.pred)))
    if observation.valid is not None and not bool(observation.valid.any()):
        return _empty_run(observation)
    if _is_normal(observation.law):
        return _normal_run(observation, plan)
    run = _curved_run(observation, plan)
    return _general_run(observation, plan) if run is None else run


def _optimistic_run(batch: Batch, plan: Plan) -> _Pass | None:
    """Sums of a normal (or curved) prediction without a look at single values; None if one of them needs that look.

    A NaN, an infinity, an overflow or a bad scale anywhere makes a sum NaN or infinite, so the sums are the check.
    """
    check_pair(batch.pred, batch.target)
    law = law_of(batch.pred)
    if not batch.target.numel():
        return None
    check_parameter_kinds(law, batch.target)
    dtype = result_dtype(law, batch.target)
    curve = _curve(law, plan, dtype, batch.device())
    if curve is None and not _is_normal(law):
        return None
    run = _gaussian_pass(batch.target, law, None, plan, dtype, dtype, curve)
    return run if _is_sound(run) else None


def _normal_run(observation: Observation, plan: Plan) -> _Pass:
    weight = observation.weight if observation.weight is not None else observation.valid
    for work in dict.fromkeys((observation.dtype, torch.float64)):
        run = _gaussian_pass(observation.target, observation.law, weight, plan, work, observation.dtype)
        if _is_sound(run):
            break
    return run


def _curved_run(observation: Observation, plan: Plan) -> _Pass | None:
    """The same for a law whose residuals are a curve; None where it has none, or does not reach far enough."""
    curve = _curve(observation.law, plan, observation.dtype, observation.target.device)
    if curve is None:
        return None
    weight = observation.weight if observation.weight is not None else observation.valid
    dtype = observation.dtype
    run = _gaussian_pass(observation.target, observation.law, weight, plan, dtype, dtype, curve)
    return run if _is_sound(run) else None


def _curve(law: Law, plan: Plan, dtype: torch.dtype, device: torch.device) -> Curve | None:
    fits = dtype == torch.float32 and device.type == "cpu" and not plan.with_nll and not law.transforms
    return curve_of(law.family) if fits else None


def _gaussian_pass(
    target: Tensor,
    law: Law,
    weight: Tensor | None,
    plan: Plan,
    work: torch.dtype,
    dtype: torch.dtype,
    curve: Curve | None = None,
) -> _Pass:
    options = SumOptions(
        dtype=work,
        detach_mean=plan.detach_mean,
        with_mean=plan.by is None or "z" in plan.by,
        with_nll=plan.with_nll,
        curve=curve,
    )
    shape = target.shape
    row, loc, scale = (_flat(tensor, shape) for tensor in (target, *law.parameters))
    inputs = SumInputs(row, loc, scale, None if weight is None else _flat(weight, shape))
    return _Pass(inputs, options, batch_sums(inputs, options), dtype)


def _general_run(observation: Observation, plan: Plan) -> _Pass:
    pieces = Pieces(observation, leaves_of(observation), plan.detach_mean)
    nll = pieces.compute(with_nll=plan.with_nll)
    weight = _weights_like(pieces.z, observation)
    inputs = SumInputs(pieces.z.reshape(-1), weight=None if weight is None else weight.reshape(-1))
    sums = batch_sums(inputs, SumOptions())
    sums[-1] = nll
    return _Pass(inputs._replace(weight=weight), SumOptions(), sums, observation.dtype, pieces)


def _weights_like(z: Tensor, observation: Observation) -> Tensor | None:
    """Weights, or a mask, of residuals in rows."""
    weight = observation.weight if observation.weight is not None else observation.valid
    if weight is None:
        return None
    weight = weight.reshape(-1)
    return weight.unsqueeze(-1).expand(z.shape) if z.dim() > 1 else weight


def _empty_run(observation: Observation) -> _Pass:
    """Nothing, but hanging on the prediction, so that a rank without targets takes part in the backward pass."""
    return _Pass(SumInputs(nothing(observation)[0]), SumOptions(), [0.0] * SIZE, observation.dtype)


def _residuals_and_nll(observation: Observation, plan: Plan) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Residuals, their weights and the weighted sum of the negative log-likelihoods."""
    fixed = replace(observation, law=observation.law.detach_location()) if plan.detach_mean else observation
    z = residuals_of(fixed)
    weight = observation.weight if observation.weight is not None else observation.valid
    if weight is not None and z.dim() > weight.dim():
        weight = weight.unsqueeze(-1).expand(z.shape)
    if not plan.with_nll:
        return z, weight, None
    scores = observation.hide(element_nll(observation), 0.0).to(torch.float64)
    return z, weight, (scores if observation.weight is None else scores * observation.weight).sum()


def _traced(batch: Batch, plan: Plan) -> Tensor:
    """The same objective in plain operations, for torch.compile."""
    observation = batch.observe()

    def local() -> Tensor:
        z, weight, nll = _residuals_and_nll(observation, plan)
        sums = traced_sums(z, weight)
        return sums if nll is None else torch.cat([sums[:-1], nll.reshape(1)])

    sums = sum_over_ranks(local, size=SIZE, device=batch.device()) if plan.sync else local()
    loss: Tensor = plan.objective(BatchSums(*sums.unbind()))
    return loss.to(observation.dtype)


def check_effective_count(effective: float, least: float) -> None:
    """More than one target counts, and at least as many as a draw takes."""
    if not effective > 1 + 1e-9:
        raise ValueError(f"expected `target` with at least 2 values that count, got {effective:g}")
    if effective < least:
        raise ValueError(f"expected `target` with at least `df` = {least:g} values that count, got {effective:g}")


def _check_count(sums: list[float], least: float) -> None:
    """Enough targets count; with weights, as many as they are worth: (sum w)^2 / sum w^2."""
    total, total_square = sums[:2]
    check_effective_count(total * total / total_square if total_square else 0.0, least)


def _flat(values: Tensor, shape: torch.Size) -> Tensor:
    """One row of ``shape``'s elements; a tensor that is one already stays itself, at no cost to autograd."""
    return values if values.shape == shape and values.dim() == 1 else values.expand(shape).reshape(-1)


def _is_normal(law: Law) -> bool:
    return law.family is NORMAL and not law.transforms


def _is_sound(run: _Pass) -> bool:
    return are_sound(run.sums, run.options.dtype)
