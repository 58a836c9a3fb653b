"""The paper's claims about Bokeh, judged by fixed rules from the tables."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from paired import Difference, difference

from bokeh.comparisons import AS_LONG

Table = Mapping[str, Any]

_FCAL = ("fcal_kl", "fcal_wass")
_ACCURACY_KEPT = 1.02  # ratio of smooth L1 to the truth; two per cent is less than the spread over seeds
_SAME_TIME = 1.05
_LIKELIHOOD_LOST = 0.1  # nats; several times the spread over seeds
_DROP_VANISHED = 5.0  # per cent
_OF_PAPER = ("kl", "wasserstein", "wasserstein_printed")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim and its verdict.

    Attributes:
        claim: The claim of the paper, in our words.
        rule: Condition under which it counts as reproduced.
        verdict: ``"reproduced"``, ``"partly"`` or ``"not reproduced"``.
        numbers: Measured numbers, a phrase for every table.
    """

    claim: str
    rule: str
    verdict: str
    numbers: tuple[str, ...]


def claims(document: Mapping[str, Any]) -> list[Claim]:
    """Judge every claim that the tables can decide.

    Args:
        document: Document of the benchmark; see :attr:`fcal.benchmarks.Benchmark.document`.

    Returns:
        One entry per claim; a claim whose rows are not in the tables is left out.
    """
    judged = (_judged(document["tables"], claim, rule, test) for claim, rule, test in _CLAIMS)
    return [claim for claim in judged if claim is not None]


def ablation_claims(documents: Mapping[str, Mapping[str, Any]]) -> list[Claim]:
    """Judge the claims that finished ablations can decide.

    Args:
        documents: By name of the ablation; see :func:`fcal.benchmarks.bokeh.ablation_results.ablation`.
    """
    judged = []
    for name, (claim, rule, test) in _BY_ABLATION.items():
        if name in documents:
            held, numbers = test(documents[name]["series"])
            verdict = "reproduced" if held else "not reproduced"
            seeds = documents[name]["seeds"]
            where = f"{documents[name]['noise']}, {documents[name]['regime']}, {seeds} seed{'s' if seeds > 1 else ''}"
            judged.append(Claim(claim=claim, rule=rule, verdict=verdict, numbers=(f"{where}: {numbers}",)))
    return judged


def claims_markdown(claims: Sequence[Claim]) -> str:
    """The claims as a table."""
    lines = ["| claim | reproduced if | verdict | measured |", "|---|---|---|---|"]
    lines += [f"| {c.claim} | {c.rule} | **{c.verdict}** | {'<br>'.join(c.numbers)} |" for c in claims]
    return "\n".join(lines) + "\n"


Test = Callable[[Table], tuple[bool, str] | None]  # whether it holds in a table, and the numbers


def _judged(tables: Sequence[Table], claim: str, rule: str, test: Test) -> Claim | None:
    tested = [(table, test(table)) for table in tables]
    answers = [(table, answer) for table, answer in tested if answer is not None]
    if not answers:
        return None
    held = [answer[0] for _, answer in answers]
    verdict = "reproduced" if all(held) else "partly" if any(held) else "not reproduced"
    numbers = tuple(
        f"{table['noise']}, {table['regime']}: {answer[1]}{'' if answer[0] else ' (no)'}" for table, answer in answers
    )
    return Claim(claim=claim, rule=rule, verdict=verdict, numbers=numbers)


def _seeds(table: Table, row: str, column: str) -> list[float] | None:
    """A column's value in every seed; None if the table has no such row, or a seed has no number."""
    values = table["rows"].get(row, {}).get("seeds", {}).get(column)
    known = [value for value in values or () if value is not None]
    return known if values and len(known) == len(values) else None


def _differences(table: Table, row: str, other: str, column: str) -> list[float] | None:
    """One row minus another, seed by seed."""
    ours, theirs = _seeds(table, row, column), _seeds(table, other, column)
    return None if ours is None or theirs is None else [a - b for a, b in zip(ours, theirs, strict=True)]


