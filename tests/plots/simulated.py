"""Reports made by hand from simulated errors, with SciPy: pictures are tested without the code that fills them."""

from dataclasses import replace
from functools import cache

import numpy as np
from scipy import stats

from fcal.metrics.report import (
    LEVELS,
    Curves,
    Floor,
    Histogram,
    Interval,
    Reliability,
    Report,
    ScoreDecomposition,
    SigmaBins,
    Sparsification,
)

KINDS = {
    "calibrated": lambda rng, n: rng.standard_normal(n),
    "over-confident": lambda rng, n: 1.8 * rng.standard_normal(n),
    "under-confident": lambda rng, n: 0.55 * rng.standard_normal(n),
    "biased": lambda rng, n: 0.6 + rng.standard_normal(n),
    "wrong shape": lambda rng, n: rng.standard_t(2.5, n) / np.sqrt(5),
}


def simulated(kind="calibrated", n=5000, *, seed=0, groups=(), fitted_on=False):
    """A report of ``n`` errors of one kind, and of ``n // 20`` in each named group."""
    return _report(kind, n, seed, tuple(groups), fitted_on)


@cache  # reports are frozen
def _report(kind, n, seed, groups, fitted_on, bins=20, df=75):
    rng = np.random.default_rng(seed)
    z = KINDS[kind](rng, n)
    sigma = np.exp(0.6 * rng.standard_normal(n) - 1)
    q = rng.choice(z, (4000, df)).__pow__(2).sum(1)
    ece = lambda p: float((p * np.abs(1 / bins - p)).sum())  # noqa: E731
    mce = lambda p: float(np.abs(1 / bins - p).max())  # noqa: E731
    share_z, share_q = (np.histogram(u, bins, (0, 1))[0] / len(u) for u in (stats.norm.cdf(z), stats.chi2.cdf(q, df)))
    least = Floor(0.8 / np.sqrt(bins * n), 1.4 / np.sqrt(bins * n))
    most = Floor(2 * least.expected, 2 * least.q95)
    scale, shift, error = float(z.std()), float(z.mean()), z * sigma
    return Report(
        n=n,
        df=df,
        bins=bins,
        nll=float((0.5 * z**2 + np.log(sigma)).mean() + 0.919),
        crps=float(0.3 * scale),
        rmse=float(np.sqrt((error**2).mean())),
        bias=float(error.mean()),
        sharpness=float(np.sqrt((sigma**2).mean())),
        ece_z=ece(share_z),
        mce_z=mce(share_z),
        ece_q=ece(share_q),
        mce_q=mce(share_q),
        kld_z=0.5 * (scale**-2 + shift**2 - 1 + 2 * np.log(scale)),
        wdist_z=shift**2 + (scale - 1) ** 2,
        kld_q=1.25,
        wdist_q=31.5,
        ence=abs(scale - 1),
        ause=0.21,
        coverage={f"{level:g}": float((np.abs(z) <= stats.norm.ppf(0.5 + level / 2)).mean()) for level in LEVELS},
        scale=Interval(scale, scale * (1 - 1.4 / np.sqrt(n)), scale * (1 + 1.4 / np.sqrt(n))),
        shift=Interval(shift, shift - 2 * scale / np.sqrt(n), shift + 2 * scale / np.sqrt(n)),
        shape=0.01,
        verdict=kind,
        conclusive=True,
        reason=f"errors are {scale:.2f} times as large as the error bars say, and {shift:.2f} sigma off on average",
        p_value=0.31,
        ece_z_floor=least,
        mce_z_floor=most,
        ece_q_floor=most,
        mce_q_floor=most,
        ence_floor=least,
        clusters=None,
        assumption="assumes independent rows",
        fitted_on=fitted_on,
        warnings=(),
        nll_split=ScoreDecomposition(0.02, 0.3, 1.4),
        crps_split=ScoreDecomposition(0.002, 0.03, 0.14),
        curves=_curves(z, q, sigma, error, bins, n),
        groups={
            name: simulated(list(KINDS)[k % 5 if k % 3 == 0 else 0], max(n // 20, 10), seed=seed + 1 + k)
            for k, name in enumerate(groups)
        },
    )


def _curves(z, q, sigma, error, bins, n):
    p = np.linspace(0, 1, bins + 1)
    ends = stats.norm.ppf(p), stats.norm.ppf(0.5 + p / 2), stats.chi2.ppf(p, 75)
    shares = [
        np.searchsorted(np.sort(x), end, "right") / len(x) for x, end in zip((z, np.abs(z), q), ends, strict=True)
    ]
    half = 1.96 * np.sqrt(p * (1 - p) / n)
    reliability = [Reliability(_t(p), _t(s), _t(np.maximum(p - h, 0)), _t(np.minimum(p + h, 1)))
                   for s, h in zip(shares, (half, half, 3 * half), strict=True)]  # fmt: skip
    order = np.argsort(sigma)
    parts = np.array_split(order, min(15, n // 2))
    rms = lambda x: np.sqrt((x**2).mean())  # noqa: E731
    mid = np.array([rms(sigma[part]) for part in parts])
    width = 1.96 / np.sqrt(2 * np.array([len(part) for part in parts]))
    sizes = np.linspace(0, 0.98, 50)
    kept = [int(np.ceil(n * (1 - s))) for s in sizes]
    return Curves(
        z=reliability[0],
        central=reliability[1],
        q=reliability[2],
        z_histogram=_histogram(z, np.linspace(-5, 5, 51)),
        q_histogram=_histogram(q, np.linspace(0, 250, 51)),
        qq=(_t(stats.norm.ppf(np.linspace(0.005, 0.995, 67))), _t(np.quantile(z, np.linspace(0.005, 0.995, 67)))),
        sigma=SigmaBins(
            sigma=_t(mid),
            error=_t([rms(error[part]) for part in parts]),
            low=_t(mid * (1 - width)),
            high=_t(mid * (1 + width)),
            count=tuple(len(part) for part in parts),
        ),
        sparsification=Sparsification(
            dropped=_t(sizes),
            by_sigma=_t([rms(error[order[:k]]) / rms(error) for k in kept]),
            by_error=_t([rms(np.sort(np.abs(error))[:k]) / rms(error) for k in kept]),
        ),
    )


def _histogram(values, edges):
    counts = np.histogram(values, edges)[0]
    return Histogram(_t(edges), _t(counts / len(values) / np.diff(edges)), float(1 - counts.sum() / len(values)))


def _t(values):
    return tuple(float(value) for value in values)


def without_sd(report):
    """The same report as of a prediction that has no mean and no sd."""
    curves = replace(report.curves, sigma=None, sparsification=None)
    missing = dict.fromkeys(("rmse", "bias", "sharpness", "ence", "ence_floor", "ause", "crps", "crps_split"))
    return replace(report, **missing, curves=curves)
