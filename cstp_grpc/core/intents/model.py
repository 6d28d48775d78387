"""Intents, and the context of the code they are about."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.contract.caller import Caller
from cstp_grpc.contract.enums import Outcome, Stakes, Visibility
from cstp_grpc.contract.errors import InvalidArgument, NotFound
from cstp_grpc.core.commands.model import NO_INVOCATION, Invocation
from cstp_grpc.core.decisions.model import Decision
from cstp_grpc.core.decisions.store import JournalWrite
from cstp_grpc.core.guardrails.model import NO_CODE, CodeFacts, Verdict
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork

HASHED_JSON = json.JSONEncoder(sort_keys=True)
"""Encodes the content that is hashed. It must not change: stored intents are compared by these hashes."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """An agent's statement of its next action; guardrails read `metadata` as their context.

    `paths` are the files and folders of `project` that it is about.
    """

    intent: str
    correlation_id: str
    context: str | None = None
    category: str | None = None
    stakes: Stakes = Stakes.MEDIUM
    confidence: float | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    claimed_id: str | None = None
    claimed_url: str | None = None
    project: str | None = None
    paths: tuple[str, ...] = ()
    min_journal_revision: str | None = None
    """The token of a revision that the search for similar decisions must know; no part of the content."""
    visibility: Visibility = Visibility.PRIVATE
    invocation: Invocation = NO_INVOCATION
    """The command that is about to run; it is evaluated and recorded, but not searched."""

    @property
    def is_shared(self) -> bool:
        """Whether other agents can read the intent."""
        return self.visibility is Visibility.SHARED

    @property
    def searched_text(self) -> str:
        """The text that is compared with decisions and with other intents."""
        return f"{self.intent}\n{self.context}" if self.context else self.intent

    def content_hash(self) -> str:
        """Return a SHA-256 over the content of an announcement; claimed identities are not part of it."""
        content = [self.intent, self.context, self.category, self.stakes, self.confidence, self.metadata]
        # Announcements about no code have the hash that they had before they could be about any.
        about = [self.project, self.paths] if self.project is not None or self.paths else []
        # Likewise private ones.
        audience = [self.visibility] if self.is_shared else []
        # And those that run no command.
        command = [self.invocation.to_json()] if self.invocation != NO_INVOCATION else []
        return hashlib.sha256(HASHED_JSON.encode(content + about + audience + command).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class CodeNote:
    """A section of one file; `line` is that of its heading, or of the text of an introduction, from 1.

    `section` is the heading of a note among `others`.
    """

    file: str
    text: str
    line: int
    section: str | None = None


@dataclass(frozen=True, slots=True)
class PendingLearning:
    """A learning that is not reviewed yet; `type` is its kind in the Intent Layer."""

    id: str
    type: str
    title: str
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CodeContext:
    """The rules and notes for paths of a project, each once.

    `nodes` are files, parents before children; `check_items` are the single checks, those nearest to the paths first;
    `rules` is the part that guardrails read; `missing` lists what could not be read and why.
    """

    project: str
    paths: tuple[str, ...]
    nodes: tuple[str, ...] = ()
    contracts: tuple[CodeNote, ...] = ()
    pitfalls: tuple[CodeNote, ...] = ()
    checks: tuple[CodeNote, ...] = ()
    boundaries: tuple[CodeNote, ...] = ()
    introduction: tuple[CodeNote, ...] = ()
    others: tuple[CodeNote, ...] = ()
    pending: tuple[PendingLearning, ...] = ()
    check_items: tuple[str, ...] = ()
    rules: CodeFacts = NO_CODE
    missing: tuple[str, ...] = ()

    @property
    def is_covered(self) -> bool:
        """Whether any node covers any of the paths; the answer has it."""
        return bool(self.nodes)


class CodeContextReader(Protocol):
    """Reads the code context of paths in the configured projects."""

    def read_context(self, project: str | None, paths: Sequence[str]) -> CodeContext | None:
        """Return the code context of paths, or None if there are no paths.

        `project` may be None if only one is configured. Raises NotFound for an unknown project; InvalidArgument for a
        path that leaves it, and if no project is given and there is not exactly one. Unreadable files raise nothing:
        the context lists them as missing.
        """


class NoProjects:
    """Reads the code context where no projects are served, as without the Intent Layer."""

    def read_context(self, project: str | None, paths: Sequence[str]) -> CodeContext | None:
        """Return None if neither a project nor paths are named; see `CodeContextReader`."""
        if project is not None:
            raise NotFound(f"there is no project {project}")
        if paths:
            raise InvalidArgument.field("project", "must be given, because there is not just one")
        return None


class IntentKey(NamedTuple):
    """The identity of a revision of an intent."""

    agent: str
    correlation_id: str
    revision: int


@dataclass(frozen=True, slots=True)
class IntentClosing:
    """How an intent ended; `closed_at` is in UTC with an offset, and `decision_id` is the resulting decision."""

    closed_at: datetime
    outcome: Outcome
    notes: str | None = None
    decision_id: str | None = None

    def repeats(self, other: IntentClosing) -> bool:
        """Return True if another closing is equal except for its time."""
        return (self.outcome, self.notes, self.decision_id) == (other.outcome, other.notes, other.decision_id)


@dataclass(frozen=True, slots=True)
class Intent:
    """A revision of an announced intent, identified by agent, correlation id and revision number.

    `received_at` is aware, in UTC; `content_hash` distinguishes a repetition from a new revision. `intent`, `context`,
    `metadata` and `project` are None, and `paths` empty, if contents are not stored. `revision` counts from 1 without
    gaps; the store sets it. `closing` is None while the intent is open.
    """

    agent: str
    correlation_id: str
    content_hash: str
    received_at: datetime
    claimed_id: str | None = None
    claimed_url: str | None = None
    intent: str | None = None
    context: str | None = None
    category: str | None = None
    stakes: Stakes = Stakes.MEDIUM
    confidence: float | None = None
    metadata: Mapping[str, Any] | None = None
    project: str | None = None
    paths: tuple[str, ...] = ()
    revision: int = 1
    visibility: Visibility = Visibility.PRIVATE
    closing: IntentClosing | None = None

    @property
    def key(self) -> IntentKey:
        return IntentKey(self.agent, self.correlation_id, self.revision)

    @property
    def previous_revision(self) -> int | None:
        """The revision that this one replaced; None for the first."""
        return self.revision - 1 if self.revision > 1 else None


@dataclass(frozen=True, slots=True)
class IntentFilter:
    """Conditions that intents must all meet; None or empty does not restrict.

    Instants are inclusive; `stakes` means any of; `closed` is whether they are closed. `latest_only` leaves out
    revisions that a newer one has replaced.
    """

    agent: str | None = None
    correlation_id: str | None = None
    category: str | None = None
    stakes: tuple[Stakes, ...] = ()
    after: datetime | None = None
    before: datetime | None = None
    closed: bool | None = None
    latest_only: bool = False


class IntentContended(Exception):
    """Another transaction is adding a revision of the same intent, or closing one.

    It is not waited for, because it may wait for this one. A transaction that begins with `SqlIntentStore.hold` waits.
    """


class AnnouncedIntent(NamedTuple):
    """An intent with the number that the store gave to it."""

    number: int
    intent: Intent


IntentVector = NDArray[np.float32]
"""The unit vector of an intent's text."""


