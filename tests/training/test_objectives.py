"""Objectives: their terms, compared with the definitions of the losses."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import LogNormal, Normal
from torch.utils.data import TensorDataset
from training.toys import Net, net, wave

import fcal
from fcal.training import FitConfig, ObjectiveConfig, fit, objective, objectives
from fcal.training.objectives import _FACTORIES


class Fixed(nn.Module):
    """A network that returns its input as a distribution."""

    def forward(self, x: torch.Tensor) -> Normal:
        return Normal(x[..., 0], x[..., 1])


def batch(rows: int = 200) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    mean, spread, noise = torch.randn(3, rows, generator=generator, dtype=torch.float64)
    return {"input": torch.stack([mean, spread.exp()], -1), "target": mean + 1.5 * noise}


def terms(given: dict[str, torch.Tensor], **options) -> dict[str, float]:
    return {name: term.item() for name, term in objective(ObjectiveConfig(**options))(Fixed(), given).items()}


def test_terms_of_fcal_are_the_weighted_likelihood_and_divergence():
    given = batch()
    loc, scale, y = given["input"][:, 0], given["input"][:, 1], given["target"]
    z_sq = ((y - loc) / scale).square()
    nll = (0.5 * z_sq + scale.log() + 0.5 * math.log(2 * math.pi)).mean().item()
    df = 30
    n = len(y)
    variance = z_sq.var(unbiased=False) * n / (n - 1)
    wasserstein = df / 2 * (z_sq.mean() - 1) ** 2 + (variance.sqrt() / math.sqrt(2) - 1) ** 2
    found = terms(given, name="fcal", df=df, lam=0.3)
    assert found["nll"] == pytest.approx(0.7 * nll)
    assert found["fcal"] == pytest.approx(0.3 * wasserstein.item(), rel=0.02)  # up to the correction for n
    assert found["fcal"] == pytest.approx(0.3 * fcal.FCalLoss(df=df)(Fixed()(given["input"]), y).item())


def depth_batch(rows: int = 200) -> dict[str, torch.Tensor]:
    """Positive means and targets."""
    given = batch(rows)
    given["input"][:, 0].exp_()
    return given | {"target": (given["target"] / 2).exp()}


def silog(mean, y, variance_focus=0.85):
    gap = np.log(mean.numpy()) - np.log(y.numpy())
    return 10 * np.sqrt(np.mean(gap**2) - variance_focus * np.mean(gap) ** 2)


CALIBRATION_TERMS = {
    "nll": (lambda pred, y: -pred.log_prob(y).mean(), "nll", {}),
    "crps": (lambda pred, y: fcal.crps(pred, y).mean(), "crps", {}),
    "calibration-loss": (
        lambda pred, y: (pred.variance - (y - pred.mean).square()).abs().mean(),
        "calibration",
        {"on": "variance", "p": 1},
    ),
    "fcal": (lambda pred, y: fcal.FCalLoss("kl", 20)(pred, y), "fcal", {"divergence": "kl", "df": 20}),
}


@pytest.mark.parametrize(("form", "of_task"), [("convex", 0.75), ("additive", 1.0)])
@pytest.mark.parametrize("name", CALIBRATION_TERMS)
def test_task_loss_stands_beside_a_calibration_loss(name, form, of_task):
    given = depth_batch()
    pred, y = Fixed()(given["input"]), given["target"]
    by_hand, term, options = CALIBRATION_TERMS[name]
    found = terms(given, name=name, task="silog", lam=0.25, form=form, **options)
    assert found == {
        "silog": pytest.approx(of_task * silog(pred.mean, y)),
        term: pytest.approx(0.25 * by_hand(pred, y).item()),
    }


@pytest.mark.parametrize(
    ("task", "by_hand"),
    [
        ("smooth-l1", lambda pred, y: nn.functional.smooth_l1_loss(pred.mean, y).item()),
        ("mse", lambda pred, y: (pred.mean - y).square().mean().item()),
    ],
)
def test_task_loss_may_be_another_one_of_the_mean(task, by_hand):
    given = depth_batch()
    found = terms(given, name="fcal", task=task, lam=0.5)
    assert found[task] == pytest.approx(0.5 * by_hand(Fixed()(given["input"]), given["target"]))


@pytest.mark.parametrize("name", ["silog", "mse"])
@pytest.mark.parametrize("task", ["nll", "silog"])
def test_objective_of_the_mean_stands_alone_whatever_the_task(name, task):
    assert set(terms(depth_batch(), name=name, task=task)) == {name}


def test_calibration_loss_of_drawn_targets_is_repeatable_and_leaves_the_task_loss_as_it_is():
    given = depth_batch()
    torch.manual_seed(1)
    first = terms(given, name="fcal", task="silog", pixels=50, df=20)
    torch.manual_seed(1)
    assert terms(given, name="fcal", task="silog", pixels=50, df=20) == first
    whole = terms(given, name="fcal", task="silog", df=20)
    assert first["silog"] == whole["silog"]
    assert first["fcal"] != whole["fcal"]
    assert terms(given, name="fcal", task="silog", pixels=200, df=20) == pytest.approx(whole)


def test_drawn_targets_keep_their_groups():
    given = depth_batch() | {"group": torch.arange(200) % 2}
    options = {"name": "fcal", "strata": 2, "by": "group", "df": 5, "lam": 1.0}
    assert terms(given, pixels=200, **options) == terms(given, **options)


def test_strata_may_be_regions_of_images():
    given = depth_batch(192)
    pred, y = Fixed()(given["input"].reshape(4, 6, 8, 2)), given["target"].reshape(4, 6, 8)
    loss, expected = fcal.FCalLoss(df=5), 0.0
    for rows in (slice(0, 3), slice(3, 6)):
        for columns in (slice(0, 4), slice(4, 8)):
            tile = (slice(None), rows, columns)
            expected += 0.25 * loss(Normal(pred.loc[tile], pred.scale[tile]), y[tile]).item()
    images = {"input": given["input"].reshape(4, 6, 8, 2), "target": y}
    found = terms(images, name="fcal", strata=4, by="region", df=5, lam=1.0)
    assert found["fcal"] == pytest.approx(expected)


def test_options_for_addresses_leave_out_newer_ones_without_effect():
    plain = objectives.options_of(ObjectiveConfig(name="fcal"))
    older = {"name", "lam", "form", "warmup_steps", "divergence", "df", "on", "strata", "by", "detach_mean", "beta"}
    assert set(plain) == older | {"p", "draws"}
    changed = objectives.options_of(ObjectiveConfig(name="fcal", task="silog", pixels=9))
    assert {name: changed[name] for name in set(changed) - set(plain)} == {"task": "silog", "pixels": 9}
    assert ObjectiveConfig(**changed) == ObjectiveConfig(name="fcal", task="silog", pixels=9)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("nll", {}, lambda pred, y: -pred.log_prob(y).mean()),
        ("beta-nll", {"beta": 1.0}, lambda pred, y: -(pred.variance * pred.log_prob(y)).mean()),
        ("smooth-l1", {}, lambda pred, y: nn.functional.smooth_l1_loss(pred.mean, y)),
        ("mse", {}, lambda pred, y: (pred.mean - y).square().mean()),
        ("crps", {}, lambda pred, y: fcal.crps(pred, y).mean()),
    ],
)
def test_objective_of_one_term(name, options, expected):
    given = batch()
    found = terms(given, name=name, **options)
    assert found == {name: pytest.approx(expected(Fixed()(given["input"]), given["target"]).item())}


@pytest.mark.parametrize(("form", "of_nll"), [("convex", 0.75), ("additive", 1.0)])
def test_calibration_loss_is_mixed_with_the_likelihood_in_both_forms(form, of_nll):
    given = batch()
    pred, y = Fixed()(given["input"]), given["target"]
    gap = (pred.stddev - (y - pred.mean).abs()).square().mean().item()
    found = terms(given, name="calibration-loss", on="std", p=2, lam=0.25, form=form)
    assert found["calibration"] == pytest.approx(0.25 * gap)
    assert found["nll"] == pytest.approx(of_nll * -pred.log_prob(y).mean().item())


@pytest.mark.parametrize(("lam", "expected"), [(0.0, {"nll"}), (0.5, {"nll", "mmd"}), (1.0, {"mmd"})])
def test_term_without_weight_is_not_computed(lam, expected):
    assert set(terms(batch(), name="mmd", lam=lam)) == expected


class Positive(nn.Module):
    """The toy network, on a logarithmic scale."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: torch.Tensor) -> LogNormal:
        pred = self.net(x)
        return LogNormal(pred.loc, pred.scale)


