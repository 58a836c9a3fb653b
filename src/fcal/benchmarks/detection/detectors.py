"""Detectors of the benchmark: trained once for all seeds, and the features of proposals that heads are fitted to."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from fcal.benchmarks.detection.images import ImageSource
from fcal.benchmarks.scoring import rounded
from fcal.benchmarks.trainings import load_networks, save_networks, seeded, training_cell
from fcal.metrics.detection import pairwise_iou
from fcal.models.detection import FasterRCNN
from fcal.models.pretrained import weights_of
from fcal.sweeps import Cell, Store, load_tensors, save_tensors
from fcal.training import FitConfig, ObjectiveConfig, fit, objective

KIND, FEATURES = "detection-detector", "detection-features"
_FILE = ".safetensors"
_VERSION = 1
_OVERLAP = 0.5  # of a proposal and its object
_LEAST_SCORE = 0.05  # of a candidate of a class, as in torchvision
_LIKELIHOOD = 0.05  # weight of the likelihood beside the losses of the detector
_READ_AT_ONCE = 8  # images
_LARGEST_GRADIENT = 10.0


class Rows(Dataset[Mapping[str, Tensor]]):
    """Proposals as rows of a dataset.

    Args:
        columns: ``"input"``, ``"target"`` and ``"weight"``, as many rows of each.
    """

    def __init__(self, columns: Mapping[str, Tensor]) -> None:
        self.columns = dict(columns)

    def __len__(self) -> int:
        return len(self.columns["target"])

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: column[index] for name, column in self.columns.items()}

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """Rows, stacked."""
        return {name: column[torch.as_tensor(list(indices))] for name, column in self.columns.items()}


@dataclass(frozen=True)
class Detectors:
    """Trains, stores and finds the detectors of the benchmark.

    Args:
        source: Where images come from.
        store: Folder of the store.
    """

    source: ImageSource
    store: str

    def detector_cell(self, data: Mapping[str, Any], *, full: bool) -> Cell:
        """The training without error bars, or, from there, of the whole detector with the likelihood of boxes.

        The former starts from a detector of rendered streets where ``data`` has their address, ``"streets"``.
        """
        images, options, start = data["images"], data["detector"], None
        if full:
            start = self.detector_cell(data, full=False)
        elif data.get("streets"):
            start = self.detector_cell({"images": data["streets"], "detector": options}, full=False)
        lasting = options["full_epochs" if full else "detector_epochs"]
        fit_options = {"epochs": lasting, "learning_rate": options["detector_rate"] / (3 if full else 1)}
        network = {name: value for name, value in options.items() if "epochs" not in name and "detector" not in name}
        config = {
            "version": _VERSION,
            "images": images,
            "network": network,
            "fit": {**fit_options, "batch_size": options["detector_batch"]},
            "full": full,
            "start": None if start is None else start.config,
        }
        label = f"{'whole detector with error bars' if full else 'detector'} ({images['set']})"
        return training_cell(KIND, config, needs=() if start is None else (start,), label=label)

    def features_cell(self, data: Mapping[str, Any]) -> Cell:
        """Features of proposals of all images, of the whole detector."""
        detector = self.detector_cell(data, full=True)
        config = {"version": _VERSION, "detector": detector.config}
        return training_cell(FEATURES, config, needs=(detector,), label=f"features ({data['images']['set']})")

    def train(self, kind: str, config: Mapping[str, Any], store: Store) -> dict[str, Any]:
        """Compute one of these cells."""
        return {KIND: self._fit, FEATURES: self._read}[kind](config, store)

    def features(self, data: Mapping[str, Any]) -> dict[str, Tensor]:
        """Features by split and name, computed now if they are missing."""
        return _features(self, json.dumps(data, sort_keys=True))

    def network(self, config: Mapping[str, Any]) -> FasterRCNN:
        """A detector with new weights."""
        images, options = config["images"], config["network"]
        weights = weights_of(options["backbone"], self.source.root) if options["pretrained"] else ""
        sides = sorted((images["height"], images["width"]))
        with seeded(0):
            return FasterRCNN(
                classes=len(self.source.splits(images).train.classes),
                backbone=options["backbone"],
                weights=weights,
                freeze="batchnorm" if weights else "",
                width=options["pyramid"],
                head=options["head"],
                proposals=options["proposals"],
                rois=options["rois"],
                min_size=sides[0],
                max_size=sides[1],
                anchors=[options["least_anchor"] * 2**level for level in range(5)],
            )

    def _fit(self, config: Mapping[str, Any], store: Store) -> dict[str, Any]:
        network, splits, started = self.network(config), self.source.splits(config["images"]), time.process_time()
        if config["start"] is not None:
            (network,) = load_networks(store, KIND, config["start"], lambda: network)
        name = "nll" if config["full"] else "smooth-l1"
        terms = ObjectiveConfig(name=name, task="detection", form="additive", lam=_LIKELIHOOD)
        options = FitConfig(**config["fit"], clip_norm=_LARGEST_GRADIENT, schedule="cosine", monitor="loss")
        done = fit(network.train(), objective(terms), splits.train, splits.validation, options, progress=False)
        save_networks(store, KIND, config, [network])
        history = [rounded(line) for line in done.history]
        seconds = round(time.process_time() - started, 3)
        return {"status": "done", "history": history, "best_epoch": done.best_epoch, "seconds": seconds}

    def _read(self, config: Mapping[str, Any], store: Store) -> dict[str, Any]:
        detector = config["detector"]
        (network,) = load_networks(store, KIND, detector, lambda: self.network(detector))
        splits = self.source.splits(detector["images"])
        with torch.no_grad(), seeded(0):
            tensors = {
                **_named("train", _positives(network, splits.train)),
                **_named("validation", _positives(network, splits.validation, best=True)),
                **_named("test", _candidates(network, splits.test)),
            }
        for split in ("train", "validation"):
            if not len(tensors[f"{split}.target"]):
                raise ValueError(
                    f"expected a detector that proposes objects of the {split} images, got none; train it longer "
                    "(`detector_epochs`) or with anchors of the size of its objects (`least_anchor`)"
                )
        save_tensors(store.artifact(FEATURES, config, _FILE), tensors)
        return {"status": "done", "rows": {name: len(value) for name, value in tensors.items() if "target" in name}}


@lru_cache(maxsize=2)
def _features(detectors: Detectors, data: str) -> dict[str, Tensor]:
    store, cell = Store(detectors.store), detectors.features_cell(json.loads(data))
    for needed in _in_order(cell):
        store.compute(needed, detectors.train)
    tensors = load_tensors(store.artifact(FEATURES, cell.config, _FILE))
    assert tensors is not None
    return tensors


def _in_order(cell: Cell) -> list[Cell]:
    """A cell behind all that it needs."""
    return [*(each for needed in cell.needs for each in _in_order(needed)), cell]


def _named(split: str, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{split}.{name}": value for name, value in columns.items()}


def _batches(images: Any) -> Any:
    for indices in torch.arange(len(images)).split(_READ_AT_ONCE):
        yield indices, images.__getitems__(indices.tolist())


def packed(features: Tensor, proposals: Tensor, labels: Tensor) -> Tensor:
    """Inputs of heads: features, the corners of the proposal and the class. Shape ``(n, features + 5)``."""
    return torch.cat([features, proposals, labels.unsqueeze(1).to(features)], 1)


def _positives(network: FasterRCNN, images: Any, *, best: bool = False) -> dict[str, Tensor]:
    """Sampled proposals of objects, or the best of each, which is close to what suppression keeps."""
    parts = []
    for indices, batch in _batches(images):
        # True boxes among the proposals would look better than any that the network proposes itself.
        samples = network.eval().proposal_samples(batch["input"], batch["target"], truths=False)
        rows = samples.best_of_objects() if best else torch.arange(len(samples))
        weight = (torch.ones(len(rows)) if best else samples.weight).unsqueeze(1).expand(-1, 4)
        inputs = packed(samples.features, samples.proposals, samples.labels)
        parts.append((inputs[rows], samples.target[rows], weight, indices[samples.image[rows]]))
    return dict(zip(("input", "target", "weight", "image"), map(torch.cat, zip(*parts, strict=True)), strict=True))


def _candidates(network: FasterRCNN, images: Any) -> dict[str, Tensor]:
    """Candidates of every class with a score, and the objects that they overlap with; NaN where there is none."""
    parts = []
    for indices, batch in _batches(images):
        found = network.eval().candidates(batch["input"])
        image = torch.arange(len(found.counts)).repeat_interleave(torch.tensor(found.counts))
        row, label = (found.label_probs[:, 1:] > _LEAST_SCORE).nonzero(as_tuple=True)
        label = label + 1
        objects = _objects_of(found.proposals[row], label, image[row], batch["target"])
        inputs = packed(found.features[row], found.proposals[row], label)
        probs = found.label_probs[row]
        parts.append((inputs, *objects, probs, indices[image[row]]))
    names = ("input", "target", "truth", "sigma", "label_probs", "image")
    return dict(zip(names, map(torch.cat, zip(*parts, strict=True)), strict=True))


def _objects_of(
    boxes: Tensor, labels: Tensor, image: Tensor, targets: Sequence[Mapping[str, Any]]
) -> tuple[Tensor, Tensor, Tensor]:
    """Labelled boxes, boxes without noise and its standard deviations, of the objects that boxes overlap with."""
    found = [torch.full_like(boxes, torch.nan) for _ in range(3)]
    for number, target in enumerate(targets):
        rows = (image == number).nonzero().squeeze(1)
        if not len(rows) or not len(target["boxes"]):
            continue
        overlap = pairwise_iou(boxes[rows], target["boxes"])
        overlap[(labels[rows, None] != target["labels"]) | target["ignored"]] = 0.0
        best, which = overlap.max(1)
        near = best >= _OVERLAP
        for column, name in zip(found, ("boxes", "true_boxes", "sigmas"), strict=True):
            if name in target:
                column[rows[near]] = target[name][which[near]].to(boxes)
    return found[0], found[1], found[2]
