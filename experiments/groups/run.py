"""Groups of 20 to 5,000 rows whose error bars are wrong by different factors, repaired in three ways."""

import argparse
from pathlib import Path

import torch
from torch import Tensor
from torch.distributions import Normal

import fcal
from fcal._files import atomic_path, provenance, writable_folder, write_json
from fcal.recalibration import ByGroup, Temperature

SIZES = (20, 20, 30, 50, 100, 200, 500, 1000, 5000)
REPEAT = 3
FRESH = 4000  # rows of each group that the repairs are judged on
SPREADS = (0.05, 0.15, 0.4)  # sd of the logarithm of the factors
LIMIT_OF_90 = 1.6448536269514722
REPAIRS = ("one factor for all", "each group by itself", "groups, shrunk")
NUMBERS = ("nll", "crps", "coverage_gap")


def unit(count: int) -> Normal:
    """Predictions of N(0, 1)."""
    return Normal(torch.zeros(count, dtype=torch.float64), torch.ones(count, dtype=torch.float64))


def judged(pred: Normal, target: Tensor, group: Tensor) -> dict[str, float]:
    """NLL, CRPS, and the mean distance of the coverage of a group's 90 % intervals from 90 %."""
    inside = (fcal.standardize(pred, target).abs() <= LIMIT_OF_90).double()
    held = torch.stack([inside[group == g].mean() for g in group.unique()])
    scores = [fcal.nll(pred, target).mean(), fcal.crps(pred, target).mean(), (held - 0.9).abs().mean()]
    return dict(zip(NUMBERS, map(float, scores), strict=True))


def repaired(seed: int, spread: float) -> dict[str, dict[str, float]]:
    """Numbers of every repair on fresh rows of one data set."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.tensor(SIZES * REPEAT)
    factor = torch.exp(spread * torch.randn(len(sizes), generator=generator, dtype=torch.float64))
    group, fresh = torch.arange(len(sizes)).repeat_interleave(sizes), torch.arange(len(sizes)).repeat_interleave(FRESH)
    target, y = (factor[g] * torch.randn(len(g), generator=generator, dtype=torch.float64) for g in (group, fresh))
    own = torch.stack([target[group == g].square().mean().sqrt() for g in range(len(sizes))])
    preds = (
        Temperature().fit(unit(len(group)), target).transform(unit(len(fresh))),
        Normal(unit(len(fresh)).loc, own[fresh]),
        ByGroup(Temperature()).fit(unit(len(group)), target, group=group).transform(unit(len(fresh)), group=fresh),
    )
    truth = judged(Normal(unit(len(fresh)).loc, factor[fresh]), y, fresh)
    found = {name: judged(pred, y, fresh) for name, pred in zip(REPAIRS, preds, strict=True)}  # type: ignore[arg-type]
    return {name: {key: own[key] - truth[key] for key in NUMBERS} for name, own in found.items()}


def table(means: dict[str, dict[str, dict[str, float]]]) -> str:
    """Excess over the truth, as Markdown."""
    lines = ["| sd of log factors | repair | NLL | CRPS | coverage of 90 % |", "|---|---|---|---|---|"]
    for spread, own in means.items():
        for name, number in own.items():
            cells = f"{number['nll']:+.5f} | {number['crps']:+.5f} | {100 * number['coverage_gap']:+.2f} %"
            lines.append(f"| {spread} | {name} | {cells} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Simulate, and write ``results.json`` and ``table.md``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="data sets of each line")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    arguments = parser.parse_args()
    writable_folder(arguments.out)
    runs = {str(spread): [repaired(seed, spread) for seed in range(arguments.runs)] for spread in SPREADS}
    means = {
        spread: {name: {key: sum(run[name][key] for run in own) / len(own) for key in NUMBERS} for name in REPAIRS}
        for spread, own in runs.items()
    }
    write_json(arguments.out / "results.json", {"means": means, "runs": runs, "versions": provenance()})
    with atomic_path(arguments.out / "table.md") as temporary:
        temporary.write_text(table(means))
    print(table(means))


if __name__ == "__main__":
    main()
