"""Frames of an image and a sparse depth map, read from files as a dataset; damaged ones are skipped and reported."""

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from fcal._checks import check_flag, check_number
from fcal.data.depth_views import (
    DepthView,
    Placement,
    blank_image,
    nearest_per_cell,
    normalised,
    resized_image,
)

DEPTH_UNIT = 256.0  # values of a depth map per metre, as in KITTI
SIGMA_UNIT = 4096.0  # the same for maps of the noise's standard deviation
MOST_SKIPPED = 0.01  # share of frames that may be unreadable
_DEEP_MODES = ("I;16", "I;16B", "I;16L")  # Pillow's names of 16 bits


class FrameError(ValueError):
    """A file of a frame that cannot be used.

    Args:
        path: The file.
        message: One line that names the file.
    """

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(path, message)  # both, so that it can be pickled
        self.path = path

    def __str__(self) -> str:
        return str(self.args[1])


@dataclass(frozen=True, kw_only=True)
class DepthFrame:
    """The files of one frame.

    Args:
        image: Image of 8 bits, PNG or JPEG.
        depth: Depth map of the same size: a PNG of 16 bits, metres x 256, 0 where nothing was measured.
        group: Frames that depend on each other, such as those of a drive, have the same group.
        focal: Focal length in pixels of the image as stored.
        sigma: Standard deviation of the noise of each measured depth, metres x 4096, where it is known.
        truth: Depth without noise, metres x 256, where it is known.

    Example:
        >>> frame = DepthFrame(image=Path("0.jpg"), depth=Path("0.png"), group="drive 5", focal=721.5377)
        >>> DepthFrames([frame] * 3).subset([2]).groups
        ['drive 5']
    """

    image: Path
    depth: Path
    group: str
    focal: float
    sigma: Path | None = None
    truth: Path | None = None

    def __post_init__(self) -> None:
        check_number("focal", self.focal, low=1.0, high=1e5)


class DepthTruth(NamedTuple):
    """Depth without noise and the standard deviation of the noise, both NaN where there is no target."""

    depth: Tensor
    sigma: Tensor


