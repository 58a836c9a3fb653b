"""f-Cal from networks that overfit: accuracy against calibration, beside early stopping, decay and temperature."""

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

from claims_page import write_claims
from resumable import Options, from_command_line, nothing_finished, provenance_of, report_broken

from fcal._files import atomic_path, write_json
from fcal.sweeps import Cell, Record, Store
from fcal.sweeps import run as run_cells
from fcal_regimes.choices import summaries
from fcal_regimes.page import claims_part, differences, page, tradeoff
from fcal_regimes.points import Config, Point, compute, forms_of, points

NAME = "fcal_regimes"


def document(config: Config, finished: Iterable[tuple[Point, Record]], trainings: Iterable[Record]) -> dict[str, Any]:
    """Everything that page and picture show."""
    known = list(finished)
    records = [*(record for _, record in known), *trainings]
    return {
        "config": asdict(config),
        "provenance": provenance_of(records),
        "cells": len(records),
        "hours": sum(record.seconds or 0.0 for record in records) / 3600,
        "failed": [point.cell.name for point, record in known if record.result["status"] == "failed"],
        "forms_of_paper": forms_of(config, detached=False),
        "results": summaries(config, [(point, record.result) for point, record in known]),
    }


def write(results: Mapping[str, Any], out: Path) -> None:
    """The document, the picture and the pages."""
    figure = tradeoff(results)
    with atomic_path(out / NAME / "tradeoff.png") as temporary:
        figure.savefig(temporary, dpi=110, metadata={"Software": None}, format="png")
    texts = {f"{NAME}.md": page(results), f"{NAME}/differences.md": differences(results)}
    for name, text in (texts | {f"{NAME}/claims.md": claims_part(results)}).items():
        with atomic_path(out / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    write_json(out / NAME / "results.json", results)
    write_claims(out)


def trainings_of(wanted: Iterable[Point]) -> list[Cell]:
    """Trainings that points start from."""
    return list(dict.fromkeys(need for point in wanted for need in point.cell.needs))


def work(options: Options) -> int:
    config, published = options.config, options.folder / "cells.jsonl"
    store, wanted = Store(options.run / "cells", published=[published]), points(config)
    if not options.collect:
        outcomes = run_cells([point.cell for point in wanted], compute, store=store, workers=config.workers)
        broken = (outcome for outcome in outcomes.values() if outcome.status == "failed")
        if report_broken((outcome.cell.name, str(outcome.reason)) for outcome in broken):
            return 1
    records = [(point, store.record(point.cell.kind, point.cell.config)) for point in wanted]
    finished = [(point, record) for point, record in records if record is not None]
    if not finished:
        return nothing_finished(options)
    trained = [(cell, store.record(cell.kind, cell.config)) for cell in trainings_of(wanted)]
    store.publish(published, only={*(point.cell.key for point, _ in finished), *(cell.key for cell, _ in trained)})
    write(document(config, finished, [record for _, record in trained if record is not None]), options.out)
    sys.stdout.write(f"{options.out / NAME}.md: {len(finished)} of {len(wanted)} points\n")
    return 0


def main() -> int:
    return from_command_line(NAME, __doc__, Config, __file__, Path("runs") / NAME, work)


if __name__ == "__main__":
    sys.exit(main())
