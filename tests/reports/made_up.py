"""Results of a benchmark that nobody ran: random numbers in the shape of real ones."""

import numpy as np
from scipy import stats

from fcal.plots.styles import ColumnStyle, RowStyle

METHODS = (
    "oracle",
    "deterministic",
    "nll",
    "nll_all",
    "calibration_loss",
    "beta_nll",
    "mmd",
    "pce_kde",
    "temperature",
    "isotonic",
    "isotonic_moments",
    "gp_beta",
    "conformal",
    "fcal_kl",
    "fcal_wass",
    "fcal_wass_all",
)
TITLES = {
    "oracle": "oracle",
    "nll": "NLL",
    "calibration_loss": "calibration loss",
    "beta_nll": "beta-NLL",
    "mmd": "MMD",
    "pce_kde": "PCE-KDE",
    "gp_beta": "GP-Beta",
    "fcal_kl": "f-Cal-KL",
    "fcal_wass": "f-Cal-Wass",
}
HIGHLIGHTED = ("fcal_wass", "nll", "fcal_kl", "temperature", "calibration_loss")


def _row_style(name):
    base = name.removesuffix("_all")
    title = TITLES.get(base, base)
    if base != name:
        return RowStyle(title, "all data", footnote="Rows “all data” are also trained on the held-out data.")
    rank = HIGHLIGHTED.index(name) if name in HIGHLIGHTED else None
    return RowStyle(title, highlight=rank, reference=name == "oracle")


ROWS = {name: _row_style(name) for name in METHODS}
_SMOOTH = "L1 is a smooth L1 (Huber's loss) of the predicted mean."
COLUMNS = {
    "l1_gt": ColumnStyle("L1(GT)", footnote=_SMOOTH),
    "l1": ColumnStyle("L1", footnote=_SMOOTH),
    "ece_z": ColumnStyle("ECE(z)"),
    "mce_z": ColumnStyle("MCE(z)"),
    "ece_q": ColumnStyle("ECE(q)", "expected calibration error of sums"),
    "mce_q": ColumnStyle("MCE(q)"),
    "nll": ColumnStyle("NLL"),
    "crps": ColumnStyle("CRPS"),
    "ence": ColumnStyle("ENCE"),
    "sigma_corr": ColumnStyle("corr(sigma)", lower_is_better=False),
    "train_s": ColumnStyle("train, s", ranked=False),
    "predict_ms": ColumnStyle("predict, ms", ranked=False),
}
_SIZES = dict(zip(COLUMNS, (0.0016, 0.0021, 0.02, 0.05, 0.3, 0.5, -1.3, 0.02, 0.1, 0.5, 60, 0.9), strict=True))


def made_up_table(noise="heteroscedastic", regime="paper-like", *, seeds=5, methods=METHODS, figures=True):
    """A table of random numbers, with a failed row, floors, numbers of a paper, and figures."""
    rng = np.random.default_rng(len(noise) + 7 * seeds)
    rows = {method: _row(method, seeds, rng) for method in methods}
    if "mmd" in rows:
        rows["mmd"] |= {"status": "failed", "reason": "the loss was not finite after epoch 3"}
    table = {
        "noise": noise,
        "regime": regime,
        "seeds": seeds,
        "bins": 20,
        "df": 75,
        "n_test": 20_000,
        "columns": list(COLUMNS),
        "rows": rows,
        "floors": {"ece_z": {"expected": 0.0011, "q95": 0.0021}, "ece_q": {"expected": 0.006, "q95": 0.014}},
        "paper": {
            "nll": {"l1": [0.0022, 0.0004], "ece_z": [0.016, 0.004], "ece_q": [0.854, 0.109], "nll": [-1.31, 0.14]},
            "fcal_wass": {"l1": [0.0021, 0.0003], "ece_z": [0.006, 0.001], "ece_q": [0.037, 0.0022], "nll": None},
        },
        "paper_grid": {"bins": "20 to 25", "df": "75 to 100", "note": "made up"},
    }
    if figures:
        drawn = [method for method in methods if method not in ("deterministic", "conformal")]
        table["curves"] = {method: _curves(rng) for method in drawn}
        table["gallery"] = [_shot(rng, drawn) for _ in range(8)]
        table["learning"] = {method: _history(rng) for method in ("nll", "fcal_kl", "fcal_wass", "mmd")}
    return table


def _row(method, seeds, rng):
    row = {}
    for column, size in _SIZES.items():
        values = [float(size * (1 + 0.3 * rng.standard_normal())) for _ in range(seeds)]
        if method == "deterministic" and column not in ("l1_gt", "l1", "train_s", "predict_ms"):
            row[column] = None
        else:
            sd = float(np.std(values, ddof=1)) if seeds > 1 else None
            row[column] = {"mean": float(np.mean(values)), "sd": sd}
        row.setdefault("seeds", {})[column] = values
    row["ence_floor"] = None if method == "deterministic" else {"expected": 0.02, "q95": 0.05}
    return row


def _curves(rng):
    """Exact curves of z = scale * N(0, 1), by SciPy."""
    scale = float(np.exp(0.12 * rng.standard_normal()))
    p = np.linspace(0, 1, 21)
    z = np.linspace(-5, 5, 41)
    q = np.linspace(20, 180, 41)
    return {
        "z": {"nominal": p.tolist(), "empirical": stats.norm.cdf(stats.norm.ppf(p) / scale).tolist()},
        "q": {"nominal": p.tolist(), "empirical": stats.chi2.cdf(stats.chi2.ppf(p, 75) / scale**2, 75).tolist()},
        "z_histogram": [z.tolist(), (np.diff(stats.norm.cdf(z / scale)) / np.diff(z)).tolist()],
        "q_histogram": [q.tolist(), (np.diff(stats.chi2.cdf(q / scale**2, 75)) / np.diff(q)).tolist()],
    }


def _shot(rng, methods):
    y, x = np.mgrid[:64, :64] / 64
    image = np.full((64, 64, 3), 40, dtype=np.uint8)
    for _ in range(6):
        (cx, cy), r = rng.uniform(0, 1, 2), rng.uniform(0.05, 0.18)
        image[(x - cx) ** 2 + (y - cy) ** 2 < r**2] = rng.integers(60, 255, 3)
    centre = rng.uniform(0.15, 0.85, 2)
    image[(x - centre[0]) ** 2 + (y - centre[1]) ** 2 < 0.08**2] = (230, 30, 30)
    sigma = np.full(2, rng.uniform(0.01, 0.05))
    predictions = {}
    for method in methods:
        error = 0.03 * rng.standard_normal(2)
        predictions[method] = {"mean": (centre + error).tolist(), "sigma": rng.uniform(0.02, 0.06, 2).tolist()}
    label = (centre + sigma * rng.standard_normal(2)).tolist()
    return {
        "image": image,
        "centre": centre.tolist(),
        "label": label,
        "sigma": sigma.tolist(),
        "predictions": predictions,
    }


def _history(rng):
    return [
        {
            "epoch": epoch,
            "stage": 1 if epoch < 15 else 2,
            "train_nll": float(-1.5 + 2 * np.exp(-epoch / 5) + 0.02 * rng.standard_normal()),
            "val_nll": float(-1.3 + 2 * np.exp(-epoch / 5) + 0.05 * rng.standard_normal()),
            "val_ece_q": float(0.3 * np.exp(-epoch / 9) + 0.02 * rng.random()) if epoch % 2 == 0 else None,
        }
        for epoch in range(20)
    ]
