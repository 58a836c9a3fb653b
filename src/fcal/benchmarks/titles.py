"""Titles of the rows and columns of all benchmarks."""

from collections.abc import Iterator

from fcal.plots.styles import ColumnStyle, RowStyle

_ALL_NOTE = (
    "Rows “..._all”, or “all data”, are also trained on the held-out data, which the others choose by and post-hoc "
    "methods are fitted on: every method has then seen as many."
)
_TITLES = {
    "oracle": "oracle",
    "deterministic": "deterministic",
    "nll": "NLL",
    "calibration_loss": "calibration loss",
    "beta_nll": "beta-NLL",
    "mmd": "MMD",
    "pce_kde": "PCE-KDE",
    "temperature": "temperature",
    "isotonic": "isotonic",
    "isotonic_moments": "isotonic, moments",
    "gp_beta": "GP-Beta",
    "conformal": "conformal",
    "fcal_kl": "f-Cal-KL",
    "fcal_wass": "f-Cal-Wass",
    "ensemble": "ensemble",
    "oof_temperature": "out-of-fold temperature",
    "oof_nll": "out-of-fold NLL",
    "oof_fcal": "out-of-fold f-Cal",
    "oof_fcal_strata": "out-of-fold f-Cal, strata",
    "oof_conformal": "out-of-fold conformal",
    "oof_nll_conformal": "out-of-fold NLL, conformal",
    "cv_plus": "CV+",
}
_HIGHLIGHTED = ("fcal_wass", "nll", "fcal_kl", "temperature", "calibration_loss")


def _row_styles() -> Iterator[tuple[str, RowStyle]]:
    ranks = {name: rank for rank, name in enumerate(_HIGHLIGHTED)}
    for name, title in _TITLES.items():
        yield name, RowStyle(title, highlight=ranks.get(name), reference=name == "oracle")
        yield f"{name}_all", RowStyle(title, "all data", footnote=_ALL_NOTE)


ROW_STYLES = dict(_row_styles())

_SMOOTH_NOTE = (
    "L1 is a smooth L1 (Huber's loss) of the predicted mean to the labels, L1(GT) to the truth without noise: of an "
    "error below 1 it is half the square."
)
COLUMN_STYLES = {
    "l1_gt": ColumnStyle("L1(GT)", "SmoothL1 of the mean to the truth without noise", _SMOOTH_NOTE, factor=1000),
    "l1": ColumnStyle("L1", "SmoothL1 of the mean to the labels", _SMOOTH_NOTE, factor=1000),
    "ece_z": ColumnStyle("ECE(z)", "expected calibration error of the residuals", factor=100),
    "mce_z": ColumnStyle("MCE(z)", "the worst bin of the residuals", factor=100),
    "ece_q": ColumnStyle("ECE(q)", "expected calibration error of sums of K squared residuals", factor=100),
    "mce_q": ColumnStyle("MCE(q)", "the worst bin of these sums", factor=100),
    "nll": ColumnStyle("NLL", "mean negative log-likelihood"),
    "crps": ColumnStyle("CRPS", "in the target's unit", factor=1000),
    "ence": ColumnStyle("ENCE", "errors against predicted sigma, by bins of sigma"),
    "sigma_corr": ColumnStyle(
        "corr(sigma)", "correlation of log predicted and log true sigma; 1 is best", lower_is_better=False
    ),
    "train_s": ColumnStyle("train, s", "seconds of training", ranked=False),
    "cost": ColumnStyle("cost", "time of training beside that of plain likelihood"),
    "predict_ms": ColumnStyle("predict, ms", "milliseconds of prediction", ranked=False),
    "rmse": ColumnStyle("RMSE", "in the target's unit"),
    "ll": ColumnStyle(
        "log-likelihood", "mean over test rows, in the target's unit; more is better", lower_is_better=False
    ),
    # More coverage is not better than the nominal level, nor a narrow interval that does not cover.
    "coverage_68": ColumnStyle("in 68 %", "share of targets in the central interval of 68 %", ranked=False),
    "coverage": ColumnStyle("in 90 %", "share of targets in the central interval of 90 %", ranked=False),
    "coverage_95": ColumnStyle("in 95 %", "share of targets in the central interval of 95 %", ranked=False),
    "width": ColumnStyle("width", "of the central interval of 90 %, in the target's unit", ranked=False),
}
