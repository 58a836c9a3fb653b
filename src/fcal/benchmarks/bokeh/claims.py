"""What became of the paper's claims about Bokeh, judged by stated rules from the tables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

Table = Mapping[str, Any]

_FCAL = ("fcal_kl", "fcal_wass")
_ACCURACY_KEPT = 1.02  # ratio of smooth L1 to the truth; two per cent is less than seeds differ by
_SAME_TIME = 1.05


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim and its fate.

    Attributes:
        claim: What the paper says, in our words.
        rule: When we call it reproduced.
        verdict: ``"reproduced"``, ``"partly"`` or ``"not reproduced"``.
        numbers: What was found, a phrase for every table.
    """

    claim: str
    rule: str
    verdict: str
    numbers: tuple[str, ...]


def claims(document: Mapping[str, Any]) -> list[Claim]:
    """Judge every claim that the tables speak of.

    Args:
        document: Of the benchmark; see :func:`fcal.benchmarks.bokeh.benchmark`.

    Returns:
        One entry per claim; a claim whose rows are not in the tables is left out.
    """
    judged = (_judged(document["tables"], claim, rule, test) for claim, rule, test in _CLAIMS)
    return [one for one in judged if one is not None]


def ablation_claims(documents: Mapping[str, Mapping[str, Any]]) -> list[Claim]:
    """Judge the claims that finished ablations speak of.

    Args:
        documents: By name of the ablation; see :func:`fcal.benchmarks.bokeh.ablations.ablation`.
    """
    found = []
    for name, (claim, rule, test) in _BY_ABLATION.items():
        if name in documents:
            held, numbers = test(documents[name]["series"])
            verdict = "reproduced" if held else "not reproduced"
            where = f"{documents[name]['noise']}, {documents[name]['regime']}, one seed"
            found.append(Claim(claim=claim, rule=rule, verdict=verdict, numbers=(f"{where}: {numbers}",)))
    return found


def claims_markdown(found: Sequence[Claim]) -> str:
    """The claims as a table."""
    lines = ["| claim | reproduced if | verdict | found |", "|---|---|---|---|"]
    lines += [f"| {one.claim} | {one.rule} | **{one.verdict}** | {'<br>'.join(one.numbers)} |" for one in found]
    return "\n".join(lines) + "\n"


Test = Callable[[Table], tuple[bool, str] | None]  # whether it holds in a table, and the numbers


def _judged(tables: Sequence[Table], claim: str, rule: str, test: Test) -> Claim | None:
    found = [(table, test(table)) for table in tables]
    answers = [(table, answer) for table, answer in found if answer is not None]
    if not answers:
        return None
    held = [answer[0] for _, answer in answers]
    verdict = "reproduced" if all(held) else "partly" if any(held) else "not reproduced"
    numbers = tuple(
        f"{table['noise']}, {table['regime']}: {answer[1]}{'' if answer[0] else ' (no)'}" for table, answer in answers
    )
    return Claim(claim=claim, rule=rule, verdict=verdict, numbers=numbers)


def _mean(table: Table, row: str, column: str) -> float | None:
    """The mean of a column; None where the table has no such row or number."""
    found = table["rows"].get(row, {}).get(column) or {}
    value: float | None = found.get("mean")
    return value


def _less_than(rival: str, column: str) -> Test:
    """Both forms of f-Cal have less of a column than a rival, on the mean of all seeds."""

    def test(table: Table) -> tuple[bool, str] | None:
        ours, theirs = [_mean(table, row, column) for row in _FCAL], _mean(table, rival, column)
        if theirs is None or any(one is None for one in ours):
            return None
        kl, wass = (one for one in ours if one is not None)
        return max(kl, wass) < theirs, f"{100 * kl:.2f} and {100 * wass:.2f} against {100 * theirs:.2f}"

    return test


def _better_calibrated(table: Table) -> tuple[bool, str] | None:
    pairs = [table["paired"].get(f"{row} - nll") for row in _FCAL]
    if any(pair is None or not pair["outside_band"] for pair in pairs):
        return None
    counts = [(pair["below"], pair["outside_band"]) for pair in pairs if pair is not None]
    words = " and ".join(f"{below} of {seeds}" for below, seeds in counts)
    return all(below == seeds for below, seeds in counts), f"{words} seeds"


def _accuracy_kept(table: Table) -> tuple[bool, str] | None:
    pairs = [table["paired"].get(f"{row} - nll") for row in _FCAL]
    if any(pair is None or not pair["l1_gt"] for pair in pairs):
        return None
    ratios = [fmean(pair["l1_gt"]) for pair in pairs if pair is not None]
    return max(ratios) <= _ACCURACY_KEPT, f"{ratios[0]:.3f} and {ratios[1]:.3f}"


