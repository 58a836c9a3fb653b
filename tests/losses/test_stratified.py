"""A loss stratum by stratum: against its definition by a loop, gradients, two ranks, and refusals."""

import pytest
import torch
from torch.distributions import Independent, MultivariateNormal, Normal
from two_ranks import run_on_two_ranks

import fcal
from fcal.losses import CombinedLoss, FCalLoss, NLLLoss, StratifiedLoss, SubsampledLoss


def batch(rows=60, seed=0):
    generator = torch.Generator().manual_seed(seed)
    loc, target = torch.randn(2, rows, dtype=torch.float64, generator=generator)
    scale = torch.rand(rows, dtype=torch.float64, generator=generator) + 0.3
    return loc, scale, target


def by_definition(loss, pred, target, number, strata):
    """Each stratum alone, weighted by its share."""
    total = 0.0
    for stratum in range(strata):
        rows = number == stratum
        total += rows.double().mean() * loss(Normal(pred.loc[rows], pred.scale[rows]), target[rows])
    return total


@pytest.mark.parametrize("loss", [FCalLoss("wasserstein", df=3), FCalLoss("kl", df=5, on="both"), NLLLoss()])
def test_by_sigma_is_the_mean_over_quantile_bins(loss):
    loc, scale, target = batch()
    pred = Normal(loc, scale)
    number = (torch.bucketize(scale, scale.sort().values[[15, 30, 45]], right=True)).long()
    found = StratifiedLoss(loss, 4)(pred, target)
    torch.testing.assert_close(found, by_definition(loss, pred, target, number, 4))


def test_by_group_is_the_mean_over_groups():
    loc, scale, target = batch()
    group = torch.arange(60) % 3
    loss = FCalLoss("kl", df=4)
    found = StratifiedLoss(loss, 3, by="group")(Normal(loc, scale), target, group=group)
    torch.testing.assert_close(found, by_definition(loss, Normal(loc, scale), target, group, 3))


def test_one_stratum_is_the_loss_itself():
    loc, scale, target = batch()
    loss = FCalLoss("wasserstein", df=7)
    torch.testing.assert_close(StratifiedLoss(loss, 1)(Normal(loc, scale), target), loss(Normal(loc, scale), target))


def test_stratified_loss_detects_errors_that_cancel_over_the_batch():
    """Small error bars too small and large ones too large, such that the mean of z^2 is 1."""
    z = torch.randn(4000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    wrong = torch.cat([torch.full((2000,), 1.5**0.5), torch.full((2000,), 0.5**0.5)]).double()
    scale = torch.cat([torch.full((2000,), 0.1), torch.full((2000,), 3.0)]).double()
    pred, target = Normal(torch.zeros(4000, dtype=torch.float64), scale), scale * wrong * z
    whole = FCalLoss("wasserstein", df=20)
    assert whole(pred, target) < 0.5
    assert StratifiedLoss(whole, 2)(pred, target) > 2


def test_missing_targets_and_masks_count_in_no_stratum():
    loc, scale, target = batch(30)
    holed = target.clone()
    holed[::3] = torch.nan
    mask = torch.arange(30) % 5 != 1
    keep = mask & holed.isfinite()
    loss = StratifiedLoss(FCalLoss("kl", df=2), 3)
    found = loss(Normal(loc, scale), holed, valid_mask=mask)
    torch.testing.assert_close(found, loss(Normal(loc[keep], scale[keep]), target[keep]))


def test_a_stratum_of_one_target_is_left_out():
    loc, scale, target = batch(21)
    group = torch.tensor([0] * 10 + [1] * 10 + [2])
    loss = StratifiedLoss(FCalLoss("kl", df=2), 3, by="group")
    found = loss(Normal(loc, scale), target, group=group)
    torch.testing.assert_close(found, loss(Normal(loc[:20], scale[:20]), target[:20], group=group[:20]))


def test_gradients():
    loc, scale, target = batch(16)
    loss = StratifiedLoss(FCalLoss("wasserstein", df=3), 2)
    inputs = (loc.requires_grad_(), scale.requires_grad_())
    assert torch.autograd.gradcheck(lambda m, s: loss(Normal(m, s), target), inputs)


@pytest.mark.parametrize("kind", ["independent", "multivariate"])
def test_vectors(kind):
    loc, scale, target = (value.reshape(30, 2) for value in batch())
    pred = Independent(Normal(loc, scale), 1) if kind == "independent" else MultivariateNormal(loc, scale.diag_embed())
    found = StratifiedLoss(FCalLoss("kl", df=2), 3)(pred, target)
    assert found.isfinite()
    if kind == "multivariate":
        parts = scale.mean(1).argsort().tensor_split(3)  # by mean variance
        loss = FCalLoss("kl", df=2)
        each = [loss(MultivariateNormal(loc[p], scale[p].diag_embed()), target[p]) for p in parts]
        torch.testing.assert_close(found, sum(each) / 3)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: StratifiedLoss(torch.nn.MSELoss()), TypeError, "expected `loss` a loss of batches, got MSELoss"),
        (lambda: StratifiedLoss(FCalLoss(), 0), ValueError, "expected `strata`"),
        (lambda: StratifiedLoss(FCalLoss(), by="sigm"), ValueError, "expected `by` one of 'sigma', 'group'"),
    ],
)
def test_refuses_options(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("by", "group", "error", "message"),
    [
        ("group", None, TypeError, "expected `group` a tensor of integers for strata by group, got NoneType"),
        ("group", torch.zeros(60), TypeError, "expected `group` a tensor of integers"),
        ("group", torch.zeros(59, dtype=torch.int64), ValueError, r"expected `group` of shape \(60,\)"),
        ("group", torch.full((60,), 4), ValueError, "expected `group` within 0 to 3, got 4 to 4"),
        ("sigma", torch.zeros(60, dtype=torch.int64), ValueError, "expected no `group` for strata by sigma"),
    ],
)
def test_refuses_groups(by, group, error, message):
    loc, scale, target = batch()
    with pytest.raises(error, match=message):
        StratifiedLoss(FCalLoss(), 4, by=by)(Normal(loc, scale), target, group=group)


