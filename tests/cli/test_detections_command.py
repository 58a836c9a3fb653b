"""``fcal evaluate --format rvc1|coco`` as users type it."""

import json
import math

import numpy as np
import pytest
import torch
from metrics.detection.whole_image import random_scene
from numpy.testing import assert_allclose

from fcal.cli import main
from fcal.metrics.detection import (
    BoxOptions,
    Detections,
    Truths,
    average_precision,
    box_calibration,
    consistency,
    detection_quality,
    kitti_average_precision,
    mahalanobis_average_precision,
)
from fcal.tables import write_coco_results, write_rvc1

IMAGES = 6
CLASSES = ("car", "person")


@pytest.fixture
def files(tmp_path):
    """Truth, detections in both formats, and the records that they hold."""
    scenes = [random_scene(i, 4, 3, labels=2, size=(40, 60), least=15) for i in range(IMAGES)]
    found, there = [f for f, _ in scenes], [t for _, t in scenes]
    annotations = [
        {"image_id": 10 + i, "category_id": label, "bbox": [*box[:2], box[2] - box[0], box[3] - box[1]]}
        for i, truths in enumerate(there)
        for box, label in zip(truths.boxes.tolist(), truths.labels.tolist(), strict=True)
    ]
    height, width = there[0].image_size
    document = {
        "images": [{"id": 10 + i, "height": height, "width": width} for i in reversed(range(IMAGES))],
        "categories": [{"id": k + 1, "name": name} for k, name in enumerate(CLASSES)],
        "annotations": annotations,
    }
    (tmp_path / "coco.json").write_text(json.dumps(document))
    write_rvc1(tmp_path / "rvc1.json", found, CLASSES)
    write_coco_results(tmp_path / "results.json", found, image_ids=range(10, 10 + IMAGES), category_ids=(1, 2))
    return tmp_path, found, there


def words(folder, *more, detections="rvc1.json", kind="rvc1"):
    return ["evaluate", "--format", kind, str(folder / detections), "--truth", str(folder / "coco.json"), *more]


@pytest.mark.parametrize(("kind", "detections"), [("rvc1", "rvc1.json"), ("coco", "results.json")])
def test_json_has_the_numbers_of_the_functions(files, capsys, kind, detections):
    folder, found, there = files
    assert main(words(folder, "--json", kind=kind, detections=detections)) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert err == ""
    quality, precision = detection_quality(found, there), mahalanobis_average_precision(found, there)
    assert 0 < quality.pdq < 1
    for name in ("pdq", "pdq_spatial", "pdq_label", "true_positives", "false_positives", "false_negatives"):
        assert_allclose(document[name], getattr(quality, name), rtol=1e-9, err_msg=name)
    mask_free = detection_quality(found, there, spatial="mahalanobis")
    assert_allclose(document["pdq_mahalanobis"]["pdq"], mask_free.pdq, rtol=1e-9)
    assert_allclose(document["mmap"], precision.mmap, rtol=1e-9)
    assert list(document["mmap_classes"]) == list(CLASSES)
    assert_allclose(document["map"], average_precision(found, there).map, rtol=1e-9)
    calibration = box_calibration(found, there, generator=torch.Generator().manual_seed(0)).corners
    assert_allclose([document["nll"], document["ece_z"]], [calibration.nll, calibration.ece_z], rtol=1e-9)
    assert document["consistency"] == consistency(found, there).as_dict()["share"]
    assert (document["n_images"], document["n_detections"], document["n_truths"]) == (IMAGES, 24, 18)


def test_tables_are_printed(files, capsys):
    folder, found, there = files
    assert main(words(folder)) == 0
    out = capsys.readouterr().out
    quality = detection_quality(found, there)
    for text in ("PDQ (spatial)", f"{quality.pdq:.4f}", "mMAP", "0.999", "truths inside", "false negatives", "car"):
        assert text in out


def test_the_table_of_calibration_is_printed_in_full_through_a_pipe(files, capsys):
    folder, found, there = files
    assert main(words(folder)) == 0
    out = capsys.readouterr().out
    report = box_calibration(
        found, there, options=BoxOptions(classes=CLASSES), generator=torch.Generator().manual_seed(0)
    )
    assert "…" not in out
    row = next(line for line in out.splitlines() if "class: person" in line)
    group = report.facets["class"]["person"]
    numbers = [f"{value:.4f}" for value in (group.scale.value, group.ece_z, group.ece_q, group.nll, group.crps)]
    assert [number for number in numbers if number not in row] == []
    assert "height below 25 px" in out
    assert "height: " not in out
    assert "n counts corners with a variance, 4 of each pair" in " ".join(out.split())


