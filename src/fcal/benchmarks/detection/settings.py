"""Settings of the detection benchmark, and its presets."""

from dataclasses import dataclass, replace
from typing import Any

from fcal._checks import check_integer, check_number
from fcal._registry import Registry
from fcal.benchmarks.training_cells import Budget
from fcal.models.detection.config import BACKBONES

RESIDUALS, STREET, MINI, BCCD = "residuals", "street", "kitti-mini", "bccd"
KITTI, CITYSCAPES, COCO, VOC = "kitti", "cityscapes", "coco", "voc"
SETS: Registry[str] = Registry("set")  # what tables call them
SETS.add(RESIDUALS, "boxes of a real detector on KITTI")
SETS.add(STREET, "rendered streets")
SETS.add(MINI, "101 real frames of KITTI")
SETS.add(BCCD, "blood cells")
SETS.add(KITTI, "KITTI")
SETS.add(CITYSCAPES, "Cityscapes")
SETS.add(COCO, "images with labels in COCO's format")
SETS.add(VOC, "images with labels in Pascal VOC's format")
_DETECTOR = ("backbone", "pyramid", "head", "proposals", "rois", "least_anchor", "pretrained")
_LIKE_STREETS = (MINI, KITTI)  # the classes of these are those of rendered streets
_TRAINING = ("detector_epochs", "detector_rate", "detector_batch", "full_epochs")


@dataclass(frozen=True, kw_only=True)
class Settings(Budget):
    """Data and networks of a detection benchmark; the budget, as :class:`fcal.benchmarks.Budget` has it, is of heads.

    Args:
        set: What is detected, a name in ``SETS``.
        seeds: Number of seeds; each has heads with other initial weights (and of residuals another split), or, of
            ``"kitti-mini"``, another fold to test on.
        hidden: Units of the layers of the network of residuals.
        height: Height of images in pixels.
        width: Their width.
        train: Images of rendered streets to train on.
        validation: Those to choose by.
        test: Those to test on.
        images_per_drive: Images of one drive, which are left out together.
        backbone: A network of torchvision, one of :func:`fcal.models.detection.backbone_names`.
        pyramid: Channels of the feature pyramid.
        head: Units of the box head, whose outputs the heads are fitted to.
        proposals: Proposals per image.
        rois: Proposals per image that are sampled for training.
        least_anchor: Side of the smallest anchors in pixels; each level of the pyramid doubles it.
        pretrained: Whether the backbone starts from the weights in the folder of the data.
        from_streets: Whether the detector starts from one of rendered streets of the same size, if the set has their
            classes: for few real images.
        detector_epochs: Epochs of the detector without error bars.
        detector_rate: Learning rate of the detector.
        detector_batch: Images in its batches.
        full_epochs: Further epochs of the whole detector with the likelihood of boxes.
    """

    base_epochs: int = 30
    base_rate: float = 3e-3
    base_batch: int = 256
    tune_epochs: int = 10
    tune_rate: float = 1e-3
    tune_batch: int = 1024
    set: str = STREET
    seeds: int = 1
    hidden: int = 64
    height: int = 96
    width: int = 320
    train: int = 400
    validation: int = 100
    test: int = 200
    images_per_drive: int = 10
    backbone: str = "mobilenet_v2"
    pyramid: int = 64
    head: int = 128
    proposals: int = 200
    rois: int = 64
    least_anchor: int = 8
    pretrained: bool = False
    from_streets: bool = False
    detector_epochs: int = 12
    detector_rate: float = 1e-3
    detector_batch: int = 8
    full_epochs: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        SETS[self.set]
        BACKBONES[self.backbone]
        check_integer("seeds", self.seeds, at_least=1, at_most=1_000_000)
        for name in ("height", "width"):
            check_integer(name, getattr(self, name), at_least=32, at_most=1 << 14)
        for name in ("hidden", "pyramid", "head", "proposals", "rois", "least_anchor", *_TRAINING):
            if name != "detector_rate":
                check_integer(name, getattr(self, name), at_least=1, at_most=1_000_000)
        check_number("detector_rate", self.detector_rate, low=1e-9, high=1.0)

    def images(self, seed: int) -> dict[str, Any]:
        """Address of the images of one seed, which share a detector."""
        view = {"set": self.set, "height": self.height, "width": self.width}
        if self.set == STREET:
            return self._streets()
        return view | ({"fold": seed, "folds": max(self.seeds, 3)} if self.set == MINI else {})

    def _streets(self) -> dict[str, Any]:
        """Address of rendered streets."""
        names = ("height", "width", "train", "validation", "test", "images_per_drive")
        return {"set": STREET, **{name: getattr(self, name) for name in names}}

    def data(self, seed: int) -> dict[str, Any]:
        """Address of the features of one seed."""
        detector = {name: getattr(self, name) for name in (*_DETECTOR, *_TRAINING)}
        start = {"streets": self._streets()} if self.from_streets and self.set in _LIKE_STREETS else {}
        return {"images": self.images(seed), "detector": detector, "seed": seed, **start}


_PAPER = Settings(
    backbone="resnet101",
    pyramid=256,
    head=1024,
    proposals=1000,
    rois=512,
    least_anchor=32,
    pretrained=True,
    detector_epochs=50,
    detector_rate=1e-4,
    full_epochs=10,
)
PRESETS = {
    "tiny": Settings(
        height=64,
        width=208,
        train=30,
        validation=30,
        test=20,
        images_per_drive=5,
        pyramid=16,
        head=32,
        proposals=200,
        rois=32,
        detector_epochs=12,
        detector_rate=2e-3,
        detector_batch=4,
        full_epochs=1,
        base_epochs=2,
        tune_epochs=1,
        candidates=1,
        df=20,
    ),
    "quick": Settings(train=120, validation=40, test=60, detector_epochs=8, full_epochs=2, candidates=1),
    STREET: Settings(seeds=3),
    MINI: Settings(set=MINI, seeds=5, pretrained=True, from_streets=True),
    BCCD: Settings(set=BCCD, seeds=3, height=240, least_anchor=16, pretrained=True),
    RESIDUALS: Settings(set=RESIDUALS, seeds=5, tune_batch=256),
    "paper-kitti": replace(_PAPER, set=KITTI, height=375, width=1242),
    "paper-cityscapes": replace(_PAPER, set=CITYSCAPES, height=1024, width=2048),
}
