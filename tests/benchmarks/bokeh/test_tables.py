"""Markdown and verdicts written from tables: of made-up numbers whose answer is plain."""

import dataclasses
import math

import pytest
from bokeh import claims
from bokeh.comparisons import compared
from bokeh.sections import sections

from fcal.benchmarks import preset
from fcal.benchmarks.bokeh.scoring import COLUMNS, ERRORS
from fcal.benchmarks.bokeh.tables import bokeh_table
from fcal.benchmarks.bokeh.task import BOKEH
from fcal.benchmarks.markdown import failures, results_markdown
from fcal.benchmarks.table import Spread

FLOOR = {"expected": 0.01, "q95": 0.02}


def result(**columns):
    values = {**dict.fromkeys(COLUMNS, 0.5), **columns}
    grid = {"bins": 20, "df": 75, "floors": dict.fromkeys(ERRORS, FLOOR), **{name: values[name] for name in ERRORS}}
    columns = {name: [value] for name, value in values.items()}
    return {"status": "done", "columns": columns, "floors": dict.fromkeys(ERRORS, FLOOR), "grids": [grid]}


def made_up(**rows):
    labels = {"noise": "homoscedastic", "regime": "paper-like"}
    return compared(bokeh_table(preset(BOKEH, "quick", seeds=2), labels, rows), rows)


def section(table, beginning):
    """The further table whose sentence begins so; empty where there is none."""
    return next((text for sentence, text in sections(table) if sentence.startswith(beginning)), "")


@pytest.fixture
def entry():
    nll = [
        result(ece_q=0.3, ece_z=0.02, l1_gt=1.0, predict_ms=1.0),
        result(ece_q=0.4, ece_z=0.02, l1_gt=1.0, predict_ms=1.0),
    ]
    kl = [
        result(ece_q=0.1, ece_z=0.01, l1_gt=1.5, predict_ms=1.0),
        result(ece_q=0.21, ece_z=0.01, l1_gt=1.5, predict_ms=1.0),
    ]
    wass = [result(ece_q=0.1, ece_z=0.01, l1_gt=1.0), result(ece_q=0.19, ece_z=0.01, l1_gt=1.0)]
    temperature = [result(ece_q=0.05, ece_z=0.015), result(ece_q=0.05, ece_z=0.015)]
    return made_up(
        nll=nll, fcal_kl=kl, fcal_wass=wass, temperature=temperature, mmd=[{"status": "failed", "reason": "lost"}] * 2
    )


def verdicts(*tables):
    return {one.claim: one.verdict for one in claims.claims({"tables": [table.as_dict() for table in tables]})}


def test_claims_follow_their_rules(entry):
    found = verdicts(entry)
    assert found["f-Cal is better calibrated than training by likelihood"] == "reproduced"
    assert found["without sacrificing deterministic performance"] == "not reproduced"  # 1.5 times NLL's
    assert found["f-Cal is better calibrated than temperature scaling"] == "not reproduced"  # 0.15 against 0.05
    assert found["... also in ECE(z)"] == "reproduced"
    assert "MMD does not converge" not in found  # no candidate by MMD alone
    assert "f-Cal costs nothing at inference" not in found  # no deterministic row to compare with
    assert not any("Isotonic" in claim for claim in found)  # no such row, no verdict


def test_claim_below_asks_for_the_limit_and_not_for_the_mean():
    """Differences of -0.2 and 0.1: a mean below 0, with a limit by Student's t far above it."""
    nll, fcal = [result(ece_q=0.3), result(ece_q=0.3)], [result(ece_q=0.1), result(ece_q=0.4)]
    one = made_up(nll=nll, fcal_kl=fcal, fcal_wass=fcal)
    assert verdicts(one)["f-Cal is better calibrated than training by likelihood"] == "not reproduced"


def test_claims_that_hold_in_one_table_only_are_partly_reproduced(entry):
    worse = made_up(nll=[result(ece_q=0.3)], fcal_kl=[result(ece_q=0.4)], fcal_wass=[result(ece_q=0.4)])
    assert verdicts(entry, worse)["f-Cal is better calibrated than training by likelihood"] == "partly"


def test_claim_is_not_made_where_nll_is_calibrated():
    calm = made_up(nll=[result(ece_q=0.015)], fcal_kl=[result(ece_q=0.3)], fcal_wass=[result(ece_q=0.3)])
    assert "f-Cal is better calibrated than training by likelihood" not in verdicts(calm)


