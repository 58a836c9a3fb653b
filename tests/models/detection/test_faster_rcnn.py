"""Faster R-CNN with error bars: torchvision's detections, and sigmas that follow their boxes."""

import copy

import pytest
import torch
from rectangles import SMALL, Rectangles
from torch.distributions import MultivariateNormal, Normal
from torchvision.models.detection import FasterRCNN as Torchvision
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.ops import MultiScaleRoIAlign

from fcal import models
from fcal.models.detection import FasterRCNN, backbone_names


def network(**options) -> FasterRCNN:
    torch.manual_seed(0)
    return FasterRCNN(**{"classes": 2, "score_threshold": 0.0, **SMALL, **options}).eval()


def images(count: int = 2, seed: int = 0) -> list[torch.Tensor]:
    return Rectangles(count, seed).images


def nearest(rows: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Distance of every row from the nearest of other rows."""
    return (rows.unsqueeze(1) - others).abs().amax(-1).amin(1)


def plain_torchvision(ours: FasterRCNN) -> Torchvision:
    """Torchvision's own Faster R-CNN of the same sizes."""
    config = ours.config
    backbone = resnet_fpn_backbone(backbone_name=config.backbone, weights=None)
    model = Torchvision(
        backbone,
        min_size=config.min_size,
        max_size=config.max_size,
        rpn_anchor_generator=AnchorGenerator(tuple((s,) for s in config.anchors), ((0.5, 1.0, 2.0),) * 5),
        rpn_pre_nms_top_n_train=config.proposals,
        rpn_post_nms_top_n_train=config.proposals,
        rpn_pre_nms_top_n_test=config.proposals,
        rpn_post_nms_top_n_test=config.proposals,
        box_roi_pool=MultiScaleRoIAlign(featmap_names=["0", "1", "2", "3"], output_size=7, sampling_ratio=2),
        box_head=TwoMLPHead(256 * 49, config.head),
        box_predictor=FastRCNNPredictor(config.head, config.classes + 1),
        box_score_thresh=config.score_threshold,
        box_batch_size_per_image=config.rois,
    )
    return model.eval()


@pytest.fixture(scope="module")
def pair() -> tuple[FasterRCNN, Torchvision]:
    """Ours with torchvision's decoder, and torchvision's, with the same weights."""
    ours = network(backbone="resnet18", width=256, decoder="torchvision", score_threshold=0.2)
    theirs = plain_torchvision(ours)
    missing, unexpected = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert not missing
    assert all(name.startswith("uncertainty_head.") for name in unexpected)
    return ours, theirs


@pytest.mark.parametrize("sizes", [[(64, 96), (64, 96)], [(128, 100), (60, 333)]])
def test_boxes_scores_and_labels_are_those_of_torchvision(pair, sizes):
    ours, theirs = pair
    pictures = [torch.rand(3, *size, generator=torch.Generator().manual_seed(n)) for n, size in enumerate(sizes)]
    with torch.no_grad():
        for found, expected in zip(ours(pictures), theirs(pictures), strict=True):
            assert len(expected["boxes"])
            for name in ("boxes", "scores", "labels"):
                torch.testing.assert_close(found[name], expected[name])


def test_losses_are_those_of_torchvision(pair):
    ours, theirs = (copy.deepcopy(each).train() for each in pair)
    data = Rectangles(4, 0)
    torch.manual_seed(0)
    found = ours(data.images, data.targets)
    torch.manual_seed(0)
    expected = theirs(data.images, [{k: t[k] for k in ("boxes", "labels")} for t in data.targets])
    assert set(found) == set(expected)
    for name, loss in expected.items():
        torch.testing.assert_close(found[name], loss, rtol=1e-4, atol=1e-6)


def test_every_backbone_has_a_pyramid_of_five_levels():
    for name in backbone_names():
        with torch.device("meta"):
            maps = network(backbone=name).backbone(torch.zeros(1, 3, 64, 96))
        assert [tuple(each.shape[1:]) for each in maps.values()] == [
            (16, 16, 24), (16, 8, 12), (16, 4, 6), (16, 2, 3), (16, 1, 2)
        ]  # fmt: skip


def test_detections_are_those_of_cached_candidates():
    ours, pictures = network(), images()
    with torch.no_grad():
        candidates = ours.candidates(pictures)
        cached = ours.detections(candidates, ours.box_law(candidates.features, candidates.proposals))
        for found, expected in zip(cached, ours(pictures), strict=True):
            assert set(found) == set(expected)
            for name, value in expected.items():
                torch.testing.assert_close(found[name], value)


def test_sigma_stays_with_its_box_through_suppression():
    """Sigmas are tied to the means beforehand, so that any detection tells which sigma it must have."""
    ours, pictures = network(detections=7, nms_threshold=0.3), images(3)
    candidates = ours.candidates(pictures)
    mean = ours.law_head().mean(candidates.features, candidates.proposals).detach()
    mean = mean.clamp(min=0.0)
    mean[..., 0::2], mean[..., 1::2] = mean[..., 0::2].clamp(max=96.0), mean[..., 1::2].clamp(max=64.0)
    found = ours.detections(candidates, Normal(mean, 0.5 + mean / 7))
    assert [len(each["boxes"]) for each in found] == [7, 7, 7]
    for each in found:
        torch.testing.assert_close(each["sigmas"], 0.5 + each["boxes"] / 7)


def test_detections_at_the_largest_variance_warn():
    ours = network(nms_threshold=1.0, detections=1000, proposals=300)
    torch.nn.init.constant_(ours.uncertainty_head.spread.bias, 1e4)
    with pytest.warns(UserWarning, match="predicted variances are at the largest one, 50: raise `beta`"):
        ours(images())


def test_label_probs_are_of_the_proposal_and_contain_the_score():
    for each in network()(images()):
        torch.testing.assert_close(each["label_probs"].sum(1), torch.ones(len(each["boxes"])))
        rows = torch.arange(len(each["labels"]))
        torch.testing.assert_close(each["label_probs"][rows, each["labels"]], each["scores"])


def test_resizing_scales_sigmas_as_it_scales_boxes():
    """A picture of other proportions than its resized copy: widths and heights have factors of their own."""
    ours = network()
    candidates = ours.candidates(images(1))
    candidates = type(candidates)(**{**vars(candidates), "sizes": ((128, 480),)})
    law = ours.box_law(candidates.features, candidates.proposals)
    (large,) = ours.detections(candidates, law)
    (small,) = ours.detections(type(candidates)(**{**vars(candidates), "sizes": ((64, 96),)}), law)
    factor = torch.tensor([5.0, 2.0, 5.0, 2.0])
    for name in ("boxes", "sigmas"):
        torch.testing.assert_close(large[name], factor * small[name])


def test_resizing_scales_covariances_by_both_factors():
    ours = network(full_covariance=True)
    candidates = ours.candidates(images(1))
    law = ours.box_law(candidates.features, candidates.proposals)
    (small,) = ours.detections(candidates, law)
    (large,) = ours.detections(type(candidates)(**{**vars(candidates), "sizes": ((128, 480),)}), law)
    factor = torch.diag(torch.tensor([5.0, 2.0, 5.0, 2.0]))
    torch.testing.assert_close(large["covariances"], factor @ small["covariances"] @ factor)
    torch.testing.assert_close(large["sigmas"], large["covariances"].diagonal(dim1=1, dim2=2).sqrt())


def test_detections_of_a_resized_picture_have_sigmas_in_its_own_pixels():
    ours, picture = network(), images(1)[0]
    doubled = picture.repeat_interleave(2, 1).repeat_interleave(2, 2)  # bilinear resizing takes it back exactly
    (small,), (large,) = ours([picture]), ours([doubled])
    torch.testing.assert_close(large["boxes"], 2 * small["boxes"])
    torch.testing.assert_close(large["sigmas"], 2 * small["sigmas"])


def test_clipping_moves_the_mean_alone():
    ours = network(nms_threshold=1.0, detections=1000)
    candidates = ours.candidates(images(1))
    law = ours.box_law(candidates.features, candidates.proposals)
    outside = Normal(law.mean + torch.tensor([-40.0, -40.0, 40.0, 40.0]), law.stddev)
    (found,) = ours.detections(candidates, outside)
    assert (found["boxes"][:, 0::2] <= 96).all()
    assert (found["boxes"][:, 0] == 0).any()
    expected = law.stddev[:, 1:].reshape(-1, 4)
    assert len(found["sigmas"]) > 50
    assert nearest(found["sigmas"], expected).max() < 1e-5


def test_full_covariance_is_that_of_the_law():
    ours = network(full_covariance=True)
    candidates = ours.candidates(images(1))
    law = ours.box_law(candidates.features, candidates.proposals)
    assert isinstance(law, MultivariateNormal)
    (found,) = ours(images(1))
    matrices = law.covariance_matrix[:, 1:].reshape(-1, 16)
    assert nearest(found["covariances"].reshape(-1, 16), matrices).max() < 1e-5


def test_laws_of_a_class_agnostic_head_are_those_of_all_classes():
    ours = network()
    candidates = ours.candidates(images(1))
    law = Normal(candidates.proposals, torch.full_like(candidates.proposals, 3.0))
    everywhere = Normal(law.mean.unsqueeze(1).expand(-1, 3, -1), torch.full((len(law.mean), 3, 4), 3.0))
    for found, expected in zip(ours.detections(candidates, law), ours.detections(candidates, everywhere), strict=True):
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value)


