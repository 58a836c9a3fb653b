"""The depth benchmark: whole runs of a tiny street world, its numbers against definitions, and data from files."""

import json
import math
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from torch.distributions import Normal
from torch.testing import assert_close

import fcal
from fcal.benchmarks.depth.frames import Source, labels_of
from fcal.benchmarks.depth.problem import DepthTrainings
from fcal.benchmarks.depth.scoring import scored
from fcal.benchmarks.depth.settings import PRESETS
from fcal.benchmarks.depth.task import DEPTH
from fcal.benchmarks.methods import METHODS
from fcal.cli import main
from fcal.data.street import StreetConfig, StreetDepth
from fcal.models import SharedTrunk
from fcal.sweeps import Store

TINY = PRESETS["tiny"]
ROWS = ("oracle", "deterministic", "nll", "fcal_kl", "temperature", "conformal", "oob_auto", "oob_heads")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A tiny benchmark, from the command line."""
    out = tmp_path_factory.mktemp("depth")
    words = ["benchmark", "depth", "--preset", "tiny", "--methods", ",".join(ROWS), "--workers", "1", "--out", str(out)]
    assert main(words) == 0
    return out


@pytest.fixture(scope="module")
def table(run):
    (table,) = json.loads((run / "results.json").read_text())["tables"]
    return table


def test_benchmark_has_every_row_with_every_column(table):
    assert set(table["rows"]) == set(ROWS)
    for name, row in table["rows"].items():
        assert "status" not in row, name
        assert row["silog"]["mean"] > 0
        assert (row["nll"]["mean"] is None) == (name == "deterministic")
    assert {"silog", "rmse", "abs_rel", "d1", "ece_z", "ece_q", "nll", "crps", "cost"} <= set(table["columns"])
    assert table["recommended"] == "oob_auto"


def test_oracle_of_the_street_world_is_calibrated(table):
    oracle = table["rows"]["oracle"]
    assert oracle["ece_z"]["mean"] < table["floors"]["ece_z"]["q95"]
    assert oracle["sigma_corr"]["mean"] == pytest.approx(1.0)
    assert oracle["l1_gt"]["mean"] == 0.0
    # 3,055 residuals: five standard errors of a share are 0.027
    assert oracle["coverage"]["mean"] == pytest.approx(0.9, abs=0.027)
    assert all(
        row["nll"]["mean"] > oracle["nll"]["mean"]
        for name, row in table["rows"].items()
        if row["nll"]["mean"] and name != "oracle"
    )


def test_page_is_written_with_the_papers_numbers(run, table):
    page = (run / "report.html").read_text()
    assert "rendered streets" in page
    assert table["paper"]["fcal_kl"]["ece_z"]["mean"] == 0.00074  # table of the paper's appendix


def test_run_again_computes_nothing(run, capsys):
    before = {path: path.stat().st_mtime_ns for path in (run / "cells").iterdir()}
    words = ["benchmark", "depth", "--preset", "tiny", "--methods", ",".join(ROWS), "--workers", "1", "--out", str(run)]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["task"] == "depth"
    assert {path: path.stat().st_mtime_ns for path in (run / "cells").iterdir()} == before


def test_drives_are_left_out_together(run):
    store = Store(run / "cells")
    (problem,) = DEPTH.problems(TINY, store)
    (cell,) = problem.trainings(problem.resolved(METHODS["oob_auto"]))
    bags = problem.source.bags_of(cell, store)
    groups = np.array(problem.datasets.groups)
    for out in bags.left_out.numpy():
        assert not set(groups[out]) & set(groups[~out])


def test_heads_share_one_encoder(run):
    store = Store(run / "cells")
    (problem,) = DEPTH.problems(TINY, store)
    (cell,) = problem.trainings(problem.resolved(METHODS["oob_heads"]))
    assert isinstance(problem.source.bags_of(cell, store).shared, SharedTrunk)


# --- numbers --------------------------------------------------------------------------------------------------------


def frames(seed=0):
    return StreetDepth(StreetConfig(frames=6, frames_per_drive=2, height=32, width=64, seed=seed))


def test_labels_are_the_measured_pixels_with_their_frame_row_and_truth():
    data = frames()
    labels = labels_of(data)
    maps = torch.stack([data[index]["target"] for index in range(6)])
    valid = ~maps.isnan()
    assert_close(labels.target, maps[valid])
    assert_close(labels.image, valid.nonzero()[:, 0])
    assert_close(labels.row, valid.nonzero()[:, 1] / 32)
    depth, sigma = data.truth(range(6))
    assert_close(labels.truth, depth[valid])
    assert_close(labels.sigma, sigma[valid])


def test_scores_are_those_of_numpy():
    labels = labels_of(frames())
    generator = torch.Generator().manual_seed(0)
    point = labels.target * torch.exp(0.1 * torch.randn(labels.target.shape, generator=generator))
    pred = Normal(point, 0.1 * point)
    columns = scored(pred, labels, bins=20, df=20)["columns"]
    p, t, s = (values.double().numpy() for values in (point, labels.target, pred.stddev))
    log = np.log(p / t)
    expected = {
        "silog": math.sqrt((log**2).mean() - log.mean() ** 2),
        "rmse": math.sqrt(((p - t) ** 2).mean()),
        "abs_rel": (abs(p - t) / t).mean(),
        "d1": (np.maximum(p / t, t / p) < 1.25).mean(),
        "coverage": (abs(p - t) / s < 1.6448536).mean(),
        "nll": (0.5 * ((t - p) / s) ** 2 + np.log(s) + 0.5 * math.log(2 * math.pi)).mean(),
    }
    for name, value in expected.items():
        assert columns[name] == pytest.approx(value, rel=2e-4), name


def test_parts_by_distance_show_where_error_bars_are_too_small():
    labels = labels_of(frames())
    sigma = torch.where(labels.truth < 10, labels.sigma / 2, labels.sigma)
    parts = scored(Normal(labels.truth, sigma), labels, bins=20, df=20)["by_distance"]
    near, far = parts["depth 0 to 10 m"], parts["depth 20 to 40 m"]
    # the scale of n residuals is known to 1 / sqrt(2 n); n is above 400: five standard errors are 0.18
    assert near["scale"] == pytest.approx(2.0, rel=0.18)
    assert far["scale"] == pytest.approx(1.0, abs=0.18)


def test_deterministic_prediction_has_accuracy_only():
    labels = labels_of(frames())
    columns = scored(labels.truth, labels, bins=20, df=20)["columns"]
    assert columns["silog"] > 0
    assert columns["nll"] is None


# --- data from files ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kitti(tmp_path_factory):
    """A street world in KITTI's layout."""
    folder = tmp_path_factory.mktemp("streets") / "kitti"
    words = ["data", "street", "--out", str(folder), "--frames", "24", "--height", "48", "--width", "160"]
    assert main([*words, "--layout", "kitti-depth"]) == 0
    return folder


