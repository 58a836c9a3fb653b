"""Bokeh: locate the red disc among coloured discs that may occlude it, from labels with known noise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, SupportsIndex

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Distribution
from torch.utils.data import Dataset

from fcal._checks import check_integer, check_number
from fcal._config import config_from
from fcal._registry import Registry
from fcal.data import label_noise
from fcal.data.discs import GRID, Discs, render

SPLITS = ("train", "validation", "test", "extra")
_SHARES = {"train": 3, "validation": 1, "test": 1}
_RED = (7, 1, 1)
_PER_DISC = 6  # x, y, radius, red, green, blue
_PER_IMAGE = 7  # x and y of the red disc, number of other discs, its depth, background, noise of x and y
_LARGEST_RADIUS = 1e6  # for any image size
_SIGMA_STEP = 2.0**-24  # sigmas are multiples of it: exact in float32 and equal on every machine


_WORDS_PER_COUNT = 4  # 64-bit words of Philox for each value of its counter
_MANTISSA = 53


@dataclass(frozen=True, kw_only=True)
class Regime:
    """Difficulty of the images and noise of the labels. Lengths are fractions of the image size.

    Args:
        fewest: Smallest number of distractors.
        most: Largest number of distractors.
        smallest: Smallest radius of a distractor.
        largest: Largest radius of a distractor.
        sigma: Standard deviation of homoscedastic noise.
        far: Standard deviation of heteroscedastic noise far from distractors.
        near: Standard deviation of heteroscedastic noise if a distractor has the same centre as the red disc.
        reach: Distance at which the additional noise has decayed to 1/e.
    """

    fewest: int
    most: int
    smallest: float
    largest: float
    sigma: float
    far: float
    near: float
    reach: float


REGIMES: Registry[Regime] = Registry("regime")
REGIMES.add(
    "paper-like",
    Regime(fewest=4, most=10, smallest=0.05, largest=0.18, sigma=0.031, far=0.004, near=0.036, reach=0.12),
)
REGIMES.add(
    "noise-dominated",
    Regime(fewest=2, most=6, smallest=0.04, largest=0.1, sigma=0.05, far=0.02, near=0.12, reach=0.15),
)


@dataclass(frozen=True, kw_only=True)
class BokehConfig:
    """Configuration of the images and their noise.

    Args:
        noise: ``"homoscedastic"``, ``"heteroscedastic"`` (both normal), ``"gamma"``, ``"laplace"`` or ``"student-t"``.
        regime: ``"paper-like"`` or ``"noise-dominated"``.
        images: Number of images of train, validation and test together, split 3:1:1.
        extra: Number of further test images, so that calibration is measured well above its floor.
        size: Width and height in pixels.
        radius: Radius of the red disc as a fraction of ``size``.
        shape: Shape of Gamma noise, degrees of freedom of Student-t noise.
        seed: Seed of images and labels; the same seed gives the same bytes on every machine.
    """

    noise: str = "homoscedastic"
    regime: str = "paper-like"
    images: int = 10_000
    extra: int = 20_000
    size: int = 64
    radius: float = 0.08
    shape: float = 5.0
    seed: int = 0

    def __post_init__(self) -> None:
        label_noise.NOISES[self.noise]
        REGIMES[self.regime]
        check_integer("images", self.images, at_least=5, at_most=10_000_000)
        check_integer("extra", self.extra, at_least=0, at_most=10_000_000)
        check_integer("size", self.size, at_least=8, at_most=1024)
        check_integer("seed", self.seed, at_least=0, at_most=2**63 - 1)
        check_number("shape", self.shape, low=2.05 if self.noise == "student-t" else 0.05, high=1e4)
        check_number("radius", self.radius, low=0.0, high=_LARGEST_RADIUS)
        if not 1.0 <= self.radius * self.size <= 0.5 * self.size - 1.0:
            raise ValueError(
                f"expected `radius` of a disc that fits into the image, within [{1 / self.size:g}, "
                f"{0.5 - 1 / self.size:g}] of its edge of {self.size} pixels, got {self.radius:g}"
            )


@dataclass(frozen=True, kw_only=True)
class _Scenes:
    """Discs, centres of the red disc, standard deviations and uniform noise of a range of images."""

    discs: Discs
    truth: NDArray[np.float64]
    sigma: NDArray[np.float64]
    noise: NDArray[np.float64]


class Bokeh(Dataset[Mapping[str, Tensor]]):
    """Images with one red disc and its noisy centre as target.

    A sample is a mapping with ``input`` (uint8, shape ``(3, size, size)``), ``target``, ``truth`` (the centre without
    noise) and ``sigma`` (the standard deviation of the noise), the last three of shape ``(2,)``, x before y, as
    fractions of the image size. A slice or ``__getitems__`` returns a stacked batch, so that torch's loader has nothing
    to collate: ``DataLoader(data, batch_size=64, collate_fn=dict)``.

    Args:
        split: ``"train"``, ``"validation"``, ``"test"`` or ``"extra"``.
        config: Configuration of images and noise; default: ``BokehConfig()``.

    Example:
        >>> tiny = Bokeh("train", BokehConfig(images=10, size=16))
        >>> len(tiny), tiny[0]["input"].shape, tiny[0]["target"].shape
        (6, torch.Size([3, 16, 16]), torch.Size([2]))
    """

    def __init__(self, split: str = "train", config: BokehConfig | None = None) -> None:
        if config is not None and not isinstance(config, BokehConfig):
            raise TypeError(f"expected `config` a BokehConfig, got {type(config).__name__}")
        self.config = BokehConfig() if config is None else config
        self.split = split
        self._start, self._stop = _range_of(split, self.config)

    def __len__(self) -> int:
        return self._stop - self._start

    def __getitem__(self, index: int | slice) -> Mapping[str, Tensor]:
        if isinstance(index, bool) or not isinstance(index, slice | SupportsIndex):
            raise TypeError(f"expected `index` an int or a slice, got {type(index).__name__}")
        if not isinstance(index, slice) and not -len(self) <= index < len(self):
            raise IndexError(f"expected `index` within {len(self)} images, got {index}")
        return {name: values[index] for name, values in self._columns.items()}

    def __getitems__(self, indices: Sequence[int]) -> Mapping[str, Tensor]:
        """A stacked batch of samples."""
        chosen = torch.as_tensor(indices)
        if chosen.numel() and (chosen.is_floating_point() or chosen.is_complex() or chosen.dtype == torch.bool):
            raise TypeError(f"expected `indices` of int, got {chosen.dtype}")
        chosen = chosen.long()
        return {name: values[chosen] for name, values in self._columns.items()}

    def __reduce__(self) -> tuple[type["Bokeh"], tuple[str, BokehConfig]]:
        """Pickle the configuration only: drawing the images again is cheap."""
        return type(self), (self.split, self.config)

    def law(self) -> Distribution:
        """Distribution that the targets are drawn from, the best possible prediction. Shape ``(N, 2)``, float64."""
        scenes = self._scenes
        truth, sigma = torch.from_numpy(scenes.truth), torch.from_numpy(scenes.sigma)
        return label_noise.NOISES[self.config.noise](truth, sigma, self.config.shape)

    @cached_property
    def _scenes(self) -> _Scenes:
        return _draw_scenes(self.config, self._start, self._stop)

    @cached_property
    def _columns(self) -> dict[str, Tensor]:
        scenes = self._scenes
        images = torch.from_numpy(render(scenes.discs, self.config.size))
        target = label_noise.labels(self.law(), torch.from_numpy(scenes.noise))
        return {
            "input": images,
            "target": target.float(),
            "truth": torch.from_numpy(scenes.truth).float(),
            "sigma": torch.from_numpy(scenes.sigma).float(),
        }


def _range_of(split: str, config: BokehConfig) -> tuple[int, int]:
    """Range of image numbers of a split."""
    if split not in SPLITS:
        raise ValueError(f"expected `split` one of {', '.join(map(repr, SPLITS))}, got {split!r}")
    if split == "extra":
        return config.images, config.images + config.extra
    parts = list(_SHARES)
    before = sum(_SHARES[name] for name in parts[: parts.index(split)])
    whole = sum(_SHARES.values())
    return config.images * before // whole, config.images * (before + _SHARES[split]) // whole


def uniforms(seed: int, start: int, stop: int, width: int) -> NDArray[np.float64]:
    """Counter-based uniform numbers in (0, 1) of the items ``start`` to ``stop - 1``.

    Philox computes a word from the key and the position alone, and words are converted by integer arithmetic: an item
    has the same numbers on every machine, whichever range is drawn.

    Args:
        seed: Non-negative integer below 2**64.
        start: First item.
        stop: End of the range, exclusive.
        width: Numbers per item.

    Returns:
        Shape ``(stop - start, width)``.

    Example:
        >>> whole = uniforms(7, 0, 10, width=3)
        >>> bool((whole[4:6] == uniforms(7, 4, 6, width=3)).all())
        True
    """
    counts = -(-width // _WORDS_PER_COUNT)
    stream = np.random.Philox(key=seed)
    stream.advance(start * counts)
    words = stream.random_raw((stop - start) * counts * _WORDS_PER_COUNT)
    table = words.reshape(stop - start, counts * _WORDS_PER_COUNT)[:, :width]
    return ((table >> np.uint64(64 - _MANTISSA)).astype(np.float64) + 0.5) * 2.0**-_MANTISSA


def _draw_scenes(config: BokehConfig, start: int, stop: int) -> _Scenes:
    """Scenes of a range of image numbers."""
    regime, most = REGIMES[config.regime], REGIMES[config.regime].most
    numbers = uniforms(config.seed, start, stop, _PER_IMAGE + _PER_DISC * most)
    own, others = numbers[:, :_PER_IMAGE], numbers[:, _PER_IMAGE:].reshape(-1, most, _PER_DISC)
    red = config.radius + (1 - 2 * config.radius) * own[:, :2]
    # On the grid of the renderer its arithmetic is exact, so that images are the same on every machine.
    truth = np.round(red * config.size * GRID) / (config.size * GRID)
    count = regime.fewest + np.floor(own[:, 2] * (most - regime.fewest + 1)).astype(np.int64)
    exists = np.arange(most) < count[:, None]
    sigma = _sigma(config, truth, others[..., :2], exists)
    discs = _discs(config, truth, others, exists, own)
    return _Scenes(discs=discs, truth=truth, sigma=sigma[:, None].repeat(2, axis=1), noise=own[:, 5:7])


def _sigma(
    config: BokehConfig, truth: NDArray[np.float64], centres: NDArray[np.float64], exists: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Standard deviation of the label noise of every image."""
    regime, sigma = REGIMES[config.regime], np.full(len(truth), REGIMES[config.regime].sigma)
    if config.noise == "heteroscedastic":
        distance = np.sqrt(((centres - truth[:, None]) ** 2).sum(-1))
        nearest = np.where(exists, distance, np.inf).min(axis=1)
        sigma = regime.far + (regime.near - regime.far) * np.exp(-nearest / regime.reach)
    return np.round(sigma / _SIGMA_STEP) * _SIGMA_STEP


