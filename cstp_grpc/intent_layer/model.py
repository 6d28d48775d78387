"""What the Intent Layer speaks of: nodes and their sections, what governs a path, what agents learned."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

ROOT = "."
"""The root of a project, as paths are written: relative to it, with `/`."""


class LearningType(StrEnum):
    """What kind of thing was learned."""

    PITFALL = "pitfall"
    CHECK = "check"
    PATTERN = "pattern"
    INSIGHT = "insight"


class LearningState(StrEnum):
    """Where a learning stands."""

    PENDING = "pending"
    INTEGRATED = "integrated"
    REJECTED = "rejected"


class ReviewVerdict(StrEnum):
    """What a review decides."""

    ACCEPT = "accept"
    REJECT = "reject"
    DEFER = "defer"


class FindingSeverity(StrEnum):
    """How bad a finding is: an error breaks the protocol."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a node's file: its heading, the text below it without the heading, and the heading's line from 1.

    The introduction has no heading; its line is that of its text. `subsections` are those of level 3.
    """

    name: str
    text: str
    file: str
    line: int
    subsections: tuple[Section, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeFile:
    """A file of a node as it was read; `decoded` is False where bytes of it were no UTF-8 and had to be replaced."""

    path: str
    text: str
    sections: tuple[Section, ...]
    tokens: int
    decoded: bool = True


@dataclass(frozen=True, slots=True)
class BrokenImport:
    """A line that names a file that is not taken in; `line` counts from 1."""

    file: str
    line: int
    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class Node:
    """The context of a folder: one file, or two different ones with CLAUDE.md first, and what these import.

    `imports_own` tells whether one of two files imports the other.
    """

    folder: str
    files: tuple[NodeFile, ...]
    imported: tuple[NodeFile, ...] = ()
    broken_imports: tuple[BrokenImport, ...] = ()
    imports_own: bool = False

    @property
    def path(self) -> str:
        """The file that names the node."""
        return self.files[0].path

    @property
    def sections(self) -> tuple[Section, ...]:
        """The sections of all its files in their order."""
        return tuple(section for file in self.all_files for section in file.sections)

    @property
    def tokens(self) -> int:
        """How many tokens its files have together."""
        return sum(file.tokens for file in self.all_files)

    @property
    def all_files(self) -> tuple[NodeFile, ...]:
        """Its own files, and then those that they import."""
        return (*self.files, *self.imported)


@dataclass(frozen=True, slots=True)
class SectionPart:
    """What one file says in a section; `line` is that of its heading, from 1."""

    file: str
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class MergedSection:
    """A section with what each node says in it, the root's first."""

    name: str
    parts: tuple[SectionPart, ...]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What a budget left out."""

    file: str
    section: str
    tokens: int


@dataclass(frozen=True, slots=True)
class ContextRequest:
    """What to resolve: `sections` empty means all, `max_tokens` None no limit."""

    path: str
    sections: tuple[str, ...] = ()
    compact: bool = False
    with_pending: bool = False
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Review:
    """What a reviewer said; `at` is aware, in UTC."""

    verdict: ReviewVerdict
    reviewer: str
    reason: str
    at: datetime


@dataclass(frozen=True, slots=True)
class NewLearning:
    """What an agent wants to file; `paths` has at least one."""

    type: LearningType
    paths: tuple[str, ...]
    title: str
    detail: str
    agent_id: str
    evidence: str | None = None
    operation: str | None = None


@dataclass(frozen=True, slots=True)
class Learning:
    """A filed learning; `file` is its report, `at` is aware, in UTC.

    `unplaced_paths` are those of a report from elsewhere that do not exist in the project; with none but those, the
    learning is taken to be about the root.
    """

    id: str
    type: LearningType
    state: LearningState
    at: datetime
    paths: tuple[str, ...]
    title: str
    detail: str
    agent_id: str
    file: str
    evidence: str | None = None
    operation: str | None = None
    reviews: tuple[Review, ...] = ()
    unplaced_paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnreadableReportFile:
    """A report that cannot be read, and why."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class PendingReports:
    """The pending learnings that bear on a path, latest first, and the pending reports that cannot be read."""

    learnings: tuple[Learning, ...] = ()
    unreadable: tuple[UnreadableReportFile, ...] = ()


@dataclass(frozen=True, slots=True)
class Resolution:
    """What governs a path; `nodes` is empty where nothing covers it, and `markdown` then too."""

    path: str
    nodes: tuple[Node, ...]
    sections: tuple[MergedSection, ...]
    markdown: str
    tokens: int
    left_out: tuple[LeftOut, ...] = ()
    pending: tuple[Learning, ...] = ()
    unreadable: tuple[UnreadableReportFile, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong with a node; `line` counts from 1."""

    severity: FindingSeverity
    rule: str
    file: str
    line: int
    message: str


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a fact belongs; `covering` is the file of the nearest node at or above `folder`."""

    folder: str
    file: str
    exists: bool
    covering: str | None


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A node to begin with."""

    file: str
    content: str


@dataclass(frozen=True, slots=True)
class Edits:
    """Changes to a learning before it is merged; None leaves what was reported."""

    title: str | None = None
    detail: str | None = None
    section: str | None = None


@dataclass(frozen=True, slots=True)
class ReviewRequest:
    """A review to carry out; `dry_run` shows only what would happen.

    `claimed_reviewer` is the one that the reviewer names, never trusted.
    """

    id: str
    verdict: ReviewVerdict
    reviewer: str
    reason: str = ""
    edits: Edits = Edits()
    force: bool = False
    dry_run: bool = False
    claimed_reviewer: str | None = None


@dataclass(frozen=True, slots=True)
class Duplicate:
    """What a node says that is likely the same; `score` is 0 to 1, `line` counts from 1."""

    file: str
    line: int
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class ReviewOutcome:
    """What a review did or would do; `node` is the file that it merged into, `diff` a unified diff."""

    learning: Learning
    node: str | None = None
    diff: str = ""
    duplicates: tuple[Duplicate, ...] = ()
