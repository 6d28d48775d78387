"""Announces an intent: check guardrails, search similar decisions, store it, and suggest next steps."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Protocol

from cstp_grpc.audit.model import AuditEntry, AuditEvent, AuditSink
from cstp_grpc.decisions.model import Decision, DecisionFilter, Match
from cstp_grpc.decisions.search.decision_search import DecisionSearch
from cstp_grpc.enums import INTENT_LAYER_AGENT, Outcome, Stakes
from cstp_grpc.errors import error_reason
from cstp_grpc.guardrails.checker import GuardrailChecker, verdict_audit_fields
from cstp_grpc.guardrails.input_values import check_context_bounds
from cstp_grpc.guardrails.model import NO_CODE, Action, Verdict
from cstp_grpc.intents.model import CodeContext, CodeContextReader, Intent, IntentContended, IntentStore
from cstp_grpc.storage.background_work import WorkPool
from cstp_grpc.storage.unit_of_work import UnitOfWork
from cstp_grpc.storage.writer import GroupCommitWriter

MAX_SUGGESTIONS = 5
MAX_LESSON = 400
"""Characters of a lesson or a check that a suggestion quotes."""
FIRST_CHECKS = 2
"""How many checks come before lessons: the code's own list must not keep what went wrong from being told."""

OUTCOME_SENTENCES = {
    Outcome.FAILURE: "A similar decision failed",
    Outcome.PARTIAL: "A similar decision succeeded only in part",
    Outcome.ABANDONED: "A similar decision was abandoned",
    Outcome.SUCCESS: "A similar decision succeeded",
}


def build_suggestions(similar: Sequence[Match], verdict: Verdict, checks: Sequence[str] = ()) -> list[str]:
    """Return at most five suggestions, the most useful first and without duplicates.

    The order: how to satisfy guardrails that block; the first two of the `checks` not made yet; lessons of failures and
    partial successes; how to satisfy guardrails that warn; failures and partial successes without a lesson; the other
    checks; other lessons; successes. Each group keeps the order of the verdict, of `checks` or of `similar` (most
    similar first).
    """
    return take_distinct(rank_suggestions(similar, verdict, checks), MAX_SUGGESTIONS)


def rank_suggestions(similar: Sequence[Match], verdict: Verdict, checks: Sequence[str]) -> Iterator[str]:
    """Yield every suggestion, the most useful first."""
    troubled = [match for match in similar if match.decision.outcome in (Outcome.FAILURE, Outcome.PARTIAL)]
    others = [match for match in similar if match.decision.outcome in (Outcome.SUCCESS, Outcome.ABANDONED)]
    due = [f"Check: {truncate_line(check)}" for check in checks if check.strip()]
    yield from (v.suggestion for v in verdict.violations if v.suggestion)
    yield from due[:FIRST_CHECKS]
    yield from (outcome_sentence(match) for match in troubled if lesson_text(match))
    yield from (v.suggestion for v in verdict.warnings if v.suggestion)
    yield from (outcome_sentence(match) for match in troubled if not lesson_text(match))
    yield from due[FIRST_CHECKS:]
    yield from (outcome_sentence(match) for match in others if lesson_text(match))
    yield from (outcome_sentence(match) for match in others if not lesson_text(match))


def outcome_sentence(match: Match) -> str:
    """Return a sentence about the outcome of a matched decision, with its lesson if it has one."""
    assert match.decision.outcome is not None
    sentence = f"{OUTCOME_SENTENCES[match.decision.outcome]}: {match.decision.title.strip().rstrip('.')}."
    return f"{sentence} Lesson: {lesson_text(match)}" if lesson_text(match) else sentence


def lesson_text(match: Match) -> str:
    """Return a decision's notes on one line, truncated; empty if it has none."""
    return truncate_line(match.decision.notes or "")


def truncate_line(text: str) -> str:
    """Return a text on one line, truncated to `MAX_LESSON` characters."""
    text = " ".join(text.split())
    return text if len(text) <= MAX_LESSON else text[: MAX_LESSON - 1].rstrip() + "…"


def take_distinct(texts: Iterable[str], count: int) -> list[str]:
    """Return the first `count` texts, without blank ones and repetitions in other case or spacing."""
    chosen: dict[str, str] = {}
    for text in filter(str.strip, texts):
        chosen.setdefault(" ".join(text.split()).casefold(), text.strip())
        if len(chosen) == count:
            break
    return list(chosen.values())


