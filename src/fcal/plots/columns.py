"""The columns of a benchmark: what people call them, and what they are."""

from collections.abc import Iterable

_COLUMNS = {
    "l1_gt": ("L1(GT)", "SmoothL1 of the mean to the truth without noise"),
    "l1": ("L1", "SmoothL1 of the mean to the labels"),
    "ece_z": ("ECE(z)", "expected calibration error of the residuals"),
    "mce_z": ("MCE(z)", "the worst bin of the residuals"),
    "ece_q": ("ECE(q)", "expected calibration error of sums of K squared residuals"),
    "mce_q": ("MCE(q)", "the worst bin of these sums"),
    "nll": ("NLL", "mean negative log-likelihood"),
    "crps": ("CRPS", "in the target's unit"),
    "ence": ("ENCE", "errors against predicted sigma, by bins of sigma"),
    "sigma_corr": ("corr(sigma)", "correlation of log predicted and log true sigma; 1 is best"),
    "train_s": ("train, s", "seconds of training"),
    "cost": ("cost", "time of training beside that of plain likelihood"),
    "predict_ms": ("predict, ms", "milliseconds of prediction"),
    "rmse": ("RMSE", "in the target's unit"),
    "ll": ("log-likelihood", "mean over test rows, in the target's unit; more is better"),
    "coverage_68": ("in 68 %", "share of targets in the central interval of 68 %"),
    "coverage": ("in 90 %", "share of targets in the central interval of 90 %"),
    "coverage_95": ("in 95 %", "share of targets in the central interval of 95 %"),
    "width": ("width", "of the central interval of 90 %, in the target's unit"),
    "silog": ("SiLog", ""),
}
_SMOOTH = frozenset({"l1_gt", "l1"})
_SMOOTH_NOTE = (
    "L1 is a smooth L1 (Huber's loss) of the predicted mean to the labels, L1(GT) to the truth without noise: of an "
    "error below 1 it is half the square."
)


def column_title(name: str) -> str:
    """What people call a column; its own name where nobody knows another.

    Example:
        >>> column_title("ece_q"), column_title("lam")
        ('ECE(q)', 'lam')
    """
    return _COLUMNS.get(name, (name, ""))[0]


def column_hint(name: str) -> str:
    """What a column is, in a few words; nothing where the title says it."""
    return _COLUMNS.get(name, (name, ""))[1]


def column_notes(names: Iterable[str]) -> list[str]:
    """Sentences for the foot of a table whose columns are not what their titles make people expect.

    Example:
        >>> len(column_notes(["l1", "l1_gt", "nll"])), column_notes(["nll"])
        (1, [])
    """
    return [_SMOOTH_NOTE] if _SMOOTH & set(names) else []
