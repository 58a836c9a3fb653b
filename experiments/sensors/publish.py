"""Copy finished tables of the sensor benchmark into the docs, and write its page of results from them."""

import argparse
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

from fcal._config import to_toml
from fcal._files import atomic_path, write_json
from fcal.benchmarks import sensors
from fcal.benchmarks.sensors import markdown, picture
from fcal.benchmarks.sensors.running import KIND
from fcal.sweeps import Record, Store, key

Table = Mapping[str, Any]
BEST = "oof_nll"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=Path("runs/sensors"))
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--preset", default="full")
    arguments = parser.parse_args()
    mpl.use("agg")
    settings = sensors.preset(arguments.preset)
    folder = arguments.out / "sensors"
    run = Store(arguments.run / "cells")
    wanted = {key(record.kind, record.config) for record in _records(run, settings).values()}
    run.publish(folder / "cells", KIND, only=wanted)
    records = _records(Store(folder / "cells"), settings)  # from here on the docs' own cells are all there is
    missing = [name for name in settings.tables if name not in records]
    if missing:
        raise SystemExit(f"expected all tables of the preset, got none of {', '.join(missing)}")
    tables = [records[name].result for name in settings.tables]
    document = {"task": "sensors", "tables": tables, "settings": sensors.described(settings)}
    write_json(folder / "results.json", document)
    with atomic_path(folder / "sensors.png") as temporary:
        picture.draw(tables).savefig(temporary, dpi=110, metadata={"Software": None})
    with atomic_path(arguments.out / "sensors.md") as temporary:
        temporary.write_text(_page(settings, tables, list(records.values())), encoding="utf-8")
    print(f"{arguments.out / 'sensors.md'}: {len(tables)} tables")


def _records(store: Store, settings: sensors.Settings) -> dict[str, Record]:
    """Finished tables of these settings, by name, in the preset's order."""
    found = {record.config["name"]: record for record in store.records(KIND) if _is_of(record, settings)}
    return {name: found[name] for name in settings.tables if name in found}


def _is_of(record: Record, settings: sensors.Settings) -> bool:
    name = record.config["name"]
    if name not in settings.tables:
        return False
    (cell,) = sensors.cells_of(settings, {name: record.config["data"]}).values()
    return bool(cell.config == record.config)


def _page(settings: sensors.Settings, tables: Sequence[Table], records: Sequence[Record]) -> str:
    parts = [
        "# Sensors whose noise is known: results\n",
        "Written by `experiments/sensors/publish.py` from the cells in [sensors/cells](sensors/cells); all numbers, "
        "unrounded, in [sensors/results.json](sensors/results.json).\n",
        _WHAT,
        _answers({table["name"]: table for table in tables}),
        "![sd of errors along the state: measured, stated, learnt](sensors/sensors.png)\n",
        _facts(settings, records),
    ]
    for table in tables:
        parts += [f"## {markdown.title(table)}\n", markdown.facts(table) + "\n", markdown.results_markdown(table)]
        parts += [
            "Standard deviations of errors about the known model, in brackets beside those measured before or here:\n"
        ]
        parts += [markdown.known_markdown(table)]
        if table["corrects"]:
            parts += ["How much of these is noise about the learnt correction:\n", markdown.noise_markdown(table)]
        chosen = ", ".join(f"{name} in {times}" for name, times in Counter(table["family"]["chosen"]).items())
        parts += [f"{markdown.family_sentence(table)} Networks predict: {chosen} of the folds.\n"]
        parts += [markdown.family_markdown(table)]
    return "\n".join(parts)


_WHAT = """\
A robot's laser, range and bearing to landmarks, and GNSS pseudoranges, each with the truth beside it. What the
sensor should have said is known, and so is how large its errors are: the makers of the data state a variance. Small
networks learn the law of the error as a function of the state, from some stretches of time, and are asked about
others that they have never seen.

- `stated`: a normal law with the stated variance. `nll`: a network trained by likelihood. `temperature`: the same
  without a fifth of its stretches, which tell one factor. `oof_temperature`, `oof_nll`, `oof_fcal`:
  `fcal.crossfit`, with groups; one factor, or error bars of their own by likelihood, or by likelihood and f-Cal,
  from errors of held-out stretches.
- Stretches are 20 seconds long (GNSS: 10), all landmarks or satellites together. They are what folds hold out, in
  testing as in cross-fitting: neighbouring readings are nearly copies of each other, and readings of several
  landmarks at one moment share the error of the robot's place. Clusters of the verdicts are tracks: one landmark or
  satellite, seen without a break, within one stretch.
- The sd that is compared is that of errors about the known model. A law with mean m and sd s for every row says
  that it is the root of the mean of s² plus the variance of m; where networks do not correct the known model, that
  is the root of the mean of s². GNSS errors are wild: there it is 1.4826 times the median of the errors' sizes, for
  laws as for readings. Measured sds are about the mean of their bin; the laser's learnt ones, which do not correct
  the known model, are about that, and a little above them in the picture.
- Numbers in brackets beside ECE are what 95 % of calibrated models stay below, and beside the scale of z its 95 %
  interval, given the clusters. LL is the mean log-likelihood in units of the reading; ± over folds is in the JSON.
"""


