"""Goals of calibration without a held-out set, judged from tables made by hand."""

import pytest
from bokeh.goals import best_row, conditional_goals, goals, goals_markdown


def beside(**changes):
    """Two seeds in which all goals are reached."""
    good = {
        "seeds": 2, "ece_q": [-0.01, -0.02], "ece_z": [-0.001, -0.001], "nll": [-0.1, -0.2], "crps": [-0.001, -0.002],
        "l1_gt": [0.9, 1.0], "of_band": {"ece_z": [1.0, 0.5], "ece_q": [1.9, 2.1]}, "cost": [2.5, 3.5],
    }  # fmt: skip
    return good | changes


def document(*rows, strata=None, ence=None):
    table = {
        "noise": "homoscedastic",
        "regime": "paper-like",
        "against_temperature": dict(rows),
        "strata": {
            row: {"ece_q_worst": {"mean": q}, "ece_z_worst": {"mean": z}} for row, (q, z) in (strata or {}).items()
        },
        "rows": {row: {"ence": {"mean": value}} for row, value in (ence or {}).items()},
    }
    return {"tables": [table]}


def test_all_goals_are_reached():
    found = goals(document(("oof_nll", beside())), "oof_nll")
    assert len(found) == 7
    assert all(goal.reached == (True,) for goal in found)


@pytest.mark.parametrize(
    ("changes", "goal", "words"),
    [
        ({"ece_q": [0.02, -0.01]}, 0, "+0.5 (1 of 2 seeds below) (no)"),
        ({"ece_z": [0.001, 0.001]}, 1, "+0.1 (0 of 2 seeds below) (no)"),
        ({"nll": [0.0, 0.0]}, 2, "+0 (0 of 2 seeds below) (no)"),
        ({"nll": [-0.1]}, 2, "a seed has no number (no)"),
        ({"crps": [0.001, 0.0]}, 3, "+0.5 (0 of 2 seeds below) (no)"),
        ({"l1_gt": [1.0, 1.02]}, 4, "1.010 (no)"),
        (
            {"of_band": {"ece_z": [1.0, 1.0], "ece_q": [2.5, 1.7]}},
            5,
            "ECE(q) 2.10 (1 of 2 seeds), ECE(z) 1.00 (2 of 2 seeds) (no)",
        ),
        ({"of_band": {"ece_z": [1.0], "ece_q": [1.0]}}, 5, "a seed has no number (no)"),
        ({"cost": [3.0, 3.1]}, 6, "3.05 (no)"),
    ],
)
def test_goal_that_is_missed_says_by_how_much(changes, goal, words):
    found = goals(document(("oof_nll", beside(**changes))), "oof_nll")
    assert [one.reached for one in found] == [(place != goal,) for place in range(7)]
    assert found[goal].numbers == (f"homoscedastic, paper-like: {words}",)


def test_equal_calibration_is_enough_but_equal_likelihood_is_not():
    found = goals(document(("oof_nll", beside(ece_q=[0.0, 0.0], nll=[0.0, 0.0]))), "oof_nll")
    assert (found[0].reached, found[2].reached) == ((True,), (False,))


def test_best_row_reaches_most_and_then_costs_least():
    rows = [
        ("oof_temperature", beside(nll=[1.0, 1.0], cost=[1.0, 1.0])),
        ("oof_nll", beside(cost=[2.0, 2.0])),
        ("oof_fcal", beside(cost=[2.5, 2.5])),
    ]
    assert best_row(document(*rows)) == "oof_nll"
    text = goals_markdown(document(*rows))
    assert "| oof_temperature | 6 of 7 | 1.00 |" in text
    assert "`oof_nll`, the row that reaches most, chosen by these numbers:" in text


def test_strata_are_compared_with_the_whole_batch():
    made = document(
        ("oof_nll", beside()),
        strata={"oof_fcal": (0.2, 0.01), "oof_fcal_strata": (0.1, 0.02)},
        ence={"oof_fcal": 0.09, "oof_fcal_strata": 0.05},
    )
    assert [one.reached for one in conditional_goals(made)] == [(True,), (True,), (False,)]
    assert "5.00 against 9.00" in goals_markdown(made)


def test_nothing_is_said_of_tables_without_such_rows():
    assert goals_markdown(document()) == ""
    assert goals(document(), "oof_nll") == []
    assert conditional_goals(document()) == []


def test_row_that_one_table_lacks_is_listed_and_judged_by_its_share():
    made = document(("oof_nll", beside(nll=[1.0, 1.0])))
    made["tables"].append({**document(("oof_nll", beside()), ("oof_fcal", beside()))["tables"][0], "noise": "gamma"})
    assert best_row(made) == "oof_fcal"
    assert "| oof_fcal | 7 of 7 |" in goals_markdown(made)
