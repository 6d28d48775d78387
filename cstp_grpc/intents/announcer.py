"""Announcing an intent: recall, judge, remember and suggest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol

from sqlalchemy import Connection

from cstp_grpc.audit.model import AuditEntry, AuditEvent
from cstp_grpc.decisions.model import Decision, DecisionFilter, Match
from cstp_grpc.errors import reason_of
from cstp_grpc.guardrails.model import NO_CODE, Action, Verdict
from cstp_grpc.guardrails.values import check_bounds
from cstp_grpc.intents.code import CodeContext, CodeReader
from cstp_grpc.intents.store import Intent, IntentContended, IntentStore
from cstp_grpc.intents.suggestions import suggest
from cstp_grpc.storage.blocking import WorkLane
from cstp_grpc.storage.writer import Writer
from cstp_grpc.vocabulary import INTENT_LAYER_AGENT, Stakes

SIMILAR = 5
"""How many similar decisions an announcement is answered with at the most."""
DECISIONS = DecisionFilter(without_agent=INTENT_LAYER_AGENT)
"""What agents recorded."""
NODES = DecisionFilter(agent=INTENT_LAYER_AGENT)
"""What nodes of projects say."""
CONFIRMED = "confirmedChecks"
"""Where metadata lists the texts of the checks that were made."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """What an agent says it is about to do; the guardrails read `metadata` as their context.

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

    def content_hash(self) -> str:
        """Return a SHA-256 over everything that makes two announcements the same; who claims to make them does not."""
        content = [self.intent, self.context, self.category, self.stakes, self.confidence, self.metadata]
        # Announcements about no code have the hash that they had before they could be about any.
        about = [self.project, self.paths] if self.project is not None or self.paths else []
        return hashlib.sha256(json.dumps(content + about, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Feedback:
    """The answer to an announcement, and which `revision` of the intent that is.

    `verdict` is None if the server does not respond, `code` without paths.
    """

    received_at: datetime
    similar: tuple[Match, ...] = ()
    verdict: Verdict | None = None
    suggestions: tuple[str, ...] = ()
    code: CodeContext | None = None
    revision: int = 1


class Search(Protocol):
    """Finds similar decisions."""

    def require_revision(self, token: str) -> None:
        """Have searches that begin now find what the journal had at a revision, whichever server wrote it.

        Raises InvalidArgument, Unavailable and QueryFailed.
        """

    def search_by_preference(
        self, text: str, preferences: Sequence[DecisionFilter], caller: str, limit: int, min_score: float
    ) -> list[Match]:
        """Return matches that the caller may read, best first: those of the first filter, then of the next, and so on.

        They are at most `limit` together, each once. Raises QueryFailed.
        """

    def is_short(self, text: str, preferences: Sequence[DecisionFilter], limit: int) -> bool:
        """Whether that search waits for nothing and takes less than a millisecond."""


class Judge(Protocol):
    """Judges actions."""

    def judge(self, action: Action) -> Verdict:
        """Return the verdict without recording it. Raises GuardrailEvalFailed."""


class Trail(Protocol):
    """Keeps audit entries."""

    def append(self, connection: Connection, entry: AuditEntry) -> None:
        """Add an entry within a transaction."""


class Citations(Protocol):
    """Keeps which decisions agents were answered with, for those that are told later what became of them."""

    def cite(
        self, connection: Connection, agent: str, correlation_id: str, url: str | None, decisions: Sequence[Decision]
    ) -> None:
        """Note within a transaction what an announcement is answered with; `url` is where its agent can be told."""


class Announcer:
    """Answers announcements.

    The intent, its audit entry and the citations of what it is answered with are one transaction, on disk before the
    answer; the first two also where that is an error. Similar decisions have at least `min_score`. `stores_content`
    False keeps neither the intent's content nor its text in the trail; `responds` False acknowledges without feedback.
    `lane` reads files and makes searches, unless they are short.
    """

    def __init__(
        self,
        search: Search,
        judge: Judge,
        code: CodeReader,
        intents: IntentStore,
        trail: Trail,
        writer: Writer,
        clock: Callable[[], datetime],
        lane: WorkLane,
        *,
        min_score: float,
        stores_content: bool = True,
        responds: bool = True,
        citations: Citations | None = None,
    ) -> None:
        self._search = search
        self._judge = judge
        self._code = code
        self._intents = intents
        self._trail = trail
        self._writer = writer
        self._clock = clock
        self._lane = lane
        self._min_score = min_score
        self._stores_content = stores_content
        self._responds = responds
        self._citations = citations

    async def announce(
        self, announcement: Announcement, caller: str, request_id: str, reader: str | None = None
    ) -> Feedback:
        """Record an intent and return the feedback on it.

        Similar decisions are those that `reader` may read, the caller where it is None. Raises QueryFailed,
        GuardrailEvalFailed and Unavailable. Before anything is recorded, raises InvalidArgument for metadata that is
        too large, for paths that cannot be looked at and for a revision of another journal, Unavailable for a revision
        that the journal has not come to, and NotFound for an unknown project.
        """
        check_bounds(announcement.metadata, "metadata")
        if announcement.min_journal_revision is not None:
            await self._lane.run(self._search.require_revision, announcement.min_journal_revision)
        code = await self._look(announcement)
        received_at = self._clock()
        entry = self._entry(announcement, caller, request_id, received_at)
        try:
            feedback = await self._feedback(announcement, code, caller if reader is None else reader, received_at)
        except Exception as error:
            await self._remember(announcement, caller, replace(entry, error=reason_of(error)))
            raise
        stored = await self._remember(announcement, caller, judged(entry, feedback.verdict), feedback.similar)
        return replace(feedback, received_at=stored.received_at, revision=stored.revision)

    async def _look(self, announcement: Announcement) -> CodeContext | None:
        """Return what governs the paths, for which files are read."""
        if announcement.paths:
            return await self._lane.run(self._code.look, announcement.project, announcement.paths)
        return self._code.look(announcement.project, announcement.paths)

    async def _feedback(
        self, announcement: Announcement, code: CodeContext | None, reader: str, received_at: datetime
    ) -> Feedback:
        if not self._responds:
            return Feedback(received_at)
        verdict = self._judge.judge(action_of(announcement, code))
        similar = await self._recall(announcement, reader)
        suggestions = suggest(similar, verdict, unconfirmed(announcement, code))
        return Feedback(received_at, tuple(similar), verdict, tuple(suggestions), code)

    async def _recall(self, announcement: Announcement, reader: str) -> list[Match]:
        """Return similar decisions: those of the given category first, others where it has too few.

        What nodes of projects say comes last: it has no outcome, and must not keep one from being told.
        """
        text = f"{announcement.intent}\n{announcement.context}" if announcement.context else announcement.intent
        preferences: tuple[DecisionFilter, ...] = (DECISIONS, NODES)
        if announcement.category is not None:
            preferences = (replace(DECISIONS, category=announcement.category), DECISIONS, NODES)
        run = self._lane.run_short if self._search.is_short(text, preferences, SIMILAR) else self._lane.run
        return await run(self._search.search_by_preference, text, preferences, reader, SIMILAR, self._min_score)

    async def _remember(
        self, announcement: Announcement, caller: str, entry: AuditEntry, similar: Sequence[Match] = ()
    ) -> Intent:
        intent = self._intent(announcement, caller, entry.timestamp)
        cited = [match.decision for match in similar]

        def job(connection: Connection) -> Intent:
            if self._citations is not None:
                # First, because it may have to wait for other servers, which must not wait for this intent meanwhile.
                self._citations.cite(connection, caller, intent.correlation_id, intent.claimed_url, cited)
            stored = self._intents.remember(connection, intent)
            self._trail.append(connection, replace(entry, intent_revision=stored.revision))
            return stored

        def job_alone(connection: Connection) -> Intent:
            self._intents.hold(connection, intent)
            return job(connection)

        try:
            return await self._writer.write(job)
        except IntentContended:
            return await self._writer.write(job_alone, alone=True)

    def _intent(self, announcement: Announcement, caller: str, received_at: datetime) -> Intent:
        kept = announcement if self._stores_content else None
        return Intent(
            agent=caller,
            correlation_id=announcement.correlation_id,
            content_hash=announcement.content_hash(),
            received_at=received_at,
            claimed_id=announcement.claimed_id,
            claimed_url=announcement.claimed_url,
            intent=kept.intent if kept else None,
            context=kept.context if kept else None,
            category=announcement.category,
            stakes=announcement.stakes,
            confidence=announcement.confidence,
            metadata=dict(kept.metadata) if kept else None,
            project=kept.project if kept else None,
            paths=kept.paths if kept else (),
        )

    def _entry(self, announcement: Announcement, caller: str, request_id: str, received_at: datetime) -> AuditEntry:
        return AuditEntry(
            timestamp=received_at,
            event=AuditEvent.INTENT_ANNOUNCED,
            requesting_agent=caller,
            request_id=request_id,
            claimed_agent=announcement.claimed_id,
            action=announcement.intent if self._stores_content else None,
            correlation_id=announcement.correlation_id,
        )


def unconfirmed(announcement: Announcement, code: CodeContext | None) -> list[str]:
    """Return the checks on the code that an announcement does not say were made."""
    confirmed = announcement.metadata.get(CONFIRMED)
    made = {text for text in confirmed if isinstance(text, str)} if isinstance(confirmed, list) else set()
    return [check for check in code.check_items if check not in made] if code else []


def action_of(announcement: Announcement, code: CodeContext | None) -> Action:
    """Return an announcement as the guardrails see it."""
    return Action(
        description=announcement.intent,
        category=announcement.category,
        stakes=announcement.stakes,
        confidence=announcement.confidence,
        context=announcement.metadata,
        code=code.rules if code else NO_CODE,
    )


def judged(entry: AuditEntry, verdict: Verdict | None) -> AuditEntry:
    """Return an entry with what a verdict says."""
    return entry if verdict is None else replace(entry, **describe_verdict(verdict))


def describe_verdict(verdict: Verdict) -> dict[str, Any]:
    """Return the fields of audit entries that say what a verdict says."""
    return {
        "allowed": verdict.allowed,
        "violations": tuple(v.guardrail_id for v in verdict.violations),
        "warnings": tuple(v.guardrail_id for v in verdict.warnings),
        "evaluated": verdict.evaluated,
        "rule_set_version": verdict.rule_set_version,
    }
