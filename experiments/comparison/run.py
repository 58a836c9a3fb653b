"""How often ``fcal.compare`` tells two equally good models apart: false alarms of its 95 % intervals."""

import argparse
import math
from collections import Counter
from pathlib import Path

import torch
from torch.distributions import Normal

import fcal
from fcal._files import atomic_path, provenance, writable_folder, write_json
from fcal.metrics.comparison import SCORES

SETTINGS = {
    "30 rows": {"rows": 30},
    "300 rows": {"rows": 300},
    "300 rows, sigma x 0.7": {"rows": 300, "scale": 0.7},
    "3000 rows": {"rows": 3000},
    "2000 rows in 200 clusters": {"rows": 2000, "clusters": 200},
    "2000 rows in 200 clusters, sigma x 0.7": {"rows": 2000, "clusters": 200, "scale": 0.7},
}
SHOWN = [name for name in SCORES if name not in ("width_0.9", "sharpness")]  # these two are constant here


def false_alarms(rows: int, runs: int, *, clusters: int = 0, scale: float = 1.0) -> dict[str, float]:
    """Share of data sets on which an interval does not hold 0, by score.

    The target is a sum of three parts, of which each model knows one. With clusters, rows are correlated by one half.
    """
    generator, found = torch.Generator().manual_seed(rows), Counter[str]()
    cluster = torch.arange(rows) % clusters if clusters else None
    sd = torch.full((rows,), math.sqrt(2) * scale, dtype=torch.float64)
    for _ in range(runs):
        parts = torch.randn(3, rows, generator=generator, dtype=torch.float64)
        if cluster is not None:
            shared = torch.randn(3, clusters, generator=generator, dtype=torch.float64)
            parts = math.sqrt(0.5) * (parts + shared[:, cluster])
        preds = {"A": Normal(parts[0], sd), "B": Normal(parts[1], sd)}
        gaps = fcal.compare(preds, parts.sum(0), cluster=cluster).differences["B"]
        found.update(name for name, gap in gaps.items() if not gap.low <= 0 <= gap.high)
    return {name: found[name] / runs for name in SHOWN}


def table(results: dict[str, dict[str, float]]) -> str:
    """The rates in per cent, as Markdown."""
    head = ["| data | " + " | ".join(SCORES[name] for name in SHOWN) + " |", "|---" * (len(SHOWN) + 1) + "|"]
    lines = (f"| {name} | " + " | ".join(f"{100 * own[s]:.1f}" for s in SHOWN) + " |" for name, own in results.items())
    return "\n".join([*head, *lines]) + "\n"


def main() -> None:
    """Count, and write ``results.json`` and ``table.md``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=300, help="data sets of each line")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    arguments = parser.parse_args()
    writable_folder(arguments.out)
    results = {name: false_alarms(runs=arguments.runs, **options) for name, options in SETTINGS.items()}  # type: ignore[arg-type]
    write_json(arguments.out / "results.json", {"runs": arguments.runs, "rates": results, "versions": provenance()})
    with atomic_path(arguments.out / "table.md") as temporary:
        temporary.write_text(table(results))
    print(table(results))


if __name__ == "__main__":
    main()
