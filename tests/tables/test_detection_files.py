"""Tests of detections and truths in JSON files: round trips, and one clear line for what is wrong."""

import json
import math
import re
import warnings

import numpy as np
import pytest
import torch

from fcal.metrics.detection import Detections
from fcal.tables import (
    TableError,
    json_records,
    read_coco_results,
    read_coco_truths,
    read_rvc1,
    write_coco_results,
    write_rvc1,
)

BOX = [5.0, 6.0, 25.0, 16.0]
EYE = [[4.0, 1.0], [1.0, 9.0]]


def coco(**changed):
    document = {
        "images": [{"id": 7, "height": 40, "width": 60}, {"id": 2, "height": 30, "width": 50}],
        "categories": [{"id": 30, "name": "Van"}, {"id": 3, "name": "car"}],
        "annotations": [
            {"id": 1, "image_id": 7, "category_id": 3, "bbox": [5, 6, 20, 10]},
            {"id": 2, "image_id": 2, "category_id": 30, "bbox": [1, 2, 3, 4], "iscrowd": 1},
            {"id": 3, "image_id": 7, "category_id": 30, "bbox": [8, 9, 10, 11]},
        ],
    }
    return document | changed


def rvc1(**changed):
    row = {"bbox": BOX, "covars": [EYE, EYE], "label_probs": [0.1, 0.7, 0.2]}
    return {"classes": ["background", "car", "van"], "detections": [[], [row, row | changed]]}


def result(**changed):
    row = {"image_id": 7, "category_id": 3, "bbox": [5, 6, 20, 10], "score": 0.7, "covars": [EYE, EYE]}
    return {key: value for key, value in (row | changed).items() if value is not None}


@pytest.fixture
def save(tmp_path):
    def saved(document, name="file.json"):
        path = tmp_path / name
        path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
        return path

    return saved


@pytest.fixture
def truths(save):
    return read_coco_truths(save(coco(), "coco.json"))


def detections():
    generator = torch.Generator().manual_seed(0)
    factor = torch.randn(3, 4, 4, generator=generator, dtype=torch.float64)
    probabilities = torch.rand(3, 3, generator=generator, dtype=torch.float64) / 3
    boxes = torch.tensor([BOX, [0.1, 0.2, 9.3, 8.4], [1.0, 2.0, 3.0, 4.0]], dtype=torch.float64)
    labels = probabilities[:, 1:].argmax(1) + 1
    scores = probabilities[torch.arange(3), labels]
    whole = Detections(
        boxes=boxes, covariances=factor @ factor.mT, scores=scores, labels=labels, label_probs=probabilities
    )
    none = Detections.of_sigmas(torch.zeros(0, 4), torch.zeros(0, 4), scores=torch.zeros(0), labels=labels[:0])
    return [none, whole]


def assert_same(one, two, *, label_probs=True):
    assert len(one) == len(two)
    for name in ("boxes", "covariances", "scores", "labels", *(["label_probs"] if label_probs else [])):
        torch.testing.assert_close(getattr(one, name), getattr(two, name))


def test_truths_are_in_rising_order_of_image_ids_with_labels_in_that_of_categories(truths):
    assert truths.image_ids == (2, 7)
    assert truths.classes == ("car", "Van")
    assert truths.category_ids == (3, 30)
    assert truths[0].image_size == (30, 50)
    assert truths[0].is_ignored.tolist() == [True]
    assert truths[1].labels.tolist() == [1, 2]
    assert truths[1].boxes.tolist() == [[5.0, 6.0, 25.0, 16.0], [8.0, 9.0, 18.0, 20.0]]
    assert [len(each) for each in truths[:]] == [1, 2]
    assert len(truths[-1]) == 2


def test_images_without_objects_are_kept(save):
    truths = read_coco_truths(save(coco(annotations=[])))
    assert [len(each) for each in truths] == [0, 0]


