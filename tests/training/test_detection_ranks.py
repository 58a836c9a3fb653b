"""The calibration term of a detector over two ranks; without imports that would make the processes slow to start."""

import torch
from rectangles import SMALL, Rectangles
from torch.distributions import Normal
from two_ranks import run_on_two_ranks

import fcal
from fcal.models.detection import FasterRCNN, ProposalSamples
from fcal.training import BoxObjective, ObjectiveConfig, objective

LOSSES = {"nll": fcal.losses.NLLLoss, "fcal": fcal.FCalLoss, "calibration-loss": fcal.losses.CalibrationLoss}


def network(**options) -> FasterRCNN:
    torch.manual_seed(0)
    return FasterRCNN(**{"classes": 2, **SMALL, **options})


def terms_of(name: str) -> BoxObjective:
    return objective(ObjectiveConfig(name=name, task="detection", form="additive", lam=1.0))


def batch(count: int, **options) -> dict:
    return Rectangles(count, 0, **options).__getitems__(list(range(count)))


class OfSamples(torch.nn.Module):
    """A detector that samples known proposals."""

    def __init__(self, model: FasterRCNN, samples: ProposalSamples) -> None:
        super().__init__()
        self.model, self.samples, self.box_loss = model, samples, model.box_loss

    def proposal_samples(self, *_) -> ProposalSamples:
        return self.samples

    def box_law(self, *inputs) -> Normal:
        return self.model.box_law(*inputs)


def _term_and_gradient_of_both_ranks(rank: int) -> None:
    model, rows = network(proposals=1000, rois=128).eval(), batch(3)
    torch.manual_seed(5)
    with torch.no_grad():
        whole = model.proposal_samples(rows["input"], rows["target"]).proposed()
    mine = whole.take(((whole.image == 0) == (rank == 0)).nonzero().squeeze(1))
    assert 0 < len(mine) < len(whole)
    weight = whole.weight.unsqueeze(1).expand(-1, 4)
    bias = model.uncertainty_head.spread.bias
    for name, loss in LOSSES.items():
        law = model.box_law(whole.features, whole.proposals, whole.labels)
        expected = loss(sync=False)(law, whole.target, weight=weight)
        (slope,) = torch.autograd.grad(expected, bias)
        term = list(terms_of(name)(OfSamples(model, mine), rows).values())[-1]
        torch.testing.assert_close(term, expected)
        (own,) = torch.autograd.grad(term, bias)
        torch.distributed.all_reduce(own)
        torch.testing.assert_close(own / 2, slope)  # as DistributedDataParallel averages


def _nothing_on_one_or_both_ranks(rank: int) -> None:
    model = network()
    for empty in (rank == 1, True):  # a rank without objects does not make the other wait
        term = terms_of("fcal")(model, batch(2, empty=empty))["fcal"]
        term.backward()
        assert term.isfinite()


def _check(rank: int) -> None:
    _term_and_gradient_of_both_ranks(rank)
    _nothing_on_one_or_both_ranks(rank)


def test_calibration_term_is_that_of_the_boxes_of_all_ranks():
    run_on_two_ranks(_check)