def test_copied_law_head_is_a_network_of_its_own():
    ours = network()
    head = copy.deepcopy(ours.law_head())
    before = ours.uncertainty_head.spread.weight.clone()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 1.0
    torch.testing.assert_close(ours.uncertainty_head.spread.weight, before)
    assert "law_head" not in " ".join(ours.state_dict())


def test_candidates_do_not_depend_on_the_training_mode():
    ours = network()
    expected, found = ours.candidates(images()), ours.train().candidates(images())
    torch.testing.assert_close(found.label_probs, expected.label_probs)
    assert ours.rpn.training


def test_picture_without_a_detection_has_empty_entries():
    (found,) = network(score_threshold=1.0, full_covariance=True)(images(1))
    shapes = {name: tuple(value.shape) for name, value in found.items()}
    assert shapes == {
        "boxes": (0, 4), "labels": (0,), "scores": (0,), "sigmas": (0, 4), "label_probs": (0, 3),
        "covariances": (0, 4, 4),
    }  # fmt: skip


def test_law_of_another_shape_is_rejected():
    ours = network()
    candidates = ours.candidates(images(1))
    with pytest.raises(ValueError, match=r"expected `law` with a mean of shape \(50, 3, 4\), got \(2, 4\)"):
        ours.detections(candidates, Normal(torch.zeros(2, 4), 1.0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 0}, "model.options: expected `classes` >= 1, got 0"),
        ({"freeze": "heads"}, "expected `freeze` one of 'batchnorm', 'backbone', got 'heads'"),
        ({"decoder": "centre"}, "expected `decoder` one of 'xyxy', 'torchvision', got 'centre'"),
        ({"anchors": [8, 16]}, "expected `anchors` of 5 sizes, got 2"),
        ({"beta": -1.0}, "expected `beta` within"),
        ({"backbon": "resnet18"}, r"got 'backbon' \(did you mean 'backbone'\?\)"),
        ({"min_size": 1}, "expected `min_size` >= 32"),
        ({"max_size": 1}, "expected `max_size` >= "),
        ({"min_size": 200, "max_size": 199}, "expected `max_size` >= 200, got 199"),
    ],
)
def test_options_out_of_range_are_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        network(**options)


def test_network_is_known_by_name():
    assert models.by_name("faster-rcnn") is FasterRCNN


def test_frozen_backbone_has_no_gradient_and_frozen_batch_norm_no_parameters():
    frozen, normed = network(freeze="backbone"), network(freeze="batchnorm")
    assert not any(parameter.requires_grad for parameter in frozen.backbone.body.parameters())
    assert all(parameter.requires_grad for parameter in frozen.backbone.fpn.parameters())
    assert not any(isinstance(each, torch.nn.BatchNorm2d) for each in normed.modules())
    assert any(isinstance(each, torch.nn.BatchNorm2d) for each in network(freeze="").modules())
