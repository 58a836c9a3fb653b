"""``fcal recalibrate`` as users type it."""

import json
import shlex
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from fcal import recalibration
from fcal.cli import main
from fcal.cli.arguments import METHODS as KNOWN_METHODS

METHODS = ["temperature", "affine", "isotonic", "conformal", "gp-beta"]


def write(path: Path, *, seed: int, rows: int = 2000, factor: float = 2.0) -> Path:
    """Predictions whose errors are ``factor`` times as large as they say, with an extra column of text."""
    draw = np.random.default_rng(seed)
    mean, std = draw.normal(size=rows), np.exp(0.3 * draw.normal(size=rows))
    target = mean + factor * std * draw.normal(size=rows)
    lines = [
        f"{i:04d},{a!r},{b!r},{c!r}"
        for i, (a, b, c) in enumerate(zip(mean.tolist(), std.tolist(), target.tolist(), strict=True))
    ]
    path.write_text("\n".join(["id,mean,std,target", *lines]) + "\n")
    return path


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return write(tmp_path / "val.csv", seed=1), write(tmp_path / "test.csv", seed=2)


def words(files: tuple[Path, Path], out: Path, method: str = "temperature") -> list[str]:
    return ["recalibrate", "--method", method, "--fit", str(files[0]), "--apply", str(files[1]), "--out", str(out)]


