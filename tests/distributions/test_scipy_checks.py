"""SciPy's own checks of a continuous distribution, run on every scalar family by an adapter that computes with fcal.

Which checks run for which law is decided by ``LAWS`` alone. Not run, and why:

- ``check_cmplx_deriv``: no law; the formulas are of real tensors, and their derivatives come from autograd.
- ``check_munp_expect``: no law; it is for laws with a formula of their own for higher moments, which fcal has not.
- moments (``check_moment``, ``check_mean_expect``, ``check_var_expect``, ``check_skew_expect``, ``check_kurt_expect``):
  not for Cauchy, which has none.
- ``check_private_entropy``: only for laws whose class has an entropy; MixtureSameFamily, TruncatedNormal, Logistic and
  some of torch's have none.
- ``check_pdf_logpdf_at_endpoints``: no law; fcal refuses a value on the open end of a support, where torch has
  densities of its own.
- ``check_pdf``: not for StudentT, whose F has a step of 1e-10 at the median, where the two sides of a quadrature meet;
  the check divides it by 2e-6 and allows 1.5e-5.
- ``check_rvs_broadcast``: no law; it tests SciPy's sampling and not a formula of ours.
- fits: no law; fcal does not fit.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from references import mixture_kind
from scipy import stats
from scipy.integrate import IntegrationWarning
from scipy.stats.tests import common_tests as checks
from scipy.stats.tests import test_continuous_basic as basic
from torch import distributions

import fcal
from fcal.distributions import AsymmetricLaplace, Logistic, TruncatedNormal, log_cdf, log_survival, quantile

DEFAULTS = (0, 1)  # of SciPy's own loc and scale
Ends = tuple[float, float]


@dataclass(frozen=True)
class Law:
    """A family with parameters that leave it four moments, and its support."""

    kind: Callable[..., distributions.Distribution]
    parameters: tuple[float, ...]
    support: Callable[..., tuple[object, object]] = lambda *_: (-np.inf, np.inf)
    has_moments: bool = True
    has_entropy: bool = True


def _positive(*_: object) -> Ends:
    return 0.0, np.inf


LAWS: dict[str, Law] = {
    "Normal": Law(distributions.Normal, (0.3, 1.7)),
    "Laplace": Law(distributions.Laplace, (0.3, 1.7)),
    "Logistic": Law(Logistic, (0.3, 0.7), has_entropy=False),
    "Cauchy": Law(distributions.Cauchy, (0.3, 1.7), has_moments=False),
    "Gumbel": Law(distributions.Gumbel, (0.3, 0.7)),
    "LogNormal": Law(distributions.LogNormal, (0.3, 0.3), _positive),
    "Weibull": Law(distributions.Weibull, (1.3, 1.7), _positive),
    "Exponential": Law(distributions.Exponential, (1.3,), _positive),
    "HalfNormal": Law(distributions.HalfNormal, (1.3,), _positive),
    "Uniform": Law(distributions.Uniform, (0.0, 1.7), lambda low, high: (low, high)),
    "StudentT": Law(distributions.StudentT, (15.0, 0.3, 0.7)),
    "Gamma": Law(distributions.Gamma, (2.3, 1.3), _positive),
    "Chi2": Law(distributions.Chi2, (3.1,), _positive),
    "InverseGamma": Law(distributions.InverseGamma, (15.0, 8.0), _positive),
    "Beta": Law(distributions.Beta, (1.7, 3.2), lambda *_: (0.0, 1.0)),
    "FisherSnedecor": Law(distributions.FisherSnedecor, (7.0, 40.0), _positive, has_entropy=False),
    "GeneralizedPareto": Law(
        distributions.GeneralizedPareto, (0.0, 1.7, -0.2), lambda loc, scale, k: (loc, loc - scale / k)
    ),
    "AsymmetricLaplace": Law(AsymmetricLaplace, (0.3, 0.7, 1.4)),
    "TruncatedNormal": Law(
        TruncatedNormal, (0.3, 1.7, 0.0, 2.5), lambda _, __, low, high: (low, high), has_entropy=False
    ),
    "mixture": Law(mixture_kind(2, distributions.Normal), (0.2, -0.5, -1.0, 2.0, 0.7, 1.6), has_entropy=False),
}


class Adapter(stats.rv_continuous):
    """A family as SciPy sees it; its shape parameters are ours, SciPy's own loc and scale stay outside."""

    def _law(self, x, args):
        arrays = np.broadcast_arrays(np.asarray(x, dtype=float), *args)
        value, *parameters = (torch.tensor(np.array(a, dtype=float)) for a in arrays)
        return LAWS[self.name].kind(*parameters), value

    def _argcheck(self, *args):
        return np.all([np.isfinite(a) for a in args], axis=0)

    def _get_support(self, *args):
        low, high = LAWS[self.name].support(*args)
        return (np.asarray(low, dtype=float) + 0.0 * args[0], np.asarray(high, dtype=float) + 0.0 * args[0])

    def _logpdf(self, x, *args):
        return -fcal.nll(*self._law(x, args)).numpy()

    def _pdf(self, x, *args):
        return np.exp(self._logpdf(x, *args))

    def _logcdf(self, x, *args):
        return log_cdf(*self._law(x, args)).numpy()

    def _cdf(self, x, *args):
        return np.exp(self._logcdf(x, *args))

    def _logsf(self, x, *args):
        return log_survival(*self._law(x, args)).numpy()

    def _sf(self, x, *args):
        return np.exp(self._logsf(x, *args))

    def _ppf(self, q, *args):
        law, p = self._law(q, args)
        return quantile(law, p).numpy()

    def _isf(self, q, *args):
        law, p = self._law(q, args)
        return quantile(law, 1 - p, p).numpy()

    def _entropy(self, *args):
        if not LAWS[self.name].has_entropy:
            return super()._entropy(*args)
        return self._law(0.5, args)[0].entropy().numpy()


