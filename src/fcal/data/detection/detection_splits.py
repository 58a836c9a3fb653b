"""Images to train on, to validate on and to test on: by counts, by groups, by folds or by lists of names."""

import itertools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fcal._checks import check_flag, check_integer
from fcal.data.depth_frames import read_text
from fcal.data.detection.detection_frames import DetectionDataset, DetectionFrames
from fcal.data.folds import assigned, fold_numbers

_PARTS = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True)
class DetectionSplits:
    """Images to train on, to validate on and to test on, as datasets.

    Raises:
        ValueError: Two parts have image files in common; the message has their number and the first.
    """

    train: DetectionDataset
    validation: DetectionDataset
    test: DetectionDataset

    def __post_init__(self) -> None:
        files = {name: [image.image for image in part.images] for name, part in self._read_from_files()}
        for one, other in itertools.combinations(files, 2):
            known = set(files[one])
            common = [path for path in files[other] if path in known]
            if common:
                raise ValueError(
                    f"expected no image in both {one} and {other}, got {len(common)} of {len(files[other])} (first: "
                    f"{common[0]})"
                )

    def _read_from_files(self) -> list[tuple[str, DetectionFrames]]:
        parts = [(name, getattr(self, name)) for name in _PARTS]
        return [(name, part) for name, part in parts if isinstance(part, DetectionFrames)]


@dataclass(frozen=True, kw_only=True)
class FilesConfig:
    """Options of all data that are read from files.

    Args:
        root: The folder.
        size: Height and width of items; empty for those of each image.
        seed: Seed of the split.
        flip: Whether training items are mirrored at random.
        cache: Keep images in memory.
    """

    root: str
    size: list[int] = field(default_factory=list)
    seed: int = 0
    flip: bool = True
    cache: bool = False

    def __post_init__(self) -> None:
        if len(self.size) not in (0, 2):
            raise ValueError(f"expected `size` of height and width, or empty, got {self.size}")
        check_integer("seed", self.seed, at_least=0)
        check_flag("flip", self.flip)
        check_flag("cache", self.cache)

    @property
    def item_size(self) -> tuple[int, int] | None:
        """Height and width of items; None for those of each image."""
        return (self.size[0], self.size[1]) if self.size else None

    def splits(self, frames: DetectionFrames, parts: Sequence[Iterable[int]]) -> DetectionSplits:
        """Images by their numbers; those to train on are mirrored if asked for.

        Raises:
            ValueError: A part is empty.
        """
        return splits_of(frames, parts, flip=self.flip)


def splits_of(frames: DetectionFrames, parts: Sequence[Iterable[int]], *, flip: bool = False) -> DetectionSplits:
    """Splits of a dataset from the numbers of the images of each part."""
    numbers = dict(zip(_PARTS, map(list, parts), strict=True))
    for name, part in numbers.items():
        if not part:
            raise ValueError(f"expected images in all of {', '.join(_PARTS)}, got none of {len(frames)} in {name}")
    return DetectionSplits(
        **{name: frames.subset(part, flip=flip and name == "train") for name, part in numbers.items()}
    )


def counted_split(rows: int, counts: Sequence[int], *, seed: int = 0) -> list[list[int]]:
    """Rows assigned at random to parts.

    Args:
        rows: Number of rows.
        counts: Number of rows of each part. If they do not add up to ``rows``, the parts have the same proportions.
        seed: Seed of the assignment.

    Returns:
        Row numbers of each part, in increasing order.

    Example:
        >>> [len(part) for part in counted_split(7481, (4500, 500, 2481))]
        [4500, 500, 2481]
        >>> [len(part) for part in counted_split(15, (4500, 500, 2481))]
        [9, 1, 5]
    """
    generator = torch.Generator().manual_seed(check_integer("seed", seed, at_least=0))
    order = torch.randperm(rows, generator=generator).tolist()
    total = sum(counts)
    ends = [round(rows * sum(counts[:number]) / total) for number in range(len(counts) + 1)]
    return [sorted(order[first:last]) for first, last in itertools.pairwise(ends)]


def grouped_split(groups: Sequence[int], counts: Sequence[int], *, seed: int = 0) -> list[list[int]]:
    """Rows assigned at random to parts that have no group in common.

    Args:
        groups: Group of each row.
        counts: Number of rows that each part should have; with few or large groups it differs. Only their proportions
            matter.
        seed: Seed of the assignment.

    Returns:
        Row numbers of each part, in increasing order.

    Raises:
        ValueError: There are fewer groups than parts.

    Example:
        >>> grouped_split([0, 0, 1, 1, 2, 2, 3, 3], (2, 1, 1))
        [[0, 1, 2, 3], [6, 7], [4, 5]]
    """
    numbers = torch.tensor(groups).unique(return_inverse=True)[1]
    sizes = torch.bincount(numbers)
    if len(sizes) < len(counts):
        raise ValueError(f"expected images of at least {len(counts)} groups to split by group, got {len(sizes)}")
    generator = torch.Generator().manual_seed(check_integer("seed", seed, at_least=0))
    capacities = torch.tensor(counts, dtype=torch.float64) * len(groups) / sum(counts)
    part_of = assigned(sizes, capacities, generator)[numbers]
    return [(part_of == part).nonzero().squeeze(1).tolist() for part in range(len(counts))]


def fold_splits(
    frames: DetectionFrames, fold: int, *, folds: int = 5, seed: int = 0, flip: bool = False
) -> DetectionSplits:
    """A fold as test set, the next one as validation set and the others as training set; groups stay together.

    Args:
        frames: All images.
        fold: Number of the fold to test on, from 0.
        folds: Number of folds, at least 3.
        seed: Seed of the assignment of groups to folds.
        flip: Whether training items are mirrored at random.

    Raises:
        ValueError: There are fewer groups than folds.
    """
    check_integer("folds", folds, at_least=3)
    check_integer("fold", fold, at_least=0, at_most=folds - 1)
    numbers = fold_numbers(len(frames), folds, groups=frames.groups, seed=seed)
    is_test, is_validation = numbers == fold, numbers == (fold + 1) % folds
    parts = (~(is_test | is_validation), is_validation, is_test)
    return splits_of(frames, [part.nonzero().squeeze(1).tolist() for part in parts], flip=flip)


def listed_split(
    names: Sequence[str], lists: Sequence[str | os.PathLike[str]], *, left_out: Iterable[str] = ()
) -> list[list[int]]:
    """Rows whose names are in lists, one file for each part.

    Args:
        names: Name of each row.
        lists: Text files with a name at the beginning of each line.
        left_out: Further names that lists may have.

    Raises:
        ValueError: A list cannot be read, or names something else; the message has the first such name.
    """
    numbers = {name: number for number, name in enumerate(names)}
    known, parts = {*numbers, *left_out}, []
    for path in lists:
        listed = read_names(Path(path))
        unknown = [name for name in listed if name not in known]
        if unknown:
            others = f"{len(unknown)} of {len(listed)} others (first: {unknown[0][:60]!r})"
            raise ValueError(f"expected {path} with names of the {len(names)} images that were read, got {others}")
        parts.append([numbers[name] for name in dict.fromkeys(listed) if name in numbers])
    return parts


def read_names(path: Path) -> list[str]:
    """Names at the beginning of the lines of a list."""
    return [line.split()[0] for line in read_text(path, "a list of images").splitlines() if line.strip()]
