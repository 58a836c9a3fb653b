"""The options of a detector."""

from dataclasses import dataclass, field

from fcal._checks import check_flag, check_integer, check_number
from fcal._registry import Registry
from fcal.models.detection.box_laws import UNITS
from fcal.models.detection.uncertainty import VarianceBounds

_LEVELS = 5  # of the feature pyramid
_LARGEST_WIDTH = 4096
_SMALLEST_SIDE = 32  # of images, in pixels: one of the coarsest features of a backbone
_LARGEST_SIDE = 1 << 14


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """Layers of a network of torchvision whose features, at 1/4 to 1/32 of the image, enter the pyramid.

    Attributes:
        layers: Names of the layers.
        channels: Channels of their features.
        part: Attribute of the network that holds the layers; the network itself if empty.
    """

    layers: tuple[str, ...]
    channels: tuple[int, ...]
    part: str = ""


_RESNET = ("layer1", "layer2", "layer3", "layer4")
BACKBONES: Registry[Backbone] = Registry("backbone")
BACKBONES.add("mobilenet_v2", Backbone(layers=("3", "6", "13", "18"), channels=(24, 32, 96, 1280), part="features"))
BACKBONES.add("resnet18", Backbone(layers=_RESNET, channels=(64, 128, 256, 512)))
BACKBONES.add("resnet50", Backbone(layers=_RESNET, channels=(256, 512, 1024, 2048)))
BACKBONES.add("resnet101", Backbone(layers=_RESNET, channels=(256, 512, 1024, 2048)))

FREEZES: Registry[tuple[bool, bool]] = Registry("freeze")  # whether batch norm, and all of the backbone, are fixed
FREEZES.add("batchnorm", (True, False))
FREEZES.add("backbone", (True, True))

DECODERS: Registry[bool] = Registry("decoder")  # whether torchvision's box regression fits
DECODERS.add("xyxy", False)
DECODERS.add("torchvision", True)


def backbone_names() -> list[str]:
    """Names of the backbones, which are those of torchvision.

    Example:
        >>> backbone_names()[:2]
        ['mobilenet_v2', 'resnet18']
    """
    return BACKBONES.names()


@dataclass(frozen=True, kw_only=True)
class DetectorConfig:
    """Options of :class:`FasterRCNN`. Defaults are torchvision's; small machines need fewer proposals and units.

    Attributes:
        classes: Number of classes, without background; labels are 1 to ``classes``.
        backbone: One of :func:`backbone_names`.
        weights: Path of a file with a state dict: of the backbone, with or without its classifier, or of a whole Faster
            R-CNN of torchvision with this backbone; ``"imagenet"`` to download the backbone's; random weights if
            empty.
        freeze: What keeps its weights: ``"batchnorm"`` layers, as is usual with pretrained weights, the whole
            ``"backbone"``, or nothing if empty.
        decoder: ``"xyxy"``: boxes are offsets of corners, linear in the network's outputs. ``"torchvision"``: centre
            and logarithmic size give the mean, so that a pretrained box regression stays in use.
        full_covariance: Predict a 4 x 4 covariance of the corners instead of four standard deviations.
        unit: Unit of the predicted spread: ``"proposal"``, a tenth of the proposal's width or height, or ``"pixel"`` of
            the resized image.
        alpha: Smallest variance, in squared units; see :class:`VarianceBounds`.
        beta: Largest variance.
        eta: Slope of the generalised sigmoid between them.
        floor: Added to the variance.
        width: Channels of the feature pyramid.
        head: Units of both hidden layers of the box head.
        proposals: Largest number of proposals per image, from each level of the pyramid and in total.
        rois: Number of proposals per image that are sampled for training, a quarter of them positive at most.
        min_size: Images are resized so that their shorter side has this many pixels, at least 32,
        max_size: unless the longer side would have more than this, which is at least ``min_size``.
        anchors: Side of the anchors, in pixels of the resized image, at each of the 5 levels.
        score_threshold: Smallest score of a detection.
        nms_threshold: Largest IoU of two detections of one class.
        detections: Largest number of detections per image.

    Example:
        >>> DetectorConfig(classes=3, backbone="resnet19")
        Traceback (most recent call last):
        ...
        ValueError: expected `backbone` one of ..., got 'resnet19' (did you mean 'resnet18'?)
    """

    classes: int
    backbone: str = "mobilenet_v2"
    weights: str = ""
    freeze: str = "batchnorm"
    decoder: str = "xyxy"
    full_covariance: bool = False
    unit: str = "proposal"
    alpha: float = 0.0
    beta: float = 50.0
    eta: float = 0.15
    floor: float = 1e-4
    width: int = 256
    head: int = 1024
    proposals: int = 1000
    rois: int = 512
    min_size: int = 800
    max_size: int = 1333
    anchors: list[int] = field(default_factory=lambda: [32, 64, 128, 256, 512])
    score_threshold: float = 0.05
    nms_threshold: float = 0.5
    detections: int = 100

    def __post_init__(self) -> None:
        # Unknown names are refused.
        BACKBONES[self.backbone], DECODERS[self.decoder], UNITS[self.unit], self.frozen()
        check_flag("full_covariance", self.full_covariance)
        for name in ("classes", "width", "head"):
            check_integer(name, getattr(self, name), at_least=1, at_most=_LARGEST_WIDTH)
        for name in ("proposals", "rois", "detections"):
            check_integer(name, getattr(self, name), at_least=1, at_most=2**20)
        check_integer("min_size", self.min_size, at_least=_SMALLEST_SIDE, at_most=_LARGEST_SIDE)
        check_integer("max_size", self.max_size, at_least=self.min_size, at_most=_LARGEST_SIDE)
        for name in ("score_threshold", "nms_threshold"):
            check_number(name, getattr(self, name), low=0.0, high=1.0)
        if len(self.anchors) != _LEVELS:
            raise ValueError(f"expected `anchors` of {_LEVELS} sizes, got {len(self.anchors)}")
        for size in self.anchors:
            check_integer("anchors", size, at_least=1, at_most=2**20)
        self.bounds()

    def frozen(self) -> tuple[bool, bool]:
        """Whether batch-norm layers, and whether all of the backbone, keep their weights."""
        return FREEZES[self.freeze] if self.freeze else (False, False)

    def bounds(self) -> VarianceBounds:
        """Bounds of the variance."""
        return VarianceBounds(alpha=self.alpha, beta=self.beta, eta=self.eta, floor=self.floor)
