"""Geometry of depth data: which part of a frame is shown, at which size, and where its lidar pixels fall."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fcal._checks import check_flag, check_integer, check_number
from fcal._registry import Registry

GARG = ((0.40810811, 0.99189189), (0.03594771, 0.96405229))  # rows and columns, as fractions of the whole image
MEAN = (0.485, 0.456, 0.406)  # of ImageNet, with which torchvision's encoders were trained
STD = (0.229, 0.224, 0.225)
PADDING = tuple(round(255 * mean) for mean in MEAN)  # zero after normalisation, up to rounding
_UP = 1 + 1e-9  # a size that is whole up to rounding is not cut by a pixel
_INDEX_BITS = 32  # of the pixel number in a key that also holds a 16-bit depth

CROPS: Registry[tuple[int, int]] = Registry("crop")
CROPS.add("kb", (352, 1216))


class Window(NamedTuple):
    """A rectangle of pixels; it may extend beyond the image if it is a window onto one."""

    top: int
    left: int
    height: int
    width: int


@dataclass(frozen=True, kw_only=True)
class Placement:
    """How the pixels of one frame are mapped to those of an item.

    The crop is resized by ``scale`` from its top left corner, and the item shows the ``window`` of the result.

    Attributes:
        crop: Part of the stored image.
        scale: Factors of height and width.
        resized: Height and width of the resized crop.
        window: Part of the resized crop that is shown; negative offsets are padding.
    """

    crop: Window
    scale: tuple[float, float]
    resized: tuple[int, int]
    window: Window

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the item."""
        return self.window.height, self.window.width

    def cells(self, pixels: Tensor, width: int) -> Tensor:
        """Cell of the item into which the centre of each pixel falls.

        Args:
            pixels: Numbers of pixels of the stored image, row by row. Shape ``(n,)``.
            width: Width of the stored image.

        Returns:
            Numbers of cells of the item, row by row; -1 for pixels outside it. Shape ``(n,)``.
        """
        row, row_counts = self._along(pixels.div(width, rounding_mode="floor"), 0)
        column, column_counts = self._along(pixels.remainder(width), 1)
        return torch.where(row_counts & column_counts, row * self.window.width + column, -1)

    def _along(self, position: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        """Row or column of the item, and whether it is part of the item."""
        within = position - self.crop[axis]
        scaled = ((within + 0.5) * self.scale[axis]).floor().long()
        shown = scaled - self.window[axis]
        counts = (within >= 0) & (within < self.crop[2 + axis]) & (scaled < self.resized[axis])
        return shown, counts & (shown >= 0) & (shown < self.window[2 + axis])


@dataclass(frozen=True, kw_only=True)
class DepthView:
    """What an item shows of a frame.

    Depth in metres is kept if the focal length in pixels is the same for all frames, so that one network serves several
    cameras: with ``focal``, a frame is resized by the ratio of ``focal`` to its own focal length, and the bottom centre
    of the result is cut out (or padded) to ``size``.

    Args:
        size: Height and width of items; None for the size of the crop, or of the image.
        focal: Focal length of all items, in pixels; None resizes the crop to ``size`` whatever its focal length.
        crop: ``"kb"`` for the bottom centre of 352 x 1216 pixels, as in KITTI's benchmark of depth; None for the image.
        garg: Whether only targets in the region of Garg et al. (2016) count; it refers to the image before its crop.
        least: Lower limit of measured depths that count, in metres, exclusive.
        cap: Upper limit, exclusive.

    Example:
        >>> DepthView(size=(96, 320), focal=186.0).placement((375, 1242), focal=721.5377).resized
        (96, 320)
    """

    size: tuple[int, int] | None = None
    focal: float | None = None
    crop: str | None = None
    garg: bool = False
    least: float = 1e-3
    cap: float = 80.0

    def __post_init__(self) -> None:
        if self.size is not None:
            _check_size(self.size)
        if self.focal is not None:
            check_number("focal", self.focal, low=1.0, high=1e5)
        if self.focal is not None and self.size is None:
            raise ValueError("expected `size` with `focal`, got None: frames would differ in size")
        if self.crop is not None:
            CROPS[self.crop]
        check_flag("garg", self.garg)
        check_number("cap", self.cap, low=1e-2, high=255.0)
        check_number("least", self.least, low=0.0, high=self.cap)

    @property
    def shape(self) -> tuple[int, int] | None:
        """Height and width of all items; None if each has that of its image."""
        return self.size or (CROPS[self.crop] if self.crop else None)

    def placement(self, shape: tuple[int, int], focal: float) -> Placement:
        """Where an image of this shape is placed in an item.

        Args:
            shape: Height and width of the stored image.
            focal: Its focal length in pixels.

        Raises:
            ValueError: The image is smaller than the crop, or nothing is left of it after resizing.
        """
        crop = _crop(self.crop, shape)
        height, width = self.size or (crop.height, crop.width)
        if self.focal is None:
            scale = height / crop.height, width / crop.width
            return Placement(crop=crop, scale=scale, resized=(height, width), window=Window(0, 0, height, width))
        ratio = self.focal / focal
        resized = math.floor(crop.height * (ratio * _UP)), math.floor(crop.width * (ratio * _UP))
        if min(resized) < 1:
            raise ValueError(f"expected an image of which `focal` {self.focal:g} leaves a pixel, got {_sides(shape)}")
        window = Window(resized[0] - height, (resized[1] - width) // 2, height, width)
        return Placement(crop=crop, scale=(ratio, ratio), resized=resized, window=window)

    def counts(self, depth: Tensor, pixels: Tensor, shape: tuple[int, int]) -> Tensor:
        """Whether measured depths are within the limits, and in the region of Garg et al. if asked for.

        Args:
            depth: Depth of each pixel in metres. Shape ``(n,)``.
            pixels: Numbers of these pixels of the stored image, row by row. Shape ``(n,)``.
            shape: Height and width of the stored image.
        """
        inside = (depth > self.least) & (depth < self.cap)
        if not self.garg:
            return inside
        positions = pixels.div(shape[1], rounding_mode="floor"), pixels.remainder(shape[1])
        for position, side, (low, high) in zip(positions, shape, GARG, strict=True):
            inside &= (position >= int(low * side)) & (position < int(high * side))
        return inside


def _check_size(size: tuple[int, int]) -> None:
    if not isinstance(size, tuple) or len(size) != 2:
        raise TypeError(f"expected `size` a tuple of height and width, got {size!r}")
    for name, value in zip(("height", "width"), size, strict=True):
        check_integer(f"size: {name}", value, at_least=1, at_most=1 << 14)


def _crop(name: str | None, shape: tuple[int, int]) -> Window:
    """The named crop of an image: at the bottom, and centred horizontally."""
    if name is None:
        return Window(0, 0, *shape)
    height, width = CROPS[name]
    if shape[0] < height or shape[1] < width:
        least = _sides((height, width))
        raise ValueError(f"expected an image of at least {least} pixels for the crop {name!r}, got {_sides(shape)}")
    return Window(shape[0] - height, (shape[1] - width) // 2, height, width)


def _sides(shape: tuple[int, int]) -> str:
    return f"{shape[0]} x {shape[1]}"


def resized_image(image: Tensor, placement: Placement) -> Tensor:
    """Crop and resize an image, with antialiasing.

    Args:
        image: Shape ``(height, width, 3)``, uint8, as decoders return it.
        placement: Where it is placed.

    Returns:
        Shape ``(3, *placement.shape)``, uint8; cells outside the image have the mean colour of ImageNet.
    """
    top, left, height, width = placement.crop
    # The format of decoded images is channels last, for which torch resizes bytes four times faster.
    cropped = image.permute(2, 0, 1)[None, :, top : top + height, left : left + width]
    if placement.scale == (placement.resized[0] / height, placement.resized[1] / width):
        whole = F.interpolate(cropped, size=placement.resized, mode="bilinear", antialias=True)
    else:  # by the factor itself, not the ratio of whole sizes, so that the focal length is exact
        factors = tuple(_UP * factor for factor in placement.scale)
        whole = F.interpolate(cropped, scale_factor=factors, mode="bilinear", antialias=True)
    return _shown(whole[0], placement.window)


def _shown(image: Tensor, window: Window) -> Tensor:
    """The window of an image; cells outside the image have the mean colour."""
    rows = slice(max(window.top, 0), min(window.top + window.height, image.shape[1]))
    columns = slice(max(window.left, 0), min(window.left + window.width, image.shape[2]))
    shown = blank_image((window.height, window.width))
    top, left = rows.start - window.top, columns.start - window.left
    part = image[:, rows, columns]
    shown[:, top : top + part.shape[1], left : left + part.shape[2]] = part
    return shown


def blank_image(shape: tuple[int, int]) -> Tensor:
    """An image of the mean colour of ImageNet. Shape ``(3, *shape)``, uint8."""
    return torch.tensor(PADDING, dtype=torch.uint8)[:, None, None].repeat(1, *shape)


def normalised(images: Tensor) -> Tensor:
    """Images of bytes as float32, centred and scaled by ImageNet's mean and standard deviation. Shape ``(B, 3, H, W)``.

    Example:
        >>> normalised(blank_image((1, 1))[None]).abs().max() < 0.01
        tensor(True)
    """
    scale = torch.tensor([1 / (255 * std) for std in STD])[:, None, None]
    shift = torch.tensor([-mean / std for mean, std in zip(MEAN, STD, strict=True)])[:, None, None]
    return torch.addcmul(shift, images.float(), scale)


def colours(images: Tensor) -> Tensor:
    """The bytes of images of :func:`normalised`.

    Example:
        >>> image = torch.arange(256, dtype=torch.uint8).expand(1, 3, 1, 256)
        >>> torch.equal(colours(normalised(image)), image)
        True
    """
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    return (255 * (images * std + mean)).round().clamp(0, 255).to(torch.uint8)


def nearest_per_cell(cells: Tensor, ranks: Tensor, pixels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Of the pixels that fall into one cell, keep that of the lowest rank; of equal ones the first.

    Depth is never interpolated: between a pole and the wall behind it there is nothing at the mean of both.

    Args:
        cells: Cell of each pixel, -1 for none. Shape ``(n,)``.
        ranks: Non-negative integers below 2**16, such as stored depths. Shape ``(n,)``.
        pixels: Number of each pixel. Shape ``(n,)``.
        count: Number of cells.

    Returns:
        Cells that have a pixel, and the pixel of each.

    Example:
        >>> nearest_per_cell(torch.tensor([0, 0, 2, -1]), torch.tensor([9, 7, 5, 1]), torch.arange(4), 3)
        (tensor([0, 2]), tensor([1, 2]))
    """
    inside = cells >= 0
    keys = (ranks[inside].long() << _INDEX_BITS) | pixels[inside].long()
    empty = torch.iinfo(torch.int64).max
    best = torch.full((count,), empty).scatter_reduce_(0, cells[inside], keys, "amin")
    kept = (best != empty).nonzero().squeeze(1)
    return kept, best[kept] & ((1 << _INDEX_BITS) - 1)
