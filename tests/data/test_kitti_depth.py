"""KITTI's trees and lists, on small ones as downloaded and, where they are, on the real lists."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from depth_files import DATA, bts_line, noise_image, write_image, write_kitti, write_list
from torch import nn
from torch.distributions import Normal

from fcal import data, models, training
from fcal.data import kitti_depth
from fcal.data.kitti_depth import focal_length, read_list, validation_drives

DRIVES = ("2011_09_26_drive_0001_sync", "2011_09_26_drive_0005_sync", "2011_10_03_drive_0034_sync")
LISTS = DATA / "splits"


@pytest.mark.parametrize(
    ("raw", "depth"),
    [
        ("", ""),
        ("kitti_raw", "data_depth_annotated"),
        ("raw_data", ""),
        ("", "depth"),
        ("KITTI/raw", "KITTI/data_depth_annotated"),
    ],
)
@pytest.mark.parametrize("split", ["train", "val", "."])
def test_frames_are_found_in_the_usual_arrangements(tmp_path, raw, depth, split):
    lines = write_kitti(tmp_path / "data", DRIVES, raw=raw, depth=depth, split=split)
    frames = kitti_depth(tmp_path / "data", write_list(tmp_path / "list.txt", lines))
    assert [frame.group for frame in frames] == [drive for drive in DRIVES for _ in range(2)]
    tree = tmp_path / "data"
    assert frames[5].image == tree / raw / "2011_10_03" / DRIVES[2] / "image_02/data/0000000001.png"
    assert frames[5].depth == tree / depth / split / DRIVES[2] / "proj_depth/groundtruth/image_02/0000000001.png"
    assert all(frame.image.is_file() and frame.depth.is_file() for frame in frames)


def test_trees_may_lie_in_two_folders(tmp_path):
    lines = write_kitti(tmp_path, DRIVES[:1], raw="images", depth="maps")
    frames = kitti_depth(tmp_path / "images", write_list(tmp_path / "l.txt", lines), depth_root=tmp_path / "maps")
    assert len(frames) == 2


def test_list_of_bts_states_the_focal_length(tmp_path):
    write_kitti(tmp_path, DRIVES[:1])
    frames = kitti_depth(tmp_path, write_list(tmp_path / "l.txt", [bts_line(DRIVES[0], 1, focal=707.0912)]))
    assert [frame.focal for frame in frames] == [707.0912]


def test_list_of_monodepth_takes_the_focal_length_of_its_camera_from_the_calibration(tmp_path):
    for camera in ("image_02", "image_03"):
        write_kitti(tmp_path, DRIVES[:1], camera=camera)
    lines = [f"2011_09_26/{DRIVES[0]} 1 r", f"2011_09_26/{DRIVES[0]} 0000000000 l"]
    right, left = kitti_depth(tmp_path, write_list(tmp_path / "list.txt", lines))
    assert right.image.parts[-3:] == ("image_03", "data", "0000000001.png")
    assert right.depth.parts[-2:] == ("image_03", "0000000001.png")
    assert (right.focal, left.focal) == (700.25, 721.5377)  # P_rect_03 and P_rect_02 of the calibration
    assert left.image.parts[-3:] == ("image_02", "data", "0000000000.png")


def test_lines_without_depth_are_left_out(tmp_path):
    lines = [*write_kitti(tmp_path, DRIVES[:1]), bts_line(DRIVES[0], 7, depth=False)]
    assert len(kitti_depth(tmp_path, write_list(tmp_path / "list.txt", lines))) == 2


def test_images_may_have_been_converted_to_jpeg(tmp_path):
    lines = write_kitti(tmp_path, DRIVES[:1], suffix=".jpg")
    frames = kitti_depth(tmp_path, write_list(tmp_path / "list.txt", lines))
    assert [frame.image.suffix for frame in frames] == [".jpg"] * 2


def test_kind_chooses_single_sweeps(tmp_path):
    lines = write_kitti(tmp_path, DRIVES[:1], kinds=("groundtruth", "velodyne_raw", "sigma", "truth"))
    frames = kitti_depth(tmp_path, write_list(tmp_path / "list.txt", lines), kind="velodyne_raw")
    assert [frame.depth.parts[-3] for frame in frames] == ["velodyne_raw"] * 2
    assert frames[0].sigma is None


def test_maps_of_known_noise_are_found_beside_the_ground_truth(tmp_path):
    lines = write_kitti(tmp_path, DRIVES[:1], kinds=("groundtruth", "sigma", "truth"))
    frames = kitti_depth(tmp_path, write_list(tmp_path / "list.txt", lines))
    truth, sigma = data.DepthFrames(frames).truth()
    targets = data.DepthFrames(frames).__getitems__([0, 1])["target"]
    # All three maps of a frame were written with the same numbers.
    torch.testing.assert_close(truth, targets, equal_nan=True)
    torch.testing.assert_close(sigma, targets, equal_nan=True)


def test_maps_of_known_noise_may_be_absent(tmp_path):
    frames = kitti_depth(tmp_path, write_list(tmp_path / "list.txt", write_kitti(tmp_path, DRIVES[:1])))
    assert frames[0].truth is None
    assert data.DepthFrames(frames).truth() is None


def test_missing_frames_are_counted_in_one_warning(tmp_path):
    lines = write_kitti(tmp_path, DRIVES)
    (tmp_path / "train" / DRIVES[1] / "proj_depth/groundtruth/image_02/0000000001.png").unlink()
    (tmp_path / "2011_10_03" / DRIVES[2] / "image_02/data/0000000000.png").unlink()
    frame_list = write_list(tmp_path / "list.txt", lines)
    with pytest.warns(UserWarning, match="missing") as caught:
        frames = kitti_depth(tmp_path, frame_list)
    first = f"{DRIVES[1]}/proj_depth/groundtruth/image_02/0000000001.png"
    assert [str(warning.message) for warning in caught] == [
        f"expected 6 frames of {frame_list} in {tmp_path}, 2 are missing (first: {first})"
    ]
    assert len(frames) == 4


def test_list_of_which_all_frames_are_missing_is_an_error(tmp_path):
    write_kitti(tmp_path, DRIVES[:1])
    frame_list = write_list(tmp_path / "list.txt", [bts_line(DRIVES[1], 0), bts_line(DRIVES[1], 1)])
    with pytest.raises(ValueError, match="expected the 2 frames of .*list.txt in .*, got none .first: 2011_09_26/2"):
        kitti_depth(tmp_path, frame_list)


GOOD = bts_line(DRIVES[0], 0)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (GOOD.rsplit(" ", 1)[0], "line 2 of {list} with 3 fields (IMAGE DEPTH FOCAL or FOLDER FRAME SIDE), got 2: "),
        (GOOD + " 1", "with 3 fields (IMAGE DEPTH FOCAL or FOLDER FRAME SIDE), got 4"),
        (GOOD.replace("721.5377", "wide"), "line 2 of {list} with a focal length in pixels, got 'wide'"),
        (GOOD.replace("721.5377", "nan"), "with a focal length in pixels, got 'nan'"),
        (GOOD.replace("721.5377", "-1"), "with a focal length in pixels, got '-1'"),
        (GOOD.replace("/data", ""), "line 2 of {list} with DATE/DRIVE/image_02/data/FRAME.png DRIVE/proj_depth"),
        (f"2011_09_26/{DRIVES[0]} seven l", "line 2 of {list} with DATE/DRIVE and a frame number, got 2011"),
        (f"2011_09_26/{DRIVES[0]} {'9' * 5000} l", "line 2 of {list} with DATE/DRIVE and a frame number, got 2011"),
        (f"{DRIVES[0]} 7 l", "with DATE/DRIVE and a frame number, got 2011"),
    ],
)
def test_malformed_line_is_named(tmp_path, line, message):
    path = write_list(tmp_path / "list.txt", [GOOD, line])
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the message is compared below
        read_list(path)
    assert message.format(list=path) in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "list.txt a list of frames, got: No such file"), (b"\xff\xfe\x00", "a text file in UTF-8, got other")],
)
def test_list_that_cannot_be_read_is_named(tmp_path, content, message):
    if content:
        (tmp_path / "list.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_list(tmp_path / "list.txt")


def test_list_with_an_impossible_name_is_named():
    with pytest.raises(ValueError, match="expected a.b a list of frames, got: embedded null byte"):
        read_list("a\0b")


def test_list_may_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "list.txt"
    path.write_bytes(b"\xef\xbb\xbf" + f"{GOOD}\r\n".encode())
    assert read_list(path) == read_list(write_list(tmp_path / "plain.txt", [GOOD]))


def test_reader_refuses_what_does_not_fit(tmp_path):
    lines = write_kitti(tmp_path, DRIVES[:1])
    frame_list = write_list(tmp_path / "list.txt", lines)
    with pytest.raises(ValueError, match="expected `root` a folder of KITTI's trees, got .*nowhere, no folder"):
        kitti_depth(tmp_path / "nowhere", frame_list)
    with pytest.raises(ValueError, match="expected `kind` one of 'groundtruth', 'velodyne_raw', got 'velodyne'"):
        kitti_depth(tmp_path, frame_list, kind="velodyne")
    with pytest.raises(ValueError, match="expected `frame_list` with frames that have a depth map, got .*list.txt"):
        kitti_depth(tmp_path, write_list(frame_list, [bts_line(DRIVES[0], 0, depth=False)]))


def test_calibration_that_is_missing_or_malformed_is_named(tmp_path):
    write_kitti(tmp_path, DRIVES[:1])
    frame_list, calibration = tmp_path / "list.txt", tmp_path / "2011_09_26/calib_cam_to_cam.txt"
    write_list(frame_list, [f"2011_09_26/{DRIVES[0]} 1 l"])
    calibration.write_text("P_rect_02: 1 2 3")
    with pytest.raises(ValueError, match="calib_cam_to_cam.txt with 12 numbers after P_rect_02:, got 3"):
        kitti_depth(tmp_path, frame_list)
    calibration.unlink()
    with pytest.raises(ValueError, match="2011_09_26/calib_cam_to_cam.txt beside the drives of .*, got no file"):
        kitti_depth(tmp_path, frame_list)
    with pytest.raises(ValueError, match="calib.txt a calibration of KITTI, got: "):
        focal_length(tmp_path / "calib.txt", "P2")


# As data by name


def options(folder, **others):
    lines = write_kitti(folder / "data", DRIVES, frames=3, shape=(20, 30))
    lists = {f"{name}_list": str(write_list(folder / f"{name}.txt", part))
             for name, part in (("train", lines[:6]), ("test", lines[6:]))}  # fmt: skip
    return {"root": str(folder / "data"), "size": [8, 12], "focal": 290.0, "crop": "", **lists, **others}


def test_splits_by_name_hold_out_whole_drives(tmp_path):
    parts = data.by_name("kitti-depth")(**options(tmp_path, garg=True))
    assert (parts.train.groups, parts.validation.groups) == ([DRIVES[0]] * 3, [DRIVES[1]] * 3)
    assert parts.test.groups == [DRIVES[2]] * 3
    assert (parts.train.view.garg, parts.validation.view.garg, parts.test.view.garg) == (False, True, True)
    assert parts.train[0]["input"].shape == (3, 8, 12)


def test_splits_by_name_take_a_list_to_validate_on(tmp_path):
    chosen = options(tmp_path)
    parts = data.by_name("kitti-depth")(**chosen, validation_list=chosen["test_list"])
    assert [len(part) for part in (parts.train, parts.validation, parts.test)] == [6, 3, 3]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lists": "x"}, "expected `data.options` keys among 'root', .*, got 'lists'"),
        ({"size": [8]}, "data.options: expected `size` a tuple of height and width, got"),
        ({"crop": "kx"}, "data.options: expected `crop` one of 'kb', got 'kx'"),
        ({"kind": "raw"}, "data.options: expected `kind` one of"),
    ],
)
def test_splits_by_name_refuse_options_that_do_not_fit(tmp_path, changed, message):
    with pytest.raises(ValueError, match=message):
        data.by_name("kitti-depth")(**options(tmp_path, **changed))


def test_every_tenth_drive_is_held_out():
    assert validation_drives([f"drive {number:02d}" for number in range(33)]) == ["drive 09", "drive 19", "drive 29"]
    with pytest.raises(ValueError, match="expected `validation_list`, or training frames of at least 2 drives, got 1"):
        validation_drives(["a", "a"])


class _Plane(nn.Module):
    """One convolution to depth and its logarithmic scale."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 2, 3, padding=1)

    def forward(self, images):
        mean, log_scale = self.layer(images).unbind(1)
        return Normal(10 + mean, log_scale.exp())


