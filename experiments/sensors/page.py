"""The page of the sensors' results in the docs, and how near to the known noise we ask learnt ones to be."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from fcal.benchmarks.markdown import failures, results_markdown
from fcal.benchmarks.runner import Benchmark
from fcal.benchmarks.sensors.settings import Settings
from fcal.benchmarks.sensors.task import SENSORS
from fcal.benchmarks.table import Table
from fcal.sweeps import Cell

BEST = "oof_nll"
# How far from 1 the ratio of learnt to known standard deviations may be: to the stated one, and in every bin.
STATED_WITHIN = {"laser": 0.05, "laser_whole": 0.05}
BINS_WITHIN = {"range": 0.10, "bearing": 0.10, "range_whole": 0.10, "bearing_whole": 0.10}
_WHAT = """\
A robot's laser, range and bearing to landmarks, and GNSS pseudoranges, each with the true value beside it. The known
model of the sensor gives the reading without noise, and the makers of the data state the variance of the noise. Small
networks learn the distribution of the error as a function of the state, from some stretches of time, and are tested on
others that they have never seen.

- `stated`: a normal distribution with the stated variance. `nll`: a network trained by likelihood. `temperature`: the
  same without a fifth of its stretches, which one factor is fitted to. `oof_temperature`, `oof_nll`, `oof_fcal`:
  `fcal.crossfit`, with groups; one factor, or error bars of their own by likelihood, or by likelihood and f-Cal,
  from errors of held-out stretches.
- Stretches are 20 seconds long (GNSS: 10), all landmarks or satellites together. They are what folds hold out, in
  testing as in cross-fitting: neighbouring readings are nearly copies of each other, and readings of several
  landmarks at one moment share the error of the robot's position. Clusters of the verdicts are tracks: one landmark or
  satellite, seen without a break, within one stretch.
- The standard deviation that is compared is that of errors about the known model. Of rows with predicted means m and
  standard deviations s it is the root of the mean of s² plus the variance of m; where networks do not correct the
  known model, that is the root of the mean of s². GNSS errors have outliers: there it is 1.4826 times the median
  absolute error, of predictions as of readings. Measured standard deviations are about the mean of their bin; the
  laser's learnt ones are about the known model, which networks do not correct there, and are a little above them in
  the picture.
- Columns are of all test rows together, ± the standard deviation over folds. LL is the mean log-likelihood in units of
  the reading.
"""


def page(benchmark: Benchmark[Settings], facts: str) -> str:
    """The page as Markdown.

    Args:
        benchmark: Finished tables.
        facts: Commits, machine and settings of the cells, as Markdown.
    """
    parts = [
        "# Sensors whose noise is known: results\n",
        "Written by `experiments/publish.py` from the cells in [sensors/cells.jsonl](sensors/cells.jsonl); all "
        "numbers, unrounded, in [sensors/results.json](sensors/results.json).\n",
        _WHAT,
        _answers(benchmark.tables),
        "![sd of errors along the state: measured, stated, learnt](sensors/sensors.png)\n",
        "## How it was made\n",
        facts,
    ]
    for table in benchmark.tables:
        parts += [f"## {SENSORS.table_title(table)}\n", SENSORS.caption(table) + "\n"]
        parts += [results_markdown(SENSORS.columns, table), *(f"{sentence}\n" for sentence in failures(table))]
        for sentence, text in SENSORS.sections(table):
            parts += [sentence + "\n", text]
    return "\n".join(parts)


def pictures(benchmark: Benchmark[Settings]) -> Mapping[str, Figure]:
    """Pictures of the page, by name."""
    return SENSORS.pictures(benchmark.tables)


def more_cells(settings: Settings, rows: Sequence[Any]) -> list[Cell]:
    """The facts of every table."""
    del settings
    return list(dict.fromkeys(SENSORS.facts(row.problem) for row in rows))


def reached(table: Table) -> dict[str, bool]:
    """Whether each row is as near to the known noise as we ask; empty for a table that nothing is asked of."""
    name, known = table.labels["name"], table.details["known"]
    stated, bins = STATED_WITHIN.get(name), BINS_WITHIN.get(name)
    if stated is None and bins is None:
        return {}
    return {
        row: (stated is None or abs(learnt["ratio"] - 1) <= stated)
        and (bins is None or all(abs(each["learnt"][row]["ratio"] - 1) <= bins for each in known["bins"]))
        for row, learnt in known["learnt"].items()
    }


def _answers(tables: Sequence[Table]) -> str:
    """The results in sentences whose numbers are the tables'."""
    sentences = {
        "laser": _laser,
        "range": _bins,
        "bearing": _bins,
        "gnss": _gnss,
        "laser_whole": _laser_whole,
        "range_whole": _whole,
        "bearing_whole": _whole,
    }
    lines = [f"- {sentences[table.labels['name']](table)}" for table in tables]
    return "## Results\n\n" + "\n".join(lines) + "\n"


