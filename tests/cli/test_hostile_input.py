"""What users and files may throw at the commands, and what must not happen then."""

import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fcal.cli import main

DRAW = np.random.default_rng(0)


def write(path: Path, rows: int = 300, *, extra: str = "", values: list[str] | None = None) -> Path:
    mean, noise = DRAW.normal(size=(2, rows))
    header = f"mean,std,target{',' + extra if extra else ''}"
    lines = [f"{m:.6f},1.0,{m + n:.6f}" for m, n in zip(mean, noise, strict=True)]
    if values is not None:
        lines = [f"{line},{values[i % len(values)]}" for i, line in enumerate(lines)]
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main([str(word) for word in words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_control_characters_never_reach_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "p.csv", extra="g", values=["\x1b[2J\x1b]0;title\x07", "\x9bred", "ok"])
    assert main(["evaluate", str(path), "--group", "g"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\x9b" not in out
    assert "ok" in out


def test_inputs_are_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit, apply = write(tmp_path / "fit.csv"), write(tmp_path / "apply.csv")
    words = ["recalibrate", "--method", "temperature", "--fit", fit, "--apply", apply, "--out"]
    for out in (fit, apply):
        before = out.read_bytes()
        assert "one of the inputs" in refused(capsys, *words, out)
        assert out.read_bytes() == before


@pytest.mark.parametrize("option", ["--save", "--out"])
def test_outputs_are_checked_before_the_work(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit, old = write(tmp_path / "fit.csv"), tmp_path / "out.csv"
    old.write_text("old")
    (tmp_path / "file").write_text("")
    bad = {"--save": tmp_path / "file", "--out": tmp_path / "file" / "out.csv"}[option]
    words = ["recalibrate", "--method", "temperature", "--fit", fit, "--apply", fit, "--out", old, option, bad]
    assert option in refused(capsys, *words)
    assert old.read_text() == "old"


def test_folder_as_page_is_refused_before_the_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "page.html").mkdir()
    assert "folder" in refused(capsys, "evaluate", write(tmp_path / "p.csv"), "--out", tmp_path / "page.html")


def test_several_files_may_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [write(tmp_path / f"{i}.csv", rows=100) for i in range(3)]
    assert main(["evaluate", *map(str, paths), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n"] == 300


def test_an_empty_name_is_no_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert "empty name" in refused(capsys, "evaluate", "")


def test_outputs_are_told_apart_and_repaired_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mean, noise = DRAW.normal(size=(2, 4000, 2))
    path = tmp_path / "p.npz"
    np.savez(path, mean=mean, std=np.ones_like(mean), target=mean + noise * [1.0, 3.0])
    assert main(["evaluate", str(path), "--by-output", "--json"]) == 0
    groups = json.loads(capsys.readouterr().out)["groups"]
    assert [groups[name]["verdict"] for name in ("mean_0", "mean_1")] == ["calibrated", "over-confident"]
    words = ["recalibrate", "--method", "temperature", "--per-output", "--fit", str(path), "--apply", str(path)]
    assert main([*words, "--out", str(tmp_path / "out.npz"), "--json"]) == 0
    factors = json.loads(capsys.readouterr().out)["fitted"]["factor"]
    assert factors == pytest.approx([1, 3], rel=0.1)
    assert "--per-output" in refused(
        capsys, *[w if w != "temperature" else "isotonic" for w in words], "--out", "x.npz"
    )


def test_the_line_to_look_closer_works_as_it_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import shlex

    mean, noise = DRAW.normal(size=3000), DRAW.laplace(scale=2 / np.sqrt(2), size=3000)
    path = tmp_path / "p.csv"
    lines = [f"{m!r},1.0,{m + n!r}" for m, n in zip(mean.tolist(), noise.tolist(), strict=True)]
    path.write_text("\n".join(["m,s,y", *lines]))
    named = ["--mean", "m", "--std", "s", "--target", "y", "--family", "laplace"]
    for method in ("temperature", "isotonic"):
        out = tmp_path / f"{method}.csv"
        words = ["recalibrate", "--method", method, "--fit", str(path), "--apply", str(path), "--out", str(out)]
        assert main([*words, *named]) == 0
        (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("look closer: fcal ")]
        assert main([*shlex.split(line.removeprefix("look closer: fcal ")), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["verdict"] == "calibrated"


def test_comparison_covers_all_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "parts").mkdir()
    fit = write(tmp_path / "fit.csv")
    for i in range(3):
        write(tmp_path / "parts" / f"{i}.csv", rows=100)
    words = [
        "recalibrate",
        "--method",
        "affine",
        "--fit",
        fit,
        "--apply",
        tmp_path / "parts",
        "--out",
        tmp_path / "o.csv",
    ]
    assert main([*map(str, words), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["after"]["n"] == 300


def test_fractions_in_names_of_quantiles_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "q.csv"
    path.write_text("q0.05,q0.5,q0.95,target\n" + "0,1,2,1.1\n" * 5)
    assert "per cent" in refused(capsys, "evaluate", path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.timeout(20)
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "p.csv")
    assert "regular file" in refused(capsys, "evaluate", tmp_path / "p.csv")


@pytest.mark.timeout(20)
def test_an_array_that_claims_a_billion_columns_is_harmless(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.npz"
    np.savez(path, **{name: np.ones(50) for name in ("mean", "std")}, target=np.linspace(0, 2, 50))
    header = np.lib.format.magic(1, 0) + (118).to_bytes(2, "little")
    text = "{'descr': '<f8', 'fortran_order': False, 'shape': (0, 1000000000), }".ljust(117) + "\n"
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("x.npy", header + text.encode())
    assert main(["evaluate", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n"] == 50


def test_rows_without_a_cluster_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "p.csv", extra="c", values=["a", "", "b"])
    assert "row 2" in refused(capsys, "evaluate", path, "--cluster", "c")


def test_extreme_values_print_no_warnings_of_numpy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.csv"
    path.write_text("mean,std,target\n" + "0,1e-300,1\n0,1e300,1\n1e308,1,-1e308\n" * 5)
    assert main(["evaluate", str(path), "--json"]) in (0, 2)
    assert capsys.readouterr().err.count("\n") <= 1


def test_replaced_file_keeps_its_mode(tmp_path: Path) -> None:
    path, out = write(tmp_path / "p.csv"), tmp_path / "page.html"
    out.write_text("old")
    out.chmod(0o600)
    assert main(["evaluate", str(path), "--out", str(out)]) == 0
    assert out.stat().st_mode & 0o777 == 0o600


def spoilt(path: Path, column: int, value: str, row: int = 4) -> Path:
    """Predictions of which one number is replaced; data rows count from 1."""
    lines = write(path).read_text(encoding="utf-8").splitlines()
    cells = lines[row].split(",")
    cells[column] = value
    lines[row] = ",".join(cells)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("column", [0, 1, 2])
@pytest.mark.parametrize("value", ["1e300", "2e100"])
def test_numbers_whose_squares_overflow_are_refused_by_row(
    column: int, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, good = spoilt(tmp_path / "bad.csv", column, value), write(tmp_path / "good.csv")
    named = f"column '{['mean', 'std', 'target'][column]}' of numbers up to 1e100, got {float(value):g} in data row 4"
    assert named in refused(capsys, "evaluate", bad)
    repair = ["recalibrate", "--method", "temperature", "--out", tmp_path / "out.csv"]
    assert named in refused(capsys, *repair, "--fit", bad, "--apply", good)
    assert named in refused(capsys, *repair, "--fit", good, "--apply", bad)


@pytest.mark.parametrize("scale", ["1e99", "1e-99"])
@pytest.mark.parametrize("column", [0, 1, 2])
def test_the_largest_numbers_are_evaluated_and_repaired(
    column: int, scale: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, good = spoilt(tmp_path / "bad.csv", column, scale), write(tmp_path / "good.csv")
    assert main(["evaluate", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n"] == 300
    for method in ("auto", "temperature", "isotonic"):
        for fit, apply in ((path, good), (good, path)):
            words = ["recalibrate", "--method", method, "--fit", fit, "--apply", apply, "--out", tmp_path / "o.csv"]
            assert main([*map(str, words), "--json"]) == 0, (method, fit, capsys.readouterr().err)
            capsys.readouterr()


def test_gaussian_processes_that_cannot_be_fitted_are_refused_with_another_method(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "far.csv"
    rows = [f"{m:.3f},1,{m + n * 1e50:.6g}" for m, n in DRAW.normal(size=(40, 2))]
    path.write_text("\n".join(["mean,std,target", *rows]) + "\n")
    words = ["recalibrate", "--method", "gp-beta", "--fit", path, "--apply", path, "--out", tmp_path / "out.csv"]
    message = refused(capsys, *words)
    assert "far.csv: expected `pred` and `target` to which Gaussian processes can be fitted" in message
    assert "scale-and-shape" in message


# Every command, with the option or argument that names a file or folder in its place.
TAKES_A_NAME = [
    ["evaluate", "NAME"],
    ["evaluate", "good.csv", "--out", "NAME.html"],
    ["evaluate", "--format", "rvc1", "NAME", "--truth", "NAME"],
    ["recalibrate", "--fit", "good.csv", "--apply", "good.csv", "--out", "NAME.csv"],
    ["recalibrate", "--fit", "good.csv", "--apply", "good.csv", "--out", "NAME.parquet"],
    ["recalibrate", "--fit", "good.csv", "--apply", "good.csv", "--out", "out.csv", "--save", "NAME"],
    ["recalibrate", "--load", "NAME", "--apply", "good.csv", "--out", "out.csv"],
    ["train", "NAME.toml"],
    ["train", "config.toml", "--out", "NAME"],
    ["predict", "NAME", "image.png", "--out", "out"],
    ["predict", "run", "image.png", "--out", "NAME"],
    ["benchmark", "bokeh", "--out", "NAME"],
    ["benchmark", "uci", "--data", "NAME"],
    ["benchmark", "sensors", "--data", "NAME"],
    ["benchmark", "depth", "--out", "NAME"],
    ["benchmark", "detection", "--out", "NAME"],
    ["data", "street", "--out", "NAME"],
]


@pytest.mark.parametrize("words", TAKES_A_NAME, ids=" ".join)
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("loop", "a link that leads to itself"),
        ("loop/below", "a link that leads to itself"),
        ("/".join(["d"] * 2000), "at most 200 folders, got 1999 in 'd/d/d/"),
        (os.fsdecode(b"n\xffme"), "names in UTF-8, got 'n"),
    ],
    ids=["loop", "below a loop", "deep", "not UTF-8"],
)
def test_names_that_cannot_be_opened_are_refused_by_every_command(
    words: list[str],
    name: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "good.csv")
    filled = [word.replace("NAME", name) for word in words]
    if name == "loop":
        for word in set(filled):
            if word.startswith("loop"):
                Path(word).symlink_to(word)
    else:
        Path("loop").symlink_to("loop")
    before = sorted(Path().iterdir())
    assert told in refused(capsys, *filled)
    assert sorted(Path().iterdir()) == before


def test_a_file_in_a_folder_whose_name_is_not_utf8_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "good.csv")
    write(tmp_path / os.fsdecode(b"n\xffme.csv"))
    assert "n?me.csv` a file whose name is UTF-8" in refused(capsys, "evaluate", tmp_path)
