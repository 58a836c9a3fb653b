"""The detector trained on drawn rectangles: by fit, and as a run from a TOML file; its objective term by term."""

import json
from pathlib import Path

import pytest
import torch
from rectangles import HEIGHT, SMALL, WIDTH, Rectangles, RectangleSplits
from torch.distributions import Normal

import fcal
from fcal import data
from fcal._config import read_config
from fcal.cli import main
from fcal.losses import CalibrationLoss
from fcal.models.detection import FasterRCNN
from fcal.training import BoxObjective, FitConfig, ObjectiveConfig, RunConfig, fit, load, objective, train

EXAMPLE = Path(__file__).parents[2] / "docs/examples/detection.toml"


def network(**options) -> FasterRCNN:
    torch.manual_seed(0)
    return FasterRCNN(**{"classes": 2, **SMALL, **options})


def terms_of(name: str = "nll", **options) -> BoxObjective:
    return objective(ObjectiveConfig(**{"name": name, "task": "detection", "form": "additive", "lam": 0.1, **options}))


def batch(count: int = 4, **options) -> dict:
    return Rectangles(count, 0, **options).__getitems__(list(range(count)))


def seeded(of: BoxObjective, model: FasterRCNN, rows: dict) -> dict:
    torch.manual_seed(5)
    return of(model, rows)


# The objective.


@pytest.mark.parametrize(
    ("name", "options", "loss"),
    [
        ("nll", {}, fcal.losses.NLLLoss()),
        ("calibration-loss", {}, CalibrationLoss()),
        ("fcal", {"divergence": "kl", "df": 20}, fcal.FCalLoss("kl", 20)),
        ("fcal", {"divergence": "wasserstein", "df": 20}, fcal.FCalLoss("wasserstein", 20)),
    ],
)
@pytest.mark.parametrize("full", [False, True])
def test_calibration_term_is_the_loss_of_own_proposals_with_the_weight_of_one_object(name, options, loss, full):
    model, rows = network(full_covariance=full, proposals=1000, rois=128), batch(3)
    *_, term = seeded(terms_of(name, **options), model, rows).values()
    torch.manual_seed(5)
    samples = model.proposal_samples(rows["input"], rows["target"])
    own = ~samples.is_truth
    law = model.box_law(samples.features[own], samples.proposals[own], samples.labels[own])
    pairs = [100 * i + n for i, n in zip(samples.image[own].tolist(), samples.object[own].tolist(), strict=True)]
    weight = torch.tensor([1 / pairs.count(pair) for pair in pairs])
    weight = weight if full else weight.unsqueeze(1).expand(-1, 4)
    torch.testing.assert_close(term, 0.1 * loss(law, samples.target[own], weight=weight))


def test_likelihood_term_is_the_mean_over_objects_of_the_mean_over_their_proposals():
    model, rows = network(proposals=1000, rois=128), batch(3)
    term = seeded(terms_of("nll", lam=1.0), model, rows)["nll"]
    torch.manual_seed(5)
    samples = model.proposal_samples(rows["input"], rows["target"])
    law = model.box_law(samples.features, samples.proposals, samples.labels)
    each = -Normal(law.mean, law.stddev).log_prob(samples.target).mean(1)
    pairs = torch.where(samples.is_truth, -1, samples.image * 100 + samples.object)
    objects = [pair for pair in pairs.unique() if pair >= 0]
    expected = torch.stack([each[pairs == pair].mean() for pair in objects]).mean()
    assert 1 < len(objects) < len(pairs)
    torch.testing.assert_close(term, expected)


def test_other_terms_are_the_losses_of_the_detector():
    model, rows = network().train(), batch()
    terms = seeded(terms_of("smooth-l1"), model, rows)
    torch.manual_seed(5)
    expected = model(rows["input"], rows["target"])
    assert {f"loss_{name}" for name in terms} == set(expected)
    for name, term in terms.items():
        torch.testing.assert_close(term, expected[f"loss_{name}"])


def test_convex_form_weighs_all_losses_of_the_detector():
    model, rows = network(), batch()
    additive, convex = (seeded(terms_of(form=form, lam=0.25), model, rows) for form in ("additive", "convex"))
    for name, term in additive.items():
        torch.testing.assert_close(convex[name], term if name == "nll" else 0.75 * term)


@pytest.mark.parametrize("name", ["nll", "calibration-loss", "fcal", "crps"])
@pytest.mark.parametrize("trained", ["full", "head"])
def test_batch_without_objects_has_a_zero_term_with_a_gradient(name, trained):
    model = network()
    parameters = model.uncertainty_head.parameters() if trained == "head" else model.parameters()
    model.requires_grad_(False)
    for parameter in parameters:
        parameter.requires_grad_(True)
    terms = terms_of(name)(model, batch(2, empty=True))
    total = torch.stack(list(terms.values())).sum()
    total.backward()
    assert list(terms.values())[-1] == 0
    assert total.isfinite()
    assert all(p.grad.isfinite().all() for p in model.uncertainty_head.parameters())


