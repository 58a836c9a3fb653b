"""Positive proposals for training: their targets, weights and features, ignored objects and bad targets."""

import pytest
import torch
from rectangles import SMALL, Rectangles
from torchvision.ops import box_iou

from fcal.models.detection import FasterRCNN, ProposalSamples
from fcal.models.detection.components import without_ignored


def network(**options) -> FasterRCNN:
    torch.manual_seed(0)
    many = {"proposals": 1000, "rois": 128}  # of random weights, so that some are positive
    return FasterRCNN(**{"classes": 2, **SMALL, **many, **options})


def samples_of(data: Rectangles, **options) -> ProposalSamples:
    torch.manual_seed(1)
    return network(**options).proposal_samples(data.images, data.targets)


def test_weights_of_each_object_sum_to_one():
    data = Rectangles(6, 0)
    samples = samples_of(data)
    objects = [(image, number) for image, target in enumerate(data.targets) for number in range(len(target["labels"]))]
    pairs = list(zip(samples.image.tolist(), samples.object.tolist(), strict=True))
    assert set(pairs) == set(objects)
    for pair in objects:
        total = sum(w for w, own in zip(samples.weight.tolist(), pairs, strict=True) if own == pair)
        assert total == pytest.approx(1.0)
    assert samples.weight.sum().item() == pytest.approx(len(objects))
    assert samples.weight.min() < 1  # an object has several proposals


def test_positive_proposals_overlap_their_object_most():
    data = Rectangles(6, 0)
    samples = samples_of(data)
    for image, target in enumerate(data.targets):
        own = samples.image == image
        if not len(target["boxes"]):
            assert not own.any()
            continue
        overlap = box_iou(samples.proposals[own], target["boxes"])
        assert (overlap.max(1).values >= 0.5).all()
        torch.testing.assert_close(overlap.argmax(1), samples.object[own])
        torch.testing.assert_close(samples.labels[own], target["labels"][samples.object[own]])
        torch.testing.assert_close(samples.target[own], target["boxes"][samples.object[own]])


def test_targets_are_in_pixels_of_the_resized_image():
    data = Rectangles(2, 0)
    half = network(min_size=32, max_size=48)
    samples = half.proposal_samples(data.images, data.targets)
    for box, image, number in zip(samples.target, samples.image.tolist(), samples.object.tolist(), strict=True):
        torch.testing.assert_close(2 * box, data.targets[image]["boxes"][number])


def test_features_are_those_of_the_candidates_at_the_same_proposals():
    data, model = Rectangles(2, 0), network().eval()
    samples = model.proposal_samples(data.images, data.targets, truths=False)
    candidates = model.candidates(data.images)
    image = torch.arange(2).repeat_interleave(torch.tensor(candidates.counts))
    distance = (samples.proposals.unsqueeze(1) - candidates.proposals).abs().amax(-1)
    distance, row = (distance + 1e3 * (samples.image.unsqueeze(1) != image)).min(1)
    assert len(samples)
    assert distance.max() < 1e-4
    torch.testing.assert_close(samples.features, candidates.features[row], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(samples.score, candidates.label_probs[row, samples.labels], rtol=1e-4, atol=1e-5)


def test_true_boxes_are_marked_and_can_be_left_out():
    data, model = Rectangles(4, 0), network()
    samples = model.proposal_samples(data.images, data.targets)
    torch.testing.assert_close(samples.proposals[samples.is_truth], samples.target[samples.is_truth])
    assert samples.is_truth.sum() == sum(len(target["labels"]) for target in data.targets)
    assert not model.proposal_samples(data.images, data.targets, truths=False).is_truth.any()


def test_best_proposal_of_each_object_has_its_highest_score():
    samples = samples_of(Rectangles(6, 0))
    best = samples.best_of_objects().tolist()
    keys = list(zip(samples.image.tolist(), samples.object.tolist(), strict=True))
    for key in set(keys):
        own = [row for row, each in enumerate(keys) if each == key]
        (chosen,) = [row for row in best if row in own]
        assert samples.score[chosen] == max(samples.score[row] for row in own)
    assert 1 < len(best) == len(set(keys)) < len(keys)


def test_proposals_of_the_network_itself_have_weights_of_their_own():
    samples = samples_of(Rectangles(6, 0))
    proposed = samples.proposed()
    assert len(proposed) == len(samples) - samples.is_truth.sum()
    torch.testing.assert_close(proposed.proposals, samples.proposals[~samples.is_truth])
    objects = {(i, n) for i, n in zip(proposed.image.tolist(), proposed.object.tolist(), strict=True)}
    assert proposed.weight.sum().item() == pytest.approx(len(objects))


def test_losses_do_not_depend_on_the_mode():
    data, model = Rectangles(4, 0), network()
    losses = []
    for mode in (True, False):
        model.train(mode).transform.eval()  # in training mode it draws a random number
        torch.manual_seed(1)
        losses.append(model.proposal_samples(data.images, data.targets).losses)
    assert sorted(losses[0]) == ["loss_classifier", "loss_objectness", "loss_rpn_box_reg"]
    for name, loss in losses[0].items():
        torch.testing.assert_close(losses[1][name], loss)


def test_batch_without_objects_has_no_samples_and_finite_losses():
    data, model = Rectangles(3, 0, empty=True), network()
    samples = model.proposal_samples(data.images, data.targets)
    law = model.box_law(samples.features, samples.proposals, samples.labels)
    assert len(samples) == len(samples.best_of_objects()) == 0
    total = sum(samples.losses.values()) + model.box_loss(samples, law)
    total.backward()
    assert total.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_box_loss_is_the_smooth_l1_loss_of_offsets_per_sampled_proposal():
    data, model = Rectangles(4, 0), network()
    samples = model.proposal_samples(data.images, data.targets)
    law = model.box_law(samples.features, samples.proposals, samples.labels)
    sides = (samples.proposals[:, 2:] - samples.proposals[:, :2]).repeat(1, 2)
    gap = (10 * (law.mean - samples.target) / sides).abs().double()
    expected = torch.where(gap < 1 / 9, gap.square() * 4.5, gap - 1 / 18).sum() / samples.sampled
    torch.testing.assert_close(model.box_loss(samples, law).double(), expected)


# Ignored objects.


def ignoring(data: Rectangles) -> list[dict[str, torch.Tensor]]:
    return [{**target, "ignored": torch.ones_like(target["ignored"])} for target in data.targets]


def test_ignored_objects_are_no_positives():
    data = Rectangles(4, 0)
    data.targets = ignoring(data)
    assert len(samples_of(data)) == 0


def test_numbers_of_objects_count_ignored_ones():
    data = Rectangles(2, 0)
    target = data.targets[1]
    assert len(target["labels"]) == 2
    target["ignored"] = torch.tensor([True, False])
    samples = samples_of(data)
    assert set(samples.object[samples.image == 1].tolist()) == {1}


def test_proposals_within_ignored_boxes_are_no_negatives():
    model = network()
    proposals = [torch.tensor([[0.0, 0.0, 20.0, 20.0], [15.0, 0.0, 35.0, 20.0], [11.0, 0.0, 31.0, 20.0]])]
    target = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}
    target["ignored_boxes"] = torch.tensor([[0.0, 0.0, 22.0, 64.0]])  # shares 1, 0.35 and 0.55 of the area
    (sampled,) = model.roi_heads.sampled(proposals, [target], truths=True)
    torch.testing.assert_close(sampled.proposals, proposals[0][1:2])


