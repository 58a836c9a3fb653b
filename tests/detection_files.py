"""Small trees of images and boxes in the formats of detection data, for tests that need no data."""

import json
import os
from pathlib import Path

import numpy as np
import torch
from depth_files import noise_image, write_image
from PIL import Image

from fcal.data.detection import AnnotatedImage

DATA = Path(os.environ.get("FCAL_DATA", Path(__file__).parents[1] / "../shared/data"))  # where real images may be
CAR = "Car 0.00 0 -1.57 10.00 4.00 29.00 43.00 1.50 1.60 3.90 3.00 1.60 4.00 -1.57"  # 39 pixels high, 5.25 m away


def annotated_image(folder, name="0", boxes=((2, 3, 10, 9),), labels=None, shape=(16, 24), group="drive", **rest):
    """An image of noise with boxes."""
    path = write_image(folder / f"{name}.png", noise_image(shape, len(boxes)))
    boxes = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    labels = torch.ones(len(boxes), dtype=torch.long) if labels is None else torch.tensor(labels).long()
    return AnnotatedImage(image=path, size=shape, boxes=boxes, labels=labels, group=group, **rest)


def write_kitti_object(folder, labels, *, shape=(375, 1242), suffix=".png", within="training"):
    """Images and labels of KITTI; ``labels`` has the lines of each image. Images are black, which is quick."""
    for number, lines in enumerate(labels):
        write_image(folder / within / "image_2" / f"{number:06d}{suffix}", np.zeros((*shape, 3), np.uint8))
        path = folder / within / "label_2" / f"{number:06d}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines))
    return folder


def write_mapping(folder, drives):
    """The drive of each frame as in KITTI's development kit, in a shuffled order."""
    order = np.random.default_rng(0).permutation(len(drives))
    lines = [""] * len(drives)
    for frame, drive in enumerate(drives):
        lines[order[frame]] = f"2011_09_26 {drive} {frame:010d}"
    folder.mkdir(parents=True)
    (folder / "train_mapping.txt").write_text("\n".join(lines))
    (folder / "train_rand.txt").write_text(",".join(str(number + 1) for number in order))
    return folder


def write_city(folder, ids, objects=None, *, part="train", city="bonn", number=0):
    """An image of Cityscapes with its map of instances and its polygons."""
    stem = f"{part}/{city}/{city}_000000_{number:06d}"
    image = write_image(folder / "leftImg8bit" / f"{stem}_leftImg8bit.png", noise_image(ids.shape, number))
    write_image(folder / "gtFine" / f"{stem}_gtFine_instanceIds.png", ids.astype(np.uint16))
    document = {"imgHeight": ids.shape[0], "imgWidth": ids.shape[1], "objects": objects or []}
    (folder / "gtFine" / f"{stem}_gtFine_polygons.json").write_text(json.dumps(document))
    return image


def coco_document(images=2, shape=(16, 24), boxes=((2.5, 3.0, 8.0, 6.0),), **changes):
    """A document of COCO's format: each image has these boxes, of category 7 and 3 in turn."""
    document = {
        "images": [
            {"id": 10 + n, "file_name": f"{n}.png", "height": shape[0], "width": shape[1]} for n in range(images)
        ],
        "annotations": [
            {"id": 100 * n + k, "image_id": 10 + n, "category_id": (7, 3)[k % 2], "bbox": list(box), "iscrowd": 0}
            for n in range(images)
            for k, box in enumerate(boxes)
        ],
        "categories": [{"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}],
    }
    return {**document, **changes}


def write_coco(folder, document, name="labels.json", images="images", shape=(16, 24)):
    """A document and its images; returns the paths of both."""
    for number, entry in enumerate(document.get("images", [])):
        write_image(folder / images / entry["file_name"], noise_image(shape, number))
    (folder / images).mkdir(parents=True, exist_ok=True)
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(document))
    return folder / name, folder / images


def voc_object(name, box, difficult=0):
    corners = "".join(
        f"<{key}>{value}</{key}>" for key, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
    )
    return f"<object><name>{name}</name><difficult>{difficult}</difficult><bndbox>{corners}</bndbox></object>"


def write_voc(folder, objects, *, shape=(16, 24), stated=None):
    """Images and annotations of Pascal VOC; ``objects`` has the elements of each image."""
    height, width = stated or shape
    for number, elements in enumerate(objects):
        write_image(folder / "JPEGImages" / f"{number:03d}.jpg", noise_image(shape, number))
        size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
        path = folder / "Annotations" / f"{number:03d}.xml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"<annotation><filename>x.jpg</filename>{size}{''.join(elements)}</annotation>")
    return folder


def write_names(folder, **lists):
    """Lists of image numbers in ``ImageSets/Main`` of Pascal VOC."""
    folder = folder / "ImageSets" / "Main"
    folder.mkdir(parents=True)
    for name, numbers in lists.items():
        (folder / f"{name}.txt").write_text("".join(f"{number:03d}\n" for number in numbers))


def pixels(path):
    with Image.open(path) as image:
        return np.asarray(image)