@pytest.mark.usefixtures("names_forgotten")
def test_network_trains_on_frames_by_name(tmp_path):
    pytest.importorskip("lightning")
    models.register("plane", _Plane)
    config = training.RunConfig(
        data=training.DataConfig(name="kitti-depth", options=options(tmp_path)),
        model=training.ModelConfig(name="plane"),
        fit=training.FitConfig(epochs=2, batch_size=2),
    )
    report = training.train(config, tmp_path / "run", progress=False).report
    test = data.by_name("kitti-depth")(**config.data.options).test
    assert report["test"]["n"] == int(test.__getitems__(range(3))["target"].isfinite().sum())


# The real lists

real = pytest.mark.skipif(not LISTS.is_dir(), reason=f"no lists of KITTI in {LISTS}")


@real
@pytest.mark.parametrize(
    ("name", "lines", "with_depth", "drives"),
    [
        ("kitti_eigen_bts/eigen_train_files_with_gt.txt", 23158, 23158, 33),
        ("kitti_eigen_bts/eigen_test_files_with_gt.txt", 697, 652, 28),
        ("monodepth2/eigen_test_files.txt", 697, 697, 28),
        ("monodepth2/eigen_benchmark_test_files.txt", 652, 652, 28),
        ("monodepth2/eigen_zhou_val_files.txt", 4424, 4424, 31),
    ],
)
def test_real_lists_are_read_in_full(name, lines, with_depth, drives):
    listed = read_list(LISTS / name)
    assert len(listed) == lines
    assert sum(line.depth is not None for line in listed) == with_depth
    assert len({line.drive for line in listed}) == drives