def _clearly_less_than(other: str, column: str) -> Test:
    """Both forms of f-Cal are clearly below another row in a column."""

    def test(table: Table) -> tuple[bool, str] | None:
        differences = [_differences(table, row, other, column) for row in _FCAL]
        if other not in table["rows"] or not set(_FCAL) <= set(table["rows"]):
            return None
        known = [values for values in differences if values is not None]
        if len(known) < len(differences):
            return False, "a seed has no number"
        return all(difference(values).is_below() for values in known), _beside(table, (*_FCAL, other), column)

    return test


def _beside(table: Table, rows: Sequence[str], column: str) -> str:
    """Means of rows, the last after "against", x100."""
    means = [f"{100 * fmean(_seeds(table, row, column) or [math.nan]):.2f}" for row in rows]
    return f"{' and '.join(means[:-1])} against {means[-1]}"


def _better_calibrated_than(likelihood: str) -> Test:
    """Both forms of f-Cal have less ECE(q) than the likelihood, where that one is not calibrated in some seed."""

    def test(table: Table) -> tuple[bool, str] | None:
        pairs = [table["paired"].get(f"{row} - {likelihood}") for row in _FCAL]
        if any(pair is None or not pair["outside_band"] for pair in pairs):
            return None
        if any(len(pair["ece_q"]) < pair["seeds"] for pair in pairs if pair is not None):
            return False, "a seed has no number"
        found = [difference(pair["ece_q"]) for pair in pairs if pair is not None]
        return all(each.is_below() for each in found), " and ".join(each.text(100) for each in found)

    return test


def _accuracy_kept(table: Table) -> tuple[bool, str] | None:
    pairs = [table["paired"].get(f"{row} - nll") for row in _FCAL]
    if any(pair is None for pair in pairs):
        return None
    if any(len(pair["l1_gt"]) < pair["seeds"] for pair in pairs if pair is not None):
        return False, "a seed has no number"
    ratios = [difference(pair["l1_gt"]) for pair in pairs if pair is not None]
    return all(ratio.is_below(_ACCURACY_KEPT) for ratio in ratios), " and ".join(map(_ratio, ratios))


def _ratio(found: Difference) -> str:
    limit = "" if found.high is None else f" (at most {found.high:.3f})"
    return f"{found.mean:.3f}{limit}"


def _not_below_nll(row: str) -> Test:
    def test(table: Table) -> tuple[bool, str] | None:
        differences = _differences(table, row, "nll", "ece_z")
        if differences is None:
            return None
        return not difference(differences).is_below(), _beside(table, (row, "nll"), "ece_z")

    return test


def _mmd_alone_fails(table: Table) -> tuple[bool, str] | None:
    """Judge the candidate trained with MMD alone, even if another one was chosen."""
    candidates = table["rows"].get("mmd", {}).get("candidates", ())
    alone = [candidate for candidate in candidates if candidate["options"].get("lam") == 1]
    nll = _seeds(table, "nll", "nll")
    if not alone or nll is None:
        return None
    if alone[0]["diverged"]:
        return True, f"diverges in {alone[0]['diverged']} seeds"
    lost = alone[0]["nll"]["mean"] - fmean(nll)
    return lost > _LIKELIHOOD_LOST, f"NLL {lost:+.2f}, ECE(q) x100 {100 * alone[0]['ece_q']['mean']:.1f}"


def _no_overhead(table: Table) -> tuple[bool, str] | None:
    ours, plain = _seeds(table, "fcal_kl", "predict_ms"), _seeds(table, "deterministic", "predict_ms")
    if ours is None or plain is None:
        return None
    ratio = median(ours) / median(plain)
    return ratio <= _SAME_TIME, f"{ratio:.2f}x"