class DepthFrames(Dataset[Mapping[str, Tensor]]):
    """Images and sparse depth maps.

    An item is a mapping with ``input``, an image normalised by ImageNet's mean and standard deviation (float32, shape
    ``(3, H, W)``), and ``target``, its depth in metres (float32, shape ``(H, W)``, NaN where there is none).
    ``__getitems__`` returns a stacked batch.

    A measured depth moves to the cell into which the centre of its pixel falls, and where several fall into one cell,
    the nearest is kept. Where the depth without noise is known, it decides which is nearest: the noise of a kept target
    is then as drawn, whereas the least of several noisy depths is biased.

    A frame that cannot be read has a target of NaN only, so that a batch keeps its shape and the frame contributes
    nothing; a warning names the file once. More than 1 % of such frames are an error.

    Args:
        frames: The frames.
        view: What an item shows of a frame.
        cache: Keep what was read in memory, at the size of the items and with bytes for colours.

    Raises:
        ValueError: There are no frames.
    """

    def __init__(self, frames: Iterable[DepthFrame], view: DepthView | None = None, *, cache: bool = False) -> None:
        self.frames = tuple(frames)
        if not self.frames:
            raise ValueError("expected `frames` with at least 1 frame, got none")
        self.view = DepthView() if view is None else view
        self._keeps = check_flag("cache", cache)
        self._population = len(self.frames)
        self._cached: dict[DepthFrame, tuple[Tensor, Tensor]] = {}
        self._faults: dict[DepthFrame, FrameError] = {}

    @property
    def groups(self) -> list[str]:
        """Group of each frame."""
        return [frame.group for frame in self.frames]

    @property
    def skipped(self) -> list[tuple[Path, str]]:
        """Files that could not be read until now, each with the reason, in the order of the frames."""
        faults = [self._faults[frame] for frame in dict.fromkeys(self.frames) if frame in self._faults]
        return [(fault.path, str(fault)) for fault in faults]

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: int) -> Mapping[str, Tensor]:
        if isinstance(index, bool) or not isinstance(index, SupportsIndex):
            raise TypeError(f"expected `index` an int, got {type(index).__name__}")
        if not -len(self) <= index < len(self):
            raise IndexError(f"expected `index` within {len(self)} frames, got {index}")
        return {name: values[0] for name, values in self.__getitems__([index]).items()}

    def __getitems__(self, indices: Sequence[int]) -> Mapping[str, Tensor]:
        """A stacked batch of items."""
        pairs = [self._pixels(index) for index in self._positions(indices)]
        shapes = {tuple(target.shape) for _, target in pairs}
        if len(shapes) > 1:
            first, second, *_ = sorted(shapes)
            raise ValueError(f"expected `size` of a view for frames of several sizes, got None for {first}, {second}")
        images, targets = zip(*pairs, strict=True)
        return {"input": normalised(torch.stack(images)), "target": torch.stack(targets)}

    def __getstate__(self) -> dict[str, Any]:
        """Pickle what to read, not what was read."""
        return {**self.__dict__, "_cached": {}}

    def subset(self, indices: Iterable[int]) -> "DepthFrames":
        """These frames as a dataset with their groups. It shares the cache, and 1 % still refers to all frames."""
        part = DepthFrames([self.frames[index] for index in self._positions(indices)], self.view, cache=self._keeps)
        part._population, part._cached, part._faults = self._population, self._cached, self._faults
        return part

    def truth(self, indices: Iterable[int] | None = None) -> DepthTruth | None:
        """Depth without noise and the noise's standard deviation at the targets; None unless all frames have them.

        Args:
            indices: Frames; all if None.

        Returns:
            Two tensors of shape ``(n, H, W)``, NaN where the target is.
        """
        if any(frame.truth is None or frame.sigma is None for frame in self.frames):
            return None
        positions = self._positions(range(len(self)) if indices is None else indices)
        pairs = [self._true_depth(index) for index in positions]
        depth, sigma = zip(*pairs, strict=True)
        return DepthTruth(torch.stack(depth), torch.stack(sigma))

    def _positions(self, indices: Iterable[int]) -> list[int]:
        """Indices as non-negative integers."""
        return [range(len(self))[index] for index in indices]

    def _pixels(self, index: int) -> tuple[Tensor, Tensor]:
        """Image of bytes and target of a frame."""
        frame, image, target = self.frames[index], None, None
        if frame in self._cached:
            return self._cached[frame]
        try:
            pixels = read_image(frame.image)
            placement = self._placement(frame, pixels.shape[:2])
            image = resized_image(torch.from_numpy(pixels), placement)
            target = self._target(frame, placement, pixels.shape[:2])
        except FrameError as fault:
            self._skip(frame, fault)
        image = self._blank(frame) if image is None else image
        pair = image, torch.full(image.shape[1:], torch.nan) if target is None else target
        if self._keeps:
            self._cached[frame] = pair
        return pair

    def _placement(self, frame: DepthFrame, shape: tuple[int, ...]) -> Placement:
        try:
            return self.view.placement((shape[0], shape[1]), frame.focal)
        except ValueError as error:
            raise FrameError(frame.image, f"{frame.image}: {error}") from None

    def _target(self, frame: DepthFrame, placement: Placement, shape: tuple[int, ...]) -> Tensor:
        depth = read_map(frame.depth, shape)
        cells, pixels = self._measured(frame, placement, depth)
        if not len(cells):
            limits = f"between {self.view.least:g} and {self.view.cap:g} m in the part that is shown"
            raise FrameError(frame.depth, f"expected {frame.depth} with a depth {limits}, got none")
        return _filled(placement, cells, depth, pixels, DEPTH_UNIT)

    def _measured(self, frame: DepthFrame, placement: Placement, depth: NDArray[np.int32]) -> tuple[Tensor, Tensor]:
        """Cells with a target, and the pixel of the depth map that each takes it from."""
        shape = depth.shape
        pixels = torch.from_numpy(np.flatnonzero(depth != 0))  # of booleans it is several times faster
        values = torch.from_numpy(depth).view(-1)[pixels]
        pixels = pixels[self.view.counts(values / DEPTH_UNIT, pixels, (shape[0], shape[1]))]
        ranks = depth
        if frame.truth is not None and min(placement.scale) < 1.0:  # else a cell has one pixel at most
            ranks = read_map(frame.truth, shape)
        cells = placement.cells(pixels, shape[1])
        ranks_of_pixels = torch.from_numpy(ranks).view(-1)[pixels]
        height, width = placement.shape
        return nearest_per_cell(cells, ranks_of_pixels, pixels, height * width)

    def _true_depth(self, index: int) -> tuple[Tensor, Tensor]:
        frame, target = self.frames[index], self._pixels(index)[1]
        if frame in self._faults or frame.truth is None or frame.sigma is None:
            return torch.full_like(target, torch.nan), torch.full_like(target, torch.nan)
        depth = read_map(frame.depth, None)
        placement = self._placement(frame, depth.shape)
        cells, pixels = self._measured(frame, placement, depth)
        truth, sigma = read_map(frame.truth, depth.shape), read_map(frame.sigma, depth.shape)
        return (
            _filled(placement, cells, truth, pixels, DEPTH_UNIT),
            _filled(placement, cells, sigma, pixels, SIGMA_UNIT),
        )

    def _blank(self, frame: DepthFrame) -> Tensor:
        """An image for a frame without one; without a common size there is no batch to keep in shape."""
        if self.view.shape is None:
            raise self._faults[frame]
        return blank_image(self.view.shape)

    def _skip(self, frame: DepthFrame, fault: FrameError) -> None:
        """Record a frame that cannot be read, and warn of it once."""
        is_known = frame in self._faults
        self._faults[frame] = fault
        if len(self._faults) > MOST_SKIPPED * self._population:
            count = f"{len(self._faults)} of {self._population}"
            first = self.skipped[0][1]
            raise ValueError(f"expected at most {MOST_SKIPPED:.0%} unreadable frames, got {count}, the first: {first}")
        if not is_known:
            warnings.warn(f"skipped a frame: {fault}", stacklevel=2)


