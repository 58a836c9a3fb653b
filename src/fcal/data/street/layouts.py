"""What a layout of files is, and what all of them share: splits of drives and images as bytes."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fcal.data.street.frames import StreetConfig, StreetFrame
from fcal.data.street.street_depth import SPLITS, frames_of


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Which files a street world is written to.

    Args:
        names: Paths of the files of a frame, given the config and the frame's number.
        contents: Their contents in the same order, given the rendered frame as well.
        before: Other files by path, written before all frames.
        lists: Files by path that list the frames, written when all frames are.
    """

    names: Callable[[StreetConfig, int], Sequence[str]]
    contents: Callable[[StreetConfig, int, StreetFrame], Sequence[bytes]]
    before: Callable[[StreetConfig], dict[str, str]]
    lists: Callable[[StreetConfig], dict[str, str]]


def split_of(config: StreetConfig, index: int) -> str:
    """The split of a frame.

    Example:
        >>> split_of(StreetConfig(frames=5, frames_per_drive=1), 4)
        'test'
    """
    return next(split for split in SPLITS if index < frames_of(config, split)[1])


def indices_of(config: StreetConfig, split: str) -> range:
    """Numbers of the frames of a split."""
    return range(*frames_of(config, split))


def png(pixels: NDArray[np.uint8] | NDArray[np.uint16]) -> bytes:
    """An image as PNG: of colours, or of numbers of 8 or 16 bits.

    Example:
        >>> np.asarray(Image.open(io.BytesIO(png(np.array([[1, 65535]], np.uint16)))))
        array([[    1, 65535]], dtype=uint16)
    """
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG", compress_level=4)
    return file.getvalue()