@dataclass(frozen=True, slots=True, eq=False)
class SharedIntent:
    """A shared revision of an intent, without its context and metadata.

    `vector` is that of its text, `allowed` the verdict on its last announcement, None if there was none.
    """

    intent: Intent
    vector: IntentVector
    allowed: bool | None


IntentId = tuple[str, str]
"""Agent and correlation id; the latest revision stands for the intent."""


class SharedIntentChange(NamedTuple):
    """An announcement, closing or withdrawal of a shared intent; later changes have greater numbers."""

    number: int
    intent_id: IntentId


EVERY_AGENT: Final = "*"
"""Stands for all agents among those that share their intents."""


@dataclass(frozen=True, slots=True)
class IntentSharing:
    """The agents whose announcements are shared if they state no visibility."""

    agents: frozenset[str] = frozenset()

    def default_visibility(self, caller: Caller) -> Visibility:
        """Return the visibility of an announcement that states none."""
        # A peer announces for its own callers, who did not share with our agents.
        is_relayed = caller.reader != caller.agent
        shares = not self.agents.isdisjoint((caller.agent, EVERY_AGENT)) and not is_relayed
        return Visibility.SHARED if shares else Visibility.PRIVATE


PRIVATE_INTENTS: Final = IntentSharing()
"""Nobody shares without saying so."""


