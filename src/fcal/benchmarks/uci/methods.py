"""The rows of the tables: what each method makes of the shared trainings."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily, Normal

from fcal import losses, recalibration
from fcal._registry import Registry
from fcal.benchmarks.uci import fits
from fcal.benchmarks.uci.outoffold import OutOfFold, cv_plus, fitted, of_split, out_of_fold, with_sigmas
from fcal.benchmarks.uci.problems import Problem, same_length
from fcal.benchmarks.uci.rows import LEVELS, Answer
from fcal.benchmarks.uci.settings import NETWORKS, Settings
from fcal.benchmarks.uci.training import Loss, nll_each, nll_sum, predicted, train
from fcal.models.ensembles import StackedMLP
from fcal.training import ObjectiveConfig, objective

BOTH = ("1x50", "2x64")
LARGER = ("2x64",)
_HELD_OUT = 0
_DF = 50  # K of the losses: a batch has 256 rows, or all there are


@dataclass(frozen=True)
class Shared:
    """What every row of a table may use.

    Attributes:
        settings: Of the benchmark.
        dataset: Name of the table.
        network: Name of the network.
        task: The table's splits.
        networks: Of the shared trainings, by name.
        fit: Result of the cell of those: seconds and chosen epochs.
    """

    settings: Settings
    dataset: str
    network: str
    task: Problem
    networks: Mapping[str, StackedMLP]
    fit: Mapping[str, Any]

    @cached_property
    def known(self) -> OutOfFold:
        """Predictions of fold networks and of the network of all rows."""
        return out_of_fold(self.task, dict(self.networks))

    @property
    def fold_s(self) -> float:
        """Seconds of one fold network."""
        return float(self.fit["fold_s"]) / (self.task.splits * self.task.folds)

    @property
    def member_s(self) -> float:
        """Seconds of one network of all rows."""
        return float(self.fit["member_s"]) / (self.task.splits * self.settings.members)

    def tested(self, pred: Normal) -> list[Distribution]:
        """Predictions of the test rows in original units, one for each split."""
        return [self.task.original(of_split(pred, split), split) for split in range(self.task.splits)]

    def on_test(self, network: StackedMLP) -> Normal:
        """What a network of each split says of its test rows, standardised."""
        return predicted(network, self.task.x, self.task.test, torch.arange(self.task.splits))

    def held_out(self) -> Tensor:
        """Rows that methods with a held-out set hold out. Shape ``(splits, n_train / k)``."""
        return same_length([self.task.held_out(split, _HELD_OUT) for split in range(self.task.splits)])


@dataclass(frozen=True, kw_only=True)
class Method:
    """A row.

    Args:
        title: What people call it.
        answer: What it says of the test rows, from what all share.
        networks: Names of the networks in whose table it is.
        options: What its numbers depend on beside the settings.
    """

    title: str
    answer: Callable[[Shared, Mapping[str, Any]], Answer]
    networks: tuple[str, ...] = LARGER
    options: tuple[Mapping[str, Any], ...] = ()


METHODS: Registry[Method] = Registry("method")


def _plain(name: str, seconds: str) -> Callable[[Shared, Mapping[str, Any]], Answer]:
    def answer(shared: Shared, _: Mapping[str, Any]) -> Answer:
        return Answer(laws=shared.tested(shared.on_test(shared.networks[name])), seconds=getattr(shared, seconds))

    return answer


def _deterministic(shared: Shared, _: Mapping[str, Any]) -> Answer:
    """A network of the mean alone; its epoch is chosen by the error of held-out rows."""
    task, splits, start = shared.task, torch.arange(shared.task.splits), time.process_time()
    trace = fits.deterministic_trace(
        task,
        NETWORKS[shared.network],
        shared.settings.schedule(shared.dataset, shared.network),
        seed=shared.settings.seed,
    )
    held = shared.held_out()
    target = task.y.gather(1, held)
    errors = [
        (predicted(trace.at(place), task.x, held, splits).loc - target).square().mean(1)
        for place in range(len(trace.epochs))
    ]
    best = torch.stack(errors).argmin(0)
    laws = shared.tested(shared.on_test(trace.at(best)))
    return Answer(
        means=[law.mean for law in laws],
        seconds=(time.process_time() - start) / task.splits,
        details={"epochs": [trace.epochs[place] for place in best.tolist()]},
    )


def _tuned(shared: Shared, options: Mapping[str, Any]) -> Answer:
    """Train on from the network of the likelihood by another loss; candidate and epoch by held-out likelihood."""
    task, settings, start = shared.task, shared.settings, time.process_time()
    candidates = list(options["candidates"])[: settings.candidates]
    count, splits = len(candidates), torch.arange(task.splits)
    rows = same_length([task.seen(split, _HELD_OUT) for split in range(task.splits)])
    criteria = [each_network(ObjectiveConfig(**one)) for one in candidates]

    def loss(pred: Normal, target: Tensor) -> Tensor:
        parts = zip(criteria, pred.loc.chunk(count), pred.scale.chunk(count), target.chunk(count), strict=True)
        return torch.stack([one(Normal(mean, sigma, validate_args=False), y) for one, mean, sigma, y in parts]).sum()

    trace = train(
        shared.networks["nll"].select(splits.repeat(count)),
        task.x,
        task.y,
        rows.repeat(count, 1),
        splits.repeat(count),
        loss=loss,
        schedule=settings.tuning(rows.shape[1]),
        seed=1000 * settings.seed + 7,
    )
    held = shared.held_out().repeat(count, 1)
    target = task.y[splits.repeat(count)].gather(1, held)
    scores = torch.stack(
        [
            nll_each(predicted(trace.at(place), task.x, held, splits.repeat(count)), target)
            for place in range(len(trace.epochs))
        ]
    )
    by_place = scores.nan_to_num(torch.inf).reshape(len(trace.epochs), count, task.splits)
    if not bool(by_place.isfinite().any(0).any(0).all()):
        raise FloatingPointError("all candidates diverged")
    best = by_place.flatten(0, 1).argmin(0)
    place, which = best // count, best % count
    network = shared.networks["nll"].with_theta(trace.thetas[place, which * task.splits + splits])
    own = (time.process_time() - start) / (task.splits * count)
    return Answer(
        laws=shared.tested(shared.on_test(network)),
        seconds=shared.fold_s + own,
        details={
            "epochs": [trace.epochs[one] for one in place.tolist()],
            "candidates": [
                {"options": dict(one), "chosen": int((which == number).sum())} for number, one in enumerate(candidates)
            ],
        },
    )


def each_network(config: ObjectiveConfig) -> Loss:
    """An objective of the library, network by network: it is about a batch of one."""
    terms = objective(config)

    def loss(pred: Normal, target: Tensor) -> Tensor:
        total = pred.loc.new_zeros(())
        for mean, sigma, y in zip(pred.loc, pred.scale, target, strict=True):
            law = Normal(mean, sigma, validate_args=False)
            for term in terms(_Said(law), {"input": y, "target": y}).values():
                total = total + term
        return total

    return loss


class _Said(torch.nn.Module):
    """A model that has answered already."""

    def __init__(self, pred: Normal) -> None:
        super().__init__()
        self.pred = pred

    def forward(self, _: Any) -> Normal:
        """The answer."""
        return self.pred


def _repaired(shared: Shared, options: Mapping[str, Any]) -> Answer:
    """A recalibrator fitted to held-out rows, of the network whose epoch they chose."""
    task, network, start = shared.task, shared.networks["repaired"], time.process_time()
    held, tested = shared.held_out(), shared.tested(shared.on_test(shared.networks["repaired"]))
    said = predicted(network, task.x, held, torch.arange(task.splits))
    laws, numbers = [], []
    for split, pred in enumerate(tested):
        rows = task.held_out(split, _HELD_OUT)
        val = of_split(said, split)
        repair = recalibration.by_name(options["recalibrator"])()
        repair.fit(task.original(Normal(val.loc[: len(rows)], val.scale[: len(rows)]), split), task.raw[rows])
        laws.append(repair.transform(pred))
        numbers.append(repr(repair))
    own = (time.process_time() - start) / task.splits
    return Answer(laws=laws, seconds=shared.fold_s + own, details={"recalibrators": numbers})


def _ensemble(shared: Shared, _: Mapping[str, Any]) -> Answer:
    """A mixture of the laws of all members, equally weighted."""
    task, count = shared.task, shared.settings.members
    pred = predicted(
        shared.networks["members"], task.x, task.test.repeat(count, 1), torch.arange(task.splits).repeat(count)
    )
    laws: list[Distribution] = []
    for split in range(task.splits):
        unit, shift = task.unit[split], task.shift[split]
        mean = pred.loc[split :: task.splits].T.double() * unit + shift
        sigma = pred.scale[split :: task.splits].T.double() * unit
        weights = Categorical(logits=torch.zeros_like(mean))
        laws.append(MixtureSameFamily(weights, Normal(mean, sigma)))
    return Answer(laws=laws, seconds=shared.member_s * count)


def _oof_repaired(shared: Shared, options: Mapping[str, Any]) -> Answer:
    """The network of all rows, repaired by what fold networks say of rows they have not seen."""
    return _repaired_by_folds(shared, shared.known, options, {}, time.process_time())


def _repaired_by_folds(
    shared: Shared, known: OutOfFold, options: Mapping[str, Any], details: Mapping[str, Any], start: float
) -> Answer:
    task, laws, numbers = shared.task, [], []
    for split, pred in enumerate(shared.tested(known.test)):
        repair = fitted(task, known, split, recalibration.by_name(options["recalibrator"])(), level=options["level"])
        laws.append(repair.transform(pred))
        numbers.append(repr(repair))
    return Answer(
        laws=laws,
        seconds=_oof_seconds(shared) + (time.process_time() - start) / task.splits,
        details={"recalibrators": numbers, **details},
    )


def _oof_seconds(shared: Shared) -> float:
    return shared.fold_s * shared.task.folds + shared.member_s


def _oof_sigmas(shared: Shared, options: Mapping[str, Any]) -> Answer:
    """The same with error bars of a network that was fitted to out-of-fold residuals."""
    start = time.process_time()
    known, epochs = with_sigmas(
        shared.task,
        dict(shared.networks),
        shared.known,
        loss=_fcal(shared.settings.lam) if options["fcal"] else nll_sum,
        schedule=shared.settings.tuning(shared.task.train.shape[1]),
        seed=1000 * shared.settings.seed + 8,
    )
    return _repaired_by_folds(shared, known, options, {"epochs": epochs}, start)


def _fcal(lam: float) -> Loss:
    criterion = losses.FCalLoss("kl", _DF, detach_mean=True)

    def loss(pred: Normal, target: Tensor) -> Tensor:
        each = [
            criterion(Normal(mean, sigma, validate_args=False), y)
            for mean, sigma, y in zip(pred.loc, pred.scale, target, strict=True)
        ]
        return (1 - lam) * nll_sum(pred, target) + lam * torch.stack(each).sum()

    return loss


def _cv_plus(shared: Shared, _: Mapping[str, Any]) -> Answer:
    """Intervals alone."""
    task, intervals = shared.task, []
    folds = shared.networks["folds"]
    for split in range(task.splits):
        held_out = task.original(of_split(shared.known.held_out, split), split)
        errors = (task.raw[task.train[split]] - held_out.loc).abs()
        members = torch.arange(task.folds) * task.splits + split
        rows, where = task.test[split].expand(task.folds, -1), torch.full((task.folds,), split)
        means = task.original(predicted(folds.select(members), task.x, rows, where), split).loc
        residuals = [errors[task.fold[split] == fold] for fold in range(task.folds)]
        intervals.append({name: cv_plus(residuals, means, level) for name, level in LEVELS.items()})
    return Answer(intervals=intervals, seconds=shared.fold_s * task.folds)


def _add_tuned(name: str, title: str, *candidates: Mapping[str, Any]) -> None:
    METHODS.add(name, Method(title=title, answer=_tuned, options=tuple(candidates)))


def _add(
    name: str, title: str, answer: Callable[..., Answer], networks: tuple[str, ...] = LARGER, **options: Any
) -> None:
    METHODS.add(name, Method(title=title, answer=answer, networks=networks, options=(options,) if options else ()))


def options_of(method: Method) -> dict[str, Any]:
    """What a method's answer is called with."""
    if method.answer is _tuned:
        return {"candidates": [dict(one) for one in method.options]}
    return dict(method.options[0]) if method.options else {}


