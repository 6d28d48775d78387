"""The files of rulebooks, as they are on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SUFFIXES: Final = (".yaml", ".yml")
MAX_BYTES: Final = 1_048_576
"""How large a file may be."""


@dataclass(frozen=True, slots=True)
class RulebookFile:
    """A file as it was read; of one that is too large, enough to tell that."""

    path: Path
    content: bytes


def default_rulebook() -> Path:
    """Return the rulebook that comes with the package, in an installation as in a checkout."""
    installed = Path(__file__).with_name("default.yaml")
    return installed if installed.exists() else Path(__file__).parents[2] / "guardrails" / "default.yaml"


def list_files(path: Path) -> list[Path]:
    """Return a file, or every *.yaml and *.yml in a folder by name, without hidden ones. Raises OSError."""
    if not path.is_dir():
        return [path]
    return [file for file in sorted(path.iterdir()) if file.suffix.lower() in SUFFIXES and file.name[0] != "."]


def read_file(path: Path) -> RulebookFile:
    """Return what is in a file. Raises OSError."""
    with path.open("rb") as stream:
        return RulebookFile(path, stream.read(MAX_BYTES + 1))


def read_files(path: Path) -> Sequence[RulebookFile]:
    """Return the files of a rulebook or a folder of them. Raises OSError."""
    return [read_file(file) for file in list_files(path)]