def test_ignored_share_is_that_of_a_count_of_pixels():
    generator = torch.Generator().manual_seed(0)
    corner = torch.randint(0, 30, (40, 2), generator=generator)
    boxes = torch.cat([corner, corner + torch.randint(1, 20, (40, 2), generator=generator)], 1)
    ignored = boxes[:5]
    grid = torch.zeros(40, 5, dtype=torch.bool)
    for row, (x1, y1, x2, y2) in enumerate(boxes.tolist()):
        for column, (a1, b1, a2, b2) in enumerate(ignored.tolist()):
            pixels = [a1 <= x < a2 and b1 <= y < b2 for x in range(x1, x2) for y in range(y1, y2)]
            grid[row, column] = sum(pixels) > 0.5 * len(pixels)
    found = without_ignored(torch.zeros(40), boxes.float(), ignored.float())
    torch.testing.assert_close(found, -grid.any(1).float())
    torch.testing.assert_close(without_ignored(torch.ones(40), boxes.float(), ignored.float()), torch.ones(40))


def test_picture_that_is_ignored_as_a_whole_has_finite_losses():
    data = Rectangles(1, 0, empty=True)
    data.targets = [{"boxes": torch.tensor([[-500.0, -500.0, 500.0, 500.0]]), "labels": torch.tensor([0]),
                     "ignored": torch.tensor([True])}]  # fmt: skip
    samples = samples_of(data)
    assert samples.sampled == 0
    assert all(loss == 0 for loss in samples.losses.values())


# Bad targets.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"boxes": torch.tensor([[4.0, 4.0, 4.0, 9.0]])}, "expected `boxes` with x1 < x2 and y1 < y2, got 0"),
        ({"labels": torch.tensor([3])}, r"expected `labels` within \[1, 2\], got 3 \(1 of 1 values\)"),
        ({"labels": torch.tensor([1, 2])}, r"expected `targets` with 'labels' of shape \(1,\), got \(2,\)"),
        (
            {"ignored": torch.tensor([0])},
            r"expected `targets` with 'ignored' a torch.bool of shape \(1,\), got torch.int",
        ),
    ],
)
def test_bad_targets_are_rejected(change, message):
    target = {"boxes": torch.tensor([[4.0, 4.0, 9.0, 9.0]]), "labels": torch.tensor([1])}
    with pytest.raises(ValueError, match=message):
        network().proposal_samples([torch.zeros(3, 64, 96)], [{**target, **change}])


def test_missing_targets_are_rejected():
    with pytest.raises(ValueError, match="expected `targets` a list of 1 mappings, one per image, got NoneType"):
        network()([torch.zeros(3, 64, 96)])
    with pytest.raises(ValueError, match="expected `targets` with 'labels', got 'boxes'"):
        network()([torch.zeros(3, 64, 96)], [{"boxes": torch.zeros(0, 4)}])
