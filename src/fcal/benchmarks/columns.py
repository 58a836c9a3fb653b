"""Columns of benchmark tables as people read them: a short name, and the factor that makes their numbers readable."""

from typing import NamedTuple


class Shown(NamedTuple):
    """How a column is shown.

    Attributes:
        name: What people call it.
        factor: By which its values are multiplied.
        unit: Behind its name.
    """

    name: str
    factor: float = 1.0
    unit: str = ""

    @property
    def title(self) -> str:
        """Name, factor and unit.

        Example:
            >>> Shown("ECE(q)", 100.0).title, Shown("train", unit="s").title
            ('ECE(q) x100', 'train, s')
        """
        return self.name + (f" x{self.factor:g}" if self.factor != 1 else "") + (f", {self.unit}" if self.unit else "")

    def number(self, value: float, digits: int = 3) -> str:
        """A value with few digits.

        Example:
            >>> Shown("ECE(q)", 100.0).number(0.12345)
            '12.3'
        """
        return f"{value * self.factor:.{digits}g}"


COLUMNS = {
    "l1_gt": Shown("L1(GT)", 1000.0),
    "l1": Shown("L1", 1000.0),
    "ece_z": Shown("ECE(z)", 100.0),
    "mce_z": Shown("MCE(z)", 100.0),
    "ece_q": Shown("ECE(q)", 100.0),
    "mce_q": Shown("MCE(q)", 100.0),
    "nll": Shown("NLL"),
    "crps": Shown("CRPS", 1000.0),
    "ence": Shown("ENCE"),
    "sigma_corr": Shown("corr. sigma"),
    "train_s": Shown("train", unit="s"),
    "predict_ms": Shown("predict", unit="ms"),
}
