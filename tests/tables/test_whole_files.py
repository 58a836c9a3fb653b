"""All rows of files as one prediction."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from fcal.tables import Columns, open_predictions, whole

ROWS = 7


def columns(layout: str) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    names = {
        "scalar": ["mean", "std", "target"],
        "outputs": ["mean_0", "mean_1", "std_0", "std_1", "target_0", "target_1"],
        "covariance": ["mean_0", "mean_1", "target_0", "target_1"],
        "quantiles": ["q05", "q50", "q95", "target"],
    }[layout]
    found = {name: draw.uniform(1, 2, ROWS) + 5 * (name > "q1") * (name < "q6") for name in names}
    if layout == "covariance":
        found |= {"cov_0_0": np.full(ROWS, 2.0), "cov_1_0": draw.uniform(-1, 1, ROWS), "cov_1_1": np.full(ROWS, 3.0)}
    if layout == "quantiles":
        found |= {"q50": found["q05"] + 1, "q95": found["q05"] + 3}
    return found


@pytest.mark.parametrize("layout", ["scalar", "outputs", "covariance", "quantiles"])
@pytest.mark.parametrize("family", ["normal", "laplace"])
def test_chunks_joined_are_the_whole_file(layout: str, family: str, tmp_path: Path) -> None:
    if family != "normal" and layout in ("covariance", "quantiles"):
        return
    np.savez(tmp_path / "p.npz", **columns(layout))
    one, two = (whole(open_predictions(tmp_path / "p.npz", family=family, chunk_rows=size)) for size in (ROWS, 3))
    assert type(one[0]) is type(two[0])
    assert one[0].batch_shape == two[0].batch_shape
    assert_close(one[1], two[1], rtol=0, atol=0)
    assert_close(one[0].log_prob(one[1]), two[0].log_prob(two[1]), rtol=0, atol=0)


@pytest.mark.parametrize("layout", ["scalar", "outputs", "covariance", "quantiles"])
def test_targets_may_be_absent_where_they_are_optional(layout: str, tmp_path: Path) -> None:
    without = {name: values for name, values in columns(layout).items() if not name.startswith("target")}
    np.savez(tmp_path / "p.npz", **without)
    with pytest.raises(ValueError, match="target"):
        open_predictions(tmp_path / "p.npz")
    pred, target = whole(open_predictions(tmp_path / "p.npz", columns=Columns(target_optional=True), chunk_rows=3))
    assert target.shape == pred.mean.shape
    assert bool(torch.isnan(target).all())
