"""How true the law behind S samples is when samples and targets are draws of one law, beside two simpler ones.

``python -m experiments.samples.run`` writes ``docs/results/samples/honesty.json`` (a minute on one core) and prints the
table of ``docs/evaluation.md``; ``--table`` prints the table of the numbers that are there.
"""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Laplace, Normal, StudentT, Uniform

import fcal
from fcal._files import provenance, write_json
from fcal.distributions import Empirical

OUT = Path(__file__).resolve().parents[2] / "docs/results/samples/honesty.json"
ROWS = 100_000
SIZES = (5, 10, 30, 100)
LEVELS = (0.5, 0.9, 0.95)
LAWS: dict[str, Distribution] = {
    "normal": Normal(0.0, 1.0),
    "uniform": Uniform(-math.sqrt(3), math.sqrt(3)),
    "laplace": Laplace(0.0, math.sqrt(0.5)),
    "student-t of 4": StudentT(4.0, 0.0, math.sqrt(0.5)),
}


def moments(samples: Tensor) -> Distribution:
    """What people write first: the mean and sd of the samples, as a normal law."""
    return Normal(samples.mean(-1), samples.std(-1))


PREDICTIONS: dict[str, Callable[[Tensor], Distribution]] = {"Empirical": Empirical, "mean and sd": moments}


def ecdf_coverage(samples: Tensor, target: Tensor) -> list[float]:
    """Share of targets between the empirical quantiles of the samples."""
    shares = []
    for level in LEVELS:
        low, high = (torch.quantile(samples, p, dim=-1) for p in ((1 - level) / 2, (1 + level) / 2))
        shares.append(((target >= low) & (target <= high)).double().mean().item())
    return shares


def measured(law: Distribution, size: int) -> dict[str, Any]:
    """Coverage, mean of z squared, NLL and sd of every prediction."""
    torch.manual_seed(size)
    samples, target = law.sample((ROWS, size)).double(), law.sample((ROWS,)).double()
    found: dict[str, Any] = {"quantiles": {"coverage": ecdf_coverage(samples, target)}}
    best = -law.log_prob(target.float()).double().mean().item()
    for name, prediction in PREDICTIONS.items():
        pred = prediction(samples)
        z = fcal.standardize(pred, target)
        edges = [Normal(0.0, 1.0).icdf(torch.tensor((1 + level) / 2)).item() for level in LEVELS]
        found[name] = {
            "coverage": [(z.abs() <= edge).double().mean().item() for edge in edges],
            "z_squared": z.square().mean().item(),
            "excess_nll": fcal.nll(pred, target).mean().item() - best,
            "sd": pred.stddev.median().item() / law.stddev.item(),
        }
    return found


def table(document: dict[str, Any]) -> list[str]:
    """The table of the docs, in markdown."""
    head = "samples | targets | in 50 / 90 / 95 % | mean of z² | NLL above the truth | mean and sd: in 90 / 95 %"
    lines = [f"| {head} | quantiles: in 90 / 95 % |", "|---|---|---|---|---|---|---|"]
    for size in SIZES:
        for name in LAWS:
            own = document["results"][name][str(size)]
            law, simple, plain = own["Empirical"], own["mean and sd"], own["quantiles"]
            shares = " / ".join(f"{100 * share:.1f}" for share in law["coverage"])
            others = [" / ".join(f"{100 * share:.1f}" for share in each["coverage"][1:]) for each in (simple, plain)]
            numbers = f"{shares} | {law['z_squared']:.2f} | {law['excess_nll']:.2f}"
            lines.append(f"| {size} | {name} | {numbers} | {others[0]} | {others[1]} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="print the table of the numbers that are there")
    if not parser.parse_args().table:
        results = {name: {str(size): measured(law, size) for size in SIZES} for name, law in LAWS.items()}
        write_json(OUT, {"rows": ROWS, "levels": LEVELS, "results": results, "versions": provenance()})
    lines = "\n".join(table(json.loads(OUT.read_text()))) + "\n"
    (OUT.parent / "table.md").write_text(lines)
    print(lines, end="")


if __name__ == "__main__":
    main()
