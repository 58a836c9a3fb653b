"""Faults of labels: what is dropped, clipped, left out or refused, and how it is reported."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from depth_files import write_image

from fcal.data.detection.annotations import Label, LabelFaults, annotated
from fcal.data.detection.label_files import finite, read_json

SIZE = (20, 30)
GOOD = Label((1.0, 2.0, 5.0, 7.0), 1)


def read(labels, faults=None, classes=2, **options):
    faults = LabelFaults("data") if faults is None else faults
    image = annotated(Path("a.png"), labels, path="a.txt", size=SIZE, classes=classes, faults=faults, **options)
    return image, faults


def test_boxes_within_the_image_are_kept_without_a_warning():
    image, faults = read([GOOD, Label((0.0, 0.0, 30.0, 20.0), 2, ignored=True)])
    faults.report()
    assert image.boxes.tolist() == [[1, 2, 5, 7], [0, 0, 30, 20]]
    assert (image.labels.tolist(), image.ignored.tolist()) == ([1, 2], [False, True])


def test_label_of_all_classes_is_repeated_for_each():
    region = Label((3.0, 3.0, 9.0, 9.0), 0, ignored=True, crowd=True, extras={"distance": 4.0})
    image, _ = read([GOOD._replace(extras={"distance": 1.0}), region], classes=3, kinds={"distance": torch.float32})
    assert image.labels.tolist() == [1, 1, 2, 3]
    assert image.crowd.tolist() == [False, True, True, True]
    assert image.extras["distance"].tolist() == [1.0, 4.0, 4.0, 4.0]
    assert image.boxes[1:].tolist() == [[3, 3, 9, 9]] * 3


def test_extras_of_an_image_without_objects_are_empty():
    image, _ = read([], kinds={"distance": torch.float32, "difficulty": torch.int64})
    assert {name: (tuple(v.shape), v.dtype) for name, v in image.extras.items()} == {
        "distance": ((0,), torch.float32),
        "difficulty": ((0,), torch.int64),
    }


@pytest.mark.parametrize("box", [(5, 5, 5, 9), (5, 5, 9, 5), (9, 5, 5, 9), (5, 9, 9, 5)])
def test_few_boxes_without_extent_are_dropped_with_one_warning(box):
    faults = LabelFaults("data")
    read([GOOD] * 150, faults)
    image, _ = read([GOOD, Label(box, 1), GOOD], faults)
    read([GOOD] * 150 + [Label(box, 1)], faults)
    assert len(image.boxes) == 2
    with pytest.warns(UserWarning, match="expected boxes") as caught:
        faults.report()
    assert [str(each.message) for each in caught] == [
        "expected boxes with x1 < x2 and y1 < y2, dropped 2 of 304 of data (first: a.txt)"
    ]


def test_more_than_a_hundredth_of_boxes_without_extent_is_refused():
    _, faults = read([GOOD] * 98 + [Label((5, 5, 5, 9), 1)] * 2)
    message = r"expected boxes with x1 < x2 and y1 < y2, got 2 of 100 others in data \(first: a.txt\)"
    with pytest.raises(ValueError, match=message):
        faults.report()


@pytest.mark.parametrize("box", [(30, 0, 35, 5), (-9, 0, 0, 5), (0, 25, 5, 30), (0, -5, 5, -2)])
def test_box_outside_of_the_image_is_dropped_and_counted(box):
    image, faults = read([Label(box, 1), GOOD])
    assert image.boxes.tolist() == [[1, 2, 5, 7]]
    with pytest.warns(UserWarning, match=r"dropped 1 of 2 of data that lie outside \(first: a.txt\)"):
        faults.report()


@pytest.mark.parametrize(
    ("box", "clipped"),
    [((-3, 2, 5, 7), (0, 2, 5, 7)), ((20, 5, 33, 25), (20, 5, 30, 20)), ((1, -2, 5, 7), (1, 0, 5, 7))],
)
def test_box_that_reaches_out_of_the_image_is_clipped_and_counted(box, clipped):
    image, faults = read([GOOD, Label(box, 1)])
    assert image.boxes[1].tolist() == list(clipped)
    with pytest.warns(UserWarning, match=r"expected boxes within their image, clipped 1 of 2 of data \(first: a.txt\)"):
        faults.report()


def test_box_that_rounding_moved_out_of_the_image_is_clipped_without_a_warning():
    image, faults = read([Label((-0.5, 0.0, 30.9, 20.0), 1)])
    faults.report()
    assert image.boxes.tolist() == [[0, 0, 30, 20]]


def sizes(folder, faults, count, stated=(8, 12)):
    write_image(folder / "image.png", np.zeros((8, 12, 3), np.uint8))
    return [faults.size_of(folder / "image.png", stated) for _ in range(count)]


def test_size_is_that_of_the_image(tmp_path):
    assert sizes(tmp_path, LabelFaults("data"), 1, None) == [(8, 12)]


def test_few_images_of_another_size_are_left_out_with_a_warning(tmp_path):
    faults = LabelFaults("data")
    assert sizes(tmp_path, faults, 99) == [(8, 12)] * 99
    assert sizes(tmp_path, faults, 1, (8, 13)) == [None]
    message = (
        r"left out 1 of 100 of data \(first: expected .*image.png of the size that its labels state, 8 x 13, got 8 x 12"
    )
    with pytest.warns(UserWarning, match=message):
        faults.report()


def test_many_images_of_another_size_are_refused(tmp_path):
    faults = LabelFaults("data")
    sizes(tmp_path, faults, 9)
    sizes(tmp_path, faults, 1, (9, 12))
    with pytest.raises(
        ValueError, match=r"expected images of the size that their labels state, got 1 of 10 others in data"
    ):
        faults.report()


def test_missing_images_are_reported_once_with_their_number(tmp_path):
    faults = LabelFaults("data")
    sizes(tmp_path, faults, 3)
    assert faults.size_of(tmp_path / "first.png") is None
    assert faults.size_of(tmp_path / "second.png") is None
    with pytest.warns(
        UserWarning, match=r"expected 5 images of data, left out 2 .*first: expected .*first.png"
    ) as caught:
        faults.report()
    assert len(caught) == 1


def test_images_that_are_all_missing_are_refused(tmp_path):
    faults = LabelFaults("data")
    faults.size_of(tmp_path / "first.png")
    with pytest.raises(
        ValueError, match=r"expected 1 images of data, got none \(first: expected .*first.png, got no such"
    ):
        faults.report()


def test_every_kind_of_fault_has_a_warning_of_its_own():
    _, faults = read([GOOD] * 500 + [Label((5, 5, 5, 9), 1), Label((40, 5, 50, 9), 1), Label((-9, 5, 5, 9), 1)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        faults.report()
    assert len(caught) == 3
    assert all("(first: a.txt)" in str(each.message) for each in caught)


@pytest.mark.parametrize("value", ["x", "nan", "inf", True, None, [1], 10**400, "1" * 5000, 1e10])
def test_value_that_is_no_finite_number_is_named(value):
    with pytest.raises(ValueError, match="expected a.txt with a number, got "):
        finite(value, "a number", "a.txt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "a.json labels, got no JSON: Expecting property name"),
        ("[1]", "a.json labels, got JSON of a list"),
        ("{}", "a.json labels with the key 'boxes', got the keys none"),
        ('{"shapes": 1, "version": 2}', "with the key 'boxes', got the keys 'shapes', 'version'"),
        ("[" * 100_000, "a.json labels, got JSON that is nested too deeply"),
        ('{"boxes": ' + "9" * 5000 + "}", "a.json labels, got no JSON"),
    ],
)
def test_document_of_another_schema_is_named(tmp_path, text, message):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_json(path, "labels", ("boxes",))
