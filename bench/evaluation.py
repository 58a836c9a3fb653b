"""Speed and memory of the evaluation, as ratios to what a user would use instead, measured in one run.

The first two rows are timed in one process and one thread, in turns; caches are cleared between our
runs, so the floors are simulated again each time. The last two are whole processes on one core, start included.
``--shrink 10`` tries the file with 1e7 rows.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shutil import disk_usage
from statistics import median

import numpy as np
import torch
from measuring import Row, faster, main
from numpy.testing import assert_allclose
from rich.console import Console
from torch.distributions import Normal

import fcal

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of their imports
    from netcal.metrics.regression import QCE
    from uncertainty_toolbox.metrics import get_all_metrics

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
LEVELS = np.arange(1, 20) / 20
ROWS_OF_FILE = 100_000_000
CHUNK = 1 << 20
BYTES_PER_ROW = 16  # of the file, with room to spare
TURNS = 3
READ = """
import sys
import pyarrow.parquet as parquet
file = parquet.ParquetFile(sys.argv[1])
for group in range(file.num_row_groups):
    file.read_row_group(group, columns=["mean", "std", "target"], use_threads=False)
"""


class Data:
    """Predictions that are over-confident by a tenth."""

    def __init__(self, count: int) -> None:
        rng = np.random.default_rng(0)
        self.mean: Array = rng.standard_normal(count)
        self.std: Array = np.exp(0.5 * rng.standard_normal(count))
        self.target: Array = self.mean + 1.1 * self.std * rng.standard_normal(count)

    def pred(self, dtype: torch.dtype = torch.float32) -> tuple[Normal, torch.Tensor]:
        mean, std, target = (torch.from_numpy(x).to(dtype) for x in (self.mean, self.std, self.target))
        return Normal(mean, std, validate_args=False), target


def forget() -> None:
    """Clear the caches of the evaluation."""
    for name, module in list(sys.modules.items()):
        if name.startswith("fcal.metrics"):
            for member in vars(module).values():
                if hasattr(member, "cache_clear"):
                    member.cache_clear()


def seconds(work: Callable[[], object]) -> float:
    forget()
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def in_turns(ours: Callable[[], object], theirs: Callable[[], object], turns: int = 3) -> tuple[float, float]:
    """Median seconds of both; ours runs more often because it is short."""
    ours()  # loads every kernel
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(turns):
        times[0].extend(seconds(ours) for _ in range(3))
        times[1].append(seconds(theirs))
    return median(times[0]), median(times[1])


def all_metrics(shrink: int) -> Row:
    """Time per row of a whole report, against that of all metrics of uncertainty_toolbox."""
    ours_n, theirs_n = 100_000 // shrink, 10_000 // shrink
    data, fewer = Data(ours_n), Data(theirs_n)
    arrays = fewer.mean, fewer.std, fewer.target
    metrics = get_all_metrics(*arrays, verbose=False)
    report = fcal.evaluate(*fewer.pred(torch.float64))
    scores = (
        metrics["accuracy"]["rmse"],
        metrics["sharpness"]["sharp"],
        *(metrics["scoring_rule"][x] for x in ("nll", "crps")),
    )
    same = np.array([report.rmse, report.sharpness, report.nll, report.crps], dtype=np.float64)
    assert_allclose(same, scores, rtol=1e-6)
    pred, target = data.pred()
    ours, theirs = in_turns(lambda: fcal.evaluate(pred, target), lambda: get_all_metrics(*arrays, verbose=False))
    return faster(
        "all metrics, floors, verdict and curves, per row",
        ours_n,
        f"uncertainty_toolbox get_all_metrics, N = {theirs_n:.0e}",
        (ours / ours_n, theirs / theirs_n),
        1000,
    )


def quantile_calibration(shrink: int) -> Row:
    """The same number at the same levels."""
    count = 1_000_000 // shrink
    data = Data(count)
    pred, target = data.pred(torch.float64)
    levels = torch.from_numpy(LEVELS)

    def ours() -> float:
        return fcal.metrics.interval_calibration_error(pred, target, levels=levels)

    def theirs() -> float:
        measured = QCE(marginal=True).measure((data.mean, data.std), data.target, LEVELS, reduction="mean")
        return float(np.asarray(measured))

    assert_allclose(ours(), theirs(), atol=1e-6)
    return faster("calibration error of 19 quantiles", count, "netcal QCE, marginal", in_turns(ours, theirs), 20)


@dataclass(frozen=True)
class Run:
    """A finished process."""

    seconds: float
    peak_bytes: int
    output: str


def on_one_core(arguments: list[str], folder: Path) -> Run:
    """Run Python on the first available core."""
    core = min(os.sched_getaffinity(0))
    printed = folder / "output"
    started = time.perf_counter()
    with printed.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdout=output,
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"expected exit code 0 of {arguments[:3]}, got {process.returncode}")
    return Run(time.perf_counter() - started, 1024 * usage.ru_maxrss, printed.read_text())


def write_predictions(path: Path, count: int) -> float:
    """Write a file with pyarrow's default settings, and return the RMSE of its predictions."""
    import pyarrow as arrow
    from pyarrow import parquet

    rng, squares = np.random.default_rng(0), 0.0
    with parquet.ParquetWriter(
        path, arrow.schema([(name, arrow.float32()) for name in ("mean", "std", "target")])
    ) as out:
        for start in range(0, count, CHUNK):
            size = min(CHUNK, count - start)
            mean, raw, noise = rng.standard_normal((3, size), dtype=np.float32)
            std = np.exp(0.5 * raw)
            target = mean + std * noise
            squares += float(np.square(target.astype(np.float64) - mean).sum())
            out.write_table(arrow.table({"mean": mean, "std": std, "target": target}))
    return float(np.sqrt(squares / count))


