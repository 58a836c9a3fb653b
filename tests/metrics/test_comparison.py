"""Models on the same targets: differences against independent definitions, false alarms counted, input refused."""

import json
import math
from collections import Counter

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy import stats
from torch.distributions import Gamma, Independent, Laplace, MultivariateNormal, Normal

import fcal
from fcal.metrics.comparison import SCORES
from fcal.metrics.paired_scores import PairedScores
from fcal.metrics.state import Grid


def two_models(n=400, seed=0, scale=1.0):
    """Both calibrated and equally good: each knows one of two parts of the target."""
    generator = torch.Generator().manual_seed(seed)
    a, b, noise = torch.randn(3, n, generator=generator, dtype=torch.float64)
    sd = torch.full((n,), math.sqrt(2) * scale, dtype=torch.float64)
    return {"A": Normal(a, sd), "B": Normal(b, 1.1 * sd)}, a + b + noise


def ends(interval):
    return [interval.value, interval.low, interval.high]


@pytest.mark.parametrize(("score", "function"), [("nll", fcal.nll), ("crps", fcal.crps)])
def test_interval_of_a_row_score_is_that_of_the_paired_t_test(score, function):
    preds, y = two_models()
    found = fcal.compare(preds, y).differences["B"][score]
    first, other = (function(pred, y).numpy() for pred in preds.values())
    test = stats.ttest_rel(other, first)
    expected = test.confidence_interval(0.95)
    assert_allclose(ends(found), [(other - first).mean(), expected.low, expected.high], rtol=1e-9)


def test_interval_with_clusters_is_the_t_test_of_cluster_means():
    # clusters of one size: the mean of all is the mean of their means
    preds, y = two_models()
    cluster = torch.arange(400) // 8
    found = fcal.compare(preds, y, cluster=cluster).differences["B"]["nll"]
    gaps = (fcal.nll(preds["B"], y) - fcal.nll(preds["A"], y)).reshape(50, 8).mean(1).numpy()
    expected = stats.ttest_1samp(gaps, 0).confidence_interval(0.95)
    assert_allclose([found.low, found.high], [expected.low, expected.high], rtol=1e-9)


def test_interval_of_rmse_is_the_bootstraps():
    # 4000 resamples know the standard error to about 1 %
    preds, y = two_models(2000)
    found = fcal.compare(preds, y).differences["B"]["rmse"]
    squares = np.stack([(y - pred.mean).square().numpy() for pred in preds.values()])
    rows = np.random.default_rng(0).integers(2000, size=(4000, 2000))
    roots = np.sqrt(squares[:, rows].mean(-1))
    assert_allclose((found.high - found.low) / 2, 1.96 * (roots[1] - roots[0]).std(), rtol=0.06)
    assert_allclose(found.value, np.diff(np.sqrt(squares.mean(1)))[0], rtol=1e-9)


def test_interval_of_a_calibration_error_is_the_bootstraps_where_it_is_far_from_its_floor():
    # both errors are several times their floors, so that the bootstrap is right; 500 resamples know it to 3 %
    preds, y = two_models(3000, scale=0.7)
    found = fcal.compare(preds, y).differences["B"]["ece_z"]
    bins = np.stack([(20 * stats.norm.cdf(fcal.standardize(p, y).numpy())).astype(int) for p in preds.values()])
    draw, gaps = np.random.default_rng(0), []
    for _ in range(500):
        shares = [np.bincount(row, minlength=20) / 3000 for row in bins[:, draw.integers(3000, size=3000)]]
        errors = [(p * abs(1 / 20 - p)).sum() for p in shares]
        gaps.append(errors[1] - errors[0])
    assert_allclose((found.high - found.low) / 2, 1.96 * np.std(gaps), rtol=0.25)


def test_scores_are_those_of_the_reports():
    preds, y = two_models()
    result = fcal.compare(preds, y, df=10, bins=10)
    for name, pred in preds.items():
        report, own = fcal.evaluate(pred, y, df=10, bins=10), result.scores[name]
        assert_allclose([own["nll"], own["crps"], own["rmse"]], [report.nll, report.crps, report.rmse])
        assert_allclose([own["sharpness"], own["coverage_0.9"]], [report.sharpness, report.coverage["0.9"]])
        assert_allclose(own["ece_q"], report.ece_q - report.ece_q_floor.expected)
        assert_allclose(own["width_0.9"], 2 * stats.norm.ppf(0.95) * report.sharpness)


