"""Gaussian processes over the three parameters of a beta map, by variational inference with GPyTorch.

Imported only when a :class:`fcal.recalibration.GPBeta` is fitted.
"""

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fcal.recalibration.beta_likelihood import BetaLikelihood, Tails, kernel

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # from torch, about a dependency of gpytorch
        import gpytorch
except ImportError:
    raise ImportError("expected gpytorch for GPBeta; pip install 'fcal[gp]'") from None

_JITTER = 1e-6
_PATIENCE = 10  # steps between two checks of the bound
_MIN_GAIN = 2e-5  # nats per row between two checks


class FittedProcess(NamedTuple):
    """Tensors that determine the mean of the processes.

    Attributes:
        weights: Weights of the kernels at the inducing points. Shape ``(3, M)``.
        lengthscale: Shape ``(3, inputs)``.
        outputscale: Variance of each process. Shape ``(3,)``.
    """

    weights: Tensor
    lengthscale: Tensor
    outputscale: Tensor


class _Process(gpytorch.models.ApproximateGP):  # type: ignore[misc]  # gpytorch has no types
    """Three independent processes, each with its own kernel, that share inducing points."""

    def __init__(self, inducing: Tensor, outputscale: float) -> None:
        batch = torch.Size([3])
        variational = gpytorch.variational.NaturalVariationalDistribution(len(inducing), batch_shape=batch)
        strategy = gpytorch.variational.VariationalStrategy(
            self, inducing.expand(3, *inducing.shape), variational, learn_inducing_locations=False, jitter_val=_JITTER
        )
        super().__init__(gpytorch.variational.IndependentMultitaskVariationalStrategy(strategy, num_tasks=3))
        self.mean_module = gpytorch.means.ZeroMean(batch_shape=batch)
        inner = gpytorch.kernels.RBFKernel(ard_num_dims=inducing.shape[-1], batch_shape=batch)
        self.covar_module = gpytorch.kernels.ScaleKernel(inner, batch_shape=batch)
        self.covar_module.outputscale = outputscale

    def forward(self, x: Tensor) -> Any:
        """The prior at x."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def fit_process(x: Tensor, tails: Tails, constant: Tensor, inducing: Tensor, *, steps: int, seed: int) -> FittedProcess:
    """Fit the differences of log a, log b and c from the best constant map.

    Natural gradients for the variational distribution, Adam for the kernels, all rows in every step. Fitting stops
    after ``steps``, or when the evidence bound increases by less than 2e-5 nats per row in ten steps.

    Args:
        x: Inputs, standardised. Shape ``(n, inputs)``, float64.
        tails: Tails of the calibration residuals.
        constant: log a, log b and c of the constant map. Shape ``(3,)``.
        inducing: Shape ``(M, inputs)``.
        steps: Largest number of steps.
        seed: Seed of GPyTorch's initial values; the random state of torch does not change.
    """
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        process = _Process(inducing, outputscale=0.1).to(x)
        process.train()
        process(x[:1])  # initialises the variational distribution with the prior
        bound = _Bound(process, x, BetaLikelihood(tails, constant))
        _train(process, bound, steps)
        with torch.no_grad():
            return _extracted(process, inducing)


class _Bound(NamedTuple):
    """The evidence bound, in nats per row."""

    process: Any
    x: Tensor
    likelihood: BetaLikelihood

    def value(self) -> Tensor:
        posterior = self.process(self.x)
        expected = self.likelihood.expected(posterior.mean, posterior.variance).mean()
        return expected - self.process.variational_strategy.kl_divergence() / len(self.x)


def _train(process: Any, bound: _Bound, steps: int) -> None:
    natural = gpytorch.optim.NGD(process.variational_parameters(), num_data=len(bound.x), lr=0.1)
    kernels = torch.optim.Adam(process.hyperparameters(), lr=0.05)
    best = -float("inf")
    for step in range(steps):
        natural.zero_grad()
        kernels.zero_grad()
        value = bound.value()
        (-value).backward()
        natural.step()
        kernels.step()
        if step % _PATIENCE == _PATIENCE - 1:
            if not value.item() > best + _MIN_GAIN:
                break
            best = value.item()


def _extracted(process: Any, inducing: Tensor) -> FittedProcess:
    process.eval()
    lengthscale = process.covar_module.base_kernel.lengthscale.detach().squeeze(-2)
    outputscale = process.covar_module.outputscale.detach()
    means = process(inducing).mean.mT
    prior = kernel(inducing, inducing, lengthscale, outputscale)
    prior = prior + _JITTER * outputscale[:, None, None] * torch.eye(len(inducing)).to(prior)
    weights = torch.linalg.solve(prior, means.unsqueeze(-1)).squeeze(-1)
    return FittedProcess(weights, lengthscale.contiguous(), outputscale.contiguous())
