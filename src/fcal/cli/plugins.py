"""Import of the modules that ``--plugin`` names."""

import contextlib
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

_LONGEST_NAME = 200  # characters


def load_plugin(name: str) -> None:
    """Import a user's module, which registers networks, data, objectives, methods or benchmarks.

    Args:
        name: A module that is installed or in the current folder, or the path of a Python file, which may import its
            neighbours.

    Raises:
        ValueError: It does not exist, or importing it raises an error.
    """
    shown = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."
    is_file = name.endswith(".py")
    if not is_file and not all(word.isidentifier() for word in name.split(".")):
        raise ValueError(f"expected `--plugin` a module or the path of a .py file, got {shown!r}")
    if is_file and not _is_file(Path(name)):
        raise ValueError(f"expected `--plugin` a Python file, got {shown}, which is not there")
    home = str(Path(name).resolve().parent if is_file else Path.cwd())
    if home not in sys.path:
        sys.path.append(home)  # last, so that nothing there hides an installed package
    try:
        _import_file(Path(name)) if is_file else importlib.import_module(name)
    except ImportError as error:
        is_missing = isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}.")
        hint = " (a .py file, or a module that is installed or in the current folder)" if is_missing else ""
        raise ValueError(f"expected `--plugin` a module to import, got {shown}: {error}{hint}") from error
    except (Exception, SystemExit) as error:
        raised = f"{type(error).__name__}: {error}"
        raise ValueError(f"expected `--plugin` a module to import, got {shown}, which raised {raised}") from error


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # the name is too long
        return False


def _import_file(path: Path) -> None:
    name = f"fcal_plugin_{path.stem}"  # the prefix keeps a file called torch.py from hiding torch
    if getattr(sys.modules.get(name), "__file__", None) == str(path.resolve()):
        return  # what it registers is known already
    spec: Any = importlib.util.spec_from_file_location(name, path.resolve())
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    with contextlib.suppress(ModuleNotFoundError):  # without joblib and cloudpickle there are no worker processes
        # Worker processes cannot import it by its name, so its classes are sent to them by value.
        importlib.import_module("cloudpickle").register_pickle_by_value(module)