def positive_wave(rows: int, seed: int = 0) -> TensorDataset:
    x, y = wave(rows, seed=seed).tensors
    return TensorDataset(x, y.exp())


def test_every_objective_trains():
    for name in objectives.names():
        model, data = (Positive(), positive_wave) if name == "silog" else (net(), wave)
        config = FitConfig(epochs=2, batch_size=32)
        result = fit(model, objective(ObjectiveConfig(name=name)), data(64), data(32, seed=1), config, progress=False)
        line = result.history[-1]
        own = [value for key, value in line.items() if key.startswith("train/") and key != "train/loss"]
        assert line["train/loss"] == pytest.approx(sum(own)), name
        assert math.isfinite(line["validation/loss"]), name


def test_warm_up_counts_training_steps_alone():
    of = objective(ObjectiveConfig(name="fcal", lam=0.4, warmup_steps=4))
    given = batch()
    given["input"].requires_grad_()
    shares = []
    for _ in range(6):
        shares.append(of.current_lam())
        of(Fixed(), given)
        of.eval()
        of(Fixed(), given)  # a validation batch in between
        with torch.no_grad():
            of.train()(Fixed(), given)
    assert shares == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.4])


@pytest.mark.parametrize("name", ["nll", "smooth-l1", "mse", "fcal"])
def test_masked_weighted_and_missing_targets_do_not_count(name):
    given = batch()
    mask = torch.arange(200) % 3 > 0
    weight = 1.0 + torch.arange(200) % 2
    y = given["target"].clone()
    y[::3] = 1e6  # masked out
    y[1] = torch.nan
    counts = mask.clone()
    counts[1] = False
    some = {"input": given["input"][counts], "target": given["target"][counts], "weight": weight[counts]}
    found = terms({**given, "target": y, "valid_mask": mask, "weight": weight}, name=name)
    assert found == pytest.approx(terms(some, name=name))


