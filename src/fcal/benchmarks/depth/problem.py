"""A depth problem: frames with one seed, the network, and the numbers of a prediction."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from fcal._datasets import get_batch
from fcal.benchmarks.depth.frames import Labels, Source, labels_of_test
from fcal.benchmarks.depth.scoring import scored
from fcal.benchmarks.depth.settings import WORLDS, Settings
from fcal.benchmarks.network_problem import NetworkProblem
from fcal.benchmarks.problem import Failed
from fcal.benchmarks.trainings import Datasets, NetworkTrainings
from fcal.distributions.functional import cat, index_select
from fcal.models import Predicted, SharedTrunk
from fcal.models.depth import BTS
from fcal.models.predicting import evaluating, in_format, prediction
from fcal.models.pretrained import weights_of
from fcal.sweeps import Store

_TIMED = 8  # frames whose prediction is timed


@dataclass(frozen=True)
class DepthTrainings(NetworkTrainings):
    """BTS on frames of streets; only measured pixels are predicted and scored.

    Args:
        source: Where frames and pretrained weights come from.
    """

    source: Source = field(default_factory=Source)

    task = "depth"
    version = 1
    channels_last = True
    predicted_at_once = 16
    held_out_at_once = 16
    task_loss = "silog"

    def datasets(self, data: Mapping[str, Any]) -> Datasets:
        """The frames of a config; whole drives are left out together."""
        splits = self.source.splits(data)
        timed = torch.utils.data.Subset(splits.test, range(min(_TIMED, len(splits.test))))
        return Datasets(
            train=splits.train,
            validation=splits.validation,
            test=splits.test,
            timed=timed,
            groups=[*splits.train.groups, *splits.validation.groups],
        )

    def network(self, options: Mapping[str, Any]) -> BTS:
        """The network of these options."""
        return BTS(**self._options(options))

    def shared(self, options: Mapping[str, Any], heads: int) -> SharedTrunk:
        """Decoders on a shared encoder."""
        return BTS.with_heads(heads, **self._options(options))

    def name_of(self, data: Mapping[str, Any]) -> str:
        """World and seed."""
        return "{world} {seed}".format(**data)

    def predict(self, network: Any, rows: Any, *, at_once: int = 0) -> Predicted:
        """Predictions for every measured pixel of frames, one after another, and their targets."""
        preds, targets = [], []
        with evaluating(network), torch.no_grad():
            for indices in torch.arange(len(rows)).split(at_once or self.predicted_at_once):
                batch = get_batch(rows, indices.tolist())
                measured = ~batch["target"].isnan()
                pred = prediction(network, in_format(batch["input"], self.channels_last))
                preds.append(index_select(pred, measured))
                targets.append(batch["target"][measured])
        return Predicted(cat(preds), torch.cat(targets), None)

    def _options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        own = {name: value for name, value in options.items() if name not in ("decoder", "pretrained")}
        weights = weights_of(options["encoder"], self.source.root) if options["pretrained"] else ""
        return {**own, "width": options["decoder"], "weights": weights}


class DepthProblem(NetworkProblem):
    """The frames of one seed.

    Args:
        settings: Network and budget.
        data: Address of the frames.
        store: Where finished trainings are kept.
        source: Where frames come from.
    """

    source = DepthTrainings()
    timed_repeats = 1
    of_pictures = ("curves", "history")

    def __init__(self, settings: Settings, data: Mapping[str, Any], store: Store, source: Source) -> None:
        self.source = DepthTrainings(source)  # type: ignore[misc]
        super().__init__(settings, data, settings.network, store)
        self.settings = settings
        self.labels = {"world": data["world"]}

    @property
    def has_truth(self) -> bool:
        """Whether depth without noise is known."""
        return self.test.truth is not None

    @property
    def test(self) -> Labels:
        """Measured pixels of the test frames."""
        return labels_of_test(self.source.source, json.dumps(self.cells.data, sort_keys=True))

    def truth(self) -> list[Distribution]:
        """The noise of the measurements around the true depth."""
        if self.test.truth is None or self.test.sigma is None:
            raise Failed(f"depth without noise is not known of {WORLDS[self.labels['world']]}")
        return [Normal(self.test.truth, self.test.sigma)]

    def scored(self, pred: Distribution | Tensor) -> dict[str, Any]:
        """Numbers of a prediction for the test pixels."""
        datasets = self.datasets
        frames = {name: len(getattr(datasets, name)) for name in ("train", "validation", "test")}
        scores = scored(pred, self.test, bins=self.settings.bins, df=self.settings.df)
        return {**scores, "n": self.test.target.numel(), "frames": frames}