def test_batch_without_targets_is_refused_like_by_the_loss():
    with pytest.raises(
        ValueError, match="expected `target` with at least 2 values that count in a stratum, got 0 for 4 strata"
    ):
        StratifiedLoss(FCalLoss())(Normal(torch.zeros(0), torch.ones(0)), torch.zeros(0))


def test_in_an_objective():
    """By sigma and by a group of the batch; without the group, one clear line."""
    objective = fcal.training.objective(
        fcal.training.ObjectiveConfig(name="fcal", lam=1.0, df=4, strata=3, by="group", divergence="kl")
    )
    loc, scale, target = batch()
    group = torch.arange(60) % 3
    given = {"input": loc, "target": target, "group": group}
    model = lambda x: Normal(x, scale)  # noqa: E731
    expected = StratifiedLoss(FCalLoss("kl", df=4), 3, by="group")(Normal(loc, scale), target, group=group)
    torch.testing.assert_close(objective(model, given)["fcal"], expected)
    with pytest.raises(ValueError, match="expected batches with a 'group' for strata by group, got none"):
        objective(model, {"input": loc, "target": target})


def check_groups_of_all_ranks(rank):
    loc, scale, target = batch()
    group = torch.arange(60) % 2
    expected = StratifiedLoss(FCalLoss("kl", df=4, sync=False), 2, by="group")(Normal(loc, scale), target, group=group)
    mine = slice(0, 25) if rank == 0 else slice(25, 60)
    loss = StratifiedLoss(FCalLoss("kl", df=4), 2, by="group")
    found = loss(Normal(loc[mine], scale[mine]), target[mine], group=group[mine])
    torch.testing.assert_close(found, expected)


def test_groups_of_two_ranks_are_those_of_the_whole_batch():
    run_on_two_ranks(check_groups_of_all_ranks)


def test_more_strata_than_targets_are_refused():
    loc, scale, target = batch(64)
    with pytest.raises(ValueError, match="in a stratum, got 64 for 1000 strata"):
        StratifiedLoss(FCalLoss(), 1000)(Normal(loc, scale), target)


def test_targets_of_laws_without_a_standard_deviation_all_count():
    loc, scale, target = batch(64)
    pred, mask = torch.distributions.StudentT(1.5, loc, scale), torch.arange(64) % 2 == 1
    loss = FCalLoss("wasserstein", df=2)
    torch.testing.assert_close(
        StratifiedLoss(loss, 1)(pred, target, valid_mask=mask), loss(pred, target, valid_mask=mask)
    )


def bad_batches():
    """What one rank may be given by mistake: a loss, arguments of it, and the error there."""
    loc, scale, target = batch(40)
    pred, wrong = Normal(loc, scale), Normal(loc, -scale, validate_args=False)
    group = torch.arange(40) % 2
    by_sigma = StratifiedLoss(FCalLoss("kl", df=4), 2)
    by_group = StratifiedLoss(FCalLoss("kl", df=4), 2, by="group")
    drawn = SubsampledLoss(by_sigma, 30)
    combined = CombinedLoss(by_sigma, task=by_sigma)
    for loss in (by_sigma, drawn, combined):
        yield loss, (wrong, target), {}, "expected `pred.scale` > 0"
        yield loss, (pred, target[:5]), {}, "expected `target` of shape"
        yield loss, (pred, None), {}, "expected `target` a torch.Tensor"
        yield loss, (pred, target), {"valid_mask": torch.ones(40)}, "expected `valid_mask` of dtype torch.bool"
        yield loss, (pred, target), {"weight": -torch.ones(40)}, "expected `weight`"
    yield by_sigma, (pred, target), {"group": group}, "expected no `group`"
    yield by_group, (pred, target), {"group": group + 1}, "expected `group` within 0 to 1"
    yield by_group, (pred, target), {"group": None}, "expected `group` a tensor"
    yield StratifiedLoss(FCalLoss("kl", df=4), 2, by="region"), (pred, target), {}, "expected `target` of images"


def check_refused_on_one_rank(rank):
    loc, scale, target = batch(40)
    for loss, arguments, options, message in bad_batches():
        right = {"group": torch.arange(40) % 2} if getattr(loss, "by", "") == "group" else {}
        shape = (5, 8) if getattr(loss, "by", "") == "region" else (40,)
        pred = Normal(loc.reshape(shape), scale.reshape(shape))
        if rank == 0:
            with pytest.raises(RuntimeError, match="got an error on 1 other rank"):
                loss(pred, target.reshape(shape), **right)
        else:
            with pytest.raises((ValueError, TypeError), match=message):
                loss(*arguments, **options)
        assert loss(pred, target.reshape(shape), **right).isfinite()  # the ranks are still in step


@pytest.mark.timeout(50)  # below the time-out of the process group
def test_batch_refused_on_one_rank_is_an_error_on_all():
    run_on_two_ranks(check_refused_on_one_rank)


def check_own_batches(rank):
    loc, scale, target = batch(40)
    if rank == 0:  # the other rank takes no part: nothing may wait for it
        alone = StratifiedLoss(FCalLoss("kl", df=4, sync=False), 2)
        alone(Normal(loc, scale), target)
        SubsampledLoss(alone, 30)(Normal(loc, scale), target)


def test_strata_of_a_rank_alone_wait_for_nobody():
    run_on_two_ranks(check_own_batches)
