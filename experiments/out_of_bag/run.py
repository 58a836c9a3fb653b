"""Which design and which loss out-of-bag ensembles should have, measured on inner splits of Bokeh's training images.

A fifth of the 8,000 images that are there to train on and to choose by takes the place of the test images, so the
choice looks at no test image. ``python experiments/out_of_bag/run.py`` trains what is missing (cells in
``runs/out_of_bag``) and writes ``docs/results/out_of_bag``; ``--collect`` trains nothing and writes what is finished.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from fcal._datasets import BatchConcat
from fcal._files import atomic_path, provenance, write_json
from fcal.benchmarks import METHODS, Datasets, NetworkProblem, Table, Task, benchmark, collect
from fcal.benchmarks.bokeh.problem import BokehTrainings, splits_of
from fcal.benchmarks.bokeh.settings import PRESETS, Settings
from fcal.benchmarks.markdown import results_markdown
from fcal.benchmarks.method_kinds import OutOfBag
from fcal.crossfitting import Bags
from fcal.data import BokehConfig
from fcal.sweeps import Store

LOSSES = {"nll": {"name": "nll"}} | {f"beta {beta:g}": {"name": "beta-nll", "beta": beta} for beta in (0.25, 0.5, 1.0)}
DESIGNS = {
    "3 x 9/10": Bags(members=3, leave_out=0.1),
    "4 x 3/4": Bags(members=4, leave_out=0.25),
    "5 x 3/5, two judges": Bags(members=5, leave_out=0.4, judges=2),
    "5 x 9/10": Bags(members=5, leave_out=0.1),
    "6 x 5/6": Bags(members=6, leave_out=1 / 6),
}
TRIED = [
    *(("beta 0.5", design) for design in DESIGNS),
    *((loss, "3 x 9/10") for loss in LOSSES if loss != "beta 0.5"),
]
RIVALS = ("temperature", "conformal", "ensemble_3", "ensemble")
NAMES = {f"{loss}, {design}": (loss, design) for loss, design in TRIED}
_INNER = 0.2  # of the training images, in place of test images


class Rows:
    """Some rows of a dataset whose batches are stacked."""

    def __init__(self, dataset: Any, indices: torch.Tensor) -> None:
        self.dataset, self.indices = dataset, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitems__(self, positions: Sequence[int]) -> Any:
        return self.dataset.__getitems__(self.indices[torch.as_tensor(list(positions))].tolist())


class InnerTrainings(BokehTrainings):
    """The training images of Bokeh, divided once more."""

    task = "out-of-bag"

    def datasets(self, data: Mapping[str, Any]) -> Datasets:
        splits = splits_of(**data)
        images = BatchConcat([splits.train, splits.validation])
        generator = torch.Generator().manual_seed(int(data["seed"]))
        test, validation, train = torch.randperm(len(images), generator=generator).split(
            [int(_INNER * len(images)), int(_INNER * len(images)), len(images) - 2 * int(_INNER * len(images))]
        )
        return Datasets(train=Rows(images, train), validation=Rows(images, validation), test=Rows(images, test))


class InnerProblem(NetworkProblem):
    """One table and seed."""

    source = InnerTrainings()

    def __init__(self, settings: Settings, data: BokehConfig, store: Store) -> None:
        super().__init__(settings, asdict(data), settings.network, store)
        self.labels = {"noise": data.noise, "regime": data.regime}

    @property
    def training_rows(self) -> int:
        return round((1 - _INNER) * 0.8 * self.cells.data["images"])


class InnerTask(Task[Settings]):
    """All noises and regimes of the published tables."""

    name, title, problem, presets = "out-of-bag", "Designs of out-of-bag ensembles", InnerProblem, PRESETS

    def problems(self, settings: Settings, store: Store, data: str | None = None) -> list[Any]:
        del data
        return [
            InnerProblem(settings, settings.data(noise, regime, seed), store)
            for seed in range(settings.seeds)
            for regime in settings.regimes
            for noise in settings.noises
        ]

    def problem_of(self, config: Mapping[str, Any], store: Store, data: str | None = None) -> InnerProblem:
        del data
        return InnerProblem(Settings(**config["settings"]), BokehConfig(**config["data"]), store)


def add_methods() -> None:
    """Make every loss and design a row of its own."""
    for name, (loss, design) in NAMES.items():
        if name not in METHODS.names():
            METHODS.add(name, OutOfBag(title=name, objective=LOSSES[loss], bags=DESIGNS[design]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=Path("runs/out_of_bag"))
    parser.add_argument("--out", type=Path, default=Path("docs/results/out_of_bag"))
    parser.add_argument("--preset", default="paper", choices=PRESETS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--collect", action="store_true", help="write what is finished")
    arguments = parser.parse_args()
    add_methods()
    settings = Settings(**{**asdict(PRESETS[arguments.preset]), "seeds": arguments.seeds})
    task, store, methods = InnerTask(), Store(arguments.run / "cells"), [*NAMES, *RIVALS]
    if arguments.collect:
        done = collect(task, settings, store=store, methods=methods)
    else:
        done = benchmark(task, settings, store=store, methods=methods, workers=arguments.workers)
    write(task, done.tables, settings, arguments.out)


def write(task: InnerTask, tables: Sequence[Table], settings: Settings, out: Path) -> None:
    """Results as JSON, and as Markdown."""
    out.mkdir(parents=True, exist_ok=True)
    costs = {name: round(DESIGNS[design].cost, 3) for name, (_, design) in NAMES.items()}
    document = {
        "tables": [table.as_dict() for table in tables],
        "costs": costs,
        "settings": asdict(settings),
        "versions": provenance(),
    }
    write_json(out / "results.json", document)
    parts = [
        "# Designs of out-of-bag ensembles\n",
        "Written by `experiments/out_of_bag/run.py`: inner splits of training images, no test image. Rows name the "
        "loss, the number of networks and the share of the rows that each of them sees; costs: "
        + ", ".join(f"{name}: {cost:g}" for name, cost in costs.items())
        + ".\n",
    ]
    for table in tables:
        parts += [
            f"## {table.labels['noise']} noise, {table.labels['regime']}\n",
            results_markdown(task.columns, table),
        ]
    with atomic_path(out / "designs.md") as temporary:
        temporary.write_text("\n".join(parts), encoding="utf-8")
    print(f"{out}: {len(tables)} tables")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
