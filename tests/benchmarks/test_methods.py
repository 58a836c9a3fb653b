"""Methods: what they predict from the steps of a problem, and what their addresses have of them."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.distributions import Normal

from fcal.benchmarks.method_kinds import CVPlus, Ensemble, Repaired, Trained
from fcal.benchmarks.methods import METHODS, method_of, row_styles
from fcal.benchmarks.problem import Folds, HeldOut, Members, Networks, Problem


def normals(count, sigma, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(count, generator=generator, dtype=torch.float64)
    return Normal(mean, torch.full_like(mean, sigma)), mean + torch.randn(mean.shape, generator=generator).double()


class Two(Problem):
    """Two parts, whose networks are over- and under-confident, and an ensemble of two."""

    def config(self, method):
        return {"method": method.title}

    def score(self, method, prediction):
        raise AssertionError((method, prediction))

    def held_out(self):
        parts = []
        for seed, sigma in ((0, 0.5), (1, 2.0)):
            pred, target = normals(4000, sigma, seed)
            parts.append(HeldOut(pred=pred, target=target, test=Normal(torch.zeros(1).double(), sigma)))
        return Networks(parts=parts, seconds=3.0)

    def cross_fitted(self, scales, batch):
        assert (scales, batch) == (None, 0)
        pred, target = normals(99, 0.5)
        fold = torch.arange(99) % 3
        test = [Normal(torch.tensor([float(n)]).double(), 0.5) for n in range(3)]
        folds = Folds(pred=pred, target=target, fold=fold, on_test=lambda: test)
        return Networks(
            parts=[HeldOut(pred=pred, target=target, test=test[0], folds=folds)],
            seconds=1.0,
        )

    def members(self, count):
        return Members(parts=[[Normal(torch.tensor([float(n)]), 1.0) for n in range(count)]], seconds=5.0)


def test_repair_is_fitted_to_each_part_of_its_own():
    """Targets have unit noise: one factor brings sigma of either part to about 1 (sd 0.011, four of them)."""
    prediction = METHODS["temperature"].predict(Two())
    assert [float(dist.stddev) for dist in prediction.dists] == pytest.approx([1.0, 1.0], abs=0.045)
    assert prediction.seconds >= 3.0
    assert len(prediction.details["recalibrators"]) == 2


def test_repair_reduced_to_moments_is_normal():
    prediction = Repaired(title="", recalibrator="isotonic", moments=True).predict(Two())
    assert all(isinstance(dist, Normal) for dist in prediction.dists)


def test_ensemble_has_the_moments_of_the_mixture():
    prediction = Ensemble(title="", members=2).predict(Two())
    (dist,) = prediction.dists
    assert float(dist.mean) == pytest.approx(0.5)
    assert float(dist.variance) == pytest.approx(1.0 + 0.25)
    ((_, sd),) = prediction.again()
    assert float(sd) == pytest.approx(np.sqrt(1.25))


@pytest.mark.parametrize("scaled", [True, False])
def test_cv_plus_is_an_order_statistic_over_all_held_out_rows(scaled):
    """By brute force: the ceil(0.9 * 100)-th of 99 upper ends, in units of sigma or not, which is the same here."""
    problem = Two()
    (part,) = problem.cross_fitted(None, 0).parts
    residual = (part.target - part.pred.mean).abs().numpy()
    upper = np.sort(part.folds.fold.numpy() + residual)[int(np.ceil(0.9 * 100)) - 1]
    lower = np.sort(part.folds.fold.numpy() - residual)[99 - int(np.ceil(0.9 * 100))]
    ((low, high),) = (ends[0.9] for ends in CVPlus(title="", scaled=scaled).predict(problem).intervals)
    assert (float(low), float(high)) == pytest.approx((lower, upper))


def test_problem_can_do_what_its_class_overrides():
    assert [step for step in ("truth", "trained", "held_out", "cross_fitted", "members") if Two.can(step)] == [
        "held_out",
        "cross_fitted",
        "members",
    ]


def test_address_of_a_method_has_its_options_and_not_its_title():
    method = METHODS["fcal_kl"]
    assert dataclasses.replace(method, title="another").config() == method.config()
    assert dataclasses.replace(method, candidates=method.candidates[:1]).config() != method.config()


def test_every_trained_method_has_as_many_candidates():
    counts = {len(METHODS[name].candidates) for name in METHODS.names() if isinstance(METHODS[name], Trained)}
    assert counts == {3}


def test_row_of_all_rows_is_the_same_method_on_more_rows():
    method = method_of("mmd_all", {"mmd": {"plain": "crps"}})
    assert (method.all_rows, method.plain, method.candidates) == (True, "crps", METHODS["mmd"].candidates)
    styles = row_styles(["mmd", "mmd_all", "oracle"])
    assert styles["mmd_all"].full_title == "MMD, all data"
    assert [style.reference for style in styles.values()] == [False, False, True]


def test_unknown_method_lists_the_known():
    with pytest.raises(ValueError, match="expected `method` one of .*'nll'.*, got 'nlll' \\(did you mean 'nll'"):
        method_of("nlll")


def test_methods_of_the_same_name_from_different_modules_have_addresses_of_their_own():
    other = dataclasses.make_dataclass("Repaired", [], bases=(Repaired,), frozen=True, kw_only=True)
    assert other(title="", recalibrator="isotonic").config() != Repaired(title="", recalibrator="isotonic").config()


def test_cv_plus_without_folds_says_what_is_missing():
    class Plain(Two):
        def cross_fitted(self, scales, batch):
            networks = super().cross_fitted(scales, batch)
            return dataclasses.replace(networks, parts=[dataclasses.replace(networks.parts[0], folds=None)])

    with pytest.raises(ValueError, match="expected `cross_fitted` with the predictions of every fold"):
        METHODS["cv_plus"].predict(Plain())
