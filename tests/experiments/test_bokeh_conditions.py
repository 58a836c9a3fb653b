"""Bokeh under other conditions: shifted test images, and a tiny run that writes the same page from its cells."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bokeh_conditions.conditions import SAME, SHIFTED, ConditionsTask, Config
from bokeh_conditions.run import main

from fcal._config import read_config
from fcal.benchmarks.methods import method_of
from fcal.data import Bokeh, BokehConfig
from fcal.sweeps import Store

FOLDER = Path(__file__).parents[2] / "experiments/bokeh_conditions"
TINY = read_config(FOLDER / "tiny.toml", Config)


@pytest.fixture
def problems(tmp_path):
    usual, shifted = ConditionsTask((14, 20)).problems(TINY.settings(160), Store(tmp_path / "cells"))[:2]
    return usual, shifted


def test_shifted_problem_trains_the_same_networks_and_has_rows_of_its_own(problems):
    usual, shifted = problems
    assert (usual.labels["test"], shifted.labels["test"]) == (SAME, SHIFTED)
    for row in ("temperature", "oob_auto"):
        method = usual.resolved(method_of(row))
        assert [cell.key for cell in usual.trainings(method)] == [cell.key for cell in shifted.trainings(method)]
        assert usual.config(method) != shifted.config(method)


def test_shifted_images_hide_the_red_disc_more_often_and_others_are_the_same(problems):
    usual, shifted = problems
    for split in ("train", "validation"):
        both = [getattr(problem.datasets, split)[0]["input"] for problem in problems]
        torch.testing.assert_close(*both, rtol=0, atol=0)
    # heteroscedastic noise grows near other discs: the more there are, the larger it is
    sigmas = [problem.truth()[0].stddev.mean() for problem in (usual, shifted)]
    assert sigmas[1] > 1.15 * sigmas[0]
    data = BokehConfig(noise="heteroscedastic", images=200, extra=200, size=16)
    torch.testing.assert_close(usual.truth()[0].mean[:40].float(), Bokeh("test", data).__getitems__(range(40))["truth"])


def test_run_writes_the_same_page_again_from_published_cells(tmp_path, monkeypatch):
    words = ["run.py", "--config", FOLDER / "tiny.toml", "--out", tmp_path / "out"]
    monkeypatch.setattr(sys, "argv", list(map(str, [*words, "--run", tmp_path / "run"])))
    assert main() == 0
    page = (tmp_path / "out/bokeh_conditions.md").read_bytes()
    assert b"intervals grow by" in page
    assert b"oob_auto - temperature" in page
    assert (tmp_path / "out/bokeh_conditions/conditions.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(sys, "argv", list(map(str, [*words, "--run", tmp_path / "empty", "--collect"])))
    assert main() == 0
    assert (tmp_path / "out/bokeh_conditions.md").read_bytes() == page


def test_config_refuses_epochs_that_do_not_fit_the_sizes():
    with pytest.raises(ValueError, match="expected `epochs` for each of the 2 `images`, got 1"):
        replace(TINY, epochs=[3])
