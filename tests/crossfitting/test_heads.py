"""Out-of-bag ensembles of heads on one trunk: what heads learn from, what judges a row, and what is refused."""

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from torch.testing import assert_close
from torch.utils.data import TensorDataset

import fcal
from fcal.crossfitting import Bags, RowsOfHeads
from fcal.models import Ensemble, NormalHead, SharedTrunk
from fcal.training import EachHead, ObjectiveConfig, objective


def line(rows=400, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(rows, 1, generator=generator)
    return TensorDataset(x, 2 * x + 0.3 * torch.randn(rows, 1, generator=generator))


class MeanHead(nn.Module):
    """Predicts one number for every input."""

    def __init__(self, mean, sigma=0.5):
        super().__init__()
        self.mean, self.sigma = nn.Parameter(torch.tensor(float(mean))), sigma

    def forward(self, features):
        sigma = torch.full(features.shape, self.sigma)
        return Normal(self.mean.expand(features.shape), sigma, validate_args=False)


def trained(rows, epochs=300, rate=0.05):
    network = SharedTrunk(nn.Sequential(nn.Linear(1, 8), nn.Tanh()), [NormalHead(8, 1) for _ in range(rows.heads)])
    criterion, batch = EachHead(objective()), rows.__getitems__(range(len(rows)))
    optimizer = torch.optim.Adam(network.parameters(), rate)
    for _ in range(epochs):
        optimizer.zero_grad()
        criterion(network, batch)["nll"].backward()
        optimizer.step()
    return network


def test_each_head_is_the_mean_over_heads_of_the_loss_on_their_own_rows():
    network = SharedTrunk(nn.Identity(), [MeanHead(0.0), MeanHead(1.0)])
    y = torch.tensor([[1.0], [2.0], [4.0], [torch.nan]])
    left_out = torch.tensor([[True, False], [False, True], [False, False], [False, False]])
    found = EachHead(objective(ObjectiveConfig(name="mse")))(
        network, {"input": torch.zeros(4, 1), "target": y, "left_out": left_out}
    )
    # head 0 predicts 0 and sees 2 and 4; head 1 predicts 1 and sees 1 and 4
    assert_close(found["mse"], torch.tensor(((4 + 16) / 2 + (0 + 9) / 2) / 2))


def test_each_head_gives_no_gradient_from_rows_left_out():
    network = SharedTrunk(nn.Identity(), [MeanHead(0.0), MeanHead(0.0)])
    left_out = torch.tensor([[True, False], [True, False]])
    batch = {"input": torch.zeros(2, 1), "target": torch.ones(2, 1), "left_out": left_out}
    sum(EachHead(objective())(network, batch).values()).backward()
    assert network.heads[0].mean.grad is None
    assert network.heads[1].mean.grad < 0


def test_each_head_combines_a_mask_with_rows_left_out():
    network = SharedTrunk(nn.Identity(), [MeanHead(0.0), MeanHead(0.0)])
    batch = {
        "input": torch.zeros(3, 1), "target": torch.tensor([[1.0], [2.0], [3.0]]),
        "left_out": torch.tensor([[True, False], [False, True], [False, False]]),
        "valid_mask": torch.tensor([True, True, False]),
    }  # fmt: skip
    assert_close(EachHead(objective(ObjectiveConfig(name="mse")))(network, batch)["mse"], torch.tensor((4.0 + 1.0) / 2))


@pytest.mark.parametrize("left_out", [None, torch.zeros(2, 2), torch.zeros(2, dtype=torch.bool)])
def test_each_head_refuses_batches_without_rows_left_out(left_out):
    network = SharedTrunk(nn.Identity(), [MeanHead(0.0), MeanHead(0.0)])
    batch = {"input": torch.zeros(2, 1), "target": torch.zeros(2, 1), "left_out": left_out}
    with pytest.raises(ValueError, match=r"boolean 'left_out' of shape \(rows, heads\)"):
        EachHead(objective())(network, batch)


def test_each_head_refuses_another_number_of_predictions():
    batch = {"input": torch.zeros(2, 1), "target": torch.zeros(2, 1), "left_out": torch.zeros(2, 3, dtype=torch.bool)}
    with pytest.raises(TypeError, match="a list of 3 predictions, got 2 predictions"):
        EachHead(objective())(SharedTrunk(nn.Identity(), [MeanHead(0.0), MeanHead(0.0)]), batch)


def test_heads_judge_the_rows_they_left_out():
    """Every head predicts a number of its own, so the judged center of a row is the mean of its judges' numbers."""
    data = line()
    result = fcal.crossfit(
        lambda rows: SharedTrunk(nn.Identity(), list(map(MeanHead, range(rows.heads)))), data, heads=True
    )
    assert len(result.members) == 4
    numbers = torch.arange(4.0)
    expected = torch.stack([numbers[out].mean() for out in result.left_out[:, result.judged.rows].T])
    assert_close(result.held_out.mean.squeeze(1), expected)


def test_heads_ensemble_is_that_of_networks_alone_and_runs_the_trunk_once():
    result = fcal.crossfit(lambda rows: trained(rows, epochs=5), line(), heads=True)
    x, calls = torch.rand(7, 1), []
    hook = result.shared.trunk.register_forward_hook(lambda *_: calls.append(1))
    together = result.ensemble(x)
    hook.remove()
    apart = Ensemble(result.members, moments=True)(x)
    assert len(calls) == 1
    assert_close(together.mean, apart.mean)
    assert_close(together.stddev, apart.stddev)


def test_heads_of_a_small_trunk_are_calibrated():
    """A trunk of eight units cannot learn 400 rows by heart: coverage of 90 % intervals on 20,000 new rows.

    A factor from 400 rows has a standard error of 3.5 %, 1.3 % of coverage: five of them.
    """
    torch.manual_seed(0)
    model = fcal.crossfit(trained, line(), heads=True).calibrated()
    x, y = line(20_000, seed=1).tensors
    pred = model(x)
    inside = (fcal.standardize(pred, y).abs() < 1.6449).double().mean()
    assert abs(inside - 0.9) < 0.065


def test_heads_choose_the_stage_with_the_best_held_out_likelihood():
    stages = [[MeanHead(mean) for _ in range(4)] for mean in (9.0, 1.0, 5.0)]  # targets are around 1
    result = fcal.crossfit(lambda _: [SharedTrunk(nn.Identity(), heads) for heads in stages], line(), heads=True)
    assert result.stages == (1, 1, 1, 1)


def test_heads_leave_out_groups_together():
    groups = torch.arange(400) // 10
    result = fcal.crossfit(lambda rows: trained(rows, epochs=2), line(), heads=True, groups=groups)
    assert_close(result.left_out.reshape(4, 40, 10), result.left_out.reshape(4, 40, 10)[..., :1].expand(4, 40, 10))


def test_rows_of_heads_keep_the_entries_of_the_dataset():
    rows = RowsOfHeads(line(10), torch.eye(10, dtype=torch.bool)[:3])
    assert len(rows) == 10
    assert sorted(rows[0]) == ["input", "left_out", "target"]
    assert rows.__getitems__([1, 5])["left_out"].tolist() == [[False, True, False], [False, False, False]]


@pytest.mark.parametrize(
    ("fit", "message"),
    [
        (lambda _: MeanHead(0.0), "a SharedTrunk of 4 heads, got MeanHead"),
        (lambda _: SharedTrunk(nn.Identity(), [MeanHead(0.0)] * 3), "a SharedTrunk of 4 heads, got 3 heads"),
    ],
)
def test_crossfit_refuses_what_is_no_shared_trunk(fit, message):
    with pytest.raises(TypeError, match=message):
        fcal.crossfit(fit, line(), heads=True)


def test_crossfit_refuses_heads_that_diverged():
    def fit(rows):
        return SharedTrunk(nn.Identity(), [MeanHead(torch.nan if n == 1 else 0.0) for n in range(rows.heads)])

    with pytest.raises(ValueError, match="whose heads diverged"):
        fcal.crossfit(fit, line(), heads=True, bags=Bags())


def test_shared_trunk_refuses_a_single_head():
    with pytest.raises(ValueError, match="expected `heads` at least two, got 1"):
        SharedTrunk(nn.Identity(), [MeanHead(0.0)])