def test_precision_of_kitti_and_truncated_objects_come_from_the_attributes_of_annotations(tmp_path, capsys):
    """Of 41 cars, all found, every other one is truncated by 0.4: beyond moderate, but not beyond hard."""
    box, count = torch.tensor([[10.0, 10.0, 80.0, 70.0]]), 41
    found = [
        Detections.of_sigmas(box + 1, torch.ones(1, 4), scores=torch.tensor([score]), labels=torch.tensor([1]))
        for score in torch.linspace(0.1, 0.9, count).tolist()
    ]
    annotation = {"category_id": 1, "bbox": [10, 10, 70, 60], "occlusion": 0}
    document = {
        "images": [{"id": i, "height": 100, "width": 200} for i in range(count)],
        "categories": [{"id": 1, "name": "car"}],
        "annotations": [annotation | {"image_id": i, "truncation": 0.4 * (i % 2)} for i in range(count)],
    }
    (tmp_path / "coco.json").write_text(json.dumps(document))
    write_rvc1(tmp_path / "rvc1.json", found, ("car",))
    assert main(words(tmp_path, "--json")) == 0
    scores = json.loads(capsys.readouterr().out)
    there = [Truths(boxes=box, labels=torch.tensor([1]), image_size=(100, 200))] * count
    attributes = [{"truncation": [0.4 * (i % 2)]} for i in range(count)]
    report = kitti_average_precision(found, there, attributes=attributes)
    assert scores["kitti"] == {"Car": dict(report.ap["Car"])}
    assert scores["kitti"]["Car"]["hard"] == 1.0
    assert scores["kitti"]["Car"]["moderate"] < 1.0  # fewer than 41 objects count
    facet = scores["calibration"]["facets"]["truncation"]
    assert sorted(group["n"] for group in facet.values() if group["n"]) == [4 * 20, 4 * 21]
    assert main(words(tmp_path)) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "moderate" in out
    assert "average precision as KITTI defines it" in out


def test_verdict_of_too_few_boxes_has_a_question_mark_and_its_warning(tmp_path, capsys):
    box = torch.tensor([[10.0, 10.0, 80.0, 70.0]])
    moved = box + torch.tensor([1.0, -1.0, 0.5, -0.5])
    found = [Detections.of_sigmas(moved, torch.ones(1, 4), scores=torch.ones(1), labels=torch.tensor([1]))]
    document = {
        "images": [{"id": 1, "height": 100, "width": 200}],
        "categories": [{"id": 1, "name": "car"}],
        "annotations": [{"image_id": 1, "category_id": 1, "bbox": [10, 10, 70, 60]}],
    }
    (tmp_path / "coco.json").write_text(json.dumps(document))
    write_rvc1(tmp_path / "rvc1.json", found, ("car",))
    assert main(words(tmp_path)) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "corners of matched boxes are calibrated?: " in out
    assert "warning: only 1 clusters" in out


def test_other_classes_have_no_precision_of_kitti(files, capsys):
    folder, *_ = files
    document = json.loads((folder / "coco.json").read_text())
    document["categories"][0]["name"] = "bus"
    (folder / "coco.json").write_text(json.dumps(document))
    assert main(words(folder, "--json", kind="coco", detections="results.json")) == 0
    assert json.loads(capsys.readouterr().out)["kitti"] is None


def test_df_bins_and_tolerance_are_those_of_the_report(files, capsys):
    folder, found, there = files
    assert main(words(folder, "--json", "--df", "6", "--bins", "7", "--tolerance", "1")) == 0
    corners = json.loads(capsys.readouterr().out)["calibration"]["corners"]
    options = BoxOptions(df=6, bins=7, tolerance=1.0)
    expected = box_calibration(found, there, options=options, generator=torch.Generator().manual_seed(0)).corners
    assert (corners["df"], corners["bins"], corners["verdict"]) == (6, 7, expected.verdict)
    assert_allclose([corners["ece_q"], corners["ece_z"]], [expected.ece_q, expected.ece_z], rtol=1e-9)
    for flag, value, message in (
        ("--df", "0", "expected `df`"),
        ("--bins", "1", "expected `bins`"),
        ("--tolerance", "2", "expected `tolerance`"),
    ):
        assert message in refused(capsys, words(folder, flag, value))


