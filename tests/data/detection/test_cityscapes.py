"""Cityscapes: boxes from maps of instances and polygons, groups, masks, splits, bad files; also of a street world."""

import json

import numpy as np
import pytest
from detection_files import write_city
from numpy.testing import assert_array_equal

from fcal import data
from fcal.data.detection import by_name, cityscapes
from fcal.data.street import StreetConfig, street_frame
from fcal.data.street.cityscapes_layout import instance_ids
from fcal.data.street.writing import write_street

STREET = StreetConfig(frames=10, frames_per_drive=2, seed=4, height=48, width=156)
NAMES = {24: 1, 25: 2, 26: 3, 27: 4, 28: 5, 31: 6, 32: 7, 33: 8}  # number in maps: label


def ids_of(shape=(32, 64), **rectangles):
    """A map of road with rectangles: name of a number -> rows and columns."""
    ids = np.full(shape, 7)
    for number, (top, bottom, left, right) in rectangles.items():
        ids[top:bottom, left:right] = int(number[1:])
    return ids


def polygon(label, *points):
    return {"label": label, "polygon": [list(point) for point in points]}


def target_of(folder, ids, objects=None, **options):
    write_city(folder, ids, objects)
    return cityscapes(folder, ["train"], **options)[0]["target"]


@pytest.mark.parametrize(("number", "label"), NAMES.items())
def test_instance_is_a_box_around_its_pixels(tmp_path, number, label):
    target = target_of(tmp_path, ids_of(**{f"n{1000 * number + 3}": (5, 9, 10, 20)}))
    assert_array_equal(target["boxes"], [[10, 5, 20, 9]])
    assert target["labels"].tolist() == [label]
    assert (target["ignored"].tolist(), target["crowd"].tolist()) == ([False], [False])


def test_boxes_are_those_of_brute_force(tmp_path):
    rng = np.random.default_rng(0)
    ids = np.where(rng.random((32, 64)) < 0.3, rng.choice([24000, 24001, 26000, 33005], (32, 64)), 7)
    target = target_of(tmp_path, ids)
    for box, number in zip(target["boxes"], target["instance"].tolist(), strict=True):
        rows, columns = np.nonzero(ids == number)
        assert_array_equal(box, [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
    assert target["instance"].tolist() == [24000, 24001, 26000, 33005]


def test_group_in_a_map_is_an_ignored_crowd_for_each_part(tmp_path):
    target = target_of(tmp_path, ids_of(n24=(5, 9, 10, 20)) + ids_of(n24=(2, 4, 40, 50)) - 7)
    assert_array_equal(target["boxes"], [[10, 5, 20, 9], [40, 2, 50, 4]])
    assert target["labels"].tolist() == [1, 1]
    assert target["ignored"].tolist() == target["crowd"].tolist() == [True, True]


def test_trailer_is_an_ignored_region_of_every_class(tmp_path):
    target = target_of(tmp_path, ids_of(n30001=(5, 9, 10, 20)))
    assert target["labels"].tolist() == list(range(1, 9))
    assert bool(target["ignored"].all())
    assert bool(target["crowd"].all())


def test_polygons_are_boxes_around_their_vertices(tmp_path):
    objects = [
        polygon("road", (0, 0), (63, 0), (63, 31)),
        polygon("car", (10, 5), (19, 5), (15, 8)),
        polygon("persongroup", (30, 2), (33, 9), (31, 4)),
        polygon("polegroup", (1, 1), (2, 2)),
        polygon("caravan", (50, 5), (59, 14)),
        {**polygon("bus", (0, 0), (9, 9)), "deleted": 1},
    ]
    target = target_of(tmp_path, ids_of(), objects, source="polygons")
    assert_array_equal(target["boxes"][:2], [[10, 5, 20, 9], [30, 2, 34, 10]])
    assert target["labels"].tolist() == [3, 1, 1, 2, 3, 4, 5, 6, 7, 8]
    assert target["ignored"].tolist() == target["crowd"].tolist() == [False] + [True] * 9
    assert_array_equal(target["boxes"][2:], [[50, 5, 60, 15]] * 8)


def test_masks_are_the_visible_pixels(tmp_path):
    ids = ids_of(n26000=(5, 15, 10, 30), n24000=(8, 20, 20, 25), n24=(25, 28, 40, 50))
    target = target_of(tmp_path, ids, masks=True)
    assert_array_equal(target["masks"], np.stack([ids == number for number in target["instance"].tolist()]))


def test_groups_are_cities_and_names_those_of_images(tmp_path):
    write_city(tmp_path, ids_of(), city="ulm", number=3)
    write_city(tmp_path, ids_of(n26000=(5, 9, 10, 20)), city="bonn")
    frames = cityscapes(tmp_path, ["train"])
    assert frames.group_names == ["bonn", "ulm"]
    assert frames.names == ["bonn_000000_000000_leftImg8bit", "ulm_000000_000003_leftImg8bit"]
    assert len(frames[1]["target"]["boxes"]) == 0  # an image without objects counts


# Splits


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """119 training images of 17 cities (a 25th of Cityscapes' 2975) and 20 to test on."""
    folder = tmp_path_factory.mktemp("cities")
    for number in range(119):
        write_city(folder, ids_of((8, 16)), city=f"city{number % 17:02d}", number=number)
    for number in range(20):
        write_city(folder, ids_of((8, 16)), part="val", city=f"other{number % 3}", number=number)
    return folder


def test_split_of_the_paper_tests_on_the_folder_val(tree):
    splits = by_name("cityscapes")(root=str(tree))
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [100, 19, 20]
    assert {name.partition("_")[0] for name in splits.test.names} == {"other0", "other1", "other2"}
    assert not set(splits.train.names) & set(splits.validation.names)
    assert splits.train.names != by_name("cityscapes")(root=str(tree), seed=1).train.names


def test_split_by_city_has_no_city_in_common(tree):
    splits = data.by_name("cityscapes")(root=str(tree), split="cities", size=[4, 8])
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [98, 21, 20]
    assert not set(splits.train.groups) & set(splits.validation.groups)
    assert splits.train[0]["input"].shape == (3, 4, 8)


# Bad files


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            {"imgHeight": 32, "imgWidth": 64},
            "polygons.json polygons of Cityscapes with the key 'objects', got the keys",
        ),
        ({"imgHeight": "32", "imgWidth": 64, "objects": []}, "polygons.json with an integer `imgHeight`, got '32'"),
        ({"imgHeight": 32, "imgWidth": 64, "objects": {}}, "polygons.json with a list `objects`, got {}"),
        (
            {"imgHeight": 32, "imgWidth": 64, "objects": [3]},
            "object 0 of .*polygons.json with a label and a polygon, got 3",
        ),
        (
            {"imgHeight": 32, "imgWidth": 64, "objects": [polygon("cat", (1, 1), (2, 2))]},
            "object 0 of .*polygons.json with a class among 'person', .*, got 'cat'",
        ),
        (
            {"imgHeight": 32, "imgWidth": 64, "objects": [polygon("car", (1,), (2, 2))]},
            r"object 0 of .*polygons.json with a polygon of points \[x, y\], got",
        ),
        (
            {"imgHeight": 32, "imgWidth": 64, "objects": [polygon("car")]},
            r"with a polygon of points \[x, y\], got \[\]",
        ),
        (
            {"imgHeight": 32, "imgWidth": 64, "objects": [polygon("car", (1, "x"), (2, 2))]},
            "object 0 of .*polygons.json with numbers as vertices, got 'x'",
        ),
        ({"imgHeight": 16, "imgWidth": 32, "objects": []}, "size that their labels state, got 1 of 1 others"),
    ],
)
def test_polygons_of_another_schema_are_refused(tmp_path, document, message):
    write_city(tmp_path, ids_of())
    next(tmp_path.rglob("*polygons.json")).write_text(json.dumps(document))
    with pytest.raises(ValueError, match=message):
        cityscapes(tmp_path, ["train"], source="polygons")


