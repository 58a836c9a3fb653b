"""The street world as a dataset: items, batches, groups, the true law, splits by drive, bounded memory."""

import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import fcal
import fcal.data as data
from fcal.data import StreetConfig, StreetDepth, StreetSplits
from fcal.data.street import LidarConfig, street_frame

TINY = StreetConfig(frames=20, frames_per_drive=4, seed=2, height=32, width=104)


@pytest.fixture(scope="module")
def streets() -> StreetDepth:
    return StreetDepth(TINY)


def test_item_is_the_normalised_image_with_its_measured_depth(streets):
    item, frame = streets[7], street_frame(TINY, 7)
    image = frame.image.transpose(2, 0, 1) / 255.0
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    np.testing.assert_allclose(item["input"].numpy(), (image - mean[:, None, None]) / std[:, None, None], atol=1e-5)
    np.testing.assert_array_equal(item["target"].numpy(), frame.measured)
    assert item["input"].dtype == item["target"].dtype == torch.float32


def test_batch_is_the_stack_of_its_items(streets):
    batch = streets.__getitems__([3, 0, -1])
    for name in ("input", "target"):
        expected = torch.stack([streets[index][name] for index in (3, 0, 19)])
        torch.testing.assert_close(batch[name], expected, rtol=0, atol=0, equal_nan=True)


def test_loader_returns_stacked_batches_from_workers(streets):
    batches = list(DataLoader(streets, batch_size=8, collate_fn=dict, num_workers=1))
    torch.testing.assert_close(batches[2]["target"], streets.__getitems__(range(16, 20))["target"], equal_nan=True)


def test_groups_are_drives(streets):
    assert streets.groups == [street_frame(TINY, index).drive for index in range(20)]
    assert len(set(streets.groups)) == 5


def test_truth_is_the_true_depth_and_sigma(streets):
    depth, sigma = streets.truth([1, 4])
    for row, index in enumerate((1, 4)):
        np.testing.assert_array_equal(depth[row].numpy(), street_frame(TINY, index).depth)
        np.testing.assert_array_equal(sigma[row].numpy(), street_frame(TINY, index).sigma)


def test_law_is_calibrated_and_valid_everywhere():
    streets = StreetDepth(StreetConfig(frames=30, frames_per_drive=2, seed=12, lidar=LidarConfig(density=0.5)))
    law, target = streets.law(range(30)), streets.__getitems__(range(30))["target"]
    assert law.loc.isfinite().all()
    assert (law.scale > 0).all()
    report = fcal.evaluate(law, target)
    assert report.n > 100_000
    assert report.p_value > 1e-4  # false alarms, were the seed not fixed
    assert abs(report.scale.value - 1) < 0.01


def test_splits_have_no_drive_in_common():
    splits = StreetSplits(TINY)
    groups = [set(part.groups) for part in (splits.train, splits.validation, splits.test)]
    assert [len(group) for group in groups] == [3, 1, 1]
    assert len(set.union(*groups)) == 5
    torch.testing.assert_close(splits.test[0]["input"], StreetDepth(TINY)[16]["input"])


@pytest.mark.parametrize("drives", [3, 4, 5, 11, 40])
def test_every_split_has_a_drive_and_every_frame_a_split(drives):
    config = StreetConfig(frames=3 * drives - 1, frames_per_drive=3)
    lengths = [len(StreetDepth(config, split)) for split in ("train", "validation", "test")]
    assert sum(lengths) == config.frames
    assert min(lengths) >= 2


def test_names_of_data_include_streets():
    assert "street" in data.names()
    assert len(data.by_name("street")(frames=10, frames_per_drive=2, height=16, width=52).train) == 6
    with pytest.raises(ValueError, match="did you mean 'frames'"):
        data.by_name("street")(frame=10)


def test_memory_is_bounded_and_frames_come_back_the_same():
    streets = StreetDepth(TINY, kept=2)
    before = streets[0]["target"]
    for index in range(1, 5):
        streets[index]
    assert len(streets._frames) == 2
    torch.testing.assert_close(streets[0]["target"], before, equal_nan=True)
    assert len(StreetDepth(TINY, kept=0)._frames) == 0


def test_kept_frame_costs_fifteen_bytes_per_pixel(streets):
    kept = streets._frame(0)
    tensors = (kept.image, kept.measured, kept.depth, kept.sigma)
    assert sum(tensor.nbytes for tensor in tensors) == 15 * 32 * 104
    assert sum(tensor.untyped_storage().nbytes() for tensor in tensors) == 15 * 32 * 104  # no larger array behind


def test_batch_shares_no_memory_with_what_is_kept(streets):
    before = streets[2]["target"].clone()
    streets[2]["target"].fill_(1.0)
    streets.__getitems__([2])["input"].fill_(1.0)
    torch.testing.assert_close(streets[2]["target"], before, equal_nan=True)


def test_pickle_holds_no_frames(streets):
    packed = pickle.dumps(streets)
    assert len(packed) < 2000
    torch.testing.assert_close(pickle.loads(packed)[3]["input"], streets[3]["input"])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: StreetDepth({"frames": 3}), TypeError, "expected `config` a StreetConfig, got dict"),
        (
            lambda: StreetDepth(TINY, "val"),
            ValueError,
            "expected `split` one of 'train', 'validation', 'test', got 'val'",
        ),
        (lambda: StreetDepth(TINY)[20], IndexError, "expected `index` within 20 frames, got 20"),
        (lambda: StreetDepth(TINY)["0"], TypeError, "expected `index` an int, got str"),
        (lambda: StreetDepth(StreetConfig(frames=40), "train"), ValueError, "at least 3 drives of 20 frames"),
        (lambda: StreetDepth(TINY, kept=-1), ValueError, "expected `kept` >= 0"),
    ],
)
def test_dataset_refuses_wrong_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("seed", range(4))
def test_items_show_the_same_as_frames_with_objects(seed):
    """Without extents of objects, solids are drawn straight into the scene: another way to the same pixels."""
    config = StreetConfig(frames=6, frames_per_drive=6, height=48, width=156, seed=seed)
    streets = StreetDepth(config)
    for index in (0, 5):
        frame, (depth, sigma) = street_frame(config, index), streets.truth([index])
        np.testing.assert_array_equal(streets[index]["target"], frame.measured)
        np.testing.assert_array_equal(depth[0], frame.depth)
        np.testing.assert_array_equal(sigma[0], frame.sigma)
        colours = streets[index]["input"] * torch.tensor([0.229, 0.224, 0.225])[:, None, None]
        colours += torch.tensor([0.485, 0.456, 0.406])[:, None, None]
        np.testing.assert_allclose(255 * colours.permute(1, 2, 0), frame.image, atol=1e-3)
