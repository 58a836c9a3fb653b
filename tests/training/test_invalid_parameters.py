"""Invalid parameters of a predicted distribution: a divergence during training, an error of the user before it."""

import math
import re

import pytest
import torch
from torch.distributions import (
    Categorical,
    Cauchy,
    Exponential,
    Geometric,
    Independent,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    Uniform,
)
from torch.utils.data import TensorDataset
from training.toys import Net, net, wave

from fcal.training import Diverged, FitConfig, fit
from fcal.training.predictions import invalid_parameter

SHORT = FitConfig(epochs=1, batch_size=4)
POSITIVE = r", expected GreaterThan\(lower_bound=0.0\)"
AT_FIRST = "; no weight has changed yet, so check the network and its input first$"


class Spoilt(Net):
    """Valid for some calls, then its parameters are invalid."""

    def __init__(self, good: int, loc: float = 0.0, scale: float = 1.0) -> None:
        super().__init__()
        self.left, self.loc, self.scale = good, loc, scale

    def forward(self, x):
        self.left -= 1
        pred = super().forward(x)
        return pred if self.left >= 0 else Normal(pred.loc + self.loc, pred.scale * self.scale)


@pytest.mark.parametrize("scale", [-1.0, 0.0])
def test_invalid_scale_in_the_first_step_is_an_error_in_the_network(scale):
    told = f"^expected `model` to return a valid distribution, got Normal with scale -?[0-9.]+{POSITIVE}{AT_FIRST}"
    with pytest.raises(ValueError, match=told) as caught:
        fit(Spoilt(0, scale=scale), None, wave(8), None, SHORT)
    assert "Expected parameter" in str(caught.value.__cause__), "torch's own message is kept"


def test_nan_in_the_first_step_is_a_divergence_with_a_hint_at_the_network():
    told = f"invalid prediction after 0 steps: Normal with scale nan{POSITIVE}{AT_FIRST}"
    with pytest.raises(Diverged, match=told):
        fit(Spoilt(0, scale=torch.nan), None, wave(8), None, SHORT)


@pytest.mark.parametrize(
    ("loc", "scale", "told"),
    [
        (0.0, 0.0, f"Normal with scale 0.0{POSITIVE}$"),
        (torch.nan, 1.0, r"Normal with loc nan, expected Real\(\)$"),
    ],
)
@pytest.mark.parametrize("good", [3, 5])  # the fourth step of the first epoch; its first batch of validation
def test_invalid_parameter_in_a_later_step_is_a_divergence(loc, scale, told, good):
    after = f"after {good} steps: {told}"
    with pytest.raises(Diverged, match=f"^training diverged: invalid prediction {after}") as caught:
        fit(Spoilt(good, loc, scale), None, wave(20), wave(8), SHORT)
    assert (caught.value.step, caught.value.term) == (good, "prediction")
    assert math.isnan(caught.value.value) if scale else caught.value.value == 0.0
    assert "Expected parameter" in str(caught.value.__cause__), "torch's own message is kept"


def test_invalid_distribution_of_an_objective_is_a_divergence_too():
    def narrowing(model, batch):
        pred = model(batch["input"])
        narrowing.left -= 1
        law = Normal(pred.loc, pred.scale * max(narrowing.left, 0))
        return {"nll": -law.log_prob(batch["target"]).mean()}

    narrowing.left = 3
    with pytest.raises(
        Diverged, match=r"^training diverged: nll = nan after 2 steps: Expected parameter scale .* Normal.*\[0\.\]"
    ):
        fit(net(), narrowing, wave(20), None, SHORT)


def test_invalid_distribution_of_inputs_that_are_not_finite_is_no_divergence():
    x, y = wave(20).tensors
    given = TensorDataset(torch.full_like(x, torch.nan), y)
    with pytest.raises(ValueError, match="^expected `input` of finite values, got a batch .* Normal with loc nan"):
        fit(net(), None, given, None, SHORT)