def test_objects_that_are_empty_or_outside_are_counted_in_a_warning(save):
    boxes = [[5, 6, 20, 10], [5, 6, 0, 10], [5, 6, 2, -1], [70, 6, 5, 5], [-9, -9, 5, 5], [-9, -9, 15, 15]]
    annotations = [{"image_id": 7, "category_id": 3, "bbox": box} for box in boxes]
    with pytest.warns(UserWarning, match="4 of 6 objects are empty or outside of their image and left out, the first"):
        truths = read_coco_truths(save(coco(annotations=annotations)))
    assert len(truths[1]) == 2


def test_masks_of_polygons_and_runs_are_those_of_pycocotools_and_boxes_fill_in(save):
    mask = pytest.importorskip("pycocotools.mask", reason="needs pycocotools")
    triangle = [[5.0, 6.0, 25.0, 6.0, 5.0, 16.0]]
    pixels = np.zeros((40, 60), dtype=np.uint8, order="F")
    pixels[10:14, 20:33] = 1
    runs = mask.encode(pixels)
    base = {"image_id": 7, "category_id": 3, "bbox": [5, 6, 20.5, 10]}
    annotations = [
        base | {"segmentation": triangle},
        base | {"segmentation": {"size": runs["size"], "counts": runs["counts"].decode()}},
        base,
    ]
    masks = read_coco_truths(save(coco(annotations=annotations)), masks=True)[1].masks
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of pycocotools with NumPy 2.4
        drawn = mask.decode(mask.merge(mask.frPyObjects(triangle, 40, 60)))
    np.testing.assert_array_equal(masks[0].numpy(), drawn > 0)
    np.testing.assert_array_equal(masks[1].numpy(), pixels > 0)
    box = np.zeros((40, 60), dtype=bool)
    box[6:16, 5:26] = True
    np.testing.assert_array_equal(masks[2].numpy(), box)


def test_masks_of_more_pixels_than_fit_into_memory_are_refused_with_the_image(save):
    pytest.importorskip("pycocotools.mask", reason="needs pycocotools")
    images = [{"id": 2, "height": 16384, "width": 16384}, {"id": 7, "height": 40, "width": 60}]
    annotations = [{"image_id": 2, "category_id": 3, "bbox": [1, 2, 3, 4]}] * 9
    path = save(coco(images=images, annotations=annotations))
    assert len(read_coco_truths(path)[0]) == 9
    with pytest.raises(
        TableError, match=r"masks of at most 2,147,483,648 pixels .* got 2415919104 in image 0 \(1 of 2"
    ):
        read_coco_truths(path, masks=True)


def test_rvc1_files_give_back_what_was_written_but_covariances_between_corners(tmp_path, truths):
    write_rvc1(tmp_path / "d.json", detections(), truths.classes)
    read = read_rvc1(tmp_path / "d.json", truths)
    expected = detections()[1]
    blocks = torch.block_diag(torch.ones(2, 2), torch.ones(2, 2)).double()
    same = Detections(
        boxes=expected.boxes,
        covariances=expected.covariances * blocks,
        scores=expected.scores,
        labels=expected.labels,
        label_probs=expected.label_probs,
    )
    assert len(read[0]) == 0
    assert_same(read[1], same)


def test_coco_results_give_back_what_was_written(tmp_path, truths):
    options = {"image_ids": truths.image_ids, "category_ids": truths.category_ids}
    write_coco_results(tmp_path / "d.json", detections(), **options)
    read = read_coco_results(tmp_path / "d.json", truths)
    assert len(read[0]) == 0
    assert_same(read[1], detections()[1], label_probs=False)
    torch.testing.assert_close(read[1].label_probs[:, 1:], detections()[1].label_probs[:, 1:])


def test_detections_without_probabilities_of_classes_are_written_with_their_score(tmp_path, truths):
    labels, scores = torch.tensor([2, 1]), torch.tensor([0.5, 0.25])
    plain = Detections.of_sigmas(torch.tensor([BOX, BOX]), torch.ones(2, 4), scores=scores, labels=labels)
    write_rvc1(tmp_path / "d.json", [plain, plain], truths.classes)
    document = json.loads((tmp_path / "d.json").read_text())
    assert document["classes"] == ["background", "car", "Van"]
    assert [row["label_probs"] for row in document["detections"][0]] == [[0, 0, 0.5], [0, 0.25, 0]]


