"""Which family is the noise of? Chosen by errors of rows that models have not seen."""

from fcal.selection.ranking import Ranked, Selection, select_family

__all__ = ["Ranked", "Selection", "select_family"]
