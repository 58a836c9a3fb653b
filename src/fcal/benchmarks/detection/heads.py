"""Heads of the detection benchmark: mean and spread of boxes from cached features, and what becomes of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from fcal.benchmarks.detection.detectors import Detectors, Rows
from fcal.benchmarks.detection.final_boxes import final_scores
from fcal.benchmarks.detection.images import ImageSource
from fcal.benchmarks.detection.scoring import box_scores
from fcal.benchmarks.detection.settings import SETS, Settings
from fcal.benchmarks.method_kinds import Trained
from fcal.benchmarks.network_problem import NetworkProblem
from fcal.benchmarks.problem import Failed, Prediction
from fcal.benchmarks.trainings import Datasets, NetworkTrainings
from fcal.distributions.functional import index_select
from fcal.models.detection import CornerCoder, LawHead, UncertaintyHead
from fcal.sweeps import Store

_TIMED = 1000  # candidates whose prediction is timed
_OF_PROPOSAL = 5  # corners and class, behind the features


class BoxHead(nn.Module):
    """The last layers of a detector as a network of their own.

    Args:
        features: Number of features of a proposal.
        classes: Number of classes, without background.
        deterministic: Predict boxes without their spread.

    Example:
        >>> BoxHead(features=8, classes=2)(torch.rand(3, 13).round()).batch_shape
        torch.Size([3, 4])
    """

    def __init__(self, *, features: int, classes: int, deterministic: bool = False) -> None:
        super().__init__()
        regression = nn.Linear(features, 4 * (classes + 1))
        nn.init.normal_(regression.weight, std=0.001)
        nn.init.zeros_(regression.bias)
        self.law = LawHead(regression, UncertaintyHead(features, classes + 1), CornerCoder())
        self.deterministic = deterministic

    @property
    def uncertainty_head(self) -> nn.Module:
        """The layer of the spread."""
        return self.law.uncertainty

    def forward(self, inputs: Tensor) -> Distribution | Tensor:
        """Boxes in pixels. Shape ``(n, features + 5)`` to a batch shape of ``(n, 4)``."""
        features, proposals, labels = inputs.split([inputs.shape[1] - _OF_PROPOSAL, 4, 1], 1)
        pred: Distribution = self.law(features, proposals, labels.squeeze(1).long())
        return pred.mean if self.deterministic else pred


@dataclass(frozen=True)
class HeadTrainings(NetworkTrainings):
    """Heads on the features of a detector that all seeds share.

    Args:
        detectors: Where features come from; None where nothing is computed.
    """

    detectors: Detectors | None = field(default=None)

    task = "detection"
    version = 1
    predicted_at_once = 20_000
    held_out_at_once = 20_000
    task_loss = "smooth-l1"

    def features(self, data: Mapping[str, Any]) -> dict[str, Tensor]:
        """Features of proposals by split and name."""
        assert self.detectors is not None
        return self.detectors.features({name: value for name, value in data.items() if name != "seed"})

    def datasets(self, data: Mapping[str, Any]) -> Datasets:
        """Proposals of objects to train on, the best of each object to choose by, and candidates to test on."""
        features = self.features(data)
        rows = {
            split: Rows({name: features[f"{split}.{name}"] for name in ("input", "target", "weight")})
            for split in ("train", "validation")
        }
        test = {name: features[f"test.{name}"] for name in ("input", "target")}
        timed = Rows({name: column[:_TIMED] for name, column in test.items()})
        return Datasets(**rows, test=Rows(test), timed=timed, groups=self._groups(data, features))

    def _groups(self, data: Mapping[str, Any], features: Mapping[str, Tensor]) -> list[int]:
        """Drive, or image, of every proposal: these are left out together."""
        assert self.detectors is not None
        splits = self.detectors.source.splits(data["images"])
        groups: list[int] = []
        for name in ("train", "validation"):
            of_images = torch.tensor(getattr(splits, name).groups)
            groups += of_images[features[f"{name}.image"]].tolist()
        return groups

    def network(self, options: Mapping[str, Any]) -> BoxHead:
        """The head of these options."""
        return BoxHead(**options)

    def name_of(self, data: Mapping[str, Any]) -> str:
        """Set and seed."""
        return f"{data['images']['set']} {data['seed']}"


class DetectionProblem(NetworkProblem):
    """The proposals of one seed.

    Args:
        settings: Networks and budget.
        data: Address of the features.
        classes: Number of classes.
        store: Where finished trainings are kept.
        source: Where images come from.
    """

    source = HeadTrainings()
    timed_repeats = 1
    of_pictures = ("curves", "history")

    def __init__(
        self, settings: Settings, data: Mapping[str, Any], classes: int, store: Store, source: ImageSource
    ) -> None:
        self.source = HeadTrainings(Detectors(source, str(store.folder)))  # type: ignore[misc]
        network = {"features": data["detector"]["head"], "classes": classes}
        super().__init__(settings, data, network, store)
        self.images = source
        self.labels = {"set": data["images"]["set"]}

    def truth(self) -> list[Distribution]:
        """The noise of the labels around the true boxes; candidates of no object stay where they are."""
        features = self.source.features(self.cells.data)
        truth, sigma = features["test.truth"], features["test.sigma"]
        if not bool(sigma.isfinite().any()):
            raise Failed(f"boxes without noise are not known of {SETS[self.labels['set']]}")
        proposals = features["test.input"][:, -_OF_PROPOSAL:-1]
        return [Normal(truth.where(truth.isfinite(), proposals), sigma.where(sigma.isfinite(), torch.ones(())))]

    def head_trained(self, method: Trained) -> Prediction:
        """A head whose mean is trained by smooth L1 and whose spread, afterwards, by the method's objective."""
        return self.trained(method)

    def scored(self, pred: Distribution | Tensor) -> dict[str, Any]:
        """Numbers of the detections that remain of the test candidates, and of proposals as in training."""
        features, images, address = self.source.features(self.cells.data), self.images, self.cells.data["images"]
        scores = final_scores(
            pred,
            features,
            images.truths(address),
            bins=self.bins,
            df=self.df,
            kitti=images.kitti_truths(address),
            residuals="fold" in address,
        )
        target, image = features["test.target"], features["test.image"]
        known = target.isfinite().all(1)
        at_proposals = box_scores(_rows_of(pred, known), target[known], image[known], bins=self.bins, df=self.df)
        counts = {name: len(getattr(self.datasets, name)) for name in ("train", "validation", "test")}
        splits = images.splits(address)
        sizes = {name: len(getattr(splits, name)) for name in counts}
        return {**scores, "at_proposals": at_proposals["columns"], "boxes": counts, "images": sizes}


def _rows_of(pred: Distribution | Tensor, rows: Tensor) -> Distribution | Tensor:
    return index_select(pred, rows.nonzero().squeeze(1)) if isinstance(pred, Distribution) else pred[rows]
