"""Labelled images as files describe them; faults of labels are counted over all files and reported once."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fcal._checks import check_values
from fcal.data.depth_frames import FrameError, image_size

MOST_REFUSED = 0.01  # share of boxes that may be empty, and of images that may have another size than stated
ALL_CLASSES = 0  # label of a region in which objects of no class are labelled
_TOLERANCE = 1.0  # pixels by which rounding may move a box out of its image


class Label(NamedTuple):
    """An object as a reader finds it.

    Attributes:
        box: Left, top, right and bottom edge in pixels; the first pixel spans 0 to 1.
        label: Number of the class from 1, or ``ALL_CLASSES``: then it is a region for each of them.
        ignored: Whether it is neither to be found nor a mistake to find.
        crowd: Whether it is a region that may hold several objects.
        is_empty: Whether the file states a box without extent.
        extras: Further values by name.
    """

    box: tuple[float, float, float, float]
    label: int
    ignored: bool = False
    crowd: bool = False
    is_empty: bool = False
    extras: Mapping[str, float] = {}


@dataclass(frozen=True, kw_only=True, eq=False)
class AnnotatedImage:
    """An image file and the objects in it.

    Args:
        image: The image, PNG or JPEG of 8 bits.
        size: Its height and width.
        boxes: Left, top, right and bottom edges in pixels; the first pixel spans 0 to 1. Shape ``(n, 4)``, float32.
        labels: Numbers of classes from 1. Shape ``(n,)``, int64.
        ignored: Objects that are neither to be found nor a mistake to find. Shape ``(n,)``, bool; default: none.
        crowd: Ignored regions that may hold several objects. Shape ``(n,)``, bool; default: none.
        extras: Further values of objects, such as ``"truncation"`` or ``"sigmas"``. First dimension n.
        group: Images that depend on each other, such as those of a drive, have the same group.
        number: Number of the image in its data set.
        instances: Map of 16 bits with the number of the object of every pixel; ``extras["instance"]`` has the numbers.

    Raises:
        ValueError: Lengths differ, or a box is empty.

    Example:
        >>> cell = AnnotatedImage(
        ...     image=Path("cell.png"),
        ...     size=(48, 64),
        ...     boxes=torch.tensor([[0.0, 0.0, 8.0, 9.0]]),
        ...     labels=torch.tensor([1]),
        ... )
        >>> cell.ignored, cell.name
        (tensor([False]), 'cell')
    """

    image: Path
    size: tuple[int, int]
    boxes: Tensor
    labels: Tensor
    ignored: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    crowd: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    group: str = ""
    number: int = 0
    instances: Path | None = None

    def __post_init__(self) -> None:
        count = len(self.boxes)
        for name in ("ignored", "crowd"):
            if not len(getattr(self, name)):
                object.__setattr__(self, name, torch.zeros(count, dtype=torch.bool))
        if self.boxes.shape != (count, 4):
            raise ValueError(f"expected `boxes` of shape (n, 4), got {tuple(self.boxes.shape)}")
        columns = {"labels": self.labels, "ignored": self.ignored, "crowd": self.crowd, **self.extras}
        for name, values in columns.items():
            if len(values) != count:
                raise ValueError(f"expected `{name}` of {count} objects like `boxes`, got {len(values)}")
        sides = self.boxes[:, 2:] - self.boxes[:, :2]
        check_values("boxes", "with x1 < x2 and y1 < y2", sides, sides > 0)

    @property
    def name(self) -> str:
        """Name of the image file without its suffix."""
        return self.image.stem


class LabelFaults:
    """Faults of labels and images, counted while files are read and reported once.

    Boxes without extent are dropped, and more than 1 % of them are an error; boxes outside of their image are dropped;
    boxes that reach out of it are clipped. Images that cannot be read are left out, and so are those of another size
    than their labels state, of which more than 1 % are an error. Every kind of fault has one warning with its count
    and its first file.

    Args:
        source: What is read, for messages.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        self._boxes = 0
        self._images = 0
        self._counts: dict[str, int] = {}
        self._first: dict[str, Any] = {}

    def add(self, kind: str, first: Any, count: int = 1) -> None:
        """Count a fault; ``first`` says where it is."""
        if count:
            self._counts[kind] = self._counts.get(kind, 0) + count
            self._first.setdefault(kind, first)

    def size_of(self, image: Path, stated: tuple[int, int] | None = None) -> tuple[int, int] | None:
        """Height and width of an image; None if it cannot be read or has another size than stated."""
        self._images += 1
        try:
            size = image_size(image)
        except FrameError as error:
            self.add("missing", error)
            return None
        if stated is not None and size != stated:
            expected, actual = (" x ".join(map(str, sides)) for sides in (stated, size))
            self.add("size", f"expected {image} of the size that its labels state, {expected}, got {actual}")
            return None
        return size

    def kept(self, labels: Sequence[Label], path: Path | str, size: tuple[int, int]) -> tuple[list[Label], Tensor]:
        """Labels with a box in the image, and their boxes, clipped to it. Shape ``(n, 4)``, float32."""
        boxes = np.array([label.box for label in labels], np.float64).reshape(-1, 4)
        limits = np.array([size[1], size[0]] * 2, np.float64)
        is_empty = np.array([label.is_empty for label in labels], np.bool_) | (boxes[:, 2:] <= boxes[:, :2]).any(1)
        clipped = boxes.clip(0.0, limits)
        is_outside = ~is_empty & (clipped[:, 2:] <= clipped[:, :2]).any(1)
        is_beyond = (np.abs(clipped - boxes) > _TOLERANCE).any(1) & ~is_empty & ~is_outside
        self._boxes += len(labels)
        for kind, marked in (("empty", is_empty), ("outside", is_outside), ("beyond", is_beyond)):
            self.add(kind, path, int(marked.sum()))
        tensor = torch.from_numpy(clipped.astype(np.float32))
        is_kept = ~is_empty & ~is_outside & (tensor[:, 2:] > tensor[:, :2]).all(1).numpy()
        return [label for label, keeps in zip(labels, is_kept, strict=True) if keeps], tensor[torch.from_numpy(is_kept)]

    def report(self) -> None:
        """Warn of every kind of fault once.

        Raises:
            ValueError: All images are missing, or faults are too many.
        """
        boxes, images, source = self._boxes, self._images, self._source
        if images and self._counts.get("missing", 0) == images:
            raise ValueError(f"expected {images} images of {source}, got none (first: {self._first['missing']})")
        self._refuse("empty", boxes, "boxes with x1 < x2 and y1 < y2")
        self._refuse("size", images, "images of the size that their labels state")
        for kind, message in (
            ("missing", f"expected {images} images of {source}, left out {{}} that cannot be read"),
            ("size", f"expected images of the size that their labels state, left out {{}} of {images} of {source}"),
            ("unlabelled", f"expected labels of all images of {source}, left out {{}} images without"),
            ("empty", f"expected boxes with x1 < x2 and y1 < y2, dropped {{}} of {boxes} of {source}"),
            ("outside", f"expected boxes within their image, dropped {{}} of {boxes} of {source} that lie outside"),
            ("beyond", f"expected boxes within their image, clipped {{}} of {boxes} of {source}"),
        ):
            if kind in self._counts:
                warnings.warn(f"{message.format(self._counts[kind])} (first: {self._first[kind]})", stacklevel=3)

    def _refuse(self, kind: str, whole: int, expected: str) -> None:
        count = self._counts.get(kind, 0)
        if count > MOST_REFUSED * whole:
            others = f"{count} of {whole} others in {self._source}"
            raise ValueError(f"expected {expected}, got {others} (first: {self._first[kind]})")


