"""COCO's format: boxes, crowds, categories, splits and bad files, against pycocotools."""

import numpy as np
import pytest
from depth_files import noise_image, write_image
from detection_files import coco_document, write_coco
from numpy.testing import assert_allclose

from fcal import data
from fcal.data.detection import by_name, coco

BOXES = ((2.5, 3.0, 8.0, 6.25), (0.0, 0.0, 24.0, 16.0), (5.0, 5.0, 1.5, 2.0))


def test_boxes_and_categories_are_those_of_pycocotools(tmp_path, capsys):
    pycocotools = pytest.importorskip("pycocotools.coco")
    path, images = write_coco(tmp_path, coco_document(boxes=BOXES))
    frames, reference = coco(path, images), pycocotools.COCO(str(path))
    capsys.readouterr()
    names = [category["name"] for category in reference.loadCats(sorted(reference.getCatIds()))]
    assert frames.classes == tuple(names) == ("cat", "dog")
    for index in range(2):
        target = frames[index]["target"]
        entries = reference.loadAnns(reference.getAnnIds(imgIds=[target["image_id"]]))
        boxes = np.array([entry["bbox"] for entry in entries])
        assert_allclose(target["boxes"], np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1))
        kinds = [reference.loadCats(entry["category_id"])[0]["name"] for entry in entries]
        assert [frames.classes[label - 1] for label in target["labels"].tolist()] == kinds


def test_crowds_are_ignored(tmp_path):
    document = coco_document(1, boxes=BOXES)
    document["annotations"][1]["iscrowd"] = 1
    del document["annotations"][2]["iscrowd"]
    target = coco(*write_coco(tmp_path, document))[0]["target"]
    assert target["ignored"].tolist() == target["crowd"].tolist() == [False, True, False]


def test_image_without_annotations_is_kept_with_its_id(tmp_path):
    frames = coco(*write_coco(tmp_path, coco_document(3, annotations=[])))
    assert [frames[index]["target"]["image_id"] for index in range(3)] == [10, 11, 12]
    assert len(frames[2]["target"]["boxes"]) == 0
    assert frames.groups == [0, 1, 2]


def test_chosen_classes_have_labels_in_their_order(tmp_path):
    paths = write_coco(tmp_path, coco_document(1, boxes=BOXES))
    assert coco(*paths, classes=["dog", "cat"])[0]["target"]["labels"].tolist() == [1, 2, 1]
    frames = coco(*paths, classes=["cat"])
    assert frames[0]["target"]["labels"].tolist() == [1]
    with pytest.raises(ValueError, match="`classes` for .*labels.json with a class among 'cat', 'dog', got 'cow'"):
        coco(*paths, classes=["cow"])


def entries(kind, **changes):
    document = coco_document(1)
    document[kind][0] |= changes
    return document


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"images": []}, "labels.json annotations of COCO with the key 'annotations', got the keys 'images'"),
        (coco_document(images=0, annotations={}), "labels.json with a list `annotations`, got {}"),
        (coco_document(categories=[]), "labels.json with at least 1 category, got none"),
        (
            coco_document(categories=[{"id": 7, "name": "a"}] * 2),
            "category 1 of .*labels.json with an id and a name of its",
        ),
        (entries("categories", id="7"), "category 0 of .*labels.json with an integer `id`, got '7'"),
        (entries("annotations", category_id=5), "annotation 0 of .*labels.json with a category_id among 3, 7, got 5"),
        (entries("annotations", image_id=99), "labels.json with images of all annotations, got none of image_id 99"),
        (
            entries("annotations", bbox=[1, 2, 3]),
            "annotation 0 of .*labels.json with a `bbox` of x, y, width and height",
        ),
        (
            entries("annotations", bbox=[1, 2, 3, None]),
            "annotation 0 of .*labels.json with numbers in its `bbox`, got None",
        ),
        (entries("annotations", bbox=[1, 2, 3, float("nan")]), "with numbers in its `bbox`, got nan"),
        (entries("annotations", iscrowd=2), "annotation 0 of .*labels.json with `iscrowd` 0 or 1, got 2"),
        (entries("annotations", bbox=[1, 2, 0, 3]), "expected boxes with x1 < x2 and y1 < y2, got 1 of 1 others"),
        (
            entries("images", height=17),
            "size that their labels state, got 1 of 1 others .*0.png .* 17 x 24, got 16 x 24",
        ),
        (entries("images", height=None), "image 0 of .*labels.json with an integer `height`, got None"),
    ],
)
def test_document_of_another_schema_is_refused(tmp_path, document, message):
    with pytest.raises(ValueError, match=message):
        coco(*write_coco(tmp_path, document))