def evaluated_file(shrink: int) -> list[Row]:
    """The command on a large file, against only reading it."""
    count = ROWS_OF_FILE // shrink
    with tempfile.TemporaryDirectory() as name:
        folder, path = Path(name), Path(name) / "predictions.parquet"
        if disk_usage(folder).free < 2 * BYTES_PER_ROW * count:
            raise OSError(f"expected {2 * BYTES_PER_ROW * count / 1e9:.1f} GB free in {folder}, got less")
        rmse = write_predictions(path, count)
        fewer = Path(name) / "fewer.parquet"
        write_predictions(fewer, count // 10)
        turns = [
            (Turn.of(evaluating, path, fewer, folder), Turn.of(reading, path, fewer, folder))
            for _ in range(TURNS if shrink == 1 else 1)
        ]
    document = json.loads(turns[0][0].whole.output)
    assert_allclose([document["n"], document["rmse"]], [count, rmse], rtol=1e-6)
    return rows_of_file(count, turns)


def reading(path: Path) -> list[str]:
    return ["-c", READ, str(path)]


def evaluating(path: Path) -> list[str]:
    return ["-m", "fcal", "evaluate", str(path), "--json"]


@dataclass(frozen=True)
class Turn:
    """A command on a file and on a tenth of it: their difference does not include the start of the process."""

    whole: Run
    tenth: Run

    @classmethod
    def of(cls, command: Callable[[Path], list[str]], path: Path, fewer: Path, folder: Path) -> "Turn":
        on_one_core(command(path), folder)  # the files are in the page cache from here on
        return cls(on_one_core(command(path), folder), on_one_core(command(fewer), folder))

    def seconds(self, *, with_start: bool) -> float:
        return self.whole.seconds if with_start else (self.whole.seconds - self.tenth.seconds) / 0.9


def rows_of_file(count: int, turns: list[tuple[Turn, Turn]]) -> list[Row]:
    rows = []
    for span, with_start in (
        ("without the start of the process", False),
        ("with the start of Python and torch", True),
    ):
        ours, theirs = (median(turn[k].seconds(with_start=with_start) for turn in turns) for k in range(2))
        rows.append(
            Row(
                work=f"fcal evaluate, Parquet, one core, {span}",
                count=count,
                against="reading the three columns with pyarrow, row group by row group",
                ratio=theirs / ours,
                unit="x the speed",
                reach=">= 0.25x the speed",
                met=theirs / ours >= 0.25,
                ours_ms=1e3 * ours,
                theirs_ms=1e3 * theirs,
            )
        )
    peak = max(turn[0].whole.peak_bytes for turn in turns)
    memory = Row(
        work="fcal evaluate, Parquet, peak memory",
        count=count,
        against="nothing",
        ratio=peak / 1e9,
        unit=" GB",
        reach="<= 1 GB",
        met=peak <= 1e9,
    )
    return [*rows, memory]


def measured(shrink: int, console: Console) -> list[Row]:
    rows = []
    for work in (all_metrics, quantile_calibration):
        console.print(f"{work.__name__} ...")
        rows.append(work(shrink))
    console.print("evaluated_file ...")
    return [*rows, *evaluated_file(shrink)]


def no_memory(*_: int) -> int:
    raise ValueError("expected no `--memory-of`: memory is measured of whole commands, got one")


if __name__ == "__main__":
    sys.exit(main(__doc__, "evaluation", measured, no_memory))
