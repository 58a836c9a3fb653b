"""Definitions of every number of a report, written with numpy and SciPy from the formulas."""

import numpy as np
from scipy import stats

LEVELS = (0.5, 0.68, 0.9, 0.95, 0.99)


def shares_of_z(z, bins):
    """Share of residuals in bins of equal probability under N(0, 1)."""
    edges = stats.norm.ppf(np.arange(1, bins) / bins)
    return np.bincount(np.searchsorted(edges, z, side="right"), minlength=bins) / len(z)


def shares_of_q(q, df, bins):
    """Share of sums in bins of equal probability under chi-squared."""
    edges = stats.chi2.ppf(np.arange(1, bins) / bins, df)
    return np.bincount(np.searchsorted(edges, q, side="right"), minlength=bins) / len(q)


def ece(shares):
    return sum(p * abs(1 / len(shares) - p) for p in shares)


def mce(shares):
    return max(abs(1 / len(shares) - p) for p in shares)


def drawn_sums(z, df, draws, seed=0):
    """Sums of squares drawn with replacement, by multinomial weights or one by one, whichever is smaller."""
    rng = np.random.default_rng(seed)
    chunk = max(1, 4_000_000 // df)
    parts = [rng.choice(z**2, (min(chunk, draws - k), df)).sum(1) for k in range(0, draws, chunk)]
    return np.concatenate(parts)


def kl_between_normals(m0, v0, m1, v1):
    """KL(N(m0, v0) || N(m1, v1))."""
    return 0.5 * (v0 / v1 + (m1 - m0) ** 2 / v1 - 1 + np.log(v1 / v0))


def squared_w2_between_normals(m0, v0, m1, v1):
    return (m0 - m1) ** 2 + (np.sqrt(v0) - np.sqrt(v1)) ** 2


def crps_normal(y, m, s):
    z = (y - m) / s
    return s * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi))


def ause(sigma, error):
    """Area between the curves of the RMSE that remains, as the textbook has it: sort, drop one by one."""
    n = len(error)
    kept = n - np.arange(n)
    curves = []
    for rank_by in (sigma, np.abs(error)):
        square = (error**2)[np.argsort(-rank_by, kind="stable")]
        remaining = square[::-1].cumsum()[::-1]
        curves.append(np.sqrt(remaining / kept) / np.sqrt((error**2).mean()))
    dropped = np.arange(n) / n
    inside = dropped <= 0.99
    gap = (curves[0] - curves[1])[inside]
    return np.trapezoid(gap, dropped[inside]) / dropped[inside][-1]


def numbers(mean, sigma, y, *, bins, df):
    """The numbers of a report that have a closed definition."""
    mean, sigma, y = (np.asarray(x, dtype=np.float64) for x in (mean, sigma, y))
    error = y - mean
    z = error / sigma
    share = shares_of_z(z, bins)
    q_mean, q_var = df * (z**2).mean(), df * (z**2).var()
    return {
        "n": len(y),
        "nll": -stats.norm.logpdf(y, mean, sigma).mean(),
        "crps": crps_normal(y, mean, sigma).mean(),
        "rmse": np.sqrt((error**2).mean()),
        "bias": error.mean(),
        "sharpness": np.sqrt((sigma**2).mean()),
        "ece_z": ece(share),
        "mce_z": mce(share),
        "kld_z": kl_between_normals(0, 1, z.mean(), z.var()),
        "wdist_z": squared_w2_between_normals(0, 1, z.mean(), z.var()),
        "kld_q": kl_between_normals(df, 2 * df, q_mean, q_var),
        "wdist_q": squared_w2_between_normals(df, 2 * df, q_mean, q_var),
        "coverage": {f"{p:g}": np.mean(np.abs(z) <= stats.norm.ppf(0.5 + p / 2)) for p in LEVELS},
        "scale": z.std(),
        "shift": z.mean(),
    }
