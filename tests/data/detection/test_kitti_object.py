"""KITTI's object data: labels, what is ignored, difficulties, drives, splits, bad files; also of a street world."""

import numpy as np
import pytest
import torch
from detection_files import CAR, DATA, write_kitti_object, write_mapping
from numpy.testing import assert_allclose, assert_array_equal

from fcal import data
from fcal.data.detection import by_name, fold_splits, kitti_object
from fcal.data.detection.detection_splits import grouped_split
from fcal.data.detection.kitti_object import PAPER, read_mapping
from fcal.data.folds import group_numbers
from fcal.data.street import StreetConfig, street_frame
from fcal.data.street.writing import write_street

OBJECT = DATA / "kitti_object_101"
LISTS = DATA / "splits" / "kitti_object_imagesets"
STREET = StreetConfig(frames=10, frames_per_drive=2, seed=4, height=96, width=320)
REGION = "DontCare -1 -1 -10 100.00 20.00 149.00 39.00 -1 -1 -1 -1000 -1000 -1000 -10"


def line(kind="Car", truncated=0.0, occluded=0, box=(100.0, 50.0, 199.0, 149.0), location=(0.0, 1.5, 20.0)):
    corners = " ".join(f"{value:.2f}" for value in box)
    place = " ".join(f"{value:.2f}" for value in location)
    return f"{kind} {truncated:.2f} {occluded} 0.10 {corners} 1.50 1.60 3.90 {place} 0.20"


def target_of(folder, *lines, **options):
    return kitti_object(write_kitti_object(folder, [lines]), **options)[0]["target"]


def test_label_becomes_a_box_of_edges_with_its_attributes(tmp_path):
    target = target_of(tmp_path, line("Cyclist", 0.25, 1, (100, 50.5, 199, 149), (3.0, 1.0, 20.0)))
    assert_array_equal(target["boxes"], [[100, 50.5, 200, 150]])
    assert target["labels"].tolist() == [3]
    assert_allclose(target["distance"], [np.sqrt(9 + 1 + 400)], rtol=1e-6)
    assert_allclose(target["truncation"], [0.25])
    assert (target["occlusion"].tolist(), target["difficulty"].tolist()) == ([1.0], [1])
    assert (target["ignored"].tolist(), target["crowd"].tolist()) == ([False], [False])


def test_region_without_labels_is_an_ignored_crowd_of_each_class(tmp_path):
    target = target_of(tmp_path, REGION, CAR)
    assert target["labels"].tolist() == [1, 2, 3, 1]
    assert target["crowd"].tolist() == target["ignored"].tolist() == [True, True, True, False]
    assert_array_equal(target["boxes"][:3], [[100, 20, 150, 40]] * 3)
    assert target["distance"][:3].isnan().all()
    assert target["difficulty"].tolist() == [3, 3, 3, 1]


@pytest.mark.parametrize(
    ("kind", "label"), [("Van", 1), ("Person_sitting", 2), ("Truck", None), ("Tram", None), ("Misc", None)]
)
def test_neighbours_are_ignored_and_others_are_background(tmp_path, kind, label):
    target = target_of(tmp_path, line(kind))
    assert target["labels"].tolist() == ([] if label is None else [label])
    assert bool(target["ignored"].all())


@pytest.mark.parametrize(
    ("height", "occluded", "truncated", "level"),
    [  # limits of KITTI's development kit
        (40, 0, 0.15, 0),
        (39, 0, 0.15, 1),
        (40, 1, 0.15, 1),
        (40, 0, 0.16, 1),
        (25, 1, 0.30, 1),
        (25, 2, 0.30, 2),
        (25, 0, 0.31, 2),
        (25, 2, 0.50, 2),
        (24, 0, 0.0, 3),
        (50, 3, 0.0, 3),
        (50, 0, 0.51, 3),
    ],
)
def test_difficulty_follows_height_occlusion_and_truncation(tmp_path, height, occluded, truncated, level):
    label = line("Car", truncated, occluded, (100, 50, 150, 50 + height))
    frames = write_kitti_object(tmp_path, [[label]])
    for number, hardest in enumerate(("easy", "moderate", "hard", "all")):
        target = kitti_object(frames, hardest=hardest)[0]["target"]
        assert target["difficulty"].tolist() == [level]
        assert target["ignored"].tolist() == [level > number]


