"""``fcal evaluate`` as users type it: what it prints, what it writes, how it ends."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.distributions import Normal

import fcal
from fcal.cli import main


def table(rows: int = 400, factor: float = 2.0, seed: int = 0) -> dict[str, np.ndarray]:
    """Predictions whose errors are ``factor`` times as large as they say."""
    draw = np.random.default_rng(seed)
    mean, std = draw.normal(size=rows), np.exp(0.3 * draw.normal(size=rows))
    return {
        "mean": mean,
        "std": std,
        "target": mean + factor * std * draw.normal(size=rows),
        "city": draw.choice(["Aachen", "Ulm"], rows),
        "drive": np.arange(rows) // 2,
    }


def write_csv(path: Path, columns: dict[str, np.ndarray], separator: str = ",") -> Path:
    lines = [separator.join(columns)]
    lines += [separator.join(str(x) for x in row) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    return write_csv(tmp_path / "predictions.csv", table())


def document(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, object]:
    assert main([*map(str, words), "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def test_json_is_what_evaluate_returns(csv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "evaluate", csv, "--bins", 10, "--df", 50)
    columns = table()
    mean, std, target = (torch.from_numpy(columns[name]) for name in ("mean", "std", "target"))
    expected = fcal.evaluate(Normal(mean, std), target, bins=10, df=50).as_dict()
    for key in ("n", "df", "bins", "verdict", "ece_z", "ece_q_floor", "coverage", "scale", "assumption"):
        assert found[key] == expected[key]
    assert found["command"].startswith("fcal evaluate ")
    assert {"fcal", "torch", "python", "commit"} <= found["versions"].keys()


def test_people_read_verdict_numbers_and_groups(csv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(csv), "--group", "city"]) == 0
    out = capsys.readouterr().out
    for text in ("over-confident", "ECE(q)", "assumes independent rows", "Aachen", "Ulm", "S = 20, K = 75, n = 400"):
        assert text in out
    assert max(map(len, out.split("next: ")[0].splitlines()[3:])) <= 90  # fits a terminal


def test_formats_agree(tmp_path: Path, csv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = table()
    numbers = {name: columns[name] for name in ("mean", "std", "target")}
    pq.write_table(pa.table(columns), tmp_path / "p.parquet")
    np.savez(tmp_path / "p.npz", **numbers)
    np.save(tmp_path / "p.npy", np.stack(list(numbers.values()), 1))
    found = [
        document(capsys, "evaluate", path) for path in (csv, *(tmp_path / f"p.{x}" for x in ("parquet", "npz", "npy")))
    ]
    assert len({json.dumps([f["ece_z"], f["ece_q"], f["nll"]]) for f in found}) == 1


def test_clusters_replace_independent_rows(csv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "evaluate", csv, "--cluster", "drive")
    assert found["clusters"] == 200
    assert found["assumption"] == "200 independent clusters"
    assert found["warnings"] == []


def test_few_clusters_are_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_csv(tmp_path / "p.csv", table(rows=398))
    assert "only 199 clusters" in document(capsys, "evaluate", path, "--cluster", "drive")["warnings"][0]


def test_groups_by_sigma_need_no_column(csv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    groups = document(capsys, "evaluate", csv, "--by-sigma")["groups"]
    assert sum(group["n"] for group in groups.values()) >= 398  # a group of one row has no report
    assert "sigma 1 to 2" in groups


def test_page_is_written_and_replaced_whole(csv: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    out.write_text("old")
    assert main(["evaluate", str(csv), "--group", "city", "--out", str(out)]) == 0
    page = out.read_text(encoding="utf-8")
    assert page.lower().startswith("<!doctype html>")
    assert "fcal evaluate" in page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["predictions.csv", "report.html"]


def test_folder_of_files_counts_all_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for part in range(3):
        write_csv(tmp_path / f"part{part}.csv", table(seed=part))
    assert document(capsys, "evaluate", tmp_path)["n"] == 1200
    assert document(capsys, "evaluate", tmp_path / "part[01].csv")["n"] == 800


def bad_files(folder: Path) -> dict[str, tuple[Path, str]]:
    """Rubbish by name: the file, and a piece of what must be said of it."""

    def text(name: str, content: str) -> Path:
        path = folder / name
        path.write_text(content)
        return path

    good = "mean,std,target\n"
    pickled = folder / "pickled.npy"
    np.save(pickled, np.array([{}, 1, 2], dtype=object), allow_pickle=True)
    whole = folder / "whole.parquet"
    pq.write_table(pa.table({name: [1.0] * 99 for name in ("mean", "std", "target")}), whole)
    cut = folder / "cut.parquet"
    cut.write_bytes(whole.read_bytes()[:-200])
    whole.unlink()
    (folder / "zero.npz").touch()
    (folder / "void").mkdir()
    many = "mean,std,target,id\n" + "".join(f"0,1,0.5,{i}\n" for i in range(1500))
    return {
        "empty": (text("empty.csv", ""), "empty.csv"),
        "header only": (text("header.csv", good), "header.csv"),
        "missing column": (text("missing.csv", "mean,width,target\n1,2,3\n"), "'width'"),
        "text": (text("text.csv", good + "1,2,3\n1,two,3\n"), "'two'"),
        "negative std": (text("negative.csv", good + "1,2,3\n1,-2,3\n"), "row 2"),
        "std NaN": (text("nan.csv", good + "1,nan,3\n1,2,3\n"), "row 1"),
        "mean NaN": (text("mean.csv", good + "nan,1,3\n1,2,3\n"), "row 1"),
        "truncated": (cut, "cut.parquet"),
        "no files": (folder / "void", "void"),
        "zero bytes": (folder / "zero.npz", "zero.npz"),
        "pickled": (pickled, "pickled.npy"),
        "nowhere": (folder / "nowhere.csv", "nowhere.csv"),
        "many groups": (text("many.csv", many), "1000"),
        "suffix": (text("p.txt", good), ".csv"),
    }


CASES = (
    "empty", "header only", "missing column", "text", "negative std", "std NaN", "mean NaN", "truncated", "no files",
    "zero bytes", "pickled", "nowhere", "many groups", "suffix",
)  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_one_line_and_exit_code_two(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs, outputs = tmp_path / "in", tmp_path / "out"
    inputs.mkdir()
    outputs.mkdir()
    path, said = bad_files(inputs)[case]
    words = ["evaluate", str(path), "--out", str(outputs / "report.html")]
    assert main([*words, "--group", "id"] if case == "many groups" else words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("fcal: ")
    assert said in err
    assert list(outputs.iterdir()) == []


def test_byte_order_mark_and_semicolons_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_csv(tmp_path / "p.csv", table(), separator=";")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert document(capsys, "evaluate", path)["n"] == 400


def test_strange_names_are_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = table()
    renamed = {"<script>alert(1)</script>" if name == "city" else name: values for name, values in columns.items()}
    path = write_csv(tmp_path / "p.csv", renamed)
    out = tmp_path / "report.html"
    assert main(["evaluate", str(path), "--group", "<script>alert(1)</script>", "--out", str(out)]) == 0
    assert "<script>alert(1)</script>" in capsys.readouterr().out
    assert "<script>alert(1)</script>" not in out.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["evaluate"], "FILE"),
        (["evaluate", "p.csv", "--bins", "many"], "--bins"),
        (["improve", "p.csv"], "improve"),
        (["evaluate", "p.csv", "--group", "a", "--by-sigma"], "--by-sigma"),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_code_two(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "words", [["--bins", "1"], ["--df", "0"], ["--tolerance", "-1"], ["--family", "cauchy"], ["--out", "r.pdf"]]
)
def test_options_out_of_range_are_one_line(words: list[str], csv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(csv), *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_debug_shows_where_an_error_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "nowhere.csv", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_unforeseen_errors_are_exit_code_one(
    csv: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr("fcal.cli.evaluate.open_predictions", fail)
    assert main(["evaluate", str(csv)]) == 1
    assert "ZeroDivisionError: of all things" in capsys.readouterr().err


def test_real_process_prints_json_alone(csv: Path) -> None:
    run = subprocess.run([sys.executable, "-m", "fcal", "evaluate", str(csv), "--json"], capture_output=True, text=True)
    assert run.returncode == 0
    assert json.loads(run.stdout)["verdict"] == "over-confident"
    assert run.stderr == ""


def test_help_and_version_import_nothing_heavy() -> None:
    script = (
        "import sys\nfrom fcal.cli import main\n"
        "try:\n    main([sys.argv[1]])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "print({'torch', 'numpy', 'pyarrow', 'rich', 'matplotlib'} & set(sys.modules))"
    )
    for option in ("--help", "--version"):
        run = subprocess.run([sys.executable, "-c", script, option], capture_output=True, text=True, check=True)
        assert run.stdout.rstrip().endswith("set()")


def written(path: Path, factor: float, *, shift: float = 0.0, rows: int = 4000) -> Path:
    draw = np.random.default_rng(0)
    z = shift + factor * draw.normal(size=rows)
    path.write_text("mu,sigma,y,side\n" + "".join(f"0,1,{value},{k % 2}\n" for k, value in enumerate(z)))
    return path


def said_next(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split()).split("next: ")[1]


def test_a_verdict_ends_with_the_command_that_repairs_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "p.csv", 1.5)
    assert main(["evaluate", str(path), "--mean", "mu", "--family", "laplace"]) == 0
    said = said_next(capsys)
    command = f"fcal recalibrate --fit HELD_OUT.csv --apply {path} --out repaired.csv --mean mu --family laplace"
    assert said.startswith(f"{command} repairs it")
    words = command.replace("HELD_OUT.csv", str(path)).replace("repaired.csv", str(tmp_path / "out.csv")).split()[1:]
    assert main(words) == 0  # as it stands


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({"factor": 1.0}, "nothing to repair"),
        ({"factor": 1.0, "shift": 0.5}, "fcal recalibrate --method isotonic --fit"),
        ({"factor": 1.0, "rows": 40}, "more rows: 40 cannot tell"),
    ],
)
def test_every_verdict_has_a_next_step(tmp_path, capsys, options, start) -> None:
    assert main(["evaluate", str(written(tmp_path / "p.csv", **options))]) == 0
    assert said_next(capsys).startswith(start)


def test_groups_that_cancel_each_other_are_named(tmp_path, capsys) -> None:
    z = np.random.default_rng(1).normal(size=8000) * np.where(np.arange(8000) % 2, 0.8, 1.15)
    z /= z.std()
    path = tmp_path / "p.csv"
    path.write_text("mu,sigma,y,side\n" + "".join(f"0,1,{value},{k % 2}\n" for k, value in enumerate(z)))
    assert main(["evaluate", str(path), "--group", "side"]) == 0
    step = said_next(capsys)
    assert step.startswith("all rows together are right, but not 0, 1: fcal recalibrate --fit HELD_OUT.csv")
    assert "--group side repairs groups" in step


def test_wild_rows_are_what_to_look_at_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "p.csv", 1.0, rows=3000)
    path.write_text(path.read_text() + "0,1,1e6,0\n0,1,-1e6,0\n")
    assert main(["evaluate", str(path), "--json"]) == 0
    wild = {"count": 2, "n": 3002, "farthest": pytest.approx(1e6)}
    assert json.loads(capsys.readouterr().out)["wild"] == wild
    assert main(["evaluate", str(path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "calibrated, 2 wild: 2 of 3,002 values are wild (|z| about 1e+06); without them: scale" in out
    assert "next: look at the 2 wild rows first" in out


def test_wild_rows_and_a_wrong_scale_are_two_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "p.csv", 1.5, rows=3000)
    path.write_text(path.read_text() + "0,1,1e6,0\n")
    assert main(["evaluate", str(path)]) == 0
    step = said_next(capsys)
    assert step.startswith("look at the wild row first")
    assert "; then fcal recalibrate --fit HELD_OUT.csv" in step


def test_a_repaired_file_tells_how_to_check_the_repair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = written(tmp_path / "p.csv", 1.5), tmp_path / "out.csv"
    for method, options in (("temperature", "--mean mu_recalibrated"), ("conformal", "--quantiles 'q*_recalibrated'")):
        words = ["recalibrate", "--method", method, "--fit", str(path), "--apply", str(path), "--out", str(out)]
        assert main(words) == 0
        capsys.readouterr()
        assert main(["evaluate", str(out)]) == 0
        command = said_next(capsys).split(" checks the repaired columns")[0]
        assert options in command
        assert main(shlex.split(command)[1:]) == 0
        assert "calibrated" in capsys.readouterr().out
        out.unlink()


def test_groups_that_are_wrong_alike_need_no_repair_of_groups(tmp_path: Path, capsys) -> None:
    assert main(["evaluate", str(written(tmp_path / "p.csv", 1.5)), "--group", "side"]) == 0
    assert "--group" not in said_next(capsys)


def test_sizes_of_error_bars_that_are_off_are_looked_at_next(tmp_path: Path, capsys) -> None:
    draw = np.random.default_rng(0)
    sigma = draw.choice([0.5, 2.0], 20_000)
    y = draw.normal(size=20_000) * np.where(sigma < 1, 1.15, 0.82) * sigma
    path = tmp_path / "p.csv"
    path.write_text("mu,sigma,y\n" + "".join(f"0,{s},{v}\n" for s, v in zip(sigma, y, strict=True)))
    assert main(["evaluate", str(path), "--tolerance", "0.07"]) == 0
    assert f"fcal evaluate {path} --by-sigma shows which error bars" in said_next(capsys)


def samples_of(columns: dict[str, np.ndarray], count: int = 20) -> np.ndarray:
    noise = np.random.default_rng(1).normal(size=(len(columns["mean"]), count))
    return columns["mean"][:, None] + columns["std"][:, None] * noise


def test_evaluate_reads_samples_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = table(2000)
    samples = samples_of(columns)
    named = {f"s{k}": samples[:, k] for k in range(20)} | {"target": columns["target"], "city": columns["city"]}
    path = write_csv(tmp_path / "s.csv", named)
    np.savez(tmp_path / "s.npz", mc=samples, target=columns["target"])
    assert main(["evaluate", str(path), "--group", "city"]) == 0
    printed = capsys.readouterr().out
    assert "20 samples: 's0' to 's19', target 'target'" in printed
    assert "over-confident: errors are 1." in printed
    expected = fcal.evaluate(samples=samples, target=columns["target"]).scale.value
    for words in ([str(path)], [str(path), "--samples", "s*"], [str(tmp_path / "s.npz"), "--samples", "mc"]):
        assert main(["evaluate", *words, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["scale"]["value"] == pytest.approx(expected)


def test_evaluate_of_samples_as_quantiles_prints_the_command_that_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = samples_of(table(50))
    path = write_csv(tmp_path / "s.csv", {f"s{k}": samples[:, k] for k in range(20)} | {"target": samples[:, 0]})
    assert main(["evaluate", str(path), "--quantiles", "s*"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.endswith(f"type: fcal evaluate {path} --samples 's*'\n")


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_evaluate_reads_a_pipe(csv: Path, kind: str) -> None:
    text = csv.read_text()
    if kind == "jsonl":
        head, *rows = (line.split(",") for line in text.splitlines())
        numbers = {"mean", "std", "target"}
        text = "\n".join(
            json.dumps({name: float(v) if name in numbers else v for name, v in zip(head, row, strict=True)})
            for row in rows
        )
    result = subprocess.run(
        [sys.executable, "-m", "fcal", "evaluate", "-", "--json"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(result.stdout)["n"] == len(csv.read_text().splitlines()) - 1
    assert not result.stderr


def test_evaluate_of_an_empty_pipe_is_one_line() -> None:
    words = [sys.executable, "-m", "fcal", "evaluate", "-"]
    result = subprocess.run(words, input="", capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "got nothing; pipe a file" in result.stderr
