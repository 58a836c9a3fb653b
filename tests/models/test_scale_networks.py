"""Error bars trained around a fixed mean: no layout of heads, family or loss moves the mean, not by a bit."""

import copy

import pytest
import torch
from torch import nn
from torch.distributions import Independent, Laplace, LogNormal, MultivariateNormal, Normal, StudentT
from torch.func import functional_call
from torch.nn.functional import softplus
from torch.nn.parallel import DistributedDataParallel
from two_ranks import run_on_two_ranks

import fcal
from fcal.losses import CombinedLoss, TrimmedLoss
from fcal.models import FixedMean


class TwoHeads(nn.Module):
    def __init__(self, features=2):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(features, 16), nn.Tanh())
        self.mean, self.spread = nn.Linear(16, 1), nn.Linear(16, 1)

    def forward(self, x):
        shared = self.trunk(x)
        return Normal(self.mean(shared).squeeze(-1), softplus(self.spread(shared)).squeeze(-1) + 0.01)


class OneLayer(nn.Module):
    """One last layer for all parameters of a family."""

    def __init__(self, family, outputs):
        super().__init__()
        self.family = family
        self.layers = nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3))
        self.last = nn.Linear(16, outputs)

    def forward(self, x):
        return self.family(self.last(self.layers(x)))


def student(values):
    mean, scale, df = values.unbind(-1)
    return StudentT(2 + softplus(df), mean, softplus(scale) + 0.01)


def pair(values):
    return Independent(Laplace(values[..., :2], softplus(values[..., 2:]) + 0.01), 1)


def vector(values):
    factor = torch.diag_embed(softplus(values[..., 2:4]) + 0.1)
    factor = factor + torch.tensor([[0.0, 0.0], [1.0, 0.0]]) * values[..., 4, None, None]
    return MultivariateNormal(values[..., :2], scale_tril=factor)


NETWORKS = {
    "two heads": lambda: TwoHeads(),
    "student": lambda: OneLayer(student, 3),
    "independent": lambda: OneLayer(pair, 4),
    "vector": lambda: OneLayer(vector, 5),
}


def rows(network, count=300, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 2, generator=generator)
    with torch.no_grad():
        pred = copy.deepcopy(network).eval()(x)
    return x, pred.mean + 3 * torch.randn(pred.mean.shape, generator=generator)


def tune(model, x, y, *, steps=30, rate=0.02, **options):
    criterion = TrimmedLoss(CombinedLoss(warmup_steps=steps))
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    for _ in range(steps):
        optimizer.zero_grad()
        criterion(model(x), y, **options).backward()
        optimizer.step()


@pytest.mark.parametrize("name", NETWORKS)
def test_mean_stays_bit_for_bit_while_the_error_bars_change(name):
    torch.manual_seed(0)
    network = NETWORKS[name]().train()
    before = copy.deepcopy(network.state_dict())
    x, y = rows(network)
    tuned = FixedMean(network)
    tune(tuned, x, y)
    network.eval(), tuned.eval()
    assert torch.equal(tuned(x).mean, network(x).mean)
    assert fcal.nll(tuned(x), y).mean() < fcal.nll(network(x), y).mean() - 0.2
    after = network.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_same_loss_moves_the_mean_of_a_network_with_two_heads():
    """What FixedMean is for: the gradient of the location is detached, but the trunk is shared."""
    torch.manual_seed(0)
    network = TwoHeads()
    x, y = rows(network)
    moved, criterion = copy.deepcopy(network), fcal.FCalLoss("kl", detach_mean=True)
    optimizer = torch.optim.Adam(moved.parameters(), 0.02)
    for _ in range(30):
        optimizer.zero_grad()
        criterion(moved(x), y).backward()
        optimizer.step()
    assert (moved(x).mean - network(x).mean).abs().max() > 0.1


def test_masked_and_missing_targets_leave_the_mean_alone():
    torch.manual_seed(1)
    network = TwoHeads()
    x, y = rows(network)
    y[::5] = torch.nan
    tuned = FixedMean(network)
    tune(tuned, x, y, valid_mask=torch.arange(300) % 3 > 0)
    assert torch.equal(tuned(x).mean, network(x).mean)
    assert tuned(x).stddev.mean() > 1.5 * network(x).stddev.mean()


