"""What torch.distributions lacks: log-tails, quantiles and residuals of every family, and a Logistic."""

from fcal.distributions.family import Family, families, register
from fcal.distributions.functions import log_cdf, log_survival, quantile
from fcal.distributions.law import Law, law_of
from fcal.distributions.location_scale import NORMAL
from fcal.distributions.logistic import Logistic
from fcal.distributions.multivariate import MULTIVARIATE_NORMAL
from fcal.distributions.observation import Observation, check_devices, observe, result_dtype
from fcal.distributions.positive import LOG_NORMAL
from fcal.distributions.tails import log1mexp_of_log, log_normal_cdf, normal_quantile, normal_quantile_of_log

__all__ = [
    "LOG_NORMAL",
    "MULTIVARIATE_NORMAL",
    "NORMAL",
    "Family",
    "Law",
    "Logistic",
    "Observation",
    "check_devices",
    "families",
    "law_of",
    "log1mexp_of_log",
    "log_cdf",
    "log_normal_cdf",
    "log_survival",
    "normal_quantile",
    "normal_quantile_of_log",
    "observe",
    "quantile",
    "register",
    "result_dtype",
]
