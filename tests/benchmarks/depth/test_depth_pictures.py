"""Pictures of the depth benchmark show what its rows predict, from stored weights."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from pictures.gallery import main as script

from fcal.benchmarks import benchmark
from fcal.benchmarks.depth.frames import Source
from fcal.benchmarks.depth.pictures import gallery, predicted_frames
from fcal.benchmarks.depth.problem import DepthProblem
from fcal.benchmarks.depth.settings import PRESETS
from fcal.benchmarks.depth.task import DEPTH
from fcal.benchmarks.methods import method_of
from fcal.data.street import StreetConfig, street_frame
from fcal.sweeps import Store

TINY = PRESETS["tiny"]
ROWS = ("nll", "temperature", "oob_auto")
FIRST = 18  # of the test frames, the last fifth of the drives


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("depth") / "cells")
    benchmark(DEPTH, TINY, store=store, methods=["deterministic", *ROWS], workers=1, progress=False)
    return store


def files_of(store):
    return {path: path.stat().st_mtime_ns for path in store.folder.parent.rglob("*") if path.is_file()}


@pytest.mark.parametrize("row", ROWS)
def test_prediction_at_measured_pixels_is_the_one_that_is_scored(store, row):
    problem = DepthProblem(TINY, TINY.data(0), store, Source())
    scored = problem.resolved(method_of(row, DEPTH.changes)).predict(problem).dists[0]
    of_frame = problem.test.image == 4
    (frame,) = predicted_frames(TINY, store, row, frames=[4])
    measured = ~np.isnan(frame.target)
    assert_allclose(frame.target[measured], problem.test.target[of_frame])
    assert_allclose(frame.depth[measured], scored.mean[of_frame], rtol=1e-4)
    assert_allclose(frame.sigma[measured], scored.stddev[of_frame], rtol=1e-4)


def test_frames_are_those_of_the_world(store):
    frames = predicted_frames(TINY, store, "nll", frames=[0, 5])
    config = StreetConfig(frames=24, frames_per_drive=2, seed=0, height=32, width=64)
    for frame, number in zip(frames, (FIRST, FIRST + 5), strict=True):
        world = street_frame(config, number)
        assert_array_equal(frame.image, world.image)
        assert_array_equal(frame.target, world.measured)
        assert np.isfinite(frame.depth).all()
        assert (frame.sigma > 0).all()


def test_gallery_has_a_column_for_every_frame_and_row(store):
    figure = gallery(TINY, store, ["nll", "temperature"], frames=2)
    titles = [ax.get_title() for ax in figure.axes if ax.get_title()]
    frames = [f"test frame {number}, {title}" for number in (1, 4) for title in ("NLL", "temperature")]
    assert titles == frames


def test_nothing_is_trained_for_a_picture(store):
    before = files_of(store)
    gallery(TINY, store, ROWS, frames=1)
    with pytest.raises(ValueError, match="with the finished training .*, got none"):
        gallery(TINY, store, ["oof_temperature"])
    assert files_of(store) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": ["deterministic"]}, "expected `rows` that predict distributions, got 'deterministic'"),
        ({"rows": ["nl"]}, "expected `method` one of .*did you mean 'nll'"),
        ({"rows": ["nll"], "frames": 7}, "expected `frames` <= 6, got 7"),
        ({"rows": ["nll"], "frames": [6]}, "expected `frames` <= 5, got 6"),
        ({"rows": ["nll"], "frames": []}, "expected `frames` with at least one, got none"),
        ({"rows": []}, "expected `rows` with at least one, got none"),
        ({"rows": ["nll"], "seed": 1}, "with the finished training"),
    ],
)
def test_gallery_refuses_what_it_cannot_draw(store, options, message):
    with pytest.raises(ValueError, match=message):
        gallery(TINY, store, **options)


def test_script_draws_a_picture_or_says_why_not(store, tmp_path, monkeypatch, capsys):
    out = tmp_path / "gallery.png"
    words = ["gallery.py", "depth", "--run", str(store.folder.parent), "--preset", "tiny", "--out", str(out)]
    threads = torch.get_num_threads()
    monkeypatch.setattr("sys.argv", [*words, "--rows", "nll,oob_auto", "--frames", "1"])
    assert script() == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr("sys.argv", [*words, "--rows", "ensemble_3"])
    assert script() == 2
    torch.set_num_threads(threads)
    assert capsys.readouterr().err.count("\n") == 1
