"""The data model of the Intent Layer: nodes and sections, resolved context, learnings and reviews."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from cstp_grpc.common.lazy_dataclass import dataclass

ROOT = "."
"""The root of a project, as paths are written: relative to it, with `/`."""


class LearningType(StrEnum):
    """The type of a learning."""

    PITFALL = "pitfall"
    CHECK = "check"
    PATTERN = "pattern"
    INSIGHT = "insight"


class LearningState(StrEnum):
    """The state of a learning."""

    PENDING = "pending"
    INTEGRATED = "integrated"
    REJECTED = "rejected"


class ReviewVerdict(StrEnum):
    """The verdict of a review."""

    ACCEPT = "accept"
    REJECT = "reject"
    DEFER = "defer"


class FindingSeverity(StrEnum):
    """The severity of a finding; an error breaks the protocol."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class NodeSection:
    """A section of a node's file: its heading, and the text below it without the heading.

    `line` is that of the heading, from 1. The introduction has no heading; its line is that of its text. `subsections`
    are those of level 3.
    """

    name: str
    text: str
    file: str
    line: int
    subsections: tuple[NodeSection, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeFile:
    """A file of a node; `decoded` is False if bytes that are not UTF-8 were replaced."""

    path: str
    text: str
    sections: tuple[NodeSection, ...]
    tokens: int
    decoded: bool = True


@dataclass(frozen=True, slots=True)
class BrokenImport:
    """An import line whose file is not imported, and why; `line` counts from 1."""

    file: str
    line: int
    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class Node:
    """The context of a folder: one file, or two different ones with CLAUDE.md first, and their imports.

    `imports_own` is True if one of two files imports the other.
    """

    folder: str
    files: tuple[NodeFile, ...]
    imported: tuple[NodeFile, ...] = ()
    broken_imports: tuple[BrokenImport, ...] = ()
    imports_own: bool = False

    @property
    def path(self) -> str:
        return self.files[0].path

    @property
    def sections(self) -> tuple[NodeSection, ...]:
        return tuple(section for file in self.all_files for section in file.sections)

    @property
    def tokens(self) -> int:
        return sum(file.tokens for file in self.all_files)

    @property
    def all_files(self) -> tuple[NodeFile, ...]:
        """Its own files, followed by the imported ones."""
        return (*self.files, *self.imported)


@dataclass(frozen=True, slots=True)
class SectionPart:
    """The text of one file in a section; `line` is that of its heading, from 1."""

    file: str
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class MergedSection:
    """A section with the part of each node, the root's first."""

    name: str
    parts: tuple[SectionPart, ...]


@dataclass(frozen=True, slots=True)
class OmittedSection:
    """A part that was left out to fit the token budget."""

    file: str
    section: str
    tokens: int


@dataclass(frozen=True, slots=True)
class ContextRequest:
    """A request for context: empty `sections` means all, `max_tokens` None no limit."""

    path: str
    sections: tuple[str, ...] = ()
    compact: bool = False
    with_pending: bool = False
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class LearningReview:
    """A review in a report: verdict, reviewer and reason; `at` is aware, in UTC."""

    verdict: ReviewVerdict
    reviewer: str
    reason: str
    at: datetime


@dataclass(frozen=True, slots=True)
class NewLearning:
    """A learning to be filed; `paths` has at least one."""

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

    `unplaced_paths` are paths of an imported report that do not exist in the project; if it has only those, the
    learning applies to the root.
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
    reviews: tuple[LearningReview, ...] = ()
    unplaced_paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnreadableReportFile:
    """A report that cannot be read, and why."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class PendingReports:
    """The pending learnings that apply to a path, latest first, and the unreadable pending reports."""

    learnings: tuple[Learning, ...] = ()
    unreadable: tuple[UnreadableReportFile, ...] = ()


@dataclass(frozen=True, slots=True)
class ResolvedContext:
    """The context of a path; `nodes` and `markdown` are empty if no node covers it."""

    path: str
    nodes: tuple[Node, ...]
    sections: tuple[MergedSection, ...]
    markdown: str
    tokens: int
    left_out: tuple[OmittedSection, ...] = ()
    pending: tuple[Learning, ...] = ()
    unreadable: tuple[UnreadableReportFile, ...] = ()


@dataclass(frozen=True, slots=True)
class ValidationFinding:
    """A finding about a node; `line` counts from 1."""

    severity: FindingSeverity
    rule: str
    file: str
    line: int
    message: str


@dataclass(frozen=True, slots=True)
class FactPlacement:
    """The node file that a fact belongs in. `covering` is the file of the nearest node at or above `folder`."""

    folder: str
    file: str
    exists: bool
    covering: str | None


@dataclass(frozen=True, slots=True)
class NodeSkeleton:
    """The file and the content of a new node."""

    file: str
    content: str


@dataclass(frozen=True, slots=True)
class LearningEdits:
    """A reviewer's changes to a learning before it is merged; None keeps the reported value."""

    title: str | None = None
    detail: str | None = None
    section: str | None = None


@dataclass(frozen=True, slots=True)
class ReviewRequest:
    """A requested review; with `dry_run` nothing is changed.

    `claimed_reviewer` is the name that the reviewer claims; it is never trusted.
    """

    id: str
    verdict: ReviewVerdict
    reviewer: str
    reason: str = ""
    edits: LearningEdits = LearningEdits()
    force: bool = False
    dry_run: bool = False
    claimed_reviewer: str | None = None


@dataclass(frozen=True, slots=True)
class DuplicateMatch:
    """A statement of a node that is likely the same; `score` is 0 to 1, `line` counts from 1."""

    file: str
    line: int
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class ReviewOutcome:
    """The result of a review; `node` is the file that it merged into, `diff` a unified diff."""

    learning: Learning
    node: str | None = None
    diff: str = ""
    duplicates: tuple[DuplicateMatch, ...] = ()
