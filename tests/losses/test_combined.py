"""The combined objective equals its parts, in both forms, fused or not."""

import pytest
import torch
from torch.distributions import Exponential, Independent, Laplace, MultivariateNormal, Normal

import fcal
from fcal import FCalLoss
from fcal.losses import CalibrationLoss, CombinedLoss


def predictions():
    torch.manual_seed(0)
    loc = torch.randn(60, 2, dtype=torch.float64, requires_grad=True)
    scale = (torch.rand(60, 2, dtype=torch.float64) + 0.5).requires_grad_()
    return {
        "normal": Normal(loc, scale),
        "independent normal": Independent(Normal(loc, scale), 1),
        "laplace": Laplace(loc, scale),
        "independent laplace": Independent(Laplace(loc, scale), 1),
        "multivariate": MultivariateNormal(loc, torch.diag_embed(scale.square())),
    }, (loc, scale)


@pytest.mark.parametrize("form", ["convex", "additive"])
@pytest.mark.parametrize("name", ["normal", "independent normal", "laplace", "independent laplace", "multivariate"])
def test_fused_loss_is_the_sum_of_its_terms(name, form):
    known, parameters = predictions()
    pred, y, lam = known[name], torch.randn(60, 2, dtype=torch.float64), 0.3
    criterion = FCalLoss("kl", df=20, on="both")
    combined = CombinedLoss(criterion, lam=lam, form=form)(pred, y)
    share = 1 - lam if form == "convex" else 1.0
    expected = share * fcal.nll(pred, y).mean() + lam * criterion(pred, y)
    torch.testing.assert_close(combined, expected)
    found = torch.autograd.grad(combined, parameters, retain_graph=True)
    for ours, theirs in zip(found, torch.autograd.grad(expected, parameters), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ["normal", "laplace", "independent normal"])
def test_detached_mean_learns_from_the_likelihood_alone(name):
    known, (loc, scale) = predictions()
    pred, y, lam = known[name], torch.randn(60, 2, dtype=torch.float64), 0.3
    loss = CombinedLoss(FCalLoss(df=20, detach_mean=True), lam=lam)(pred, y)
    by_loc, by_scale = torch.autograd.grad(loss, [loc, scale])
    likelihood = torch.autograd.grad((1 - lam) * fcal.nll(pred, y).mean(), [loc, scale], retain_graph=True)
    calibration = torch.autograd.grad(lam * FCalLoss(df=20)(pred, y), [scale])
    torch.testing.assert_close(by_loc, likelihood[0])
    torch.testing.assert_close(by_scale, likelihood[1] + calibration[0])


def test_any_task_loss_and_any_calibration_loss_combine():
    known, _ = predictions()
    y = torch.randn(60, 2, dtype=torch.float64)

    def squared_error(pred, target, *, valid_mask=None, weight=None):  # noqa: ARG001
        return (pred.mean - target).square().mean()

    combined = CombinedLoss(CalibrationLoss(), task=squared_error, lam=0.2, form="additive")(known["normal"], y)
    expected = squared_error(known["normal"], y) + 0.2 * CalibrationLoss()(known["normal"], y)
    torch.testing.assert_close(combined, expected)


def test_sampled_calibration_combines_too():
    known, _ = predictions()
    y = torch.randn(60, 2, dtype=torch.float64)
    sampled = [FCalLoss(df=20, estimator="sampled", generator=torch.Generator().manual_seed(0)) for _ in range(2)]
    combined = CombinedLoss(sampled[0], lam=0.5)(known["normal"], y)
    expected = 0.5 * fcal.nll(known["normal"], y).mean() + 0.5 * sampled[1](known["normal"], y)
    torch.testing.assert_close(combined, expected)


def test_weight_warms_up_over_training_steps_only_and_survives_a_checkpoint():
    known, _ = predictions()
    pred, y = known["normal"], torch.randn(60, 2, dtype=torch.float64)
    criterion = CombinedLoss(FCalLoss(df=20), lam=0.8, warmup_steps=4)
    seen = []
    for _ in range(6):
        seen.append(float(criterion.current_lam()))
        criterion(pred, y)
        criterion.eval()
        criterion(pred, y)
        criterion.train()
        with torch.no_grad():
            criterion(pred, y)
    assert seen == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 0.8])
    restored = CombinedLoss(FCalLoss(df=20), lam=0.8, warmup_steps=4)
    restored.load_state_dict(criterion.state_dict())
    assert float(restored.current_lam()) == pytest.approx(0.8)


def test_first_step_of_a_warm_up_is_the_task_loss():
    known, _ = predictions()
    y = torch.randn(60, 2, dtype=torch.float64)
    loss = CombinedLoss(FCalLoss(df=20), lam=0.8, warmup_steps=4)(known["normal"], y)
    torch.testing.assert_close(loss, fcal.nll(known["normal"], y).mean())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"lam": 1.5}, ValueError, r"expected `lam` within \[0, 1\], got 1.5"),
        ({"lam": float("nan")}, ValueError, "expected `lam` within"),
        ({"lam": "0.5"}, TypeError, "expected `lam` a number, got str '0.5'"),
        ({"lam": -1.0, "form": "additive"}, ValueError, r"expected `lam` within \[0, 1e\+100\], got -1.0"),
        ({"form": "concave"}, ValueError, "expected `form` one of 'convex', 'additive', got 'concave'"),
        ({"warmup_steps": -1}, ValueError, "expected `warmup_steps` >= 0, got -1"),
    ],
)
def test_bad_options_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        CombinedLoss(**options)


def test_bad_batch_is_refused_before_anything_else():
    with pytest.raises(TypeError, match="expected `pred` a torch"):
        CombinedLoss()(torch.zeros(3), torch.zeros(3))
    with pytest.raises(ValueError, match="family with a location"):
        CombinedLoss(FCalLoss(detach_mean=True))(Exponential(torch.ones(3)), torch.ones(3))


@pytest.mark.parametrize("term", ["nll", 5, FCalLoss])
def test_terms_must_be_callable_losses(term):
    for name in ("task", "calibration"):
        with pytest.raises(TypeError, match=f"expected `{name}` a loss to call, got"):
            CombinedLoss(**{name: term})


def test_term_that_is_not_a_scalar_is_refused():
    with pytest.raises(ValueError, match=r"expected `task` to return a scalar tensor, got shape \(3,\)"):
        CombinedLoss(task=fcal.nll)(Normal(torch.zeros(3), torch.ones(3)), torch.zeros(3))
