"""Bokeh: find the centre of the one red disc among coloured ones that may hide it; the label's noise is known."""

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
from fcal.data.counter_random import uniforms
from fcal.data.discs import GRID, Discs, painted

SPLITS = ("train", "validation", "test", "extra")
_SHARES = {"train": 3, "validation": 1, "test": 1}
_RED = (7, 1, 1)
_PER_DISC = 6  # x, y, radius, red, green, blue
_BESIDE_DISCS = 7  # x and y of the red disc, number of others, its depth, background, noise of x and y
_LARGEST_RADIUS = 1e6  # whatever the image: beyond, it is not even compared with its edge
_SIGMA_STEP = 2.0**-24  # sigmas are multiples: exact in float32, and no machine's exp makes a difference


@dataclass(frozen=True, kw_only=True)
class Regime:
    """How hard the images are, and how noisy their labels. Lengths are shares of the image's edge.

    Args:
        fewest: Smallest number of distractors.
        most: Largest number of them.
        smallest: Smallest radius of a distractor.
        largest: Largest radius of one.
        sigma: Standard deviation of a label where it is the same for all images.
        far: Standard deviation where it varies and no distractor is near.
        near: The same where a distractor's centre is that of the red disc.
        reach: Distance at which the additional noise has fallen to 1/e.
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
    """Which images and which noise.

    Args:
        noise: ``"homoscedastic"``, ``"heteroscedastic"`` (both normal), ``"gamma"``, ``"laplace"`` or ``"student-t"``.
        regime: ``"paper-like"`` or ``"noise-dominated"``.
        images: Images of train, validation and test together, split 3:1:1.
        extra: Further test images, so that calibration is measured well above its floor.
        size: Pixels of an edge.
        radius: Radius of the red disc as a share of the edge.
        shape: Shape of Gamma noise, degrees of freedom of Student-t noise.
        seed: The images and labels; the same seed gives the same bytes.
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
        label_noise.check(self.noise)
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
    """What was drawn for some images: the discs, the red one's centre, and how noisy its label is."""

    discs: Discs
    truth: NDArray[np.float64]
    sigma: NDArray[np.float64]
    noise: NDArray[np.float64]