def test_a_truth_without_images_is_named(files, capsys):
    folder, *_ = files
    document = json.loads((folder / "coco.json").read_text()) | {"images": [], "annotations": []}
    (folder / "coco.json").write_text(json.dumps(document))
    error = refused(capsys, words(folder))
    assert f"expected `{folder / 'coco.json'}` with at least one image, got none" in error


def test_masks_change_the_quality(files, capsys):
    pytest.importorskip("pycocotools.mask", reason="needs pycocotools")
    folder, *_ = files
    document = json.loads((folder / "coco.json").read_text())
    for annotation in document["annotations"]:
        x, y, w, h = annotation["bbox"]
        annotation["segmentation"] = [[x, y, x + w, y, x, y + h]]
    (folder / "coco.json").write_text(json.dumps(document))
    qualities = []
    for more in ((), ("--masks",)):
        assert main(words(folder, "--json", *more)) == 0
        qualities.append(json.loads(capsys.readouterr().out)["pdq"])
    assert abs(qualities[0] - qualities[1]) > 1e-3


def test_images_without_objects_or_detections_are_evaluated(files, capsys):
    folder, *_ = files
    document = json.loads((folder / "coco.json").read_text()) | {"annotations": []}
    (folder / "coco.json").write_text(json.dumps(document))
    (folder / "rvc1.json").write_text(json.dumps({"classes": list(CLASSES), "detections": [[]] * IMAGES}))
    assert main(words(folder, "--json")) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["pdq"] is None
    assert document["mmap"] is None


def refused(capsys, arguments):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_wrong_options_are_refused_in_one_line(files, capsys):
    folder, *_ = files
    plain = words(folder)
    assert "expected `--truth COCO.json` with `--format rvc1`" in refused(capsys, plain[:4])
    assert "expected `--truth` together with `--format rvc1`" in refused(capsys, ["evaluate", *plain[3:]])
    assert "expected `--masks` together with `--format rvc1`" in refused(capsys, ["evaluate", "a.csv", "--masks"])
    assert "expected one file with `--format rvc1`, got 2" in refused(capsys, [*plain[:4], "b.json", *plain[4:]])
    assert "expected no `--group` with `--format rvc1`" in refused(capsys, words(folder, "--group", "city"))
    assert "expected no `--out` with `--format rvc1`" in refused(capsys, words(folder, "--out", "page.html"))
    assert "only 'images', 'categories', 'annotations'" in refused(capsys, words(folder, detections="coco.json"))
    assert "as COCO's are, got a JSON object" in refused(capsys, words(folder, kind="coco"))


def test_a_bad_covariance_is_named_with_image_and_detection(files, capsys):
    folder, *_ = files
    document = json.loads((folder / "rvc1.json").read_text())
    document["detections"][2][3]["covars"] = [[[1, 2], [2, 1]], [[1, 0], [0, 1]]]
    (folder / "rvc1.json").write_text(json.dumps(document))
    error = refused(capsys, words(folder))
    assert "positive semi-definite" in error
    assert "in image 2, detection 3, counted from 0 (1 of 24)" in error


def test_not_a_number_is_refused(files, capsys):
    folder, *_ = files
    document = json.loads((folder / "rvc1.json").read_text())
    document["detections"][2][3]["bbox"][1] = math.nan
    (folder / "rvc1.json").write_text(json.dumps(document))
    assert "finite" in refused(capsys, words(folder))


def test_warnings_are_lines_on_stderr(files, capsys):
    folder, *_ = files
    document = json.loads((folder / "rvc1.json").read_text())
    document["classes"][2] = "b\x1boat"
    (folder / "rvc1.json").write_text(json.dumps(document))
    assert main(words(folder, "--json")) == 0
    out, err = capsys.readouterr()
    assert "1 of 3 classes are not in the truth" in err
    assert "\x1b" not in out + err
    assert err.count("\n") == 2
    assert np.isfinite(json.loads(out)["pdq"])


def test_single_precision_of_a_detector_is_read(files, capsys):
    folder, found, _ = files
    single = [
        type(each)(
            boxes=each.boxes.float(),
            covariances=each.covariances.float(),
            scores=each.scores.float(),
            labels=each.labels.to(torch.int32),
        )
        for each in found
    ]
    write_rvc1(folder / "rvc1.json", single, CLASSES)
    assert main(words(folder, "--json")) == 0
    assert json.loads(capsys.readouterr().out)["n_detections"] == 24