def _laser(table: Table) -> str:
    known = table.details["known"]
    return (
        f"Laser: the learnt sd is {known['learnt'][BEST]['sd']:.5f} m, the stated one {known['stated_sd']:.5f} m: a "
        f"ratio of {known['learnt'][BEST]['ratio']:.3f} (`{BEST}`). Within 5 %: {_who(table)}. The verdict of `{BEST}` "
        f"is “{table.rows[BEST].details['verdict']}”: given the speed but not its sign, errors lie on two sides. The "
        "stated variance is the sample variance of these very readings, so this tests whether distributions learnt "
        "from some stretches of time have the right size on the others."
    )


def _gnss(table: Table) -> str:
    family, trained = table.details["family"], table.details["family"]["log_likelihood"]
    return (
        f"GNSS, readings of a track counted as one: {family['verdict']}; all of a stretch counted as one: "
        f"{family['by_stretches']['verdict']}. Networks of normal distributions have a log-likelihood of "
        f"{trained['normal']:.3f}, those of Student-t distributions {trained['student-t']:.3f}; the stated variances, "
        f"as normal distributions, {table.rows['stated'].columns['ll'].mean:.2f}. The clock term is the median of the "
        "readings of a moment, so one of these, 8 % of all, has no error at all: measured robust sds are too small by "
        "it, and learnt ones are above them by up to a quarter in the middle bins, and below them by as much where the "
        "signal is weakest."
    )


def _laser_whole(table: Table) -> str:
    known = table.details["known"]
    learnt = known["learnt"][BEST]
    return (
        "Most of the stated noise of the laser is not noise. Given the velocity with its sign, a network corrects the "
        f"known model until {1000 * learnt['noise']:.1f} mm of {1000 * known['stated_sd']:.1f} remain: errors follow "
        "the velocity, as those of readings and true values taken at different moments do. The sd about the known "
        f"model that it implies is still {learnt['ratio']:.3f} of the stated one. Within 5 %: {_who(table)}."
    )


def _bins(table: Table) -> str:
    return (
        f"{table.details['sensor'].capitalize()}: in the three bins of distance, learnt sds divided by those measured "
        f"before on the same readings are {_ratios(table)} (`{BEST}`). All within 10 %: {_who(table)}."
    )


def _whole(table: Table) -> str:
    known = table.details["known"]
    return (
        f"{table.details['sensor'].capitalize()}, given everything: {known['learnt'][BEST]['noise']:.4f} of "
        f"{known['measured_sd']:.4f} {table.details['unit']} is noise. Learnt sds divided by those measured before: "
        f"{_ratios(table)}. All within 10 %: {_who(table)}."
    )


def _ratios(table: Table) -> str:
    return ", ".join(f"{each['learnt'][BEST]['ratio']:.3f}" for each in table.details["known"]["bins"])


def _who(table: Table) -> str:
    names = [f"`{row}`" for row, near in reached(table).items() if near and row != "stated"]
    return ", ".join(names) if names else "none"