@pytest.mark.parametrize(
    "complaint",
    [
        "Expected parameter loc (Tensor of shape ()) of distribution Normal() to satisfy the constraint Real(), "
        "but found invalid values:\nnan",  # torch's words, but not by torch
        "expected rain, got sun",
    ],
)
def test_error_of_a_model_in_a_later_step_is_passed_on(complaint):
    class Complains(Net):
        left = 3

        def forward(self, x):
            self.left -= 1
            if not self.left:
                raise ValueError(complaint)
            return super().forward(x)

    with pytest.raises(ValueError, match="^" + re.escape(complaint)):
        fit(Complains(), None, wave(20), None, SHORT)


def test_target_outside_of_the_support_is_no_divergence():
    def positive(model, batch):
        pred = model(batch["input"])
        return {"nll": -Exponential(pred.scale).log_prob(batch["target"]).mean()}

    with pytest.raises(ValueError, match="^Expected value argument .* to be within the support"):
        fit(net(), positive, wave(20), None, SHORT)


LARGE = torch.arange(5000.0) - 4000.5


@pytest.mark.parametrize(
    ("make", "told", "value"),
    [
        (lambda **kw: Normal(torch.zeros(5000), LARGE, **kw), "^Normal with scale -4000.5, expected", -4000.5),
        (
            lambda **kw: MultivariateNormal(torch.zeros(2), scale_tril=-torch.ones(3, 2, 2), **kw),
            r"_tril \[\[-1.0,",
            None,
        ),
        (lambda **kw: Uniform(torch.ones(300), torch.zeros(300), **kw), r"low 1.0, expected LessThan\(.{,60}$", 1.0),
        (lambda **kw: Geometric(torch.full((2,), 1.5), **kw), r"Geometric with probs 1.5, expected Interval\(", 1.5),
        (
            lambda **kw: Independent(Normal(torch.zeros(2), torch.tensor([1.0, torch.nan]), **kw), 1),
            "^Normal with scale nan",
            None,
        ),
        (
            lambda **kw: MixtureSameFamily(
                Categorical(logits=torch.tensor([0.0, -torch.inf])), Normal(torch.zeros(2), torch.zeros(2), **kw)
            ),
            "^Normal with scale 0.0, expected GreaterThan",
            0.0,
        ),
    ],
)
def test_first_invalid_value_is_named_in_one_line(make, told, value):
    with pytest.raises(ValueError, match="Expected parameter"):
        make()
    invalid = invalid_parameter(make(validate_args=False))
    assert re.search(told, str(invalid))
    assert "\n" not in str(invalid)
    assert math.isnan(invalid.value) if value is None else invalid.value == value


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda x: MultivariateNormal(torch.zeros(2), torch.ones(2, 2) * x.new_ones(len(x), 1, 1)),
            r"prediction = nan after 3 steps: Expected parameter covariance_matrix .* PositiveDefinite\(\)",
        ),
        (lambda x: Geometric(torch.zeros_like(x)), r"nll = .* after 3 steps: Expected parameter probs .* be positive"),
    ],
)
def test_parameters_that_torch_alone_can_check_are_a_divergence_with_its_message(make, told):
    class Degenerate(Spoilt):
        def forward(self, x):
            pred = super().forward(x)
            return pred if self.left >= 0 else make(x)

    def nll(model, batch):
        return {"nll": -model(batch["input"]).log_prob(batch["target"].abs().ceil()).mean()}

    with pytest.raises(Diverged, match=f"^training diverged: {told}") as caught:
        fit(Degenerate(3), nll, wave(20), None, SHORT)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "pred",
    [
        Normal(torch.zeros(2), torch.ones(2)),
        Cauchy(torch.zeros(2), torch.ones(2)),  # whose mean is NaN
        Categorical(logits=torch.tensor([0.0, -torch.inf])),  # a probability of 0
        torch.zeros(2),
    ],
)
def test_valid_prediction_has_no_invalid_parameter(pred):
    assert invalid_parameter(pred) is None


def test_torch_validates_again_after_a_divergence():
    with pytest.raises(Diverged):
        fit(Spoilt(3, scale=0.0), None, wave(20), None, SHORT)
    with pytest.raises(ValueError, match="Expected parameter scale"):
        Normal(0.0, 0.0)
