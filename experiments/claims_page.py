"""docs/claims.md, put together from the parts that the publishing of every experiment writes."""

from pathlib import Path

from fcal._files import atomic_path

# Heading and part, in the folder of results; a part that is not there has not been measured.
OF_PAPER = (
    ("Bokeh", "bokeh/claims.md"),
    ("Bokeh where networks overfit, as the paper's do", "fcal_regimes/claims.md"),
    ("Depth", "depth/claims.md"),
    ("Detection", "detection/claims.md"),
)
BEYOND = (("Calibration without a held-out set", "bokeh/goals.md"),)
_HEAD = (
    "# The paper's claims\n",
    "Claims of the paper, the rules by which they count as reproduced, and what we measured. Written by "
    "`experiments/publish.py` and the scripts of the experiments from their results. Differences are paired over "
    "seeds, with limits by Student's t, each with a confidence of 95 %: *below* means that the upper limit of the "
    "difference is below 0.\n",
)


def claims_page(results: Path) -> str:
    """The page, from the parts in a folder of results."""
    parts = [*_HEAD, *(_part(results, *part) for part in OF_PAPER)]
    beyond = [_part(results, *part) for part in BEYOND if (results / part[1]).exists()]
    return "\n".join([*parts, *(["# Beyond the paper\n", *beyond] if beyond else [])])


def _part(results: Path, heading: str, name: str) -> str:
    path = results / name
    text = path.read_text(encoding="utf-8") if path.exists() else "Not tested yet.\n"
    return f"## {heading}\n\n{text}"


def write_claims(results: Path) -> None:
    """Write the page above the folder of results."""
    with atomic_path(results.parent / "claims.md") as temporary:
        temporary.write_text(claims_page(results), encoding="utf-8")
