"""Functions of any prediction: log-CDF, log-survival and quantile, differentiable; concatenation and indexing."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent

from fcal._arrays import as_numbers
from fcal._checks import check_pair, check_values, is_tracing
from fcal.distributions.family import Formula, Law, check_parameter_kinds, law_of, result_dtype
from fcal.distributions.observation import (
    Observation,
    check_parameter_values,
    observe,
)

_SUM_OF_TAILS_TOLERANCE = 1e-3  # probabilities may be in half precision
Prediction = Distribution | Tensor


def log_cdf(pred: Distribution, value: Any) -> Tensor:
    r"""Log-CDF, :math:`\log F(y)`, accurate in the far lower tail.

    Args:
        pred: Prediction of a scalar family, also inside ``Independent`` or under monotone transforms.
        value: Values :math:`y`; a tensor, array, series or list. Shape of the prediction's samples.

    Returns:
        One number per scalar, shaped like ``value``.

    Example:
        >>> from torch.distributions import Laplace
        >>> log_cdf(Laplace(torch.tensor(0.0), torch.tensor(1.0)), torch.tensor(-300.0))
        tensor(-300.6931)
    """
    return _log_tail(observe(pred, as_numbers("value", value), name="value"), lower=True)


def log_survival(pred: Distribution, value: Any) -> Tensor:
    r"""Log-survival, :math:`\log (1 - F(y))`, accurate in the far upper tail.

    Args:
        pred: As for :func:`log_cdf`.
        value: Values :math:`y`; a tensor, array, series or list. Shape of the prediction's samples.

    Returns:
        One number per scalar, shaped like ``value``.

    Example:
        >>> from torch.distributions import Exponential
        >>> log_survival(Exponential(torch.tensor(2.0)), torch.tensor(500.0))
        tensor(-1000.)
    """
    return _log_tail(observe(pred, as_numbers("value", value), name="value"), lower=False)


def quantile(pred: Distribution, lower: Any, upper: Any = None) -> Tensor:
    r"""Quantile, :math:`F^{-1}(p)`.

    Args:
        pred: As for :func:`log_cdf`.
        lower: Probabilities :math:`p` within (0, 1), a tensor, array, series or list. Shape of the prediction's
            samples, or one number.
        upper: Probabilities :math:`1 - p`, for upper tails in which ``1 - lower`` would round.

    Returns:
        The values, shaped like the prediction's samples.

    Example:
        >>> from torch.distributions import Gumbel
        >>> pred = Gumbel(torch.tensor(0.0), torch.tensor(1.0))
        >>> quantile(pred, torch.tensor(1.0), upper=torch.tensor(1e-30))
        tensor(69.0776)
        >>> quantile(pred, 0.5)
        tensor(0.3665)
    """
    is_number = isinstance(lower, float)
    lower, upper = _spread(pred, "lower", lower), upper if upper is None else _spread(pred, "upper", upper)
    check_pair(pred, lower, "lower")
    law = law_of(pred)
    _formula(law, law.family.quantile, "quantile")
    check_parameter_kinds(law, lower)
    below = lower.to(torch.float64)
    above = 1 - below if upper is None else _checked_upper(upper, below)
    check_values("lower", "within (0, 1)", below, (torch.minimum(below, above) > 0) & (below <= 1))
    if not is_tracing():
        check_parameter_values(law)
    dtype = result_dtype(law, lower.float() if is_number else lower)  # a number of Python does not widen results
    return quantile_of(law.to(torch.float64), below, above).to(dtype)


def with_cdf(pred: Distribution) -> Distribution:
    """Add ``cdf`` and ``icdf`` to a distribution whose class lacks them; it remains an instance of that class.

    Args:
        pred: A distribution of a registered scalar family. It is modified in place.

    Example:
        >>> from torch.distributions import StudentT
        >>> with_cdf(StudentT(torch.tensor(1.0))).icdf(torch.tensor(0.75))  # a Cauchy distribution
        tensor(1.)
    """
    base = type(pred)
    missing = tuple(name for name in _METHODS if getattr(base, name) is getattr(Distribution, name))
    if missing:
        pred.__class__ = _WITH_CDF.get((base, missing)) or _class_with_cdf(base, missing)
    return pred


def _spread(pred: Distribution, name: str, probability: Any) -> Tensor:
    """Probabilities as a tensor; one number is expanded to all predictions."""
    values = as_numbers(name, probability)
    if values.dim() or not isinstance(pred, Distribution):
        return values
    return values.expand(pred.batch_shape + pred.event_shape)


def quantile_of(law: Law, below: Tensor, above: Tensor) -> Tensor:
    """Quantile of float64 tail probabilities."""
    formula = _formula(law, law.family.quantile, "quantile")
    if not law.transforms:
        return formula(below, above, *law.parameters)
    increasing = _direction(law, below) > 0
    inner = formula(torch.where(increasing, below, above), torch.where(increasing, above, below), *law.parameters)
    return law.push_forward(inner)


def log_tails_of(law: Law, value: Tensor) -> tuple[Tensor, Tensor]:
    """Log-CDF and log-survival of a float64 value."""
    formulas = _formula(law, law.family.log_cdf, "log_cdf"), _formula(law, law.family.log_survival, "log_survival")
    inner, direction, _ = law.pull_back(value)
    below, above = (formula(inner, *law.parameters) for formula in formulas)
    if not law.transforms:
        return below, above
    increasing = torch.as_tensor(direction, device=inner.device) > 0
    return torch.where(increasing, below, above), torch.where(increasing, above, below)


def _checked_upper(upper: Tensor, below: Tensor) -> Tensor:
    if not isinstance(upper, Tensor) or not upper.is_floating_point():
        got = upper.dtype if isinstance(upper, Tensor) else type(upper).__name__
        raise TypeError(f"expected `upper` a tensor of a floating dtype, got {got}")
    if upper.shape != below.shape or upper.device != below.device:
        raise ValueError(f"expected `upper` of shape {tuple(below.shape)} like `lower`, got {tuple(upper.shape)}")
    above = upper.to(torch.float64)
    check_values("upper", "such that lower + upper = 1", above, (below + above - 1).abs() < _SUM_OF_TAILS_TOLERANCE)
    return above


def _log_tail(observation: Observation, *, lower: bool) -> Tensor:
    law = observation.law
    if law.transforms:
        below, above = log_tails_of(law, observation.target)
        result = below if lower else above
    else:
        name, formula = ("log_cdf", law.family.log_cdf) if lower else ("log_survival", law.family.log_survival)
        result = _formula(law, formula, name)(observation.target, *law.parameters)
    return observation.hide(result, torch.nan).to(observation.dtype)


def _direction(law: Law, like: Tensor) -> Tensor:
    direction = torch.ones((), device=like.device)
    for transform in law.transforms:
        direction = direction * transform.sign
    return direction


def _formula(law: Law, formula: Formula | None, name: str) -> Formula:
    if formula is None:
        raise TypeError(f"expected `pred` of a scalar family with a {name}, got {law.name}")
    return formula


_WITH_CDF: dict[tuple[type[Distribution], tuple[str, ...]], Any] = {}


def _class_with_cdf(base: type[Distribution], missing: tuple[str, ...]) -> Any:
    subclass = type(base.__name__, (base,), {name: _METHODS[name] for name in missing})
    return _WITH_CDF.setdefault((base, missing), subclass)


def _cdf(self: Distribution, value: Tensor) -> Tensor:
    """Probability below ``value``."""
    return log_cdf(self.expand(value.shape) if value.dim() > len(self.batch_shape) else self, value).exp()


def _icdf(self: Distribution, value: Tensor) -> Tensor:
    """Value below which the probability is ``value``."""
    shape = torch.broadcast_shapes(value.shape, self.batch_shape)
    return quantile(self.expand(shape), value.expand(shape))


_METHODS = {"cdf": _cdf, "icdf": _icdf}


def cat(preds: Sequence[Prediction]) -> Prediction:
    """Concatenate predictions along the first dimension, as ``torch.cat`` does for tensors.

    Raises:
        TypeError: The family is not registered.

    Example:
        >>> from torch.distributions import Normal
        >>> cat([Normal(torch.zeros(2), 1.0), Normal(torch.ones(1), 2.0)])
        Normal(loc: torch.Size([3]), scale: torch.Size([3]))
    """
    first = preds[0]
    if isinstance(first, Tensor):
        return torch.cat([pred for pred in preds if isinstance(pred, Tensor)])
    leaves = [_leaves(pred) for pred in preds if isinstance(pred, Distribution)]
    return _with_leaves(first, [torch.cat(values) for values in zip(*leaves, strict=True)])


def stack(preds: Sequence[Distribution]) -> Distribution:
    """Stack predictions of the same targets along a new last dimension.

    Raises:
        ValueError: The predictions differ in family or shape, or are multivariate.

    Example:
        >>> from torch.distributions import Normal
        >>> stack([Normal(torch.zeros(3), 1.0), Normal(torch.ones(3), 2.0)]).scale.shape
        torch.Size([3, 2])
    """
    if not preds:
        raise ValueError("expected `preds` at least one prediction, got none")
    laws = [law_of(pred) for pred in preds]
    shapes = {tuple(pred.batch_shape + pred.event_shape) for pred in preds}
    if len({law.name for law in laws}) != 1 or len(shapes) != 1:
        kinds = ", ".join(sorted({f"{law.name} {shape}" for law in laws for shape in shapes}))
        raise ValueError(f"expected `preds` of one family and shape, got {kinds}")
    if laws[0].family.event_dim or preds[0].event_shape:
        raise ValueError(f"expected `preds` of a scalar family, got {laws[0].name}")
    (shape,) = shapes
    by_name = zip(*(law.parameters for law in laws), strict=True)
    parameters = tuple(torch.stack([value.expand(shape) for value in values], -1) for values in by_name)
    return laws[0]._replace(parameters=parameters).distribution()


def index_select(pred: Prediction, rows: Tensor) -> Prediction:
    """Select rows of a prediction, as ``torch.index_select`` does for tensors.

    Args:
        pred: Prediction of a registered family, or a tensor.
        rows: Indices into the first dimension.

    Example:
        >>> from torch.distributions import Normal
        >>> index_select(Normal(torch.tensor([1.0, 2.0, 3.0]), 1.0), torch.tensor([2, 0])).loc
        tensor([3., 1.])
    """
    if isinstance(pred, Tensor):
        return pred[rows]
    return _with_leaves(pred, [leaf[rows] for leaf in _leaves(pred)])


def with_parameters(pred: Distribution, **changed: Tensor) -> Distribution:
    """Replace parameters of a prediction.

    Args:
        pred: Prediction of a registered family.
        changed: New values of parameters such as ``loc`` or ``scale``; they broadcast with the others.

    Example:
        >>> from torch.distributions import Normal
        >>> with_parameters(Normal(torch.zeros(2), 1.0), loc=torch.tensor([3.0, 4.0])).mean
        tensor([3., 4.])
    """
    law = law_of(pred)
    values = (changed.get(name, value) for name, value in zip(law.family.parameters, law.parameters, strict=True))
    return _like(law._replace(parameters=tuple(values)).distribution(), pred)


def has_location(pred: Distribution) -> bool:
    """Whether one parameter of the prediction moves it in the unit of the target.

    This is not so for a LogNormal distribution, whose location is a logarithm, for a GeneralizedPareto distribution,
    whose location is the end of its support, and for mixtures, which have several.

    Example:
        >>> from torch.distributions import LogNormal, Normal
        >>> has_location(Normal(0.0, 1.0)), has_location(LogNormal(0.0, 1.0))
        (True, False)
    """
    family = law_of(pred).family
    return family.location == "loc" and family.component is None and family.support is None


def location_of(pred: Distribution) -> Tensor:
    """The location parameter of a prediction.

    Raises:
        ValueError: The family has none in the unit of the target.

    Example:
        >>> from torch.distributions import Normal
        >>> location_of(Normal(torch.tensor([2.0]), 1.0))
        tensor([2.])
    """
    law = law_of(pred)
    if not has_location(pred):
        raise ValueError(f"expected `pred` of a family with a location in the target's unit, got {law.name}")
    return dict(zip(law.family.parameters, law.parameters, strict=True))["loc"]


def recentred(pred: Distribution, center: Tensor) -> Distribution:
    """The same prediction around another location.

    Example:
        >>> from torch.distributions import Normal
        >>> recentred(Normal(torch.zeros(1), 3.0), torch.tensor([2.0])).loc
        tensor([2.])
    """
    location_of(pred)  # refuses a family without one
    shape = pred.batch_shape + pred.event_shape
    if center.shape != shape:
        raise ValueError(f"expected `center` of shape {tuple(shape)} like the prediction, got {tuple(center.shape)}")
    return with_parameters(pred, loc=center)


def _leaves(pred: Distribution) -> list[Tensor]:
    """All parameters of a prediction, expanded to its shape."""
    law = law_of(pred)
    shape = pred.batch_shape + pred.event_shape
    elements = shape[: len(shape) - law.family.event_dim]
    return [leaf.reshape(*elements, *leaf.shape[1:]) for leaf in law.leaves(elements)]


def _with_leaves(pred: Distribution, leaves: Sequence[Tensor]) -> Distribution:
    return _like(law_of(pred).with_leaves(leaves).distribution(), pred)


def _like(pred: Distribution, other: Distribution) -> Distribution:
    """Wrap a prediction in ``Independent`` so that it has as many event dimensions as another one."""
    outer = len(other.event_shape) - len(pred.event_shape)
    return Independent(pred, outer, validate_args=False) if outer else pred
