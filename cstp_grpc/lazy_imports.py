"""Modules and package exports that are imported on first use.

Otherwise a command that needs one light module of a package would wait for all of them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_exports(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return a `__getattr__` for a package that imports each name from the module that defines it."""
    places = {name: module for module, names in modules.items() for name in names}

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(places[name])
        # The next use finds them without coming here. All of them, since importing a module puts it into its package
        # under its own name, which one of them may have.
        for offered in modules[places[name]]:
            setattr(sys.modules[package], offered, getattr(module, offered))
        return getattr(module, name)

    return find


class LazyModule:
    """A module that is imported on first attribute access."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the module."""
        return getattr(importlib.import_module(self._name), name)
