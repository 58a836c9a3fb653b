"""``fcal data street``."""

import shlex
from argparse import Namespace

from fcal._config import as_plain
from fcal._files import provenance
from fcal.cli.commands import print_json, say
from fcal.data.street import LidarConfig, StreetConfig
from fcal.data.street.writing import write_street

_MOST_PER_DRIVE = 20
_DRIVES = 5  # at least, if there are as many frames: three for training, one for validation, one for the test


def run(arguments: Namespace, words: list[str]) -> int:
    """Render a street world into a folder."""
    if not arguments.out:
        raise ValueError("expected `--out` the name of a folder, got ''")
    config = _config(arguments)
    try:
        written = write_street(arguments.out, config, arguments.layout, progress=not arguments.json)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped; the same command continues") from None
    if arguments.json:
        document = {"out": str(written.folder), "command": f"fcal {shlex.join(words)}", "versions": provenance()}
        counts = {"frames": written.frames, "rendered": written.rendered, "files": written.files}
        print_json(document | counts | {"layout": arguments.layout, "config": as_plain(config)})
        return 0
    drives = f"{written.frames} frames of {config.drives} streets, {config.height} x {config.width}"
    say(f"{drives}: {written.files} files in {written.folder} ({written.rendered} frames rendered)")
    return 0


def _config(arguments: Namespace) -> StreetConfig:
    per_drive = arguments.frames_per_drive
    if per_drive is None:
        per_drive = min(_MOST_PER_DRIVE, max(arguments.frames // _DRIVES, 1))
    return StreetConfig(
        frames=arguments.frames,
        frames_per_drive=per_drive,
        seed=arguments.seed,
        height=arguments.height,
        width=arguments.width,
        lidar=LidarConfig(density=arguments.density),
    )
