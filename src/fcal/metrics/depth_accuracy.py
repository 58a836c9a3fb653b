"""Errors of predicted depth: SiLog, RMSE, AbsRel and their kin, over all pixels and as means over images."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fcal._checks import check_count, check_valid_mask, check_values
from fcal.distributions.observation import true_positions
from fcal.metrics.report import plain
from fcal.metrics.state import sums_of_runs

SCORES = ("silog", "rmse", "rmse_log", "abs_rel", "sq_rel", "log10", "d1", "d2", "d3")
_THRESHOLD = 1.25
_CHUNK = 1 << 17  # pixels whose float64 terms exist at once


@dataclass(frozen=True, kw_only=True)
class DepthReport:
    """Errors of predicted depth. All values are raw: papers often print SiLog times 100.

    Attributes:
        n: Number of valid pixels.
        images: Number of images with a valid pixel.
        empty_images: Number of images without one; they do not count in ``per_image``.
        pooled: Scores over all valid pixels: dense images count more. Keys ``silog``, ``rmse``, ``rmse_log``,
            ``abs_rel``, ``sq_rel``, ``log10``, ``d1``, ``d2``, ``d3``.
        per_image: Means over images of the scores of each image, with the same keys: every image counts the same.

    Example:
        >>> report = depth_errors(torch.tensor([[2.0, 4.0]]), torch.tensor([[1.0, 4.0]]))
        >>> report.n, report.images, report.as_dict()["pooled"]["abs_rel"]
        (2, 1, 0.5)
    """

    n: int
    images: int
    empty_images: int
    pooled: Mapping[str, float]
    per_image: Mapping[str, float]

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and dictionaries for JSON."""
        return {name: plain(getattr(self, name)) for name in self.__dataclass_fields__}


def depth_errors(depth: Tensor, target: Tensor, *, valid_mask: Tensor | None = None) -> DepthReport:
    r"""Errors of predicted depth p at measured depth t, pooled over all pixels and as means over images.

    With :math:`e = p - t`, :math:`g = \log p - \log t` and means over valid pixels,

    .. math::
        \mathrm{SiLog} = \sqrt{\overline{g^2} - \bar g^2}, \quad
        \mathrm{RMSE} = \sqrt{\overline{e^2}}, \quad
        \mathrm{RMSE_{log}} = \sqrt{\overline{g^2}}, \quad
        \mathrm{AbsRel} = \overline{|e| / t}, \quad
        \mathrm{SqRel} = \overline{e^2 / t}, \quad
        \mathrm{log10} = \overline{|g|} / \log 10,

    and d1, d2, d3 are the shares of pixels with :math:`\max(p / t, t / p) < 1.25^k`. SiLog is that of the KITTI
    benchmark: the sd of g, so that a common factor of all depths costs nothing. Pooled, only a factor common to the
    whole data set is free; per image, every image has its own.

    Args:
        depth: Predicted depth, a point: mean or median of the predicted law, as the user chooses. It must be positive,
            since a network that predicts depth can be built so that it is. Shape ``(..., H, W)``; the last two
            dimensions are an image.
        target: Measured depth, NaN where missing; a 0 that stands for "missing" must be replaced. Shape of ``depth``.
        valid_mask: True where a pixel counts. Shape of ``depth``.

    Returns:
        Scores of both kinds, and the number of images without a valid pixel, which are left out.

    Raises:
        TypeError: A dtype that is not floating.
        ValueError: Shapes that differ, depths that are not positive and finite where they count, or no valid pixel.

    Example:
        >>> target = torch.tensor([[[1.0, 2.0]], [[4.0, torch.nan]]])  # two images of 1 x 2 pixels
        >>> errors = fcal.metrics.depth_errors(torch.tensor([[[2.0, 2.0]], [[4.0, 9.0]]]), target)
        >>> errors.n, errors.pooled["abs_rel"], errors.per_image["abs_rel"]
        (3, 0.333..., 0.25)
        >>> errors.pooled["d1"], errors.per_image["d1"]
        (0.666..., 0.75)
    """
    return depth_report(depth_state(depth, target, valid_mask=valid_mask))


class DepthState(NamedTuple):
    """Counts and sums, of a fixed size.

    Attributes:
        n: Number of valid pixels. Shape ``()``.
        images: Number of images with a valid pixel. Shape ``()``.
        empty: Number of images without one. Shape ``()``.
        sums: Sums over pixels of the terms that scores are made of. Shape ``(9,)``.
        scores: Sums over images of the scores of each. Shape ``(9,)``.
    """

    n: Tensor
    images: Tensor
    empty: Tensor
    sums: Tensor
    scores: Tensor


def empty_depth_state(device: torch.device | None = None) -> DepthState:
    """State before any data."""
    counts = (torch.zeros((), dtype=torch.int64, device=device) for _ in range(3))
    sums = (torch.zeros(len(SCORES), dtype=torch.float64, device=device) for _ in range(2))
    return DepthState(*counts, *sums)


