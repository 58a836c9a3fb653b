"""The flat folders of few real frames: on made-up ones and, where they are, on the real ones."""

import pytest
import torch
from depth_files import DATA, noise_image, sparse_depth, write_image, write_map

from fcal import data
from fcal.data import DepthFrames, DepthView, kitti_mini
from fcal.data.kitti_mini import BLOCK, FIRST_OF_VALIDATION, GAP, OBJECT, RAW, TEST_DRIVES, TRAIN_DRIVE

DRIVES = {
    "000000": ("2011_09_28_drive_0106_sync", "none"),
    "000001": ("2011_09_26_drive_0022_sync", "train"),
    "000002": ("2011_09_26_drive_0061_sync", "train"),
    "000003": ("2011_09_26_drive_0086_sync", "test"),
}


def write_mini(folder):
    """The folders with few small frames."""
    for drive, count in ((TRAIN_DRIVE, 154), (TEST_DRIVES[0], 6), (TEST_DRIVES[1], 4)):
        for number in range(0, count, 2):
            write_image(folder / RAW / drive / "image_02" / f"{number:010d}.jpg", noise_image((8, 12), number))
            write_map(folder / RAW / drive / "depth_02" / f"{number:010d}.png", sparse_depth((8, 12), number))
    (folder / RAW / "calib_cam_to_cam.txt").write_text("P_rect_02: 721.5377 0 6 0 0 721.5377 4 0 0 0 1 0\n")
    for name in DRIVES:
        write_image(folder / OBJECT / "image_2" / f"{name}.jpg", noise_image((16, 24)))
        write_map(folder / OBJECT / "depth" / f"{name}.png", sparse_depth((16, 24)))
        (folder / OBJECT / "calib").mkdir(exist_ok=True)
        (folder / OBJECT / "calib" / f"{name}.txt").write_text("P2: 707.0493 0 6 0 0 707.0493 4 0 0 0 1 0\n")
    rows = [f"{name},2011_09_26,{drive},0,{side}" for name, (drive, side) in DRIVES.items()]
    (folder / OBJECT / "raw_drive_of_frame.csv").write_text("\n".join(["frame,date,drive,index,eigen", *rows]))
    return folder


def drive_of(frame):
    return frame.group.partition("/")[0]


def test_splits_follow_the_sides_of_eigen(tmp_path):
    splits = kitti_mini(write_mini(tmp_path))
    assert {drive_of(frame) for frame in splits.train} == {TRAIN_DRIVE, "2011_09_26_drive_0022_sync"}
    assert {drive_of(frame) for frame in splits.validation} == {TRAIN_DRIVE, "2011_09_26_drive_0061_sync"}
    assert {frame.group for frame in splits.test} == {*TEST_DRIVES, "2011_09_26_drive_0086_sync"}
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (61 + 1, 11 + 1, 3 + 2 + 1)


def test_validation_is_separated_from_training_by_the_gap(tmp_path):
    splits = kitti_mini(write_mini(tmp_path))
    last, first = (
        choose(int(frame.image.stem) for frame in part if drive_of(frame) == TRAIN_DRIVE)
        for choose, part in ((max, splits.train), (min, splits.validation))
    )
    assert (last, first) == (120, 132)
    assert first - last > GAP


def test_groups_of_the_training_drive_are_time_blocks(tmp_path):
    splits = kitti_mini(write_mini(tmp_path))
    of_drive = [frame for frame in (*splits.train, *splits.validation) if drive_of(frame) == TRAIN_DRIVE]
    assert {frame.group: None for frame in of_drive} == {f"{TRAIN_DRIVE}/{number}": None for number in range(7)}
    for frame in of_drive:
        block = int(frame.group.rpartition("/")[2])
        assert block * BLOCK <= int(frame.image.stem) < (block + 1) * BLOCK
    assert FIRST_OF_VALIDATION % BLOCK == 0  # so that no block is on both sides


def test_focal_length_is_that_of_the_stored_image(tmp_path):
    splits = kitti_mini(write_mini(tmp_path))
    assert {frame.focal for frame in splits.test} == {721.5377 / 2, 707.0493}


def test_data_by_name_has_items_of_one_size_and_focal_length(tmp_path):
    parts = data.by_name("kitti-mini")(root=str(write_mini(tmp_path)), size=[2, 3], focal=90.0)
    batch = parts.test.__getitems__(range(len(parts.test)))
    assert batch["target"].shape == (6, 2, 3)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda root: (root / OBJECT).rename(root / "other"), "with kitti_raw_half and kitti_object_101, got"),
        (lambda root: (root / RAW / "calib_cam_to_cam.txt").unlink(), "calib_cam_to_cam.txt a calibration of KITTI"),
        (lambda root: (root / OBJECT / "raw_drive_of_frame.csv").unlink(), "raw_drive_of_frame.csv a table in CSV"),
        (
            lambda root: (root / OBJECT / "raw_drive_of_frame.csv").write_text("frame,drive,eigen\n000000,a,both\n"),
            r"line 2 of .*raw_drive_of_frame.csv with frame, drive, eigen .train, test, none., got",
        ),
        (lambda root: (root / RAW / TEST_DRIVES[0] / "image_02").rename(root / "x"), "image_02 with images"),
        (
            lambda root: write_image(root / RAW / TRAIN_DRIVE / "image_02/first.jpg", noise_image((8, 12))),
            "expected images whose names are numbers, got .*first.jpg",
        ),
    ],
)
def test_reader_refuses_folders_that_do_not_fit(tmp_path, damage, message):
    damage(write_mini(tmp_path))
    with pytest.raises(ValueError, match=message):
        kitti_mini(tmp_path)


# The real frames

real = pytest.mark.skipif(not (DATA / RAW).is_dir() or not (DATA / OBJECT).is_dir(), reason=f"no frames in {DATA}")


@real
def test_real_frames_are_split_as_documented():
    splits = kitti_mini(DATA)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (97, 25, 82 + 39 + 45)
    sides = [{drive_of(frame) for frame in part} for part in (splits.train, splits.validation, splits.test)]
    assert sides[0] & sides[1] == {TRAIN_DRIVE}
    assert not (sides[0] | sides[1]) & sides[2]
    unused = 101 + 198 - 97 - 25 - 166
    assert unused == 6 + 5  # of drives on neither side, and in the gap


@real
def test_real_frames_of_all_cameras_show_the_same_part_of_the_world():
    """The road 3 cells above the bottom edge is at the same distance in all cameras: all are mounted at 1.65 m."""
    splits = kitti_mini(DATA)
    distances = {}
    for frame in (*splits.test, *splits.train):
        distances.setdefault(round(frame.focal), []).append(frame)
    view = DepthView(size=(96, 320), focal=186.0)
    medians = []
    for frames in distances.values():
        targets = DepthFrames(frames[:5], view).__getitems__(range(len(frames[:5])))["target"]
        medians.append(targets[:, 90:94, 120:200].nanmedian().item())
    assert len(medians) >= 4
    assert max(medians) / min(medians) < 1.2


@real
def test_real_frames_are_all_readable():
    splits = kitti_mini(DATA).datasets(DepthView(size=(96, 320), focal=186.0))
    for part in (splits.train, splits.validation, splits.test):
        batch = part.__getitems__(range(0, len(part), 5))
        assert batch["input"].isfinite().all()
        share = batch["target"].isfinite().float().mean((1, 2))
        assert share.min() > 0.2
        assert torch.all(batch["target"].nan_to_num(1.0) < 80)
        assert part.skipped == []
