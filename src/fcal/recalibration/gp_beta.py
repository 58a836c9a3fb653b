"""GP-Beta: a beta map whose parameters depend on the prediction through Gaussian processes."""

import importlib
import math
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import logsigmoid

from fcal._checks import check_integer
from fcal.distributions import BetaMap, Warped, log_normal_cdf
from fcal.distributions.family import Law, law_of
from fcal.distributions.functional import quantile_of
from fcal.distributions.tails import mills_ratio
from fcal.recalibration.calibration_data import CalibrationData
from fcal.recalibration.quantile_maps import robust_spread
from fcal.recalibration.recalibrator import Recalibrator, register
from fcal.recalibration.scaling import minimise

_ONE_SIGMA = 0.5 * math.erfc(math.sqrt(0.5))  # probability below minus one sd of a normal distribution
_MAX_ROWS = 8192  # for fitting the process
_LLOYD_STEPS = 10
_HELD_OUT = 0.25  # share of the rows that checks the process
_JITTER = 1e-6  # on the diagonal of covariances, relative to their variance


class _Tails(NamedTuple):
    """Log-probabilities below and above residuals, and the absolute values of their derivatives. Shapes ``(n,)``."""

    log_below: Tensor
    log_above: Tensor
    rise: Tensor
    fall: Tensor

    def rows(self, where: Tensor) -> "_Tails":
        """The tails of some rows."""
        return _Tails(*(values[where] for values in self))


@register
class GPBeta(Recalibrator):
    r"""Distribution calibration by a Gaussian process over beta maps (Song et al. 2019), on GPyTorch.

    Probabilities are mapped by :math:`G(u) = \sigma(a \log u - b \log(1 - u) + c)`, where log a, log b and c depend on
    the predicted mean and sd (in general: median and half the width of the central 68 %): the most likely constant map
    plus three Gaussian processes, known at inducing points and fitted by natural gradients and Adam on the evidence
    bound. Repaired predictions use the mean of the processes; far from the calibration data that is the constant map.

    It repairs errors that depend on the prediction itself, which no other method does. But a beta map cannot express
    every scale error, so coverage can be off where that of :class:`Isotonic` would be nominal.

    Args:
        inducing: Number of inducing points.
        steps: Largest number of optimisation steps; fitting stops earlier when the bound no longer increases.
        generator: Draws the inducing points and the rows that the processes are fitted to, at most 8192 (the constant
            map is fitted to all). A fixed seed if None.

    Note:
        Only fitting needs GPyTorch (``pip install 'fcal[gp]'``). The random state of torch does not change. A quarter
        of the calibration data checks the processes: the constant map is kept unless they increase its mean
        log-likelihood by more than one standard error.

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

    def _fitted(self, data: CalibrationData) -> dict[str, Tensor]:
        variational_gp = importlib.import_module("fcal.recalibration.variational_gp")  # imports gpytorch
        data = data.without_wild_rows()
        robust_spread(data.z.sort().values)
        generator = torch.Generator().manual_seed(0) if self.generator is None else self.generator
        tails = _Tails(
            log_normal_cdf(data.z), log_normal_cdf(-data.z), 1 / mills_ratio(data.z), 1 / mills_ratio(-data.z)
        )
        constant = _best_constant(tails)
        raw = _inputs(data.law, data.target.shape)
        centre, spread = raw.mean(0), raw.std(0)
        spread = torch.where(spread > 1e-12, spread, 1.0)  # all values of an input may agree
        x = (raw - centre) / spread
        training, checking = _split(len(x), generator)
        inducing = _centres(x[training], self.inducing, generator)
        seed = int(torch.randint(2**31, (), generator=generator))
        expected = partial(_expected_log_likelihood, tails.rows(training), constant)
        try:
            means, lengthscale, outputscale = variational_gp.fit_processes(
                x[training], expected, inducing, steps=self.steps, seed=seed, jitter=_JITTER
            )
        except RuntimeError as error:  # GPyTorch's and torch's own of matrices that are not positive definite
            farthest = data.z.abs().max().item()
            raise ValueError(
                f"expected `pred` and `target` to which Gaussian processes can be fitted, got residuals up to "
                f"{farthest:.3g} sd; leave out such rows, or use scale-and-shape (or isotonic), which copes with them"
            ) from error
        prior = _kernel(inducing, inducing, lengthscale, outputscale)
        prior = prior + _JITTER * outputscale[:, None, None] * torch.eye(len(inducing)).to(prior)
        tensors = {
            "constant": constant,
            "centre": centre,
            "spread": spread,
            "inducing": inducing,
            "weights": torch.linalg.solve(prior, means.unsqueeze(-1)).squeeze(-1),
            "lengthscale": lengthscale,
            "outputscale": outputscale,
        }
        if not _helps(tails.rows(checking), x[checking], tensors):
            tensors["weights"] = torch.zeros_like(tensors["weights"])
        return tensors

    def _repaired(self, pred: Distribution, tensors: Mapping[str, Tensor]) -> Distribution:
        law = law_of(pred)
        like = law.parameters[0]
        local = {name: tensor.to(like.device) for name, tensor in tensors.items()}
        raw = _inputs(law.to(torch.float64), pred.batch_shape)
        parameters = _parameters((raw - local["centre"]) / local["spread"], local)
        a, b, c = (value.reshape(pred.batch_shape).to(like.dtype) for value in parameters.unbind(-1))
        return Warped(pred, BetaMap(a.exp(), b.exp(), c))


@torch.no_grad()
def _inputs(law: Law, shape: torch.Size) -> Tensor:
    """Median, and log of half the width of the central 68 %, of each prediction. Shape ``(n, 2)``."""
    like = law.parameters[0]
    below, middle, above = (
        quantile_of(law, like.new_full(shape, p), like.new_full(shape, 1 - p)).expand(shape).reshape(-1)
        for p in (_ONE_SIGMA, 0.5, 1 - _ONE_SIGMA)
    )
    smallest = torch.finfo(torch.float64).tiny
    return torch.stack([middle, ((above - below) / 2).clamp(min=smallest).log()], -1)


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


def _parameters(x: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
    """Parameters log a, log b and c of every row. Shape ``(n, 3)``."""
    values = _kernel(x, tensors["inducing"], tensors["lengthscale"], tensors["outputscale"])
    return tensors["constant"] + (values @ tensors["weights"].unsqueeze(-1)).squeeze(-1).mT


def _split(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows that the processes are fitted to, and rows that check them."""
    drawn = torch.randperm(count, generator=generator)[:_MAX_ROWS]
    held_out = max(int(_HELD_OUT * len(drawn)), 1)
    return drawn[held_out:].sort().values, drawn[:held_out].sort().values


