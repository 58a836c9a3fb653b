"""Results of cross-fitting and of the choice of a family as people read them."""

import json
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import Tensor
from torch.distributions import Normal
from torch.utils.data import TensorDataset

import fcal

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(300, 1, generator=GENERATOR)
Y = X + torch.randn(300, 1, generator=GENERATOR)


def fit(rows: object) -> object:
    mean = torch.stack([target - given for given, target in rows]).mean()  # type: ignore[attr-defined]

    def model(given: Tensor) -> Normal:
        return Normal(given + mean, torch.full(given.shape, 0.5))

    return model


@pytest.fixture(scope="module", params=["ensemble", "full"])
def result(request: pytest.FixtureRequest) -> object:
    return fcal.crossfit(fit, TensorDataset(X, Y), keep=request.param)


def test_a_result_prints_what_was_trained_its_report_and_the_repair(result: object) -> None:
    text = str(result)
    assert "rows" in text.splitlines()[0]
    assert "before the repair, over-confident: errors are " in text
    assert "scale of z" in text
    assert text.splitlines()[-1].startswith("calibrated() is the model to use; its repair is ScaleAndShape(factor=")
    page = result._repr_html_()  # type: ignore[attr-defined]
    assert page.startswith("<div>")
    assert page.count("<table>") == 1


def test_the_report_is_that_of_rows_left_out(result: object) -> None:
    report = result.report()  # type: ignore[attr-defined]
    assert report.verdict == "over-confident"
    assert report.scale.value == pytest.approx(2.0, rel=0.15)
    assert 200 <= report.n <= 300


def test_a_result_is_a_frame_and_a_file(result: object, tmp_path: Path) -> None:
    frame = result.to_frame()  # type: ignore[attr-defined]
    assert isinstance(frame, pd.DataFrame)
    assert list(frame.index) == ["all"]
    result.save(tmp_path / "r.json")  # type: ignore[attr-defined]
    assert json.loads((tmp_path / "r.json").read_text())["verdict"] == "over-confident"
    with pytest.raises(ValueError, match="ending of the file's name"):
        result.save(tmp_path / "r.pdf")  # type: ignore[attr-defined]