def annotated(
    image: Path,
    labels: Sequence[Label],
    *,
    path: Path | str,
    size: tuple[int, int],
    classes: int,
    faults: LabelFaults,
    kinds: Mapping[str, torch.dtype] | None = None,
    **rest: Any,
) -> AnnotatedImage:
    """The labels of an image, those of them that have a box in it.

    Args:
        image: The image.
        labels: What its labels say.
        path: Their file.
        size: Height and width of the image.
        classes: Number of classes.
        faults: Counts what is dropped and clipped.
        kinds: Extras that all labels have, and their types.
        rest: Further arguments of :class:`AnnotatedImage`.
    """
    kept, boxes = faults.kept(labels, path, size)
    copies = torch.tensor([classes if label.label == ALL_CLASSES else 1 for label in kept], dtype=torch.long)
    rows = torch.repeat_interleave(copies)
    numbers = [n for each in kept for n in (range(1, classes + 1) if each.label == ALL_CLASSES else [each.label])]
    extras = {
        name: torch.tensor([label.extras[name] for label in kept], dtype=kind)[rows]
        for name, kind in (kinds or {}).items()
    }
    return AnnotatedImage(
        image=image,
        size=size,
        boxes=boxes[rows],
        labels=torch.tensor(numbers, dtype=torch.long),
        ignored=torch.tensor([label.ignored for label in kept], dtype=torch.bool)[rows],
        crowd=torch.tensor([label.crowd for label in kept], dtype=torch.bool)[rows],
        extras=extras,
        **rest,
    )
