"""The modules that four calls run through: measured by tracing, and listed in ``docs/architecture.md``.

``python experiments/paths.py`` prints the lists; ``--write`` updates the page. A module is on a path if one of
its functions runs during the call; what runs only because a module is imported does not count.
"""

import argparse
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.distributions import Normal

import fcal
from fcal.cli import main as command

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
SOURCE = str(Path(fcal.__file__).parent)


def traced(call: Callable[[], object]) -> list[str]:
    """Modules of the package whose functions run during a call, by name."""
    modules: set[str] = set()
    known: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code in known:
            return
        if not code.co_filename.startswith(SOURCE):
            known.add(code)
        elif not _is_import(frame):
            known.add(code)
            modules.add(code.co_filename[len(SOURCE) + 1 : -len(".py")].replace("/", "."))

    sys.setprofile(note)
    threading.setprofile(note)  # of threads that start during the call
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return sorted(modules)


def _is_import(frame: FrameType | None) -> bool:
    """Whether a frame runs because a module of the package is being imported."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(SOURCE):
            return True
        frame = frame.f_back
    return False


def likelihood() -> None:
    """``fcal.nll(pred, target)``, the counterpart of ``log_prob``."""
    fcal.nll(Normal(torch.zeros(1000), torch.ones(1000)), torch.randn(1000))


def loss() -> None:
    """One call of the loss, and its gradient."""
    pred = Normal(torch.zeros(1000, requires_grad=True), torch.ones(1000, requires_grad=True))
    fcal.FCalLoss(divergence="kl", df=75)(pred, torch.randn(1000)).backward()


def evaluation() -> None:
    """A file of predictions to a page."""
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        page = Path(folder) / "page.html"
        command(["evaluate", str(ROOT / "docs/examples/test.csv"), "--out", str(page)])


def cell() -> None:
    """One row of the Bokeh table, from images to numbers."""
    from fcal.benchmarks import preset
    from fcal.benchmarks.bokeh import BOKEH
    from fcal.benchmarks.runner import compute, methods_by_config, plan
    from fcal.sweeps import Store

    with tempfile.TemporaryDirectory() as folder:
        settings = preset(BOKEH, "tiny", noises=("homoscedastic",), images=100, extra=100)
        store = Store(f"{folder}/cells")
        rows = plan(BOKEH, BOKEH.problems(settings, store), ["oof_conformal"])
        methods = methods_by_config(rows)
        compute(rows[0].cell.kind, rows[0].cell.config, store, task=BOKEH, methods=methods, data=None)


PATHS = {
    "fcal.nll(pred, target)": likelihood,
    "fcal.FCalLoss(...)(pred, target).backward()": loss,
    "fcal evaluate file.csv --out page.html": evaluation,
    "the cell `oof_conformal` of `fcal benchmark bokeh`": cell,
}


def listed(name: str, modules: list[str]) -> str:
    """The block of a path in the page."""
    rooms: dict[str, list[str]] = {}
    for module in modules:
        room, _, stem = module.rpartition(".")
        rooms.setdefault(room, []).append(stem)
    lines = [f"{room or 'fcal'}: {', '.join(stems)}" for room, stems in rooms.items()]
    return f"<!-- path: {name} -->\n{len(modules)} modules:\n\n```text\n" + "\n".join(lines) + "\n```\n<!-- end -->"


def measured() -> dict[str, str]:
    """The block of every path; each call runs once before, so that lazy imports and caches are left out."""
    blocks = {}
    for name, call in PATHS.items():
        call()
        blocks[name] = listed(name, traced(call))
    return blocks


def replaced(page: str, blocks: dict[str, str]) -> str:
    """The page with these blocks in place of its own."""
    for name, block in blocks.items():
        start = page.index(f"<!-- path: {name} -->")
        end = page.index("<!-- end -->", start) + len("<!-- end -->")
        page = page[:start] + block + page[end:]
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the lists into docs/architecture.md")
    arguments = parser.parse_args()
    blocks = measured()
    print("\n".join(blocks.values()))
    if arguments.write:
        PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), blocks), encoding="utf-8")


if __name__ == "__main__":
    main()