def adapter(name: str) -> Adapter:
    shapes = ", ".join(f"p{k}" for k in range(len(LAWS[name].parameters)))
    low, high = LAWS[name].support(*LAWS[name].parameters)
    return Adapter(name=name, shapes=shapes, a=low, b=high, momtype=0)  # moments from the density


pytestmark = pytest.mark.parametrize("name", LAWS)
MOMENTS = [name for name, law in LAWS.items() if law.has_moments]


def moments(name: str) -> tuple[float, float]:
    law = LAWS[name].kind(*(torch.tensor(p, dtype=torch.float64) for p in LAWS[name].parameters))
    return law.mean.item(), law.variance.item()


def test_scipy_normalization(name):
    checks.check_normalization(adapter(name), LAWS[name].parameters, name)


def test_scipy_moments(name):
    if not LAWS[name].has_moments:
        pytest.skip("it has none")
    law, args = adapter(name), LAWS[name].parameters
    mean, variance = moments(name)  # torch's or ours, while the distribution integrates its density
    checks.check_mean_expect(law, args, mean, name)
    checks.check_var_expect(law, args, mean, variance, name)
    m, v, s, k = law.stats(*args, moments="mvsk")
    checks.check_moment(law, args, m, v, name)
    checks.check_skew_expect(law, args, m, v, s, name)
    checks.check_kurt_expect(law, args, m, v, k, name)
    np.testing.assert_allclose((m, v), (mean, variance), rtol=1e-6)


def test_scipy_entropy(name):
    law, args = adapter(name), LAWS[name].parameters
    with np.errstate(divide="ignore", invalid="ignore"):  # NumPy reports flags that torch leaves up in the processor
        checks.check_entropy(law, args, name)
        if LAWS[name].has_entropy:
            checks.check_private_entropy(law, args, stats.rv_continuous)
    with (
        np.errstate(divide="ignore"),
        warnings.catch_warnings(),
    ):  # as in SciPy's own test: a negative scale is tried too
        warnings.filterwarnings("ignore", "The occurrence of roundoff error", IntegrationWarning)
        warnings.filterwarnings("ignore", "invalid value", RuntimeWarning)
        checks.check_entropy_vect_scale(law, args)


def test_scipy_tails_and_quantiles_belong_together(name):
    law, args = adapter(name), LAWS[name].parameters
    if name != "StudentT":
        basic.check_pdf(law, args, name)
    for check in (
        basic.check_cdf_ppf,
        basic.check_sf_isf,
        basic.check_cdf_sf,
        basic.check_ppf_isf,
        basic.check_pdf_logpdf,
        basic.check_ppf_broadcast,
    ):
        check(law, args, name)
    with np.errstate(divide="ignore"):  # log 0 at the ends
        basic.check_cdf_logcdf(law, args, name)
        basic.check_sf_logsf(law, args, name)
    basic.check_ppf_private(law, args, name)


def test_scipy_support(name):
    law, args = adapter(name), LAWS[name].parameters
    checks.check_edge_support(law, args)
    basic.check_retrieving_support(law, args)


def test_scipy_plumbing(name):
    # names, freezing, pickling and dtypes: what a user of the adapter sees
    law, args = adapter(name), LAWS[name].parameters
    methods = [law.pdf, law.logpdf, law.cdf, law.logcdf, law.logsf]
    checks.check_named_args(law, 0.5, args, DEFAULTS, methods)
    checks.check_random_state_property(law, args)
    checks.check_pickling(law, args)
    checks.check_freezing(law, args)
    checks.check_meth_dtype(law, args, methods)
    checks.check_ppf_dtype(law, args)


def test_scipy_kolmogorov_smirnov_of_own_draws(name):
    # 2,000 draws of torch's own sampler; the false-alarm rate is 1e-4 per distribution
    torch.manual_seed(0)
    law, args = adapter(name), LAWS[name].parameters
    draws = LAWS[name].kind(*(torch.tensor(p, dtype=torch.float64) for p in args)).sample((2000,)).numpy()
    assert stats.kstest(draws, law.cdf, args=args).pvalue > 1e-4
