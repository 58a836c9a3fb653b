"""Detections with error bars in files: the JSON of the first Robotic Vision Challenge (RVC1), and COCO's results.

RVC1 is ``{"classes": [names], "detections": [[{"bbox": [x1, y1, x2, y2], "covars": [2 x 2, 2 x 2], "label_probs":
[...]}]]}`` with a list of detections for each image, in rising order of the images' ids in the truth. COCO's results
are ``[{"image_id", "category_id", "bbox": [x, y, width, height], "score"}]``, here with ``"covariance"``, 4 x 4, or
``"covars"`` of the corners x1, y1, x2, y2 in square pixels.
"""

import itertools
import json
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from fcal._files import atomic_path
from fcal._registry import Registry
from fcal.metrics.detection import Detections
from fcal.tables.coco_truths import CocoTruths, check_corners
from fcal.tables.json_records import Array, Place, check_records, indices, numbers, read_json, reject
from fcal.tables.readers import file_error, shown

BACKGROUND = "background"
_BACKGROUNDS = (BACKGROUND, "__background__", "__bg__", "none")
_SLACK = 1e-6  # of a covariance, relative to its largest entry; files are rounded
_LEAST_VARIANCE = 1e-20  # square pixels; smaller ones, and the inverse of it, mean nothing and overflow
_LARGEST_SUM = 1.001  # of probabilities; files are rounded
_MOST_NAMES = 5


