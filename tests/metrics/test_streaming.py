"""The streaming metric: any sharding, order, merge or rank gives what one shot gives."""

import copy
import io
import itertools
import math
import pickle
import random
import resource
import subprocess
import sys

import pytest
import torch
from metrics.same_reports import assert_same
from torch.distributions import Independent, Laplace, MultivariateNormal, Normal
from two_ranks import run_on_two_ranks

import fcal
from fcal.metrics import Calibration
from fcal.metrics.state import State

N = 150_001
COUNTS = ("n", "pit", "z", "coverage", "sigma", "error", "fingerprint")
CUTS = [0, 1, 1, 18, 1000, 1000, 66_000, 66_007, 140_003, N]


def data(family=Normal, dtype=torch.float32, n=N):
    generator = torch.Generator().manual_seed(0)
    loc, raw, noise = (torch.randn(n, generator=generator, dtype=torch.float64) for _ in range(3))
    y = (loc + 1.3 * raw.exp() * noise).to(dtype)
    y[::97] = torch.nan
    return family(loc.to(dtype), raw.exp().to(dtype)), y


def rows(pred, where):
    return type(pred)(pred.loc[where], pred.scale[where])


def labels(n=N):
    generator = torch.Generator().manual_seed(1)
    return {
        "group": torch.randint(3, (n,), generator=generator),
        "cluster": torch.randint(-(10**9), 10**9, (500,), generator=generator)[torch.arange(n) * 500 // n],
    }


def shards(order):
    pairs = list(itertools.pairwise(CUTS))
    random.Random(order).shuffle(pairs)
    return [slice(*pair) for pair in pairs]


def assert_same_state(one, two):
    """Counts exactly; sums to 1e-12 of the sum of their absolute terms, which Cauchy's inequality bounds."""
    for name in State._fields:
        own, other = (getattr(metric, f"{name}_") for metric in (one, two))
        if name in COUNTS:
            assert torch.equal(own, other), name
        elif name == "sums":
            size = (own[:, 1::2].abs().amax(1, keepdim=True) * int(one.n_.sum())).sqrt()
            torch.testing.assert_close(own, other, rtol=1e-12, atol=1e-12 * float(size.max()))
        elif own.numel():
            torch.testing.assert_close(own, other, rtol=1e-12, atol=1e-12 * float(own.abs().max()), msg=name)


@pytest.mark.parametrize("family", [Normal, Laplace])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("order", [0, 1])
def test_shards_of_any_size_and_order_give_what_one_shot_gives(family, dtype, order):
    pred, y = data(family, dtype)
    extra = labels()
    whole, parts = (Calibration(groups=3, clustered=True) for _ in range(2))
    whole.update(pred, y, **extra)
    for where in shards(order):
        parts.update(rows(pred, where), y[where], **{name: value[where] for name, value in extra.items()})
    assert_same_state(whole, parts)
    assert_same(whole.compute(), parts.compute(), rtol=1e-9)
    for name, group in whole.compute().groups.items():
        assert_same(group, parts.compute().groups[name], rtol=1e-9)


def test_metric_says_what_evaluate_says():
    pred, y = data()
    extra = labels()
    metric = Calibration(df=20, bins=12, groups=["a", "b", "c"], clustered=True, tolerance=0.2)
    metric.update(pred, y, **extra)
    shot = fcal.evaluate(pred, y, df=20, bins=12, group_names=["a", "b", "c"], tolerance=0.2, **extra)
    assert_same(metric.compute(), shot)
    assert metric.compute().reason == shot.reason
    assert list(metric.compute().groups) == ["a", "b", "c"]


def test_rows_in_any_order_give_the_same():
    pred, y = data()
    order = torch.randperm(N, generator=torch.Generator().manual_seed(2))
    one, two = Calibration(), Calibration()
    one.update(pred, y)
    two.update(rows(pred, order), y[order])
    assert_same_state(one, two)


def test_vectors_stream():
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(500, 2, generator=generator, dtype=torch.float64)
    cov = torch.eye(2, dtype=torch.float64)
    metric = Calibration()
    for part in y.split(77):
        metric.update(MultivariateNormal(torch.zeros_like(part), cov), part)
    assert_same(metric.compute(), fcal.evaluate(MultivariateNormal(torch.zeros_like(y), cov), y), rtol=1e-9)


def test_merged_metrics_add_up():
    pred, y = data()
    whole, one, two = Calibration(), Calibration(), Calibration()
    whole.update(pred, y)
    one.update(rows(pred, slice(0, 70_001)), y[:70_001])
    two.update(rows(pred, slice(70_001, N)), y[70_001:])
    before = one.compute()  # must not be remembered
    one.merge_state(two)
    assert before.n < one.compute().n
    assert_same_state(whole, one)
    assert_same(whole.compute(), one.compute(), rtol=1e-9)


def test_reset_forgets():
    pred, y = data()
    pred.fitted_on = fcal.metrics.fingerprint(y)
    metric = Calibration(groups=3, clustered=True)
    empty = copy.deepcopy(metric)
    metric.update(pred, y, **labels())
    assert metric.compute().fitted_on
    metric.reset()
    assert_same_state(metric, empty)
    other, target = Normal(torch.zeros(50), 1.0), torch.randn(50)
    some = {name: value[:50] for name, value in labels().items()}
    metric.update(other, target, **some)
    assert_same(metric.compute(), fcal.evaluate(other, target, **some))
    assert not metric.compute().fitted_on


@pytest.mark.parametrize("way", ["pickle", "deepcopy", "clone", "torch.save"])
def test_metric_survives_a_round_trip(way):
    pred, y = data()
    metric = Calibration(df=10, groups=["a", "b", "c"], clustered=True)
    extra = labels()
    metric.update(rows(pred, slice(0, 1000)), y[:1000], **{k: v[:1000] for k, v in extra.items()})

    def saved(value):
        buffer = io.BytesIO()
        torch.save(value, buffer)
        buffer.seek(0)
        return torch.load(buffer, weights_only=False)

    trip = {
        "pickle": lambda m: pickle.loads(pickle.dumps(m)),
        "deepcopy": copy.deepcopy,
        "clone": lambda m: m.clone(),
        "torch.save": saved,
    }[way]
    back = trip(metric)
    assert_same_state(metric, back)
    for one in (metric, back):
        one.update(rows(pred, slice(1000, N)), y[1000:], **{k: v[1000:] for k, v in extra.items()})
    assert_same(metric.compute(), back.compute())
    assert list(back.compute().groups) == ["a", "b", "c"]


def test_forward_reports_on_the_batch_and_counts_it():
    pred, y = data()
    metric = Calibration()
    for where in (slice(0, 1000), slice(1000, 5000)):
        assert_same(metric(rows(pred, where), y[where]), fcal.evaluate(rows(pred, where), y[where]))
    assert_same(metric.compute(), fcal.evaluate(rows(pred, slice(0, 5000)), y[:5000]), rtol=1e-9)


def test_forward_of_a_batch_too_small_to_report_on_loses_nothing():
    pred, y = data()
    metric = Calibration()
    metric.update(rows(pred, slice(1, 1000)), y[1:1000])
    before = metric.compute()
    with pytest.raises(ValueError, match="expected `target` with at least 2 values that count, got 1"):
        metric(rows(pred, slice(1, 2)), y[1:2])
    assert_same(metric.compute(), before)


def test_forward_remembers_what_a_recalibrator_was_fitted_on():
    pred, y = data(n=3000)
    metric = Calibration()
    for where in (slice(0, 1000), slice(1000, 3000)):
        part = rows(pred, where)
        part.fitted_on = fcal.metrics.fingerprint(y)
        metric(part, y[where])
    assert metric.compute().fitted_on


@pytest.mark.parametrize(("df", "bins"), [(75, 20), (10_000, 10_000), (1, 2), (75, 1001)])
def test_state_stays_below_a_megabyte_per_group(df, bins):
    for groups in (1, 4):
        metric = Calibration(df=df, bins=bins, groups=groups, clustered=True)
        size = sum(getattr(metric, name).nbytes for name in metric._defaults)
        assert size <= 1_000_000 * groups
        before = {name: getattr(metric, name).shape for name in metric._defaults}
        n = 1000
        metric.update(
            Normal(torch.zeros(n), 1.0), torch.randn(n), group=torch.arange(n) % groups, cluster=torch.arange(n)
        )
        assert {name: getattr(metric, name).shape for name in metric._defaults} == before


def test_state_is_counts_and_float64_sums_whatever_the_data_and_half_changes_nothing():
    metric = Calibration(clustered=True).half()
    y = torch.randn(100).half()
    metric.update(Normal(torch.zeros(100).half(), torch.ones(100).half()), y, cluster=torch.arange(100))
    assert {getattr(metric, name).dtype for name in metric._defaults} == {torch.int64, torch.float64}
    assert metric.n_.dtype == torch.int64


def test_empty_batches_change_nothing():
    pred, y = data(n=2000)
    metric = Calibration()
    metric.update(Normal(torch.zeros(0), torch.ones(0)), torch.zeros(0))
    metric.update(pred, y)
    metric.update(pred, torch.full_like(y, torch.nan))
    metric.update(Independent(Normal(torch.zeros(0, 3), torch.ones(0, 3)), 1), torch.zeros(0, 3))
    assert_same(metric.compute(), fcal.evaluate(pred, y))


@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric Calibration was called before")
def test_nothing_counted_is_refused():
    with pytest.raises(ValueError, match="expected `target` with at least 2 values that count, got 0"):
        Calibration().compute()


@pytest.mark.parametrize(
    ("options", "given", "message"),
    [
        ({}, {"cluster": torch.zeros(5, dtype=torch.int64)}, "expected `cluster` None, as the metric was made"),
        ({}, {"group": torch.zeros(5, dtype=torch.int64)}, "expected `group` None, as the metric was made"),
        ({"clustered": True}, {}, "expected `cluster` a tensor of integers, as the metric was made, got NoneType"),
        ({"groups": 2}, {}, "expected `group` a tensor of integers, as the metric was made, got NoneType"),
        ({"groups": 2}, {"group": torch.full((5,), 2)}, "expected `group` within 0 to 1, got 2 to 2"),
    ],
)
def test_update_takes_labels_as_the_metric_was_made(options, given, message):
    with pytest.raises(ValueError, match=message):
        Calibration(**options).update(Normal(torch.zeros(5), 1.0), torch.randn(5), **given)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"df": 0}, ValueError, "expected `df` >= 1, got 0"),
        ({"bins": 1}, ValueError, "expected `bins` >= 2, got 1"),
        ({"bins": 20.0}, TypeError, "expected `bins` an int, got float 20.0"),
        ({"groups": 0}, ValueError, "expected `groups` >= 1, got 0"),
        ({"groups": 10**6}, ValueError, "expected `groups` <= 1000, got 1000000"),
        ({"groups": ["a", "a"]}, ValueError, "expected `groups` 1 to 1000 different names, got 2"),
        ({"groups": "ab"}, TypeError, "expected `groups` an int, got str 'ab'"),
        ({"clustered": 1}, TypeError, "expected `clustered` a bool, got int 1"),
        ({"tolerance": -1}, ValueError, "expected `tolerance` within"),
    ],
)
def test_metric_refuses_options_out_of_range(options, error, message):
    with pytest.raises(error, match=message):
        Calibration(**options)


