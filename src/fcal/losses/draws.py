"""Draws of a prediction that carry the gradient of its parameters."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fcal._checks import check_values
from fcal.distributions.observation import Observation

_LEAST = 2.0**-54  # half of the smallest step of uniform numbers: a quantile of 0 may be infinite


def check_generator(generator: Any) -> torch.Generator | None:
    """A source of randomness, or None for torch's default."""
    if not (generator is None or isinstance(generator, torch.Generator)):
        raise TypeError(f"expected `generator` a torch.Generator, got {type(generator).__name__}")
    return generator


def reparametrised_draws(observation: Observation, count: int, generator: torch.Generator | None) -> Tensor:
    """Independent draws of every prediction by ``rsample``; without one, as quantiles of uniform numbers.

    Args:
        observation: The batch; its hidden elements carry draws of a valid one.
        count: Draws per prediction.
        generator: Source of randomness, on the device of the targets; torch's default where None.

    Returns:
        The draws. Shape ``(count, *target.shape)``.

    Raises:
        TypeError: The prediction has neither.
    """
    with _default_generator_as(generator, observation.target.device):
        drawn = _drawn(observation, count)
    check_values("pred", "with finite draws", drawn.detach(), torch.isfinite(drawn))
    return drawn


def _drawn(observation: Observation, count: int) -> Tensor:
    law, shape = observation.law, observation.target.shape
    pred = law.distribution()
    if pred.has_rsample:
        own = pred.batch_shape + pred.event_shape
        drawn: Tensor = pred.rsample(torch.Size((count, *shape[: len(shape) - len(own)])))
        return drawn
    if law.family.quantile is None:
        raise TypeError(f"expected `pred` with reparametrised draws (rsample) or quantiles, got {law.name}")
    lower = torch.rand(count, *shape, dtype=torch.float64, device=observation.target.device).clamp(min=_LEAST)
    return law.push_forward(law.family.quantile(lower, 1 - lower, *law.parameters))


@contextmanager
def _default_generator_as(generator: torch.Generator | None, device: torch.device) -> Iterator[None]:
    """Let torch's default generator continue where ``generator`` stands: ``rsample`` takes none."""
    if generator is None:
        yield
        return
    if generator.device.type != device.type:
        raise ValueError(f"expected `generator` on the device of `target`, {device}, got {generator.device}")
    default = torch.default_generator if device.type == "cpu" else torch.cuda.default_generators[device.index or 0]
    before = default.get_state()
    default.set_state(generator.get_state())
    try:
        yield
        generator.set_state(default.get_state())
    finally:
        default.set_state(before)
