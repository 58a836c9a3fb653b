"""Frames as a dataset: batches, groups, known noise, and files that cannot be used."""

import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from depth_files import noise_image, sparse_depth, write_frame, write_frames, write_image, write_map
from numpy.testing import assert_allclose, assert_array_equal
from torch.testing import assert_close
from torch.utils.data import Subset

from fcal._datasets import get_batch
from fcal.data import DepthFrame, DepthFrames, DepthView
from fcal.data.depth_frames import read_image, read_map

VIEW = DepthView(size=(8, 12), focal=10.0)


def same(first, second):
    assert_close(dict(first), dict(second), equal_nan=True)


def test_item_is_an_image_and_a_target_of_the_view(tmp_path):
    item = DepthFrames([write_frame(tmp_path)], VIEW)[0]
    assert {name: (tuple(values.shape), values.dtype) for name, values in item.items()} == {
        "input": ((3, 8, 12), torch.float32),
        "target": ((8, 12), torch.float32),
    }


def test_batch_is_the_stacked_items_in_order(tmp_path):
    data = DepthFrames(write_frames(tmp_path, 4), VIEW)
    batch = data.__getitems__([2, 0, -1])
    for row, index in enumerate((2, 0, 3)):
        same({name: values[row] for name, values in batch.items()}, data[index])


def test_subset_of_torch_returns_batches(tmp_path):
    data = DepthFrames(write_frames(tmp_path, 4), VIEW)
    same(get_batch(Subset(data, [3, 1]), [1, 0]), data.__getitems__([1, 3]))


def test_subset_keeps_frames_and_groups(tmp_path):
    data = DepthFrames(write_frames(tmp_path, 8), VIEW)
    part = data.subset([6, 1])
    assert data.groups == ["drive 0"] * 4 + ["drive 1"] * 4
    assert part.groups == ["drive 1", "drive 0"]
    same(part.__getitems__([0, 1]), data.__getitems__([6, 1]))


def test_cache_returns_what_was_read_without_the_files(tmp_path):
    data = DepthFrames(write_frames(tmp_path, 2), VIEW, cache=True)
    before = data.__getitems__([0, 1])
    for frame in data.frames:
        frame.image.unlink()
    same(data.__getitems__([0, 1]), before)
    same(data.subset([1])[0], data[1])


def test_pickled_dataset_reads_the_files_again(tmp_path):
    data = DepthFrames(write_frames(tmp_path, 2), VIEW, cache=True)
    expected, size = data[1], len(pickle.dumps(data))
    data.__getitems__([0, 1])
    assert len(pickle.dumps(data)) == size
    same(pickle.loads(pickle.dumps(data))[1], expected)


def test_grey_and_jpeg_images_are_read_as_colours(tmp_path):
    grey = np.full((16, 24), 77, np.uint8)
    for name in ("grey.png", "grey.jpg"):
        assert_array_equal(read_image(write_image(tmp_path / name, grey)), np.full((16, 24, 3), 77))


def test_map_of_16_bits_is_read_exactly(tmp_path):
    values = np.arange(65536).reshape(256, 256)
    assert_array_equal(read_map(write_map(tmp_path / "map.png", values / 256), (256, 256)), values)


# Known noise


def with_truth(frame, truth, sigma):
    folder = frame.depth.parent.parent
    return replace(
        frame,
        truth=write_map(folder / "truth" / frame.depth.name, truth),
        sigma=write_map(folder / "sigma" / frame.depth.name, sigma, 4096),
    )


def test_truth_lies_at_the_pixels_of_the_targets(tmp_path):
    depth = sparse_depth((16, 24), farthest=70.0)
    rows = np.arange(16)[:, None] + np.zeros((1, 24))
    frame = with_truth(write_frame(tmp_path, depth=depth), np.where(depth > 0, depth + 1, 9.0), 0.5 + rows / 16)
    data = DepthFrames([frame], DepthView(size=(8, 24)))
    truth, sigma = data.truth()
    target = data[0]["target"]
    assert truth.shape == sigma.shape == (1, 8, 24)
    assert_close(truth[0], target + 1, equal_nan=True)
    pairs = np.where(depth > 0, depth, np.inf).reshape(8, 2, 24)
    of_nearest = (np.arange(8)[:, None] * 2 + pairs.argmin(1)) / 16 + 0.5
    assert_array_equal(sigma[0], np.where(np.isfinite(pairs.min(1)), of_nearest, np.nan))


def test_truth_decides_which_of_several_noisy_depths_is_nearest(tmp_path):
    depth, truth, sigma = np.array([[9.0, 8.0]]), np.array([[8.5, 8.75]]), np.array([[0.25, 1.0]])
    frame = with_truth(write_frame(tmp_path, depth=depth, shape=(1, 2)), truth, sigma)
    data = DepthFrames([frame], DepthView(size=(1, 1)))
    assert data[0]["target"].item() == 9.0
    assert [values.item() for values in data.truth()] == [8.5, 0.25]
    assert DepthFrames([replace(frame, truth=None)], DepthView(size=(1, 1)))[0]["target"].item() == 8.0


