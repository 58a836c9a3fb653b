"""Tests of fcal.tables.segmentations: pixels are those of pycocotools, and what it cannot take is refused before."""

import json
import math
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from fcal.tables import TableError, read_coco_truths
from fcal.tables.segmentations import draw, read_segmentation

SIZE = {"height": 40, "width": 60}
PATH = Path("coco.json")


def runs(counts, size=(40, 60)):
    return {"size": list(size), "counts": counts}


def drawn(value):
    return draw(read_segmentation(PATH, value, **SIZE, place="annotation 0"), 40, 60)


def decoded(runs_of_pycocotools):
    mask = pytest.importorskip("pycocotools.mask", reason="needs pycocotools")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of pycocotools with NumPy 2.4
        return mask.decode(runs_of_pycocotools) > 0


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_runs_as_text_are_the_pixels_that_pycocotools_has_encoded(seed, share):
    mask = pytest.importorskip("pycocotools.mask", reason="needs pycocotools")
    pixels = np.asfortranarray(np.random.default_rng(seed).random((40, 60)) < share)
    text = mask.encode(pixels.astype(np.uint8))["counts"].decode()
    np.testing.assert_array_equal(drawn(runs(text)), pixels)


def test_runs_as_numbers_are_the_pixels_of_pycocotools():
    mask = pytest.importorskip("pycocotools.mask", reason="needs pycocotools")
    given = runs([45, 100, 0, 7, 48, 2200])
    expected = decoded(mask.frPyObjects(given, 40, 60))
    assert expected.sum() == 2307
    np.testing.assert_array_equal(drawn(given), expected)


def test_polygons_that_leave_the_image_are_those_of_pycocotools():
    mask = pytest.importorskip("pycocotools.mask", reason="needs pycocotools")
    polygons = [[-60.0, -40, 120, -40, 30, 20], [1, 30, 9, 30, 9, 39, 1, 39]]
    expected = decoded(mask.merge(mask.frPyObjects(polygons, 40, 60)))
    assert 0 < expected.sum() < expected.size
    np.testing.assert_array_equal(drawn(polygons), expected)


@pytest.mark.parametrize("value", [None, []])
def test_no_segmentation_has_no_pixels(value):
    assert not drawn(value).any()


POLYGONS = "`segmentation` of polygons, each a list of at least 6 numbers x, y, x, y, ..., or of runs"
FAR = "`segmentation` with points in or near the image of 40 x 60 pixels"
COUNTS = "`segmentation` of runs with `counts` of 2400 pixels"
WRONG = {
    "text": ("x", POLYGONS),
    "number": (3, POLYGONS),
    "flat": ([1, 2, 3, 4, 5, 6], POLYGONS),
    "two points": ([[1, 2, 3, 4]], POLYGONS),
    "odd": ([[1, 2, 3, 4, 5, 6, 7]], POLYGONS),
    "null": ([[1, 2, 3, 4, 5, None]], POLYGONS),
    "boolean": ([[1, 2, 3, 4, 5, True]], POLYGONS),
    "nan": ([[1, 2, 3, math.nan, 5, 6]], FAR),
    "infinite": ([[1, 2, 3, math.inf, 5, 6]], FAR),
    "far": ([[1e7, 1e7, -1e7, 1e7, 5, 5]], FAR),
    "huge": ([[10**400, 2, 3, 4, 5, 6]], FAR),
    "beyond": ([[121, 2, 3, 4, 5, 6]], FAR),
    "above": ([[1, -41, 3, 4, 5, 6]], FAR),
    "other size": (runs([9], (3, 3)), "`segmentation` of runs with `size` [40, 60], that of the image"),
    "no size": ({"counts": [2400]}, "`segmentation` of runs with `size` [40, 60], that of the image"),
    "no counts": ({"size": [40, 60]}, COUNTS),
    "negative": (runs([2405, -5]), COUNTS),
    "too few": (runs([2399]), COUNTS),
    "too many": (runs([1, 2400]), COUNTS),
    "fractions": (runs([2400.0]), COUNTS),
    "large": (runs([2**63]), COUNTS),
    "garbage": (runs("garbage!!"), COUNTS),
    "no end": (runs("o"), COUNTS),
    "long": (runs("o" * 40 + "0"), COUNTS),
    "empty": (runs(""), COUNTS),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_segmentations_are_refused_with_the_file_and_the_annotation(name):
    value, message = WRONG[name]
    with pytest.raises(TableError, match=re.escape(f"expected `coco.json` {message}, got ")) as error:
        read_segmentation(PATH, value, **SIZE, place="annotation 4")
    assert str(error.value).endswith("in annotation 4")
    assert len(str(error.value)) < 600


def test_files_are_refused_when_they_are_read_and_only_with_masks(tmp_path):
    pytest.importorskip("pycocotools.mask", reason="needs pycocotools")
    bad = {"image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4], "segmentation": [[1, 2, 3, math.nan, 5, 6]]}
    good = {key: value for key, value in bad.items() if key != "segmentation"}
    document = {
        "images": [{"id": 1, **SIZE}],
        "categories": [{"id": 1, "name": "a"}],
        "annotations": [good, bad],
    }
    (tmp_path / "coco.json").write_text(json.dumps(document))
    assert len(read_coco_truths(tmp_path / "coco.json")[0]) == 2
    with pytest.raises(TableError, match="in annotation 1"):
        read_coco_truths(tmp_path / "coco.json", masks=True)
