"""The folder of a run: its files, checksums and weights, written, verified and read again."""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save
from torch import Tensor, nn

from fcal._config import difference, read_config, to_toml
from fcal._files import atomic_path, sha256_of, writable_folder
from fcal.metrics import Report
from fcal.models import WithScales
from fcal.training.config import RunConfig, errors_name, initial_model

CONFIG = "config.toml"
WEIGHTS = "weights.safetensors"
SCALES = "scales.safetensors"
RECALIBRATOR = "recalibrator"
REPORT = "report.json"
TRAINING = "training"
CHECKSUMS = "SHA256SUMS"
_ALWAYS = (CONFIG, WEIGHTS, REPORT, f"{TRAINING}/history.csv")


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run.

    Attributes:
        folder: The folder that holds it.
        config: Its config.
        model: The trained network; with ``crossfit.scales`` or ``model.fixed_mean``, the network and its scale network
            as one.
        report: The content of ``report.json``: ``config``, ``seed``, ``fit`` (history and more), ``test`` (metrics on
            the test set, after recalibration if there is one), ``before`` (without recalibration, else None),
            ``skipped`` (why rows could not be read, a line each) and ``provenance``.
        evaluations: Reports behind ``test`` and ``before``, with their curves, of a run that has just been trained;
            none where it was loaded, or predicts without error bars.

    Example:
        See :class:`RunConfig` and :func:`train`.
    """

    folder: Path
    config: RunConfig
    model: nn.Module
    report: dict[str, Any]
    evaluations: Mapping[str, Report] = field(default_factory=dict, repr=False)


def load(folder: str | os.PathLike[str]) -> Run:
    """Load a finished run and verify its checksums.

    Raises:
        ValueError: The run is not finished, or damaged; or its data or network is not registered.

    Example:
        >>> from fcal.training import load
        >>> load("nowhere")
        Traceback (most recent call last):
        ...
        ValueError: expected nowhere a finished run, got no such folder
    """
    folder = Path(folder)
    files = verify_checksums(folder, required=_ALWAYS)
    config = read_config(folder / CONFIG, RunConfig)
    if config.recalibration.method and not any(name.startswith(f"{RECALIBRATOR}/") for name in files):
        raise ValueError(f"expected {folder / CHECKSUMS} with a line for {RECALIBRATOR}, got none")
    model = initial_model(config, pretrained=False)
    read_weights(folder / WEIGHTS, model)
    if config.crossfit.scales or config.model.fixed_mean:
        if SCALES not in files:
            raise ValueError(f"expected {folder / CHECKSUMS} with a line for {SCALES}, got none")
        scales = initial_model(config, pretrained=False)
        read_weights(folder / SCALES, scales)
        model = WithScales(model, scales)
    report: dict[str, Any] = json.loads((folder / REPORT).read_text(encoding="utf-8"))
    return Run(folder=folder, config=config, model=model.eval(), report=report)


def is_finished(folder: Path) -> bool:
    """Whether a folder holds a finished run; the checksums are written last."""
    return (folder / CHECKSUMS).exists()


def check_folder(config: RunConfig, folder: Path, resume: bool) -> None:
    """Refuse a folder that holds anything but the run of this config."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ValueError(f"expected `out` a folder, got the file {folder}")
    if all(path.name.startswith(".") for path in folder.iterdir()):  # temporary files of a killed process
        return
    if not resume:
        raise ValueError(f"expected `out` an empty folder, or --resume to go on, got {folder}, which is not empty")
    if not (folder / CONFIG).exists():
        raise ValueError(f"expected `out` a run to go on with, got {folder} without {CONFIG}")
    _check_config(config, folder)


def _check_config(config: RunConfig, folder: Path) -> None:
    changed = difference(read_config(folder / CONFIG, RunConfig), config)
    if changed is not None:
        key, there, here = changed
        raise ValueError(f"expected `out` of the same config, got {key} = {there!r} there and {here!r} here")


def write_config(config: RunConfig, folder: Path) -> None:
    """Write the resolved config, or compare it with the one that is there."""
    writable_folder(folder)
    if (folder / CONFIG).exists():
        _check_config(config, folder)
        return
    with atomic_path(folder / CONFIG) as temporary:
        temporary.write_text(to_toml(config), encoding="utf-8")


def write_model(folder: Path, model: nn.Module) -> None:
    """Write the weights of a network, and those of its scale network if it has one."""
    if isinstance(model, WithScales):
        assert isinstance(model.model, nn.Module)
        assert isinstance(model.scales, nn.Module)
        write_weights(folder / SCALES, model.scales)
        model = model.model
    write_weights(folder / WEIGHTS, model)