def test_same_command_reads_a_tree_of_kitti(kitti, tmp_path, capsys):
    words = ["benchmark", "depth", "--preset", "tiny", "--methods", "nll,temperature", "--workers", "1"]
    assert main([*words, "--data", str(kitti), "--out", str(tmp_path), "--json"]) == 0
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    assert table["world"] == "kitti"
    assert table["rows"]["temperature"]["silog"]["mean"] > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--preset", "kitti-mini"], "expected `--data` for the world 'kitti-mini', got none"),
        (["--preset", "tiny", "--encoder", "vgg"], "expected `encoder` one of 'mobilenet_v2', "),
        (["--preset", "tiny", "--family", "cauchy"], "expected `family` one of 'normal', "),
        (["--preset", "tiny", "--data", "{tmp}"], "expected a list of frames eigen_train_files_with_gt.txt in"),
        (["--preset", "tiny", "--data", "{tmp}/no"], "expected `--data` a folder, got {tmp}/no, no folder"),
        (["--preset", "tiny", "--methods", "stated"], "stated"),
    ],
)
def test_bad_input_is_one_line(words, message, tmp_path, capsys):
    words = [word.format(tmp=tmp_path) for word in words]
    assert main(["benchmark", "depth", *words, "--out", str(tmp_path / "out"), "--workers", "1"]) == 2
    error = capsys.readouterr().err
    assert message.format(tmp=tmp_path) in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("damage", ["8 bits", "other size", "all invalid"])
def test_depth_maps_that_cannot_be_used_are_one_line_before_any_training(damage, kitti, tmp_path, capsys):
    tree = tmp_path / "kitti"
    shutil.copytree(kitti, tree)
    for path in tree.glob("*/*/proj_depth/groundtruth/image_02/*.png"):
        with Image.open(path) as image:
            values = np.array(image)
        wrong = {
            "8 bits": (values // 256).astype(np.uint8),
            "other size": values[:-1],
            "all invalid": np.zeros_like(values),
        }
        Image.fromarray(wrong[damage]).save(path)
    words = ["benchmark", "depth", "--preset", "tiny", "--methods", "nll", "--data", str(tree)]
    assert main([*words, "--out", str(tmp_path / "out"), "--json"]) == 2
    error = capsys.readouterr().err
    assert f"expected {tree}/train/" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_trainings_with_the_same_folder_are_equal_so_that_frames_are_read_once():
    assert DepthTrainings(Source("a")) == DepthTrainings(Source("a"))
    assert DepthTrainings(Source("a")) != DepthTrainings(Source("b"))


def test_presets_that_count_have_enough_pixels_in_a_batch():
    """At least 1e4 measured pixels in a batch of the calibration loss; tiny and quick are exempt."""
    for name in ("street",):
        settings = PRESETS[name]
        assert settings.tune_batch * settings.height * settings.width * settings.density >= 1e4


def test_predictions_are_of_measured_pixels_in_the_order_of_the_targets():
    data, source = frames(), DepthTrainings()
    predicted = source.predict(lambda x: Normal(x[:, 0], torch.ones_like(x[:, 0])), data, at_once=4)
    valid = ~torch.stack([data[index]["target"] for index in range(6)]).isnan()
    assert_close(predicted.pred.mean, torch.stack([data[index]["input"][0] for index in range(6)])[valid])
    assert_close(predicted.target, labels_of(data).target)
    assert fcal.nll(predicted.pred, predicted.target).shape == predicted.target.shape
