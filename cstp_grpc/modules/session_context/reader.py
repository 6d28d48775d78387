"""Reads the context for an agent that starts a session, from the modules that have it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice, zip_longest
from typing import Any, Final

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.caller import Caller
from cstp_grpc.contract.enums import DecisionStatus, Enforcement, Outcome, Severity
from cstp_grpc.contract.errors import error_reason
from cstp_grpc.core.audit.model import AuditEntry, AuditEvent, AuditSink, truncate_action
from cstp_grpc.core.decisions.journal_reader import JournalReader
from cstp_grpc.core.decisions.model import SUMMARY_TAG, Decision, DecisionFilter
from cstp_grpc.core.decisions.topic_summaries import list_cited
from cstp_grpc.core.guardrails.rules_in_force import ListedGuardrail, ListedInput, RulesInForce
from cstp_grpc.core.intents.model import CodeContext, CodeContextReader
from cstp_grpc.core.intents.related_intents import IntentSubject, RelatedIntent, RelatedIntents
from cstp_grpc.modules.calibration.confidence_records import ConfidenceRecords
from cstp_grpc.modules.calibration.scores import bucket_bounds
from cstp_grpc.modules.session_context import model
from cstp_grpc.modules.session_context.token_budget import fit_to_budget
from cstp_grpc.platform.embedding.embedder import Embedder
from cstp_grpc.platform.storage.pagination import PageRequest

MAX_DECISIONS: Final = 20
"""Maximum number of decisions that are due, failed or recent, each."""
MAX_DUE_READ: Final = 200
"""Due decisions among which the longest due are looked for."""
MAX_REVIEWED_READ: Final = 200
"""Reviewed decisions among which lessons are looked for, the latest."""
MAX_LESSONS: Final = 30
MAX_SUMMARIES: Final = 10
MAX_SUMMARIES_READ: Final = 100
"""Summaries whose decisions are not listed themselves, the latest."""
MAX_LESSONS_OF_CATEGORY: Final = 5
MAX_ITEMS: Final[Mapping[model.SessionContextPart, int]] = {
    model.SessionContextPart.GUARDRAILS: 50,
    model.SessionContextPart.INPUTS: 50,
    model.SessionContextPart.CALIBRATION: 20,
    model.SessionContextPart.RELATED_INTENTS: 10,
    model.SessionContextPart.CODE: 40,
}
"""Maximum number of items of the other parts. Chosen: more than a model reads before it starts."""

CURRENT: Final = (DecisionStatus.PROPOSED, DecisionStatus.DECIDED, DecisionStatus.REVIEWED)
"""The states of decisions that are not superseded."""
NO_SUCCESS: Final = frozenset({Outcome.FAILURE, Outcome.PARTIAL, Outcome.ABANDONED})
SEVERITY_ORDER: Final = (Severity.BLOCK, Severity.APPROVE, Severity.WARN)
NO_PROJECTS: Final = "code: the Intent Layer is left out of this server"
ROOT: Final = "."


@dataclass(frozen=True, slots=True)
class SessionSources:
    """The sources of a session context; `code` is None without the Intent Layer."""

    decisions: JournalReader
    rules: RulesInForce
    records: ConfidenceRecords
    intents: RelatedIntents
    embedder: Embedder
    code: CodeContextReader | None


class SessionContextReader:
    """Reads session contexts; each agent gets only items that it may read."""

    def __init__(self, sources: SessionSources, sink: AuditSink, clock: Callable[[], datetime]) -> None:
        """Read from `sources`; reading nodes is recorded in `sink` before it is answered, as by the Intent Layer."""
        self._sources = sources
        self._sink = sink
        self._clock = clock

    def read(self, request: model.SessionContextRequest, caller: Caller) -> model.FittedContext:
        """Return the context of a caller, cut to its budget.

        Raises QueryFailed, Unavailable if the reading cannot be recorded, NotFound for an unknown project and
        InvalidArgument for a path that leaves it.
        """
        now = self._clock()
        # First, since it refuses requests without a project.
        code = self._read_code(request, caller, now)
        found = FoundDecisions.read(self._sources.decisions, caller.reader, request.project)
        rules = self._sources.rules.current.listing.guardrails_for(caller.agent, request.project, now)
        others: dict[model.SessionContextPart, Sequence[Any]] = {
            model.SessionContextPart.GUARDRAILS: sorted(rules, key=rule_rank),
            model.SessionContextPart.INPUTS: self._find_inputs(rules),
            model.SessionContextPart.CALIBRATION: self._read_meanings(caller.reader),
            model.SessionContextPart.RELATED_INTENTS: self._find_intents(request, caller),
            model.SessionContextPart.CODE: order_notes(code) if code else [],
        }
        kept = {part.value: tuple(items[: MAX_ITEMS[part]]) for part, items in others.items()}
        context = model.SessionContext(
            agent=caller.agent,
            read_at=now,
            reviews_due=found.due,
            failures=found.failures,
            recent=found.recent,
            lessons=found.lessons,
            summaries=found.summaries,
            unread=found.unread | {part for part, items in others.items() if len(items) > MAX_ITEMS[part]},
            missing=self._describe_missing(request, code),
            **kept,
        )
        return fit_to_budget(context, request.max_tokens)

    def _describe_missing(self, request: model.SessionContextRequest, code: CodeContext | None) -> tuple[str, ...]:
        """Return the parts that could not be read, and requested parts of a module that is disabled."""
        if self._sources.code is None and (request.paths or request.project is not None):
            return (NO_PROJECTS,)
        return code.missing if code else ()

    def _read_code(self, request: model.SessionContextRequest, caller: Caller, now: datetime) -> CodeContext | None:
        """Return the code context of the paths, or of the root of a project named alone; None if neither is named."""
        reader = self._sources.code
        paths = request.paths or ((ROOT,) if request.project is not None else ())
        if reader is None or not paths:
            return None
        try:
            code = reader.read_context(request.project, paths)
        except Exception as failure:
            self._record_reading(request.project, paths, caller, now, error_reason(failure))
            raise
        # Before it is answered: a reading whose record cannot be stored fails.
        self._record_reading(code.project if code else None, paths, caller, now)
        return code

    def _record_reading(
        self, project: str | None, paths: Sequence[str], caller: Caller, now: datetime, error: str | None = None
    ) -> None:
        """Record that nodes were read, as the Intent Layer records its own readings."""
        entry = AuditEntry(
            timestamp=now,
            event=AuditEvent.CONTEXT_READ,
            requesting_agent=caller.agent,
            request_id=caller.request_id,
            action=truncate_action(f"start session in {project or 'the only project'}: {', '.join(paths)}"),
            error=error,
        )
        self._sink.record(entry)

    def _find_inputs(self, rules: Sequence[ListedGuardrail]) -> list[ListedInput]:
        """Return the inputs that rules read: required ones first, then those that most rules read."""
        names = {name for rule in rules for name in rule.inputs}
        found = (each for each in self._sources.rules.current.listing.inputs if each.declared.name in names)
        return sorted(found, key=lambda each: (not each.declared.is_required, -len(each.guardrail_ids)))

    def _read_meanings(self, agent: str) -> list[model.ConfidenceMeaning]:
        """Return the meaning of an agent's confidences: misleading ones first, then by number of decisions."""
        records = self._sources.records
        record = records.current_record(agent) or records.read_record(agent)
        meanings = [
            model.ConfidenceMeaning(
                category, bucket_bounds(number)[0], item.count, item.success_rate, item.is_misleading
            )
            for (category, number), item in record.buckets.items()
        ]
        return sorted(meanings, key=lambda item: (not item.is_misleading, -item.count, item.category or "", item.lower))

    def _find_intents(self, request: model.SessionContextRequest, caller: Caller) -> list[RelatedIntent]:
        """Return the intents of others that resemble the task, or recent ones without a task."""
        sources = self._sources
        if request.task is None:
            return sources.intents.list_recent(caller.agent, caller.reader, request.project, request.paths)
        (vector,) = sources.embedder.embed([request.task])
        return sources.intents.find(IntentSubject(vector, caller.agent, caller.reader, request.project, request.paths))


