"""The table of results in the README: a few rows of Bokeh, from the numbers that ``publish.py`` wrote.

``python experiments/readme_table.py`` prints it; ``--write`` replaces it in the README.
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "docs/results/bokeh/results.json"

_LABELS = {"noise": "heteroscedastic", "regime": "paper-like"}
_ROWS = {
    "nll": "usual training, by likelihood",
    "fcal_kl": "f-Cal on training images",
    "temperature": "one factor on sigma, from held-out images",
    "conformal": "conformal repair, from held-out images",
    "ensemble_3": "ensemble of three",
    "oob_auto": "**out-of-bag ensemble, repaired**",
    "oracle": "the true noise and position",
}
_BETWEEN = (r"(<!-- written by experiments/readme_table.py -->\n).*?(<!-- end -->)", re.DOTALL)


def as_markdown(document: dict[str, Any]) -> str:
    """The table of one results document."""
    (table,) = [t for t in document["tables"] if all(t[name] == value for name, value in _LABELS.items())]
    floor = 100 * table["floors"]["ece_q"]["expected"]
    lines = [
        "| | in the 90 % ellipse | calibration error, ECE(q) x100 | CRPS x1000 | cost in trainings |",
        "|---|---|---|---|---|",
        f"| should be | 90 % | {floor:.2f} | low | |",
    ]
    for name, title in _ROWS.items():
        row = table["rows"][name]
        cost = "" if row["cost"]["mean"] is None else f"{row['cost']['mean']:.1f}"
        cells = [_spread(row["joint"], 100, " %"), _spread(row["ece_q"], 100), _spread(row["crps"], 1000), cost]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _spread(value: dict[str, float] | None, factor: float, unit: str = "") -> str:
    if value is None or value["mean"] is None:
        return "-"
    return f"{factor * value['mean']:.1f} ± {factor * value['sd']:.1f}{unit}"


def replaced(page: str, table: str) -> str:
    """The page with its table exchanged."""
    return re.sub(_BETWEEN[0], lambda found: f"{found[1]}{table}{found[2]}", page, flags=_BETWEEN[1])


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="replace the table in the README")
    table = as_markdown(json.loads(RESULTS.read_text(encoding="utf-8")))
    if parser.parse_args().write:
        README.write_text(replaced(README.read_text(encoding="utf-8"), table), encoding="utf-8")
    else:
        print(table, end="")


if __name__ == "__main__":
    main()
