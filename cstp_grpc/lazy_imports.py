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
        value = getattr(importlib.import_module(places[name]), name)
        # The next use finds it without coming here.
        setattr(sys.modules[package], name, value)
        return value

    return find


class LazyModule:
    """A module that is imported when something of it is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        """Return what the module has by a name."""
        return getattr(importlib.import_module(self._name), name)
