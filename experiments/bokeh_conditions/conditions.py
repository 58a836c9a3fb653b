"""Bokeh with fewer images to train on, and with test images that have more discs than any of them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor

from fcal._checks import check_integer
from fcal._datasets import BatchConcat
from fcal.benchmarks.bokeh.problem import BokehProblem, labels_of, splits_of
from fcal.benchmarks.bokeh.settings import Settings
from fcal.benchmarks.bokeh.task import BokehTask
from fcal.benchmarks.method_kinds import Method
from fcal.benchmarks.problem import Problem
from fcal.benchmarks.trainings import Datasets
from fcal.data import BokehConfig
from fcal.data.bokeh import REGIMES
from fcal.sweeps import Store

REGIME = "paper-like"
SAME, SHIFTED = "as in training", "more discs"  # test sets
_HELD_OUT_SHARE = 0.8  # of all images: those to train on and to choose by; the others are test images


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of the experiment.

    Attributes:
        workers: Number of processes, each with one thread.
        seeds: Number of seeds; each has images, noise and initial weights of its own.
        noises: Kinds of label noise.
        rows: Methods.
        images: Numbers of images to train on and to choose by.
        epochs: Epochs of every training, for each of these numbers.
        extra: Further test images.
        fewest: Smallest number of discs besides the red one in the shifted test set.
        most: Largest number of them.
        size: Pixels of an edge.
        width: Channels of the network's first layer.
        hidden: Units of its hidden layer.
        df: Number K of squared residuals in a sum q.
        bins: Number S of bins of calibration errors.
    """

    workers: int
    seeds: int
    noises: list[str]
    rows: list[str]
    images: list[int]
    epochs: list[int]
    extra: int
    fewest: int
    most: int
    size: int
    width: int
    hidden: int
    df: int
    bins: int

    def __post_init__(self) -> None:
        check_integer("workers", self.workers, at_least=1, at_most=64)
        check_integer("fewest", self.fewest, at_least=0, at_most=100)
        check_integer("most", self.most, at_least=self.fewest, at_most=100)
        if len(self.images) != len(self.epochs) or not self.images:
            raise ValueError(f"expected `epochs` for each of the {len(self.images)} `images`, got {len(self.epochs)}")
        for images in self.images:
            self.settings(images)  # checks the others

    def settings(self, images: int) -> Settings:
        """Settings of the Bokeh benchmark with this many images to train on and to choose by."""
        return Settings(
            noises=tuple(self.noises),
            regimes=(REGIME,),
            seeds=self.seeds,
            images=round(images / _HELD_OUT_SHARE),
            extra=self.extra,
            size=self.size,
            width=self.width,
            hidden=self.hidden,
            base_epochs=self.epochs[self.images.index(images)],
            df=self.df,
            bins=self.bins,
        )


class ShiftedProblem(BokehProblem):
    """Networks of the Bokeh benchmark, tested on images with more discs; their trainings are the same cells.

    Args:
        settings: Network and budget.
        data: Images and labels to train on.
        store: Where finished trainings are kept.
        discs: Smallest and largest number of discs besides the red one in test images.
    """

    def __init__(self, settings: Settings, data: BokehConfig, store: Store, discs: tuple[int, int]) -> None:
        super().__init__(settings, data, store)
        self.discs = discs
        regime = f"{data.regime} with {discs[0]} to {discs[1]} discs"
        REGIMES.add(regime, replace(REGIMES[data.regime], fewest=discs[0], most=discs[1]), replace=True)
        self.crowded = asdict(replace(data, regime=regime))

    @property
    def datasets(self) -> Datasets:
        """Rows to train on and to choose by, and shifted test rows."""
        crowded = splits_of(**self.crowded)
        return super().datasets._replace(test=BatchConcat([crowded.test, crowded.extra]), timed=crowded.test)

    def config(self, method: Method) -> dict[str, Any]:
        """That of the networks, and the number of discs of the test images."""
        return {**super().config(method), "discs": list(self.discs)}

    def _test(self) -> dict[str, Tensor]:
        return labels_of(self.crowded)


class ConditionsTask(BokehTask):
    """Bokeh with two test sets.

    Args:
        discs: Smallest and largest number of discs besides the red one in images of the second.
    """

    def __init__(self, discs: tuple[int, int]) -> None:
        self.discs = discs

    def problems(self, settings: Settings, store: Store, data: str | None = None) -> list[Problem]:
        """Every noise with both test sets, seed by seed."""
        del data
        problems: list[Problem] = []
        for seed in range(settings.seeds):
            for noise in settings.noises:
                images = settings.data(noise, REGIME, seed)
                both = BokehProblem(settings, images, store), ShiftedProblem(settings, images, store, self.discs)
                for problem, test in zip(both, (SAME, SHIFTED), strict=True):
                    problem.labels = {**problem.labels, "test": test}
                    problems.append(problem)
        return problems

    def problem_of(self, config: Mapping[str, Any], store: Store, data: str | None = None) -> BokehProblem:
        """The problem of an address."""
        if "discs" not in config:
            return super().problem_of(config, store, data)
        settings, images = Settings(**config["settings"]), BokehConfig(**config["data"])
        return ShiftedProblem(settings, images, store, tuple(config["discs"]))

    def rows_of(self, problem: Problem, methods: Sequence[str]) -> list[str]:
        """The rows that were asked for, without variants."""
        del problem
        return list(methods)
