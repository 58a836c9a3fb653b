"""Cost of the uncertainty head of a detector beside the detector, one process, one thread.

Inference on one image, from pixels to detections, of our Faster R-CNN and of torchvision's own with the same weights:
its decoder is torchvision's, so that both find the same boxes. The score threshold is 0, which leaves suppression the
most to do and both networks their largest number of detections. The small network is that of rendered streets, the
other one is ResNet-18 at torchvision's own widths on a smaller image.
"""

import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
from measuring import Row, main, rounds, timed
from rich.console import Console
from torchvision.models.detection import FasterRCNN as Torchvision
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead

from fcal.models.detection import FasterRCNN

CLASSES = 3
LARGEST = 1.03
REPEATS = 30
IMAGES_IN_ROUND = 3
NETWORKS: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {
    "MobileNetV2, 300 proposals": (
        (96, 320),
        {"backbone": "mobilenet_v2", "width": 128, "head": 256, "proposals": 300, "anchors": [8, 16, 32, 64, 128]},
    ),
    "ResNet-18, 1000 proposals": ((192, 640), {"backbone": "resnet18"}),
}


def ours(size: tuple[int, int], **options: Any) -> FasterRCNN:
    torch.manual_seed(0)
    sides = {"min_size": min(size), "max_size": max(size)}
    model = FasterRCNN(classes=CLASSES, decoder="torchvision", score_threshold=0.0, **sides, **options)
    return model.eval()


def theirs(model: FasterRCNN) -> Any:
    """Torchvision's detector with the weights of ours."""
    config = model.config
    number = config.proposals
    plain = Torchvision(
        model.backbone,
        min_size=config.min_size,
        max_size=config.max_size,
        rpn_anchor_generator=AnchorGenerator(tuple((s,) for s in config.anchors), ((0.5, 1.0, 2.0),) * 5),
        rpn_pre_nms_top_n_test=number,
        rpn_post_nms_top_n_test=number,
        box_head=TwoMLPHead(config.width * 49, config.head),
        box_predictor=FastRCNNPredictor(config.head, CLASSES + 1),
        box_score_thresh=0.0,
    )
    plain.load_state_dict(model.state_dict(), strict=False)
    return plain.eval()


def inference(model: Callable[[Any], Any], image: torch.Tensor) -> Callable[[], float]:
    def step() -> None:
        with torch.no_grad():
            for _ in range(IMAGES_IN_ROUND):
                model([image])

    return lambda: timed(step)


def row(name: str, shrink: int) -> Row:
    full_size, options = NETWORKS[name]
    height, width = (max(side // shrink, 64) for side in full_size)
    image = torch.rand(3, height, width, generator=torch.Generator().manual_seed(0))
    with_sigmas = ours((height, width), **options)
    without = theirs(with_sigmas)
    with torch.no_grad():
        torch.testing.assert_close(with_sigmas([image])[0]["boxes"], without([image])[0]["boxes"])
    steps = [inference(with_sigmas, image), inference(without, image)]
    own, other = rounds(steps, max(REPEATS // shrink, 1))
    ratio = statistics.median(a / b for a, b in zip(own, other, strict=True))
    return Row(
        work=f"detection with error bars, {name}",
        count=height * width,
        against="torchvision's detector",
        ratio=ratio,
        unit="x as long",
        reach=f"<= {LARGEST:.3g}x as long",
        met=ratio <= LARGEST,
        ours_ms=1e3 * statistics.median(own) / IMAGES_IN_ROUND,
        theirs_ms=1e3 * statistics.median(other) / IMAGES_IN_ROUND,
    )


def measure(shrink: int, console: Console) -> list[Row]:
    rows = []
    for name in NETWORKS:
        console.print(name)
        rows.append(row(name, shrink))
    return rows


def no_memory(*_: int) -> int:
    return 0


if __name__ == "__main__":
    sys.exit(main(__doc__, "detector", measure, no_memory))
