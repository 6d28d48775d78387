"""Modules and package exports that are imported on first use.

Otherwise a command that needs one light module of a package would wait for all of them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any


def lazy_exports(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for a package that imports each name from the module that defines it.

    `modules` are the names that modules define, separated by spaces.
    """
    module_of = {name: module for module, names in modules.items() for name in names.split()}

    def find(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_or_name_extra(module_of[name])
        # All its exports become attributes of the package, so that their next use does not come here. All, because an
        # import also binds the submodule in its package, under a name that one of the exports may have.
        for offered in modules[module_of[name]].split():
            setattr(sys.modules[package], offered, getattr(module, offered))
        return getattr(module, name)

    return find


class LazyModule:
    """A module that is imported on first attribute access."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_or_name_extra(self._name), name)


def import_or_name_extra(name: str) -> ModuleType:
    """Import a module. Raises MissingExtra if it needs a library of an extra that is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Imported here: only a failure needs it.
        from cstp_grpc.common.extras import missing_extra

        missing = missing_extra(error)
        if missing is None:
            raise
        raise missing from error
