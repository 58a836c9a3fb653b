"""Bokeh once more, by hand: Philox in whole numbers, discs pixel by pixel, labels by SciPy."""

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

WORD = 2**64
ROUND_FACTORS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)  # Salmon et al. 2011, table 2: Philox4x64
KEY_STEPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)


def philox(key: int, counter: int) -> list[int]:
    """Four words of Philox4x64-10, by its definition (Salmon et al. 2011, section 3.3)."""
    words = [counter % WORD, counter // WORD, 0, 0]
    keys = [key, 0]
    for _ in range(10):
        first, second = ROUND_FACTORS[0] * words[0], ROUND_FACTORS[1] * words[2]
        words = [second // WORD ^ words[1] ^ keys[0], second % WORD, first // WORD ^ words[3] ^ keys[1], first % WORD]
        keys = [(k + step) % WORD for k, step in zip(keys, KEY_STEPS, strict=True)]
    return words


def uniforms(seed: int, item: int, width: int) -> list[float]:
    """The numbers of one item; numpy counts from 1."""
    blocks = math.ceil(width / 4)
    words = [word for k in range(blocks) for word in philox(seed, item * blocks + k + 1)]
    return [((word >> 11) + 0.5) / 2**53 for word in words[:width]]


def painted(discs: list[tuple[int, int, int, tuple[int, ...]]], background: tuple[int, ...], size: int) -> np.ndarray:
    """One image, pixel by pixel, in whole sixteenths of a pixel. Shape ``(3, size, size)``."""
    image = np.empty((3, size, size), np.uint8)
    for row in range(size):
        for column in range(size):
            colour = background
            for x, y, radius, own in discs:
                if radius >= 0 and (16 * column + 8 - x) ** 2 + (16 * row + 8 - y) ** 2 <= radius**2:
                    colour = own
            image[:, row, column] = [36 * level for level in colour]
    return image


@dataclass(frozen=True)
class Sample:
    image: np.ndarray
    target: list[float]
    truth: list[float]
    sigma: float


def sample(config, regime, item: int) -> Sample:
    """One sample of a config of normal noise."""
    size, most = config.size, regime.most
    numbers = uniforms(config.seed, item, 7 + 6 * most)
    truth = [round((config.radius + (1 - 2 * config.radius) * u) * size * 16) / (size * 16) for u in numbers[:2]]
    count = regime.fewest + math.floor(numbers[2] * (most - regime.fewest + 1))
    others = [numbers[7 + 6 * k : 13 + 6 * k] for k in range(count)]
    sigma = regime.sigma
    if config.noise == "heteroscedastic":
        nearest = min(math.dist(truth, other[:2]) for other in others)
        sigma = regime.far + (regime.near - regime.far) * math.exp(-nearest / regime.reach)
    sigma = round(sigma * 2**24) / 2**24
    targets = [
        math.ceil(stats.norm.ppf(u, mean, sigma) * 2**20) / 2**20 for u, mean in zip(numbers[5:7], truth, strict=True)
    ]
    grey = math.floor(3 * numbers[4])
    discs = _discs(config, regime, truth, others, math.floor(numbers[3] * (count + 1)))
    return Sample(painted(discs, (grey, grey, grey), size), targets, truth, sigma)


def _discs(config, regime, truth, others, depth):
    unit = config.size * 16
    discs = [
        (
            round(x * unit),
            round(y * unit),
            round((regime.smallest + (regime.largest - regime.smallest) * r) * unit),
            (math.floor(4 * red), 2 + math.floor(6 * green), 2 + math.floor(6 * blue)),
        )
        for x, y, r, red, green, blue in others
    ]
    discs.insert(depth, (round(truth[0] * unit), round(truth[1] * unit), round(config.radius * unit), (7, 1, 1)))
    return discs
