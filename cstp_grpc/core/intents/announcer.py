"""Announces an intent: check guardrails, search similar decisions, store it, and suggest next steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.contract.enums import INTENT_LAYER_AGENT, Permission, Visibility
from cstp_grpc.contract.errors import InvalidArgument, error_reason
from cstp_grpc.core.audit.model import AuditEntry, AuditEvent, AuditSink
from cstp_grpc.core.decisions.model import Decision, DecisionFilter, Match
from cstp_grpc.core.decisions.search.decision_search import DecisionSearch
from cstp_grpc.core.decisions.search.relevance import Favoured
from cstp_grpc.core.decisions.search.search_scheduler import SearchScheduler
from cstp_grpc.core.decisions.sql_background import SqlBackgroundReader
from cstp_grpc.core.decisions.store import NO_BACKGROUND, DecisionBackground, JournalWrite
from cstp_grpc.core.guardrails.checker import (
    ApprovalGate,
    ApprovalQuestion,
    GuardrailChecker,
    judged_audit_fields,
    settle_or_refuse,
    verdict_audit_fields,
)
from cstp_grpc.core.guardrails.inputs import check_context_bounds
from cstp_grpc.core.guardrails.model import NO_CODE, UNREAD_INTENTS, Action, IntentFacts, Verdict
from cstp_grpc.core.intents import model
from cstp_grpc.core.intents.quoted_lessons import quote_lessons
from cstp_grpc.core.intents.related_intents import RelatedIntent, RelatedIntents, subject_of_announcement
from cstp_grpc.core.intents.sql_store import SqlIntentStore
from cstp_grpc.core.intents.suggestions import (
    SuggestionSources,
    build_suggestions,
    find_needed_background,
    unconfirmed_checks,
    with_background,
)
from cstp_grpc.platform.storage.background_work import WorkPool
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter

MAX_SIMILAR = 5
"""Maximum number of similar decisions in an answer. Chosen: an agent reads them before it acts."""
RECORDED_DECISIONS = DecisionFilter(without_agent=INTENT_LAYER_AGENT)
"""The decisions that agents recorded."""
NODE_DECISIONS = DecisionFilter(agent=INTENT_LAYER_AGENT)
"""The decisions that nodes of projects contain."""

SEARCHED_DECISIONS = (RECORDED_DECISIONS, NODE_DECISIONS)
"""The sources of a search for an announcement. Nodes of projects come last: they have no outcome, and must not
displace decisions with an outcome."""


@dataclass(frozen=True, slots=True)
class Feedback:
    """The answer to an announcement, and the `revision` of the intent it belongs to.

    `verdict` is None if the server does not respond with feedback, `code` if there are no paths.
    """

    received_at: datetime
    similar: tuple[Match, ...] = ()
    verdict: Verdict | None = None
    suggestions: tuple[model.Suggestion, ...] = ()
    code: model.CodeContext | None = None
    revision: int = 1
    related: tuple[RelatedIntent, ...] = ()
    warning: str | None = None
    """The success rate at the stated confidence so far, as a warning if it differs."""
    background: DecisionBackground = NO_BACKGROUND
    """Parts of similar decisions that suggestions need and searches do not read."""
    action: Action | None = None
    """The action of the verdict."""
    written: JournalWrite[Decision] | None = None
    """Changes in the journal by the decision that was recorded with the intent, to be published."""


@dataclass(frozen=True, slots=True)
class ActingAgent:
    """The authenticated agent that announces: its name as a reader of decisions, and its permissions."""

    name: str
    reader: str
    permissions: frozenset[Permission]


@dataclass(frozen=True, slots=True)
class AnnouncementWrite:
    """The parts that the transaction of an announcement stores.

    In the transaction, `settle` returns the verdict on the intent, or the reason why it is missing; `record` records
    the decision, if the announcement has one and the intent is allowed. `vector` is that of the announced text, if it
    is needed.
    """

    intent: model.Intent
    request_id: str
    feedback: Feedback
    settle: model.SettleVerdict
    vector: model.IntentVector | None = None
    record: model.RecordJob | None = None

    @property
    def shared_vector(self) -> model.IntentVector | None:
        """The vector that is stored with the intent: None if that is private."""
        return self.vector if self.intent.visibility is Visibility.SHARED else None


@dataclass(frozen=True, slots=True)
class AnnouncementSources:
    """The sources of an answer except decisions and guardrails."""

    code: model.CodeContextReader
    related: RelatedIntents
    background: SqlBackgroundReader
    confidences: model.ConfidenceHistory | None = None
    """Warns agents whose confidence has been wrong."""


@dataclass(frozen=True, slots=True)
class AnnouncementRecords:
    """Where an announcement is stored, all in one transaction."""

    intents: SqlIntentStore
    sink: AuditSink
    writer: GroupCommitWriter
    citations: model.CitationRecorder | None = None
    approvals: ApprovalGate | None = None


@dataclass(frozen=True, slots=True)
class FeedbackSettings:
    """The settings of answers: similar decisions score at least `min_score`.

    If `stores_content` is False, neither the intent's content nor its text in the audit trail is stored; if `responds`
    is False, the answer has no feedback.
    """

    bars: model.SuggestionBars
    min_score: float
    stores_content: bool = True
    responds: bool = True


class Announcer:
    """Answers announcements.

    The intent, its audit entry, its vector if it is shared and the citations of the given decisions are one
    transaction, on disk before the answer; the first two are stored even if the answer is an error. `pool` runs file
    reads, and searches unless they are short.
    """

    def __init__(
        self,
        search: DecisionSearch,
        judge: GuardrailChecker,
        sources: AnnouncementSources,
        records: AnnouncementRecords,
        clock: Callable[[], datetime],
        pool: WorkPool,
        settings: FeedbackSettings,
    ) -> None:
        self._search = search
        self._searches = SearchScheduler(search, pool)
        self._judge = judge
        self._sources = sources
        self._related = sources.related
        self._records = records
        self._clock = clock
        self._pool = pool
        self._settings = settings

    async def announce(
        self,
        announcement: model.Announcement,
        caller: str,
        request_id: str,
        reader: str | None = None,
        permissions: frozenset[Permission] = frozenset(),
        recording: model.DecisionRecording | None = None,
    ) -> Feedback:
        """Record an intent and return the feedback on it; guardrails read the `permissions` of the caller.

        With `recording`, its decision is recorded in the same transaction if the verdict allows the intent; if that
        fails within the transaction, nothing is recorded.

        Similar decisions and related intents are those that `reader` may read; None means the caller. Raises
        QueryFailed, GuardrailEvalFailed and Unavailable. Before anything is recorded, raises InvalidArgument for
        metadata that is too large, for invalid paths, for a revision of another journal and for a shared intent whose
        content is not stored, Unavailable for a revision that the journal has not reached, and NotFound for an unknown
        project.
        """
        await self._require_valid(announcement)
        code = await self._read_code_context(announcement)
        received_at = self._clock()
        acting = ActingAgent(caller, caller if reader is None else reader, permissions)
        try:
            write = await self._prepare(announcement, code, acting, received_at, request_id, recording)
        except Exception as error:
            # Stored all the same: the agent had the intent, although its evaluation failed.
            failure = error
            intent = self._build_intent(announcement, caller, received_at)
            await self._store(AnnouncementWrite(intent, request_id, Feedback(received_at), lambda _: failure))
            raise
        stored, outcome, written = await self._store(write)
        if isinstance(outcome, Exception):
            raise outcome
        related = await self._find_related(announcement, acting, write.vector) if self._settings.responds else []
        feedback = write.feedback if outcome is write.feedback.verdict else replace(write.feedback, verdict=outcome)
        return replace(
            feedback,
            received_at=stored.received_at,
            revision=stored.revision,
            related=tuple(related),
            suggestions=tuple(self._suggest(announcement, feedback, related, acting.reader)),
            written=written,
        )

    async def _require_valid(self, announcement: model.Announcement) -> None:
        """Do the checks that need no file. Raises InvalidArgument, and for its revision QueryFailed and Unavailable."""
        check_context_bounds(announcement.metadata, "metadata")
        if announcement.is_shared and not self._settings.stores_content:
            raise InvalidArgument.field("visibility", "must be private: this server stores no contents of intents")
        if announcement.min_journal_revision is not None:
            await self._pool.run(self._search.require_revision, announcement.min_journal_revision)

    async def _read_code_context(self, announcement: model.Announcement) -> model.CodeContext | None:
        """Return the code context of the paths, or None without any; a project without paths must be known."""
        if announcement.paths:
            # Reading files blocks, so it runs in a thread.
            return await self._pool.run(self._sources.code.read_context, announcement.project, announcement.paths)
        if announcement.project is not None:
            self._sources.code.read_context(announcement.project, ())
        return None

    async def _prepare(
        self,
        announcement: model.Announcement,
        code: model.CodeContext | None,
        acting: ActingAgent,
        received_at: datetime,
        request_id: str,
        recording: model.DecisionRecording | None,
    ) -> AnnouncementWrite:
        """Evaluate an intent, look up the parts of the answer, and return the parts to store."""
        feedback = await self._build_feedback(announcement, code, acting, received_at)
        vector: model.IntentVector | None = None
        if announcement.is_shared or (self._settings.responds and self._related.may_exist):
            vector = await self._related.embed(announcement.searched_text)
        settle = self._prepare_approval(announcement, acting, feedback, request_id)
        record: model.RecordJob | None = None
        verdict = feedback.verdict
        if recording is not None and verdict is not None and (verdict.allowed or verdict.approval_required):
            record = await recording.prepare()
        intent = self._build_intent(announcement, acting.name, received_at)
        return AnnouncementWrite(intent, request_id, feedback, settle or (lambda _: feedback.verdict), vector, record)

    async def _build_feedback(
        self,
        announcement: model.Announcement,
        code: model.CodeContext | None,
        acting: ActingAgent,
        received_at: datetime,
    ) -> Feedback:
        if not self._settings.responds:
            return Feedback(received_at)
        caller, reader = acting.name, acting.reader
        rules = self._judge.take_snapshot()
        facts = UNREAD_INTENTS
        if rules.reads_intents:
            vector = await self._related.embed(announcement.searched_text)
            facts = self._related.read_subject_facts(subject_of_announcement(announcement, caller, reader, vector))
        action = action_from_announcement(announcement, acting, code, facts)
        if rules.reads_history:
            (action,) = await rules.add_histories([action], reader)
        verdict = rules.judge(action)
        # In the order of SEARCHED_DECISIONS.
        similar = await self._searches.find_precedents(
            announcement.searched_text,
            SEARCHED_DECISIONS,
            reader,
            MAX_SIMILAR,
            self._settings.min_score,
            Favoured(announcement.category, announcement.project),
        )
        warning = await self._find_confidence_warning(announcement, caller) if reader == caller else None
        background = await self._read_background(similar, reader)
        bars = self._settings.bars
        lessons = await quote_lessons(
            [with_background(match, background).decision for match in similar if match.score >= bars.teaching],
            announcement.searched_text,
            self._related.embed_all,
        )
        background = replace(background, lessons=lessons) if lessons else background
        return Feedback(
            received_at, tuple(similar), verdict, code=code, warning=warning, background=background, action=action
        )

    def _prepare_approval(
        self, announcement: model.Announcement, acting: ActingAgent, feedback: Feedback, request_id: str
    ) -> model.SettleVerdict | None:
        """Return a function that decides within a transaction whether the intent has a needed approval.

        Raises InvalidArgument.
        """
        verdict, action = feedback.verdict, feedback.action
        if self._records.approvals is None or action is None or verdict is None or verdict.allowed:
            return None
        if not verdict.approval_required:
            return None
        settle = self._records.approvals.prepare(
            ApprovalQuestion(
                action,
                verdict,
                request_id,
                announcement.claimed_id if acting.reader != acting.name else None,
                announcement.correlation_id,
                announcement.claimed_url,
                self._settings.stores_content,
            )
        )
        return partial(settle_or_refuse, settle)

    async def _read_background(self, similar: Sequence[Match], reader: str) -> DecisionBackground:
        """Return the background that suggestions need; most announcements need none, and nothing is read."""
        needed = find_needed_background(similar, reader, self._settings.bars)
        if needed is None:
            return NO_BACKGROUND
        run = self._pool.run_short if self._sources.background.is_local else self._pool.run
        return await run(self._sources.background.read, needed, reader)

    async def _find_confidence_warning(self, announcement: model.Announcement, caller: str) -> str | None:
        """Return a warning if the confidence of an announcement has been far from the record of its agent."""
        confidence, history = announcement.confidence, self._sources.confidences
        if confidence is None or history is None:
            return None
        record = history.current_record(caller)
        if record is None:
            record = await self._pool.run(history.read_record, caller)
        return record.find_warning(announcement.category, confidence)

    def _suggest(
        self, announcement: model.Announcement, feedback: Feedback, related: Sequence[RelatedIntent], reader: str
    ) -> list[model.Suggestion]:
        """Return the suggestions, or none if the server does not respond with feedback."""
        if feedback.verdict is None:
            return []
        sources = SuggestionSources(
            feedback.similar,
            feedback.verdict,
            feedback.received_at,
            reader,
            self._settings.bars,
            unconfirmed_checks(announcement, feedback.code),
            related,
            feedback.warning,
            announcement.searched_text,
            feedback.background,
        )
        return build_suggestions(sources)

    async def _find_related(
        self, announcement: model.Announcement, acting: ActingAgent, vector: model.IntentVector | None
    ) -> list[RelatedIntent]:
        """Return the related intents once the own one is stored.

        Of two agents that announce at the same time, the one that stores its intent later finds the other's.
        """
        if announcement.is_shared:
            await self._related.catch_up()
        if vector is None:
            return []
        return self._related.find(subject_of_announcement(announcement, acting.name, acting.reader, vector))

    async def _store(self, write: AnnouncementWrite) -> model.StoredAnnouncement:
        """Store the intent with its audit entry, its vector if it is shared, and the citations of the feedback."""
        job = partial(self._store_within, write)

        # For an intent that another server adds at the same time: the revision lock is waited for, first in a
        # transaction of its own, which contains no other job whose locks could be waited for in return.
        def job_alone(unit_of_work: UnitOfWork) -> model.StoredAnnouncement:
            self._records.intents.hold(unit_of_work, write.intent.agent, write.intent.correlation_id)
            return job(unit_of_work)

        try:
            stored = await self._records.writer.write(job)
        except model.IntentContended:
            stored = await self._records.writer.write(job_alone, alone=True)
        outcome, shared_vector = stored.outcome, write.shared_vector
        if shared_vector is not None and not isinstance(outcome, Exception):
            told = replace(stored.intent, context=None, metadata=None)
            self._related.add(model.SharedIntent(told, shared_vector, allowed_by(outcome)))
        else:
            self._related.withdraw(stored.intent.key)
        return stored

    def _store_within(self, write: AnnouncementWrite, unit_of_work: UnitOfWork) -> model.StoredAnnouncement:
        """Store an announcement in a transaction. Raises IntentContended, and the errors of recording."""
        intent, feedback, shared_vector = write.intent, write.feedback, write.shared_vector
        # Lock order: settling, recording and citing may wait for the global write lock, and inserting the intent takes
        # its revision lock. The other way round, a server could hold an intent's lock while it waits for a server that
        # wants it.
        outcome = write.settle(unit_of_work)
        is_answered = not isinstance(outcome, Exception)
        written = write.record(unit_of_work) if write.record is not None and allowed_by(outcome) else None
        if self._records.citations is not None and is_answered:
            cited = [match.decision for match in feedback.similar]
            self._records.citations.cite(unit_of_work, intent.agent, intent.correlation_id, intent.claimed_url, cited)
        stored = self._records.intents.insert_or_get(unit_of_work, intent)
        if shared_vector is not None and is_answered:
            # A repetition too, whose verdict may be another one.
            self._related.store(unit_of_work, model.SharedIntent(stored, shared_vector, allowed_by(outcome)))
        elif stored.revision > 1:
            self._related.note_withdrawal(unit_of_work, stored.key)
        entry = announcement_entry(
            intent, stored.revision, write.request_id, feedback, outcome, with_content=self._settings.stores_content
        )
        if written is not None:
            entry = replace(entry, decision_id=written.result.id)
        self._records.sink.append(unit_of_work, entry)
        return model.StoredAnnouncement(stored, outcome, written)

    def _build_intent(self, announcement: model.Announcement, caller: str, received_at: datetime) -> model.Intent:
        kept = announcement if self._settings.stores_content else None
        return model.Intent(
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
    return verdict.allowed if isinstance(verdict, Verdict) else None


def announcement_entry(
    intent: model.Intent,
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


def action_from_announcement(
    announcement: model.Announcement, acting: ActingAgent, code: model.CodeContext | None, intents: IntentFacts
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
        invocation=announcement.invocation,
    )
