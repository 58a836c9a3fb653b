"""Two real gloo processes on this machine, for tests of data-parallel losses."""

import datetime
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import distributed
from torch import multiprocessing as mp

ROOT = str(Path(__file__).parents[1])


def run_on_two_ranks(check: Callable[[int], None]) -> None:
    """Call ``check(rank)``, a function of a test module, in both processes; a failure in one fails here."""
    if ROOT not in sys.path:
        sys.path.append(ROOT)  # where the processes, which get this path, find the test modules of folders
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_enter, args=(check, folder), nprocs=2, join=True)


def _enter(rank: int, check: Callable[[int], None], folder: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=60),
    )
    check(rank)
    distributed.barrier()
    distributed.destroy_process_group()
    _leave()


def _leave() -> None:
    """End the process, whose check has passed, without taking the interpreter down.

    Gloo's threads may still let go of tensors, for which they ask for the interpreter; one that is going away ends a
    thread in C++ that asks, and with it the process, by SIGABRT, once in some hundred runs.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