@dataclass(frozen=True, slots=True)
class FoundDecisions:
    """The decisions of a session context, each in one part only; `unread` are the parts that have further ones."""

    due: tuple[Decision, ...]
    failures: tuple[Decision, ...]
    lessons: tuple[Decision, ...]
    recent: tuple[Decision, ...]
    summaries: tuple[Decision, ...]
    unread: frozenset[model.SessionContextPart]

    @classmethod
    def read(cls, decisions: JournalReader, reader: str, project: str | None) -> FoundDecisions:
        """Read the decisions for a reader, those of a project first. Raises QueryFailed."""
        own, failed = DecisionFilter(agent=reader, status=CURRENT), (Outcome.FAILURE,)
        due = decisions.page(reader, DecisionFilter(), PageRequest(MAX_DUE_READ), review_due=True)
        failures = decisions.page(reader, DecisionFilter(agent=reader, outcome=failed), PageRequest(2 * MAX_DECISIONS))
        latest = decisions.page(reader, own, PageRequest(4 * MAX_DECISIONS))
        reviewed = decisions.page(reader, DecisionFilter(outcome=tuple(Outcome)), PageRequest(MAX_REVIEWED_READ))
        tagged = DecisionFilter(tags=(SUMMARY_TAG,), status=CURRENT)
        summaries = decisions.page(reader, tagged, PageRequest(MAX_SUMMARIES_READ))
        cited = list_cited(summaries.items) - {(item.agent, item.id) for item in due.items}
        shown: set[str] = set()

        def take(found: Iterable[Decision], most: int) -> tuple[tuple[Decision, ...], bool]:
            """Return the first ones that no part has yet and no summary cites, and whether there are more."""
            new = [item for item in found if item.id not in shown and (item.agent, item.id) not in cited]
            shown.update(item.id for item in new[:most])
            return tuple(new[:most]), len(new) > most

        taken_due, more_due = take(sorted(due.items, key=review_date), MAX_DECISIONS)
        ordered = order_by_project([item for item in summaries.items if item.links.summarizes], project)
        taken_summaries, more_summaries = take(ordered, MAX_SUMMARIES)
        taken_failures, more_failures = take(order_by_project(failures.items, project), MAX_DECISIONS)
        free = (item for item in reviewed.items if item.id not in shown and (item.agent, item.id) not in cited)
        taught = [item for item in free if item.notes]
        categories = dict.fromkeys(item.category for item in latest.items if item.category)
        lessons, more_lessons = take(spread_over_categories(taught, list(categories)), MAX_LESSONS)
        recent, more_recent = take(order_by_project(latest.items, project), MAX_DECISIONS)
        unread = {
            model.SessionContextPart.REVIEWS_DUE: more_due or bool(due.next_token),
            model.SessionContextPart.FAILURES: more_failures or bool(failures.next_token),
            model.SessionContextPart.LESSONS: more_lessons or bool(reviewed.next_token),
            model.SessionContextPart.RECENT: more_recent or bool(latest.next_token),
            model.SessionContextPart.SUMMARIES: more_summaries or bool(summaries.next_token),
        }
        parts = frozenset(part for part, has_more in unread.items() if has_more)
        return cls(taken_due, taken_failures, lessons, recent, taken_summaries, parts)


