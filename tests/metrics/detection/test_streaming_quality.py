"""Streaming metrics of detection: any split, order, merge or rank gives what one call gives."""

import copy
import pickle
import random
import subprocess
import sys

import pytest
from metrics.detection.whole_image import random_scene
from metrics.same_reports import flat
from numpy.testing import assert_allclose
from two_ranks import run_on_two_ranks

from fcal.metrics.detection import (
    Consistency,
    DetectionQuality,
    MahalanobisAveragePrecision,
    consistency,
    detection_quality,
    mahalanobis_average_precision,
)

IMAGES = 17
KINDS = {
    DetectionQuality: detection_quality,
    MahalanobisAveragePrecision: mahalanobis_average_precision,
    Consistency: consistency,
}


def images():
    return [random_scene(i, i % 6, i % 4, labels=2, ignored=0.2) for i in range(IMAGES)]


def part(numbers):
    chosen = [images()[i] for i in numbers]
    return [found for found, _ in chosen], [there for _, there in chosen]


def assert_same(one, two):
    first, second = flat(one.as_dict()), flat(two.as_dict())
    assert first.keys() == second.keys()
    numbers = [name for name, value in first.items() if isinstance(value, float)]
    assert_allclose([second[name] for name in numbers], [first[name] for name in numbers], rtol=1e-9, atol=1e-12)
    assert {n: v for n, v in first.items() if n not in numbers} == {n: v for n, v in second.items() if n not in numbers}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 1])
def test_random_batches_of_images_give_what_one_call_gives(kind, seed):
    chance, metric, order = random.Random(seed), kind(), list(range(IMAGES))
    chance.shuffle(order)
    while order:
        size = chance.randint(1, 5)
        metric.update(*part(order[:size]))
        order = order[size:]
    assert_same(metric.compute(), KINDS[kind](*part(range(IMAGES))))


@pytest.mark.parametrize("kind", KINDS)
def test_merged_copied_and_pickled_metrics_give_what_one_call_gives(kind):
    first, second = kind(), kind()
    first.update(*part(range(5)))
    second.update(*part(range(5, IMAGES)))
    first = pickle.loads(pickle.dumps(copy.deepcopy(first)))
    first.merge_state(second)
    assert_same(first.compute(), KINDS[kind](*part(range(IMAGES))))


@pytest.mark.parametrize("kind", KINDS)
def test_forward_returns_the_report_of_its_batch_and_adds_it(kind):
    metric = kind()
    metric.update(*part(range(5)))
    assert_same(metric(*part(range(5, IMAGES))), KINDS[kind](*part(range(5, IMAGES))))
    assert_same(metric.compute(), KINDS[kind](*part(range(IMAGES))))


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_that_is_refused_is_not_added(kind):
    metric = kind()
    metric.update(*part(range(5)))
    for add in (metric.update, metric):
        with pytest.raises(ValueError, match="of as many images, got 2 and 1"):
            add(part([1, 2])[0], part([1])[1])
    assert_same(metric.compute(), KINDS[kind](*part(range(5))))


@pytest.mark.parametrize("kind", KINDS)
def test_reset_removes_all_images(kind):
    metric = kind()
    metric.update(*part(range(5)))
    metric.reset()
    metric.update(*part([7, 8]))
    assert_same(metric.compute(), KINDS[kind](*part([7, 8])))


@pytest.mark.parametrize(("kind", "options"), [(DetectionQuality, {"spatial": "mahalanobis", "temperature": 4.0})])
def test_options_reach_the_report(kind, options):
    metric = kind(**options)
    metric.update(*part(range(IMAGES)))
    assert_same(metric.compute(), KINDS[kind](*part(range(IMAGES)), **options))


def check_ranks(rank):
    for kind, whole in KINDS.items():
        metric = kind()
        for number in range(rank, IMAGES, 2):
            metric.update(*part([number]))
        assert_same(metric.compute(), whole(*part(range(IMAGES))))
        alone = kind()
        if rank == 0:
            alone.update(*part(range(5)))
        else:
            alone.update([], [])
        assert_same(alone.compute(), whole(*part(range(5))))


def test_ranks_with_different_numbers_of_images_or_none_agree_with_one_call():
    run_on_two_ranks(check_ranks)


def test_state_of_quality_and_consistency_has_a_fixed_size():
    for kind in (DetectionQuality, Consistency):
        metric = kind()
        sizes = []
        for _ in range(2):
            metric.update(*part(range(IMAGES)))
            sizes.append(sum(value.numel() for value in metric._state()))
        assert sizes[0] == sizes[1] < 20


def test_importing_detection_metrics_imports_neither_scipy_nor_torchmetrics():
    code = (
        "import sys, fcal.metrics.detection\n"
        "heavy = {'scipy', 'torchmetrics', 'pycocotools', 'torchvision', 'PIL'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_unknown_spatial_quality_is_refused_at_once():
    with pytest.raises(ValueError, match="expected `spatial` one of 'pixels', 'mahalanobis', got 'boxes'"):
        DetectionQuality(spatial="boxes")
