"""What is installed with the package alone, or with some of its extras, and Python without the rest."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PROJECT: Mapping[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OWN_PACKAGES = frozenset({"cstp_grpc", "bridge", "console"})
BUILD_SECONDS = 60.0
PROGRAM = """
import runpy, sys

class FilteredFinder:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in absent else self.finder.find_spec(name, path, target)

absent = set(sys.argv[1].split(","))
sys.meta_path[:] = map(FilteredFinder, sys.meta_path)
module, sys.argv = sys.argv[2], sys.argv[2:]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
"""Runs a module where some libraries cannot be imported, as if they were not installed."""


def build_distribution(target: str, source: Path, folder: Path) -> Path:
    """Build a distribution, `sdist` or `wheel`, of a folder into another one and return its file."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    subprocess.run(command, cwd=source, check=True, timeout=BUILD_SECONDS, stdout=subprocess.DEVNULL)
    (built,) = folder.iterdir()
    return built


def requirements_of(extras: Iterable[str] = ()) -> list[Requirement]:
    """Return the requirements of the package and of extras, among them those of the extras that these include."""
    found = [Requirement(text) for text in PROJECT["dependencies"]]
    for extra in extras:
        for requirement in map(Requirement, PROJECT["optional-dependencies"][extra]):
            is_own = requirement.name == PROJECT["name"]
            found += requirements_of(requirement.extras) if is_own else [requirement]
    return found


def installed_distributions(extras: Iterable[str] = ()) -> set[str]:
    """Return the distributions that pip installs with the package and extras, by their normalized names."""
    found: set[str] = set()
    pending = [(each.name, frozenset(each.extras)) for each in requirements_of(extras)]
    seen: set[tuple[str, frozenset[str]]] = set()
    while pending:
        name, chosen = pending.pop()
        if (name, chosen) in seen:
            continue
        seen.add((name, chosen))
        found.add(normalize_name(name))
        pending += [
            (each.name, frozenset(each.extras))
            for each in requirements_of_distribution(name)
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in chosen | {""})
        ]
    return found


@cache
def requirements_of_distribution(name: str) -> tuple[Requirement, ...]:
    """Return what an installed distribution requires, with all of its extras."""
    return tuple(map(Requirement, importlib.metadata.requires(name) or []))


def normalize_name(name: str) -> str:
    """Return the name of a distribution as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def distributions_by_library() -> Mapping[str, frozenset[str]]:
    """Return the installed distributions that have a part of each top-level package, without our own packages."""
    known = importlib.metadata.packages_distributions()
    return {
        library: frozenset(map(normalize_name, names))
        for library, names in known.items()
        if library not in OWN_PACKAGES
    }


@cache
def absent_libraries(extras: tuple[str, ...] = ()) -> frozenset[str]:
    """Return the libraries of this environment that the package and extras do not bring."""
    installed = installed_distributions(extras)
    return frozenset(library for library, names in distributions_by_library().items() if not names & installed)


def run_with_extras(
    arguments: Iterable[object], extras: Iterable[str] = (), *, module: str = "cstp_grpc", **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a module, by default the command, with the libraries of the package and of extras only."""
    command = [sys.executable, "-c", PROGRAM, ",".join(sorted(absent_libraries(tuple(extras)))), module]
    return subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60, **options
    )