def alarms(runs, n, clusters=None, scale=1.0):
    """How often the interval of the difference of two equally good models does not hold 0."""
    found = Counter()
    generator = torch.Generator().manual_seed(n)
    cluster = None if clusters is None else torch.arange(n) % clusters
    for _ in range(runs):
        parts = torch.randn(3, n, generator=generator, dtype=torch.float64)
        if clusters is not None:  # rows of a cluster are correlated by one half
            shared = torch.randn(3, clusters, generator=generator, dtype=torch.float64)
            parts = math.sqrt(0.5) * (parts + shared[:, cluster])
        a, b, noise = parts
        sd = torch.full((n,), math.sqrt(2) * scale, dtype=torch.float64)
        result = fcal.compare({"A": Normal(a, sd), "B": Normal(b, sd)}, a + b + noise, cluster=cluster)
        found.update(name for name, gap in result.differences["B"].items() if not gap.low <= 0 <= gap.high)
    return found


@pytest.mark.parametrize(
    "options", [{"n": 200}, {"n": 200, "scale": 0.7}, {"n": 1000, "clusters": 120}], ids=["right", "narrow", "clusters"]
)
def test_equally_good_models_are_told_apart_by_chance_alone(options):
    # 100 data sets: at a true rate of 5 % more than 13 alarms of a score come in 5e-4 of seeds, of ten scores in 5e-3
    found = alarms(100, **options)
    assert set(found) <= set(SCORES)
    assert max(found.values()) <= 13, found
    assert found["nll"] >= 1  # intervals are not so wide that they hold everything


def test_batches_in_any_size_add_up():
    preds, y = two_models(1000)
    whole = fcal.compare(preds, y)
    scores = PairedScores(2, Grid(75, 20))
    for rows in (slice(0, 7), slice(7, 600), slice(600, 1000)):
        scores.add([Normal(p.loc[rows], p.scale[rows]) for p in preds.values()], y[rows])
    for name, gap in scores.differences(1).items():
        if not name.startswith("ece"):  # less the floor
            assert_allclose(ends(gap), ends(whole.differences["B"][name]), rtol=1e-9)


def test_differences_of_nearly_the_same_models_keep_their_digits():
    preds, y = two_models()
    near = Normal(preds["A"].loc + 1e-9, preds["A"].scale)
    found = fcal.compare({"A": preds["A"], "near": near}, y + 1e3).differences["near"]["nll"]
    gaps = (-(y + 1e3 - preds["A"].loc) / preds["A"].scale.square() * 1e-9).numpy()
    assert_allclose(found.value, gaps.mean(), rtol=1e-5)


