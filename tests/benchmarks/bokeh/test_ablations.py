"""Ablations: every point a stored cell, the same objective wherever two curves meet, numbers that can be recomputed."""

import dataclasses
import json
import subprocess
import sys

import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from torch import nn
from torch.distributions import Normal
from torch.nn.functional import smooth_l1_loss

import fcal
from fcal.benchmarks import preset, trainings
from fcal.benchmarks.bokeh import ablation_results as ablations
from fcal.benchmarks.bokeh import ablations as designs
from fcal.benchmarks.bokeh.ablation_results import ablation_points
from fcal.benchmarks.bokeh.problem import BokehProblem, BokehTrainings
from fcal.benchmarks.bokeh.task import BOKEH
from fcal.benchmarks.methods import method_of
from fcal.data import BokehConfig, BokehSplits
from fcal.sweeps import Store
from fcal.training import Diverged, ObjectiveConfig, objective

LAM = 0.05  # of all ablations but that of the weight
TINY = preset(BOKEH, "tiny", images=200, extra=400, base_epochs=2, tune_epochs=1, width=4, hidden=16, candidates=3)
NAMES = designs.ABLATIONS.names()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("ablations") / "cells")


@pytest.fixture(scope="module")
def documents(store):
    """Every ablation with the ends of its curves, as they come back from a file."""
    return {
        name: json.loads(
            json.dumps(
                ablations.ablation(name, TINY, store=store, workers=1, progress=False, ends_only=True), allow_nan=False
            )
        )
        for name in NAMES
    }


def of(found, series, x):
    """The one point of a curve."""
    (point,) = [point for point in found if (point.series, point.x) == (series, x)]
    return point