class SuggestionKind(StrEnum):
    """The source of a suggestion."""

    GUARDRAIL = "guardrail"
    RELATED_INTENT = "related_intent"
    CONFIDENCE = "confidence"
    CHECK = "check"
    SUPERSEDED = "superseded"
    LESSON = "lesson"
    CONDITION = "condition"
    FAILURE = "failure"
    PRECEDENT = "precedent"


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A suggestion with its evidence.

    `relevance` is the score of the most similar decision or intent in the evidence, or None; `outcome` is that of the
    decisions or of the intent, None if it is missing or differs between them.
    """

    text: str
    kind: SuggestionKind
    decision_ids: tuple[str, ...] = ()
    guardrail_id: str | None = None
    intent: IntentKey | None = None
    relevance: float | None = None
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class SuggestionBars:
    """The least relevance of suggested decisions and intents, 0 to 1; listing them needs less.

    `teaching` is for decisions with a lesson, `bare` for failures without notes, `related` for intents of other
    agents.
    """

    teaching: float
    bare: float
    related: float

    @classmethod
    def above(cls, min_score: float, min_related_score: float) -> SuggestionBars:
        """Return the bars for decisions and intents that are listed from these scores on."""
        return cls(
            raise_bar(min_score, TEACHING_SHARE),
            raise_bar(min_score, BARE_SHARE),
            raise_bar(min_related_score, RELATED_SHARE),
        )


def raise_bar(score: float, share: float) -> float:
    """Return the score that is a share of the way from another one to 1."""
    return score + share * (1 - score)


TEACHING_SHARE = 0.25
"""How far the bar for lessons is from the least score that is listed to 1. Chosen: with the default of 0.35 it is 0.51,
from which on a decision is more likely relevant than not, as scores are calibrated."""
BARE_SHARE = 0.8
"""Chosen: decisions that only share some words with the intent stay below."""
RELATED_SHARE = 0.1
"""Likewise for intents of others, whose scores are similarities."""

RecordJob: TypeAlias = Callable[[UnitOfWork], JournalWrite[Decision]]
"""Records a decision within a transaction."""

SettleVerdict: TypeAlias = Callable[[UnitOfWork], Verdict | Exception | None]
"""Returns the verdict to record, in the transaction that records it, or the reason why it is missing."""


class StoredAnnouncement(NamedTuple):
    """A stored intent, with its verdict, or the reason why it is missing, or None.

    `written` are the changes in the journal by the recorded decision, None without one.
    """

    intent: Intent
    outcome: Verdict | Exception | None
    written: JournalWrite[Decision] | None = None


class DecisionRecording(Protocol):
    """The decision that is recorded with an announcement if the verdict allows it."""

    async def prepare(self) -> RecordJob:
        """Return the job that records it. Raises QueryFailed."""


class CitationRecorder(Protocol):
    """Records which decisions an agent was given, so that it can be notified if one of them fails."""

    def cite(
        self, unit_of_work: UnitOfWork, agent: str, correlation_id: str, url: str | None, decisions: Sequence[Decision]
    ) -> None:
        """Record within a transaction the decisions in an answer; `url` is the callback URL of the agent."""


class ConfidenceRecord(Protocol):
    """The record of an agent's confidences and outcomes."""

    def find_warning(self, category: str | None, confidence: float) -> str | None:
        """Return a warning with its figures if a confidence has meant something else; None if not."""


class ConfidenceHistory(Protocol):
    """Keeps the records of agents."""

    def current_record(self, agent: str) -> ConfidenceRecord | None:
        """Return the record of an agent without blocking; None if it has to be read."""

    def read_record(self, agent: str) -> ConfidenceRecord:
        """Read the record of an agent. Raises QueryFailed."""
