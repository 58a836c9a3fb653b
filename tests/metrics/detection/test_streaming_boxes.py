"""Streaming metrics of boxes: any split, order, merge or rank gives what one call gives."""

import copy
import pickle
import subprocess
import sys

import pytest
import torch
from metrics.detection.random_images import random_images
from metrics.detection.test_kitti_precision import CLASSES, kitti_images
from metrics.same_reports import flat
from numpy.testing import assert_allclose
from two_ranks import run_on_two_ranks

from fcal.metrics.detection import (
    AveragePrecision,
    BoxCalibration,
    BoxOptions,
    KittiAveragePrecision,
    average_precision,
    box_calibration,
    kitti_average_precision,
)

IMAGES = 40
KINDS = ("boxes", "coco", "kitti")
OPTIONS = BoxOptions(df=20, facets=("corner", "edge"))


def seeded():
    return torch.Generator().manual_seed(3)


def images(kind):
    if kind == "kitti":
        return tuple(map(list, zip(*kitti_images(IMAGES), strict=True)))
    return random_images(IMAGES, correlated=True, ignored=0.2)


def new(kind):
    if kind == "boxes":
        return BoxCalibration(options=OPTIONS, generator=seeded())
    return AveragePrecision() if kind == "coco" else KittiAveragePrecision(classes=CLASSES)


def add(metric, kind, where):
    """Add the images with these numbers."""
    detections, truths, *attributes = ([column[k] for k in where] for column in images(kind))
    metric.update(detections, truths, **({"attributes": attributes[0]} if attributes else {}))


def one_call(kind):
    detections, truths, *attributes = images(kind)
    if kind == "boxes":
        return box_calibration(detections, truths, options=OPTIONS, generator=seeded())
    if kind == "coco":
        return average_precision(detections, truths)
    return kitti_average_precision(detections, truths, attributes=attributes[0], classes=CLASSES)


def assert_same(one, two, rtol=1e-9):
    first, second = flat(one.as_dict()), flat(two.as_dict())
    assert first.keys() == second.keys()
    assert len(first) > 5
    for name, value in first.items():
        if isinstance(value, float) and isinstance(second[name], float):
            assert_allclose(second[name], value, rtol=rtol, atol=1e-11, err_msg=name)
        elif not name.endswith("reason"):
            assert second[name] == value, name


@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_images_give_the_report_of_one_call(kind):
    metric = new(kind)
    for start in range(0, IMAGES, 7):
        add(metric, kind, range(start, min(start + 7, IMAGES)))
    assert_same(one_call(kind), metric.compute())


@pytest.mark.parametrize("kind", ["boxes", "kitti"])
def test_the_order_of_images_does_not_matter(kind):
    metric = new(kind)
    order = torch.randperm(IMAGES, generator=seeded()).tolist()
    for where in (order[:25], order[25:]):
        add(metric, kind, where)
    assert_same(one_call(kind), metric.compute())


@pytest.mark.parametrize("kind", KINDS)
def test_merged_metrics_give_the_report_of_one_call(kind):
    first, second = new(kind), new(kind)
    add(second, kind, range(15))
    add(first, kind, range(15, IMAGES))
    first.compute()
    second.merge_state(first)
    merged = copy.deepcopy(second)
    merged = pickle.loads(pickle.dumps(merged))
    assert merged.compute().images == second.compute().images == IMAGES
    if kind != "coco":  # there, equal scores of several images are ordered by image
        assert_same(one_call(kind), second.compute())


@pytest.mark.parametrize("kind", KINDS)
def test_a_metric_that_was_reset_knows_nothing(kind):
    metric = new(kind)
    add(metric, kind, range(20))
    metric.reset()
    add(metric, kind, range(20, IMAGES))
    assert metric.compute().images == 20


def test_forward_returns_the_report_of_its_batch_and_adds_it():
    metric = AveragePrecision()
    detections, truths = images("coco")
    report = metric(detections[:10], truths[:10])
    assert_same(report, average_precision(detections[:10], truths[:10]))
    metric(detections[10:], truths[10:])
    assert_same(metric.compute(), average_precision(detections, truths))


def test_a_batch_without_a_report_is_not_added_by_forward():
    metric = new("boxes")
    add(metric, "boxes", range(20))
    with pytest.raises(ValueError, match="expected `detections` that match an object"):
        metric([], [])
    assert metric.compute().images == 20


def check_two_ranks(rank):
    for kind in KINDS:
        metric = new(kind)
        shares = range(25), range(25, IMAGES)
        add(metric, kind, shares[rank])
        assert_same(one_call(kind), metric.compute())
        assert sum(len(rows) for rows in metric._state()) > 0  # back to its own rows
    idle = new("coco")
    if rank == 0:  # the other rank has no data at all
        add(idle, "coco", range(IMAGES))
    assert_same(one_call("coco"), idle.compute())


def test_two_ranks_give_the_report_of_one_call():
    run_on_two_ranks(check_two_ranks)


def test_detection_metrics_are_imported_without_torchmetrics_pycocotools_and_scipy():
    code = (
        "import sys\n"
        "for name in ('torchmetrics', 'pycocotools', 'scipy', 'torchvision', 'PIL'): sys.modules[name] = None\n"
        "import fcal.metrics.detection as room\n"
        "try: room.BoxCalibration\n"
        "except ImportError as error: print(error)\n"
        "print(room.average_precision([], []).map)\n"
        "box = __import__('torch').ones(1, 4).cumsum(1)\n"
        "one = box[:, 0].long()\n"
        "there = room.Truths(boxes=box, labels=one, image_size=(9, 9))\n"
        "found = room.Detections.of_sigmas(box, box, scores=box[:, 0], labels=one)\n"
        "try: room.average_precision([found], [there])\n"
        "except ImportError as error: print(error)\n"
        "try: room.match(found, there, room.MatchingRule(assignment='optimal'))\n"
        "except ImportError as error: print(error)\n"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.splitlines() == [
        "expected torchmetrics for streaming metrics; pip install 'fcal[metrics]'",
        "None",
        "expected pycocotools for average precision; pip install 'fcal[vision]'",
        "expected scipy for `assignment` 'optimal'; pip install scipy",
    ]


def test_the_room_lists_what_it_has():
    import fcal.metrics.detection as room

    assert all(hasattr(room, name) for name in room.__all__)
    with pytest.raises(AttributeError, match="module 'fcal.metrics.detection' has no attribute 'Nothing'"):
        _ = room.Nothing
