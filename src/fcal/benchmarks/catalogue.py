"""Registry of benchmarks by name, with their command-line options. Imports nothing heavy."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fcal._registry import Registry

if TYPE_CHECKING:
    from fcal.benchmarks.task import Task


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option of the command line that changes a setting.

    Attributes:
        flag: Name on the command line, such as ``"--noise"``.
        setting: Field of the task's settings that it sets.
        help: Help text.
        metavar: Placeholder of the value in the help.
        type: Type of the value.
        several: Whether the setting is a tuple, whose values are separated by commas.
        choices: Allowed values; any if empty, up to the settings.
    """

    flag: str
    setting: str
    help: str
    metavar: str | None = None
    type: type = str
    several: bool = False
    choices: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its attribute in the parsed arguments."""
        return self.flag.removeprefix("--").replace("-", "_")

    def value(self, typed: Any) -> Any:
        """Value of the setting; None if the option was not used.

        Example:
            >>> Option(flag="--datasets", setting="datasets", help="", several=True).value("wine, yacht")
            ('wine', 'yacht')
        """
        if typed is not None and self.choices and typed not in self.choices:
            raise ValueError(f"expected `{self.flag}` one of {', '.join(self.choices)}, got {typed!r}")
        if typed is None or not self.several:
            return typed
        return tuple(dict.fromkeys(name.strip() for name in typed.split(",")))


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A benchmark and its command.

    Attributes:
        task: The task, or where to import it from when it is run, as ``"package.module:NAME"``.
        purpose: What it does, in half a sentence.
        example: A command to try.
        data: Help of ``--data``; empty for a task that generates its data.
        needs_data: Whether ``--data`` must be given.
        preset: Default preset.
        presets: Help of ``--preset``.
        options: Further options.
        seeds: Help of ``--seeds``; empty for a task whose settings have none.
        ablations: Help of ``--ablation``; empty for a task without ablations.
        out: Help of ``--out``.
    """

    task: "Task[Any] | str"
    purpose: str
    example: str = ""
    data: str = ""
    needs_data: bool = True
    preset: str = "quick"
    presets: str = "size of the benchmark"
    options: tuple[Option, ...] = ()
    seeds: str = ""
    ablations: str = ""
    out: str = "where finished cells and results are kept"

    def load(self) -> "Task[Any]":
        """The task, imported if necessary."""
        if not isinstance(self.task, str):
            return self.task
        module, name = self.task.split(":")
        task: Task[Any] = getattr(importlib.import_module(module), name)
        return task

    def settings(self, typed: Mapping[str, Any]) -> dict[str, Any]:
        """Settings that the command line changes, from the parsed arguments by name."""
        values = {option.setting: option.value(typed.get(option.name)) for option in self.options}
        return {setting: value for setting, value in values.items() if value is not None}


TASKS: Registry[Entry] = Registry("benchmark")