def test_a_failed_write_leaves_the_old_file(tmp_path, truths):
    path = tmp_path / "d.json"
    path.write_text("old")
    wrong = Detections.of_sigmas(torch.tensor([BOX]), torch.ones(1, 4), scores=torch.ones(1), labels=torch.tensor([9]))
    with pytest.raises(ValueError, match="expected `detections` with labels from 1 to 2, got 9"):
        write_rvc1(path, [*detections(), wrong], truths.classes)
    with pytest.raises(ValueError, match="zip"):
        write_coco_results(path, detections(), image_ids=[1], category_ids=truths.category_ids)
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir() if each.name != "coco.json"] == ["d.json"]


def test_classes_are_found_by_name_in_any_order_and_case(save, truths):
    document = rvc1() | {"classes": ["VAN", "__background__", "Car"]}
    read = read_rvc1(save(document), truths)[1]
    assert read.label_probs[0].tolist() == [0.7, 0.2, 0.1]
    assert (read.labels[0].item(), read.scores[0].item()) == (1, 0.2)


def test_unknown_and_missing_classes_are_counted_in_warnings(save, truths):
    document = rvc1() | {"classes": ["car", "boat", "tram"]}
    with (
        pytest.warns(UserWarning, match="2 of 3 classes are not in the truth and count nothing: 'boat', 'tram'"),
        pytest.warns(UserWarning, match="1 of 2 classes of the truth are missing: 'Van'"),
    ):
        read = read_rvc1(save(document), truths)[1]
    assert read.label_probs[0].tolist() == [0.0, 0.1, 0.0]
    assert read.labels.tolist() == [1, 1]


def test_inclusive_corners_end_one_pixel_later(save, truths):
    assert read_rvc1(save(rvc1()), truths, inclusive=True)[1].boxes[0].tolist() == [5.0, 6.0, 26.0, 17.0]


def test_corners_have_the_covariance_of_their_block(save, truths):
    other = [[1.0, 0.5], [0.5, 2.0]]
    read = read_rvc1(save(rvc1(covars=[EYE, other])), truths)[1]
    expected = torch.block_diag(torch.tensor(EYE), torch.tensor(other)).double()
    torch.testing.assert_close(read.covariances[1], expected)


def test_results_keep_their_order_within_images_and_may_have_a_whole_covariance(save, truths):
    whole = (np.eye(4) + 0.5).tolist()
    rows = [result(score=0.1, covariance=whole, covars=None), result(image_id=2), result(score=0.9)]
    read = read_coco_results(save(rows), truths)
    assert [len(each) for each in read] == [1, 2]
    assert read[1].scores.tolist() == [0.1, 0.9]
    torch.testing.assert_close(read[1].covariances[0], torch.tensor(whole).double())
    assert read[1].boxes[0].tolist() == BOX
    assert read[1].label_probs is None


def test_results_of_unknown_categories_are_counted_in_a_warning(save, truths):
    with pytest.warns(UserWarning, match="2 of 3 results are left out: no category 9, 5 in the truth"):
        read = read_coco_results(save([result(category_id=9), result(), result(category_id=5)]), truths)
    assert [len(each) for each in read] == [0, 1]


def test_files_without_variances_and_empty_boxes_are_warned_of(save, truths):
    with pytest.warns(UserWarning, match="no box has a variance"):
        read_coco_results(save([result(covars=None)]), truths)
    with pytest.warns(UserWarning, match="1 of 2 boxes have x2 <= x1 or y2 <= y1, first image 1, detection 1, counted"):
        read_rvc1(save(rvc1(bbox=[9.0, 9.0, 9.0, 12.0])), truths)