def test_noise_of_kept_targets_is_as_drawn(tmp_path):
    """The mean of about 10 000 standardised residuals: its standard error is 0.01, so a bound of 0.05 fails by chance
    in fewer than 1 of 10^6 seeds; choosing the least of four noisy depths shifts it by -1.03.
    """
    rng, shape = np.random.default_rng(0), (200, 200)
    truth = np.round(rng.uniform(20, 21, shape) * 256) / 256
    noisy = truth + 0.5 * rng.normal(size=shape)
    frame = with_truth(write_frame(tmp_path, depth=noisy, shape=shape), truth, np.full(shape, 0.5))
    data = DepthFrames([frame], DepthView(size=(100, 100)))
    true_depth, sigma = data.truth()
    assert abs(((data[0]["target"] - true_depth[0]) / sigma[0]).mean().item()) < 0.05


def test_truth_of_some_frames_alone_is_none(tmp_path):
    first, second = write_frames(tmp_path, 2)
    known = with_truth(first, np.ones((16, 24)), np.ones((16, 24)))
    assert DepthFrames([known, second], VIEW).truth() is None
    assert DepthFrames([known], VIEW).truth([0]) is not None


def test_truth_of_a_frame_that_is_skipped_is_missing(tmp_path):
    frames = [with_truth(frame, np.ones((16, 24)), np.ones((16, 24))) for frame in write_frames(tmp_path, 100)]
    frames[3].image.write_bytes(b"")
    data = DepthFrames(frames, VIEW)
    with pytest.warns(UserWarning, match="003.png"):
        truth, sigma = data.truth([3, 4])
    assert truth[0].isnan().all()
    assert sigma[0].isnan().all()
    assert not truth[1].isnan().all()


# Files that cannot be used


def truncated(path):
    path.write_bytes(path.read_bytes()[:-40])


def flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


FAULTS = {
    "8 bits": ("depth", lambda path: write_image(path, np.ones((16, 24), np.uint8)), "16 bits and one channel, got 8"),
    "colours": ("depth", lambda path: write_image(path, noise_image((16, 24))), "one channel, got 8 bits, mode RGB"),
    "other size": ("depth", lambda path: write_map(path, np.ones((8, 12))), "size of its image, 16 x 24, got 8 x 12"),
    "no depth": ("depth", lambda path: path.unlink(), "got no such file"),
    "all zero": ("depth", lambda path: write_map(path, np.zeros((16, 24))), "with a depth between 0.001 and 80 m in"),
    "all far": ("depth", lambda path: write_map(path, np.full((16, 24), 90.0)), "in the part that is shown, got none"),
    "truncated depth": ("depth", truncated, "an image file that can be read, got:"),
    "flipped byte": ("depth", flipped, "an image file that can be read, got:"),
    "no image": ("image", lambda path: path.unlink(), "got no such file"),
    "empty image": ("image", lambda path: path.write_bytes(b""), "an image file that can be read, got:"),
    "truncated image": ("image", truncated, "an image file that can be read, got:"),
    "deep image": ("image", lambda path: write_map(path, np.ones((16, 24))), "an image of 8 bits, got mode I;16"),
}


@pytest.fixture(scope="module")
def hundred(tmp_path_factory):
    return write_frames(tmp_path_factory.mktemp("frames"), 100)


@pytest.mark.parametrize("name", FAULTS)
def test_one_bad_frame_of_a_hundred_is_skipped_and_named(tmp_path, hundred, name):
    which, damage, message = FAULTS[name]
    bad = write_frame(tmp_path)
    path = getattr(bad, which)
    damage(path)
    data = DepthFrames([*hundred[:40], bad, *hundred[41:]], VIEW)
    with pytest.warns(UserWarning, match="skipped a frame: ") as caught:
        batch = data.__getitems__([39, 40, 41])
    assert len(caught) == 1
    assert message in str(caught[0].message)
    assert str(path) in str(caught[0].message)
    assert data.skipped == [(path, str(caught[0].message).removeprefix("skipped a frame: "))]
    assert batch["target"].isnan().all(dim=(1, 2)).tolist() == [False, True, False]
    assert batch["input"].isfinite().all()
    same({name: values[2] for name, values in batch.items()}, data[41])


