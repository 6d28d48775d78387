"""Modules and names of packages that are imported when they are first used.

Whoever needs one light module of a package, or prints nothing, would else wait for all that there is.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_exports(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package, which takes names from the modules that offer them."""
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
    """A module that is imported when something of it is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        """Return what the module has by a name."""
        return getattr(importlib.import_module(self._name), name)