@pytest.mark.parametrize("method", METHODS)
def test_repaired_file_covers_what_it_says(
    method: str, files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "repaired.csv"
    assert main([*words(files, out, method), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == 2000
    assert found["before"]["verdict"] == "over-confident"
    # 1.3 times as wide as the sd of a share of 2000 rows, for the calibration rows' own noise; 4 sd: alarm 1e-4
    tolerance = 4 * 1.4 * np.sqrt(0.9 * 0.1 / 2000)
    if method != "gp-beta":  # a beta map cannot undo a factor of 2
        assert abs(found["after"]["coverage"]["0.9"] - 0.9) < tolerance
    assert found["after"]["nll"] < found["before"]["nll"]


def test_original_columns_keep_their_text_and_order(files: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "repaired.csv"
    assert main(words(files, out)) == 0
    before, after = files[1].read_text().splitlines(), out.read_text().splitlines()
    assert after[0] == before[0] + ",mean_recalibrated,std_recalibrated"
    assert all(new.startswith(f"{old},") for old, new in zip(before, after, strict=True))


def test_factor_is_the_root_mean_square_of_z(files: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "repaired.parquet"
    assert main(words(files, out)) == 0
    fit, repaired = pyarrow.csv.read_csv(files[0]), pq.read_table(out)
    z = (fit["target"].to_numpy() - fit["mean"].to_numpy()) / fit["std"].to_numpy()
    ratio = repaired["std_recalibrated"].to_numpy() / repaired["std"].to_numpy()
    np.testing.assert_allclose(ratio, np.sqrt(np.mean(z**2)), rtol=1e-12)


def test_evaluation_of_the_fitting_rows_says_so(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for applied, expected in ((files[0], True), (files[1], False)):
        out = tmp_path / "repaired.csv"
        assert main(words((files[0], applied), out)) == 0
        assert ("fitted on rows that it repairs" in capsys.readouterr().err) is expected
        command = ["evaluate", str(out), "--mean", "mean_recalibrated", "--std", "std_recalibrated", "--json"]
        assert main(command) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["fitted_on"] is expected
        assert any("fitted on" in warning for warning in found["warnings"]) is expected


def test_law_of_isotonic_is_evaluated_by_its_quantiles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    many = write(tmp_path / "val.csv", seed=1, rows=10_000), write(tmp_path / "test.csv", seed=2, rows=10_000)
    out = tmp_path / "repaired.npz"
    assert main(words(many, out, "isotonic")) == 0
    assert "--quantiles 'q*_recalibrated'" in capsys.readouterr().err
    assert main(["evaluate", str(out), "--quantiles", "q*_recalibrated", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "calibrated"


def test_saved_recalibrator_can_be_loaded(files: tuple[Path, Path], tmp_path: Path) -> None:
    assert main([*words(files, tmp_path / "out.csv"), "--save", str(tmp_path / "kept")]) == 0
    assert type(recalibration.load(tmp_path / "kept")).__name__ == "Temperature"


def test_failure_leaves_the_old_output_as_it_was(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.csv"
    out.write_text("old")
    with files[1].open("a") as file:
        file.write("9999,1.0,0.0,1.0\n")  # a std of 0 in the last row
    assert main(words(files, out)) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "2001" in err
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "test.csv", "val.csv"]


def test_second_repair_of_one_file_is_refused(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.csv"
    assert main(words(files, out)) == 0
    capsys.readouterr()
    assert main(words((files[0], out), tmp_path / "again.csv")) == 2
    assert "mean_recalibrated" in capsys.readouterr().err


def test_predictions_without_targets_are_repaired(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = tmp_path / "bare.csv"
    bare.write_text("mean,std\n1.0,2.0\n0.0,1.0\n")
    out = tmp_path / "out.csv"
    assert main([*words((files[0], bare), out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == 2
    assert found["before"] is None
    assert out.read_text().splitlines()[0] == "mean,std,mean_recalibrated,std_recalibrated"


@pytest.mark.parametrize(
    "change",
    [
        ("--fit", "nowhere.csv"),
        ("--apply", "nowhere.csv"),
        ("--out", "out.txt"),
        ("--family", "student-t"),
        ("--mean", "mu"),
    ],
)
def test_bad_input_is_one_line(
    change: tuple[str, str], files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words(files, tmp_path / "out.csv"), *change]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out.csv").exists()


def test_methods_of_the_command_are_those_of_the_library() -> None:
    # the parser names them itself, so that --help need not load torch
    assert sorted(KNOWN_METHODS) == sorted(["auto", *recalibration.names()])


def test_without_a_method_one_is_chosen_and_said(files: tuple[Path, Path], tmp_path: Path, capsys) -> None:
    out = tmp_path / "out.csv"
    words = ["recalibrate", "--fit", str(files[0]), "--apply", str(files[1]), "--out", str(out)]
    assert main(words) == 0
    shown = capsys.readouterr()
    assert "not fitted to" in " ".join(shown.out.split())
    hint = shlex.split(shown.err.split("look closer: fcal ")[1].splitlines()[0])
    assert main(hint) == 0  # whatever was chosen, and whatever columns it wrote
    assert "calibrated" in capsys.readouterr().out
    assert "scale-and-shape" in shown.out
    out.unlink()
    assert main([*words, "--method", "auto", "--json"]) == 0
    note = json.loads(capsys.readouterr().out)
    assert note["method"] in note["compared"]
    assert set(note["compared"]) == {"scale-and-shape", "temperature", "affine", "conformal", "isotonic"}


def test_a_saved_repair_is_applied_without_the_rows_it_was_fitted_to(files, tmp_path, capsys) -> None:
    first, second, kept = tmp_path / "first.csv", tmp_path / "second.csv", tmp_path / "kept"
    words = ["recalibrate", "--apply", str(files[1])]
    assert main([*words, "--fit", str(files[0]), "--out", str(first), "--save", str(kept)]) == 0
    assert main([*words, "--load", str(kept), "--out", str(second)]) == 0
    assert first.read_bytes() == second.read_bytes()
    capsys.readouterr()
    for more, message in (
        (["--load", str(kept), "--method", "affine"], "expected no `--method` with `--load`, got both"),
        (["--load", str(tmp_path / "nowhere")], "expected `--load` a folder that `--save` made, got"),
        (["--load", str(kept), "--fit", str(files[0])], "not allowed with argument"),
        ([], "one of the arguments --fit --load is required"),
    ):
        try:
            code = main([*words, *more, "--out", str(tmp_path / "third.csv")])
        except SystemExit as stop:
            code = stop.code
        assert code == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert not (tmp_path / "third.csv").exists()


def test_samples_are_repaired_and_written_compressed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw = np.random.default_rng(0)
    for name in ("val", "test"):
        mean = draw.normal(size=(800, 1))
        samples, target = mean + draw.normal(size=(800, 15)), mean[:, 0] + 2 * draw.normal(size=800)
        np.savez(tmp_path / f"{name}.npz", samples=samples, target=target)
    out = tmp_path / "repaired.csv.gz"
    files = (tmp_path / "val.npz", tmp_path / "test.npz")
    assert main([*words(files, out), "--samples", "samples", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["before"]["verdict"] == "over-confident"
    assert found["after"]["verdict"] == "calibrated"
    assert main(["evaluate", str(out), "--quantiles", "q*_recalibrated", "--json"]) == 0
    # Between the 19 quantiles in the file the law is another one, by a little.
    assert json.loads(capsys.readouterr().out)["scale"]["value"] == pytest.approx(
        found["after"]["scale"]["value"], rel=0.02
    )


def write_groups(path: Path, sizes: dict[str, int], *, seed: int, targets: bool = True) -> Path:
    """Predictions of cities whose errors are larger, or smaller, than they say."""
    draw, factors = np.random.default_rng(seed), {"Aachen": 1.0, "Bonn": 2.0, "Ulm": 0.6}
    lines = []
    for name, rows in sizes.items():
        for mean, noise in draw.normal(size=(rows, 2)).tolist():
            target = mean + factors.get(name, 1.3) * noise if targets else ""
            lines.append(f"{mean},1,{target},{name}")
    path.write_text("\n".join(["mean,std,target,city", *lines]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def cities(tmp_path: Path) -> list[str]:
    fit = write_groups(tmp_path / "val.csv", {"Aachen": 1500, "Bonn": 800, "Ulm": 300, "small": 12}, seed=1)
    apply = write_groups(tmp_path / "test.csv", {"Aachen": 2000, "Bonn": 2000, "Ulm": 2000, "new": 40}, seed=2)
    return ["--fit", str(fit), "--apply", str(apply), "--group", "city"]


@pytest.mark.parametrize("method", [[], ["--method", "temperature"], ["--method", "conformal"]])
def test_groups_are_repaired_each(method: list[str], cities: list[str], tmp_path: Path, capsys) -> None:
    out = tmp_path / "out.csv"
    assert main(["recalibrate", *method, *cities, "--out", str(out), "--json"]) == 0
    text, err = capsys.readouterr()
    assert err == ""
    found = json.loads(text)
    assert found["method"] in KNOWN_METHODS
    assert found["unseen_groups"] == {"new": 40}
    assert found["groups"]["Bonn"]["factor"] == pytest.approx(2, rel=0.1)
    assert found["groups"]["small"]["weight"] < found["groups"]["Ulm"]["weight"]
    for name in ("Aachen", "Bonn", "Ulm"):
        # coverage of 2000 rows is known to 0.7 %, that of factors of 300 rows and more to 1.5 %: four sd
        assert abs(found["after"]["groups"][name]["coverage"]["0.9"] - 0.9) < 0.06
    assert abs(found["before"]["groups"]["Bonn"]["coverage"]["0.9"] - 0.9) > 0.25
    assert len(out.read_text(encoding="utf-8").splitlines()) == 6041


def test_rows_of_unknown_groups_are_counted_aloud(cities: list[str], tmp_path: Path, capsys) -> None:
    out = tmp_path / "out.csv"
    assert main(["recalibrate", *cities, "--out", str(out)]) == 0
    text, err = capsys.readouterr()
    assert "40 rows are of a group not there at fit (new): they get the repair of all rows together" in err
    assert "own factor" in text
    (hint,) = (line for line in err.splitlines() if line.startswith("look closer: fcal "))
    assert main([*shlex.split(hint.removeprefix("look closer: fcal ")), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert abs(report["groups"]["Ulm"]["coverage"]["0.9"] - 0.9) < 0.06


def test_a_saved_repair_of_groups_gives_the_same_file(cities: list[str], tmp_path: Path, capsys) -> None:
    first, second, folder = tmp_path / "a.csv", tmp_path / "b.csv", tmp_path / "kept"
    assert main(["recalibrate", *cities, "--out", str(first), "--save", str(folder)]) == 0
    again = ["recalibrate", "--load", str(folder), "--apply", cities[3], "--out", str(second)]
    assert main([*again, "--group", "city"]) == 0
    assert first.read_bytes() == second.read_bytes()
    capsys.readouterr()
    assert main(again) == 2
    assert "expected `--group COL` for the repair of groups" in capsys.readouterr().err


def test_groups_and_a_repair_without_groups_are_refused(cities: list[str], tmp_path: Path, capsys) -> None:
    out, folder = str(tmp_path / "out.csv"), str(tmp_path / "kept")
    assert main(["recalibrate", *cities[:-2], "--out", out, "--save", folder]) == 0
    capsys.readouterr()
    for words, message in (
        (["--load", folder, *cities[2:]], "expected `--load` a repair of groups with `--group`, got "),
        ([*cities, "--method", "temperature", "--per-output"], "expected `--per-output` or `--group`, got both"),
        ([*cities[:-1], "town"], "column 'town'"),
    ):
        assert main(["recalibrate", *words, "--out", str(tmp_path / "other.csv")]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1


def test_groups_without_targets_are_repaired(cities: list[str], tmp_path: Path) -> None:
    apply = write_groups(tmp_path / "blind.csv", {"Ulm": 5, "Bonn": 5}, seed=3, targets=False)
    out = tmp_path / "out.csv"
    files = [*cities[:2], "--apply", str(apply), "--out", str(out)]
    assert main(["recalibrate", "--method", "temperature", *files, "--group", "city"]) == 0
    rows = [line.split(",") for line in out.read_text().splitlines()[1:]]
    assert [float(row[-1]) > 1 for row in rows] == [False] * 5 + [True] * 5