def test_difficulty_is_scaled_to_other_images(tmp_path):
    label = line("Car", box=(10, 5, 30, 15))  # 10 pixels high
    frames = kitti_object(write_kitti_object(tmp_path, [[label]], shape=(94, 310)))  # a quarter of 40 pixels is enough
    assert frames[0]["target"]["difficulty"].tolist() == [0]


def test_images_without_objects_are_kept(tmp_path):
    frames = kitti_object(write_kitti_object(tmp_path, [[CAR], [], [line("Truck")]]))
    assert [len(frames[index]["target"]["boxes"]) for index in range(3)] == [1, 0, 0]
    assert frames.names == ["000000", "000001", "000002"]


def test_jpeg_images_without_the_folder_training_are_read(tmp_path):
    frames = kitti_object(write_kitti_object(tmp_path, [[CAR], []], suffix=".jpg", within=""), size=(96, 320))
    assert frames[1]["input"].shape == (3, 96, 320)


def test_groups_are_drives_of_the_development_kit(tmp_path):
    drives = [f"2011_09_26_drive_{number // 3:04d}_sync" for number in range(12)]
    write_kitti_object(tmp_path, [[CAR]] * 12, shape=(20, 66))
    write_mapping(tmp_path / "devkit" / "mapping", drives)
    with pytest.warns(UserWarning, match="clipped 12 of 12"):
        frames = kitti_object(tmp_path)
    assert frames.group_names == drives
    assert frames.groups == [number // 3 for number in range(12)]


# Splits


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """75 images of 15 drives."""
    folder = write_kitti_object(tmp_path_factory.mktemp("kitti"), [[CAR]] * 75, shape=(60, 199))
    write_mapping(folder / "mapping", [f"drive {number // 5}".replace(" ", "_") for number in range(75)])
    return folder


def names_of(splits):
    return [set(part.names) for part in (splits.train, splits.validation, splits.test)]


def test_split_of_the_paper_has_its_proportions_and_follows_the_seed(tree):
    first, again, other = (names_of(by_name("kitti")(root=str(tree), seed=seed)) for seed in (0, 0, 1))
    assert [len(part) for part in first] == [45, 5, 25]
    assert len(set.union(*first)) == 75
    assert first == again != other


def test_split_by_drive_has_no_drive_in_common(tree):
    splits = by_name("kitti")(root=str(tree), split="drives", seed=3)
    drives = [set(part.group_names) for part in (splits.train, splits.validation, splits.test)]
    assert sum(map(len, drives)) == len(set.union(*drives)) == 15
    assert [len(part) for part in drives] == [9, 1, 5]
    assert not set(splits.train.groups) & set(splits.test.groups)


def test_only_training_items_are_mirrored(tree):
    splits = by_name("kitti")(root=str(tree), size=[30, 99])
    assert (splits.train.flip, splits.validation.flip, splits.test.flip) == (True, False, False)
    assert not by_name("kitti")(root=str(tree), flip=False).train.flip
    assert splits.test[0]["input"].shape == (3, 30, 99)


def test_data_of_training_by_name_is_the_same(tree):
    assert names_of(data.by_name("kitti-object")(root=str(tree))) == names_of(by_name("kitti")(root=str(tree)))


def test_folds_test_on_each_image_once_and_have_no_drive_in_common(tree):
    frames = kitti_object(tree)
    tested = []
    for fold in range(4):
        splits = fold_splits(frames, fold, folds=4, seed=1)
        parts = [set(part.group_names) for part in (splits.train, splits.validation, splits.test)]
        assert sum(map(len, parts)) == len(set.union(*parts)) == 15
        tested += splits.test.names
    assert sorted(tested) == frames.names


def test_split_by_unknown_drives_is_refused(tmp_path):
    write_kitti_object(tmp_path, [[]] * 5, shape=(20, 66))
    with pytest.raises(ValueError, match="expected `mapping`, a folder of the frames' drives, to split by, got none"):
        by_name("kitti")(root=str(tmp_path), split="drives")


# Bad files


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Car 0.0 0", r"expected line 2 of .*000000.txt with 15 fields of KITTI's labels, got 3"),
        (
            CAR.replace("Car", "Caar"),
            r"line 2 of .*000000.txt with a class among 'Car', .*, got 'Caar' .did you mean 'Car'",
        ),
        (CAR.replace("29.00", "wide"), r"line 2 of .*000000.txt with numbers after the class, got 'wide'"),
        (CAR.replace("29.00", "nan"), r"numbers after the class, got 'nan'"),
        (CAR.replace("29.00", "1e300"), r"numbers after the class, got '1e300'"),
    ],
)
def test_malformed_line_is_named(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        kitti_object(write_kitti_object(tmp_path, [[CAR, text]], shape=(60, 199)))


def test_file_of_other_bytes_is_named(tmp_path):
    write_kitti_object(tmp_path, [[CAR]], shape=(60, 199))
    (tmp_path / "training/label_2/000000.txt").write_bytes(b"Car \xff")
    with pytest.raises(ValueError, match=r"expected .*000000.txt a text file in UTF-8, got other bytes"):
        kitti_object(tmp_path)


def test_images_that_cannot_be_read_are_left_out_and_counted(tmp_path):
    write_kitti_object(tmp_path, [[CAR]] * 5, shape=(60, 199))
    (tmp_path / "training/image_2/000001.png").unlink()
    (tmp_path / "training/image_2/000003.png").write_bytes(b"")
    with pytest.warns(
        UserWarning, match=r"expected 5 images of .*, left out 2 that cannot be read .first: .*000001.png"
    ):
        frames = kitti_object(tmp_path)
    assert frames.names == ["000000", "000002", "000004"]
    assert frames[2]["target"]["image_id"] == 4


def test_images_without_labels_are_counted(tmp_path):
    write_kitti_object(tmp_path, [[CAR]] * 3, shape=(60, 199))
    (tmp_path / "training/label_2/000001.txt").unlink()
    with pytest.warns(UserWarning, match=r"left out 1 images without .first: .*000001.png"):
        assert len(kitti_object(tmp_path)) == 2


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda root: (root / "training").rename(root / "x"),
            "a folder with training/image_2 and training/label_2, got",
        ),
        (lambda root: (root / "training/label_2/000000.txt").unlink(), r"label_2 with labels \*.txt, got none"),
        (lambda root: (root / "training/image_2/000000.png").unlink(), r"expected 1 images of .*, got none .first: "),
        (lambda root: write_mapping(root / "mapping", []), "expected a drive of every frame, got none of .*000000.txt"),
        (lambda root: (root / "mapping").mkdir(), "train_mapping.txt KITTI's list of drives, got: No such file"),
    ],
)
def test_folders_that_do_not_fit_are_refused(tmp_path, damage, message):
    damage(write_kitti_object(tmp_path, [[CAR]], shape=(60, 199)))
    with pytest.raises(ValueError, match=message):
        kitti_object(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "train_mapping.txt",
            "2011_09_26 drive\n",
            "expected line 1 of .*train_mapping.txt with DATE DRIVE FRAME, got 2",
        ),
        ("train_rand.txt", "1,3", "expected .*train_rand.txt with numbers from 1 to 2, the lines of"),
        ("train_rand.txt", "1,two", "expected .*train_rand.txt with numbers from 1 to 2"),
        ("train_rand.txt", "1," + "9" * 5000, "expected .*train_rand.txt with numbers from 1 to 2"),
    ],
)
def test_malformed_drives_are_refused(tmp_path, name, text, message):
    folder = write_mapping(tmp_path / "mapping", ["a", "b"])
    (folder / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        read_mapping(folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "random"}, "expected `split` one of 'paper', 'drives', 'lists', got 'random'"),
        ({"hardest": "extreme"}, "expected `hardest` one of 'easy', 'moderate', 'hard', 'all', got 'extreme'"),
        ({"size": [3]}, "expected `size` of height and width, or empty, got .3."),
        ({"sise": [3, 3]}, "did you mean 'size'"),
    ],
)
def test_wrong_options_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        by_name("kitti")(root=str(tmp_path), **options)