def test_families_may_differ_and_scores_that_do_not_exist_are_left_out():
    y = torch.rand(50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5
    vector = MultivariateNormal(torch.ones(50, 2).double(), torch.eye(2).double())
    scalars = Independent(Laplace(torch.ones(50, 2).double(), 1.0), 1)
    y[3, 1] = math.nan  # the whole vector is missing for one, so for both
    result = fcal.compare({"vector": vector, "scalars": scalars}, y)
    assert result.n == 98
    assert result.rows == 49
    assert result.scores["vector"]["crps"] is None
    assert "crps" not in result.differences["scalars"]
    first, other = (fcal.nll(p, y, valid_mask=~y.isnan().any(1)).sum() / 98 for p in (vector, scalars))
    assert_allclose(result.differences["scalars"]["nll"].value, float(other - first))


def test_outputs_of_a_row_belong_together():
    # every output twice: as many rows, and intervals as wide as with one
    preds, y = two_models(300)
    once = fcal.compare(preds, y).differences["B"]["nll"]
    doubled = {
        k: Independent(Normal(torch.stack([p.loc] * 2, 1), torch.stack([p.scale] * 2, 1)), 1) for k, p in preds.items()
    }
    twice = fcal.compare(doubled, torch.stack([y, y], 1)).differences["B"]["nll"]
    assert_allclose(ends(twice), ends(once), rtol=1e-9)


def test_missing_targets_and_masks_do_not_count():
    preds, y = two_models(100)
    holes = y.clone()
    holes[::3] = math.nan
    mask = torch.arange(100) % 3 != 0
    by_nan, by_mask = fcal.compare(preds, holes), fcal.compare(preds, y, valid_mask=mask)
    assert by_nan.n == by_mask.n == 66
    assert by_nan.differences["B"] == by_mask.differences["B"]


def test_the_same_predictions_are_told():
    preds, y = two_models(100)
    result = fcal.compare({"A": preds["A"], "again": preds["A"]}, y)
    assert result.same == ("again",)
    assert result.sentences == ("again has the predictions of A: there is nothing to compare.",)
    assert ends(result.differences["again"]["nll"]) == [0, 0, 0]


def test_a_constant_difference_has_no_noise():
    y = torch.randn(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    wide, wider = (Normal(y, torch.full((50,), s, dtype=torch.float64)) for s in (1.0, 2.0))
    found = fcal.compare({"A": wide, "B": wider}, y).differences["B"]
    assert_allclose(ends(found["nll"]), [math.log(2)] * 3, rtol=1e-9)
    assert found["width_0.9"].low == pytest.approx(2 * stats.norm.ppf(0.95))


def test_one_cluster_knows_no_interval():
    preds, y = two_models(60)
    result = fcal.compare(preds, y, cluster=torch.zeros(60, dtype=torch.long))
    assert result.as_dict()["differences"]["B"]["nll"]["low"] is None
    assert "by an unknown margin" in result.sentences[0]
    assert "100 are needed to trust them" in result.assumption


def test_wild_rows_are_named():
    preds, y = two_models(1000)
    y[:2] = 1e6
    result = fcal.compare(preds, y)
    assert result.reports["A"].wild.count == 2
    assert "B is under-confident, 2 wild, A calibrated?, 2 wild" in result.sentences[0]


def test_result_for_people_and_machines(tmp_path):
    preds, y = two_models()
    names = {"<b>A</b>": preds["A"], "B": preds["B"], "C": Laplace(y, torch.ones_like(y))}
    result = fcal.compare(names, y)
    assert "2 pairs: not adjusted for their number" in str(result)
    assert "C has the lower NLL by" in str(result)
    assert "<b>A" not in result._repr_html_()
    frame = result.to_frame()
    assert frame.loc[("C", "nll"), "difference"] == result.differences["C"]["nll"].value
    assert len(frame) == 3 * len(SCORES)
    document = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    assert document["reports"]["C"]["verdict"] == result.reports["C"].verdict
    result.save(tmp_path / "numbers.json")
    assert json.loads((tmp_path / "numbers.json").read_text())["reference"] == "<b>A</b>"
    with pytest.raises(ValueError, match="ending"):
        result.save(tmp_path / "numbers.txt")


def test_arrays_of_other_libraries_are_taken():
    preds, y = two_models(100)
    plain = fcal.compare(preds, y, cluster=torch.arange(100) // 10)
    names = [f"drive {k // 10}" for k in range(100)]
    assert fcal.compare(preds, y.numpy(), cluster=names).differences == plain.differences


@pytest.mark.parametrize(
    ("preds", "target", "error", "message"),
    [
        ({"A": Normal(torch.zeros(3), 1.0)}, torch.zeros(3), ValueError, "at least 2 models, got 1"),
        ([Normal(torch.zeros(3), 1.0)], torch.zeros(3), TypeError, "a mapping of names to Distributions, got list"),
        ({"A": 1, "B": 2}, torch.zeros(3), TypeError, "a mapping of names to Distributions"),
        (
            {k: Normal(torch.zeros(1), 1.0) for k in "AB"},
            torch.zeros(1),
            ValueError,
            "at least 2 values that count, got 1",
        ),
        ({k: Normal(torch.zeros(3), 1.0) for k in "AB"}, torch.full((3,), torch.nan), ValueError, "got 0"),
        ({k: Gamma(torch.ones(2), 1.0) for k in "AB"}, -torch.ones(2), ValueError, "possible under Gamma"),
    ],
)
def test_bad_input_is_refused(preds, target, error, message):
    with pytest.raises(error, match=message):
        fcal.compare(preds, target)