class Bokeh(Dataset[Mapping[str, Tensor]]):
    """Images with one red disc, its noisy centre as target, and what a network does not get to see.

    A sample is a mapping with ``input`` (uint8, shape ``(3, size, size)``), ``target``, ``truth`` (the centre without
    noise) and ``sigma`` (the standard deviation of the noise), the last three of shape ``(2,)``, x before y, as shares
    of the image's edge. Many samples at once, by a slice or by ``__getitems__``, come stacked, so torch's loader has
    nothing to collate: ``DataLoader(data, batch_size=64, collate_fn=dict)``.

    Args:
        split: ``"train"``, ``"validation"``, ``"test"`` or ``"extra"``.
        config: Which images and which noise; the defaults where None.

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
        """Many samples at once, already stacked."""
        chosen = torch.as_tensor(indices)
        if chosen.numel() and (chosen.is_floating_point() or chosen.is_complex() or chosen.dtype == torch.bool):
            raise TypeError(f"expected `indices` of int, got {chosen.dtype}")
        chosen = chosen.long()
        return {name: values[chosen] for name, values in self._columns.items()}

    def __reduce__(self) -> tuple[type["Bokeh"], tuple[str, BokehConfig]]:
        """Whoever unpickles it draws the images again, which costs little: no need to send them."""
        return type(self), (self.split, self.config)

    def law(self) -> Distribution:
        """The law that the targets were drawn from, which no network can beat. Shape ``(N, 2)``, float64."""
        scenes = self._scenes
        return _law(self.config, scenes.truth, scenes.sigma)

    @cached_property
    def _scenes(self) -> _Scenes:
        return _drawn(self.config, self._start, self._stop)

    @cached_property
    def _columns(self) -> dict[str, Tensor]:
        scenes = self._scenes
        images = torch.from_numpy(painted(scenes.discs, self.config.size))
        target = label_noise.labels(self.law(), torch.from_numpy(scenes.noise))
        return {
            "input": images,
            "target": target.float(),
            "truth": torch.from_numpy(scenes.truth).float(),
            "sigma": torch.from_numpy(scenes.sigma).float(),
        }


def _law(config: BokehConfig, truth: NDArray[np.float64], sigma: NDArray[np.float64]) -> Distribution:
    return label_noise.noise_distribution(config.noise, torch.from_numpy(truth), torch.from_numpy(sigma), config.shape)


def _range_of(split: str, config: BokehConfig) -> tuple[int, int]:
    """Positions of a split in the stream of all images."""
    if split not in SPLITS:
        raise ValueError(f"expected `split` one of {', '.join(map(repr, SPLITS))}, got {split!r}")
    if split == "extra":
        return config.images, config.images + config.extra
    parts = list(_SHARES)
    before = sum(_SHARES[name] for name in parts[: parts.index(split)])
    whole = sum(_SHARES.values())
    return config.images * before // whole, config.images * (before + _SHARES[split]) // whole


def _drawn(config: BokehConfig, start: int, stop: int) -> _Scenes:
    """The scenes of some positions."""
    regime, most = REGIMES[config.regime], REGIMES[config.regime].most
    numbers = uniforms(config.seed, start, stop, _BESIDE_DISCS + _PER_DISC * most)
    beside, others = numbers[:, :_BESIDE_DISCS], numbers[:, _BESIDE_DISCS:].reshape(-1, most, _PER_DISC)
    red = config.radius + (1 - 2 * config.radius) * beside[:, :2]
    # The painter's grid, on which its arithmetic is exact, so that images are the same on every machine.
    truth = np.round(red * config.size * GRID) / (config.size * GRID)
    count = regime.fewest + np.floor(beside[:, 2] * (most - regime.fewest + 1)).astype(np.int64)
    exists = np.arange(most) < count[:, None]
    sigma = _sigma(config, truth, others[..., :2], exists)
    discs = _discs(config, truth, others, exists, beside)
    return _Scenes(discs=discs, truth=truth, sigma=sigma[:, None].repeat(2, axis=1), noise=beside[:, 5:7])


def _sigma(
    config: BokehConfig, truth: NDArray[np.float64], centres: NDArray[np.float64], exists: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Standard deviation of the noise of every image."""
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
    beside: NDArray[np.float64],
) -> Discs:
    """All discs of every image; the red one is painted after a random number of the others."""
    regime, most = REGIMES[config.regime], exists.shape[1]
    depth = np.floor(beside[:, 3] * (exists.sum(1) + 1)).astype(np.int64)[:, None]
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
    grey = np.floor(3 * beside[:, 4]).astype(np.uint8)
    return Discs(
        x=on_grid(in_order(others[..., 0], truth[:, :1])),
        y=on_grid(in_order(others[..., 1], truth[:, 1:])),
        radius=on_grid(in_order(radius, config.radius)),
        colour=np.stack(list(colours), axis=-1).astype(np.uint8),
        background=np.stack([grey] * 3, axis=-1),
    )


@dataclass(frozen=True)
class BokehSplits:
    """All splits of one config, each drawn when it is first used.

    Args:
        config: Which images and which noise.

    Example:
        >>> len(BokehSplits(BokehConfig(images=10, size=16)).train)
        6
    """

    config: BokehConfig

    @classmethod
    def from_options(cls, **options: Any) -> "BokehSplits":
        """Splits of a config given as keywords; a misspelt one is refused by name."""
        return cls(config_from(options, BokehConfig, source="data.options"))

    @cached_property
    def train(self) -> Bokeh:
        """What the weights are fitted to."""
        return Bokeh("train", self.config)

    @cached_property
    def validation(self) -> Bokeh:
        """What epochs, hyper-parameters and recalibrators are chosen by."""
        return Bokeh("validation", self.config)

    @cached_property
    def test(self) -> Bokeh:
        """What nothing is chosen by."""
        return Bokeh("test", self.config)

    @cached_property
    def extra(self) -> Bokeh:
        """More of the test images."""
        return Bokeh("extra", self.config)