def batch(n=256):
    """Residuals of an over-confident network with a bias."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    pred = Normal(mean, torch.full_like(mean, 0.7))
    return pred, {"input": torch.zeros(n), "target": mean + 0.2 + torch.randn(mean.shape, generator=generator)}


class Says(nn.Module):
    def __init__(self, pred):
        super().__init__()
        self.pred = pred

    def forward(self, _):
        return self.pred


def loss_of(point):
    """The objective that a point is trained by, on the batch, as the cell has it."""
    pred, given = batch()
    terms = objective(ObjectiveConfig(**point.cell.config["fit"]["objective"]))(Says(pred), given)
    return {name: value.item() for name, value in terms.items()}


# --- what is varied -----------------------------------------------------------------------------------------------


def test_k_has_every_curve_at_every_degree():
    found = ablation_points("k", TINY)
    for series in ("fixed_lam", "fixed_lam_k", "both", "chi2"):
        assert [point.x for point in found if point.series == series] == [2, 5, 10, 25, 50, 75, 100, 200]
    assert [point.x for point in found if point.series in ("z", "nll")] == [None, None]


@pytest.mark.parametrize("df", [2, 25, 200])
def test_fixed_lam_k_keeps_the_weight_of_the_term_with_k(df):
    # By hand: KL = (log(2/v) + v/2 - 1) / 2 + (K/4) (m - 1)^2, where m and v are the mean and variance of z^2.
    pred, given = batch()
    square = ((given["target"] - pred.mean) / pred.stddev).square()
    m, v = square.mean(), square.var()
    of_shape, of_mean = ((torch.log(2 / v) + v / 2 - 1) / 2).item(), ((m - 1).square() / 4).item()
    found = ablation_points("k", TINY)
    scaled = loss_of(of(found, "fixed_lam_k", df))
    assert scaled["fcal"] == pytest.approx(LAM / (1 - LAM) * (75 * of_mean + 75 / df * of_shape))
    # At K = 75 it is a multiple of the loss at fixed lam: the same minimum.
    plain, there = loss_of(of(found, "fixed_lam", 75)), loss_of(of(found, "fixed_lam_k", 75))
    assert there == {name: pytest.approx(value / (1 - LAM)) for name, value in plain.items()}
    assert scaled["nll"] == pytest.approx(there["nll"])
    assert loss_of(of(found, "fixed_lam", df))["fcal"] == pytest.approx(LAM * (df * of_mean + of_shape))


def test_constraints_of_k_are_what_their_names_say():
    found = ablation_points("k", TINY)
    on_q, on_z, both = (loss_of(of(found, *where))["fcal"] for where in (("fixed_lam", 5), ("z", None), ("both", 5)))
    assert both == pytest.approx(on_q + on_z)
    pred, given = batch()
    exact = fcal.FCalLoss("chi2_moments", 5)(pred, given["target"]).item()
    assert loss_of(of(found, "chi2", 5))["fcal"] == pytest.approx(LAM * exact)


def test_likelihood_of_the_trade_off_is_weighed_against_accuracy():
    point = of(ablation_points("lambda", TINY), "l1_nll", 0.1)
    pred, given = batch()
    assert loss_of(point) == {
        "smooth-l1": pytest.approx(0.9 * smooth_l1_loss(pred.mean, given["target"]).item()),
        "nll": pytest.approx(0.1 * -pred.log_prob(given["target"]).mean().item()),
    }


def test_weights_of_the_trade_off_are_those_of_its_points():
    found = ablation_points("lambda", TINY)
    weights = dict.fromkeys(("fcal_kl", "fcal_kl_detached", "fcal_wass"), designs.WEIGHTS)
    weights |= {"l1_nll": designs.LIKELIHOOD_WEIGHTS, "calibration_loss": designs.CALIBRATION_LOSS_WEIGHTS}
    for series, expected in weights.items():
        curve = [point for point in found if point.series == series]
        assert tuple(point.x for point in curve) == expected
        assert [point.cell.config["fit"]["objective"]["lam"] for point in curve] == list(expected)
    options = [
        of(found, series, 0.5).cell.config["fit"]["objective"]["detach_mean"]
        for series in ("fcal_kl", "fcal_kl_detached")
    ]
    assert options == [False, True]


def test_gamma_varies_the_noise_of_the_data_for_every_network():
    found = ablation_points("gamma", TINY)
    data = [(point.x, point.cell.config["fit"]["data"]) for point in found]
    assert {x for x, _ in data} == {0.5, 1, 2, 5, 10, 30, 100}
    assert all(config["noise"] == "gamma" and config["shape"] == x for x, config in data)
    assert all(point.cell.config["fit"]["start"]["data"]["shape"] == point.x for point in found)
    nets = {p.series: p.cell.config["fit"]["network"]["deterministic"] for p in found}
    assert nets == {"deterministic": True, "nll": False, "fcal_kl": False, "fcal_wass": False}


def test_every_divergence_is_there():
    found = ablation_points("divergence", TINY)
    assert [point.x for point in found if point.series == "fcal"] == fcal.divergences.names()
    chosen = of(found, "fcal", "sorted_wasserstein").cell.config["fit"]["objective"]
    assert (chosen["divergence"], chosen["on"], chosen["lam"]) == ("sorted_wasserstein", "z", LAM)


# --- cells --------------------------------------------------------------------------------------------------------


def test_points_that_ablations_share_are_one_cell():
    kl = {
        of(ablation_points(name, TINY), series, x).cell
        for name, series, x in (("k", "fixed_lam", 75), ("lambda", "fcal_kl", LAM), ("divergence", "fcal", "kl"))
    }
    assert len(kl) == 1


def test_points_share_their_training_with_the_table():
    data = TINY.data("heteroscedastic", "paper-like", 0)
    fits = [point.cell.config["fit"] for point in ablation_points("lambda", TINY)]
    weights = {"calibration_loss": designs.CALIBRATION_LOSS_WEIGHTS}
    for method in ("fcal_kl", "fcal_wass", "calibration_loss"):
        row = method_of(method, BOKEH.changes)
        for cell, options in zip(BokehProblem(TINY, data, None).cells.candidates(row), row.candidates, strict=True):
            assert (cell.config in fits) == (options["lam"] in weights.get(method, designs.WEIGHTS))


def test_cells_are_listed_once_and_start_from_one_training():
    cells = ablations.ablation_cells("k", TINY)
    assert len(cells) == len(set(cells)) == 34
    assert {cell.kind for cell in cells} == {"bokeh-point"}
    data = TINY.data("heteroscedastic", "paper-like", 0)
    base = BokehProblem(TINY, data, None).cells.base(method_of("nll"))
    assert {need for cell in cells for need in cell.needs} == {base}


def test_nothing_is_computed_twice(store, documents, monkeypatch):
    monkeypatch.setattr(BokehTrainings, "train", None)  # whoever trains again, fails
    monkeypatch.setattr(designs, "scored", None)
    again = ablations.ablation("k", TINY, store=store, workers=1, progress=False, ends_only=True)
    assert {**again, "wall_s": 0} == {**documents["k"], "wall_s": 0}


def test_process_that_computes_points_knows_their_objectives():
    # Such a process imports the function by its name and nothing else.
    code = (
        f"from {designs.compute.__module__} import compute\n"
        "from fcal.training import ObjectiveConfig\n"
        "print(ObjectiveConfig(name='smooth-l1-nll').name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["smooth-l1-nll"]


def test_cells_are_small(store, documents):
    sizes = [record.path.stat().st_size for record in store.records("bokeh-point")]
    assert documents
    assert max(sizes) < 5000


# --- documents ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_point_of_an_ablation_is_computed(documents, name):
    document = documents[name]
    assert (document["task"], document["ablation"], document["seeds"]) == ("bokeh", name, 1)
    expected = {}
    for point in ablation_points(name, TINY, ends_only=True):
        expected.setdefault(point.series, []).append(point.x)
    assert {series: [point["x"] for point in found] for series, found in document["series"].items()} == expected
    for point in (point for found in document["series"].values() for point in found):
        assert point["status"] == "done"
        assert 0 < point["l1_gt"] < 1
        assert set(document["columns"]) <= set(point)
    assert 0 < document["floors"]["ece_q"]["expected"] < document["floors"]["ece_q"]["q95"]


def test_numbers_are_those_of_the_network_on_test_images(store, documents):
    point = of(ablation_points("lambda", TINY, ends_only=True), "fcal_wass", 0.9)
    problem = BokehProblem(TINY, TINY.data("heteroscedastic", "paper-like", 0), store)
    cell = problem.cells.tuned(
        method_of("fcal_wass"),
        {"name": "fcal", "divergence": "wasserstein", "lam": 0.9},
        start=problem.cells.base(method_of("nll")),
    )
    assert cell.config == point.cell.config["fit"]
    splits = BokehSplits(BokehConfig(**cell.config["data"]))
    samples = [split[i] for split in (splits.test, splits.extra) for i in range(len(split))]
    assert len(samples) == 40 + 400
    with torch.inference_mode():
        pred = problem.source.network_of(cell, store)(torch.stack([sample["input"] for sample in samples]))
    target, truth = (torch.stack([sample[name] for sample in samples]) for name in ("target", "truth"))
    found = documents["lambda"]["series"]["fcal_wass"][-1]
    assert found["l1_gt"] == pytest.approx(smooth_l1_loss(pred.mean, truth).item(), rel=1e-4)
    assert found["nll"] == pytest.approx(-pred.log_prob(target).mean().item(), rel=1e-4)
    report = fcal.evaluate(Normal(pred.mean.clone(), pred.stddev.clone()), target, df=75, bins=20)
    assert found["ece_q"] == pytest.approx(report.ece_q, abs=1e-3)
    assert found["ece_z"] == pytest.approx(report.ece_z, abs=2e-3)  # one of 880 residuals may change its bin


def test_temperature_repairs_the_network_of_the_likelihood(documents):
    (plain,), (repaired,) = (documents["lambda"]["series"][name] for name in ("nll", "temperature"))
    assert repaired["l1_gt"] == plain["l1_gt"]
    assert repaired["nll"] < plain["nll"]  # a network of two epochs is far from calibrated
    assert repaired["ece_q"] < plain["ece_q"]


def test_accuracy_lost_is_counted_from_the_deterministic_network(documents):
    series = documents["gamma"]["series"]
    for name in ("nll", "fcal_kl", "fcal_wass"):
        for point, reference in zip(series[name], series["deterministic"], strict=True):
            for column in ("l1_gt", "l1"):
                lost = 100 * (point[column] - reference[column]) / reference[column]
                assert point[f"drop_{column}"] == pytest.approx(lost, rel=1e-4, abs=1e-9)
    assert {point["drop_l1_gt"] for point in series["deterministic"]} == {0.0}


def test_network_that_cannot_be_trained_is_shown_as_failed(tmp_path, monkeypatch):
    def diverge(*_, **__):
        raise Diverged(3, "nll | fcal", float("inf"))

    monkeypatch.setattr(trainings, "fit", diverge)
    found = ablations.ablation(
        "gamma", TINY, store=Store(tmp_path / "cells"), workers=1, progress=False, ends_only=True
    )
    every = [point for curve in found["series"].values() for point in curve]
    reason = "training diverged: nll | fcal = inf after 3 steps"
    assert {(point["status"], point["reason"]) for point in every} == {("failed", reason)}
    assert not any(name in point for point in every for name in ("l1_gt", "drop_l1_gt"))
    assert "failed: training diverged: nll / fcal = inf" in ablations.markdown(found)


def test_point_that_cannot_be_computed_is_shown_as_crashed(store, documents, monkeypatch):
    def crash(*_, **__):
        raise RuntimeError("no memory")

    monkeypatch.setattr(designs, "scored", crash)
    settings = dataclasses.replace(TINY, bins=10)  # other cells, whose trainings are the same
    found = ablations.ablation("divergence", settings, store=store, workers=1, progress=False, ends_only=True)
    assert documents
    assert {(p["status"], p["reason"]) for p in found["series"]["fcal"]} == {("crashed", "RuntimeError: no memory")}
    assert found["floors"] == {}


def test_ablation_of_several_seeds_has_means_and_the_numbers_of_every_seed(store, documents):
    found = ablations.ablation("k", TINY, store=store, seeds=2, workers=1, progress=False, ends_only=True)
    assert found["seeds"] == 2
    for name, curve in found["series"].items():
        for two, one in zip(curve, documents["k"]["series"][name], strict=True):
            assert two["by_seed"]["nll"][0] == one["nll"]
            assert two["by_seed"]["nll"][1] != one["nll"]
            assert two["nll"] == pytest.approx(sum(two["by_seed"]["nll"]) / 2)


def test_ablation_point_that_failed_in_one_seed_has_no_mean():
    done = {"x": 1, "options": {}, "status": "done", "ece_q": 0.1}
    failed = {"x": 1, "options": {}, "status": "failed", "reason": "lost"}
    assert ablations._over_seeds([{"kl": [done]}, {"kl": [failed]}]) == {"kl": [failed]}


def test_table_has_a_line_for_every_point(documents):
    lines = ablations.markdown(documents["gamma"]).splitlines()
    assert (
        lines[0]
        == "| | shape of the Gamma noise | l1_gt | l1 | ece_z | ece_q | nll | crps | epoch | drop_l1_gt | drop_l1 |"
    )
    assert len(lines) == 2 + 4 * 2
    assert all(line.count("|") == lines[0].count("|") for line in lines)
    assert lines[2].startswith("| deterministic | 0.5 | ")


# --- pictures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_picture_of_an_ablation_shows_its_panels_within_the_figure(documents, name):
    figure = ablations.draw(documents[name])
    assert len(figure.axes) == len(designs.ABLATIONS[name].panels)
    FigureCanvasAgg(figure).draw()
    width, height = figure.get_size_inches()
    box = figure.get_tightbbox()
    assert box.x0 >= -0.01
    assert box.y0 >= -0.01
    assert box.x1 <= width + 0.01
    assert box.y1 <= height + 0.01


def test_picture_shows_the_numbers_of_the_document(documents):
    document = documents["k"]
    ax = ablations.draw(document).axes[0]
    (line,) = [line for line in ax.lines if line.get_label() == "KL on q, fixed λ"]
    assert line.get_xdata().tolist() == [2, 200]
    assert line.get_ydata().tolist() == [point["ece_q"] for point in document["series"]["fixed_lam"]]
    trade_off = ablations.draw(documents["lambda"]).axes[0]
    (line,) = [line for line in trade_off.lines if line.get_label() == "NLL + f-Cal-Wass"]
    assert line.get_xdata().tolist() == [1000 * point["l1_gt"] for point in documents["lambda"]["series"]["fcal_wass"]]


def test_picture_leaves_out_what_failed(documents):
    document = json.loads(json.dumps(documents["divergence"]))
    document["series"]["fcal"][0] = {"x": "kl", "status": "failed", "reason": "it diverged"}
    for ax in ablations.draw(document).axes:
        assert "failed" in [text.get_text() for text in ax.texts]


# --- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("gama",),
            r"expected `ablation` one of 'k', 'gamma', 'lambda', 'divergence', got 'gama' \(did you mean 'gamma'",
        ),
        (("gamma", "laplace"), "expected `noise` 'gamma' for the ablation 'gamma', got 'laplace'"),
        (("k", "normal"), "expected `noise` one of 'homoscedastic'"),
        (("k", "gamma", "easy"), "expected `regime` one of 'paper-like', 'noise-dominated', got 'easy'"),
    ],
)
def test_unknown_ablation_noise_or_regime_is_refused_before_the_work(store, arguments, message):
    name, *data = arguments
    with pytest.raises(ValueError, match=message):
        ablations.ablation_cells(name, TINY, *data)
    with pytest.raises(ValueError, match=message):
        ablations.ablation(name, TINY, store=store, **dict(zip(("noise", "regime"), data, strict=False)))


def test_cell_of_another_kind_is_refused(store):
    with pytest.raises(ValueError, match="expected `kind` one of 'bokeh-fit', .*, got 'bokeh-row'"):
        designs.compute("bokeh-row", {}, store)


def test_noise_and_regime_asked_for_are_those_of_the_data():
    (cell, *_) = ablations.ablation_cells("k", TINY, "laplace", "noise-dominated")
    data = cell.config["fit"]["data"]
    assert (data["noise"], data["regime"], data["seed"]) == ("laplace", "noise-dominated", 0)