TASKS.add(
    "bokeh",
    Entry(
        task="fcal.benchmarks.bokeh.task:BOKEH",
        purpose="find the red disc among others, and say how sure that is: the paper's first experiment",
        example="fcal benchmark bokeh --preset quick --noise heteroscedastic",
        presets="tiny (to see that it runs), quick (minutes) or paper (hours) (default quick)",
        options=(
            Option(
                flag="--noise",
                setting="noises",
                several=True,
                help="homoscedastic, heteroscedastic, gamma, laplace or student-t (default: the first two)",
            ),
            Option(
                flag="--regime",
                setting="regimes",
                several=True,
                help="paper-like or noise-dominated (default: as the preset says)",
            ),
        ),
        seeds="repetitions with other images, labels and weights",
        ablations="k, gamma, lambda or divergence: that experiment instead of the table",
        out="where finished cells are kept and the page is written, over an older one",
    ),
)
TASKS.add(
    "uci",
    Entry(
        task="fcal.benchmarks.uci.task:UCI",
        purpose="regression on eight UCI tables with the standard splits, beside published figures",
        example="fcal benchmark uci --data uci_gal --preset quick",
        data="folder of the tables (concrete/data/data.txt, ...), or above it",
        presets="tiny (to see that it runs), quick (minutes) or full (default quick)",
        options=(
            Option(
                flag="--datasets",
                setting="datasets",
                metavar="A,B",
                several=True,
                help="tables, as concrete,yacht (default: as the preset says)",
            ),
            Option(
                flag="--networks", setting="networks", metavar="A,B", several=True, help="1x50 or 2x64 (default: both)"
            ),
        ),
    ),
)
TASKS.add(
    "sensors",
    Entry(
        task="fcal.benchmarks.sensors.task:SENSORS",
        purpose="learn the noise of real sensors as a function of the state, and compare with what is known of it",
        example="fcal benchmark sensors --data robot_known_noise",
        data="folder with barfoot_ser and smartloc_gnss",
        preset="full",
        presets="tiny (to see that it runs) or full (minutes) (default full)",
        options=(
            Option(
                flag="--sensors",
                setting="tables",
                metavar="A,B",
                several=True,
                help="laser, range, bearing, gnss, laser_whole, ... (default: as the preset says)",
            ),
        ),
        out="where finished cells are kept and the tables are written, over older ones",
    ),
)


TASKS.add(
    "depth",
    Entry(
        task="fcal.benchmarks.depth.task:DEPTH",
        purpose="the distance of every pixel with its error bar, on rendered streets or on KITTI",
        example="fcal benchmark depth --preset quick",
        data="folder of KITTI (raw and depth trees, Eigen's lists), or of the real frames of kitti-mini",
        needs_data=False,
        presets="tiny (to see that it runs), quick (minutes), street (an hour), kitti-mini or paper (default quick)",
        options=(
            Option(flag="--encoder", setting="encoder", help="mobilenet_v2, resnet18, ... (default: the preset's)"),
            Option(flag="--family", setting="family", help="normal, laplace or log-normal (default normal)"),
        ),
        seeds="repetitions with other weights and, of rendered streets, other frames",
        out="where finished cells are kept and the page is written, over an older one",
    ),
)
TASKS.add(
    "detection",
    Entry(
        task="fcal.benchmarks.detection.task:DETECTION",
        purpose="boxes of objects with the error bars of their corners, on rendered streets or real images",
        example="fcal benchmark detection --preset quick",
        data="folder of the images and labels, or of the matched boxes of residuals",
        needs_data=False,
        presets="tiny (to see that it runs), quick (minutes), street (an hour), kitti-mini, bccd, residuals (boxes of "
        "a real detector), paper-kitti or paper-cityscapes (default quick)",
        options=(
            Option(
                flag="--format",
                setting="set",
                choices=("kitti", "cityscapes", "coco", "voc"),
                help="kitti, cityscapes, coco or voc (default: the preset's)",
            ),
            Option(flag="--backbone", setting="backbone", help="mobilenet_v2, resnet18, ... (default: the preset's)"),
        ),
        seeds="repetitions with other weights, or other folds",
        out="where finished cells are kept and the page is written, over an older one",
    ),
)


def register(task: "Task[Any]", purpose: str, **command: Any) -> None:
    """Register a task for ``fcal benchmark``, under its name.

    Args:
        task: The task.
        purpose: What it does, in half a sentence.
        command: Further fields of :class:`Entry`; its first preset is the default.
    """
    if isinstance(task, type):
        raise TypeError(f"expected `task` an instance, {task.__name__}(), got the class")
    preset = command.pop("preset", next(iter(task.presets)))
    presets = command.pop("presets", f"{', '.join(task.presets)} (default {preset})")
    example = command.pop("example", f"fcal benchmark {task.name} --plugin FILE.py")
    TASKS.add(task.name, Entry(task=task, purpose=purpose, preset=preset, presets=presets, example=example, **command))
