"""CDF and quantile function as methods, for distributions that torch has without."""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal.distributions.functions import log_cdf, quantile


def completed(pred: Distribution) -> Distribution:
    """The same distribution, with ``cdf`` and ``icdf`` where its class has none; it stays of its class.

    Args:
        pred: A distribution of a registered scalar family; it is changed, so pass one that nobody else holds.

    Example:
        >>> from torch.distributions import StudentT
        >>> completed(StudentT(torch.tensor(1.0))).icdf(torch.tensor(0.75))  # a Cauchy law
        tensor(1.)
    """
    kind = type(pred)
    missing = tuple(name for name in _METHODS if getattr(kind, name) is getattr(Distribution, name))
    if missing:
        pred.__class__ = _COMPLETED.get((kind, missing)) or _completed_class(kind, missing)
    return pred


_COMPLETED: dict[tuple[type[Distribution], tuple[str, ...]], Any] = {}


def _completed_class(kind: type[Distribution], missing: tuple[str, ...]) -> Any:
    made = type(kind.__name__, (kind,), {name: _METHODS[name] for name in missing})
    return _COMPLETED.setdefault((kind, missing), made)


def _cdf(self: Distribution, value: Tensor) -> Tensor:
    """Probability below ``value``."""
    return log_cdf(self.expand(value.shape) if value.dim() > len(self.batch_shape) else self, value).exp()


def _icdf(self: Distribution, value: Tensor) -> Tensor:
    """Value with a given probability below it."""
    shape = torch.broadcast_shapes(value.shape, self.batch_shape)
    return quantile(self.expand(shape), value.expand(shape))


_METHODS = {"cdf": _cdf, "icdf": _icdf}
