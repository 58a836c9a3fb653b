"""A Bokeh data set with one seed: its images, its network, and the numbers of a prediction."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal._datasets import BatchConcat
from fcal.benchmarks.bokeh.scoring import LEVEL, by_sigma, gallery, interval, other_grids, scored
from fcal.benchmarks.bokeh.settings import Settings
from fcal.benchmarks.method_kinds import Method
from fcal.benchmarks.network_problem import NetworkProblem
from fcal.benchmarks.problem import Prediction
from fcal.benchmarks.scoring import central_interval
from fcal.benchmarks.trainings import Datasets, NetworkTrainings
from fcal.data import Bokeh, BokehConfig, BokehSplits, label_noise
from fcal.models import ConvNet, SharedTrunk
from fcal.sweeps import Store


class BokehTrainings(NetworkTrainings):
    """Convolutional networks on images of discs; further test images are scored but not timed."""

    task = "bokeh"
    version = 2
    channels_last = True

    def datasets(self, data: Mapping[str, Any]) -> Datasets:
        """The images of a config."""
        splits = splits_of(**data)
        test = BatchConcat([splits.test, splits.extra])
        return Datasets(train=splits.train, validation=splits.validation, test=test, timed=splits.test)

    def network(self, options: Mapping[str, Any]) -> ConvNet:
        """The network of these options."""
        return ConvNet(**options)

    def shared(self, options: Mapping[str, Any], heads: int) -> SharedTrunk:
        """Heads on shared convolutions."""
        return ConvNet.with_heads(heads, **options)

    def name_of(self, data: Mapping[str, Any]) -> str:
        """Regime, noise and seed."""
        return "{regime} {noise} {seed}".format(**data)


class BokehProblem(NetworkProblem):
    """One table's data with one seed.

    Args:
        settings: Network and budget.
        data: Images and labels.
        store: Where finished trainings are kept.
    """

    source = BokehTrainings()
    timed_repeats = 3
    of_pictures = ("curves", "gallery", "history")
    levels = (LEVEL,)

    def __init__(self, settings: Settings, data: BokehConfig, store: Store) -> None:
        super().__init__(settings, asdict(data), settings.network, store)
        self.settings, self.data = settings, data
        self.labels = {"noise": data.noise, "regime": data.regime}

    @property
    def training_rows(self) -> int:
        """Images to train on and to choose by, without painting any."""
        return sum(len(Bokeh(split, self.data)) for split in ("train", "validation"))

    def truth(self) -> list[Distribution]:
        """The noise of the labels around the true centres."""
        test = self._test()
        truth, sigma = test["truth"].double(), test["sigma"].double()
        return [label_noise.NOISES[self.data.noise](truth, sigma, self.data.shape)]

    def scored(self, pred: Distribution | Tensor) -> dict[str, Any]:
        """The columns of a prediction for the test images."""
        return scored(pred, self._test(), bins=self.settings.bins, df=self.settings.df)

    def score(self, method: Method, prediction: Prediction) -> dict[str, Any]:
        """The columns, and what pictures and further tables show."""
        pred, target = prediction.dists[0] if prediction.dists else prediction.means[0], self._test()["target"]
        details: dict[str, Any] = {"gallery": gallery(pred)}
        strata = None
        if isinstance(pred, Distribution):
            strata = by_sigma(pred, target, bins=self.settings.bins, df=self.settings.df)
            details |= {"grids": other_grids(pred, target), "interval": interval(central_interval(pred, LEVEL), target)}
            details["strata"] = strata
        if prediction.intervals:
            details["interval"] = interval(prediction.intervals[0][LEVEL], target)
        result = super().score(method, replace(prediction, details={**details, **prediction.details}))
        if strata is not None:
            result["columns"]["strata"] = [max(value for value in strata["ece_z"] if value is not None)]
        return result

    def _test(self) -> dict[str, Tensor]:
        return labels_of(asdict(self.data))


@lru_cache(maxsize=2)
def splits_of(**config: Any) -> BokehSplits:
    """The images of a config; those of two configs are cached."""
    return BokehSplits(BokehConfig(**config))


def labels_of(data: Mapping[str, Any]) -> dict[str, Tensor]:
    """Targets, truths and true sigmas of the test images of a config."""
    splits = splits_of(**data)
    batches = [split.__getitems__(range(len(split))) for split in (splits.test, splits.extra)]
    return {name: torch.cat([batch[name] for batch in batches]) for name in ("target", "truth", "sigma")}
