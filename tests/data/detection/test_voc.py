"""Pascal VOC's format: boxes, difficult objects, lists and bad files; and the real images of BCCD."""

import pytest
import torch
from detection_files import DATA, voc_object, write_names, write_voc
from numpy.testing import assert_array_equal

from fcal import data
from fcal.data.detection import by_name, voc

BCCD = DATA / "bccd"
CAT, DOG = voc_object("cat", (1, 1, 24, 16)), voc_object("dog", (5, 4, 8, 9), difficult=1)


def test_pixels_of_boxes_are_counted_from_one(tmp_path):
    frames = voc(write_voc(tmp_path, [[DOG, CAT], []]))
    target = frames[0]["target"]
    assert_array_equal(target["boxes"], [[4, 3, 8, 9], [0, 0, 24, 16]])
    assert frames.classes == ("cat", "dog")
    assert target["labels"].tolist() == [2, 1]
    assert len(frames[1]["target"]["boxes"]) == 0
    assert (frames.names, frames.groups) == (["000", "001"], [0, 1])


def test_difficult_objects_are_ignored(tmp_path):
    target = voc(write_voc(tmp_path, [[DOG, CAT]]))[0]["target"]
    assert (target["ignored"].tolist(), target["crowd"].tolist()) == ([True, False], [False, False])


def test_object_of_a_class_that_was_not_asked_for_is_refused(tmp_path):
    write_voc(tmp_path, [[DOG, CAT]])
    assert voc(tmp_path, classes=["dog", "cat", "cow"])[0]["target"]["labels"].tolist() == [1, 2]
    with pytest.raises(ValueError, match="expected .*000.xml with a class among 'dgo', got 'dog' .did you mean 'dgo'"):
        voc(tmp_path, classes=["dgo"])


def test_folder_within_the_root_is_found(tmp_path):
    write_voc(tmp_path / "VOCdevkit" / "VOC2007", [[CAT]])
    assert len(voc(tmp_path)) == 1
    write_voc(tmp_path / "VOCdevkit" / "VOC2012", [[CAT]])
    with pytest.raises(ValueError, match="with Annotations and JPEGImages, got .*: 2 folders in it with both"):
        voc(tmp_path)


def write(folder, text):
    write_voc(folder, [[CAT]])
    (folder / "Annotations/000.xml").write_text(text)
    return folder