def _worse_than_nll(row: str) -> Test:
    def test(table: Table) -> tuple[bool, str] | None:
        one, nll = _mean(table, row, "ece_z"), _mean(table, "nll", "ece_z")
        if one is None or nll is None:
            return None
        return one >= nll, f"{100 * one:.2f} against {100 * nll:.2f}"

    return test


def _fails(table: Table) -> tuple[bool, str] | None:
    row = table["rows"].get("mmd")
    if row is None:
        return None
    failed = row.get("status") == "failed"
    return failed, row.get("reason", "trains in all seeds") if failed else "trains in all seeds"


def _no_overhead(table: Table) -> tuple[bool, str] | None:
    ours, plain = _mean(table, "fcal_kl", "predict_ms"), _mean(table, "nll", "predict_ms")
    if ours is None or not plain:
        return None
    return ours / plain <= _SAME_TIME, f"{ours / plain:.2f}x"


_CLAIMS: tuple[tuple[str, str, Test], ...] = (
    (
        "f-Cal is better calibrated than training by likelihood",
        "ECE(q) of both forms below NLL's in every seed in which NLL is outside the band of calibrated models",
        _better_calibrated,
    ),
    (
        "without sacrificing deterministic performance",
        f"smooth L1 to the truth at most {_ACCURACY_KEPT} times NLL's, mean of seeds",
        _accuracy_kept,
    ),
    ("and better than temperature scaling", "ECE(q) x100 of both forms below it", _less_than("temperature", "ece_q")),
    ("... also in ECE(z)", "ECE(z) x100 of both forms below it", _less_than("temperature", "ece_z")),
    (
        "f-Cal is better calibrated than the calibration loss",
        "ECE(q) x100 of both forms below it",
        _less_than("calibration_loss", "ece_q"),
    ),
    ("Isotonic regression does not help", "ECE(z) x100 of its own law not below NLL's", _worse_than_nll("isotonic")),
    ("... nor reduced to mean and sd", "ECE(z) x100 not below NLL's", _worse_than_nll("isotonic_moments")),
    ("GP-Beta does not help", "ECE(z) x100 not below NLL's", _worse_than_nll("gp_beta")),
    ("MMD does not converge", "it fails to train in some seed", _fails),
    ("f-Cal costs nothing at inference", f"time of a prediction at most {_SAME_TIME} times NLL's", _no_overhead),
)

Series = Mapping[str, Sequence[Mapping[str, Any]]]


def _large_k_is_better(series: Series) -> tuple[bool, str]:
    known = [point for point in series["fixed_lam"] if point.get("ece_q") is not None]
    small, large = ([point["ece_q"] for point in known if (point["x"] > 50) is over] for over in (False, True))
    held = max(large) < min(small)
    return held, f"{_range(small)} for K <= 50, {_range(large)} above"


def _drop_vanishes(series: Series) -> tuple[bool, str]:
    drops = [point["drop_l1_gt"] for row in _FCAL for point in (series[row][0], series[row][-1])]
    held = drops[1] < drops[0] and drops[3] < drops[2]
    shapes = series[_FCAL[0]][0]["x"], series[_FCAL[0]][-1]["x"]
    return held, (
        f"{drops[0]:.1f} % and {drops[2]:.1f} % at shape {shapes[0]:g}, {drops[1]:.1f} % and {drops[3]:.1f} % at "
        f"{shapes[1]:g}"
    )


def _two_best(series: Series) -> tuple[bool, str]:
    known = {str(point["x"]): point["ece_q"] for point in series["fcal"] if point.get("ece_q") is not None}
    order = sorted(known, key=lambda name: known[name])
    words = ", ".join(f"{name} {100 * known[name]:.2f}" for name in order)
    return set(order[:2]) == {"kl", "wasserstein"}, words


def _range(values: Sequence[float]) -> str:
    return f"{100 * min(values):.2f} to {100 * max(values):.2f}"


_BY_ABLATION: dict[str, tuple[str, str, Callable[[Series], tuple[bool, str]]]] = {
    "k": (
        "More than 50 degrees of freedom are needed",
        "at a fixed weight, ECE(q) x100 of every K above 50 below that of every smaller one",
        _large_k_is_better,
    ),
    "gamma": (
        "The accuracy lost to calibration vanishes as Gamma noise becomes Gaussian",
        "smooth L1 to the truth beyond a deterministic network's falls from the smallest to the largest shape",
        _drop_vanishes,
    ),
    "divergence": (
        "KL and Wasserstein are the best of the divergences",
        "they have the two lowest ECE(q) x100",
        _two_best,
    ),
}
