"""The methods of a benchmark: what people call them, and the colour and dashes each keeps in every picture."""

import zlib
from collections.abc import Iterable
from typing import NamedTuple

_ALL = "_all"
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
# Those most often compared have colours and dashes of their own; further ones share colours with other dashes.
_ORDER = (
    "fcal_wass",
    "nll",
    "fcal_kl",
    "temperature",
    "calibration_loss",
    "beta_nll",
    "mmd",
    "isotonic",
    "gp_beta",
    "conformal",
    "pce_kde",
    "isotonic_moments",
    "oof_fcal",
    "oof_nll",
    "oof_temperature",
)
_DASHES = ("longdash", "solid", "dash", "dashdot", "longdashdot")
# Ink and gaps in turn, in pixels of a line two wide, by falling share of ink. Their periods share no small multiple: of
# lines that coincide, drawn in this order, a part of each is seen.
DASHES = {
    "solid": (),
    "longdashdot": (12, 6, 4, 6),
    "longdash": (10, 11),
    "dashdot": (7, 5, 2, 5),
    "dash": (5, 9),
    "dot": (2, 5),
}
COLOURS = 8
MAIN = ("oracle", "nll", "calibration_loss", "temperature", "fcal_kl", "fcal_wass")


class Style(NamedTuple):
    """How a method is drawn.

    Attributes:
        colour: Number of its colour, below ``COLOURS``; -1 for the oracle, which has that of the text.
        dash: Name of its dashes, one of ``DASHES``.
    """

    colour: int
    dash: str


def method_title(name: str) -> str:
    """What people call a method.

    Example:
        >>> method_title("fcal_wass"), method_title("nll_all"), method_title("my_method")
        ('f-Cal-Wass', 'NLL, all data', 'my_method')
    """
    return ", ".join(part for part in method_parts(name) if part)


def method_parts(name: str) -> tuple[str, str]:
    """What people call a method, and which variant of it this is, if any.

    Example:
        >>> method_parts("nll_all"), method_parts("nll")
        (('NLL', 'all data'), ('NLL', ''))
    """
    base = _base(name)
    return _TITLES.get(base, base), "all data" if name != base else ""


def method_style(name: str) -> Style:
    """The colour and dashes of a method, the same in every picture; either tells the usual methods apart.

    Example:
        >>> method_style("nll"), method_style("nll_all").dash, method_style("oracle").colour
        (Style(colour=1, dash='solid'), 'dashdot', -1)
    """
    base = _base(name)
    if base == "oracle":
        return Style(-1, "dot")
    place = _ORDER.index(base) if base in _ORDER else zlib.crc32(base.encode("utf-8", "replace")) % COLOURS
    # At most four share a colour: two methods, each with its variant; a step of its own each keeps their dashes apart.
    step = place // COLOURS + (0 if name == base else 2)
    return Style(place % COLOURS, _DASHES[(place % COLOURS + step) % len(_DASHES)])


def bottom_to_top(names: Iterable[str]) -> list[str]:
    """Methods in the order in which lines are drawn: the more ink the lower, so that none hides another.

    Example:
        >>> bottom_to_top(["oracle", "fcal_wass", "nll"])
        ['nll', 'fcal_wass', 'oracle']
    """
    lowest_first = list(DASHES)
    return sorted(names, key=lambda name: (lowest_first.index(method_style(name).dash), method_order(name)))


def method_order(name: str) -> tuple[int, str, bool]:
    """Sorts methods as tables show them, each beside its variant with all data; unknown ones come last, by name."""
    base = _base(name)
    known = list(_TITLES)
    return (known.index(base) if base in known else len(known), base, name != base)


def method_notes(names: Iterable[str]) -> list[str]:
    """Sentences for the foot of a table with rows that have to be explained.

    Example:
        >>> len(method_notes(["nll", "nll_all"])), method_notes(["nll"])
        (1, [])
    """
    return [_ALL_NOTE] if any(name != _base(name) for name in names) else []


def _base(name: str) -> str:
    """A method without the mark of the variant that is trained on the images held out by others."""
    return name.removesuffix(_ALL) if name.removesuffix(_ALL) else name