@pytest.mark.parametrize("name", ["../0.png", "/etc/passwd", "a\0b"])
def test_file_outside_of_the_folder_is_refused(tmp_path, name):
    paths = write_coco(tmp_path, coco_document(1))
    paths[0].write_text(paths[0].read_text().replace('"0.png"', '"' + name.replace("\0", "\\u0000") + '"'))
    with pytest.raises(ValueError, match="image 0 of .*labels.json with a file_name within .*images, got"):
        coco(*paths)


def test_images_of_one_id_are_refused(tmp_path):
    document = coco_document(2)
    document["images"][1]["id"] = 10
    document["annotations"].pop()
    with pytest.raises(ValueError, match="image 1 of .*labels.json with an id of its own, got 10"):
        coco(*write_coco(tmp_path, document))


def test_missing_images_are_counted(tmp_path):
    paths = write_coco(tmp_path, coco_document(4))
    (paths[1] / "2.png").unlink()
    with pytest.warns(UserWarning, match="expected 4 images of .*labels.json, left out 1 that cannot be read"):
        assert coco(*paths).names == ["0", "1", "3"]
    with pytest.raises(ValueError, match="expected `images` a folder of images, got"):
        coco(paths[0], tmp_path / "nowhere")


# Splits


def write_sets(folder):
    for name, count in (("train", 20), ("val", 4)):
        write_coco(folder, coco_document(count), f"annotations/instances_{name}2017.json", f"{name}2017")
    return folder


def test_splits_hold_out_a_tenth_of_the_training_images(tmp_path):
    splits = by_name("coco")(root=str(write_sets(tmp_path)))
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [18, 2, 4]
    assert not set(splits.train.names) & set(splits.validation.names)
    assert (splits.train.flip, splits.validation.flip, splits.test.flip) == (True, False, False)


def test_splits_take_annotations_to_validate_on(tmp_path):
    write_coco(write_sets(tmp_path), coco_document(3), "annotations/held_out.json", "held_out")
    validation = {"validation": "annotations/held_out.json", "validation_images": "held_out"}
    splits = data.by_name("coco")(root=str(tmp_path), classes=["dog"], **validation)
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [20, 3, 4]
    assert splits.test.classes == ("dog",)
    with pytest.raises(ValueError, match="expected both `validation` and `validation_images`, or neither, got one"):
        by_name("coco")(root=str(tmp_path), validation="a.json")


def test_images_to_test_on_are_not_among_those_to_validate_on(tmp_path):
    validation = {"validation": "annotations/instances_val2017.json", "validation_images": "val2017"}
    message = r"expected no image in both validation and test, got 4 of 4 \(first: .*val2017/0.png\)"
    with pytest.raises(ValueError, match=message):
        by_name("coco")(root=str(write_sets(tmp_path)), **validation)


def test_size_of_items_is_common(tmp_path):
    document = coco_document(2)
    document["images"][1] |= {"height": 20, "width": 30}
    paths = write_coco(tmp_path, document)
    write_image(paths[1] / "1.png", noise_image((20, 30)))
    frames = coco(*paths, size=(10, 12))
    assert [image.shape for image in frames.__getitems__([0, 1])["input"]] == [(3, 10, 12)] * 2
    assert_allclose(frames[1]["target"]["boxes"], [[2.5 * 0.4, 1.5, 10.5 * 0.4, 4.5]], rtol=1e-6)
