"""``fcal evaluate --format rvc1|coco``: detections with error bars, in files."""

import shlex
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rich.table import Table
from rich.text import Text

from fcal._files import provenance
from fcal._progress import ProgressBar
from fcal.cli.commands import plain_warnings, print_json, printable
from fcal.cli.consoles import print_in_full, report_console
from fcal.metrics.detection import BoxOptions, detection_report
from fcal.tables import FORMATS, read_coco_truths

_TABLE_OPTIONS = {
    "quantiles": None,
    "samples": None,
    "group": None,
    "by_output": False,
    "by_sigma": False,
    "cluster": None,
    "mean": "mean",
    "std": "std",
    "target": "target",
    "variance": None,
    "log_variance": None,
    "lower": None,
    "upper": None,
    "level": 0.9,
    "family": "normal",
    "out": None,
}


def run_detections(arguments: Namespace, words: list[str]) -> int:
    """Evaluate a file of detections and print the report."""
    _check_options(arguments)
    options = BoxOptions(df=arguments.df, bins=arguments.bins, tolerance=arguments.tolerance)
    with plain_warnings():
        truths = read_coco_truths(arguments.truth, masks=arguments.masks)
        if not len(truths):
            raise ValueError(f"expected `{arguments.truth}` with at least one image, got none")
        detections = FORMATS[arguments.format](arguments.path[0], truths, inclusive=arguments.inclusive)
    options = replace(options, classes=truths.classes)
    with ProgressBar("evaluating", total=len(truths), unit="images") as bar:
        attributes = map(truths.attributes, range(len(truths)))
        scores = detection_report(detections, truths, attributes=attributes, options=options, on_images=bar.advance)
    command = f"fcal {shlex.join(words)}"
    found = f"{arguments.path[0]} ({scores['n_detections']:,} detections)"
    source = f"{found} beside {arguments.truth} ({scores['n_images']:,} images, {scores['n_truths']:,} objects)"
    scores["mmap_classes"] = _named(scores["mmap_classes"], truths.classes)
    if arguments.json:
        head = {"source": source, "command": command, "versions": provenance(), "format": arguments.format}
        print_json({**head, "masks": arguments.masks, "classes": list(truths.classes), **scores})
    else:
        _print_scores(scores, source)
    return 0


def _check_options(arguments: Namespace) -> None:
    """Reject options of tables, and detections without a truth or a truth without detections."""
    if arguments.format is None:
        flag = next(f"--{name}" for name in ("truth", "masks", "inclusive") if getattr(arguments, name))
        raise ValueError(f"expected `{flag}` together with `--format rvc1` or `--format coco`, got no --format")
    if arguments.truth is None:
        raise ValueError(f"expected `--truth COCO.json` with `--format {arguments.format}`, got none")
    if len(arguments.path) != 1:
        raise ValueError(f"expected one file with `--format {arguments.format}`, got {len(arguments.path)}")
    for name, default in _TABLE_OPTIONS.items():
        if getattr(arguments, name) != default:
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(f"expected no `{flag}` with `--format {arguments.format}`, got {flag}")


def _named(values: Mapping[str, float], classes: tuple[str, ...]) -> dict[str, float]:
    return {classes[int(label) - 1]: value for label, value in values.items()}


def _print_scores(scores: Mapping[str, Any], source: str) -> None:
    console = report_console()
    console.print(Text(printable(source), style="dim"))
    tables = [_precision(scores), _qualities(scores), _contours(scores)]
    for table in tables if scores["kitti"] is None else [tables[0], _kitti(scores["kitti"]), *tables[1:]]:
        print_in_full(table)
    if scores["calibration"] is not None:
        corners = scores["calibration"]["corners"]
        mark = "" if corners["conclusive"] else "?"
        console.print(Text(f"corners of matched boxes are {corners['verdict']}{mark}: {corners['reason']}"))
        for warning in corners["warnings"]:
            console.print(Text(printable(f"warning: {warning}"), style="yellow"))
        print_in_full(_calibration(scores))
    for name, value in scores["mmap_classes"].items():
        console.print(Text(printable(f"mMAP of {name}: {_number(value)}")))


def _precision(scores: Mapping[str, Any]) -> Table:
    table = Table("", "mAP", "AP50", "AP75", caption="average precision as COCO defines it")
    rows = {"all classes": scores, **scores["average_precision"]}
    for name, values in rows.items():
        table.add_row(Text(printable(name)), *(_number(values[key]) for key in ("map", "ap50", "ap75")))
    return table


def _kitti(precision: Mapping[str, Mapping[str, float | None]]) -> Table:
    kinds = list(dict.fromkeys(kind for kinds in precision.values() for kind in kinds))
    table = Table("", *kinds, caption="average precision as KITTI defines it, 40 recall points")
    for name, values in precision.items():
        table.add_row(Text(printable(name)), *(_number(values[kind]) for kind in kinds))
    return table


def _calibration(scores: Mapping[str, Any]) -> Table:
    """Calibration of corners of matched boxes, of all and of each facet."""
    report = scores["calibration"]
    corners, rule = report["corners"], report["rule"]
    caption = (
        f"{report['matched']:,} pairs by an overlap of {rule['iou']:g} ({rule['assignment']}); energy score "
        f"{_number(report['energy_score'])} pixels; ECE of class scores {_number(report['scores']['ece']['value'])}; "
        "n counts corners with a variance, 4 of each pair"
    )
    table = Table("corners", "n", "scale (1 is right)", "in 90 %", "ECE(z)", "ECE(q)", "NLL", "CRPS", caption=caption)
    for column in table.columns:
        column.no_wrap = True
    groups = {"all": corners}
    for facet, parts in report["facets"].items():
        groups |= {name if name.startswith(facet) else f"{facet}: {name}": part for name, part in parts.items()}
    for name, group in groups.items():
        numbers = [_number(group[key]) for key in ("ece_z", "ece_q", "nll", "crps")]
        inside = group["coverage"].get("0.9")
        share = "-" if inside is None else f"{inside:.1%}"
        table.add_row(Text(printable(name)), f"{group['n']:,}", _number(group["scale"]["value"]), share, *numbers)
    return table


def _qualities(scores: Mapping[str, Any]) -> Table:
    table = Table("", "original (pixels)", "mask-free")
    for key, name in (
        ("pdq", "PDQ"),
        ("pdq_spatial", "PDQ (spatial)"),
        ("pdq_label", "PDQ (label)"),
        ("pdq_foreground", "PDQ (foreground)"),
        ("pdq_background", "PDQ (background)"),
        ("true_positives", "true positives"),
        ("false_positives", "false positives"),
        ("false_negatives", "false negatives"),
        ("ignored_detections", "on ignored truths"),
    ):
        table.add_row(name, *(_number(variant[key]) for variant in (scores, scores["pdq_mahalanobis"])))
    return table


def _contours(scores: Mapping[str, Any]) -> Table:
    caption = (
        f"mMAP {_number(scores['mmap'])}; {scores['pairs']:,} pairs of truths with detections that overlap by half"
    )
    table = Table("contour", "average precision", "truths inside", caption=caption)
    for level, value in scores["mmap_contours"].items():
        share = scores["consistency"][level]
        table.add_row(level, _number(value), "-" if share is None else f"{share:.1%}")
    return table


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