def on_ranks(rank):
    fitted_on_other_shards(rank)
    for cut, clustered in ((60_001, True), (0, False), (N, True)):
        pred, y = data()
        extra = labels() if clustered else {"group": labels()["group"]}
        metric = Calibration(groups=3, clustered=clustered)
        shard = slice(0, cut) if rank == 0 else slice(cut, N)
        metric.update(rows(pred, shard), y[shard], **{k: v[shard] for k, v in extra.items()})
        found = metric.compute()
        expected = fcal.evaluate(pred, y, **extra)
        assert_same(found, expected, rtol=1e-9)
        for name, group in expected.groups.items():
            assert_same(found.groups[name], group, rtol=1e-9)


def fitted_on_other_shards(rank):
    pred, y = data(n=3000)
    shard = slice(0, 1000) if rank == 0 else slice(1000, 3000)
    part = rows(pred, shard)
    part.fitted_on = fcal.metrics.fingerprint(y)
    metric = Calibration()
    metric.update(part, y[shard])
    assert metric.compute().fitted_on


def test_two_ranks_with_uneven_and_empty_shards_give_what_one_process_gives():
    run_on_two_ranks(on_ranks)


MEMORY = """
import resource, torch, fcal
from torch.distributions import Normal
torch.set_num_threads(1)
metric = fcal.metrics.Calibration()
y = torch.randn(1_000_000)
pred = Normal(torch.zeros(1_000_000), 1.0)
metric.update(pred, y)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(30):
    metric.update(pred, y)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_does_not_grow_with_the_rows():
    # 30 million rows of any one number, even a byte each, would be 30 MB
    run = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 8_000  # KiB


def test_evaluation_takes_little_beside_its_inputs():
    n = 4_000_000
    y = torch.randn(n)
    pred = Normal(torch.zeros(n), torch.ones(n))
    fcal.evaluate(Normal(torch.zeros(100_000), 1.0), y[:100_000])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    fcal.evaluate(pred, y)
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert grown < 4 * n, f"{grown / 4 / n:.2f} inputs"
    assert math.isfinite(fcal.evaluate(pred, y).nll)
