"""Write a street world to files in the layouts of KITTI and Cityscapes."""

import os
from dataclasses import dataclass
from pathlib import Path

from fcal._config import difference, read_config, to_toml
from fcal._files import atomic_path, held, is_temporary, remove_abandoned, writable_folder
from fcal._progress import ProgressBar
from fcal._registry import Registry
from fcal.data.street.cityscapes_layout import CITYSCAPES
from fcal.data.street.frames import StreetConfig, street_frame
from fcal.data.street.kitti_layouts import KITTI_DEPTH, KITTI_OBJECT
from fcal.data.street.layouts import Layout
from fcal.data.street.street_depth import SPLITS, frames_of

LAYOUTS: Registry[Layout] = Registry("layout")
LAYOUTS.add("kitti-depth", KITTI_DEPTH)
LAYOUTS.add("kitti-object", KITTI_OBJECT)
LAYOUTS.add("cityscapes", CITYSCAPES)

_CONFIG, _LOCK = "street.toml", ".street.lock"


@dataclass(frozen=True, kw_only=True)
class _Run:
    """What a folder holds, as its ``street.toml`` says."""

    layout: str
    street: StreetConfig


@dataclass(frozen=True, kw_only=True)
class Written:
    """What was written.

    Args:
        folder: The folder.
        frames: Number of frames in it.
        rendered: Number of frames that this run rendered; the others were already there.
        files: Number of files.
    """

    folder: Path
    frames: int
    rendered: int
    files: int


def write_street(
    folder: str | os.PathLike[str], config: StreetConfig, layout: str = "kitti-depth", *, progress: bool = False
) -> Written:
    """Write a street world to a folder; a run that was stopped is completed by running it again.

    Files appear under their names when they are complete. The lists of frames are written last.

    Args:
        folder: An empty folder, a new one, or that of an earlier run of the same config and layout.
        config: The street world.
        layout: ``"kitti-depth"``, ``"kitti-object"`` or ``"cityscapes"``.
        progress: Draw a progress bar.

    Raises:
        ValueError: There is no such layout, there are too few drives for the splits, or the folder holds something
            else.
        OSError: The folder cannot be written to.

    Example:
        >>> import tempfile
        >>> tiny = StreetConfig(frames=3, frames_per_drive=1, height=16, width=52)
        >>> write_street(tempfile.mkdtemp(), tiny, "kitti-object").rendered
        3
    """
    files, run = LAYOUTS[layout], _Run(layout=layout, street=config)
    frames_of(config, SPLITS[0])  # reject too few drives before anything is written
    target = Path(folder)
    if target.is_dir():
        _check_folder(target, run)
    writable_folder(target)
    with held(target / _LOCK) as ours:
        if not ours:
            raise ValueError(f"expected a folder that no other run writes to, got {target}")
        remove_abandoned(target)
        for name, text in {_CONFIG: to_toml(run), **files.before(config)}.items():
            _write(target / name, text.encode())
        rendered = _write_frames(target, files, config, progress)
        lists = files.lists(config)
        for name, text in lists.items():
            _write(target / name, text.encode())
    count = 1 + len(files.before(config)) + len(lists) + config.frames * len(files.names(config, 0))
    return Written(folder=target, frames=config.frames, rendered=rendered, files=count)


def _check_folder(folder: Path, run: _Run) -> None:
    """Refuse a folder with anything else than an earlier run of the same config."""
    if not any(path.name != _LOCK and not is_temporary(path.name) for path in folder.iterdir()):
        return
    if not (folder / _CONFIG).is_file():
        raise ValueError(f"expected an empty folder or one of an earlier run, got {folder} without {_CONFIG}")
    changed = difference(read_config(folder / _CONFIG, _Run), run)
    if changed is not None:
        key, old, new = changed
        raise ValueError(
            f"expected an empty folder or an earlier run of the same config, got {folder} with {key} = {old}, not {new}"
        )


def _write_frames(folder: Path, layout: Layout, config: StreetConfig, progress: bool) -> int:
    """Write the frames that are not there yet; returns how many."""
    rendered = 0
    with ProgressBar("rendering", total=config.frames, unit="frames", show=progress) as bar:
        for index in range(config.frames):
            paths = [folder / name for name in layout.names(config, index)]
            if not all(path.is_file() for path in paths):
                contents = layout.contents(config, index, street_frame(config, index))
                for path, content in zip(paths, contents, strict=True):
                    _write(path, content)
                rendered += 1
            bar.advance()
    return rendered


def _write(path: Path, content: bytes) -> None:
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)