def test_bad_frame_is_warned_of_once_and_recorded_once(hundred, tmp_path):
    bad = replace(hundred[0], depth=tmp_path / "none.png")
    data = DepthFrames([bad, *hundred[1:]], VIEW)
    with pytest.warns(UserWarning, match="none.png"):
        first = data[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(data[0], first)
    assert len(data.skipped) == 1


def test_image_of_a_frame_without_depth_is_kept(hundred, tmp_path):
    bad = replace(hundred[0], depth=tmp_path / "none.png")
    with pytest.warns(UserWarning, match="none.png"):
        item = DepthFrames([bad, *hundred[1:]], VIEW)[0]
    assert_close(item["input"], DepthFrames(hundred, VIEW)[0]["input"])


def test_frame_without_image_has_the_mean_colour(hundred, tmp_path):
    bad = replace(hundred[0], image=tmp_path / "none.png")
    with pytest.warns(UserWarning, match="none.png"):
        item = DepthFrames([bad, *hundred[1:]], VIEW)[0]
    assert item["input"].abs().max() < 0.01


def test_more_than_one_percent_of_bad_frames_is_an_error(hundred, tmp_path):
    bad = [replace(hundred[0], depth=tmp_path / f"none-{number}.png") for number in range(2)]
    data = DepthFrames([*bad, *hundred[2:]], VIEW)
    with pytest.warns(UserWarning, match="none-1"):
        data[1]
    message = "expected at most 1% unreadable frames, got 2 of 100, the first: expected .*none-0.png, got no such file"
    with pytest.raises(ValueError, match=message):
        data.__getitems__([0, 5])


def test_share_of_bad_frames_is_that_of_all_frames_for_a_subset(hundred, tmp_path):
    data = DepthFrames([replace(hundred[0], depth=tmp_path / "none.png"), *hundred[1:]], VIEW)
    with pytest.warns(UserWarning, match="none.png"):
        assert data.subset([0, 1])[0]["target"].isnan().all()


def test_frame_drawn_twice_is_bad_once(hundred, tmp_path):
    data = DepthFrames([replace(hundred[0], depth=tmp_path / "none.png"), *hundred[1:]], VIEW)
    bag = data.subset([0, 0, 1])
    with pytest.warns(UserWarning, match="none.png") as caught:
        bag.__getitems__([0, 1, 2])
    assert (len(caught), len(bag.skipped), len(data.skipped)) == (1, 1, 1)


def test_pickled_dataset_remembers_what_was_skipped(hundred, tmp_path):
    data = DepthFrames([replace(hundred[0], depth=tmp_path / "none.png"), *hundred[1:]], VIEW)
    with pytest.warns(UserWarning, match="none.png"):
        data[0]
    assert pickle.loads(pickle.dumps(data)).skipped == data.skipped == [(tmp_path / "none.png", data.skipped[0][1])]


def test_unreadable_image_is_an_error_where_items_have_no_common_size(hundred, tmp_path):
    data = DepthFrames([replace(hundred[0], image=tmp_path / "none.png"), *hundred[1:]])
    with pytest.warns(UserWarning, match="none.png"), pytest.raises(ValueError, match="none.png, got no such file"):
        data[0]


def problem_of(path):
    try:
        read_image(path)
    except ValueError as error:
        return str(error)


def test_damaged_files_never_raise_anything_else(tmp_path):
    rng = np.random.default_rng(0)
    for suffix in (".png", ".jpg"):
        path = write_image(tmp_path / f"image{suffix}", noise_image((16, 24)))
        content = path.read_bytes()
        for _ in range(150):
            damaged = bytearray(content[: rng.integers(1, len(content) + 1)])
            damaged[rng.integers(len(damaged))] ^= 1 << rng.integers(8)
            path.write_bytes(damaged)
            problem = problem_of(path)
            assert problem is None or (str(path) in problem and "\n" not in problem)


def test_frames_of_several_sizes_need_a_size(tmp_path):
    frames = [write_frame(tmp_path, "a"), write_frame(tmp_path, "b", shape=(18, 24))]
    with pytest.raises(
        ValueError, match=r"expected `size` of a view for frames of several sizes, got None for \(16, 24"
    ):
        DepthFrames(frames).__getitems__([0, 1])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda _: DepthFrames([]), ValueError, "expected `frames` with at least 1 frame, got none"),
        (lambda data: data[8], IndexError, "expected `index` within 8 frames, got 8"),
        (lambda data: data[0.5], TypeError, "expected `index` an int, got float"),
        (lambda data: data.subset([]), ValueError, "expected `frames` with at least 1 frame, got none"),
        (lambda data: DepthFrames(data.frames, cache=1), TypeError, "expected `cache` a bool, got int 1"),
        (lambda data: replace(data.frames[0], focal=0.0), ValueError, "expected `focal` within [1, 100000], got 0.0"),
    ],
)
def test_dataset_refuses_what_does_not_fit(hundred, call, error, message):
    with pytest.raises(error) as caught:
        call(DepthFrames(hundred[:8], VIEW))
    assert message in str(caught.value)


def test_depth_is_stored_in_metres_times_256(tmp_path):
    write_image(tmp_path / "d.png", np.array([[256, 0, 640]], np.uint16))
    image = write_image(tmp_path / "i.png", noise_image((1, 3)))
    frame = DepthFrame(image=image, depth=tmp_path / "d.png", group="a", focal=1.0)
    assert_allclose(DepthFrames([frame])[0]["target"], [[1.0, np.nan, 2.5]])