def _log_likelihood(tails: _Tails, parameters: Tensor) -> Tensor:
    """Log-density of z where z' = g(z) is normal; the density of y differs by a constant that no map changes.

    The parameters are log a, log b and c, of shape ``(..., 3)``, where ``...`` broadcasts against ``(n,)``.
    """
    log_a, log_b, c = parameters.unbind(-1)
    a, b = log_a.exp(), log_b.exp()
    odds = a * tails.log_below - b * tails.log_above + c
    return logsigmoid(odds) + logsigmoid(-odds) + torch.log(a * tails.rise + b * tails.fall)


def _best_constant(tails: _Tails) -> Tensor:
    """Parameters log a, log b and c of the most likely constant map, by L-BFGS. Shape ``(3,)``."""
    at = torch.zeros(3, dtype=tails.rise.dtype, device=tails.rise.device).requires_grad_()
    minimise(lambda: -_log_likelihood(tails, at).mean(), at)
    return at.detach()


def _expected_log_likelihood(tails: _Tails, constant: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Expectation over normal differences from the constant, by the third-degree cubature rule with six points.

    Means and variances of the differences have the shape ``(n, 3)``.
    """
    offset = torch.diag_embed((3 * variance).sqrt())  # one parameter at a time
    points = (mean + constant).unsqueeze(-2)
    spread = torch.cat([points + offset, points - offset], -2)
    return _log_likelihood(_Tails(*(values.unsqueeze(-1) for values in tails)), spread).mean(-1)


def _kernel(x: Tensor, at: Tensor, lengthscale: Tensor, outputscale: Tensor) -> Tensor:
    """Squared-exponential kernels of the three processes. Shape ``(3, n, M)``."""
    scaled, centres = x / lengthscale.unsqueeze(-2), at / lengthscale.unsqueeze(-2)
    return outputscale[:, None, None] * torch.exp(-0.5 * torch.cdist(scaled, centres).square())


def _helps(tails: _Tails, x: Tensor, tensors: Mapping[str, Tensor]) -> bool:
    """Whether held-out rows are more likely with the processes, by more than one standard error.

    The evidence bound cannot decide: if no beta map is right (residuals four times too large) it rewards chance.
    """
    gain = _log_likelihood(tails, _parameters(x, tensors)) - _log_likelihood(tails, tensors["constant"])
    return bool(gain.mean() > gain.std(correction=0) / math.sqrt(len(gain)))
