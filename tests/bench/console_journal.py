"""A journal for the console: decisions of a year, and a month of audit entries with their intents and approvals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from cstp_grpc.contract.enums import ApprovalStatus, DecisionStatus, Outcome, Stakes, Visibility
from cstp_grpc.core.audit.model import AuditEntry, AuditEvent, JudgedAction
from cstp_grpc.core.audit.sql_trail import SqlAuditTrail
from cstp_grpc.core.decisions.model import Decision, Links
from cstp_grpc.core.decisions.store import JournalEntry
from cstp_grpc.core.intents.model import Intent, IntentClosing
from cstp_grpc.core.intents.sql_store import SqlIntentStore
from cstp_grpc.modules.approvals.model import Approval, ApprovalSubject, AskingGuardrail
from cstp_grpc.modules.approvals.sql_store import SqlApprovalStore
from cstp_grpc.platform import config
from cstp_grpc.platform.storage.database import open_database
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.bench import corpus
from tests.bench.synthetic_decisions import CATEGORIES, TAGS, decision_id, made_word

AGENTS = tuple(f"agent-{number:02}" for number in range(20))
PROJECTS = ("shop", "search", "billing", "mobile", "platform")
RULES = tuple(f"rule-{number:02}" for number in range(40))
DAYS_OF_DECISIONS = 365
DAYS_OF_ENTRIES = 30
OPEN_INTENT_STEP = 20
"""Each intent whose number this divides is still open."""
PENDING_STEP = 10
"""Likewise for approvals that are still pending."""
BATCH = 2_000
"""Entries of one transaction."""

KINDS = (AuditEvent.INTENT_ANNOUNCED,) * 4 + (
    AuditEvent.INTENT_CLOSED,
    AuditEvent.DECISION_RECORDED,
    AuditEvent.DECISION_REVIEWED,
    AuditEvent.APPROVAL_REQUESTED,
    AuditEvent.APPROVAL_GRANTED,
    AuditEvent.CALLS_REFUSED,
)
"""The events of the first ten of each hundred entries; the others are checks."""
STAKES = tuple(Stakes)


@dataclass
class Records:
    """Entries of one transaction, and what they are about."""

    entries: list[AuditEntry] = field(default_factory=list)
    intents: list[Intent] = field(default_factory=list)
    approvals: list[tuple[Approval, datetime]] = field(default_factory=list)


def make_decision(number: int, count: int, now: datetime) -> JournalEntry:
    """Return one of `count` decisions of the last year; seven of ten are reviewed, and a third are linked."""
    at = now - timedelta(days=DAYS_OF_DECISIONS) * (1 - number / count)
    outcomes = (Outcome.SUCCESS, Outcome.FAILURE, Outcome.SUCCESS, Outcome.PARTIAL)
    reviewed = number % 10 < 7
    decision = Decision(
        id=decision_id(number),
        title=f"{made_word(number)} {made_word(number * 7919 + 13)}",
        status=DecisionStatus.REVIEWED if reviewed else DecisionStatus.DECIDED,
        date=at,
        agent=AGENTS[number % len(AGENTS)],
        visibility=Visibility.SHARED if number % 4 else Visibility.PRIVATE,
        category=CATEGORIES[number % len(CATEGORIES)],
        stakes=STAKES[number % len(STAKES)],
        confidence=number % 101 / 100,
        outcome=outcomes[number // 10 % len(outcomes)] if reviewed else None,
        reviewed_date=at if reviewed else None,
        tags=(f"tag-{number % TAGS}",),
        project=PROJECTS[number % len(PROJECTS)],
        links=Links(depends_on=(decision_id(number - 1),)) if number % 3 == 1 else Links(),
        review_by=None if reviewed else at + timedelta(days=30),
    )
    return JournalEntry(decision, DecisionStatus.DECIDED, content_hash="")


def write_trail(data_dir: Path, count: int, now: datetime) -> None:
    """Add `count` audit entries of the last month to the journal of a data folder, with intents and approvals."""
    settings = config.load_settings(None, data_dir=data_dir)
    database = open_database(settings.storage_url, settings.storage.pool_size)
    writer = GroupCommitWriter(database, 600)
    try:
        trail, intents, approvals = (
            SqlAuditTrail(database, writer),
            SqlIntentStore(database),
            SqlApprovalStore(database),
        )

        def insert(records: Records, unit_of_work: UnitOfWork) -> None:
            for intent in records.intents:
                intents.insert_or_get(unit_of_work, replace(intent, closing=None))
                if intent.closing is not None:
                    intents.close(unit_of_work, intent.key, intent.closing)
            for approval, at in records.approvals:
                approvals.add(unit_of_work, approval, at)

        for records in make_records(count, now):
            trail.submit(*records.entries).result()
            writer.run(partial(insert, records))
    finally:
        writer.close()
        database.close()


def make_records(count: int, now: datetime) -> Iterator[Records]:
    """Yield entries in the order of time, in batches."""
    texts = corpus.decisions(count)
    step = timedelta(days=DAYS_OF_ENTRIES) / count
    records = Records()
    for number in range(count):
        add_entry(records, number, now - (count - number) * step, next(texts).decision.title, now)
        if len(records.entries) == BATCH:
            yield records
            records = Records()
    yield records


def add_entry(records: Records, number: int, at: datetime, action: str, now: datetime) -> None:
    """Add the entry with a number, and the intent or the approval that it begins."""
    hundred, place = divmod(number, 100)
    event = KINDS[place] if place < len(KINDS) else AuditEvent.GUARDRAIL_CHECK
    agent = AGENTS[(hundred + place) % len(AGENTS)]
    entry = AuditEntry(at, event, agent, f"request-{number}", action=action)
    judged = JudgedAction(
        CATEGORIES[number % len(CATEGORIES)],
        STAKES[number // 3 % len(STAKES)],
        number % 101 / 100,
        {"affectedRows": number % 5_000, "production": number % 7 == 0},
        PROJECTS[number % len(PROJECTS)],
    )
    match event:
        case AuditEvent.GUARDRAIL_CHECK:
            entry = with_verdict(entry, number, judged)
        case AuditEvent.INTENT_ANNOUNCED:
            correlation = correlation_of(hundred, place)
            entry = replace(with_verdict(entry, number, judged), correlation_id=correlation)
            records.intents.append(make_intent(entry, hundred * 4 + place))
        case AuditEvent.INTENT_CLOSED:
            entry = replace(entry, correlation_id=correlation_of(hundred, 0), action=None)
        case AuditEvent.DECISION_RECORDED | AuditEvent.DECISION_REVIEWED:
            entry = replace(entry, correlation_id=correlation_of(hundred, 0), decision_id=decision_id(hundred))
        case AuditEvent.APPROVAL_REQUESTED:
            entry = replace(entry, approval_id=approval_of(hundred), correlation_id=correlation_of(hundred, 0))
            records.approvals.append((make_approval(entry, judged, hundred, now), at))
        case AuditEvent.APPROVAL_GRANTED:
            entry = replace(entry, approval_id=approval_of(hundred), correlation_id=correlation_of(hundred, 0))
        case _:
            entry = replace(entry, action=None, error="RATE_LIMITED", count=number % 50 + 1, first_at=at, last_at=at)
    records.entries.append(entry)


def with_verdict(entry: AuditEntry, number: int, judged: JudgedAction) -> AuditEntry:
    """Return the entry of a check: one in ten is blocked, and as many are warned."""
    rules = (RULES[number // 10 % len(RULES)],)
    return replace(
        entry,
        allowed=number % 10 != 0,
        violations=rules if number % 10 == 0 else (),
        warnings=rules if number % 10 == 1 else (),
        evaluated=len(RULES),
        rule_set_version="bench",
        judged=judged,
    )


def correlation_of(hundred: int, place: int) -> str:
    return f"correlation-{hundred}-{place}"


def approval_of(hundred: int) -> str:
    return f"apr-{hundred:08}"


def make_intent(entry: AuditEntry, number: int) -> Intent:
    """Return the intent that an entry announced; most are closed within the hour."""
    assert entry.judged is not None
    assert entry.correlation_id is not None
    closing = IntentClosing(entry.timestamp + timedelta(minutes=30), Outcome.SUCCESS)
    return Intent(
        entry.requesting_agent,
        entry.correlation_id,
        content_hash=f"{number:064x}",
        received_at=entry.timestamp,
        intent=entry.action,
        category=entry.judged.category,
        stakes=entry.judged.stakes,
        confidence=entry.judged.confidence,
        metadata=entry.judged.context,
        project=entry.judged.project,
        visibility=Visibility.SHARED,
        closing=closing if number % OPEN_INTENT_STEP else None,
    )


def make_approval(entry: AuditEntry, judged: JudgedAction, number: int, now: datetime) -> Approval:
    """Return the approval that an entry requested: pending until tomorrow, or granted by a person."""
    assert entry.approval_id is not None
    assert entry.action is not None
    approval = Approval(
        entry.approval_id,
        f"{number:064x}",
        entry.requesting_agent,
        ApprovalSubject(judged.stakes, judged.category, judged.confidence, entry.action, judged.project),
        (AskingGuardrail(RULES[number % len(RULES)], "Production needs a person", "Ask a person first"),),
        entry.timestamp,
        now + timedelta(days=1),
        check_id=entry.request_id,
        rule_set_version="bench",
        correlation_id=entry.correlation_id,
    )
    if number % PENDING_STEP:
        decided = entry.timestamp + timedelta(minutes=5)
        return replace(approval, status=ApprovalStatus.GRANTED, decided_by="lead", decided_at=decided)
    return approval


def latest_hundred(count: int) -> int:
    """Return the number of a hundred of entries that has an approval which is pending."""
    return (count // 100 - 1) // PENDING_STEP * PENDING_STEP


def utc_now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
