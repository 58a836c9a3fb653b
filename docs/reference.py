"""The pages of the API reference: one for every public room, with every name that the room exports.

``docs/conf.py`` writes them before Sphinx reads its sources, so that a new public name is in the reference without an
edit here; what they say is in the docstrings alone.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import fcal


def rooms() -> list[ModuleType]:
    """Public modules: those that list what they export, and modules in such a list.

    The command line is documented by its ``--help``.
    """
    found = {}
    for info in pkgutil.walk_packages(fcal.__path__, "fcal."):
        private = any(part.startswith("_") for part in info.name.split("."))
        if not private and not info.name.startswith("fcal.cli"):
            module = importlib.import_module(info.name)
            if hasattr(module, "__all__"):
                listed = [getattr(module, name) for name in module.__all__]
                found |= {room.__name__: room for room in [module, *filter(inspect.ismodule, listed)]}
    return sorted(found.values(), key=lambda room: (room.__name__.count("."), room.__name__))


def exported(room: ModuleType) -> dict[str, object]:
    """Public names of a room that are not rooms themselves; without a list, those of what it defines."""
    names = getattr(room, "__all__", None)
    if names is None:
        own = [name for name, value in vars(room).items() if getattr(value, "__module__", None) == room.__name__]
        names = [name for name in own if not name.startswith("_")]
    named = {name: getattr(room, name) for name in sorted(names)}
    return {name: value for name, value in named.items() if not inspect.ismodule(value)}


def entry(name: str, value: object) -> str:
    """The directive that documents one name; Sphinx completes short names by the module of the page."""
    if inspect.isclass(value):
        return f".. autoclass:: {name}\n   :members:\n   :show-inheritance:\n"
    if inspect.isroutine(value):
        return f".. autofunction:: {name}\n"
    return f".. py:data:: {name.rpartition('.')[2]}\n\n   {constant(value)}\n"


def constant(value: object) -> str:
    """What a constant is, in a line: autodoc would show the docstring of its type."""
    if isinstance(value, Mapping):
        return "A mapping with the keys " + ", ".join(f"``{key}``" for key in value) + "."
    if type(value).__module__.startswith("fcal"):
        return f"{(inspect.getdoc(type(value)) or '').splitlines()[0]}"
    return f"``{value!r}``"


def alias(name: str, value: object, home: str) -> str:
    """The entry of a name whose object is documented elsewhere."""
    kind = "class" if inspect.isclass(value) else "function"
    return f".. py:{kind}:: {name.rpartition('.')[2]}\n\n   The same as :py:obj:`{home}`.\n"


def heading(module: ModuleType) -> str:
    """Title and docstring of a module."""
    title = module.__name__
    return f"{title}\n{'=' * len(title)}\n\n.. automodule:: {title}\n   :no-members:\n"


def pages() -> dict[str, str]:
    """The pages in reStructuredText by name; an object that several rooms export is documented in the first."""
    homes: dict[int, str] = {}
    texts = {}
    for room in rooms():
        entries = [heading(room)]
        for name, value in exported(room).items():
            full = f"{room.__name__}.{name}"
            home = homes.setdefault(id(value), full)
            entries.append(entry(full, value) if home == full else alias(full, value, home))
        texts[room.__name__] = "\n".join(entries)
    short = [
        alias(f"fcal.{name}", getattr(fcal, name), f"{home}.{name}") for name, home in sorted(fcal._HOME_OF.items())
    ]
    return {"fcal": "\n".join([heading(fcal), *short])} | texts


def write(folder: Path) -> None:
    """Write all pages; files that have not changed keep their time, so that Sphinx reads only what is new."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = pages()
    for old in folder.glob("*.rst"):
        if old.stem not in texts:
            old.unlink()
    for name, text in texts.items():
        path = folder / f"{name}.rst"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