def test_paired_counts_only_seeds_outside_the_band():
    one = made_up(nll=[result(ece_q=0.019), result(ece_q=0.3)], fcal_kl=[result(ece_q=0.5), result(ece_q=0.1)])
    pair = one.details["paired"]["fcal_kl - nll"]
    assert (pair["seeds"], pair["outside_band"], pair["below"]) == (2, 1, 1)
    assert pair["ece_q"] == pytest.approx([0.481, -0.2])


def test_paired_with_the_likelihood_trained_as_long_takes_its_first_repetition():
    candidates = [
        {"options": {"repetition": repetition}, "status": "done", "test": {"ece_q": error, "l1_gt": 0.5, "nll": 0.5}}
        for repetition, error in ((0, 0.01), (1, 0.3), (2, 0.05))
    ]
    nll = [result(ece_q=0.019) | {"candidates": candidates, "chosen": 0}]
    one = made_up(nll=nll, fcal_kl=[result(ece_q=0.1)], fcal_wass=[result(ece_q=0.4)])
    pairs = {name: (pair["outside_band"], pair["below"]) for name, pair in one.details["paired"].items()}
    assert pairs == {
        "fcal_kl - nll": (0, 0),
        "fcal_kl - nll trained as long": (1, 1),
        "fcal_wass - nll": (0, 0),
        "fcal_wass - nll trained as long": (1, 0),
    }
    assert verdicts(one)["... for as many epochs (NLL may choose to stop earlier)"] == "not reproduced"


def point(x, *ece_q):
    return {"x": x, "ece_q": sum(ece_q) / len(ece_q), "by_seed": {"ece_q": list(ece_q)}}


def ablation_of(**series):
    return {"series": series, "noise": "a", "regime": "b", "seeds": 2}


@pytest.mark.parametrize(("at_75", "verdict"), [((0.1, 0.11), "reproduced"), ((0.01, 0.35), "not reproduced")])
def test_ablation_claim_on_k_compares_all_pairs_by_their_limits(at_75, verdict):
    points = [point(10, 0.4, 0.41), point(50, 0.3, 0.31), point(75, *at_75), point(100, 0.2, 0.21)]
    (found,) = claims.ablation_claims({"k": ablation_of(fixed_lam=points)})
    assert found.verdict == verdict
    assert "a, b, 2 seeds: 30.50 to 40.50 for K <= 50, " in found.numbers[0]


def test_ablation_claim_on_divergences_needs_both_of_the_paper_below_the_others():
    for hellinger, verdict in (((0.2, 0.21), "not reproduced"), ((0.5, 0.51), "reproduced")):
        named = [point("kl", 0.3, 0.31), point("wasserstein", 0.1, 0.11), point("hellinger", *hellinger)]
        (best,) = claims.ablation_claims({"divergence": ablation_of(fcal=named)})
        assert best.verdict == verdict


def test_ablation_claim_on_gamma_noise_asks_for_a_drop_that_falls_below_five_per_cent():
    def curve(*last):
        return [
            {"x": x, "drop_l1_gt": sum(drops) / 2, "by_seed": {"drop_l1_gt": list(drops)}}
            for x, drops in ((0.5, (30.0, 31.0)), (100.0, last))
        ]

    for last, verdict in (((1.0, 1.5), "reproduced"), ((8.0, 8.5), "not reproduced"), ((-9.0, 9.0), "not reproduced")):
        (found,) = claims.ablation_claims({"gamma": ablation_of(fcal_kl=curve(*last), fcal_wass=curve(*last))})
        assert found.verdict == verdict


def test_results_markdown_has_a_line_for_every_row_and_floor(entry):
    text = results_markdown(BOKEH.columns, entry)
    assert text.count("\n") == 2 + len(entry.rows) + 2 + 2  # calibrated models, and those with one fitted factor
    expected = BOKEH.columns[4].text(entry.details["repaired_floors"]["ece_q"]["expected"])
    (line,) = (line for line in text.splitlines() if "one factor fitted to held-out rows" in line)
    assert line.split("|")[6].strip() == expected
    assert "| nll | 1e+03 ± 0 | 500 ± 0 | 2 ± 0 |" in text
    assert "| mmd (failed) | -" in text
    assert failures(entry) == ["mmd failed: 2 of 2 seeds: lost"]
    mean, sd = 35.0, 100 * math.sqrt(2) * 0.05  # of 0.3 and 0.4, x100
    assert f"{mean:.3g} ± {sd:.2g}" in text


def test_paper_markdown_puts_its_numbers_beside_ours(entry):
    paper = section(entry, "Beside the paper's appendix")
    line = next(line for line in paper.splitlines() if line.startswith("| fcal_wass"))
    assert "3.7 ± 0.22" in line  # ECE(q) .037 ± .0022 of the paper's appendix
    without = dataclasses.replace(entry, details={**entry.details, "paper": {}})
    assert section(without, "Beside the paper's appendix") == ""


