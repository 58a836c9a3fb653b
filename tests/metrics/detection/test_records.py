"""Tests of fcal.metrics.detection.records."""

import re

import pytest
import torch

from fcal.metrics.detection import Detections, Truths

BOXES = torch.tensor([[0.0, 0.0, 10.0, 20.0], [5.0, 5.0, 9.0, 9.0]])
SCORES, LABELS = torch.tensor([0.9, 0.2]), torch.tensor([1, 2])


def detections(**changed):
    values = {"boxes": BOXES, "covariances": torch.eye(4).repeat(2, 1, 1), "scores": SCORES, "labels": LABELS}
    return Detections(**(values | changed))


def test_detections_of_sigmas_have_their_squares_on_the_diagonal():
    sigmas = torch.tensor([[1.0, 2.0, 0.0, 4.0], [0.5, 0.5, 0.5, 0.5]])
    made = Detections.of_sigmas(BOXES, sigmas, scores=SCORES, labels=LABELS)
    torch.testing.assert_close(made.sigmas, sigmas)
    torch.testing.assert_close(made.covariances[0], torch.diag(torch.tensor([1.0, 4.0, 0.0, 16.0])))


def test_detections_from_an_output_without_error_bars_have_variance_zero():
    made = Detections.from_output({"boxes": BOXES, "scores": SCORES, "labels": LABELS})
    assert len(made) == 2
    assert float(made.covariances.abs().max()) == 0.0


def test_detections_from_an_output_keep_its_covariances():
    covariances = 3 * torch.eye(4).repeat(2, 1, 1)
    made = Detections.from_output({"boxes": BOXES, "scores": SCORES, "labels": LABELS, "covariances": covariances})
    torch.testing.assert_close(made.covariances, covariances)


def test_detections_of_an_empty_image_are_allowed():
    none = Detections.of_sigmas(
        torch.zeros(0, 4), torch.zeros(0, 4), scores=torch.zeros(0), labels=torch.zeros(0, dtype=torch.int64)
    )
    assert len(none) == 0


def indefinite():
    covariances = torch.eye(4).repeat(2, 1, 1)
    covariances[1, 0, 1] = covariances[1, 1, 0] = 2.0  # |correlation| > 1
    return covariances


def asymmetric():
    covariances = torch.eye(4).repeat(2, 1, 1)
    covariances[0, 0, 1] = 0.5
    return covariances


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"covariances": indefinite()}, "positive semi-definite, got detection 1 (1 of 2)"),
        ({"covariances": asymmetric()}, "symmetric, got detection 0 (1 of 2)"),
        ({"covariances": torch.full((2, 4, 4), torch.nan)}, "of finite values, got detection 0 (2 of 2)"),
        ({"covariances": torch.zeros(2, 4)}, "`covariances` of shape (2, 4, 4), got (2, 4)"),
        ({"scores": torch.tensor([0.5, 1.5])}, "`scores` within [0, 1], got 1.5"),
        ({"boxes": BOXES * torch.inf}, "`boxes` finite"),
        ({"labels": torch.tensor([1, -1])}, "`labels` >= 0, got -1"),
        ({"label_probs": torch.zeros(3, 5)}, "`label_probs` of shape (2, 5), got (3, 5)"),
    ],
)
def test_detections_refuse_what_no_detector_means(changed, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        detections(**changed)


def test_detections_of_negative_sigma_are_refused():
    with pytest.raises(ValueError, match="`sigmas` >= 0, got -1"):
        Detections.of_sigmas(BOXES, -torch.ones(2, 4), scores=SCORES, labels=LABELS)


def test_detections_from_another_output_name_what_is_missing():
    with pytest.raises(ValueError, match="`output` with 'scores', got 'boxes'"):
        Detections.from_output({"boxes": BOXES})


def test_truths_refuse_an_empty_box():
    with pytest.raises(ValueError, match="with x1 < x2 and y1 < y2, got -1"):
        Truths(boxes=torch.tensor([[5.0, 0.0, 4.0, 2.0]]), labels=torch.tensor([1]), image_size=(10, 10))


def test_truths_refuse_masks_of_another_image():
    masks = torch.ones(2, 3, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match=re.escape("`masks` of shape (2, 10, 10), got (2, 3, 3)")):
        Truths(boxes=BOXES, labels=LABELS, image_size=(10, 10), masks=masks)


def test_truths_without_a_statement_are_all_counted():
    assert not bool(Truths(boxes=BOXES, labels=LABELS, image_size=(10, 10)).is_ignored.any())
