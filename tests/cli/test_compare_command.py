"""``fcal compare`` as users type it, and what files may throw at it."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fcal.cli import main

ROWS = 600


def columns() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    mean, noise = draw.normal(size=(2, ROWS))
    return {"mean": mean, "y": mean + noise, "drive": np.arange(ROWS) // 6}


def write(path: Path, header: str, *values: np.ndarray) -> Path:
    lines = (",".join("" if v != v else f"{v:.9g}" for v in row) for row in zip(*values, strict=True))
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """A model that knows half of the mean, and a better one that predicts quantiles."""
    own = columns()
    one = np.ones(ROWS)
    first = write(tmp_path / "old.csv", "mean,std,target,drive", 0.5 * own["mean"], one, own["y"], own["drive"])
    edges = [own["mean"] + stats.norm.ppf(p) for p in (0.05, 0.5, 0.95)]
    return [str(first), str(write(tmp_path / "new.csv", "q05,q50,q95,y", *edges, own["y"]))]


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["compare", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_files_of_different_layouts_are_compared(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *files]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "new.csv has the lower NLL by" in out
    assert "Its 90 % intervals are as wide as those of old.csv and hold" in out
    assert "95 % intervals of each difference by itself, of 600 independent rows" in out
    assert "q of K squared ones" in out  # symbols are explained


def test_json_is_one_document_with_paired_intervals(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *files, "--json", "--df", "10", "--bins", "10"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    found = json.loads(out)
    assert found["reference"] == "old.csv"
    assert found["reports"]["new.csv"]["df"] == 10
    own = columns()
    scores = [-stats.norm.logpdf(own["y"], factor * own["mean"]) for factor in (0.5, 1.0)]
    expected = stats.ttest_rel(scores[1], scores[0]).confidence_interval(0.95)
    gap = found["differences"]["new.csv"]["nll"]
    np.testing.assert_allclose([gap["low"], gap["high"]], [expected.low, expected.high], rtol=1e-5)
    assert set(found["scores"]["old.csv"]) >= {"nll", "crps", "rmse", "ece_z", "ece_q", "coverage_0.9", "width_0.9"}


def test_clusters_are_those_of_the_first_file(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *files, "--cluster", "drive", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["clusters"] == 100
    assert "column 'drive'" in refused(capsys, *reversed(files), "--cluster", "drive")


def test_page_is_one_file_with_hostile_names_as_text(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = tmp_path / "<script>alert(1)<script>.csv"
    hostile.write_bytes(Path(files[0]).read_bytes())
    out = tmp_path / "page.html"
    assert main(["compare", *files, str(hostile), "--out", str(out)]) == 0
    page = out.read_text(encoding="utf-8")
    assert "<script>alert(1)" not in page
    assert "Comparison of 3 models on 600 targets" in page
    assert "new.csv less old.csv" in page
    assert f"page: {out}" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.tmp*"))


def test_missing_targets_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = columns()
    holes = np.where(np.arange(ROWS) % 10, own["y"], np.nan)
    paths = [write(tmp_path / f"{k}.csv", "mu,sigma,y", own["mean"] + k, np.ones(ROWS), holes) for k in (0, 1)]
    assert main(["compare", *map(str, paths)]) == 0
    assert "60 of 600 targets are missing and do not count" in capsys.readouterr().err


def test_shards_of_a_model_are_one_argument(files: list[str], tmp_path: Path, capsys) -> None:
    own, folder = columns(), tmp_path / "shards"
    folder.mkdir()
    for part, rows in enumerate((slice(0, 77), slice(77, 500), slice(500, ROWS))):
        write(folder / f"{part}.csv", "mean,std,target", own["mean"][rows], np.ones(ROWS)[rows], own["y"][rows])
    assert main(["compare", files[1], str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["n"] == ROWS
    assert abs(found["differences"]["0.csv and 2 more"]["nll"]["value"]) < 1e-6  # the same distributions


def test_the_same_file_twice_has_nothing_to_compare(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", files[0], files[0], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (gap,) = found["differences"].values()
    assert gap["nll"] == {"value": 0, "low": 0, "high": 0}
    assert "there is nothing to compare" in found["sentences"][0]


def test_one_file_is_sent_to_evaluate(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert f"got 1; fcal evaluate {files[0]} judges one" in refused(capsys, files[0])


def test_different_rows_are_refused_with_the_first_of_them(files: list[str], tmp_path: Path, capsys) -> None:
    own, one = columns(), np.ones(ROWS)
    other = own["y"].copy()
    other[7] += 1
    order = np.random.default_rng(1).permutation(ROWS)
    missing = np.where(np.arange(ROWS) == 3, np.nan, own["y"])
    cases = {
        "moved": (own["mean"], one, other),
        "sorted": (own["mean"][order], one, own["y"][order]),
        "fewer": (own["mean"][1:], one[1:], own["y"][1:]),
        "missing": (own["mean"], one, missing),
    }
    paths = {name: str(write(tmp_path / f"{name}.csv", "mean,std,target", *values)) for name, values in cases.items()}
    err = refused(capsys, files[0], paths["moved"])
    assert (
        f"expected `moved.csv` with the targets of old.csv, got {other[7]:.7g} for {own['y'][7]:.7g} in data row 8"
        in err
    )
    assert "the rows are the same in another order: sort both files" in refused(capsys, files[0], paths["sorted"])
    assert "expected `fewer.csv` with the 600 rows of old.csv, got 599" in refused(capsys, files[0], paths["fewer"])
    assert "got a missing one for" in refused(capsys, files[0], paths["missing"])


def test_targets_of_less_precision_are_the_same(files: list[str], tmp_path: Path, capsys) -> None:
    own = columns()
    np.savez(tmp_path / "b.npz", mean=own["mean"], std=np.ones(ROWS), target=own["y"].astype(np.float32))
    assert main(["compare", files[0], str(tmp_path / "b.npz"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n"] == ROWS


@pytest.mark.parametrize(
    ("targets", "message"),
    [(["", ""], "at least 2 rows that have a target, got 0"), (["1"], "at least 2 rows that have a target, got 1")],
    ids=["all missing", "one row"],
)
def test_too_few_targets_are_refused(targets: list[str], message: str, tmp_path: Path, capsys) -> None:
    path = tmp_path / "p.csv"
    path.write_text("mean,std,target\n" + "".join(f"0,1,{target}\n" for target in targets))
    assert message in refused(capsys, str(path), str(path))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "page.pdf"], "ends in .html"),
        (["--bins", "1"], "`bins`"),
        (["--df", "0"], "`df`"),
        (["--mean", "nowhere"], "column 'nowhere'"),
        (["--family", "cauchy"], "family"),
    ],
)
def test_bad_options_are_one_line(options: list[str], message: str, files: list[str], capsys) -> None:
    assert message in refused(capsys, *files, *options)


def test_different_numbers_of_outputs_are_refused(files: list[str], tmp_path: Path, capsys) -> None:
    own, one = columns(), np.ones(ROWS)
    header = "mean_0,mean_1,std_0,std_1,target_0,target_1"
    path = write(tmp_path / "two.csv", header, own["mean"], own["mean"], one, one, own["y"], own["y"])
    assert "with 1 outputs like old.csv, got 2" in refused(capsys, files[0], str(path))