def test_map_with_an_unknown_class_is_refused(tmp_path):
    write_city(tmp_path, ids_of(n19002=(1, 3, 1, 3)))
    with pytest.raises(ValueError, match="instanceIds.png with instances of the classes 24 person, .*, got class 19"):
        cityscapes(tmp_path, ["train"])


def test_missing_images_and_labels_are_counted(tmp_path):
    for number in range(3):
        write_city(tmp_path, ids_of(), number=number)
    next(tmp_path.rglob("*000000_leftImg8bit.png")).unlink()
    next(tmp_path.rglob("*000001_gtFine_instanceIds.png")).unlink()
    with pytest.warns(UserWarning, match="left out") as caught:
        assert len(cityscapes(tmp_path, ["train"])) == 1
    messages = [str(each.message) for each in caught]
    assert "left out 1 that cannot be read" in messages[0]
    assert "left out 1 images without" in messages[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"folders": ["val"]}, r"expected .*gtFine/val with files CITY/\*_gtFine_instanceIds.png, got none"),
        ({"source": "labels"}, "expected `source` one of 'instances', 'polygons', got 'labels'"),
        ({"source": "polygons", "masks": True}, "expected `source` 'instances' with `masks`, got 'polygons'"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, options, message):
    write_city(tmp_path, ids_of())
    with pytest.raises(ValueError, match=message):
        cityscapes(tmp_path, **{"folders": ["train"], **options})


# A street world


@pytest.fixture(scope="module")
def streets(tmp_path_factory):
    return write_street(tmp_path_factory.mktemp("street"), STREET, "cityscapes").folder


def test_street_world_is_read_as_it_was_written(streets):
    splits = by_name("cityscapes")(root=str(streets), split="folders", masks=True, flip=False)
    items = [part[index] for part in (splits.train, splits.validation, splits.test) for index in range(len(part))]
    assert len(items) == STREET.frames
    count = 0
    for index, item in enumerate(items):
        frame = street_frame(STREET, index)
        assert_array_equal((255 * item["input"]).round().permute(1, 2, 0), frame.image)
        ids, target = instance_ids(frame), item["target"]
        numbers = np.unique(ids[ids >= 1000])
        assert target["instance"].tolist() == numbers.tolist()
        assert target["labels"].tolist() == [NAMES[number // 1000] for number in numbers.tolist()]
        for number, box, mask in zip(numbers, target["boxes"], target["masks"], strict=True):
            rows, columns = np.nonzero(ids == number)
            assert_array_equal(box, [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
            assert_array_equal(mask, ids == number)
            count += 1
    assert count > 20


def test_polygons_of_a_street_world_lie_in_the_boxes_of_their_objects(streets):
    whole, pieces = (cityscapes(streets, source=source) for source in ("instances", "polygons"))
    assert len(whole) == len(pieces) == 8
    for first, second in zip(whole.images, pieces.images, strict=True):
        assert set(first.labels.tolist()) == set(second.labels.tolist())
        for label in first.labels.unique().tolist():
            outer, inner = (image.boxes[image.labels == label] for image in (first, second))
            within = (inner[:, None, :2] >= outer[:, :2]).all(-1) & (inner[:, None, 2:] <= outer[:, 2:]).all(-1)
            assert bool(within.any(1).all())