@real
def test_real_lists_of_both_formats_name_the_same_test_frames():
    bts = {line.image for line in read_list(LISTS / "kitti_eigen_bts/eigen_test_files_with_gt.txt") if line.depth}
    assert bts == {line.image for line in read_list(LISTS / "monodepth2/eigen_benchmark_test_files.txt")}


@real
def test_drives_held_out_of_the_real_list_are_as_documented():
    drives = [line.drive for line in read_list(LISTS / "kitti_eigen_bts/eigen_train_files_with_gt.txt")]
    chosen = validation_drives(drives)
    assert chosen == ["2011_09_26_drive_0028_sync", "2011_09_26_drive_0087_sync", "2011_09_30_drive_0033_sync"]
    assert sum(drive in chosen for drive in drives) == 2723


@real
def test_real_frames_in_the_downloaded_layout_are_found(tmp_path):
    """Of the real test list, files of one frame as downloaded; the other 651 are reported."""
    line = read_list(LISTS / "kitti_eigen_bts/eigen_test_files_with_gt.txt")[0]
    write_image(tmp_path / line.image, noise_image((375, 1242)))
    write_image(tmp_path / "val" / line.depth, np.full((375, 1242), 2560, np.uint16))
    with pytest.warns(UserWarning, match="expected 652 frames of .*, 651 are missing"):
        (frame,) = kitti_depth(tmp_path, LISTS / "kitti_eigen_bts/eigen_test_files_with_gt.txt")
    assert replace(frame, focal=721.5377) == frame
    target = data.DepthFrames([frame], data.DepthView(crop="kb", size=(352, 1216), focal=721.5377))[0]["target"]
    assert (target == 10.0).all()