def test_validation_is_at_one_proposal_of_each_proposed_object():
    model, rows = network(proposals=1000, rois=128).eval(), batch(3)
    with torch.no_grad():
        torch.manual_seed(5)
        _, pred, judged = terms_of().judged(model, rows)
        torch.manual_seed(5)
        samples = model.proposal_samples(rows["input"], rows["target"])
    own = [(i, n) for i, n, t in zip(samples.image, samples.object, samples.is_truth, strict=True) if not t]
    objects = sorted({(image.item(), number.item()) for image, number in own})
    expected = torch.stack([rows["target"][image]["boxes"][number] for image, number in objects])
    torch.testing.assert_close(judged["target"], expected)
    assert pred.batch_shape == (len(objects), 4)
    assert len(objects) > 1


def test_loss_of_the_mean_alone_is_rejected():
    with pytest.raises(
        ValueError, match="expected `name` 'smooth-l1' or an objective of error bars with boxes, got 'mse'"
    ):
        terms_of("mse")


def test_network_that_is_no_detector_is_rejected():
    with pytest.raises(TypeError, match="expected `model` a detector for the task 'detection', got Linear"):
        terms_of()(torch.nn.Linear(1, 1), batch())


# Training.


@pytest.mark.parametrize(("name", "lam"), [("nll", 0.02), ("smooth-l1", 0.0)])
def test_training_on_rectangles_lowers_the_loss(name, lam):
    model = network(freeze="", proposals=300)
    config = FitConfig(epochs=4, batch_size=4, learning_rate=2e-3, clip_norm=10.0)
    result = fit(model, terms_of(name, lam=lam), Rectangles(12, 0), Rectangles(4, 1), config, progress=False)
    assert result.history[-1]["train/loss"] < 0.8 * result.history[0]["train/loss"]


@pytest.mark.parametrize("divergence", ["kl", "wasserstein"])
def test_training_of_the_uncertainty_head_lowers_the_calibration_loss(divergence):
    model = network(proposals=1000)
    config = FitConfig(epochs=8, batch_size=6, learning_rate=1.0, trained="head")
    terms = terms_of("fcal", divergence=divergence, df=20, lam=1.0)
    result = fit(model, terms, Rectangles(12, 0), Rectangles(6, 1), config, progress=False)
    assert result.history[-1]["train/fcal"] < 0.5 * result.history[0]["train/fcal"]
    assert {"validation/nll", "validation/ece_z", "validation/rmse"} <= set(result.history[-1])


def test_base_training_changes_the_uncertainty_head_alone():
    model = network(proposals=1000)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    config = FitConfig(epochs=1, batch_size=4, trained="head")
    fit(model, terms_of("nll"), Rectangles(8, 0), None, config, progress=False)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"uncertainty_head.spread.weight", "uncertainty_head.spread.bias"}


def test_base_training_sends_a_gradient_to_the_uncertainty_head_alone():
    model = network(proposals=1000).requires_grad_(False)
    model.uncertainty_head.requires_grad_(True)
    torch.stack(list(terms_of("fcal")(model, batch()).values())).sum().backward()
    having = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert having == {"uncertainty_head.spread.weight", "uncertainty_head.spread.bias"}


def test_epochs_with_batches_without_objects_are_trained():
    mixed = Rectangles(4, 0)
    mixed.images[0], mixed.targets[0] = mixed.images[2], mixed.targets[2]  # rows 0 and 2 are empty
    model = network()
    config = FitConfig(epochs=1, batch_size=1, trained="head")
    result = fit(model, terms_of("fcal"), mixed, mixed, config, progress=False)
    assert (result.step_count, result.skipped_batches) == (4, 0)
    assert all(parameter.isfinite().all() for parameter in model.parameters())


class Late(FasterRCNN):
    """Proposes no object in the first epoch of validation."""

    validations = 0

    def proposal_samples(self, images, targets, *, truths=True):
        samples = super().proposal_samples(images, targets, truths=truths)
        if not torch.is_grad_enabled():
            self.validations += 1
            samples.is_truth.fill_(self.validations == 1)
        return samples


def test_epoch_without_proposed_objects_is_not_the_best():
    torch.manual_seed(0)
    model = Late(classes=2, **{**SMALL, "proposals": 1000})
    config = FitConfig(epochs=2, batch_size=8, learning_rate=1e-5, monitor="nll")
    result = fit(model, terms_of(), Rectangles(8, 0), Rectangles(8, 1), config, progress=False)
    assert ["validation/nll" in line for line in result.history] == [False, True]
    assert result.best_epoch == 1


def test_same_arguments_give_the_same_weights_bit_for_bit():
    weights = []
    for _ in range(2):
        model = network()
        config = FitConfig(epochs=2, batch_size=3, learning_rate=1e-3)
        fit(model, terms_of("fcal"), Rectangles(6, 0), Rectangles(3, 1), config, progress=False)
        weights.append(model.state_dict())
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


