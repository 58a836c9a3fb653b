"""The columns of a benchmark: what people call them, and what they are."""

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
    "predict_ms": ("predict, ms", "milliseconds of prediction"),
    "rmse": ("RMSE", ""),
    "silog": ("SiLog", ""),
}


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
