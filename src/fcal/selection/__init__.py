"""Selection of the family of noise from held-out errors."""

from fcal.selection.family_ranking import Ranked, Selection, select_family

__all__ = ["Ranked", "Selection", "select_family"]