def _filled(placement: Placement, cells: Tensor, values: NDArray[np.int32], pixels: Tensor, unit: float) -> Tensor:
    """A map of the item's shape, NaN except in these cells."""
    height, width = placement.shape
    filled = torch.full((height * width,), torch.nan)
    filled[cells] = torch.from_numpy(values).view(-1)[pixels].float() / unit
    return filled.view(height, width)


def read_image(path: Path) -> NDArray[np.uint8]:
    """Read an image of 8 bits.

    Returns:
        Shape ``(height, width, 3)``.

    Raises:
        FrameError: The file does not exist, is damaged, or has no 8 bits.
    """
    pixels, mode = _decoded(path, "RGB")
    if pixels.dtype != np.uint8 or pixels.ndim != 3:
        raise FrameError(path, f"expected {path} an image of 8 bits, got mode {mode}")
    return pixels


def read_map(path: Path, shape: tuple[int, ...] | None) -> NDArray[np.int32]:
    """Read a map of 16 bits.

    Args:
        path: A PNG of one channel.
        shape: Height and width that it must have, those of its image; None if any will do.

    Returns:
        The stored values. Shape ``(height, width)``.

    Raises:
        FrameError: The file does not exist, is damaged, does not have 16 bits, or has another shape.
    """
    pixels, mode = _decoded(path, None)
    if mode not in _DEEP_MODES:
        actual = f"{8 * pixels.itemsize} bits, mode {mode}"
        raise FrameError(path, f"expected {path} a PNG of 16 bits and one channel, got {actual}")
    if shape is not None and pixels.shape != tuple(shape):
        actual, expected = (" x ".join(map(str, sides)) for sides in (pixels.shape, shape))
        raise FrameError(path, f"expected {path} of the size of its image, {expected}, got {actual}")
    return pixels.astype(np.int32)