def _answers(tables: Mapping[str, Table]) -> str:
    """What came out, in sentences whose numbers are the tables'."""
    sentences = {
        "laser": _laser,
        "range": _bins,
        "bearing": _bins,
        "gnss": _gnss,
        "laser_whole": _laser_whole,
        "range_whole": _whole,
        "bearing_whole": _whole,
    }
    lines = [f"- {sentences[name](table)}" for name, table in tables.items()]
    return "## What came out\n\n" + "\n".join(lines) + "\n"


def _laser(table: Table) -> str:
    known = table["known"]
    return (
        f"Laser: the learnt sd is {known['learnt'][BEST]['sd']:.5f} m, the stated one {known['stated_sd']:.5f} m: a "
        f"ratio of {known['learnt'][BEST]['ratio']:.3f} (`{BEST}`). Within 5 %: {_who(known)}. The verdict of `{BEST}` "
        f"is “{table['rows'][BEST]['verdict']}”: given the speed but not its sign, errors lie on two sides. The stated "
        "variance is the sample variance of these very readings, so what is tested is that laws learnt from some "
        "stretches of time have the right size on the others."
    )


def _gnss(table: Table) -> str:
    family, trained = table["family"], table["family"]["log_likelihood"]
    return (
        f"GNSS, readings of a track counted as one: {family['verdict']}; all of a stretch counted as one: "
        f"{family['by_stretches']['verdict']}. A network of normal laws has a log-likelihood of "
        f"{trained['normal']:.3f}, one of Student-t laws {trained['student-t']:.3f}; the stated variances, as normal "
        f"laws, {table['rows']['stated']['ll']['mean']:.2f}. The clock term is the median of the readings of a moment, "
        "so that one of the few, 8 % of all, has no error at all: measured robust sds are too small by it, and learnt "
        "ones stand above them by up to a quarter in the middle bins, and below them by as much where the signal is "
        "weakest."
    )


def _laser_whole(table: Table) -> str:
    known, learnt = table["known"], table["known"]["learnt"][BEST]
    return (
        "Most of the stated noise of the laser is none. Told the velocity with its sign, a network corrects the known "
        f"model until {1000 * learnt['noise']:.1f} mm of {1000 * known['stated_sd']:.1f} remain: errors go with the "
        "velocity, as those of readings and truth taken at different moments do. The sd about the known model that it "
        f"implies is still {learnt['ratio']:.3f} of the stated."
    )


def _bins(table: Table) -> str:
    known = table["known"]
    near = ", ".join(f"{one['learnt'][BEST]['ratio']:.3f}" for one in known["bins"])
    return (
        f"{table['sensor'].capitalize()}: in the three bins of distance, learnt sds by those measured before on the "
        f"same readings are {near} "
        f"(`{BEST}`). All within 10 %: {_who(known)}."
    )


def _whole(table: Table) -> str:
    known, learnt = table["known"], table["known"]["learnt"][BEST]
    near = ", ".join(f"{one['learnt'][BEST]['ratio']:.3f}" for one in known["bins"])
    return (
        f"{table['sensor'].capitalize()}, told everything: {learnt['noise']:.4f} of {known['measured_sd']:.4f} "
        f"{table['unit']} is noise. Learnt sds by those measured before: {near}. All within 10 %: {_who(known)}."
    )


def _who(known: Mapping[str, Any]) -> str:
    names = [f"`{name}`" for name, reached in known["reached"].items() if reached and name != "stated"]
    return ", ".join(names) if names else "none"


def _facts(settings: sensors.Settings, records: Sequence[Record]) -> str:
    """Config, commits and machine of the tables."""
    found = {
        name: ", ".join(sorted({str(record.provenance[name]) for record in records}))
        for name in ("commit", "cpu", "cores", "torch", "python")
    }
    lines = [f"- {name}: {value}" for name, value in found.items()]
    return "\n".join(["## How it was made\n", *lines, "", "```toml", to_toml(settings).strip(), "```", ""])


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
