"""Images with boxes as a dataset: items, batches, sizes, flips, masks, truths, groups and memory."""

import pickle

import numpy as np
import pytest
import torch
from depth_files import write_image
from detection_files import annotated_image, pixels
from numpy.testing import assert_allclose, assert_array_equal
from torch.testing import assert_close
from torch.utils.data import DataLoader, Subset

from fcal._datasets import get_batch
from fcal.data.depth_frames import FrameError
from fcal.data.detection import AnnotatedImage, DetectionFrames

CLASSES = ("Car", "Pedestrian")
SIGMAS = torch.tensor([[1.0, 2.0, 3.0, 4.0], [0.5, 0.25, 0.125, 1.0]])
BOXES = ((2.0, 3.0, 10.0, 9.0), (0.0, 0.0, 24.0, 16.0))


def frames(folder, count=1, extras=None, boxes=BOXES, labels=(1, 2), **options):
    images = [
        annotated_image(
            folder, f"{number}", boxes, labels, group=f"drive {number // 2}", number=7 + number, extras=extras or {}
        )
        for number in range(count)
    ]
    return DetectionFrames(images, CLASSES, **options)


def test_item_has_the_entries_of_torchvision(tmp_path):
    data = frames(tmp_path)
    item = data[0]
    assert_array_equal((item["input"] * 255).round(), pixels(tmp_path / "0.png").transpose(2, 0, 1))
    assert item["input"].dtype == torch.float32
    target = item["target"]
    assert_close(target["boxes"], torch.tensor(BOXES))
    assert target["labels"].tolist() == [1, 2]
    assert target["labels"].dtype == torch.int64
    assert (target["ignored"].dtype, target["crowd"].dtype) == (torch.bool, torch.bool)
    assert target["image_id"] == 7
    assert (data.names, data.classes) == (["0"], CLASSES)


def test_image_without_objects_is_an_item(tmp_path):
    data = frames(tmp_path, boxes=(), labels=())
    target = data[0]["target"]
    assert target["boxes"].shape == (0, 4)
    assert target["labels"].shape == target["ignored"].shape == (0,)
    assert len(data.truths(0)) == 0


def test_objects_are_counted_without_ignored_ones(tmp_path):
    labels = {"boxes": torch.tensor(BOXES), "labels": torch.tensor([1, 2]), "size": (16, 24)}
    images = [
        AnnotatedImage(image=tmp_path / f"{k}.png", group="a", ignored=torch.tensor([k == 0, False]), **labels)
        for k in range(3)
    ]
    data = DetectionFrames(images, CLASSES)
    assert (data.objects, data.subset([0]).objects) == (5, 1)


def test_batch_is_lists_of_items_in_order(tmp_path):
    data = frames(tmp_path, 3)
    batch = data.__getitems__([2, -3])
    assert [target["image_id"] for target in batch["target"]] == [9, 7]
    assert_close(batch["input"][1], data[0]["input"])
    assert [target["image_id"] for target in get_batch(Subset(data, [1, 2]), [1])["target"]] == [9]


def test_loader_returns_batches_from_workers(tmp_path):
    batches = list(DataLoader(frames(tmp_path, 3), batch_size=2, collate_fn=dict, num_workers=1))
    assert [len(batch["input"]) for batch in batches] == [2, 1]
    assert batches[1]["target"][0]["image_id"] == 9


@pytest.mark.parametrize("size", [(8, 12), (32, 24), (16, 24)])
def test_boxes_and_sigmas_are_scaled_with_the_image(tmp_path, size):
    extras = {"sigmas": SIGMAS, "true_boxes": torch.tensor(BOXES) + 0.5, "distance": torch.tensor([5.0, 6.0])}
    item = frames(tmp_path, extras=extras, size=size)[0]
    assert item["input"].shape == (3, *size)
    factors = np.array([size[1] / 24, size[0] / 16] * 2)
    target = item["target"]
    assert_allclose(target["boxes"], np.array(BOXES) * factors, rtol=1e-6)
    assert_allclose(target["sigmas"], SIGMAS.numpy() * factors, rtol=1e-6)
    assert_allclose(target["true_boxes"], (np.array(BOXES) + 0.5) * factors, rtol=1e-6)
    assert target["distance"].tolist() == [5.0, 6.0]