def seal(config: RunConfig, folder: Path) -> None:
    """Write the checksums of a finished run and remove its checkpoints."""
    recalibrator = sorted((folder / RECALIBRATOR).glob("*")) if config.recalibration.method else []
    scales = [folder / SCALES] if config.crossfit.scales or config.model.fixed_mean else []
    write_checksums(folder, [*(folder / name for name in _ALWAYS), *scales, *recalibrator])
    remove_checkpoints(folder)


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a finished run."""
    for path in (folder / TRAINING).rglob("checkpoint*"):
        path.unlink()


@contextmanager
def removed_if_untrained(folder: Path) -> Iterator[None]:
    """After an error before the first checkpoint and the first epoch, remove the files that the block created.

    They would be in the way of the corrected command.
    """
    created = [path for path in (folder / CONFIG, folder / TRAINING) if not path.exists()]
    try:
        yield
    except BaseException:
        training = folder / TRAINING
        if not any(training.rglob("checkpoint*")) and not any(training.rglob("history.csv")):
            for path in reversed(created):  # the config last: a folder without one is nobody's
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
        raise


def write_checksums(folder: Path, files: Sequence[Path]) -> None:
    r"""Write the checksums of files below a folder, in the format of ``sha256sum -c``.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.txt").write_text("")
        >>> write_checksums(folder, [folder / "a.txt"])
        >>> (folder / "SHA256SUMS").read_text()
        'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  a.txt\n'
    """
    lines = [f"{sha256_of(path)}  {path.relative_to(folder).as_posix()}\n" for path in files]
    with atomic_path(folder / CHECKSUMS) as temporary:
        temporary.write_text("".join(lines), encoding="utf-8")


def verify_checksums(folder: Path, *, required: Sequence[str] = (), only: str | None = None) -> list[str]:
    """Verify all files that the checksums of a folder list, or only one of them.

    Args:
        folder: The folder.
        required: Names that must be listed, so that a truncated list is noticed.
        only: The one file to verify.

    Returns:
        The names that are listed.

    Raises:
        ValueError: There are no checksums, a line is invalid, a name is not listed, or a file is missing or damaged.
    """
    checksums = _read_checksums(folder)
    for name in (*required, *([] if only is None else [only])):
        if name not in checksums:
            raise ValueError(f"expected {folder / CHECKSUMS} with a line for {name}, got none")
    for name in checksums if only is None else [only]:
        path = folder / name
        if not path.is_file():
            raise ValueError(f"expected {path}, got no such file")
        if sha256_of(path) != checksums[name]:
            raise ValueError(f"expected {path} with the checksum in {CHECKSUMS}, got another: the file is damaged")
    return list(checksums)


def _read_checksums(folder: Path) -> dict[str, str]:
    try:
        lines = (folder / CHECKSUMS).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):  # missing, not UTF-8, or an impossible file name
        got = f"one without readable {CHECKSUMS}" if folder.is_dir() else "no such folder"
        raise ValueError(f"expected {folder} a finished run, got {got}") from None
    checksums: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        match = re.fullmatch(r"([0-9a-f]{64})  ([^\x00]+)", line)
        path = PurePosixPath(match[2] if match else "")
        if match is None or path.is_absolute() or ".." in path.parts or match[2] in checksums:
            shown = f"{line[:100]!r} in line {number}"
            raise ValueError(f"expected {folder / CHECKSUMS} of checksums and names, got {shown}")
        checksums[match[2]] = match[1]
    return checksums


def write_weights(path: Path, model: nn.Module) -> None:
    """Write the state of a network as safetensors, atomically."""
    # Copies, because safetensors refuses tensors that share memory and formats other than contiguous.
    state = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in model.state_dict().items()
    }
    with atomic_path(path) as temporary:
        temporary.write_bytes(save(state))


def read_weights(path: Path, model: nn.Module) -> None:
    """Load the state of a network in place.

    Raises:
        ValueError: The file cannot be read, or belongs to another network.
    """
    try:
        state = load_tensors(path.read_bytes())
    except OSError as error:
        raise ValueError(f"expected {path} with weights, got: {error.strerror}") from None
    except SafetensorError as error:
        raise ValueError(f"expected {path} in the safetensors format, got {error}") from None
    check_weights(path, state, model)
    model.load_state_dict(state)


def read_initial_weights(source: Path, model: nn.Module) -> None:
    """Load the weights of a finished run, for ``model.start_from``."""
    with errors_name("model.start_from"):
        if not is_finished(source):
            shown = f"{source}, which has no {CHECKSUMS}: not finished?" if source.is_dir() else f"no folder {source}"
            needed = f"the folder of a finished run, with {WEIGHTS} and {CHECKSUMS}"
            raise ValueError(f"expected `model.start_from` {needed}, got {shown}")
        verify_checksums(source, only=WEIGHTS)
        read_weights(source / WEIGHTS, model)


def check_weights(source: object, state: Mapping[str, Tensor], model: nn.Module) -> None:
    """Refuse the state of another network.

    Raises:
        ValueError: A tensor is missing, unknown, or of another shape.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for name in {**shapes, **state}:
        here, there = shapes.get(name), tuple(state[name].shape) if name in state else None
        if here == there:
            continue
        if there is None:
            shown = f"no {name}, of shape {here} here"
        else:
            shown = f"{name} of shape {there}, " + ("which it does not have" if here is None else f"not {here}")
        raise ValueError(f"expected {source} with weights of this network, got {shown}")