def image_size(path: Path) -> tuple[int, int]:
    """Height and width of an image, from the beginning of its file.

    Raises:
        FrameError: The file does not exist, or is no image.
    """
    with _opened(path) as image:
        return image.height, image.width


def _decoded(path: Path, mode: str | None) -> tuple[NDArray[Any], str]:
    """Pixels of an image file, converted to a mode unless they have 16 bits or more; and the mode stored."""
    with _opened(path) as image:
        stored = image.mode
        converts = mode is not None and stored != mode and not stored.startswith(("I", "F"))
        return np.array(image.convert(mode) if converts else image), stored


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """An image of Pillow, which reports a damaged file; torchvision's decoder of PNG ends the process for some.

    Errors are raised as a :class:`FrameError`.
    """
    try:
        from PIL import Image  # reading frames is optional
    except ImportError as error:
        raise ImportError("expected Pillow to read images; pip install 'fcal[vision]'") from error
    try:
        with warnings.catch_warnings(), Image.open(path) as image:
            warnings.simplefilter("ignore")  # of Pillow, about metadata and transparency
            yield image
    except FileNotFoundError:
        raise FrameError(path, f"expected {path}, got no such file") from None
    except Exception as error:  # Pillow raises many types of errors: OSError, SyntaxError, struct.error, ...
        reason = " ".join(str(error).replace(f"{os.fspath(path)!r}", "").split())[:120] or type(error).__name__
        raise FrameError(path, f"expected {path} an image file that can be read, got: {reason}") from None


def read_text(path: str | os.PathLike[str], content: str) -> str:
    """Text of a file in UTF-8.

    Args:
        path: The file.
        content: What it should hold, for the message.

    Raises:
        ValueError: The file cannot be read, or is not text.
    """
    try:
        return Path(path).read_text(encoding="utf-8-sig")  # editors of Windows begin it with a mark
    except UnicodeDecodeError:
        raise ValueError(f"expected {path} a text file in UTF-8, got other bytes") from None
    except (OSError, ValueError) as error:  # the second for an impossible name
        raise ValueError(f"expected {path} {content}, got: {getattr(error, 'strerror', error)}") from None


@dataclass(frozen=True, kw_only=True)
class DepthSplits:
    """Frames to train on, to validate on and to test on, as datasets."""

    train: DepthFrames
    validation: DepthFrames
    test: DepthFrames


@dataclass(frozen=True, kw_only=True)
class FrameSplits:
    """Frames to train on, to validate on and to test on."""

    train: tuple[DepthFrame, ...]
    validation: tuple[DepthFrame, ...]
    test: tuple[DepthFrame, ...]

    def datasets(self, view: DepthView, evaluation: DepthView | None = None, *, cache: bool = False) -> DepthSplits:
        """The frames as datasets.

        Args:
            view: What items show of training frames, and of the others unless ``evaluation`` is given.
            evaluation: What items show of frames to validate and to test on.
            cache: See :class:`DepthFrames`. The 1 % of frames that may be unreadable refers to all three together.
        """
        views = {"train": view, "validation": evaluation or view, "test": evaluation or view}
        parts = {name: DepthFrames(getattr(self, name), part_view, cache=cache) for name, part_view in views.items()}
        population = sum(map(len, parts.values()))
        faults: dict[DepthFrame, FrameError] = {}
        for part in parts.values():
            part._population, part._faults = population, faults
        return DepthSplits(**parts)