def test_autocast_to_bfloat16_keeps_the_mean():
    torch.manual_seed(2)
    network = TwoHeads()
    x, y = rows(network)
    tuned = FixedMean(network)
    optimizer = torch.optim.Adam(tuned.parameters(), 0.02)
    for _ in range(20):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            pred = tuned(x)
        loss = CombinedLoss()(pred, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert tuned(x).mean.dtype == torch.bfloat16
        assert torch.equal(tuned(x).mean, network(x).mean)
    assert torch.equal(tuned(x).mean, network(x).mean)
    assert tuned(x).stddev.mean() > 1.5 * network(x).stddev.mean()


def test_error_bars_have_the_gradient_of_finite_differences():
    torch.manual_seed(3)
    tuned = FixedMean(TwoHeads().double())
    x = torch.randn(12, 2, dtype=torch.float64)
    y = torch.randn(12, dtype=torch.float64)

    def loss(weight, bias):
        changed = {"scales.trunk.0.weight": weight, "scales.spread.bias": bias}
        return fcal.nll(functional_call(tuned, changed, (x,)), y).sum()

    inputs = [tuned.scales.trunk[0].weight, tuned.scales.spread.bias]
    assert torch.autograd.gradcheck(loss, [value.detach().clone().requires_grad_() for value in inputs])


def test_weights_of_the_mean_have_no_gradient_and_those_of_its_copy_have_zeros():
    """Data-parallel training waits for a gradient of every trained weight."""
    tuned = FixedMean(TwoHeads())
    fcal.nll(tuned(torch.ones(4, 2)), torch.zeros(4)).mean().backward()
    assert all(parameter.grad is None for parameter in tuned.model.parameters())
    assert torch.equal(tuned.scales.mean.weight.grad, torch.zeros(1, 16))
    assert (tuned.scales.trunk[0].weight.grad != 0).any()


def _ddp(rank: int) -> None:
    torch.manual_seed(4)
    network = TwoHeads().double()
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(90, 2, dtype=torch.float64, generator=generator)
    y = 3 * torch.randn(90, dtype=torch.float64, generator=generator)
    alone = FixedMean(network)
    CombinedLoss(fcal.FCalLoss(sync=False))(alone(x), y).backward()
    shard = slice(0, 60) if rank == 0 else slice(60, 90)
    shared = FixedMean(network)
    model = DistributedDataParallel(shared)
    for _ in range(2):  # the second step fails if a weight had no gradient in the first one
        model.zero_grad()
        TrimmedLoss(CombinedLoss())(model(x[shard]), y[shard]).backward()
    for ours, expected in zip(shared.scales.parameters(), alone.scales.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, expected.grad, rtol=1e-6, atol=1e-9)
    del model


def test_data_parallel_gradient_is_that_of_the_whole_batch():
    run_on_two_ranks(_ddp)


def test_over_confident_network_becomes_calibrated_on_new_rows():
    """Seeded: 60 rows by heart, 400 others to tune on, 5,000 to judge; 0.5 to 2 are far apart in 5,000 rows."""
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(5460, 2, generator=generator)
    y = x.sum(1) + 0.5 * torch.randn(5460, generator=generator)
    torch.manual_seed(6)
    network = TwoHeads()
    optimizer = torch.optim.Adam(network.parameters(), 0.02)
    for _ in range(600):
        optimizer.zero_grad()
        fcal.nll(network(x[:60]), y[:60]).mean().backward()
        optimizer.step()
    tuned = FixedMean(network)
    tune(tuned, x[60:460], y[60:460], steps=150, rate=0.003)
    with torch.no_grad():
        before, after = (fcal.evaluate(model(x[460:]), y[460:]) for model in (network, tuned))
    assert before.scale.value > 1.5
    assert 0.9 < after.scale.value < 1.15
    assert after.nll < before.nll - 0.2
    assert after.rmse == pytest.approx(before.rmse, rel=1e-12)


def test_frozen_network_stays_in_evaluation_mode():
    tuned = FixedMean(OneLayer(student, 3)).train()
    assert tuned.scales.training
    assert not any(module.training for module in tuned.model.modules())
    x = torch.randn(50, 2)
    assert torch.equal(tuned(x).loc, tuned(x).loc)  # without dropout
    assert not torch.equal(tuned(x).scale, tuned(x).scale)


def test_network_of_error_bars_may_be_another_one():
    torch.manual_seed(7)
    network, own = TwoHeads(), OneLayer(lambda values: Normal(*values.unbind(-1)).expand(values.shape[:1]), 2)
    own.last.bias.data[1] = 50.0
    pred = FixedMean(network, own.eval())(torch.zeros(3, 2))
    assert torch.equal(pred.mean, network(torch.zeros(3, 2)).mean)
    assert (pred.stddev > 10).all()


def test_state_is_restored_into_a_new_one():
    torch.manual_seed(8)
    tuned, other = FixedMean(TwoHeads()), FixedMean(TwoHeads())
    other.load_state_dict(tuned.state_dict())
    x = torch.randn(5, 2)
    assert torch.equal(other(x).mean, tuned(x).mean)
    assert torch.equal(other(x).stddev, tuned(x).stddev)


def test_what_has_no_mean_to_keep_is_refused():
    with pytest.raises(TypeError, match="expected `network` a torch.nn.Module, got function"):
        FixedMean(lambda x: x)
    with pytest.raises(TypeError, match="expected `scales` a torch.nn.Module, got int"):
        FixedMean(TwoHeads(), 3)
    with pytest.raises(ValueError, match=r"weights to train, got none; call network.requires_grad_\(True\)"):
        FixedMean(TwoHeads().requires_grad_(False))
    skewed = FixedMean(OneLayer(lambda values: LogNormal(values[..., 0], values[..., 1].exp()), 2))
    with pytest.raises(ValueError, match="expected `pred` of a family with a location in the target's unit, got LogN"):
        skewed(torch.zeros(3, 2))