_CLAIMS: tuple[tuple[str, str, Test], ...] = (
    (
        "f-Cal is better calibrated than training by likelihood",
        "ECE(q) x100 of both forms below NLL's, where NLL is outside the band of calibrated models in a seed",
        _better_calibrated_than("nll"),
    ),
    (
        "... for as many epochs (NLL may choose to stop earlier)",
        "the same beside the network that went on by likelihood for as many epochs",
        _better_calibrated_than(AS_LONG),
    ),
    (
        "without sacrificing deterministic performance",
        f"smooth L1 to the truth of both forms relative to NLL's: upper limit below {_ACCURACY_KEPT}",
        _accuracy_kept,
    ),
    (
        "f-Cal is better calibrated than temperature scaling",
        "ECE(q) x100 of both forms below its own",
        _clearly_less_than("temperature", "ece_q"),
    ),
    ("... also in ECE(z)", "the same of ECE(z)", _clearly_less_than("temperature", "ece_z")),
    (
        "f-Cal is better calibrated than the calibration loss",
        "ECE(q) x100 of both forms below its own",
        _clearly_less_than("calibration_loss", "ece_q"),
    ),
    (
        "Isotonic regression does not help",
        "ECE(z) x100 of its own law not below NLL's",
        _not_below_nll("isotonic"),
    ),
    ("... nor reduced to mean and sd", "the same", _not_below_nll("isotonic_moments")),
    ("GP-Beta does not help", "the same", _not_below_nll("gp_beta")),
    (
        "MMD does not converge",
        f"tuned by MMD alone, a network diverges or loses more than {_LIKELIHOOD_LOST} nats",
        _mmd_alone_fails,
    ),
    (
        "f-Cal costs nothing at inference",
        f"time of a prediction at most {_SAME_TIME} times the deterministic network's, median of seeds",
        _no_overhead,
    ),
)

Series = Mapping[str, Sequence[Mapping[str, Any]]]


def _large_k_is_better(series: Series) -> tuple[bool, str]:
    known = [point for point in series["fixed_lam"] if point.get("ece_q") is not None]
    small, large = ([point for point in known if (point["x"] > 50) is over] for over in (False, True))
    if not small or not large:
        return False, "points are missing"
    held = all(_gap(point, other, "ece_q").is_below() for point in large for other in small)
    return held, f"{_range(small)} for K <= 50, {_range(large)} above"


def _gap(point: Mapping[str, Any], other: Mapping[str, Any], column: str) -> Difference:
    """Difference of two points, paired over seeds."""
    pairs = zip(point["by_seed"][column], other["by_seed"][column], strict=True)
    return difference([a - b for a, b in pairs])


def _drop_vanishes(series: Series) -> tuple[bool, str]:
    ends = [(series[row][0], series[row][-1]) for row in _FCAL]
    if any(point.get("drop_l1_gt") is None for pair in ends for point in pair):
        return False, "points are missing"
    changes = " and ".join(f"{first['drop_l1_gt']:.1f} % to {last['drop_l1_gt']:.1f} %" for first, last in ends)
    held = all(
        _gap(last, first, "drop_l1_gt").is_below()
        and difference(last["by_seed"]["drop_l1_gt"]).is_below(_DROP_VANISHED)
        for first, last in ends
    )
    return held, f"{changes} from shape {ends[0][0]['x']:g} to {ends[0][1]['x']:g}"


def _two_best(series: Series) -> tuple[bool, str]:
    known = {str(point["x"]): point for point in series["fcal"] if point.get("ece_q") is not None}
    order = sorted(known, key=lambda name: known[name]["ece_q"])
    ranking = ", ".join(f"{name} {100 * known[name]['ece_q']:.2f}" for name in order)
    best, others = order[:2], [name for name in order[2:] if name not in _OF_PAPER]
    held = set(best) <= set(_OF_PAPER) and all(
        _gap(known[name], known[other], "ece_q").is_below() for name in best for other in others
    )
    return held, ranking


def _range(points: Sequence[Mapping[str, Any]]) -> str:
    values = [point["ece_q"] for point in points]
    return f"{100 * min(values):.2f} to {100 * max(values):.2f}"


_BY_ABLATION: dict[str, tuple[str, str, Callable[[Series], tuple[bool, str]]]] = {
    "k": (
        "More than 50 degrees of freedom are needed",
        "at a fixed weight, ECE(q) x100 of every K above 50 below that of every smaller one",
        _large_k_is_better,
    ),
    "gamma": (
        "The accuracy lost to calibration vanishes as Gamma noise becomes Gaussian",
        "smooth L1 to the truth beyond a deterministic network's is lower at the end than at the start, and below 5 %",
        _drop_vanishes,
    ),
    "divergence": (
        "KL and Wasserstein are the best of the divergences",
        "the two lowest ECE(q) x100 are theirs (Wasserstein in either form), below all others, at one weight for all",
        _two_best,
    ),
}