# A street world


@pytest.fixture(scope="module")
def streets(tmp_path_factory):
    return write_street(tmp_path_factory.mktemp("street"), STREET, "kitti-object").folder


def test_street_world_is_read_as_it_was_written(streets):
    frames, kinds = kitti_object(streets), {"Car": 1, "Van": 1, "Pedestrian": 2, "Cyclist": 3}
    count = 0
    for index in range(STREET.frames):
        item, frame = frames[index], street_frame(STREET, index)
        assert_array_equal((255 * item["input"]).round().permute(1, 2, 0), frame.image)
        objects = [each for each in frame.objects if each.full_box[3] - each.full_box[1] >= 4 and each.occluded <= 0.9]
        objects = [each for each in objects if each.kind in kinds]
        target = item["target"]
        counts = ~target["crowd"]
        assert_array_equal(target["boxes"][counts], np.array([each.full_box for each in objects]).reshape(-1, 4))
        assert target["labels"][counts].tolist() == [kinds[each.kind] for each in objects]
        distances = [np.linalg.norm(each.location) for each in objects]
        assert_allclose(target["distance"][counts], distances, atol=0.01)
        is_van = torch.tensor([each.kind == "Van" for each in objects], dtype=torch.bool)
        assert bool(target["ignored"][counts][is_van].all())
        count += int((~target["ignored"]).sum())
    assert count > 10


