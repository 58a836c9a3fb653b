"""Vector families: their residuals are whitened by the Cholesky factor of the covariance."""

import torch
from torch import Tensor, distributions

from fcal.distributions.family import Family, register
from fcal.distributions.tails import LOG_SQRT_2PI


def _whiten(value: Tensor, loc: Tensor, scale_tril: Tensor) -> Tensor:
    error = (value - loc).unsqueeze(-1)
    return torch.linalg.solve_triangular(scale_tril, error, upper=False).squeeze(-1)


def _log_prob(value: Tensor, loc: Tensor, scale_tril: Tensor) -> Tensor:
    z = _whiten(value, loc, scale_tril)
    log_det = scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return -0.5 * z.square().sum(-1) - log_det - value.shape[-1] * LOG_SQRT_2PI


MULTIVARIATE_NORMAL = Family(
    parameters=("loc", "scale_tril"),
    residual=_whiten,
    log_prob=_log_prob,
    location="loc",
    event_dim=1,
    parameter_dims=(1, 2),
)


def _low_rank_tril(cov_factor: Tensor, cov_diag: Tensor) -> Tensor:
    """Cholesky factor of W W' + D, from the QR factors of [W, sqrt D]': forming the sum would lose a small D."""
    root = torch.cat([cov_factor, torch.diag_embed(cov_diag.sqrt())], dim=-1)
    _, upper = torch.linalg.qr(root.mT)
    return (upper * upper.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-1)).mT


def _low_rank_whiten(value: Tensor, loc: Tensor, cov_factor: Tensor, cov_diag: Tensor) -> Tensor:
    return _whiten(value, loc, _low_rank_tril(cov_factor, cov_diag))


def _low_rank_log_prob(value: Tensor, loc: Tensor, cov_factor: Tensor, cov_diag: Tensor) -> Tensor:
    return _log_prob(value, loc, _low_rank_tril(cov_factor, cov_diag))


LOW_RANK_MULTIVARIATE_NORMAL = Family(
    parameters=("loc", "cov_factor", "cov_diag"),
    residual=_low_rank_whiten,
    log_prob=_low_rank_log_prob,
    location="loc",
    event_dim=1,
    parameter_dims=(1, 2, 1),
)

register(distributions.MultivariateNormal, MULTIVARIATE_NORMAL)
register(distributions.LowRankMultivariateNormal, LOW_RANK_MULTIVARIATE_NORMAL)
