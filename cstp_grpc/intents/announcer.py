"""Announces an intent: check guardrails, search similar decisions, store it, and suggest next steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

from cstp_grpc.audit.model import AuditEntry, AuditEvent, AuditSink
from cstp_grpc.decisions.model import Decision, DecisionFilter, Match
from cstp_grpc.decisions.search.decision_search import DecisionSearch
from cstp_grpc.decisions.search.relevance import Favoured
from cstp_grpc.decisions.search.search_scheduler import SearchScheduler
from cstp_grpc.decisions.store import NO_BACKGROUND, BackgroundReader, DecisionBackground
from cstp_grpc.enums import INTENT_LAYER_AGENT, Permission
from cstp_grpc.errors import InvalidArgument, error_reason
from cstp_grpc.guardrails.checker import (
    ApprovalGate,
    ApprovalQuestion,
    GuardrailChecker,
    judged_audit_fields,
    settle_or_refuse,
    verdict_audit_fields,
)
from cstp_grpc.guardrails.input_names import CONFIRMED_CHECKS_KEY
from cstp_grpc.guardrails.input_values import check_context_bounds
from cstp_grpc.guardrails.model import NO_CODE, UNREAD_INTENTS, Action, IntentFacts, Verdict
from cstp_grpc.intents.model import (
    Announcement,
    CodeContext,
    CodeContextReader,
    Intent,
    IntentContended,
    IntentStore,
    IntentVector,
    SharedIntent,
)
from cstp_grpc.intents.related_intents import IntentSubject, RelatedIntent, RelatedIntents
from cstp_grpc.intents.suggestions import (
    Suggestion,
    SuggestionBars,
    SuggestionSources,
    build_suggestions,
    find_needed_background,
)
from cstp_grpc.storage.background_work import WorkPool
from cstp_grpc.storage.unit_of_work import UnitOfWork
from cstp_grpc.storage.writer import GroupCommitWriter

MAX_SIMILAR = 5
"""Maximum number of similar decisions in an answer. Chosen: an agent reads them before it acts."""
RECORDED_DECISIONS = DecisionFilter(without_agent=INTENT_LAYER_AGENT)
"""The decisions that agents recorded."""
NODE_DECISIONS = DecisionFilter(agent=INTENT_LAYER_AGENT)
"""The decisions that nodes of projects contain."""

SEARCHED_DECISIONS = (RECORDED_DECISIONS, NODE_DECISIONS)
"""What is searched for an announcement. Nodes of projects come last: they have no outcome, and must not displace
decisions that have one."""


@dataclass(frozen=True, slots=True)
class Feedback:
    """The answer to an announcement, and the `revision` of the intent it belongs to.

    `verdict` is None if the server does not respond with feedback, `code` if there are no paths.
    """

    received_at: datetime
    similar: tuple[Match, ...] = ()
    verdict: Verdict | None = None
    suggestions: tuple[Suggestion, ...] = ()
    code: CodeContext | None = None
    revision: int = 1
    related: tuple[RelatedIntent, ...] = ()
    warning: str | None = None
    """What the stated confidence has meant so far, if that was something else."""
    background: DecisionBackground = NO_BACKGROUND
    """What suggestions need of similar decisions beyond what searches read."""
    action: Action | None = None
    """What the verdict is on."""


@dataclass(frozen=True, slots=True)
class ActingAgent:
    """The authenticated agent that announces: whose decisions it may read, and what it may do."""

    name: str
    reader: str
    permissions: frozenset[Permission]


SettleVerdict: TypeAlias = Callable[[UnitOfWork], Verdict | Exception | None]
"""Returns within a transaction the verdict that is recorded in it, or the reason why there is none."""


class StoredAnnouncement(NamedTuple):
    """A stored intent, with its verdict if there is one, or the reason why there is none."""

    intent: Intent
    outcome: Verdict | Exception | None


class CitationRecorder(Protocol):
    """Records which decisions an agent was given, so that it can be notified if one of them fails."""

    def cite(
        self, unit_of_work: UnitOfWork, agent: str, correlation_id: str, url: str | None, decisions: Sequence[Decision]
    ) -> None:
        """Record within a transaction the decisions in an answer; `url` is the callback URL of the agent."""


class ConfidenceRecord(Protocol):
    """What the stated confidences of an agent have meant."""

    def find_warning(self, category: str | None, confidence: float) -> str | None:
        """Return a warning with its figures if a confidence has meant something else; None if not."""


class ConfidenceHistory(Protocol):
    """Keeps the records of agents."""

    def current_record(self, agent: str) -> ConfidenceRecord | None:
        """Return the record of an agent without blocking; None if it has to be read."""

    def read_record(self, agent: str) -> ConfidenceRecord:
        """Read the record of an agent. Raises QueryFailed."""


class Announcer:
    """Answers announcements.

    The intent, its audit entry, its vector if it is shared and the citations of the given decisions are one
    transaction, on disk before the answer; the first two are stored even if the answer is an error. Similar decisions
    score at least `min_score`. If `stores_content` is False, neither the intent's content nor its text in the audit
    trail is stored; if `responds` is False, the answer has no feedback. `pool` runs file reads, and searches unless
    they are short.
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
        related: RelatedIntents,
        background: BackgroundReader,
        *,
        bars: SuggestionBars,
        min_score: float,
        stores_content: bool = True,
        responds: bool = True,
        citations: CitationRecorder | None = None,
        confidences: ConfidenceHistory | None = None,
        approvals: ApprovalGate | None = None,
    ) -> None:
        self._search = search
        self._searches = SearchScheduler(search, pool)
        self._judge = judge
        self._code = code
        self._intents = intents
        self._sink = sink
        self._writer = writer
        self._clock = clock
        self._pool = pool
        self._related = related
        self._background = background
        self._bars = bars
        self._min_score = min_score
        self._stores_content = stores_content
        self._responds = responds
        self._citations = citations
        self._confidences = confidences
        self._approvals = approvals

    async def announce(
        self,
        announcement: Announcement,
        caller: str,
        request_id: str,
        reader: str | None = None,
        permissions: frozenset[Permission] = frozenset(),
    ) -> Feedback:
        """Record an intent and return the feedback on it; guardrails read the `permissions` of the caller.

        Similar decisions and related intents are those that `reader` may read; None means the caller. Raises
        QueryFailed, GuardrailEvalFailed and Unavailable. Before anything is recorded, raises InvalidArgument for
        metadata that is too large, for invalid paths, for a revision of another journal and for a shared intent whose
        content is not stored, Unavailable for a revision that the journal has not reached, and NotFound for an unknown
        project.
        """
        check_context_bounds(announcement.metadata, "metadata")
        if announcement.is_shared and not self._stores_content:
            raise InvalidArgument.field("visibility", "must be private: this server stores no contents of intents")
        if announcement.min_journal_revision is not None:
            await self._pool.run(self._search.require_revision, announcement.min_journal_revision)
        code = await self._read_code_context(announcement)
        received_at = self._clock()
        reader = caller if reader is None else reader
        vector: IntentVector | None = None
        try:
            acting = ActingAgent(caller, reader, permissions)
            feedback = await self._build_feedback(announcement, code, acting, received_at)
            if announcement.is_shared or (self._responds and self._related.may_exist):
                vector = await self._related.embed(announcement.searched_text)
            settle = self._prepare_approval(announcement, acting, feedback, request_id)
        except Exception as error:
            # Stored all the same: that the agent intended it is true, whatever failed here.
            failure = error
            await self._store_intent(announcement, caller, request_id, Feedback(received_at), settle=lambda _: failure)
            raise
        stored, outcome = await self._store_intent(
            announcement, caller, request_id, feedback, vector, settle=settle or (lambda _: feedback.verdict)
        )
        if isinstance(outcome, Exception):
            raise outcome
        feedback = replace(feedback, verdict=outcome)
        related = await self._find_related(announcement, caller, reader, vector) if self._responds else []
        suggestions = self._suggest(announcement, feedback, related, reader)
        return replace(
            feedback,
            received_at=stored.received_at,
            revision=stored.revision,
            related=tuple(related),
            suggestions=tuple(suggestions),
        )

    async def _read_code_context(self, announcement: Announcement) -> CodeContext | None:
        """Return the code context of the paths, or None without any; a project without paths must be known."""
        if announcement.paths:
            # Reading files blocks, so it runs in a thread.
            return await self._pool.run(self._code.read_context, announcement.project, announcement.paths)
        if announcement.project is not None:
            self._code.read_context(announcement.project, ())
        return None

    async def _build_feedback(
        self, announcement: Announcement, code: CodeContext | None, acting: ActingAgent, received_at: datetime
    ) -> Feedback:
        if not self._responds:
            return Feedback(received_at)
        caller, reader = acting.name, acting.reader
        rules = self._judge.take_snapshot()
        facts = UNREAD_INTENTS
        if rules.reads_intents:
            facts = await self._read_intent_facts(announcement, caller, reader)
        action = action_from_announcement(announcement, acting, code, facts)
        if rules.reads_history:
            (action,) = await rules.add_histories([action], reader)
        verdict = rules.judge(action)
        similar = await self._find_similar(announcement, reader)
        warning = await self._find_confidence_warning(announcement, caller) if reader == caller else None
        background = await self._read_background(similar, reader)
        return Feedback(
            received_at, tuple(similar), verdict, code=code, warning=warning, background=background, action=action
        )

    def _prepare_approval(
        self, announcement: Announcement, acting: ActingAgent, feedback: Feedback, request_id: str
    ) -> SettleVerdict | None:
        """Return what settles within a transaction whether the intent has the approval that its verdict needs, if any.

        Raises InvalidArgument.
        """
        verdict, action = feedback.verdict, feedback.action
        if self._approvals is None or action is None or verdict is None or not verdict.approval_required:
            return None
        settle = self._approvals.prepare(
            ApprovalQuestion(
                action,
                verdict,
                request_id,
                announcement.claimed_id if acting.reader != acting.name else None,
                announcement.correlation_id,
                announcement.claimed_url,
                self._stores_content,
            )
        )
        return partial(settle_or_refuse, settle)

    async def _read_background(self, similar: Sequence[Match], reader: str) -> DecisionBackground:
        """Return the background that suggestions need; most announcements need none, and nothing is read."""
        needed = find_needed_background(similar, reader, self._bars)
        if not needed:
            return NO_BACKGROUND
        run = self._pool.run_short if self._background.is_local else self._pool.run
        return await run(self._background.read, needed, reader)

    async def _find_confidence_warning(self, announcement: Announcement, caller: str) -> str | None:
        """Return a warning if the confidence of an announcement has been far from the record of its agent."""
        confidence, history = announcement.confidence, self._confidences
        if confidence is None or history is None:
            return None
        record = history.current_record(caller)
        if record is None:
            record = await self._pool.run(history.read_record, caller)
        return record.find_warning(announcement.category, confidence)

    def _suggest(
        self, announcement: Announcement, feedback: Feedback, related: Sequence[RelatedIntent], reader: str
    ) -> list[Suggestion]:
        """Return the suggestions, or none if the server does not respond with feedback."""
        if feedback.verdict is None:
            return []
        sources = SuggestionSources(
            feedback.similar,
            feedback.verdict,
            feedback.received_at,
            reader,
            self._bars,
            unconfirmed_checks(announcement, feedback.code),
            related,
            feedback.warning,
            announcement.searched_text,
            feedback.background,
        )
        return build_suggestions(sources)

    async def _read_intent_facts(self, announcement: Announcement, caller: str, reader: str) -> IntentFacts:
        """Return the facts on related intents, for guardrails that read them."""
        vector = await self._related.embed(announcement.searched_text)
        return self._related.read_subject_facts(subject_of_announcement(announcement, caller, reader, vector))

    async def _find_related(
        self, announcement: Announcement, caller: str, reader: str, vector: IntentVector | None
    ) -> list[RelatedIntent]:
        """Return the related intents once the own one is stored.

        Of two agents that announce at the same time, the one that stores its intent later finds the other's.
        """
        if announcement.is_shared:
            await self._related.catch_up()
        if vector is None:
            return []
        return self._related.find(subject_of_announcement(announcement, caller, reader, vector))

    async def _find_similar(self, announcement: Announcement, reader: str) -> list[Match]:
        """Return similar decisions, in the order of `SEARCHED_DECISIONS`."""
        text = announcement.searched_text
        return await self._searches.find_precedents(
            text,
            SEARCHED_DECISIONS,
            reader,
            MAX_SIMILAR,
            self._min_score,
            Favoured(announcement.category, announcement.project),
        )

    async def _store_intent(
        self,
        announcement: Announcement,
        caller: str,
        request_id: str,
        feedback: Feedback,
        vector: IntentVector | None = None,
        *,
        settle: SettleVerdict,
    ) -> StoredAnnouncement:
        """Store the intent with its audit entry, its vector if it is shared, and the citations of the feedback.

        Whatever `settle` returns within the transaction is its verdict, or the reason why there is none.
        """
        intent = self._build_intent(announcement, caller, feedback.received_at)
        cited = [match.decision for match in feedback.similar]

        def job(unit_of_work: UnitOfWork) -> StoredAnnouncement:
            # Lock order: settling and citing may wait for the global write lock, and inserting the intent takes its
            # revision lock. The other way round, a server could hold an intent's lock while it waits for a server that
            # wants it.
            outcome = settle(unit_of_work)
            is_answered = not isinstance(outcome, Exception)
            if self._citations is not None and is_answered:
                self._citations.cite(unit_of_work, caller, intent.correlation_id, intent.claimed_url, cited)
            stored = self._intents.insert_or_get(unit_of_work, intent)
            if announcement.is_shared and vector is not None and is_answered:
                # A repetition too, whose verdict may be another one.
                self._related.store(unit_of_work, SharedIntent(stored, vector, allowed_by(outcome)))
            elif stored.revision > 1:
                self._related.note_withdrawal(unit_of_work, stored.key)
            entry = announcement_entry(
                intent, stored.revision, request_id, feedback, outcome, with_content=self._stores_content
            )
            self._sink.append(unit_of_work, entry)
            return StoredAnnouncement(stored, outcome)

        # For an intent that another server adds at the same time: the revision lock is waited for, first in a
        # transaction of its own, which contains no other job whose locks could be waited for in return.
        def job_alone(unit_of_work: UnitOfWork) -> StoredAnnouncement:
            self._intents.hold(unit_of_work, caller, intent.correlation_id)
            return job(unit_of_work)

        try:
            stored = await self._writer.write(job)
        except IntentContended:
            stored = await self._writer.write(job_alone, alone=True)
        told, outcome = replace(stored.intent, context=None, metadata=None), stored.outcome
        if announcement.is_shared and vector is not None and not isinstance(outcome, Exception):
            self._related.add(SharedIntent(told, vector, allowed_by(outcome)))
        else:
            self._related.withdraw(told.key)
        return stored

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
            visibility=announcement.visibility,
        )