_add("deterministic", "deterministic", _deterministic)
_add("nll", "NLL, trained without the held-out rows", _plain("nll", "fold_s"), BOTH)
_add("nll_all", "NLL, trained on all rows", _plain("nll_all", "member_s"), BOTH)
_add_tuned(
    "calibration_loss",
    "calibration loss (of the variance, power 1)",
    *({"name": "calibration-loss", "lam": lam, "form": "additive", "on": "variance"} for lam in (0.1, 1.0, 10.0)),
)
_add_tuned("beta_nll", "beta-NLL", *({"name": "beta-nll", "beta": beta} for beta in (0.5, 0.25, 1.0)))
_add_tuned("mmd", "MMD", *({"name": "mmd", "lam": lam, "form": "additive"} for lam in (1.0, 10.0, 0.1)))
_add_tuned("pce_kde", "PCE-KDE", *({"name": "pce-kde", "lam": lam} for lam in (0.2, 0.05, 0.5)))
_add("temperature", "temperature", _repaired, BOTH, recalibrator="temperature")
_add("isotonic", "isotonic", _repaired, recalibrator="isotonic")
_add("gp_beta", "GP-Beta", _repaired, recalibrator="gp-beta")
_add("conformal", "conformal", _repaired, recalibrator="conformal")
_add_tuned(
    "fcal_kl", "f-Cal-KL", *({"name": "fcal", "lam": lam, "divergence": "kl", "df": _DF} for lam in (0.02, 0.1, 0.005))
)
_add_tuned(
    "fcal_wass",
    "f-Cal-Wass",
    *({"name": "fcal", "lam": lam, "divergence": "wasserstein", "df": _DF} for lam in (0.02, 0.1, 0.005)),
)
_add("ensemble", "ensemble of 5, a mixture", _ensemble, BOTH)
_add("oof_temperature", "out-of-fold: one factor", _oof_repaired, BOTH, recalibrator="temperature", level=True)
_add("oof_nll", "out-of-fold: sigma network", _oof_sigmas, BOTH, recalibrator="temperature", level=True, fcal=False)
_add(
    "oof_fcal",
    "out-of-fold: sigma network, f-Cal-KL",
    _oof_sigmas,
    BOTH,
    recalibrator="temperature",
    level=True,
    fcal=True,
)
_add("oof_conformal", "out-of-fold: conformal", _oof_repaired, recalibrator="conformal", level=True)
_add("cv_plus", "CV+ intervals", _cv_plus)