def test_crowds_may_be_marked_by_truth_values(save):
    annotations = [ANNOTATION | {"iscrowd": True}, ANNOTATION | {"iscrowd": False, "ignore": 1}, ANNOTATION]
    truths = read_coco_truths(save(coco(annotations=annotations)))
    assert truths[1].is_ignored.tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("probabilities", "message"),
    [([0.5, 0.9, 0.2], "sum to more than 1"), ([0.0, 0.0, 0.0], "are all 0")],
)
def test_probabilities_that_are_no_law_are_counted_in_a_warning(probabilities, message, save, truths):
    with pytest.warns(UserWarning, match=f"`label_probs` of 1 of 2 detections {message}, first image 1, detection 1"):
        read = read_rvc1(save(rvc1(label_probs=probabilities)), truths)
    assert read[1].label_probs[1].tolist() == probabilities
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_rvc1(save(rvc1(label_probs=[0.3, 0.3, 0.4005])), truths)  # rounded


WRONG_RVC1 = {
    "no object": ([], "an object with `classes` and `detections`, as RVC1 files are, got a JSON list"),
    "another schema": (
        {"images": []},
        "with `detections`, a list for each image, as RVC1 files have, got only 'images'",
    ),
    "no lists": (rvc1() | {"detections": [1, 2]}, "with `detections`, a list for each image"),
    "too few": (rvc1() | {"detections": [[]]}, "detections of the 2 images of"),
    "no classes": ({"detections": [[], []]}, "with `classes`, a list of names, got none"),
    "same classes": (rvc1() | {"classes": ["car", "Car ", "x"]}, "with different `classes`, got 'car' twice"),
    "no class in common": (rvc1() | {"classes": ["a", "b", "none"]}, "a class of"),
    "no detection": (
        rvc1() | {"detections": [[], [3]]},
        "an object as image 1, detection 0, counted from 0, got number",
    ),
    "no box": (
        rvc1() | {"detections": [[], [{"label_probs": []}]]},
        "`bbox` in image 1, detection 0, counted from 0, got only 'label_probs'",
    ),
    "three numbers": (rvc1(bbox=[1, 2, 3]), "`bbox` of 4 numbers, got [1, 2, 3] in image 1, detection 1"),
    "text": (rvc1(bbox=[1, 2, 3, "4"]), "`bbox` of 4 numbers, got [1, 2, 3, '4'] in image 1, detection 1"),
    "null": (rvc1(bbox=None), "`bbox` of 4 numbers, got None in image 1, detection 1"),
    "nan": (rvc1(bbox=[1, 2, 3, math.nan]), "`bbox` of 4 numbers, finite, got [1, 2, 3, nan] in image 1, detection 1"),
    "infinite": (rvc1(covars=[EYE, [[1, 0], [0, math.inf]]]), "`covars` of two 2 x 2 matrices, finite, got"),
    "few probabilities": (rvc1(label_probs=[0.5]), "`label_probs` of 3 numbers, got [0.5] in image 1, detection 1"),
    "large": (rvc1(label_probs=[0, 1.5, 0]), "`label_probs` within [0, 1], got [0, 1.5, 0] in image 1, detection 1"),
    "shape": (rvc1(covars=[EYE]), "`covars` of two 2 x 2 matrices, got [[[4, 1], [1, 9]]] in image 1, detection 1"),
    "asymmetric": (rvc1(covars=[EYE, [[1, 0.5], [0, 1]]]), "symmetric covariances, got"),
    "indefinite": (rvc1(covars=[EYE, [[1, 2], [2, 1]]]), "positive semi-definite covariances, got"),
    "negative": (rvc1(covars=[[[-1, 0], [0, 1]], EYE]), "variances >= 0, got"),
    "slightly negative": (rvc1(covars=[[[-1e-9, 0], [0, 1e6]], EYE]), "variances >= 0, got"),
    "huge variance": (
        rvc1(covars=[[[1e150, 0], [0, 1]], EYE]),
        "variances 0 or from 1e-20 to 1e+20 square pixels, got",
    ),
    "tiny variance": (rvc1(covars=[[[1e-150, 0], [0, 1]], EYE]), "variances 0 or from 1e-20 to 1e+20 square pixels"),
    "far corner": (rvc1(bbox=[0, 0, 1e300, 1e300]), "`bbox` within 1e+07 pixels of the origin, got"),
    "true as a number": (
        rvc1(bbox=[True, 0, 5, 5]),
        "`bbox` of 4 numbers, got [True, 0, 5, 5] in image 1",
    ),
}