def test_box_surrounds_its_object_after_resizing(tmp_path):
    """A white rectangle on black: after halving the image, exactly the cells of the scaled box are white."""
    canvas = np.zeros((16, 24, 3), np.uint8)
    canvas[4:10, 6:20] = 255
    path = write_image(tmp_path / "white.png", canvas)
    image = AnnotatedImage(
        image=path, size=(16, 24), boxes=torch.tensor([[6.0, 4.0, 20.0, 10.0]]), labels=torch.tensor([1])
    )
    item = DetectionFrames([image], ["thing"], size=(8, 12))[0]
    rows, columns = np.nonzero(item["input"][0].numpy() > 0.5)
    edges = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    assert_array_equal(item["target"]["boxes"][0], edges)


def test_mirrored_item_shows_its_objects_in_the_mirrored_boxes(tmp_path):
    extras = {"sigmas": SIGMAS, "true_boxes": torch.tensor(BOXES)}
    plain = frames(tmp_path, extras=extras)[0]
    data = frames(tmp_path, extras=extras, flip=True)
    torch.manual_seed(0)
    items = [data[0] for _ in range(20)]
    mirrored = [item for item in items if not torch.equal(item["input"], plain["input"])]
    assert 3 <= len(mirrored) <= 17  # of 20 fair coins; outside in 4 of 10,000 seeds
    for item in mirrored:
        assert_array_equal(item["input"], plain["input"].numpy()[:, :, ::-1])
        target = item["target"]
        assert_array_equal(target["boxes"], [[14, 3, 22, 9], [0, 0, 24, 16]])
        assert_array_equal(target["true_boxes"], [[14, 3, 22, 9], [0, 0, 24, 16]])
        assert_array_equal(target["sigmas"], [[3, 2, 1, 4], [0.125, 0.25, 0.5, 1]])


def test_flips_repeat_with_the_seed_of_torch_one_by_one_and_in_batches(tmp_path):
    data = frames(tmp_path, 4, flip=True)
    runs = []
    for batches in ([[0, 1, 2, 3]], [[0], [1, 2], [3]]):
        torch.manual_seed(5)
        runs.append([image for batch in batches for image in data.__getitems__(batch)["input"]])
    torch.manual_seed(5)
    runs.append([data[index]["input"] for index in range(4)])
    for run in runs[1:]:
        for first, second in zip(runs[0], run, strict=True):
            assert_close(first, second)


def test_items_without_flips_draw_no_random_numbers(tmp_path):
    state = torch.get_rng_state()
    frames(tmp_path)[0]
    assert_array_equal(torch.get_rng_state(), state)


def test_truths_are_those_of_the_image_as_it_is(tmp_path):
    data = frames(tmp_path, flip=True, size=(8, 12), extras={"true_boxes": torch.tensor(BOXES) + 1})
    for _ in range(10):
        truths = data.truths(0)
        assert_allclose(truths.boxes, np.array(BOXES) / 2)
        assert truths.image_size == (8, 12)
        assert truths.labels.tolist() == [1, 2]
    assert_allclose(data.truths(0, exact=True).boxes, (np.array(BOXES) + 1) / 2)


def test_exact_truths_of_unknown_noise_are_refused(tmp_path):
    with pytest.raises(ValueError, match="expected `exact` False for labels of unknown noise, got True"):
        frames(tmp_path).truths(0, exact=True)


def with_map(folder, ids, boxes, numbers, **options):
    path = write_image(folder / "map.png", ids.astype(np.uint16))
    extras = {"instance": torch.tensor(numbers)}
    image = annotated_image(folder, boxes=boxes, shape=ids.shape, extras=extras, instances=path)
    return DetectionFrames([image], ["car"], masks=True, **options)


def test_masks_are_the_pixels_of_objects(tmp_path):
    ids = np.zeros((16, 24), int)
    ids[2:7, 3:9], ids[4:12, 8:20] = 26000, 26001
    data = with_map(tmp_path, ids, ((3, 2, 9, 7), (8, 4, 20, 12)), [26000, 26001])
    assert_array_equal(data[0]["target"]["masks"], np.stack([ids == 26000, ids == 26001]))
    assert_array_equal(data.truths(0).masks, np.stack([ids == 26000, ids == 26001]))
    half = with_map(tmp_path, ids, ((3, 2, 9, 7), (8, 4, 20, 12)), [26000, 26001], size=(8, 12))
    assert_array_equal(half[0]["target"]["masks"], np.stack([ids == 26000, ids == 26001])[:, 1::2, 1::2])