def test_street_world_has_lists_and_drives(streets):
    splits = by_name("kitti")(root=str(streets), split="lists")
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [6, 2, 2]
    expected = [street_frame(STREET, index).drive for index in range(10)]
    assert splits.train.group_names + splits.validation.group_names + splits.test.group_names == expected


def test_list_with_other_names_is_refused(tmp_path):
    write_kitti_object(tmp_path, [[CAR]] * 2, shape=(60, 199))
    (tmp_path / "ImageSets").mkdir()
    (tmp_path / "ImageSets/train.txt").write_text("000000\n000009\n")
    with pytest.raises(
        ValueError, match=r"train.txt with names of the 2 images .*, got 1 of 2 others .first: '000009'"
    ):
        by_name("kitti")(root=str(tmp_path), split="lists")


# The real data

real = pytest.mark.skipif(not OBJECT.is_dir(), reason=f"no kitti_object_101 in {DATA}; set FCAL_DATA")


@real
def test_real_frames_have_the_objects_that_their_source_states():
    """SOURCE.txt: 303 Car, 47 Pedestrian, 34 Van, 18 Cyclist, 5 Person_sitting, 237 DontCare in 101 frames."""
    frames = kitti_object(OBJECT, hardest="all", size=(96, 320))
    labels = torch.cat([image.labels for image in frames.images])
    ignored, crowd = (torch.cat([getattr(image, name) for image in frames.images]) for name in ("ignored", "crowd"))
    assert len(frames) == 101
    assert labels[~ignored].bincount().tolist() == [0, 303, 47, 18]
    assert labels[ignored & ~crowd].bincount().tolist() == [0, 34, 5]
    assert labels[crowd].bincount().tolist() == [0, 237, 237, 237]


@real
def test_real_frames_have_drive_disjoint_folds():
    frames = kitti_object(OBJECT, size=(96, 320))
    assert len(set(frames.groups)) == 44  # SOURCE.txt
    for fold in range(5):
        splits = fold_splits(frames, fold)
        assert not set(splits.train.groups) & set(splits.test.groups)
        assert 18 <= len(splits.test) <= 23
    batch = frames.__getitems__(range(0, 101, 10))
    assert all(0 < image.mean() < 1 for image in batch["input"])
    boxes = torch.cat([target["boxes"] for target in batch["target"]])
    assert bool(((boxes >= 0) & (boxes <= torch.tensor([320.0, 96.0, 320.0, 96.0]))).all())


@pytest.mark.skipif(not LISTS.is_dir() or not OBJECT.is_dir(), reason=f"no lists of KITTI in {DATA}; set FCAL_DATA")
def test_real_drives_agree_and_allow_the_split_of_the_paper_without_a_drive_in_common():
    drives = read_mapping(LISTS)
    frames = kitti_object(OBJECT)
    assert frames.group_names == [drives[name] for name in frames.names]
    assert (len(drives), len(set(drives.values()))) == (7481, 141)
    parts = grouped_split(group_numbers(list(drives.values()), 7481).tolist(), PAPER, seed=0)
    assert [len(part) for part in parts] == [4500, 500, 2481]