def allowed_by(verdict: Verdict | Exception | None) -> bool | None:
    """Return whether a verdict allows the intent, or None if there is none."""
    return verdict.allowed if isinstance(verdict, Verdict) else None


def announcement_entry(
    intent: Intent,
    revision: int,
    request_id: str,
    feedback: Feedback,
    outcome: Verdict | Exception | None,
    *,
    with_content: bool,
) -> AuditEntry:
    """Return the audit entry of an announcement, which is stored as a revision, with its verdict or its failure."""
    verdict, action = outcome if isinstance(outcome, Verdict) else None, feedback.action
    judged = judged_audit_fields(action, verdict) if with_content and action else verdict_audit_fields(verdict)
    return AuditEntry(
        timestamp=feedback.received_at,
        event=AuditEvent.INTENT_ANNOUNCED,
        requesting_agent=intent.agent,
        request_id=request_id,
        claimed_agent=intent.claimed_id,
        action=intent.intent,
        correlation_id=intent.correlation_id,
        intent_revision=revision,
        error=error_reason(outcome) if isinstance(outcome, Exception) else None,
        **judged,
    )


def unconfirmed_checks(announcement: Announcement, code: CodeContext | None) -> list[str]:
    """Return the checks on the code that the announcement does not list as made."""
    confirmed = announcement.metadata.get(CONFIRMED_CHECKS_KEY)
    made = {text for text in confirmed if isinstance(text, str)} if isinstance(confirmed, list) else set()
    return [check for check in code.check_items if check not in made] if code else []


def subject_of_announcement(
    announcement: Announcement, caller: str, reader: str, vector: IntentVector
) -> IntentSubject:
    """Return the subject of an announcement, which is compared with the intents of others."""
    return IntentSubject(vector, caller, reader, announcement.project, announcement.paths)


def action_from_announcement(
    announcement: Announcement, acting: ActingAgent, code: CodeContext | None, intents: IntentFacts
) -> Action:
    """Convert an announcement to the action that guardrails evaluate."""
    return Action(
        description=announcement.intent,
        category=announcement.category,
        stakes=announcement.stakes,
        confidence=announcement.confidence,
        context=announcement.metadata,
        code=code.rules if code else NO_CODE,
        intents=intents,
        project=announcement.project,
        agent=acting.name,
        permissions=acting.permissions,
        announced_context=announcement.context or "",
    )
