"""Files of the street world: read back as KITTI's and Cityscapes' are, complete after an interruption, never mixed."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from fcal._files import held
from fcal.data.street import StreetConfig, street_frame, writing
from fcal.data.street.cityscapes_layout import instance_ids, polygons
from fcal.data.street.kitti_layouts import label_line
from fcal.data.street.writing import write_street

TINY = StreetConfig(frames=10, frames_per_drive=2, seed=4, height=48, width=156)
REAL = Path(os.environ.get("FCAL_DATA", Path(__file__).parents[4] / "shared" / "data"))


@pytest.fixture(scope="module", params=["kitti-depth", "kitti-object", "cityscapes"])
def layout(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def depth(tmp_path_factory) -> Path:
    return write_street(tmp_path_factory.mktemp("depth") / "new", TINY, "kitti-depth").folder


@pytest.fixture(scope="module")
def objects(tmp_path_factory) -> Path:
    return write_street(tmp_path_factory.mktemp("objects"), TINY, "kitti-object").folder


@pytest.fixture(scope="module")
def cities(tmp_path_factory) -> Path:
    return write_street(tmp_path_factory.mktemp("cities"), TINY, "cityscapes").folder


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


# -- KITTI depth


def test_depth_lists_name_images_and_depth_of_every_frame(depth):
    listed = {split: lines(depth / f"eigen_{split}_files_with_gt.txt") for split in ("train", "val", "test")}
    assert [len(rows) for rows in listed.values()] == [6, 2, 2]
    for split, rows in listed.items():
        for row in rows:
            image, target, focal = row.split(" ")
            assert (depth / image).is_file()
            assert (depth / ("train" if split == "train" else "val") / target).is_file()
            assert abs(float(focal) - TINY.focal) < 1e-4
    drives = [{row.split("/")[1] for row in rows} for rows in listed.values()]
    assert not drives[0] & (drives[1] | drives[2])


@pytest.mark.skipif(not REAL.is_dir(), reason=f"no real data in {REAL}")
def test_depth_lists_have_the_form_of_the_eigen_lists(depth):
    image = r"(\d{4}_\d\d_\d\d)/(\1_drive_\d{4}_sync)/image_02/data/(\d{10}\.png)"
    form = image + r" (None|\2/proj_depth/groundtruth/image_02/\3) \d+\.\d+"
    assert all(re.fullmatch(form, row) for row in lines(REAL / "splits/kitti_eigen_bts/eigen_test_files_with_gt.txt"))
    assert all(re.fullmatch(form, row) for row in lines(depth / "eigen_train_files_with_gt.txt"))


def test_depth_images_hold_what_was_rendered(depth):
    for index, row in enumerate(lines(depth / "eigen_train_files_with_gt.txt")):
        image, target, _ = row.split(" ")
        frame, path = street_frame(TINY, index), depth / "train" / target
        np.testing.assert_array_equal(pixels(depth / image), frame.image)
        stored = pixels(path)
        assert stored.dtype == np.uint16
        np.testing.assert_array_equal(stored > 0, np.isfinite(frame.measured))
        np.testing.assert_allclose(stored[stored > 0] / 256, frame.measured[stored > 0], atol=1 / 512)
        truth = pixels(Path(str(path).replace("groundtruth", "truth")))
        known = np.isfinite(frame.depth) & (frame.depth < 255)
        np.testing.assert_array_equal(truth > 0, known)
        np.testing.assert_allclose(truth[known] / 256, frame.depth[known], atol=1 / 512 + 1e-5)
        sigma = pixels(Path(str(path).replace("groundtruth", "sigma")))
        np.testing.assert_array_equal(sigma[known] / 4096, frame.sigma[known])


def test_raw_sweep_is_a_quarter_of_the_measurements(depth):
    shares = []
    for path in depth.glob("*/*/proj_depth/velodyne_raw/image_02/*.png"):
        sweep, all_ = pixels(path), pixels(Path(str(path).replace("velodyne_raw", "groundtruth")))
        np.testing.assert_array_equal(sweep[sweep > 0], all_[sweep > 0])
        shares.append((sweep > 0).sum() / (all_ > 0).sum())
    assert len(shares) == 10
    assert 0.2 < np.mean(shares) < 0.3


def test_calibration_of_raw_drives_holds_the_camera(depth):
    rows = dict(line.split(": ", 1) for line in lines(depth / "2011_09_26/calib_cam_to_cam.txt"))
    projection = np.array(rows["P_rect_02"].split(), float).reshape(3, 4)
    across, down = TINY.principal_point
    np.testing.assert_allclose(projection, [[TINY.focal, 0, across, 0], [0, TINY.focal, down, 0], [0, 0, 1, 0]])
    assert np.array(rows["S_rect_02"].split(), float).tolist() == [156, 48]


# -- KITTI objects


def test_labels_hold_the_objects_of_the_frame(objects):
    count = 0
    for index in range(10):
        frame, rows = street_frame(TINY, index), lines(objects / f"training/label_2/{index:06d}.txt")
        np.testing.assert_array_equal(pixels(objects / f"training/image_2/{index:06d}.png"), frame.image)
        assert len(rows) == len(frame.objects)
        for row, each in zip(rows, frame.objects, strict=True):
            kind, *numbers = row.split(" ")
            values = np.array(numbers, float)
            assert len(values) == 14
            np.testing.assert_array_equal(values[3:7] + np.array([0, 0, 1, 1]), each.full_box)
            if kind != "DontCare":
                assert kind == each.kind
                np.testing.assert_allclose(values[7:], [*each.size, *each.location, each.yaw], atol=0.005001)
                ray = np.arctan2(each.location[0], each.location[2])
                assert abs(np.angle(np.exp(1j * (values[2] - each.yaw + ray)))) < 0.006
                count += 1
    assert count > 10


@pytest.mark.parametrize(("occluded", "level"), [(0.0, "0"), (0.2, "1"), (0.7, "2"), (0.95, "-1")])
def test_label_says_how_much_is_hidden(occluded, level):
    from dataclasses import replace

    frame = street_frame(StreetConfig(height=188, width=621), 0)
    large = max(frame.objects, key=lambda each: each.pixels)
    assert label_line(replace(large, occluded=occluded)).split(" ")[2] == level


@pytest.mark.skipif(not REAL.is_dir(), reason=f"no real data in {REAL}")
def test_labels_and_calibration_have_the_form_of_kitti(objects):
    form = r"[A-Z]\w+ (-1|\d\.\d\d) (-1|[0-3]) -?\d+(\.\d\d)?( -?\d+\.\d\d){4}( -?\d+(\.\d\d)?){7}"
    for folder in (REAL / "kitti_object_101", objects / "training"):
        rows = [row for path in sorted((folder / "label_2").iterdir())[:10] for row in lines(path)]
        assert [row for row in rows if not re.fullmatch(form, row)] == []
    real, ours = (lines(path / "calib/000001.txt") for path in (REAL / "kitti_object_101", objects / "training"))
    assert [(row.split(":")[0], len(row.split())) for row in real] == [
        (row.split(":")[0], len(row.split())) for row in ours
    ]


def test_object_lists_cover_all_frames_once(objects):
    sets = {name: lines(objects / f"ImageSets/{name}.txt") for name in ("train", "val", "trainval", "test")}
    assert sets["train"] + sets["val"] == sets["trainval"]
    assert sets["trainval"] + sets["test"] == [f"{index:06d}" for index in range(10)]
    mapping = lines(objects / "devkit/mapping/train_mapping.txt")
    order = [int(number) for number in lines(objects / "devkit/mapping/train_rand.txt")[0].split(",")]
    drives = [mapping[order[index] - 1].split()[1] for index in range(10)]
    assert drives == [street_frame(TINY, index).drive for index in range(10)]


# -- Cityscapes


def test_city_maps_hold_classes_and_instances(cities):
    images = sorted(cities.glob("leftImg8bit/*/*/*_leftImg8bit.png"))
    assert len(images) == 10
    for path in images:
        stem = str(path).replace("leftImg8bit/", "gtFine/", 1).removesuffix("leftImg8bit.png") + "gtFine_"
        labels, instances = pixels(Path(f"{stem}labelIds.png")), pixels(Path(f"{stem}instanceIds.png"))
        assert labels.dtype == np.uint8
        np.testing.assert_array_equal(np.where(instances >= 1000, instances // 1000, instances), labels)
    first = street_frame(TINY, 0)
    name = "train/street0001/street0001_000000_000000"
    np.testing.assert_array_equal(pixels(cities / f"leftImg8bit/{name}_leftImg8bit.png"), first.image)
    np.testing.assert_array_equal(pixels(cities / f"gtFine/{name}_gtFine_labelIds.png"), first.labels)
    np.testing.assert_array_equal(pixels(cities / f"gtFine/{name}_gtFine_instanceIds.png") >= 1000, first.instances > 0)
    assert {path.parent.parent.name for path in images} == {"train", "val", "test"}


def test_instances_of_one_object_have_one_number_per_class():
    frame = street_frame(StreetConfig(seed=1, height=96, width=312), 3)
    ids = instance_ids(frame)
    for each in frame.objects:
        own = frame.instances == each.number
        for label in np.unique(frame.labels[own]):
            assert len(np.unique(ids[own & (frame.labels == label)])) == 1
    objects = ids[frame.instances > 0]
    pairs = {
        (int(a), int(b))
        for a, b in zip(frame.instances[frame.instances > 0], frame.labels[frame.instances > 0], strict=True)
    }
    assert len(np.unique(objects)) == len(pairs)


@pytest.mark.parametrize("index", range(5))
def test_painted_polygons_are_the_map(cities, index):
    path = sorted(cities.glob("gtFine/*/*/*_polygons.json"))[2 * index]
    document = json.loads(path.read_text())
    assert document == polygons(pixels(Path(str(path).replace("polygons.json", "instanceIds.png"))))
    numbers = {"road": 7, "sidewalk": 8, "building": 11, "wall": 12, "fence": 13, "pole": 17, "traffic sign": 20}
    numbers |= {
        "vegetation": 21,
        "terrain": 22,
        "sky": 23,
        "person": 24,
        "rider": 25,
        "car": 26,
        "truck": 27,
        "bicycle": 33,
    }
    canvas = Image.new("L", (document["imgWidth"], document["imgHeight"]))
    for each in document["objects"]:
        ImageDraw.Draw(canvas).polygon([tuple(point) for point in each["polygon"]], fill=numbers[each["label"]])
    np.testing.assert_array_equal(np.asarray(canvas), pixels(Path(str(path).replace("polygons.json", "labelIds.png"))))


# -- runs


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_stopped_run_is_completed_by_running_it_again(tmp_path, layout, monkeypatch):
    small = StreetConfig(frames=4, frames_per_drive=1, height=16, width=52)
    whole = contents(write_street(tmp_path / "whole", small, layout).folder)

    def stopping(config, index):
        if index == 2:
            raise KeyboardInterrupt
        return street_frame(config, index)

    with monkeypatch.context() as patch:
        patch.setattr(writing, "street_frame", stopping)
        with pytest.raises(KeyboardInterrupt):
            write_street(tmp_path / "stopped", small, layout)
    partial = contents(tmp_path / "stopped")
    assert partial.items() < whole.items()
    killed = tmp_path / "stopped" / next(iter(partial))
    killed.with_name(f".{killed.stem}.fcal-x1y2z3w4{killed.suffix}").write_bytes(
        b"half"
    )  # what a killed process leaves behind
    assert write_street(tmp_path / "stopped", small, layout).rendered == 2
    assert contents(tmp_path / "stopped") == whole


def test_damaged_frame_is_written_again_after_it_was_removed(tmp_path, layout):
    small = StreetConfig(frames=3, frames_per_drive=1, height=16, width=52)
    written = write_street(tmp_path, small, layout)
    whole = contents(tmp_path)
    assert len(whole) == written.files
    next(tmp_path.rglob("*.png")).unlink()
    assert write_street(tmp_path, small, layout).rendered == 1
    assert contents(tmp_path) == whole
    assert write_street(tmp_path, small, layout).rendered == 0


def test_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ValueError, match=f"expected an empty folder .*, got {tmp_path} without street.toml"):
        write_street(tmp_path, TINY)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_folder_of_another_config_is_refused(depth):
    with pytest.raises(ValueError, match="with layout = kitti-depth, not cityscapes"):
        write_street(depth, TINY, "cityscapes")
    with pytest.raises(ValueError, match="with street.seed = 4, not 5"):
        write_street(depth, StreetConfig(frames=10, frames_per_drive=2, seed=5, height=48, width=156))


def test_folder_that_another_run_writes_to_is_refused(tmp_path):
    with held(tmp_path / ".street.lock"), pytest.raises(ValueError, match="no other run writes to"):
        write_street(tmp_path, TINY)


def test_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="expected a folder, got the file"):
        write_street(tmp_path / "file", TINY)


def test_unknown_layout_and_too_few_drives_leave_no_folder(tmp_path):
    with pytest.raises(
        ValueError, match="expected `layout` one of 'kitti-depth', 'kitti-object', 'cityscapes', got 'coco'"
    ):
        write_street(tmp_path / "new", TINY, "coco")
    with pytest.raises(ValueError, match="at least 3 drives"):
        write_street(tmp_path / "new", StreetConfig(frames=10))
    assert not (tmp_path / "new").exists()
