"""A user's own functions, by name."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any, cast

from openloop.errors import SpecError

_from_files: set[str] = set()  # names of modules that are a user's


def find_function(name: str) -> Callable[..., Any]:
    """The function that `name` says, from a module or a file."""
    place, _, inner = name.rpartition(":")
    if not place or not inner:
        raise SpecError(f"{name!r} names no function; write module:function or path/file.py:function")
    file = Path(place if place.endswith(".py") else f"{place}.py")
    if file.is_file() and file.stem in sys.stdlib_module_names:
        raise SpecError(f"{name!r}: {file} has the name of a module of Python's own, which it would hide; rename it")
    if file.is_file() and file.stem in sys.modules and not _is_users(sys.modules[file.stem], file):
        raise SpecError(f"{name!r}: {file} has the name of another module in use, which it would hide; rename it")
    try:
        module = _from_file(Path(place)) if place.endswith(".py") else _from_module(place)
        found: Any = reduce(getattr, inner.split("."), module)
    except Exception as error:  # whatever a user's module does when it is imported
        raise SpecError(f"{name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise SpecError(f"{name!r} is a {type(found).__name__}, and no function")
    return cast(Callable[..., Any], found)


def _is_users(module: Any, file: Path) -> bool:
    return file.stem in _from_files or Path(getattr(module, "__file__", None) or "").resolve() == file.resolve()


def _from_module(name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return importlib.import_module(name)


def _from_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[path.stem] = module
    _from_files.add(path.stem)
    spec.loader.exec_module(module)
    return module
