"""What governs the code that an announcement is about, and who knows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cstp_grpc.guardrails.model import NO_CODE, CodeRules


@dataclass(frozen=True, slots=True)
class CodeNote:
    """What one file says in a section; `line` is that of its heading, from 1, or of an introduction's text."""

    file: str
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class PendingLearning:
    """Something learned that nobody has reviewed yet; `type` is what the Intent Layer calls its kind."""

    id: str
    type: str
    title: str
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CodeContext:
    """What governs the paths of a project, each thing once.

    `nodes` are files, a parent's before its children's; `check_items` are the checks one by one, the nearest to the
    paths first; `rules` is what guardrails read; `missing` says what is not here and why.
    """

    project: str
    paths: tuple[str, ...]
    nodes: tuple[str, ...] = ()
    contracts: tuple[CodeNote, ...] = ()
    pitfalls: tuple[CodeNote, ...] = ()
    checks: tuple[CodeNote, ...] = ()
    boundaries: tuple[CodeNote, ...] = ()
    introduction: tuple[CodeNote, ...] = ()
    pending: tuple[PendingLearning, ...] = ()
    check_items: tuple[str, ...] = ()
    rules: CodeRules = NO_CODE
    missing: tuple[str, ...] = ()

    @property
    def covered(self) -> bool:
        """Whether anything is written down about the paths."""
        return bool(self.nodes)


class CodeReader(Protocol):
    """Knows what governs the code of projects."""

    def look(self, project: str | None, paths: Sequence[str]) -> CodeContext | None:
        """Return what governs paths, None where there are none; without a project, they are in the only one.

        Raises NotFound for an unknown project; InvalidArgument for a path that leaves it, and where no project is given
        and there is not exactly one. What cannot be read raises nothing: the context says so.
        """