def depth_state(depth: Tensor, target: Tensor, *, valid_mask: Tensor | None = None) -> DepthState:
    """State of one batch; arguments as for :func:`depth_errors`."""
    with torch.no_grad():
        index, measured, predicted = valid_pixels(target, valid_mask, depth=depth)
        if target.dim() < 2:
            raise ValueError(f"expected `target` of shape (..., H, W), got {tuple(target.shape)}")
        images = target.shape[:-2].numel()
        image, counts = _images_of(index, images, target.shape[-2:].numel())
        sums = torch.zeros(images, len(SCORES), dtype=torch.float64, device=target.device)
        for p, t, i in zip(*(x.split(_CHUNK) for x in (predicted, measured, image)), strict=True):
            runs, lengths = torch.unique_consecutive(i, return_counts=True)
            if len(runs):
                sums.index_add_(0, runs, sums_of_runs(_terms(p.double(), t.double()), lengths))
        filled = counts > 0
        scores = _scores(sums[filled], counts[filled])
        return DepthState(counts.sum(), filled.sum(), (~filled).sum(), sums.sum(0), scores.sum(0))


def _images_of(index: Tensor, images: int, pixels: int) -> tuple[Tensor, Tensor]:
    """Image of each pixel, given its rising index among all, and the number of pixels of each image."""
    numbers = torch.arange(images, device=index.device)
    ends = torch.searchsorted(index, (numbers + 1) * pixels)
    counts = ends.diff(prepend=ends.new_zeros(1))
    return numbers.repeat_interleave(counts), counts


def valid_pixels(target: Tensor, valid_mask: Tensor | None, **predicted: Tensor) -> list[Tensor]:
    """Flat indices of pixels that count, then targets and predicted maps there, all positive and finite."""
    for name, value in {**predicted, "target": target}.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"expected `{name}` a torch.Tensor, got {type(value).__name__}")
        if not value.is_floating_point():
            raise TypeError(f"expected `{name}` of a floating dtype, got {value.dtype}")
        if value.shape != target.shape:
            shape = tuple(target.shape)
            raise ValueError(f"expected `{name}` of shape {shape} like `target`, got {tuple(value.shape)}")
    valid = target == target  # False for NaN, and several times faster than isnan
    if valid_mask is not None:
        valid = valid & check_valid_mask(valid_mask, target, target.shape)
    index = true_positions(valid)
    values = [x.detach().reshape(-1).index_select(0, index) for x in (target, *predicted.values())]
    requirements = {"target": "> 0 and finite (NaN where missing)"}
    for name, value in zip(("target", *predicted), values, strict=True):
        _check_positive(name, requirements.get(name, "> 0 and finite where `target` counts"), value)
    return [index, *values]


def _check_positive(name: str, requirement: str, values: Tensor) -> None:
    if values.numel() and not (values.min().item() > 0 and math.isfinite(values.max().item())):  # also refuses NaN
        check_values(name, requirement, values, (values > 0) & torch.isfinite(values))


def _terms(depth: Tensor, target: Tensor) -> list[Tensor]:
    """Terms of each pixel: e^2, g^2, g, |e| / t, e^2 / t, |g|, and whether the ratio is below each threshold."""
    error, ratio = depth - target, depth / target
    log_ratio, relative = ratio.log(), error.abs() / target
    factor = torch.maximum(ratio, target / depth)
    within = [(factor < _THRESHOLD**k).double() for k in (1, 2, 3)]
    return [error.square(), log_ratio.square(), log_ratio, relative, relative * error.abs(), log_ratio.abs(), *within]


def _scores(sums: Tensor, counts: Tensor) -> Tensor:
    """Scores, in the order of ``SCORES``, from sums of terms. Shape ``(..., 9)``."""
    square, log_square, log_ratio, abs_rel, sq_rel, log_abs, *within = (sums / counts.unsqueeze(-1)).unbind(-1)
    silog = (log_square - log_ratio.square()).clamp(min=0).sqrt()
    return torch.stack(
        [silog, square.sqrt(), log_square.sqrt(), abs_rel, sq_rel, log_abs / math.log(10), *within], dim=-1
    )


def depth_report(state: DepthState) -> DepthReport:
    """Report of a state.

    Raises:
        ValueError: No valid pixel.
    """
    check_count(int(state.n), at_least=1)
    pooled, per_image = _scores(state.sums, state.n), state.scores / state.images
    return DepthReport(
        n=int(state.n),
        images=int(state.images),
        empty_images=int(state.empty),
        pooled=dict(zip(SCORES, pooled.tolist(), strict=True)),
        per_image=dict(zip(SCORES, per_image.tolist(), strict=True)),
    )
