"""Draw published cells at random, recompute them from scratch, and compare every number.

``python experiments/recompute.py bokeh --count 5`` needs only the code; ``uci`` and ``sensors`` need
``--data``. Times are not compared. The drawn cells and their largest differences are written as JSON.
"""

import argparse
import math
import os
import random
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from fcal._files import provenance, write_json
from fcal.benchmarks import TASKS, preset
from fcal.benchmarks.runner import compute, methods_by_config, plan
from fcal.sweeps import Cell, Record, Store, key, read_cells, run

_TIMES = ("train_s", "predict_ms", "seconds", "search_s", "fold_s", "member_s")
_TOLERANCE = 1e-6  # relative


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=TASKS.names())
    parser.add_argument("--data", help="folder of the data, for uci and sensors")
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cells", type=Path, help="published cells (default docs/results/TASK/cells.jsonl)")
    parser.add_argument("--out", type=Path, help="JSON file of the comparison")
    arguments = parser.parse_args()
    path = arguments.cells or Path("docs/results") / arguments.task / "cells.jsonl"
    drawn = random.Random(arguments.seed).sample(read_cells(path), arguments.count)
    task = TASKS[arguments.task].load()
    published = Store(Path(tempfile.mkdtemp()) / "cells", published=[path])
    rows = plan(task, task.problems(preset(task, list(task.presets)[-1]), published, None), None)
    planned = {row.cell.key: row.cell for row in rows}
    function = partial(compute, task=task, methods=methods_by_config(rows), data=arguments.data)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for number, record in enumerate(drawn, start=1):
            start, store = time.perf_counter(), Store(Path(folder) / "cells")
            cell = planned.get(key(record.kind, record.config), Cell(record.kind, record.config))
            outcome = run([cell], function, store=store, workers=1, progress=False)[cell]
            results.append(described(record, *compare(record.result, outcome.result), time.perf_counter() - start))
            print(f"{number} of {len(drawn)}: {results[-1]}", flush=True)
            write(arguments, results)
    return int(not all(result["equal"] for result in results))


def compare(before: Any, after: Any) -> tuple[int, float, str]:
    """Count of numbers, the largest relative difference, and its position; infinite if anything else differs."""
    compared, worst, where = 0, 0.0, ""
    for path, old, new in pairs("", before, after):
        difference = 0.0 if old == new else float("inf")
        if isinstance(old, int | float) and isinstance(new, int | float):
            compared += 1
            difference = abs(old - new) / max(abs(old), abs(new), 1e-9)
        if difference > worst:
            worst, where = difference, f"{path}: {old!r} and {new!r}"
    return compared, worst, where


def pairs(path: str, before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    """Every value of the first document, with that of the second; what it did not record is left out."""
    if before is None:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for name, value in before.items():
            if name not in _TIMES:
                yield from pairs(f"{path}.{name}", value, after.get(name))
    elif isinstance(before, list | tuple) and isinstance(after, list | tuple) and len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from pairs(f"{path}[{index}]", old, new)
    else:
        yield path, before, after


def described(record: Record, compared: int, worst: float, where: str, seconds: float) -> dict[str, Any]:
    """The comparison of a cell, as JSON."""
    return {
        "cell": record.stem,
        "commit_before": record.provenance["commit"],
        "numbers": compared,
        "equal": worst <= _TOLERANCE,
        "largest_difference": worst if math.isfinite(worst) else None,
        "where": where,
        "seconds": round(seconds, 1),
    }


def write(arguments: argparse.Namespace, results: list[dict[str, Any]]) -> None:
    """Write the finished comparisons."""
    if arguments.out is not None:
        drawn = {"task": arguments.task, "count": arguments.count, "seed": arguments.seed}
        write_json(arguments.out, {**drawn, "versions": provenance(), "cells": results})


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    raise SystemExit(main())
