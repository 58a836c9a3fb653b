"""Cells that tests have computed in real processes; ``python -m sweeps.jobs FOLDER`` is a run that tests interrupt."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple

from fcal.sweeps import Cell, Store, run, write_artifact


class Task(NamedTuple):
    kind: str
    config: dict
    store: Store


def job(kind, config, store):
    """What a cell does stands in its config; every call leaves a line with its process and its name."""
    log = store.folder.parent / "calls.txt"
    with log.open("a") as file:
        file.write(f"{os.getpid()} {config['name']}\n")
    return ACTIONS[config.get("do", "value")](Task(kind, config, store))


def _value(task):
    return {"value": task.config["value"], "threads": os.environ.get("OMP_NUM_THREADS")}


def _total(task):
    found = [task.store.get("part", {"name": name, "value": value}) for name, value in task.config["parts"]]
    return {"value": sum(part["value"] for part in found)}


def _threads(_):
    import torch

    return {"threads": torch.get_num_threads()}


def _weights(task):
    write_artifact(task.store.artifact(task.kind, task.config, ".bin"), b"weights")
    return {"value": 1}


def _sleep(task):
    time.sleep(task.config["seconds"])
    return {"slept": task.config["seconds"]}


def _raise(_):
    raise ValueError("expected `lam` small,\ngot a large one")


def _kill(_):
    os.kill(os.getpid(), signal.SIGKILL)


def _exit(_):
    sys.exit(3)


def _nan(_):
    return {"rows": [{"ece": 0.1}, {"ece": float("nan")}]}


def _full(_):
    raise OSError(28, "No space left on device", "/nowhere/weights")


ACTIONS = {
    "value": _value,
    "total": _total,
    "threads": _threads,
    "weights": _weights,
    "sleep": _sleep,
    "raise": _raise,
    "kill": _kill,
    "exit": _exit,
    "nan": _nan,
    "full": _full,
}


def cell(name, do="value", needs=(), kind="part", **config):
    """A cell of these tests."""
    extra = {key: config.pop(key) for key in ("affinity", "artifacts") if key in config}
    action = {} if do == "value" else {"do": do}
    return Cell(kind, {"name": name, **action, **config}, needs=needs, label=name, **extra)


def calls(store):
    """Names of the cells that were computed, in order, and the processes that did."""
    log = store.folder.parent / "calls.txt"
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return [name for _, name in lines], [int(pid) for pid, _ in lines]


def long_run():
    """Two quick cells, then more sleep than any test waits for."""
    return [
        cell("quick-1", value=1),
        cell("quick-2", value=2),
        *(cell(f"long-{i}", do="sleep", seconds=60) for i in range(4)),
    ]


if __name__ == "__main__":
    run(long_run(), job, store=Store(Path(sys.argv[1])), workers=2)
