"""Goals of detection, judged from tables made by hand."""

import pytest
from detection.goals import goals

BAND = {"expected": 0.01, "q95": 0.02}


def row(**columns):
    candidate = {"validation_nll": {"mean": columns.pop("validation", 1.0)}}
    return {"seeds": columns, "finished": 3, "bands": {"ece_q": [BAND] * 3}, "candidates": [candidate]}


def table(ece=0.1, precision=0.3, columns=("map", "ece_q")):
    rows = {
        "nll": row(ece_q=[0.41, 0.41, 0.41], map=[0.3, 0.3, 0.3]),
        "fcal_kl": row(ece_q=[ece] * 3, map=[precision] * 3, validation=0.9),
        "fcal_wass": row(ece_q=[0.9] * 3, map=[0.1] * 3),
        "temperature": row(ece_q=[0.05, 0.06, 0.05], nll=[2.0, 2.1, 2.0], crps=[1.0, 1.0, 1.1]),
        "oob_auto": row(ece_q=[0.02, 0.02, 0.03], nll=[1.9, 2.0, 1.9], crps=[0.9, 0.9, 1.0]),
    }
    return {"seeds": 3, "rows": rows, "floors": {"ece_q": BAND}, "columns": list(columns)}


def reached(document):
    return {bar.goal: bar.reached for bar in goals(document)}


@pytest.mark.parametrize(("ece", "expected"), [(0.2, True), (0.22, False)])
def test_the_row_that_validation_chooses_is_judged_less_its_floor(ece, expected):
    """Half of 0.41 less the floor of 0.01 is 0.2, so that 0.21 is the limit."""
    goal = "`fcal_kl`, chosen on validation: ECE(q) less its floor at most half of that of `nll`, where that is off"
    assert reached(table(ece=ece))[goal] is expected


@pytest.mark.parametrize(("precision", "expected"), [(0.292, True), (0.29, False)])
def test_precision_must_be_kept(precision, expected):
    assert reached(table(precision=precision))["`fcal_kl`: mAP at least 0.97 times that of `nll`"] is expected


def test_tables_without_images_are_judged_by_the_recommended_row_alone():
    found = reached(table(columns=("ece_q",)))
    assert len(found) == 3
    assert all(found.values())
