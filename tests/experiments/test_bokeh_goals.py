"""Goals of out-of-bag ensembles, judged from tables made by hand; limits by SciPy."""

import pytest
import scipy.stats
from bokeh.goals import goals, goals_markdown

FLOORS, REPAIRED = {"expected": 0.001, "q95": 0.0015}, {"expected": 0.001, "q95": 0.003}
ERRORS = ("ece_q", "ece_z", "ence")
BETTER = {"nll": -2.0, "crps": 0.010, "ece_q": 0.002, "ece_z": 0.001, "ence": 0.03, "l1_gt": 0.001}
WORSE = {"nll": -1.9, "crps": 0.012, "ece_q": 0.02, "ece_z": 0.01, "ence": 0.08, "l1_gt": 0.002}


def row(columns, noise=0.001, seeds=3):
    """Columns with a little noise, of the same sign in every row."""
    values = {name: [mean * (1 + noise * shift) for shift in range(seeds)] for name, mean in columns.items()}
    means = {name: {"mean": sum(numbers) / seeds} for name, numbers in values.items()}
    return {**means, "seeds": values, "finished": seeds}


def document(**rows):
    names = ("temperature", "conformal", "ensemble_3", "ensemble", "deterministic_3", "oof_nll")
    known = {name: row(WORSE) for name in names} | {name: row(BETTER) for name in ("oob_auto", "oob_auto_5", "oob_mse")}
    table = {
        "noise": "homoscedastic", "regime": "paper-like", "seeds": 3, "rows": {**known, **rows},
        "floors": dict.fromkeys(ERRORS, FLOORS), "repaired_floors": dict.fromkeys(ERRORS, REPAIRED),
        "held_out_z2": {"oob_auto": [0.999, 1.0, 1.001]},
    }  # fmt: skip
    return {"tables": [table]}


def by_words(document):
    return {goal.goal: goal for goal in goals(document)}


def test_goals_that_are_all_reached():
    found = goals(document())
    assert len(found) == 2 * (3 * 2 + 3) + 3
    assert all(goal.reached == (True,) for goal in found)


def test_goal_below_asks_for_the_limit_and_not_for_the_mean():
    """Mean difference -0.1 with a spread of 0.2: the limit by SciPy is above 0."""
    differences = [-0.3, -0.1, 0.1]
    values = [mean + change for mean, change in zip(row(WORSE)["seeds"]["nll"], differences, strict=True)]
    one = row(BETTER)
    one["seeds"]["nll"] = values
    goal = by_words(document(oob_auto=one))["`oob_auto`: NLL below that of `ensemble_3`"]
    low, high = scipy.stats.t.interval(0.9, 2, loc=-0.1, scale=scipy.stats.sem(differences))
    assert high > 0
    assert goal.reached == (False,)
    assert goal.numbers == (f"homoscedastic, paper-like: -0.1 ({low:+.3g} to {high:+.3g}) (no)",)


@pytest.mark.parametrize(("ece", "reached"), [(0.0119, True), (0.0121, False)])
def test_goal_not_above_has_the_margin_of_chance_to_the_better_repair(ece, reached):
    """Conformal has 0.01, temperature 0.02; the margin is that of a fitted factor, 0.002."""
    rows = {"conformal": row({**WORSE, "ece_q": 0.01}, noise=0), "oob_auto": row({**BETTER, "ece_q": ece}, noise=0)}
    goal = by_words(document(**rows))["`oob_auto`: ECE(q) x100 not above the better of temperature and conformal"]
    assert goal.reached == (reached,)
    assert "beside `conformal`, margin 0.2 (0.05)" in goal.numbers[0]


def test_goal_of_the_mean_is_a_ratio_of_errors():
    words = "`oob_mse`: L1(GT) at most 1.01 times that of three deterministic networks"
    for l1, reached in ((0.00202, True), (0.00203, False)):
        assert by_words(document(oob_mse=row({**BETTER, "l1_gt": l1})))[words].reached == (reached,)


def test_goal_without_a_leak_needs_both_limits():
    made = document()
    words = next(goal.goal for goal in goals(made) if goal.goal.startswith("z²"))
    for ratios, reached in (([0.99, 1.01, 1.0], False), ([0.995, 1.0, 1.005], True), ([0.98, 0.981, 0.979], False)):
        made["tables"][0]["held_out_z2"] = {"oob_auto": ratios}
        assert by_words(made)[words].reached == (reached,)


def test_goals_of_fewer_seeds_say_so_and_rows_that_are_missing_have_none():
    one = row(BETTER)
    one["seeds"] = {name: [*values[:2], None] for name, values in one["seeds"].items()}
    found = by_words(document(oob_auto=one))
    assert "2 of 3 seeds" in found["`oob_auto`: NLL below that of `temperature`"].numbers[0]
    made = document()
    del made["tables"][0]["rows"]["oob_auto_5"]
    assert not any("oob_auto_5" in goal.goal for goal in goals(made))
    assert goals_markdown({"tables": []}) == ""
    assert "| `oob_auto`: NLL below that of `temperature` | **1 of 1** |" in goals_markdown(document())