def review_date(item: Decision) -> datetime:
    """Return when a decision is to be reviewed; the end of time if that is not known."""
    return item.review_by or datetime.max.replace(tzinfo=UTC)


def order_by_project(items: Sequence[Decision], project: str | None) -> list[Decision]:
    """Return decisions with those of a project first, otherwise in their order."""
    return sorted(items, key=lambda item: project is not None and item.project != project)


def spread_over_categories(items: Iterable[Decision], first: Sequence[str]) -> list[Decision]:
    """Return decisions with one of each category, then a second one of each, and so on, at most five.

    The categories in `first` come first, then those with most lessons; of a category those without success, then the
    latest.
    """
    of_category: defaultdict[str | None, list[Decision]] = defaultdict(list)
    for item in items:
        of_category[item.category].append(item)
    ranks = {category: rank for rank, category in enumerate(first)}
    ordered = sorted(
        of_category, key=lambda name: (ranks.get(name or "", len(ranks)), -len(of_category[name]), name or "")
    )
    columns = [
        islice(sorted(of_category[name], key=lambda item: item.outcome not in NO_SUCCESS), MAX_LESSONS_OF_CATEGORY)
        for name in ordered
    ]
    return [item for row in zip_longest(*columns) for item in row if item is not None]


def rule_rank(item: ListedGuardrail) -> tuple[bool, int]:
    """Return the key by which rules are ordered: enforced ones first, then those that block."""
    rule = item.guardrail
    return rule.enforcement is not Enforcement.ENFORCE, SEVERITY_ORDER.index(rule.severity)


def order_notes(code: CodeContext) -> list[model.GoverningNote]:
    """Return the notes of the sections that bind, those of the nearest node first."""
    depth = {file: number for number, file in enumerate(code.nodes)}
    sections = (
        ("Contracts", code.contracts),
        ("Boundaries", code.boundaries),
        ("Pitfalls", code.pitfalls),
        ("Checks", code.checks),
        ("Introduction", code.introduction),
    )
    notes = [model.GoverningNote(name, note) for name, found in sections for note in found]
    return sorted(notes, key=lambda item: depth.get(item.note.file, 0), reverse=True)
