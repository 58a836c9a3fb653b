"""What evaluate refuses, what it remembers of its data, and what it hands out."""

import dataclasses
import json
import subprocess
import sys

import pytest
import torch
from torch.distributions import Bernoulli, Independent, Laplace, MultivariateNormal, Normal, Uniform

import fcal
from fcal.metrics import Report, fingerprint

# SURFACE.md, "metrics": what .as_dict() names
KEYS = {
    *(
        "n",
        "df",
        "bins",
        "nll",
        "crps",
        "rmse",
        "bias",
        "ece_z",
        "mce_z",
        "ece_q",
        "mce_q",
        "kld_z",
        "wdist_z",
        "kld_q",
    ),
    *("wdist_q", "ence", "ause", "sharpness", "coverage", "verdict", "scale", "p_value"),
    *("ece_z_floor", "mce_z_floor", "ece_q_floor", "mce_q_floor", "ence_floor"),
}


def normal(n=10, sigma=1.0):
    return Normal(torch.zeros(n), torch.full((n,), sigma), validate_args=False)


Y = torch.linspace(-1, 1, 10)
INTEGERS = torch.arange(10)
REFUSED = {
    "pred is a tensor": (
        (Y, Y),
        {},
        TypeError,
        r"expected `pred` a Distribution \(or the options mean= and std=, or samples=\), got Tensor",
    ),
    "target of texts": ((normal(), ["a"] * 10), {}, TypeError, "expected `target` of numbers, got a list of str"),
    "no target": ((normal(),), {}, TypeError, "expected `target`, the true values, got None"),
    "nothing": ((), {"target": Y}, TypeError, "or `mean` with `std` or `variance`, or `samples`, got nothing"),
    "mean alone": ((), {"target": Y, "mean": Y}, TypeError, "or `samples`, got `mean`"),
    "pred and mean": ((normal(), Y), {"mean": Y}, TypeError, "moments or samples, got both `pred` and `mean`"),
    "samples and std": ((), {"target": Y, "samples": torch.rand(10, 5), "std": 1.0}, TypeError, "`std` and `samples`"),
    "one sample": ((), {"target": Y, "samples": torch.rand(10, 1)}, ValueError, "S >= 3"),
    "samples of NaN": ((), {"target": Y, "samples": torch.full((10, 5), torch.nan)}, ValueError, "`samples` finite"),
    "samples by column": (
        (),
        {"target": Y, "samples": torch.rand(5, 10)},
        ValueError,
        r"got \(5, 10\); transpose them",
    ),
    "flat samples": (
        (),
        {"target": Y, "samples": Y},
        ValueError,
        r"of shape \(N, S\) for \(10,\) targets, got \(10,\)",
    ),
    "samples of vectors": (
        (),
        {"target": Y, "samples": torch.rand(10, 5, 2)},
        ValueError,
        r"of shape \(N, S, D\) for \(10,\) targets, got \(10, 5, 2\)",
    ),
    "two spreads": ((), {"target": Y, "mean": Y, "std": 1.0, "variance": 1.0}, TypeError, "got `mean` and `std`"),
    "std of zero": ((), {"target": Y, "mean": Y, "std": [0.0] * 10}, ValueError, "expected `std` > 0 and finite"),
    "mean= NaN": ((), {"target": Y, "mean": Y * torch.nan, "std": 1.0}, ValueError, "expected `mean` finite"),
    "std too short": ((), {"target": Y, "mean": Y, "std": [1.0] * 3}, ValueError, r"expected `std` of shape \(10,\)"),
    "target of integers": (
        (normal(), INTEGERS),
        {},
        TypeError,
        "expected `target` of a floating dtype, got torch.int64",
    ),
    "target too short": (
        (normal(), Y[:5]),
        {},
        ValueError,
        r"expected `target` of shape \(10,\) like `pred`, got \(5,\)",
    ),
    "target a column": ((normal(), Y[:, None]), {}, ValueError, r"got \(10, 1\)"),
    "family unknown": ((Bernoulli(torch.full((10,), 0.5)), Y), {}, TypeError, "expected `pred` of a known family"),
    "sigma zero": ((normal(sigma=0.0), Y), {}, ValueError, r"expected `pred.scale` > 0, got 0 \(10 of 10 values\)"),
    "sigma negative": ((normal(sigma=-1.0), Y), {}, ValueError, "expected `pred.scale` > 0, got -1"),
    "sigma NaN": ((normal(sigma=torch.nan), Y), {}, ValueError, "expected `pred.scale` finite, got nan"),
    "sigma infinite": ((normal(sigma=torch.inf), Y), {}, ValueError, "expected `pred.scale` finite, got inf"),
    "mean NaN": (
        (Normal(Y.masked_fill(Y > 0.9, torch.nan), 1.0, validate_args=False), Y),
        {},
        ValueError,
        r"expected `pred.loc` finite, got nan \(1 of 10 values\)",
    ),
    "target infinite": ((normal(), Y * torch.inf), {}, ValueError, "expected `target` finite"),
    "target impossible": (
        (Uniform(torch.zeros(10), torch.ones(10)), Y),
        {},
        ValueError,
        "expected `target` possible under Uniform",
    ),
    "empty": ((normal(0), Y[:0]), {}, ValueError, "expected `target` with at least 2 values that count, got 0"),
    "one row": ((normal(1), Y[:1]), {}, ValueError, "expected `target` with at least 2 values that count, got 1"),
    "all missing": ((normal(), Y * torch.nan), {}, ValueError, "at least 2 values that count, got 0"),
    "all masked": ((normal(), Y), {"valid_mask": Y > 5}, ValueError, "at least 2 values that count, got 0"),
    "mask of numbers": ((normal(), Y), {"valid_mask": Y}, TypeError, "expected `valid_mask` of dtype torch.bool"),
    "mask too short": ((normal(), Y), {"valid_mask": Y[:3] > 0}, ValueError, r"expected `valid_mask` of shape \(10,\)"),
    "one bin": ((normal(), Y), {"bins": 1}, ValueError, "expected `bins` >= 2, got 1"),
    "many bins": ((normal(), Y), {"bins": 10**6}, ValueError, "expected `bins` <= 10000, got 1000000"),
    "bins a float": ((normal(), Y), {"bins": 20.0}, TypeError, "expected `bins` an int, got float 20.0"),
    "df zero": ((normal(), Y), {"df": 0}, ValueError, "expected `df` >= 1, got 0"),
    "df huge": ((normal(), Y), {"df": 10**9}, ValueError, "expected `df` <= 10000, got 1000000000"),
    "df true": ((normal(), Y), {"df": True}, TypeError, "expected `df` an int, got bool True"),
    "tolerance": ((normal(), Y), {"tolerance": -1}, ValueError, r"expected `tolerance` within \[0, 1\], got -1"),
    "tolerance NaN": ((normal(), Y), {"tolerance": float("nan")}, ValueError, "expected `tolerance` within"),
    "tolerance text": ((normal(), Y), {"tolerance": "5%"}, TypeError, "expected `tolerance` a number, got str '5%'"),
    "group floats": (
        (normal(), Y),
        {"group": Y},
        TypeError,
        "expected `group` a tensor of integers, got torch.float32",
    ),
    "group list short": ((normal(), Y), {"group": ["a"] * 3}, ValueError, r"expected `group` of shape \(10,\)"),
    "group short": ((normal(), Y), {"group": INTEGERS[:3]}, ValueError, r"expected `group` of shape \(10,\)"),
    "names without group": ((normal(), Y), {"group_names": ["a"]}, ValueError, "expected `group` beside `group_names`"),
    "names twice": (
        (normal(), Y),
        {"group": INTEGERS % 2, "group_names": ["a", "a"]},
        ValueError,
        "expected `group_names` all different, got one twice",
    ),
    "group without name": (
        (normal(), Y),
        {"group": INTEGERS, "group_names": ["a", "b"]},
        ValueError,
        "expected `group` within 0 to 1, got 0 to 9",
    ),
    "cluster floats": (
        (normal(), Y),
        {"cluster": Y},
        TypeError,
        "expected `cluster` of an integer dtype, got torch.float32",
    ),
    "cluster list short": ((normal(), Y), {"cluster": ["a"] * 3}, ValueError, r"expected `cluster` of shape \(10,\)"),
    "mask a list of numbers": (
        (normal(), Y),
        {"valid_mask": [1.0] * 10},
        TypeError,
        "`valid_mask` of True and False, got a",
    ),
    "cluster short": ((normal(), Y), {"cluster": INTEGERS[:3]}, ValueError, r"expected `cluster` of shape \(10,\)"),
    "cluster per coordinate": (
        (MultivariateNormal(torch.zeros(5, 2), torch.eye(2)), Y.reshape(5, 2)),
        {"cluster": INTEGERS.reshape(5, 2)},
        ValueError,
        r"expected `cluster` of shape \(5,\), one per row, got \(5, 2\)",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_evaluate_refuses(what):
    arguments, options, error, message = REFUSED[what]
    with pytest.raises(error, match=message) as raised:
        fcal.evaluate(*arguments, **options)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_few_rows_are_enough_for_a_report(n):
    report = fcal.evaluate(normal(n), torch.linspace(-1, 1, n))
    assert report.n == n
    json.dumps(report.as_dict(curves=True), allow_nan=False)


def test_group_of_one_row_is_told_of():
    report = fcal.evaluate(normal(), Y, group=(INTEGERS == 9).long())
    assert list(report.groups) == ["0"]
    assert "1 of 2 groups have a single target and no report" in report.warnings


class TestDocument:
    """What is handed to others."""

    def reports(self):
        torch.manual_seed(0)
        y = torch.randn(500)
        group, cluster = torch.arange(500) % 2, torch.arange(500) // 2
        pred = Normal(torch.zeros(500), 1.0)
        yield fcal.evaluate(pred, y)
        yield fcal.evaluate(pred, y, group=group, cluster=cluster)
        yield fcal.evaluate(torch.distributions.Cauchy(torch.zeros(500), 1.0), y)
        yield fcal.evaluate(Normal(torch.zeros(500), 1e-30), 1e9 * y)
        yield fcal.evaluate(Normal(y, 1.0), y)
        yield fcal.evaluate(pred, torch.full((500,), 3.0))
        yield fcal.evaluate(pred, y, cluster=torch.zeros(500, dtype=torch.int64))

    def test_document_is_json_without_nan(self):
        for report in self.reports():
            for curves in (False, True):
                text = json.dumps(report.as_dict(curves=curves), allow_nan=False)
                assert json.loads(text) == report.as_dict(curves=curves)

    def test_document_has_every_key_of_the_surface(self):
        for report in self.reports():
            document = report.as_dict()
            assert set(document) >= KEYS
            assert set(document["scale"]) == {"value", "low", "high"}
            assert set(document["coverage"]) == {"0.5", "0.68", "0.9", "0.95", "0.99"}
            for name in ("ece_z", "mce_z", "ece_q", "mce_q"):
                assert set(document[f"{name}_floor"]) == {"expected", "q95"}
            assert "curves" not in document
            for group in document["groups"].values():
                assert set(document) == set(group)

    def test_report_is_frozen(self):
        report = next(self.reports())
        assert isinstance(report, Report)
        with pytest.raises(dataclasses.FrozenInstanceError):
            report.n = 3


class TestFittedOn:
    """A report on the rows that a recalibrator was fitted on says so."""

    def report(self, y, on, **options):
        pred = Laplace(torch.zeros_like(y), 1.0)
        pred.fitted_on = on
        return fcal.evaluate(pred, y, **options)

    def test_same_rows_in_any_order_are_recognised(self):
        y = torch.randn(1000, generator=torch.Generator().manual_seed(0))
        for same in (y, y.flip(0), y[torch.randperm(1000)], y.double()):
            report = self.report(same, fingerprint(y))
            assert report.fitted_on
            assert any("rows the recalibrator was fitted on" in text for text in report.warnings)

    def test_other_rows_are_not(self):
        y = torch.randn(1000, generator=torch.Generator().manual_seed(0))
        changed = y.clone()
        changed[0] += 1e-6
        for other in (y[:-1], changed, y + 1, -y, torch.cat([y, y])):
            report = self.report(other, fingerprint(y))
            assert not report.fitted_on
            assert not report.warnings

    def test_sums_of_targets_do_not_fool_it(self):
        one, two = torch.tensor([1.0, 4.0, 2.5]), torch.tensor([2.0, 3.0, 2.5])
        assert fingerprint(one) != fingerprint(two)
        assert fingerprint(torch.tensor([1.0, 1.0, 2.0])) != fingerprint(torch.tensor([1.0, 2.0, 2.0]))

    def test_swaps_of_small_changes_do_not_fool_it(self):
        # targets on a lattice, as counts or centimetres are: many pairs have the same sum, and the same sum of squares
        seen = {
            fingerprint(torch.tensor([a, b, 20.0 - a - b])) for a in range(10) for b in range(a, 10) if 20 - a - b >= b
        }
        count = sum(1 for a in range(10) for b in range(a, 10) if 20 - a - b >= b)
        assert len(seen) == count

    def test_missing_rows_do_not_count(self):
        y = torch.randn(100)
        holes = torch.cat([y, torch.full((7,), torch.nan)])
        assert fingerprint(holes) == fingerprint(y)
        assert fingerprint(holes, torch.arange(107) < 50) == fingerprint(y[:50])
        assert self.report(holes, fingerprint(y)).fitted_on
        assert fingerprint(torch.tensor([0.0])) == fingerprint(torch.tensor([-0.0]))

    def test_plain_predictions_are_fitted_on_nothing(self):
        assert not fcal.evaluate(normal(), Y).fitted_on

    def test_whole_is_recognised_among_groups(self):
        y = torch.randn(100)
        report = self.report(y, fingerprint(y), group=torch.arange(100) % 2)
        assert report.fitted_on


BLOCKED = """
import sys
import torch, numpy

class Blocked:
    allowed = {name.partition(".")[0] for name in sys.modules} | {"fcal", "safetensors"} | set(sys.stdlib_module_names)
    # what torch itself imports late
    allowed |= {"torch", "numpy", "sympy", "mpmath", "typing_extensions", "jinja2", "networkx", "filelock", "fsspec"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in self.allowed:
            raise ModuleNotFoundError(f"blocked: {name}", name=name)

assert not {"scipy", "torchmetrics", "pyarrow", "matplotlib", "gpytorch"} & Blocked.allowed
sys.meta_path.insert(0, Blocked())
import fcal
from torch.distributions import Laplace, Normal
torch.manual_seed(0)
y = torch.randn(3000)
report = fcal.evaluate(Normal(torch.zeros(3000), 0.5), y, group=torch.arange(3000) % 3, cluster=torch.arange(3000) // 3)
assert report.verdict == "over-confident" and report.as_dict()
fcal.evaluate(Laplace(torch.zeros(3000), 0.5), y)
pred = Normal(torch.zeros(3000), 0.5)
repaired = fcal.recalibration.Temperature().fit(pred, y).transform(pred)
assert fcal.evaluate(repaired, y).verdict == "calibrated"
try:
    fcal.metrics.Calibration
except ImportError as error:
    print(error)
"""


def test_evaluate_and_temperature_need_torch_and_numpy_only():
    run = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "expected torchmetrics for streaming metrics; pip install 'fcal[metrics]'\n"


@pytest.mark.parametrize("shape", [(50,), (50, 2)])
def test_labels_of_vectors_inside_independent_are_those_of_rows_or_vectors(shape):
    covariance = torch.eye(3).expand(50, 2, 3, 3)
    pred = Independent(MultivariateNormal(torch.zeros(50, 2, 3), covariance), 1)
    report = fcal.evaluate(pred, torch.randn(50, 2, 3), group=torch.zeros(shape, dtype=torch.int64))
    assert report.n == 300