@dataclass(frozen=True, kw_only=True, eq=False)
class DetectionFile(Sequence[Detections]):
    """Detections of each image of a file, made when asked for.

    Attributes:
        path: The file.
    """

    path: Path
    _boxes: Tensor
    _covariances: Tensor
    _scores: Tensor
    _labels: Tensor
    _label_probs: Tensor | None
    _starts: Array

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, index: int) -> Detections: ...
    @overload
    def __getitem__(self, index: slice) -> list[Detections]: ...
    def __getitem__(self, index: int | slice) -> Detections | list[Detections]:
        """Detections of one image, or of some."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        part = slice(self._starts[index], self._starts[index + 1])
        return Detections(
            boxes=self._boxes[part],
            covariances=self._covariances[part],
            scores=self._scores[part],
            labels=self._labels[part],
            label_probs=None if self._label_probs is None else self._label_probs[part],
        )


def read_rvc1(path: str | Path, truths: CocoTruths, *, inclusive: bool = False) -> DetectionFile:
    """Detections of an RVC1 file, whose classes are found by name among those of the truth.

    The label of a detection is the most probable class of the truth, its score that probability. A class of the file
    that the truth does not have, other than a background, counts for nothing, with a warning. A detection without
    ``covars`` has corners without variance.

    Args:
        path: The JSON file.
        truths: Objects of the images that the detections are of, in this order.
        inclusive: Whether x2 and y2 are the last column and row of a box, as in the challenge's own files: then 1 is
            added, since boxes end where the next pixel begins.

    Returns:
        A sequence of :class:`fcal.metrics.detection.Detections`, as long as ``truths``.

    Raises:
        TableError: The file cannot be read, has another schema or another number of images, a covariance is not
            positive semi-definite, or a value is not finite; the message has the image and the detection.
    """
    path = Path(path)
    document = read_json(path, dict, "an object with `classes` and `detections`, as RVC1 files are")
    images = document.get("detections")
    if not isinstance(images, list) or not all(isinstance(image, list) for image in images):
        raise file_error(path, "with `detections`, a list for each image, as RVC1 files have", _keys(document))
    if len(images) != len(truths):
        raise file_error(path, f"detections of the {len(truths)} images of {truths.path}", f"{len(images)} lists")
    column_of = _class_columns(path, document.get("classes"), truths)
    starts = np.append(0, np.cumsum([len(image) for image in images], dtype=np.int64))
    rows = list(itertools.chain.from_iterable(images))

    def place(index: int) -> str:
        image = int(np.searchsorted(starts, index, side="right")) - 1
        return f"image {image}, detection {index - starts[image]}, counted from 0"

    check_records(path, rows, ("bbox", "label_probs"), place)
    boxes = numbers(path, "`bbox` of 4 numbers", [row["bbox"] for row in rows], (4,), place)
    check_corners(path, boxes, place)
    boxes[:, 2:] += inclusive
    count = len(document["classes"])
    given = numbers(path, f"`label_probs` of {count} numbers", [row["label_probs"] for row in rows], (count,), place)
    _check_probabilities(path, given, place)
    probabilities = np.zeros((len(rows), len(truths.classes) + 1))
    for column, label in enumerate(column_of):
        if label is not None:
            probabilities[:, label] += given[:, column]
    labels = probabilities[:, 1:].argmax(1) + 1 if len(rows) else np.zeros(0, dtype=np.int64)
    return _detection_file(
        path,
        boxes=boxes,
        covariances=_covariances(path, rows, place),
        scores=probabilities[np.arange(len(rows)), labels],
        labels=labels,
        label_probs=probabilities,
        starts=starts,
        place=place,
    )


def read_coco_results(path: str | Path, truths: CocoTruths, *, inclusive: bool = False) -> DetectionFile:
    """Detections of a file of COCO's results, with ``covariance`` or ``covars`` beside each box.

    A result may have ``label_probs`` too, for the categories of the truth in rising order of their ids; then all must.
    Results of categories that the truth does not have are left out, as pycocotools does, with a warning.

    Args:
        path: The JSON file.
        truths: Objects of the images that the detections are of.
        inclusive: As for :func:`read_rvc1`.

    Returns:
        A sequence of :class:`fcal.metrics.detection.Detections`, as long as ``truths``.

    Raises:
        TableError: As for :func:`read_rvc1`, or an image that the truth does not have.
    """
    path = Path(path)
    every = read_json(path, list, "a list of results, as COCO's are")
    required = ("image_id", "category_id", "bbox", "score")
    check_records(path, every, required, lambda number: f"result {number}, counted from 0")
    for number, row in enumerate(every):
        if isinstance(row["category_id"], bool) or not isinstance(row["category_id"], int):
            got = row["category_id"]
            place_of = f"{got!r} in result {number}" if isinstance(got, float) else f"{shown(got)} in result {number}"
            raise file_error(path, "a whole number `category_id`", f"{place_of}, counted from 0")
    is_known = [row["category_id"] in truths.category_ids for row in every]
    known = [number for number, good in enumerate(is_known) if good]
    rows = [every[number] for number in known]
    if len(rows) < len(every):
        strange = (row for row, good in zip(every, is_known, strict=True) if not good)
        unknown = dict.fromkeys(shown(row["category_id"]) for row in strange)
        names = ", ".join(list(unknown)[:_MOST_NAMES])
        _warn(
            f"{path}: {len(every) - len(rows)} of {len(every)} results are left out: no category {names} in the truth"
        )

    def place(index: int) -> str:
        return f"result {known[index]} of image {shown(rows[index]['image_id'])}, counted from 0"

    image = indices(path, f"`image_id` of {truths.path}", [row["image_id"] for row in rows], truths.image_ids, place)
    categories = [row["category_id"] for row in rows]
    labels = indices(path, "a whole number `category_id`", categories, truths.category_ids, place) + 1
    boxes = numbers(path, "`bbox` of 4 numbers", [row["bbox"] for row in rows], (4,), place)
    check_corners(path, boxes, place)
    boxes[:, 2:] += boxes[:, :2] + inclusive
    scores = numbers(path, "`score` a number", [row["score"] for row in rows], (), place)
    reject(path, "`score` within [0, 1]", (scores < 0) | (scores > 1), scores, place)
    order = np.argsort(image, kind="stable")
    probabilities = _result_probabilities(path, rows, len(truths.classes), place)
    return _detection_file(
        path,
        boxes=boxes[order],
        covariances=_covariances(path, rows, place)[order],
        scores=scores[order],
        labels=labels[order],
        label_probs=None if probabilities is None else probabilities[order],
        starts=np.searchsorted(image[order], np.arange(len(truths) + 1)),
        place=lambda index: place(int(order[index])),
    )


FORMATS: Registry[Callable[..., DetectionFile]] = Registry("format")
FORMATS.add("rvc1", read_rvc1)
FORMATS.add("coco", read_coco_results)


def _detection_file(
    path: Path,
    *,
    boxes: Array,
    covariances: Array,
    scores: Array,
    labels: Array,
    label_probs: Array | None,
    starts: Array,
    place: Place,
) -> DetectionFile:
    empty = np.flatnonzero(~(boxes[:, 2:] > boxes[:, :2]).all(1))
    if len(empty):
        _warn(f"{path}: {len(empty)} of {len(boxes)} boxes have x2 <= x1 or y2 <= y1, first {place(int(empty[0]))}")
    if len(boxes) and not covariances.any():
        _warn(f"{path}: no box has a variance; without error bars only exact boxes are within a contour")
    return DetectionFile(
        path=path,
        _boxes=torch.from_numpy(boxes),
        _covariances=torch.from_numpy(covariances),
        _scores=torch.from_numpy(scores),
        _labels=torch.from_numpy(labels),
        _label_probs=None if label_probs is None else torch.from_numpy(label_probs),
        _starts=starts,
    )


def _class_columns(path: Path, names: Any, truths: CocoTruths) -> list[int | None]:
    """Label of each class of a file; None for one that the truth does not have."""
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise file_error(path, "with `classes`, a list of names", "none" if names is None else shown(names)[:200])
    folded = [name.strip().lower() for name in names]
    if len(set(folded)) != len(folded):
        twice = next(name for name in names if folded.count(name.strip().lower()) > 1)
        raise file_error(path, "with different `classes`", f"{shown(twice)} twice")
    label_of = {name.strip().lower(): label for label, name in enumerate(truths.classes, start=1)}
    label_of |= {name: 0 for name in _BACKGROUNDS if name not in label_of}
    labels = [label_of.get(name) for name in folded]
    if not any(labels):
        raise file_error(path, f"a class of {truths.path} ({_some(truths.classes)})", _some(names))
    unknown = [name for name, label in zip(names, labels, strict=True) if label is None]
    missing = [name for label, name in enumerate(truths.classes, start=1) if label not in labels]
    if unknown:
        _warn(
            f"{path}: {len(unknown)} of {len(names)} classes are not in the truth and count nothing: {_some(unknown)}"
        )
    if missing:
        _warn(f"{path}: {len(missing)} of {len(truths.classes)} classes of the truth are missing: {_some(missing)}")
    return labels


def _covariances(path: Path, rows: list[Any], place: Place) -> Array:
    """Covariances of corners, 0 where a row has none. Shape ``(n, 4, 4)``."""
    whole = np.zeros((len(rows), 4, 4))
    blocks = [index for index, row in enumerate(rows) if "covars" in row and "covariance" not in row]
    full = [index for index, row in enumerate(rows) if "covariance" in row]
    if blocks:
        requirement, given = "`covars` of two 2 x 2 matrices", [rows[index]["covars"] for index in blocks]
        corners = numbers(path, requirement, given, (2, 2, 2), lambda index: place(blocks[index]))
        whole[blocks, :2, :2], whole[blocks, 2:, 2:] = corners[:, 0], corners[:, 1]
    if full:
        requirement, given = "`covariance` of 4 x 4 numbers", [rows[index]["covariance"] for index in full]
        whole[full] = numbers(path, requirement, given, (4, 4), lambda index: place(full[index]))
    variances = np.diagonal(whole, axis1=1, axis2=2)
    reject(path, "variances >= 0", (variances < 0).any(1), whole, place)
    odd = ((variances > 0) & ((variances < _LEAST_VARIANCE) | (variances > 1 / _LEAST_VARIANCE))).any(1)
    limits = f"variances 0 or from {_LEAST_VARIANCE:g} to {1 / _LEAST_VARIANCE:g} square pixels"
    reject(path, limits, odd, whole, place)
    slack = _SLACK * np.abs(whole).max((1, 2), initial=0)
    asymmetry = np.abs(whole - whole.transpose(0, 2, 1)).max((1, 2), initial=0)
    reject(path, "symmetric covariances", asymmetry > slack, whole, place)
    least = np.linalg.eigvalsh((whole + whole.transpose(0, 2, 1)) / 2)[:, 0]
    reject(path, "positive semi-definite covariances", least < -slack, whole, place)
    return whole


def _result_probabilities(path: Path, rows: list[Any], classes: int, place: Place) -> Array | None:
    if not any("label_probs" in row for row in rows):
        return None
    given = [row.get("label_probs") for row in rows]
    values = numbers(path, f"`label_probs` of {classes} numbers in all results or none", given, (classes,), place)
    _check_probabilities(path, values, place)
    return np.hstack([np.zeros((len(rows), 1)), values])


def _check_probabilities(path: Path, values: Array, place: Place) -> None:
    """Reject what is no probability; count rows whose sum is not that of a law, which are used as they are."""
    reject(path, "`label_probs` within [0, 1]", ((values < 0) | (values > 1)).any(1), values, place)
    sums = values.sum(1)
    for wrong, what in ((sums > _LARGEST_SUM, "sum to more than 1"), (sums == 0, "are all 0")):
        if wrong.any():
            first = place(int(np.flatnonzero(wrong)[0]))
            _warn(f"{path}: `label_probs` of {wrong.sum()} of {len(values)} detections {what}, first {first}")


def _keys(document: dict[str, Any]) -> str:
    if "detections" in document:
        return "something else"
    return f"only {_some(list(document))}" if document else "nothing"


def _some(names: Sequence[Any]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(shown(name) for name in names[:_MOST_NAMES]) + more


def _warn(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=4)


def write_rvc1(path: str | Path, detections: Iterable[Detections], classes: Sequence[str]) -> None:
    """Write detections as an RVC1 file, atomically; ``classes`` are those of the labels 1, 2, ...

    A background class is written first. Of a 4 x 4 covariance the blocks of the corners are kept: the format has no
    place for the covariance between corners. Where all are 0 nothing is lost.

    Args:
        path: The JSON file.
        detections: Detections of each image, in rising order of the images' ids.
        classes: Names of the classes, index k - 1 for label k.

    Raises:
        ValueError: A label without a class.
    """

    def row(detected: Detections, probabilities: list[list[float]], index: int) -> dict[str, Any]:
        covariance = detected.covariances[index]
        corners = [covariance[:2, :2].tolist(), covariance[2:, 2:].tolist()]
        return {"bbox": detected.boxes[index].tolist(), "covars": corners, "label_probs": probabilities[index]}

    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write(f'{{"classes": {json.dumps([BACKGROUND, *classes])}, "detections": [')
        for number, detected in enumerate(detections):
            probabilities = _all_probabilities(detected, len(classes) + 1)
            rows = [row(detected, probabilities, index) for index in range(len(detected))]
            file.write(f"{',' if number else ''}\n{json.dumps(rows, allow_nan=False)}")
        file.write("\n]}\n")


def write_coco_results(
    path: str | Path, detections: Iterable[Detections], *, image_ids: Sequence[int], category_ids: Sequence[int]
) -> None:
    """Write detections as COCO's results with covariances, atomically; pycocotools reads them as usual.

    Args:
        path: The JSON file.
        detections: Detections of each image.
        image_ids: Ids of the images.
        category_ids: Ids of the categories, index k - 1 for label k.

    Raises:
        ValueError: A label without a category, or another number of images.
    """
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write("[")
        first = True
        for image, detected in zip(image_ids, detections, strict=True):
            for row in _results(detected, int(image), category_ids):
                file.write(f"{'' if first else ','}\n{json.dumps(row, allow_nan=False)}")
                first = False
        file.write("\n]\n")


def _results(detected: Detections, image: int, category_ids: Sequence[int]) -> list[dict[str, Any]]:
    _check_labels(detected, len(category_ids))
    boxes = torch.cat([detected.boxes[:, :2], detected.boxes[:, 2:] - detected.boxes[:, :2]], 1).tolist()
    rows = []
    for index, label in enumerate(detected.labels.tolist()):
        row = {"image_id": image, "category_id": int(category_ids[label - 1]), "bbox": boxes[index]}
        row |= {"score": float(detected.scores[index]), "covariance": detected.covariances[index].tolist()}
        if detected.label_probs is not None:
            row["label_probs"] = _all_probabilities(detected, len(category_ids) + 1)[index][1:]
        rows.append(row)
    return rows


def _all_probabilities(detected: Detections, classes: int) -> list[list[float]]:
    """Probabilities of the background and of all classes, of each detection."""
    _check_labels(detected, classes - 1)
    if detected.label_probs is None:
        whole = torch.zeros(len(detected), classes, dtype=torch.float64)
        whole[torch.arange(len(detected)), detected.labels.cpu()] = detected.scores.detach().cpu().double()
        return whole.tolist()
    if detected.label_probs.shape[1] != classes:
        raise ValueError(
            f"expected `detections` with label_probs of {classes} columns, the background and {classes - 1} classes, "
            f"got {detected.label_probs.shape[1]}"
        )
    return detected.label_probs.tolist()


def _check_labels(detected: Detections, classes: int) -> None:
    labels = detected.labels
    if len(labels) and not bool(((labels >= 1) & (labels <= classes)).all()):
        wrong = labels[(labels < 1) | (labels > classes)][0]
        raise ValueError(f"expected `detections` with labels from 1 to {classes}, got {int(wrong)}")