def _discs(
    config: BokehConfig,
    truth: NDArray[np.float64],
    others: NDArray[np.float64],
    exists: NDArray[np.bool_],
    own: NDArray[np.float64],
) -> Discs:
    """All discs of every image; the red one is drawn after a random number of the others."""
    regime, most = REGIMES[config.regime], exists.shape[1]
    depth = np.floor(own[:, 3] * (exists.sum(1) + 1)).astype(np.int64)[:, None]
    slots = np.arange(most + 1)
    other = np.clip(slots - (slots > depth), 0, most - 1)
    is_red = slots == depth
    radius = np.where(exists, regime.smallest + (regime.largest - regime.smallest) * others[..., 2], -1.0)

    def in_order(values: NDArray[np.float64], red: NDArray[np.float64] | float) -> NDArray[np.float64]:
        chosen: NDArray[np.float64] = np.where(is_red, red, np.take_along_axis(values, other, axis=1))
        return chosen

    def on_grid(values: NDArray[np.float64]) -> NDArray[np.int32]:
        return np.round(values * config.size * GRID).astype(np.int32)

    colours = (
        in_order(np.floor(low + levels * others[..., 3 + channel]), _RED[channel])
        for channel, (low, levels) in enumerate(((0, 4), (2, 6), (2, 6)))
    )
    grey = np.floor(3 * own[:, 4]).astype(np.uint8)
    return Discs(
        x=on_grid(in_order(others[..., 0], truth[:, :1])),
        y=on_grid(in_order(others[..., 1], truth[:, 1:])),
        radius=on_grid(in_order(radius, config.radius)),
        colour=np.stack(list(colours), axis=-1).astype(np.uint8),
        background=np.stack([grey] * 3, axis=-1),
    )


@dataclass(frozen=True)
class BokehSplits:
    """All splits of one configuration, each generated on first use.

    Args:
        config: Configuration of images and noise.

    Example:
        >>> len(BokehSplits(BokehConfig(images=10, size=16)).train)
        6
    """

    config: BokehConfig

    @classmethod
    def from_options(cls, **options: Any) -> "BokehSplits":
        """Splits of a configuration given as keywords; misspelt ones are rejected."""
        return cls(config_from(options, BokehConfig, source="data.options"))

    @cached_property
    def train(self) -> Bokeh:
        """Data that the weights are fitted to."""
        return Bokeh("train", self.config)

    @cached_property
    def validation(self) -> Bokeh:
        """Data for choosing epochs, hyper-parameters and recalibrators."""
        return Bokeh("validation", self.config)

    @cached_property
    def test(self) -> Bokeh:
        """Data for the report only."""
        return Bokeh("test", self.config)

    @cached_property
    def extra(self) -> Bokeh:
        """Further test images."""
        return Bokeh("extra", self.config)