BOMB = '<!DOCTYPE a [<!ENTITY b "bb"><!ENTITY c "&b;&b;&b;">]><annotation><filename>&c;</filename></annotation>'
FILE = '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><annotation><filename>&b;</filename></annotation>'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "expected .*000.xml without <!DOCTYPE, which no annotation needs, got one"),
        (FILE, "expected .*000.xml without <!DOCTYPE"),
        ("<annotation>", "000.xml annotations of Pascal VOC, got no XML: no element found"),
        ("", "000.xml annotations of Pascal VOC, got no XML"),
        ("<annotation>&c;</annotation>", "000.xml annotations of Pascal VOC, got no XML: undefined entity"),
        ("<html></html>", "expected .*000.xml with the element <annotation>, got <html>"),
        ("<annotation><object></object></annotation>", "expected .*000.xml with <name> in every <object>, got none"),
        (
            "<annotation><object><name>cat</name></object></annotation>",
            "000.xml with <bndbox> in every <object>, got none",
        ),
        (
            f"<annotation>{voc_object('cat', (1, 1, 'x', 4))}</annotation>",
            "expected .*000.xml with a number as <xmax>, got 'x'",
        ),
        (
            f"<annotation>{voc_object('cat', (1, 1, 3, 4), 'maybe')}</annotation>",
            "expected .*000.xml with <difficult> 0 or 1, got 'maybe'",
        ),
        ("<annotation><size><width>3</width></size></annotation>", "000.xml with <height> in every <size>, got none"),
        (f"<annotation>{voc_object('cat', (5, 1, 5, 4))}</annotation>", "x1 < x2 and y1 < y2, got 1 of 1 others in"),
        (
            "<annotation><size><width>99</width><height>16</height></size></annotation>",
            "size that their labels state, got 1 of 1 others .*000.jpg .* 16 x 99, got 16 x 24",
        ),
    ],
)
def test_malformed_annotation_is_named(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        voc(write(tmp_path, text))


def test_document_type_in_another_encoding_is_refused(tmp_path):
    write_voc(tmp_path, [[CAT]])
    (tmp_path / "Annotations/000.xml").write_bytes(f'<?xml version="1.0" encoding="utf-16"?>{BOMB}'.encode("utf-16"))
    with pytest.raises(ValueError, match="000.xml a text file in UTF-8, got other bytes"):
        voc(tmp_path)


def test_annotation_without_a_size_takes_that_of_the_image(tmp_path):
    frames = voc(write(tmp_path, f"<annotation>{CAT}</annotation>"))
    assert frames.images[0].size == (16, 24)


def test_missing_folders_and_files_are_named(tmp_path):
    with pytest.raises(ValueError, match="expected `root` a folder of Pascal VOC, got .*nowhere, no folder"):
        voc(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="a folder with Annotations and JPEGImages, got .*: none"):
        voc(tmp_path)
    write_voc(tmp_path, [[CAT]] * 3)
    with pytest.raises(ValueError, match="expected .*007.xml annotations of Pascal VOC, got: No such file"):
        voc(tmp_path, ["007"])
    (tmp_path / "JPEGImages/001.jpg").unlink()
    with pytest.warns(UserWarning, match="expected 3 images of .*, left out 1 that cannot be read .*001.jpg"):
        assert voc(tmp_path).names == ["000", "002"]


def test_splits_follow_the_lists(tmp_path):
    write_names(write_voc(tmp_path, [[CAT]] * 6 + [[DOG]] * 4), train=[0, 1, 7], val=[2], test=[5, 4])
    splits = by_name("voc")(root=str(tmp_path))
    parts = (splits.train, splits.validation, splits.test)
    assert [part.names for part in parts] == [["000", "001", "007"], ["002"], ["005", "004"]]
    assert {part.classes for part in parts} == {("cat", "dog")}


def test_lists_with_images_in_common_are_refused(tmp_path):
    write_names(write_voc(tmp_path, [[CAT]] * 6), train=[0, 1, 2, 3], val=[4], test=[5, 3, 1])
    message = r"expected no image in both train and test, got 2 of 3 \(first: .*003.*\)"
    with pytest.raises(ValueError, match=message):
        by_name("voc")(root=str(tmp_path))


def test_split_without_a_validation_list_holds_out_training_images(tmp_path):
    write_names(write_voc(tmp_path, [[CAT]] * 10), train=range(8), test=[8, 9])
    splits = data.by_name("voc")(root=str(tmp_path), validation="")
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [7, 1, 2]
    with pytest.raises(ValueError, match="expected .*ImageSets/Main/val.txt a list of images, got: No such file"):
        by_name("voc")(root=str(tmp_path))


def test_listed_image_that_cannot_be_read_is_left_out_of_its_split(tmp_path):
    write_names(write_voc(tmp_path, [[CAT]] * 6), train=[0, 1, 2], val=[3], test=[4, 5])
    (tmp_path / "JPEGImages/001.jpg").unlink()
    with pytest.warns(UserWarning, match="left out 1 that cannot be read"):
        assert by_name("voc")(root=str(tmp_path)).train.names == ["000", "002"]


@pytest.mark.skipif(not BCCD.is_dir(), reason=f"no bccd in {DATA}; set FCAL_DATA")
def test_real_cells_have_the_objects_that_their_source_states():
    """SOURCE.txt: 364 images, 4155 RBC, 372 WBC, 361 platelets, of which 2 boxes (RBC) have no extent."""
    with pytest.warns(UserWarning, match=r"dropped 2 of 4888 of .*BCCD .first: .*BloodImage_00\d\d\d.xml") as caught:
        splits = by_name("voc")(root=str(BCCD), size=[240, 320])
    assert len(caught) == 1
    parts = (splits.train, splits.validation, splits.test)
    assert [len(part) for part in parts] == [205, 87, 72]
    assert splits.train.classes == ("Platelets", "RBC", "WBC")
    labels = torch.cat([image.labels for part in parts for image in part.images])
    assert labels.bincount().tolist() == [0, 361, 4153, 372]
    item = splits.test[3]
    assert item["input"].shape == (3, 240, 320)
    assert 0.3 < item["input"].mean() < 0.95