@pytest.mark.parametrize("name", WRONG_RVC1)
def test_wrong_rvc1_files_are_refused_in_one_line_with_the_file_and_the_place(name, save, truths):
    document, message = WRONG_RVC1[name]
    path = save(document)
    with pytest.raises(TableError, match=re.escape(message)) as error:
        read_rvc1(path, truths)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600


def test_the_place_of_a_covariance_that_is_not_positive_semidefinite_is_named(save, truths):
    with pytest.raises(TableError, match=r"in image 1, detection 1, counted from 0 \(1 of 2\)"):
        read_rvc1(save(rvc1(covars=[EYE, [[1, 2], [2, 1]]])), truths)


WRONG_RESULTS = {
    "rvc1": (rvc1(), "a list of results, as COCO's are, got a JSON object"),
    "unknown image": ([result(), result(image_id=5)], "`image_id` of"),
    "image as text": ([result(image_id="7")], "got '7' in result 0 of image '7', counted from 0"),
    "category as fraction": ([result(category_id=3.0)], "a whole number `category_id`, got 3.0 in result 0, counted"),
    "category as text": (
        [result(category_id="3")],
        "a whole number `category_id`, got '3' in result 0,",
    ),
    "score true": ([result(), result(score=True)], "`score` a number, got True in result 1 of image 7"),
    "no score": ([result(score=None)], "`score` in result 0, counted from 0, got only 'image_id', 'category_id'"),
    "score": ([result(score=1.5)], "`score` within [0, 1], got 1.5 in result 0 of image 7"),
    "some probabilities": (
        [result(label_probs=[0.1, 0.2]), result()],
        "`label_probs` of 2 numbers in all results or none, got None in result 1",
    ),
    "covariance": ([result(covariance=[[1]])], "`covariance` of 4 x 4 numbers, got [[1]] in result 0"),
}


@pytest.mark.parametrize("name", WRONG_RESULTS)
def test_wrong_results_are_refused_in_one_line(name, save, truths):
    document, message = WRONG_RESULTS[name]
    with pytest.raises(TableError, match=re.escape(message)):
        read_coco_results(save(document), truths)


ANNOTATION = {"image_id": 7, "category_id": 3, "bbox": [1, 2, 3, 4]}
WRONG_TRUTHS = {
    "rvc1": (rvc1(), "with a list `images`, got only 'classes', 'detections'"),
    "no list": (coco(images=3), "with a list `images`, got number"),
    "size": (coco(images=[{"id": 7}]), "`height` in images[0], got only 'id'"),
    "no pixels": (coco(images=[{"id": 7, "height": 0, "width": 3}]), "images of whole pixels, at least 1, got [0, 3]"),
    "pixels": (
        coco(images=[{"id": 7, "height": 30000, "width": 30000}]),
        "images of at most 268,435,456 pixels, 65,536 on a side, got [30000, 30000] in image 7",
    ),
    "side": (coco(images=[{"id": 7, "height": 1, "width": 10**8}]), "65,536 on a side, got [1, 1e+08] in image 7"),
    "id": (coco(images=[{"id": "a", "height": 1, "width": 3}]), "a whole number `id` in images[0], got 'a'"),
    "twice": (coco(categories=[{"id": 3, "name": "a"}, {"id": 3, "name": "b"}]), "with one category of each id, got 3"),
    "image": (
        coco(annotations=[ANNOTATION | {"image_id": 8}]),
        "`image_id` of one of the images, got 8 in annotation 0",
    ),
    "category": (coco(annotations=[ANNOTATION | {"category_id": 8}]), "`category_id` of one of the categories, got 8"),
    "box": (coco(annotations=[ANNOTATION | {"bbox": [1, 2]}]), "`bbox` of 4 numbers, got [1, 2] in annotation 0"),
    "same names": (
        coco(categories=[{"id": 3, "name": "car"}, {"id": 30, "name": "Car "}]),
        "with one category of each name, got 'car' twice",
    ),
    "crowd": (
        coco(annotations=[ANNOTATION, ANNOTATION | {"iscrowd": "x"}]),
        "`iscrowd` 0 or 1, got 'x' in annotation 1",
    ),
    "ignore": (coco(annotations=[ANNOTATION | {"ignore": 2}]), "`ignore` 0 or 1, got 2 in annotation 0"),
    "digits": ('{"images": ' + "9" * 5000 + "}", "a JSON file, got an error: Exceeds the limit"),
    "no json": ("{", "a JSON file, got an error: Expecting property name"),
    "deep": ("[" * 100_000, "a JSON file, got lists nested too deeply"),
}


