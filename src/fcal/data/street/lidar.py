"""Measured depth: lines of single returns, with normal noise of known standard deviation.

Which pixels have a return is decided from the true depth and the true sigma alone. A surface counts as within reach if
five sigmas around its depth are, so that neither the reach nor the cap of an evaluation selects on the noise:
``Normal(depth, sigma)`` is the law of what is measured (up to a probability of 6e-7 beyond five sigmas).
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fcal._checks import check_number

SIGMA_STEP = 2.0**-12  # sigmas are multiples of it, which a 16-bit image of sigma * 4096 holds exactly
_NORMAL_STEP = 2.0**-20  # of standard normal numbers: hides that machines differ in the last bits of a quantile
_SIGMAS = 5.0
_NEAREST = 0.5  # metres
_LINES = 2.0  # a scan line has a return at about every second pixel
_JUMP = 0.05  # relative difference of inverse depths at an occlusion edge


@dataclass(frozen=True, kw_only=True)
class LidarConfig:
    """Which pixels are measured, and how well.

    The sigma of a pixel is ``(floor + relative * depth) * (1 + slant * (1 - cosine))``, and ``edge`` times that next to
    an occlusion edge; the cosine is that of the angle between the ray and the surface's normal.

    Args:
        density: Share of all pixels that have a return, as far as enough of them see a surface within reach.
        reach: Largest depth, in metres.
        floor: Sigma of a close surface that faces the camera, in metres. At least 0.02, against which the rounding to
            1/256 m in a depth image is small: it adds 0.3 % to the variance at 0.02 m, 0.1 % at 0.03 m.
        relative: Increase of sigma with the depth.
        slant: Relative increase of sigma at a grazing surface.
        edge: Factor at occlusion edges.
    """

    density: float = 0.25
    reach: float = 80.0
    floor: float = 0.03
    relative: float = 0.02
    slant: float = 1.0
    edge: float = 3.0

    def __post_init__(self) -> None:
        check_number("density", self.density, low=0.001, high=1.0)
        check_number("reach", self.reach, low=5.0, high=200.0)
        check_number("floor", self.floor, low=0.02, high=1.0)
        check_number("relative", self.relative, low=0.0, high=0.1)
        check_number("slant", self.slant, low=0.0, high=4.0)
        check_number("edge", self.edge, low=1.0, high=10.0)


def lidar_sigma(
    config: LidarConfig, depth: NDArray[np.float32], facing: NDArray[np.float32], is_edge: NDArray[np.bool_]
) -> NDArray[np.float32]:
    """Standard deviation of the measured depth.

    Args:
        config: Levels of noise.
        depth: True depth; infinite for the sky, which gets the sigma of a surface at the end of the reach. Any shape.
        facing: Cosine of the angle of incidence. Same shape.
        is_edge: Whether a pixel lies next to an occlusion edge. Same shape.

    Example:
        >>> one = np.ones(1, np.float32)
        >>> lidar_sigma(LidarConfig(relative=0.01, floor=0.05), 20 * one, one, one < 0)
        array([0.25], dtype=float32)
    """
    sigma = config.floor + config.relative * np.minimum(depth, config.reach).astype(np.float64)
    sigma *= 1.0 + config.slant * (1.0 - facing.astype(np.float64))
    sigma *= np.where(is_edge, config.edge, 1.0)
    return (np.round(sigma / SIGMA_STEP) * SIGMA_STEP).astype(np.float32)


def occlusion_edges(depth: NDArray[np.float32], thing: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Pixels with a neighbour on another thing whose depth differs by more than the slopes of both surfaces explain.

    Inverse depth is linear on a plane in an image, so that the difference of two pixels on one side of an edge is what
    to expect at the next pixel.

    Args:
        depth: True depth; infinite for the sky. Shape ``(H, W)``.
        thing: Number of the thing. Shape ``(H, W)``.

    Example:
        >>> depth = np.array([[5.0, 5.0, 20.0, 20.0, 20.0]], np.float32)
        >>> occlusion_edges(depth, np.array([[1, 1, 2, 2, 3]])).astype(int)
        array([[0, 1, 1, 0, 0]])
    """
    inverse = 1.0 / depth.astype(np.float64)
    is_edge = np.zeros(depth.shape, np.bool_)
    for axis in (0, 1):
        values, things, marked = (np.moveaxis(array, axis, 0) for array in (inverse, thing, is_edge))
        step = np.abs(np.diff(values, axis=0))
        same = np.diff(things, axis=0) == 0
        slope = np.pad(np.where(same, step, 0.0), ((1, 1), (0, 0)))  # before and behind every step
        expected = np.maximum(slope[:-2], slope[2:])
        jump = ~same & (step > expected + _JUMP * np.maximum(values[:-1], values[1:]))
        marked[:-1] |= jump
        marked[1:] |= jump
    return is_edge


def scanned(
    config: LidarConfig, depth: NDArray[np.float32], sigma: NDArray[np.float32], numbers: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Pixels that have a return: on scan lines, some of those within reach.

    Args:
        config: Share of pixels, and reach.
        depth: True depth. Shape ``(H, W)``.
        sigma: True sigma. Shape ``(H, W)``.
        numbers: Uniform numbers in (0, 1). Shape ``(H * W + 1,)``; the first one shifts the scan lines.
    """
    height = len(depth)
    lines = min(1.0, _LINES * config.density)
    steps = np.floor((np.arange(height + 1) + numbers[0] / lines) * lines)
    on_line = (np.diff(steps) > 0)[:, None]
    within = (depth + _SIGMAS * sigma <= config.reach) & (depth - _SIGMAS * sigma >= _NEAREST)
    candidates = on_line & within
    share = config.density * depth.size / max(int(np.count_nonzero(candidates)), 1)
    return candidates & (numbers[1:].reshape(depth.shape) < share)


def measured(
    depth: NDArray[np.float32],
    sigma: NDArray[np.float32],
    has_return: NDArray[np.bool_],
    numbers: NDArray[np.float64],
) -> NDArray[np.float32]:
    """True depth plus sigma times standard normal numbers where there is a return, NaN elsewhere.

    Args:
        depth: True depth. Shape ``(H, W)``.
        sigma: True sigma. Shape ``(H, W)``.
        has_return: Pixels that have a return. Shape ``(H, W)``.
        numbers: Uniform numbers in (0, 1). Shape ``(H * W,)``.
    """
    returns = np.flatnonzero(has_return)
    normal = torch.special.ndtri(torch.from_numpy(numbers.take(returns))).numpy()
    normal = np.round(normal / _NORMAL_STEP) * _NORMAL_STEP
    values = np.full(depth.size, np.nan, np.float32)
    values[returns] = depth.take(returns).astype(np.float64) + sigma.take(returns) * normal
    return values.reshape(depth.shape)
