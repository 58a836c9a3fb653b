"""The detection benchmark: a whole run of a tiny street world, and its numbers against definitions."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.distributions import Normal
from torchvision.ops import box_iou

from fcal.benchmarks.detection.detectors import Detectors, _objects_of
from fcal.benchmarks.detection.final_boxes import clipped, final_scores, kept_rows
from fcal.benchmarks.detection.heads import BoxHead
from fcal.benchmarks.detection.images import ImageSource
from fcal.benchmarks.detection.kitti_scores import KittiTruths
from fcal.benchmarks.detection.pictures import gallery
from fcal.benchmarks.detection.settings import PRESETS, Settings
from fcal.benchmarks.detection.tables import pooled_section
from fcal.benchmarks.table import Row, Table
from fcal.cli import main
from fcal.data.detection import kitti_object
from fcal.metrics.detection import Detections, Truths, kitti_average_precision
from fcal.sweeps import Store

ROWS = ("oracle", "deterministic", "nll_base", "nll", "temperature", "fcal_kl", "oob_auto")
WORDS = ["benchmark", "detection", "--preset", "tiny", "--methods", ",".join(ROWS), "--workers", "1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A tiny benchmark, from the command line."""
    out = tmp_path_factory.mktemp("detection")
    assert main([*WORDS, "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def table(run):
    (table,) = json.loads((run / "results.json").read_text())["tables"]
    return table


def test_benchmark_has_every_row_with_every_column(table):
    assert set(table["rows"]) == set(ROWS)
    for name, row in table["rows"].items():
        assert "status" not in row, name
        assert 0 <= row["map"]["mean"] <= 1
        assert row["pdq"]["mean"] > 0
        assert (row["nll"]["mean"] is None) == (name == "deterministic")
    assert {"map", "ap50", "ap75", "mmap", "pdq", "pdq_spatial", "pdq_label", "ece_q", "nll"} <= set(table["columns"])
    assert table["recommended"] == "oob_auto"


def test_head_alone_keeps_the_boxes_of_the_network_without_error_bars(table):
    """Both heads have the same initial weights and data, so that the means are the same."""
    base, plain = (table["rows"][name] for name in ("nll_base", "deterministic"))
    assert base["rmse"]["mean"] == pytest.approx(plain["rmse"]["mean"])
    assert base["map"]["mean"] == plain["map"]["mean"]


def test_run_again_computes_nothing(run, capsys):
    before = {path: path.stat().st_mtime_ns for path in (run / "cells").iterdir()}
    assert main([*WORDS, "--out", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["task"] == "detection"
    assert {path: path.stat().st_mtime_ns for path in (run / "cells").iterdir()} == before


def test_features_hold_every_object_of_training_once_by_weight(run):
    detectors = Detectors(ImageSource(), str(run / "cells"))
    features = detectors.features(
        {"images": PRESETS["tiny"].images(0), "detector": PRESETS["tiny"].data(0)["detector"]}
    )
    weights, image = features["train.weight"], features["train.image"]
    assert torch.equal(weights, weights[:, :1].expand(-1, 4))
    # the weights of the proposals of one object sum to 1: their total is a whole number in every image
    totals = torch.zeros(int(image.max()) + 1, dtype=torch.float64).index_add(0, image, weights[:, 0].double())
    np.testing.assert_allclose(totals, totals.round(), atol=1e-5)
    assert bool((features["validation.weight"] == 1).all())


def truth(boxes, labels, size=(60, 80)):
    return Truths(boxes=boxes, labels=labels, image_size=size)


def test_suppression_keeps_the_best_of_overlapping_boxes_of_a_class():
    boxes = torch.tensor([[0.0, 0, 20, 20], [1.0, 0, 21, 20], [1.0, 0, 21, 20], [40.0, 0, 60, 20]])
    labels, scores = torch.tensor([1.0, 1, 2, 1]), torch.tensor([0.6, 0.9, 0.5, 0.3])
    probs = torch.zeros(4, 3)
    probs[torch.arange(4), labels.long()] = scores
    features = {"test.input": labels.unsqueeze(1), "test.label_probs": probs, "test.image": torch.zeros(4).long()}
    (kept,) = kept_rows(boxes, features, [truth(boxes[:1], torch.tensor([1]))])
    assert kept.tolist() == [1, 2, 3]  # the first overlaps with the second by 0.9


def test_clipping_stays_within_the_image():
    assert clipped(torch.tensor([[-3.0, 5.0, 90.0, 61.0]]), (60, 80)).tolist() == [[0.0, 5.0, 80.0, 60.0]]


def test_final_scores_are_those_of_matched_detections():
    """Boxes whose errors are known: NLL and RMSE by NumPy, and no other box counts."""
    generator = torch.Generator().manual_seed(0)
    there = torch.tensor([[10.0, 10, 40, 40], [45.0, 5, 75, 50]]).double()
    truths = [truth(there, torch.tensor([1, 2])) for _ in range(8)]
    errors = torch.randn(8, 2, 4, generator=generator, dtype=torch.float64)
    far = torch.tensor([[0.0, 50, 5, 58]], dtype=torch.float64)  # overlaps with nothing
    boxes = torch.cat([torch.cat([there + error, far]) for error in errors])
    labels = torch.tensor([1.0, 2.0, 1.0]).repeat(8)
    probs = torch.zeros(24, 3)
    probs[torch.arange(24), labels.long()] = torch.tensor([0.9, 0.8, 0.3]).repeat(8)
    features = {
        "test.input": labels.unsqueeze(1),
        "test.label_probs": probs,
        "test.image": torch.arange(8).repeat_interleave(3),
    }
    scores = final_scores(Normal(boxes, torch.full_like(boxes, 2.0)), features, truths, bins=5, df=4)
    assert scores["pairs"] == 16
    z = errors.numpy() / 2
    expected = 0.5 * (z**2).mean() + np.log(2) + 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(scores["columns"]["nll"], expected, rtol=1e-5)
    np.testing.assert_allclose(scores["columns"]["rmse"], np.sqrt((errors.numpy() ** 2).mean()), rtol=1e-5)


def test_candidates_are_given_the_object_that_they_overlap_with():
    generator = torch.Generator().manual_seed(3)
    corner = 50 * torch.rand(40, 2, generator=generator)
    boxes = torch.cat([corner, corner + 10 + 20 * torch.rand(40, 2, generator=generator)], 1)
    labels, image = torch.randint(1, 3, (40,), generator=generator), torch.arange(40) % 2
    targets = [
        {"boxes": boxes[number::8] + 1, "labels": labels[number::8], "ignored": torch.zeros(5, dtype=torch.bool)}
        for number in (0, 1)
    ]
    found, exact, sigma = _objects_of(boxes, labels, image, targets)
    for row in range(40):
        target = targets[int(image[row])]
        overlap = box_iou(boxes[row : row + 1], target["boxes"])[0] * (target["labels"] == labels[row])
        if overlap.max() >= 0.5:
            torch.testing.assert_close(found[row], target["boxes"][overlap.argmax()])
        else:
            assert bool(found[row].isnan().all())
    assert bool(exact.isnan().all() and sigma.isnan().all())  # not known of these


def test_deterministic_head_has_the_boxes_of_the_other():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        heads = [BoxHead(features=6, classes=2, deterministic=flag) for flag in (False, True)]
        heads[1].load_state_dict(heads[0].state_dict())
        inputs = torch.cat([torch.rand(5, 6), torch.tensor([[0.0, 0, 10, 10, 1]]).expand(5, -1)], 1)
    torch.testing.assert_close(heads[0](inputs).mean, heads[1](inputs))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--preset", "kitti-mini"], "expected `--data` for the set 'kitti-mini', got none"),
        (["--preset", "residuals"], "expected `--data` a folder with car_matches.csv in it or below, got none"),
        (["--format", "yolo"], "expected `--format` one of kitti, cityscapes, coco, voc, got 'yolo'"),
        (["--format", "street"], "expected `--format` one of kitti, cityscapes, coco, voc, got 'street'"),
        (["--preset", "tiny", "--backbone", "vgg"], "expected `backbone` one of 'mobilenet_v2', 'resnet18',"),
        (["--preset", "tiny", "--methods", ""], "expected `methods` with the name of a row, got none"),
        (["--preset", "bccd", "--data", "nowhere"], "expected `--data` a folder, got nowhere, no folder"),
    ],
)
def test_wrong_options_and_missing_data_are_one_line(words, message, capsys):
    assert main(["benchmark", "detection", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", ["height", "width"])
def test_settings_refuse_images_that_are_too_small_for_a_detector(name):
    with pytest.raises(ValueError, match=f"expected `{name}` >= 32, got 1"):
        Settings(**{name: 1})


def test_data_without_an_object_are_refused_with_their_folder(tmp_path, capsys):
    root = str(tmp_path / "kitti")
    streets = ["data", "street", "--layout", "kitti-object", "--frames", "12", "--height", "32", "--width", "64"]
    assert main([*streets, "--out", root, "--json"]) == 0
    for path in tmp_path.glob("kitti/**/label_2/*.txt"):
        path.write_text("")
    capsys.readouterr()
    words = ["benchmark", "detection", "--preset", "tiny", "--data", root, "--out", str(tmp_path / "out")]
    assert main([*words, "--format", "kitti"]) == 2
    error = capsys.readouterr().err
    assert f"expected `--data` with objects in the labels of each part, got {root}: none in the" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_terminal_says_per_cent_where_it_multiplies_shares(run, capsys):
    assert main([*WORDS, "--out", str(run)]) == 0
    heads = capsys.readouterr().out.split("oracle")[0]
    assert heads.count("%") == 4  # mAP, mMAP, PDQ and "in 90 %"
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "are from 0 to 1 on this page; the terminal shows them in per cent." in page


def test_precision_of_kitti_is_that_of_images_of_full_size(tmp_path):
    """Cars of a street in KITTI's layout, found exactly: small images lose none to KITTI's least heights."""
    root = str(tmp_path / "kitti")
    words = ["data", "street", "--layout", "kitti-object", "--frames", "30", "--height", "96", "--width", "320"]
    assert main([*words, "--out", root, "--json"]) == 0
    images = kitti_object(root)
    found = []
    for target in (images[index]["target"] for index in range(len(images))):
        rows = ~target["ignored"]
        scores = torch.linspace(0.5, 0.9, int(rows.sum()))
        boxes, labels = target["boxes"][rows], target["labels"][rows]
        found.append(Detections.of_sigmas(boxes, torch.ones_like(boxes), scores=scores, labels=labels))
    there = KittiTruths.of(images)
    hard = torch.cat([images[index]["target"]["difficulty"] for index in range(len(images))])
    cars = torch.cat([images[index]["target"]["labels"] for index in range(len(images))]) == 1
    count = int((cars & (hard <= 2)).sum())
    assert count > 20
    # all recall points up to that of the last threshold have a precision of 1
    assert there.precision(found)["Car"]["hard"] == pytest.approx(min(count - 1, 40) / 40)
    as_they_are = kitti_average_precision(found, [images.truths(index) for index in range(len(images))])
    assert as_they_are.truths["Car"]["hard"] < count


def test_table_has_the_precision_of_kitti_and_the_numbers_of_the_paper(table):
    precision = table["rows"]["nll"]["kitti"][0]
    assert set(precision) == {"Car", "Pedestrian", "Cyclist"}
    assert set(precision["Car"]) == {"easy", "moderate", "hard"}
    assert table["paper"]["nll"]["map"]["mean"] == pytest.approx(0.51764)  # KITTI, appendix of the paper
    assert table["rows"]["nll"]["kld_q"]["mean"] > 0


def test_few_real_images_start_from_a_detector_of_streets():
    settings = replace(PRESETS["kitti-mini"], height=64, width=208)
    cell = Detectors(ImageSource(), "nowhere").detector_cell(settings.data(0), full=True)
    plain = cell.needs[0]
    streets = plain.needs[0]
    assert [each.config["images"]["set"] for each in (cell, plain, streets)] == ["kitti-mini", "kitti-mini", "street"]
    assert [each.config["full"] for each in (cell, plain, streets)] == [True, False, False]
    assert (streets.needs, streets.config["images"]["height"]) == ((), 64)
    other_classes = replace(settings, set="bccd")
    assert not Detectors(ImageSource(), "nowhere").detector_cell(other_classes.data(0), full=False).needs


@pytest.mark.parametrize(("preset", "layout"), [("paper-kitti", "kitti-object"), ("paper-cityscapes", "cityscapes")])
def test_detectors_of_the_paper_train_by_a_few_steps(preset, layout, tmp_path):
    """ResNet-101 and the paper's sizes, on small images in the layout of the data, without and with error bars."""
    root = str(tmp_path / "data")
    words = ["data", "street", "--layout", layout, "--frames", "12", "--height", "64", "--width", "208"]
    assert main([*words, "--out", root, "--json"]) == 0
    paper = PRESETS[preset]
    assert (paper.backbone, paper.head, paper.rois, paper.pretrained) == ("resnet101", 1024, 512, True)
    few = replace(paper, height=64, width=208, least_anchor=8, pretrained=False, detector_epochs=1, full_epochs=1)
    detectors, store = Detectors(ImageSource(root), str(tmp_path / "cells")), Store(tmp_path / "cells")
    for full in (False, True):
        done = store.compute(detectors.detector_cell(few.data(0), full=full), detectors.train)
        assert np.isfinite([line["train/loss"] for line in done["history"]]).all()


def test_detector_that_proposes_no_object_says_what_to_change(tmp_path):
    settings = replace(PRESETS["tiny"], train=4, validation=4, test=4, images_per_drive=2, least_anchor=128)
    detectors, store = Detectors(ImageSource(), str(tmp_path)), Store(tmp_path)
    features = detectors.features_cell(settings.data(0))
    for needed in (*features.needs[0].needs, *features.needs):
        store.compute(needed, detectors.train)
    with pytest.raises(ValueError, match="expected a detector that proposes objects of the train images, got none"):
        store.compute(features, detectors.train)


def test_gallery_draws_every_row_beside_the_others(run):
    drawn = gallery(PRESETS["tiny"], Store(run / "cells"), ["nll", "temperature"], frames=[0, 3])
    titles = [ax.get_title(loc=place) for ax in drawn.axes for place in ("left", "center") if ax.get_title(loc=place)]
    assert [title.split(",")[0] for title in titles[:4]] == ["test image 0"] * 2 + ["test image 3"] * 2
    with pytest.raises(ValueError, match="expected `rows` that predict distributions, got 'deterministic'"):
        gallery(PRESETS["tiny"], Store(run / "cells"), ["deterministic"], frames=1)
    with pytest.raises(ValueError, match="expected `frames` <= 19, got 20"):
        gallery(PRESETS["tiny"], Store(run / "cells"), ["nll"], frames=[20])


def test_residuals_of_all_folds_are_judged_together():
    """Two folds of half and of twice the right sigma: each is off, and so are both together."""
    generator = torch.Generator().manual_seed(0)
    folds = [
        {"z": (size * torch.randn(50, 4, generator=generator)).tolist(), "image": (torch.arange(50) // 5).tolist()}
        for size in (0.5, 2.0)
    ]
    row = Row(
        columns={},
        seeds={"nll": [1.0, 2.0]},
        finished=2,
        details={"residuals": folds, "pairs": [50, 50]},
    )
    table = Table(
        labels={"set": "kitti-mini"}, seeds=2, bins=10, df=20, n_test=200, columns=(), rows={"nll": row}, floors={}
    )
    z = np.concatenate([np.array(fold["z"]) for fold in folds])
    inside = (np.abs(z) <= 1.6448536).mean()
    _, boxes, scale, _, _, covered, nll = pooled_section(table).splitlines()[2].strip("| ").split(" | ")
    assert boxes == "100"
    assert float(scale.split()[0]) == pytest.approx(np.sqrt((z**2).mean()), rel=1e-2)
    assert float(covered) == pytest.approx(100 * inside, rel=1e-2)
    assert float(nll) == 1.5
