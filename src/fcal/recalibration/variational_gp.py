"""Three Gaussian processes that share their inputs, by variational inference with GPyTorch.

Imported only when a :class:`fcal.recalibration.GPBeta` is fitted.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # from torch, about a dependency of gpytorch
        import gpytorch
except ImportError:
    raise ImportError("expected gpytorch for GPBeta; pip install 'fcal[gp]'") from None

_PATIENCE = 10  # steps between two checks of the bound
_MIN_GAIN = 2e-5  # nats per row between two checks


class _Process(gpytorch.models.ApproximateGP):  # type: ignore[misc]  # gpytorch has no types
    """Three independent processes, each with its own kernel, that share inducing points."""

    def __init__(self, inducing: Tensor, *, outputscale: float, jitter: float) -> None:
        batch = torch.Size([3])
        variational = gpytorch.variational.NaturalVariationalDistribution(len(inducing), batch_shape=batch)
        strategy = gpytorch.variational.VariationalStrategy(
            self, inducing.expand(3, *inducing.shape), variational, learn_inducing_locations=False, jitter_val=jitter
        )
        super().__init__(gpytorch.variational.IndependentMultitaskVariationalStrategy(strategy, num_tasks=3))
        self.mean_module = gpytorch.means.ZeroMean(batch_shape=batch)
        inner = gpytorch.kernels.RBFKernel(ard_num_dims=inducing.shape[-1], batch_shape=batch)
        self.covar_module = gpytorch.kernels.ScaleKernel(inner, batch_shape=batch)
        self.covar_module.outputscale = outputscale

    def forward(self, x: Tensor) -> Any:
        """The prior at x."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def fit_processes(
    x: Tensor,
    expected_log_likelihood: Callable[[Tensor, Tensor], Tensor],
    inducing: Tensor,
    *,
    steps: int,
    seed: int,
    jitter: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Fit three processes with mean 0, given what their values at each row mean for the likelihood.

    Natural gradients for the variational distribution, Adam for the kernels, all rows in every step. Fitting stops
    after ``steps``, or when the evidence bound increases by less than 2e-5 nats per row in ten steps.

    Args:
        x: Inputs, standardised. Shape ``(n, inputs)``, float64.
        expected_log_likelihood: Of each row, given means and variances of the processes there, of shape ``(n, 3)``.
        inducing: Shape ``(M, inputs)``.
        steps: Largest number of steps.
        seed: Seed of GPyTorch's initial values; the random state of torch does not change.
        jitter: Added to the diagonal of covariances.

    Returns:
        Means at the inducing points, of shape ``(3, M)``, length scales of shape ``(3, inputs)``, and variances of
        shape ``(3,)``.

    Raises:
        RuntimeError: A covariance matrix is not positive definite: the inputs or likelihoods are too extreme.
    """
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of jitter that is added to a matrix, again and again
        torch.manual_seed(seed)
        process = _Process(inducing, outputscale=0.1, jitter=jitter).to(x)
        process.train()
        process(x[:1])  # initialises the variational distribution with the prior
        natural = gpytorch.optim.NGD(process.variational_parameters(), num_data=len(x), lr=0.1)
        kernels = torch.optim.Adam(process.hyperparameters(), lr=0.05)
        best = -float("inf")
        for step in range(steps):
            natural.zero_grad()
            kernels.zero_grad()
            posterior = process(x)
            expected = expected_log_likelihood(posterior.mean, posterior.variance).mean()
            bound = expected - process.variational_strategy.kl_divergence() / len(x)
            (-bound).backward()
            natural.step()
            kernels.step()
            if step % _PATIENCE == _PATIENCE - 1:
                if not bound.item() > best + _MIN_GAIN:
                    break
                best = bound.item()
    process.eval()
    with torch.no_grad():
        means = process(inducing).mean.mT
    lengthscale = process.covar_module.base_kernel.lengthscale.detach().squeeze(-2).contiguous()
    return means, lengthscale, process.covar_module.outputscale.detach().contiguous()
