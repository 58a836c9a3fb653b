"""Who stays calibrated with fewer images, and on test images unlike those of training?"""

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

from resumable import Options, from_command_line, nothing_finished, provenance_of, report_broken

from bokeh_conditions.conditions import ConditionsTask, Config
from bokeh_conditions.page import page, picture
from fcal._files import atomic_path, write_json
from fcal.benchmarks import Benchmark, collect
from fcal.benchmarks.runner import benchmark, plan
from fcal.sweeps import Record, Store, key, read_cells

NAME = "bokeh_conditions"


def document(config: Config, finished: dict[int, Benchmark[Any]], records: list[Record]) -> dict[str, Any]:
    """Everything that page and picture show."""
    return {
        "config": asdict(config),
        "provenance": provenance_of(records),
        "cells": len(records),
        "tables": [
            {"training_images": images, **table.as_dict()} for images, done in finished.items() for table in done.tables
        ],
    }


def write(results: dict[str, Any], out: Path) -> None:
    """The document, the picture and the page."""
    with atomic_path(out / NAME / "conditions.png") as temporary:
        picture(results).savefig(temporary, dpi=110, metadata={"Software": None}, format="png")
    with atomic_path(out / f"{NAME}.md") as temporary:
        temporary.write_text(page(results), encoding="utf-8")
    write_json(out / NAME / "results.json", results)


def work(options: Options) -> int:
    config, published = options.config, options.folder / "cells.jsonl"
    of_benchmark = options.out / "bokeh/cells.jsonl"
    store = Store(options.run / "cells", published=[published, of_benchmark])
    task = ConditionsTask((config.fewest, config.most))
    cells = []
    for images in config.images:
        settings = config.settings(images)
        cells += [row.cell for row in plan(task, task.problems(settings, store), config.rows)]
        if not options.collect:
            done = benchmark(task, settings, store=store, methods=config.rows, workers=config.workers)
            if report_broken(done.crashed.items()):
                return 1
    records = [record for cell in cells if (record := store.record(cell.kind, cell.config)) is not None]
    if not records:
        return nothing_finished(options)
    elsewhere = {key(record.kind, record.config) for record in read_cells(of_benchmark)}
    store.publish(published, only={cell.key for cell in cells} - elsewhere)
    finished = {
        images: collect(task, config.settings(images), store=store, methods=config.rows) for images in config.images
    }
    write(document(config, finished, records), options.out)
    sys.stdout.write(f"{options.out / NAME}.md: {len(records)} of {len(cells)} cells\n")
    return 0


def main() -> int:
    return from_command_line(NAME, __doc__, Config, __file__, Path("runs/bokeh"), work)


if __name__ == "__main__":
    sys.exit(main())
