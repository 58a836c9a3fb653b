"""Label files with random damage: they are read, or refused by a ValueError of one line; nothing else comes out."""

import random
import warnings

import numpy as np
import pytest
from detection_files import (
    CAR,
    coco_document,
    voc_object,
    write_city,
    write_coco,
    write_kitti_object,
    write_mapping,
    write_voc,
)

from fcal.data.detection import cityscapes, coco, kitti_object, voc
from fcal.data.detection.kitti_object import read_mapping

ROUNDS = 150
PIECES = (
    *(
        b"",
        b"\0",
        b"\xff\xfe",
        b"-",
        b"nan",
        b"1e999",
        b"9" * 5000,
        b'"',
        b"{",
        b"}",
        b"[",
        b"]",
        b"<",
        b"&a;",
        b"null",
    ),
    *(b"<!DOCTYPE a>", b"\n", b" ", b",", b"-1", b"true", b"[" * 3000, b"<a>" * 3000, b"\\ud800", b"Infinity", b"0.5"),
)


def damaged(content, rng):
    """A few bytes replaced, cut out, repeated, or everything behind a point cut off."""
    for _ in range(rng.randint(1, 3)):
        start = rng.randrange(len(content) + 1)
        stop = min(start + rng.choice((0, 1, 1, 2, 8, 40)), len(content))
        middle = rng.choice(
            (rng.choice(PIECES), rng.choice(PIECES), bytes([rng.randrange(256)]), content[start:stop] * 2)
        )
        content = content[:start] + middle + (content[stop:] if rng.random() < 0.9 else b"")
    return content


def kitti(folder):
    write_kitti_object(folder, [[CAR, CAR.replace("Car", "Van")], []], shape=(60, 199))
    return folder / "training/label_2/000000.txt", lambda: kitti_object(folder)


def mapping(folder):
    path = write_mapping(folder / "mapping", ["a", "b", "c"])
    return path / "train_rand.txt", lambda: read_mapping(path)


def polygons(folder):
    objects = [{"label": "car", "polygon": [[1, 2], [9, 8]]}, {"label": "persongroup", "polygon": [[3, 3], [4, 5]]}]
    write_city(folder, np.full((32, 64), 7), objects)
    return next(folder.rglob("*polygons.json")), lambda: cityscapes(folder, ["train"], source="polygons")


def instances(folder):
    ids = np.full((32, 64), 7)
    ids[4:9, 5:20], ids[10:12, 10:12] = 26001, 24
    write_city(folder, ids)
    return next(folder.rglob("*instanceIds.png")), lambda: cityscapes(folder, ["train"])


def document(folder):
    path, images = write_coco(folder, coco_document(1))
    return path, lambda: coco(path, images)


def annotation(folder):
    write_voc(folder, [[voc_object("cat", (1, 1, 9, 9)), voc_object("dog", (2, 3, 8, 9), 1)]])
    return folder / "Annotations/000.xml", lambda: voc(folder)


def refusal(read):
    """The message of an error, or None if the file was read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            read()
        except ValueError as error:
            return str(error)
    return None


@pytest.mark.parametrize("prepare", [kitti, mapping, polygons, instances, document, annotation])
def test_damaged_file_is_read_or_refused_in_one_line(tmp_path, prepare):
    path, read = prepare(tmp_path)
    content, rng = path.read_bytes(), random.Random(prepare.__name__)
    read()
    messages = []
    for _ in range(ROUNDS):
        path.write_bytes(damaged(content, rng))
        messages.append(refusal(read))
    refused = [message for message in messages if message is not None]
    assert 0 < len(refused) < ROUNDS
    assert [text for text in refused if not text.startswith("expected ") or "\n" in text or len(text) > 1500] == []