def test_objective_without_any_target_is_refused():
    given = batch(4)
    with pytest.raises(ValueError, match="at least 1 value that counts, got 0"):
        terms({**given, "target": torch.full((4,), torch.nan)}, name="mse")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "fcaal"}, "`objective` one of 'nll', 'fcal', .* got 'fcaal' .did you mean 'fcal'"),
        ({"name": "fcal", "lam": 2.0}, r"`lam` within \[0, 1\], got 2"),
        ({"name": "fcal", "divergence": "wasser"}, "`divergence` one of"),
        ({"name": "fcal", "on": "variance"}, "`on` one of 'q', 'z', 'both', got 'variance'"),
        ({"name": "calibration-loss", "on": "q"}, "`on` one of 'variance', 'std', got 'q'"),
        ({"form": "concave"}, "`form` one of 'convex', 'additive'"),
        ({"name": "beta-nll", "beta": 2.0}, "`beta` within"),
        (
            {"task": "silogg"},
            "`task` one of 'nll', 'silog', 'smooth-l1', 'mse', 'detection', got 'silogg' .did you mean 'silog'",
        ),
        ({"pixels": -1}, "`pixels` >= 0, got -1"),
        ({"name": "fcal", "strata": 4, "by": "regoin"}, "`by` one of 'sigma', 'group', 'region'"),
    ],
)
def test_objective_config_refuses(options, message):
    with pytest.raises(ValueError, match=f"expected {message}"):
        ObjectiveConfig(**options)


def test_network_without_distribution_cannot_have_a_likelihood():
    with pytest.raises(TypeError, match="expected `pred` a torch.distributions.Distribution, got Tensor"):
        fit(nn.Linear(1, 1), None, wave(8), None)


def test_registered_objective_is_found_by_name(monkeypatch):
    monkeypatch.setattr(_FACTORIES, "_entries", dict(_FACTORIES._entries))
    objectives.register("zero", lambda _: lambda model, given: {"zero": 0.0 * model(given["input"]).mean.sum()})
    assert terms(batch(), name="zero") == {"zero": 0.0}


def loss_of_torch(input, target):  # noqa: A002 - as torch calls it
    return (input.mean - target).square().mean()


TERM = r"a loss of prediction and target; pass fcal.training.objectives.TermOf\('FCalLoss', loss\)$"
FUNCTION = r"a loss of prediction and target; pass lambda model, batch: {'.*': loss\(.*\).mean\(\)}$"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (ObjectiveConfig(name="fcal"), r"an ObjectiveConfig; pass objective\(config\)$"),
        ("fcal", r"'fcal'; pass objective\(ObjectiveConfig\(name='fcal'\)\)$"),
        (fcal.FCalLoss(), f"FCalLoss, {TERM}"),
        (fcal.FCalLoss, f"FCalLoss, {TERM}"),
        (fcal.nll, f"nll, {FUNCTION}"),
        (nn.MSELoss(), f"MSELoss, {FUNCTION}"),
        (loss_of_torch, f"loss_of_torch, {FUNCTION}"),
        (wave(8), "<torch.utils.data.dataset.TensorDataset object"),
        (Net, "<class 'training.toys.Net'>"),
    ],
)
def test_what_is_not_an_objective_is_refused_with_a_remedy(given, message):
    with pytest.raises(TypeError, match=f"^expected `objective` to call with model and batch, got {message}"):
        fit(net(), given, wave(8), None, FitConfig(epochs=1))


@pytest.mark.parametrize("loss", [fcal.FCalLoss(df=4), fcal.nll, loss_of_torch])
def test_loss_wrapped_as_its_error_suggests_is_an_objective(loss):
    with pytest.raises(TypeError, match="; pass ") as caught:
        fit(net(), loss, wave(8), None, FitConfig(epochs=1))
    wrapped = eval(str(caught.value).partition("; pass ")[2], {"fcal": fcal, "loss": loss})
    assert fit(net(), wrapped, wave(8), None, FitConfig(epochs=1, batch_size=4)).step_count == 2
