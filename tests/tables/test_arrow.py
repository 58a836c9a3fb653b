"""Without Arrow, the error says what to install."""

import runpy
import sys

import pytest

from fcal import tables


def test_missing_arrow_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"^expected pyarrow for fcal.tables; pip install 'fcal\[cli\]'$"):
        runpy.run_path(tables.__file__)