def test_paper_is_not_beside_a_run_that_only_shows_that_all_runs():
    labels = {"noise": "homoscedastic", "regime": "paper-like"}
    rows = {"nll": [result()]}
    one = compared(bokeh_table(preset(BOKEH, "tiny"), labels, rows), rows)
    assert one.details["paper"] == {}
    assert section(one, "Beside the paper's appendix") == ""


def test_page_says_what_it_is_of():
    table = bokeh_table(preset(BOKEH, "paper"), {"noise": "homoscedastic", "regime": "paper-like"}, {})
    assert BOKEH.describe(preset(BOKEH, "paper"), [table], "paper") == [
        "Preset paper: homoscedastic and heteroscedastic noise in the paper-like regime (the network's own error "
        "dominates, as in the paper) and the noise-dominated regime (the noise of the labels dominates); 6,000 images "
        "to train on, 2,000 to choose by, 22,000 to test; 5 seeds, each with images and weights of its own."
    ]
    (tiny,) = BOKEH.describe(preset(BOKEH, "tiny", noises=("gamma",)), [table], "tiny")
    assert tiny.startswith("Preset tiny, which shows that everything runs and says nothing about methods: gamma noise")
    assert tiny.endswith("; one seed.")


def test_grids_markdown_shows_ece_z_once_for_every_number_of_bins(entry):
    header = section(entry, "With other numbers of bins").splitlines()[0]
    assert header.count("ECE(z)") == 1
    assert header.count("ECE(q)") == 1


def test_claims_markdown_has_a_line_for_every_claim(entry):
    found = claims.claims({"tables": [entry.as_dict()]})
    assert claims.claims_markdown(found).count("\n") == 2 + len(found)


def test_claims_count_a_seed_without_numbers_against_them():
    lost = {"status": "failed", "reason": "lost"}
    nll, kl = [result(ece_q=0.3)] * 5, [result(ece_q=0.1), lost, lost, lost, lost]
    found = verdicts(made_up(nll=nll, fcal_kl=kl, fcal_wass=kl, temperature=nll))
    assert found["f-Cal is better calibrated than training by likelihood"] == "not reproduced"
    assert found["without sacrificing deterministic performance"] == "not reproduced"
    assert found["f-Cal is better calibrated than temperature scaling"] == "not reproduced"


def test_claims_need_a_difference_beyond_noise():
    noisy = [result(ece_q=0.015), result(ece_q=0.005)]
    rival = [result(ece_q=0.008), result(ece_q=0.0121)]
    found = verdicts(made_up(fcal_kl=noisy, fcal_wass=noisy, temperature=rival, nll=rival))
    assert found["f-Cal is better calibrated than temperature scaling"] == "not reproduced"


def test_claim_about_mmd_is_of_the_candidate_that_trains_by_it_alone():
    def alone(status, **columns):
        one = {
            "options": {"lam": 1.0},
            "status": status,
            "test": {k: v for k, (v,) in result(**columns)["columns"].items()},
            "nll": 0.0,
        }
        return {**result(), "candidates": [one]}

    nll = [result(nll=0.5)]
    assert verdicts(made_up(nll=nll, mmd=[alone("diverged")]))["MMD does not converge"] == "reproduced"
    assert verdicts(made_up(nll=nll, mmd=[alone("done", nll=0.7)]))["MMD does not converge"] == "reproduced"
    assert verdicts(made_up(nll=nll, mmd=[alone("done", nll=0.5)]))["MMD does not converge"] == "not reproduced"


def test_row_keeps_the_place_of_seeds_without_numbers():
    row = made_up(nll=[{"status": "failed", "reason": "lost"}, result(nll=2.0)]).rows["nll"]
    assert row.seeds["nll"] == [None, 2.0]
    assert row.columns["nll"] == Spread(mean=2.0)


def test_crashed_cell_is_not_a_failed_method():
    row = made_up(mmd=[{"status": "crashed", "reason": "killed"}, result()]).rows["mmd"]
    assert (row.status, row.reason) == ("crashed", "1 of 2 seeds: killed")


def test_ablation_claims_with_missing_points_are_not_reproduced():
    series = {name: [{"x": 1.0}, {"x": 9.0}] for name in ("fcal_kl", "fcal_wass")}
    documents = {
        "k": ablation_of(fixed_lam=[{"x": 75, "ece_q": 0.1}]),
        "gamma": ablation_of(**series),
    }
    assert [one.verdict for one in claims.ablation_claims(documents)] == ["not reproduced"] * 2
