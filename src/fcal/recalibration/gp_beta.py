"""Distribution calibration: a beta map whose parameters depend on the prediction through a Gaussian process."""

import importlib
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal._checks import check_integer
from fcal.distributions import BetaMap, Warped
from fcal.distributions.functional import quantile_of
from fcal.distributions.law import Law, law_of
from fcal.recalibration.beta_likelihood import Tails, best_constant, kernel, log_likelihood
from fcal.recalibration.knots import robust_spread
from fcal.recalibration.recalibrator import Recalibrator, add
from fcal.recalibration.rows import Rows

_ONE_SIGMA = 0.5 * math.erfc(math.sqrt(0.5))  # probability below minus one sd of a normal law
_MOST_ROWS = 8192  # that the process is fitted to
_LLOYD_STEPS = 10
_CHECKED = 0.25  # of the rows, which the process does not see


@add
class GPBeta(Recalibrator):
    r"""Distribution calibration by a Gaussian process over beta maps (Song et al. 2019), on GPyTorch.

    Probabilities are mapped by :math:`G(u) = \sigma(a \log u - b \log(1 - u) + c)`, where log a, log b and c depend on
    the predicted mean and sd (in general: median and half the width of the central 68 %): the most likely constant map
    plus three Gaussian processes, known at inducing points and fitted by natural gradients and Adam on the evidence
    bound. Repaired predictions take the processes' mean; far from the calibration data that is the constant map.

    It repairs errors that depend on the prediction itself, which the other methods cannot see. A beta map bends
    residuals only so far, though: it cannot express every scale error, so coverage can stay off where that of
    :class:`Isotonic` would be nominal.

    Args:
        inducing: Number of inducing points.
        steps: Most optimisation steps; it stops earlier when the bound no longer gains.
        generator: Chooses the inducing points and which rows the processes see, at most 8192 (the constant map sees
            all). A fixed seed where None.

    Note:
        Only fitting needs GPyTorch (``pip install 'fcal[gp]'``). The random state of torch is left as it was. A quarter
        of the calibration data only checks the processes: where they do not make it more likely, by more than one
        standard error, the constant map is kept.

    Example:
        >>> from torch.distributions import Normal
        >>> y = torch.special.ndtri(torch.arange(1, 200) / 200)
        >>> pred = Normal(torch.zeros(199), torch.ones(199))
        >>> repaired = fcal.recalibration.GPBeta(inducing=4).fit(pred, y).transform(pred)
        >>> bool((repaired.stddev - 1).abs().max() < 0.05)  # nothing to repair
        True
    """

    method = "gp-beta"
    tensor_names = ("constant", "centre", "spread", "inducing", "weights", "lengthscale", "outputscale")
    least_rows = 10

    def __init__(self, *, inducing: int = 32, steps: int = 150, generator: torch.Generator | None = None) -> None:
        self.inducing = check_integer("inducing", inducing, at_least=1, at_most=1024)
        self.steps = check_integer("steps", steps, at_least=1, at_most=100_000)
        if generator is not None and not isinstance(generator, torch.Generator):
            raise TypeError(f"expected `generator` a torch.Generator, got {type(generator).__name__}")
        self.generator = generator

    def _options(self) -> dict[str, Any]:
        return {"inducing": self.inducing, "steps": self.steps}

    def _fitted(self, rows: Rows) -> dict[str, Tensor]:
        process = importlib.import_module("fcal.recalibration.beta_process")  # imports gpytorch
        robust_spread(rows.z.sort().values)
        generator = torch.Generator().manual_seed(0) if self.generator is None else self.generator
        tails = Tails.of(rows.z)
        found = {"constant": best_constant(tails)}
        raw = _inputs(rows.law, rows.target.shape)
        found["centre"], found["spread"] = raw.mean(0), _nonzero(raw.std(0))
        x = (raw - found["centre"]) / found["spread"]
        learning, checking = _split(len(x), generator)
        found["inducing"] = _centres(x[learning], self.inducing, generator)
        seed = int(torch.randint(2**31, (), generator=generator))
        learned = process.fitted_process(
            x[learning], tails.rows(learning), found["constant"], found["inducing"], steps=self.steps, seed=seed
        )
        found |= learned._asdict()
        if not _helps(tails.rows(checking), x[checking], found):
            found["weights"] = torch.zeros_like(found["weights"])
        return found

    def _repaired(self, pred: Distribution, tensors: Mapping[str, Tensor]) -> Distribution:
        law = law_of(pred)
        like = law.parameters[0]
        own = {name: tensor.to(like.device) for name, tensor in tensors.items()}
        law = law.map(lambda p, _: p.to(torch.float64), lambda p: p.to(torch.float64))
        raw = _inputs(law, pred.batch_shape)
        parameters = _parameters((raw - own["centre"]) / own["spread"], own)
        a, b, c = (part.reshape(pred.batch_shape).to(like.dtype) for part in parameters.unbind(-1))
        return Warped(pred, BetaMap(a.exp(), b.exp(), c))


@torch.no_grad()
def _inputs(law: Law, shape: torch.Size) -> Tensor:
    """Median and log of half the width of the central 68 %, of every prediction. Shape ``(n, 2)``."""
    like = law.parameters[0]
    below, middle, above = (
        quantile_of(law, like.new_full(shape, p), like.new_full(shape, 1 - p)).expand(shape).reshape(-1)
        for p in (_ONE_SIGMA, 0.5, 1 - _ONE_SIGMA)
    )
    smallest = torch.finfo(torch.float64).tiny
    return torch.stack([middle, ((above - below) / 2).clamp(min=smallest).log()], -1)


def _nonzero(spread: Tensor) -> Tensor:
    """Inputs that are all the same are left as they are."""
    return torch.where(spread > 1e-12, spread, 1.0)


def _centres(x: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Inducing points: the centres of a few steps of k-means. Shape ``(M, 2)``."""
    distinct = x.unique(dim=0)
    first = torch.randperm(len(distinct), generator=generator)[:count]
    centres = distinct[first.to(x.device)]
    for _ in range(_LLOYD_STEPS):
        nearest = torch.cdist(x, centres).argmin(-1)
        sizes = torch.bincount(nearest, minlength=len(centres)).unsqueeze(-1)
        moved = torch.zeros_like(centres).index_add(0, nearest, x) / sizes.clamp(min=1)
        centres = torch.where(sizes > 0, moved, centres)
    return centres


def _parameters(x: Tensor, found: Mapping[str, Tensor]) -> Tensor:
    """Parameters log a, log b and c of every row. Shape ``(n, 3)``."""
    values = kernel(x, found["inducing"], found["lengthscale"], found["outputscale"])
    return found["constant"] + (values @ found["weights"].unsqueeze(-1)).squeeze(-1).mT


def _split(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows that the processes learn from, and rows that they are checked on."""
    chosen = torch.randperm(count, generator=generator)[:_MOST_ROWS]
    checked = max(int(_CHECKED * len(chosen)), 1)
    return chosen[checked:].sort().values, chosen[:checked].sort().values


def _helps(tails: Tails, x: Tensor, found: Mapping[str, Tensor]) -> bool:
    """Whether rows that the processes have not seen are more likely with them, by more than one standard error.

    The evidence bound would not tell: under a map that cannot be right (a beta map of residuals that are four times too
    large) it also rewards what is only chance.
    """
    gain = log_likelihood(tails, _parameters(x, found)) - log_likelihood(tails, found["constant"])
    return bool(gain.mean() > gain.std(correction=0) / math.sqrt(len(gain)))
