"""A law that torch refuses: by training it is a divergence, by the user a mistake."""

import math
import re

import pytest
import torch
from torch.distributions import Exponential, Geometric, Independent, MultivariateNormal, Normal, Uniform
from torch.utils.data import TensorDataset
from training.toys import Net, net, wave

from fcal.training import Diverged, FitConfig, fit
from fcal.training.laws import refusal_of

SHORT = FitConfig(epochs=1, batch_size=4)
POSITIVE = r", where torch asks for GreaterThan\(lower_bound=0.0\)"
AT_FIRST = "; no weight has changed yet, so look at the network and its input first$"


class Spoilt(Net):
    """Fine for some calls, then its law is none."""

    def __init__(self, good: int, loc: float = 0.0, scale: float = 1.0) -> None:
        super().__init__()
        self.left, self.loc, self.scale = good, loc, scale

    def forward(self, x):
        self.left -= 1
        pred = super().forward(x)
        return pred if self.left >= 0 else Normal(pred.loc + self.loc, pred.scale * self.scale)


@pytest.mark.parametrize("scale", [-1.0, 0.0])
def test_impossible_scale_in_the_first_step_is_a_mistake_in_the_network(scale):
    told = f"^expected `model` to make a law, got Normal with scale -?[0-9.]+{POSITIVE}{AT_FIRST}"
    with pytest.raises(ValueError, match=told) as caught:
        fit(Spoilt(0, scale=scale), None, wave(8), None, SHORT)
    assert "Expected parameter" in str(caught.value.__cause__), "torch's own words are kept"


def test_nan_in_the_first_step_is_a_divergence_that_doubts_the_network():
    told = f"prediction is no law after 0 steps: Normal with scale nan{POSITIVE}{AT_FIRST}"
    with pytest.raises(Diverged, match=told):
        fit(Spoilt(0, scale=torch.nan), None, wave(8), None, SHORT)


@pytest.mark.parametrize(
    ("loc", "scale", "told"),
    [
        (0.0, 0.0, f"Normal with scale 0.0{POSITIVE}$"),
        (torch.nan, 1.0, r"Normal with loc nan, where torch asks for Real\(\)$"),
    ],
)
@pytest.mark.parametrize("good", [3, 5])  # the fourth step of the first epoch; its first batch of validation
def test_law_that_torch_refuses_later_is_a_divergence(loc, scale, told, good):
    after = f"after {good} steps: {told}"
    with pytest.raises(Diverged, match=f"^training diverged: prediction is no law {after}") as caught:
        fit(Spoilt(good, loc, scale), None, wave(20), wave(8), SHORT)
    assert (caught.value.step, caught.value.term) == (good, "prediction")
    assert math.isnan(caught.value.value) if scale else caught.value.value == 0.0
    assert "Expected parameter" in str(caught.value.__cause__), "torch's own words are kept"


def test_law_of_an_objective_that_torch_refuses_is_a_divergence_too():
    def narrowing(model, batch):
        pred = model(batch["input"])
        narrowing.left -= 1
        law = Normal(pred.loc, pred.scale * max(narrowing.left, 0))
        return {"nll": -law.log_prob(batch["target"]).mean()}

    narrowing.left = 3
    with pytest.raises(Diverged, match="prediction is no law after 2 steps: Normal with scale 0.0"):
        fit(net(), narrowing, wave(20), None, SHORT)


def test_law_of_inputs_that_are_not_finite_is_no_divergence():
    x, y = wave(20).tensors
    given = TensorDataset(torch.full_like(x, torch.nan), y)
    with pytest.raises(ValueError, match="^expected `input` of finite numbers, got a batch of .* Normal with loc nan"):
        fit(net(), None, given, None, SHORT)


@pytest.mark.parametrize(
    "complaint",
    [
        "Expected parameter loc (Tensor of shape ()) of distribution Normal() to satisfy the constraint Real(), "
        "but found invalid values:\nnan",  # torch's words, but not by torch
        "expected rain, got sun",
    ],
)
def test_complaint_of_a_model_in_a_later_step_is_passed_on(complaint):
    class Complains(Net):
        left = 3

        def forward(self, x):
            self.left -= 1
            if not self.left:
                raise ValueError(complaint)
            return super().forward(x)

    with pytest.raises(ValueError, match="^" + re.escape(complaint)):
        fit(Complains(), None, wave(20), None, SHORT)


def test_target_outside_of_a_law_is_no_divergence():
    def positive(model, batch):
        pred = model(batch["input"])
        return {"nll": -Exponential(pred.scale).log_prob(batch["target"]).mean()}

    with pytest.raises(ValueError, match="^Expected value argument .* to be within the support"):
        fit(net(), positive, wave(20), None, SHORT)


@pytest.mark.parametrize(
    ("make", "told", "value"),
    [
        (lambda: Normal(torch.zeros(5000), torch.arange(5000.0) - 4000.5), "Normal with scale -4000.5, where", -4000.5),
        (lambda: MultivariateNormal(torch.zeros(2), torch.ones(3, 2, 2)), r"covariance_matrix \[\[1.0, 1.0\], ", None),
        (lambda: Uniform(torch.ones(300), torch.zeros(300)), r"Uniform with low 1.0, where .* LessThan\(.{,60}$", 1.0),
        (lambda: Geometric(torch.zeros(2)), "Geometric with probs 0.0, where torch asks for positive$", 0.0),
        (lambda: Independent(Normal(torch.zeros(2), torch.tensor([1.0, torch.nan])), 1), "Normal with scale nan", None),
    ],
)
def test_refusal_tells_the_first_value_at_fault_in_one_line(make, told, value):
    with pytest.raises(ValueError, match="Expected parameter") as caught:
        make()
    refusal = refusal_of(caught.value)
    assert re.search(told, str(refusal))
    assert "\n" not in str(refusal)
    assert math.isnan(refusal.value) if value is None else refusal.value == value