def test_interrupted_training_is_resumed_bit_for_bit(tmp_path):
    config = FitConfig(epochs=2, batch_size=3, learning_rate=1e-3, checkpoint_every_steps=1)
    rows = Rectangles(6, 0)
    whole, resumed = network(), network()
    fit(whole, terms_of(), rows, None, config, progress=False)

    class Interrupted(Rectangles):
        def __getitems__(self, indices):
            self.reads = getattr(self, "reads", 0) + 1
            if self.reads == 4:
                raise KeyboardInterrupt
            return super().__getitems__(indices)

    with pytest.raises(KeyboardInterrupt):
        fit(resumed, terms_of(), Interrupted(6, 0), None, config, folder=tmp_path, progress=False)
    resumed = network()
    fit(resumed, terms_of(), rows, None, config, folder=tmp_path, resume=True, progress=False)
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name


# Runs.


@pytest.fixture
def example(tmp_path) -> Path:
    """The example of the documentation, with small pictures of rectangles in place of streets."""
    data.register("street-detection", RectangleSplits, replace=True)
    small = {
        "train = 180": "train = 12",
        "validation = 60": "validation = 4",
        "test = 60": "test = 4",
        "height = 96": f"height = {HEIGHT}",
        "width = 320": f"width = {WIDTH}",
        "min_size = 96": f"min_size = {HEIGHT}",
        "max_size = 320": f"max_size = {WIDTH}",
        "width = 128": "width = 16",
        "head = 256": "head = 32",
        "proposals = 300": "proposals = 1000",  # a network that has hardly been trained must find some objects
        "rois = 128": "rois = 32",
        "epochs = 10": "epochs = 2",
    }
    text = EXAMPLE.read_text()
    for words, replacement in small.items():
        assert words in text
        text = text.replace(words, replacement)
    (tmp_path / "detection.toml").write_text(text)
    return tmp_path / "detection.toml"


@pytest.mark.usefixtures("names_forgotten")
def test_example_is_trained_recalibrated_and_loaded_again(example, tmp_path, capsys):
    assert main(["train", str(example), "--out", str(tmp_path / "run"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    objects = sum(len(target["labels"]) for target in RectangleSplits().test.targets)
    assert report["test"]["n"] == report["before"]["n"] <= 4 * objects
    assert report["test"]["n"] % 4 == 0 < report["test"]["n"]
    assert {"nll", "ece_q", "rmse"} <= set(report["test"])
    run = load(tmp_path / "run")
    picture = RectangleSplits().test.images[:1]
    (output,) = run.model.eval()(picture)
    assert set(output) == {"boxes", "labels", "scores", "sigmas", "label_probs"}
    repaired = fcal.recalibration.load(tmp_path / "run/recalibrator").transform(
        Normal(output["boxes"], output["sigmas"])
    )
    factors = repaired.stddev / output["sigmas"]
    torch.testing.assert_close(factors, factors[:1, :1].expand(len(output["boxes"]), 4))
    assert len(factors) > 0
    assert bool((factors != 1).all())


@pytest.mark.usefixtures("names_forgotten")
def test_same_config_gives_the_same_report(example, tmp_path):
    config = read_config(example, RunConfig)
    reports = [train(config, tmp_path / name, progress=False).report["test"] for name in ("first", "second")]
    assert reports[0] == reports[1]


@pytest.mark.usefixtures("names_forgotten")
def test_detector_with_another_backbone_is_one_line_with_the_file(example, tmp_path, capsys):
    weights = tmp_path / "detector.pth"
    torch.save(network(backbone="resnet18").state_dict(), weights)
    words = ["--set", f'model.options.weights="{weights}"', "--out", str(tmp_path / "run")]
    assert main(["train", str(example), *words]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert f"{weights} of a detector with the backbone 'mobilenet_v2', got one with the backbone 'resnet18'" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("names_forgotten")
def test_report_of_a_network_that_proposes_no_object_is_one_line_with_what_to_do(example, tmp_path, capsys):
    words = ["--set", "model.options.proposals=1", "--set", "fit.monitor=loss", "--out", str(tmp_path / "run")]
    assert main(["train", str(example), *words]) == 2
    remedy = f"--set fit.epochs=N with N above 2, and --out another folder than {tmp_path / 'run'}"
    assert capsys.readouterr().err == (
        f"fcal: expected `model` to predict targets, got none: it proposes no object; train it for longer: {remedy}\n"
    )


@pytest.mark.usefixtures("names_forgotten")
def test_folds_are_rejected_for_detectors(example, tmp_path, capsys):
    words = ["--set", "crossfit.folds=3", "--out", str(tmp_path / "run")]
    assert main(["train", str(example), *words]) == 2
    assert "expected `crossfit.folds` 0 with the task 'detection'" in capsys.readouterr().err