def test_mask_of_a_thin_object_is_its_box(tmp_path):
    ids = np.zeros((16, 24), int)
    ids[2:7, 4] = 5
    masks = with_map(tmp_path, ids, ((4, 2, 5, 7),), [5], size=(8, 12))[0]["target"]["masks"]
    rows, columns = np.nonzero(masks[0].numpy())
    assert {*columns} == {2}
    assert {*rows} == {1, 2, 3}


def test_masks_are_mirrored_with_the_image(tmp_path):
    ids = np.zeros((16, 24), int)
    ids[2:7, 3:9] = 5
    plain = with_map(tmp_path, ids, ((3, 2, 9, 7),), [5])
    flipped = plain.subset([0], flip=True)
    torch.manual_seed(1)
    masks = [flipped[0]["target"]["masks"][0].numpy() for _ in range(10)]
    assert any(np.array_equal(mask, ids[:, ::-1] == 5) for mask in masks)


def test_subset_keeps_names_and_group_numbers_of_the_whole(tmp_path):
    data = frames(tmp_path, 6)
    assert data.groups == [0, 0, 1, 1, 2, 2]
    part = data.subset([5, 2])
    assert (part.groups, part.group_names, part.names) == ([2, 1], ["drive 2", "drive 1"], ["5", "2"])
    assert part.subset([0]).groups == [2]
    assert_close(part[1]["input"], data[2]["input"])


def test_cache_returns_what_was_read_without_the_files(tmp_path):
    data = frames(tmp_path, 2, cache=True)
    expected = data[1]["input"]
    (tmp_path / "1.png").unlink()
    assert_close(data.subset([1])[0]["input"], expected)
    assert pickle.loads(pickle.dumps(data))._cached == {}


def test_items_share_no_memory_with_what_is_kept(tmp_path):
    data = frames(tmp_path, cache=True)
    item = data[0]
    item["target"]["boxes"].fill_(-1)
    item["input"].fill_(-1)
    assert_close(data[0]["target"]["boxes"], torch.tensor(BOXES))
    assert data[0]["input"].min() >= 0


def test_damaged_image_is_named(tmp_path):
    data = frames(tmp_path, 2)
    (tmp_path / "0.png").write_bytes(b"\x89PNG")
    with pytest.raises(FrameError, match=r"expected .*0.png an image file that can be read, got:"):
        data[0]
    write_image(tmp_path / "1.png", np.zeros((8, 8, 3), np.uint8))
    with pytest.raises(FrameError, match=r"1.png of the size that its labels state, 16 x 24, got 8 x 8"):
        data[1]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda folder: frames(folder, 0), ValueError, "expected `images` with at least 1 image, got none"),
        (
            lambda folder: frames(folder, labels=(1, 3)),
            ValueError,
            r"expected `labels` of .*0.png from 1 to 2, got \[1, 3\]",
        ),
        (lambda folder: frames(folder, labels=(0, 1)), ValueError, r"from 1 to 2, got \[0, 1\]"),
        (
            lambda folder: frames(folder, masks=True),
            ValueError,
            "expected `masks` False for images without a map of instances, got True",
        ),
        (lambda folder: frames(folder, size=(0, 3)), ValueError, "expected `size: height` >= 1, got 0"),
        (lambda folder: frames(folder, flip=1), TypeError, "expected `flip` a bool, got int"),
        (lambda folder: frames(folder)[1], IndexError, "expected `index` within 1 images, got 1"),
        (lambda folder: frames(folder)["0"], TypeError, "expected `index` an int, got str"),
        (
            lambda folder: frames(folder, boxes=((5, 5, 5, 9), (0, 0, 1, 1))),
            ValueError,
            "`boxes` with x1 < x2 and y1 < y2",
        ),
        (lambda folder: frames(folder, labels=(1,)), ValueError, "expected `labels` of 2 objects like `boxes`, got 1"),
        (lambda folder: frames(folder, extras={"distance": torch.zeros(3)}), ValueError, "`distance` of 2 objects"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, call, error, message):
    with pytest.raises(error, match=message):
        call(tmp_path)