MAX_SIMILAR = 5
"""Maximum number of similar decisions in an answer. Chosen: an agent reads them before it acts."""
RECORDED_DECISIONS = DecisionFilter(without_agent=INTENT_LAYER_AGENT)
"""The decisions that agents recorded."""
NODE_DECISIONS = DecisionFilter(agent=INTENT_LAYER_AGENT)
"""The decisions that nodes of projects contain."""
CONFIRMED_CHECKS_KEY = "confirmedChecks"
"""The member of the metadata that lists the texts of the checks that were made."""
HASHED_JSON = json.JSONEncoder(sort_keys=True)
"""Encodes the content that is hashed. It must not change: stored intents are compared by these hashes."""


@lru_cache(maxsize=256)
def preferred_decisions(category: str | None) -> tuple[DecisionFilter, ...]:
    """Return what is searched for an announcement: decisions of its category first, others if there are too few.

    Nodes of projects come last: they have no outcome, and must not displace decisions that have one.
    """
    others = (RECORDED_DECISIONS, NODE_DECISIONS)
    return others if category is None else (replace(RECORDED_DECISIONS, category=category), *others)


@dataclass(frozen=True, slots=True)
class Announcement:
    """An agent's statement of what it is about to do; guardrails read `metadata` as their context.

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
        """Return a SHA-256 over the content of an announcement; claimed identities are not part of it."""
        content = [self.intent, self.context, self.category, self.stakes, self.confidence, self.metadata]
        # Announcements about no code have the hash that they had before they could be about any.
        about = [self.project, self.paths] if self.project is not None or self.paths else []
        return hashlib.sha256(HASHED_JSON.encode(content + about).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Feedback:
    """The answer to an announcement, and the `revision` of the intent it belongs to.

    `verdict` is None if the server does not respond with feedback, `code` if there are no paths.
    """

    received_at: datetime
    similar: tuple[Match, ...] = ()
    verdict: Verdict | None = None
    suggestions: tuple[str, ...] = ()
    code: CodeContext | None = None
    revision: int = 1


class CitationRecorder(Protocol):
    """Records which decisions an agent was given, so that it can be notified if one of them fails."""

    def cite(
        self, unit_of_work: UnitOfWork, agent: str, correlation_id: str, url: str | None, decisions: Sequence[Decision]
    ) -> None:
        """Record within a transaction the decisions in an answer; `url` is the callback URL of the agent."""


class Announcer:
    """Answers announcements.

    The intent, its audit entry and the citations of the given decisions are one transaction, on disk before the answer;
    the first two are stored even if the answer is an error. Similar decisions score at least `min_score`. If
    `stores_content` is False, neither the intent's content nor its text in the audit trail is stored; if `responds` is
    False, the answer has no feedback. `pool` runs file reads, and searches unless they are short.
    """

    def __init__(
        self,
        search: DecisionSearch,
        judge: GuardrailChecker,
        code: CodeContextReader,
        intents: IntentStore,
        sink: AuditSink,
        writer: GroupCommitWriter,
        clock: Callable[[], datetime],
        pool: WorkPool,
        *,
        min_score: float,
        stores_content: bool = True,
        responds: bool = True,
        citations: CitationRecorder | None = None,
    ) -> None:
        self._search = search
        self._judge = judge
        self._code = code
        self._intents = intents
        self._sink = sink
        self._writer = writer
        self._clock = clock
        self._pool = pool
        self._min_score = min_score
        self._stores_content = stores_content
        self._responds = responds
        self._citations = citations

    async def announce(
        self, announcement: Announcement, caller: str, request_id: str, reader: str | None = None
    ) -> Feedback:
        """Record an intent and return the feedback on it.

        Similar decisions are those that `reader` may read; None means the caller. Raises QueryFailed,
        GuardrailEvalFailed and Unavailable. Before anything is recorded, raises InvalidArgument for metadata that is
        too large, for invalid paths and for a revision of another journal, Unavailable for a revision that the journal
        has not reached, and NotFound for an unknown project.
        """
        check_context_bounds(announcement.metadata, "metadata")
        if announcement.min_journal_revision is not None:
            await self._pool.run(self._search.require_revision, announcement.min_journal_revision)
        code = await self._read_code_context(announcement)
        received_at = self._clock()
        try:
            feedback = await self._build_feedback(announcement, code, caller if reader is None else reader, received_at)
        except Exception as error:
            await self._store_intent(announcement, caller, request_id, Feedback(received_at), error_reason(error))
            raise
        stored = await self._store_intent(announcement, caller, request_id, feedback)
        return replace(feedback, received_at=stored.received_at, revision=stored.revision)

    async def _read_code_context(self, announcement: Announcement) -> CodeContext | None:
        """Return the code context of the paths, or None without any; a project without paths must be known."""
        if announcement.paths:
            # Reading files blocks, so it runs in a thread.
            return await self._pool.run(self._code.read_context, announcement.project, announcement.paths)
        if announcement.project is not None:
            self._code.read_context(announcement.project, ())
        return None

    async def _build_feedback(
        self, announcement: Announcement, code: CodeContext | None, reader: str, received_at: datetime
    ) -> Feedback:
        if not self._responds:
            return Feedback(received_at)
        verdict = self._judge.judge(action_from_announcement(announcement, code))
        similar = await self._find_similar(announcement, reader)
        suggestions = build_suggestions(similar, verdict, unconfirmed_checks(announcement, code))
        return Feedback(received_at, tuple(similar), verdict, tuple(suggestions), code)

    async def _find_similar(self, announcement: Announcement, reader: str) -> list[Match]:
        """Return similar decisions, in the order of `preferred_decisions`."""
        text = f"{announcement.intent}\n{announcement.context}" if announcement.context else announcement.intent
        preferences = preferred_decisions(announcement.category)
        run = self._pool.run_short if self._search.is_short(text, preferences, MAX_SIMILAR) else self._pool.run
        return await run(self._search.search_by_preference, text, preferences, reader, MAX_SIMILAR, self._min_score)

    async def _store_intent(
        self, announcement: Announcement, caller: str, request_id: str, feedback: Feedback, error: str | None = None
    ) -> Intent:
        """Store the intent with its audit entry, and the citations of the decisions in the feedback."""
        intent = self._build_intent(announcement, caller, feedback.received_at)
        cited = [match.decision for match in feedback.similar]

        def job(unit_of_work: UnitOfWork) -> Intent:
            if self._citations is not None:
                # Lock order: this may wait for the global write lock, and inserting the intent takes its revision lock.
                # The other way round, a server could hold an intent's lock while it waits for a server that wants it.
                self._citations.cite(unit_of_work, caller, intent.correlation_id, intent.claimed_url, cited)
            stored = self._intents.insert_or_get(unit_of_work, intent)
            self._sink.append(
                unit_of_work,
                AuditEntry(
                    timestamp=feedback.received_at,
                    event=AuditEvent.INTENT_ANNOUNCED,
                    requesting_agent=caller,
                    request_id=request_id,
                    claimed_agent=intent.claimed_id,
                    action=intent.intent,
                    correlation_id=intent.correlation_id,
                    intent_revision=stored.revision,
                    error=error,
                    **verdict_audit_fields(feedback.verdict),
                ),
            )
            return stored

        # For an intent that another server adds at the same time: the revision lock is waited for, first in a
        # transaction of its own, which contains no other job whose locks could be waited for in return.
        def job_alone(unit_of_work: UnitOfWork) -> Intent:
            self._intents.hold(unit_of_work, intent)
            return job(unit_of_work)

        try:
            return await self._writer.write(job)
        except IntentContended:
            return await self._writer.write(job_alone, alone=True)

    def _build_intent(self, announcement: Announcement, caller: str, received_at: datetime) -> Intent:
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


def unconfirmed_checks(announcement: Announcement, code: CodeContext | None) -> list[str]:
    """Return the checks on the code that the announcement does not list as made."""
    confirmed = announcement.metadata.get(CONFIRMED_CHECKS_KEY)
    made = {text for text in confirmed if isinstance(text, str)} if isinstance(confirmed, list) else set()
    return [check for check in code.check_items if check not in made] if code else []


def action_from_announcement(announcement: Announcement, code: CodeContext | None) -> Action:
    """Convert an announcement to the action that guardrails evaluate."""
    return Action(
        description=announcement.intent,
        category=announcement.category,
        stakes=announcement.stakes,
        confidence=announcement.confidence,
        context=announcement.metadata,
        code=code.rules if code else NO_CODE,
    )