@pytest.mark.parametrize("name", WRONG_TRUTHS)
def test_wrong_truths_are_refused_in_one_line(name, save):
    document, message = WRONG_TRUTHS[name]
    with pytest.raises(TableError, match=re.escape(message)):
        read_coco_truths(save(document))


def test_files_that_cannot_be_read_are_refused(tmp_path, save, monkeypatch):
    with pytest.raises(TableError, match="a file to read, got No such file"):
        read_coco_truths(tmp_path / "nowhere.json")
    with pytest.raises(TableError, match="a regular file, got a folder"):
        read_coco_truths(tmp_path)
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(TableError, match="a JSON file, got"):
        read_coco_truths(tmp_path / "bytes.json")
    monkeypatch.setattr(json_records, "MOST_BYTES", 10)
    with pytest.raises(TableError, match="of at most 2 GiB; split it by images, got 0.0 GiB"):
        read_coco_truths(save(coco()))


def test_attributes_of_annotations_are_those_of_the_objects_of_an_image(save):
    document = coco()
    document["annotations"][0] |= {"truncation": 0.25, "occlusion": 1}
    document["annotations"][2] |= {"truncation": None}
    truths = read_coco_truths(save(document))  # images in rising order of their ids: 2, then 7
    of_crowd, of_both = truths.attributes(0), truths.attributes(1)
    assert set(of_both) == {"truncation", "occlusion"}  # no annotation has a distance
    np.testing.assert_equal(of_crowd["truncation"], [math.nan])
    np.testing.assert_equal(of_both["truncation"], [0.25, math.nan])
    np.testing.assert_equal(of_both["occlusion"], [1.0, math.nan])


@pytest.mark.parametrize(
    ("name", "value"),
    [("truncation", 1.5), ("truncation", -0.5), ("occlusion", 4), ("occlusion", -2), ("distance", -3.0)],
)
def test_attribute_out_of_range_is_named_with_its_annotation(save, name, value):
    document = coco()
    document["annotations"][2][name] = value
    with pytest.raises(TableError, match=rf"expected .*`{name}` within .* got {value:g} in annotation 2"):
        read_coco_truths(save(document))


def test_unknown_attributes_are_minus_one_too_and_images_count_from_the_end(save):
    document = coco()
    document["annotations"][0] |= {"truncation": -1, "occlusion": 2}
    truths = read_coco_truths(save(document))
    np.testing.assert_equal(truths.attributes(-1)["occlusion"], truths.attributes(1)["occlusion"])
    assert set(truths.attributes(1)) == {"occlusion"}
    truths.attributes(1)["occlusion"][:] = 9  # a copy
    np.testing.assert_equal(truths.attributes(1)["occlusion"], [2.0, math.nan])
    with pytest.raises(IndexError):
        truths.attributes(2)


@pytest.mark.parametrize("name", [None, True, 5, ["a"], "", "  "])
def test_categories_without_a_name_are_refused(save, name):
    document = coco(categories=[{"id": 30, "name": "Van"}, {"id": 3, "name": name}])
    with pytest.raises(TableError, match="expected .* `name` of every category, a text .* of the category 3"):
        read_coco_truths(save(document))


@pytest.mark.parametrize("value", ["0.5", [0.5], math.inf, True])
def test_attribute_that_is_no_number_is_named_with_its_annotation(save, value):
    document = coco()
    document["annotations"][2]["truncation"] = value
    with pytest.raises(TableError, match=r"expected .*a number `truncation`.*annotation 2"):
        read_coco_truths(save(document))
