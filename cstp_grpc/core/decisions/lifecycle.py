"""The life cycle of a decision: normal form, identifiers and hashes, status, reviews, and imports."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from cstp_grpc.common.lazy_dataclass import asdict, dataclass, field, fields, replace
from cstp_grpc.common.unicode_text import replace_unstorable
from cstp_grpc.contract.enums import DecisionStatus, Outcome, Visibility
from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.core.decisions import model
from cstp_grpc.core.decisions.sql_store import SqlDecisionStore
from cstp_grpc.core.decisions.store import DeclaredLinks, JournalEntry

MAX_LINKS_OF_KIND = 100
"""Links of one kind from a decision. Chosen: as many as the contract takes when a decision is recorded."""


def new_decision_id() -> str:
    # 80 bits: an id is not a credential, but must not be found by trying.
    return f"dec-{secrets.token_hex(10)}"


def decision_id_for_source(agent: str, source: str) -> str:
    # As long as a random id. From agent and source alone, so that importing a file again finds its decision.
    return f"dec-{hash_canonical_json([agent, source])[:20]}"


def hash_content(content: model.DecisionContent, links: model.Links, superseded_by: tuple[str, ...] = ()) -> str:
    """Return the SHA-256, in hexadecimal, of a normalized content and its links.

    Absent and empty values are left out, so that a field added to the contract later changes no existing hash.
    """
    fields = {**asdict(content), **asdict(links), "superseded_by": superseded_by}
    return hash_canonical_json({name: value for name, value in fields.items() if value not in (None, ())})


def hash_canonical_json(value: object) -> str:
    """Return the SHA-256, in hexadecimal, of the canonical JSON of a value that may contain instants."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=datetime.isoformat)
    return hashlib.sha256(text.encode()).hexdigest()


def normalize_content(content: model.DecisionContent) -> model.DecisionContent:
    """Return a content in the form in which it is stored, so that equal decisions have equal hashes.

    Empty texts become None, tags are unique, the date is in UTC, and characters that no database stores are replaced by
    U+FFFD.
    """
    return replace(
        content,
        title=replace_unstorable(content.title),
        context=normalize_optional_text(content.context),
        category=normalize_optional_text(content.category),
        confidence=None if content.confidence is None else float(content.confidence),
        date=None if content.date is None else content.date.astimezone(UTC),
        notes=normalize_optional_text(content.notes),
        reasons=tuple(normalize_reason(reason) for reason in content.reasons),
        tags=tuple(dict.fromkeys(replace_unstorable(tag) for tag in content.tags)),
        project=normalize_optional_text(content.project),
        review_by=None if content.review_by is None else content.review_by.astimezone(UTC),
    )


def normalize_reason(reason: model.Reason) -> model.Reason:
    strength = None if reason.strength is None else float(reason.strength)
    return model.Reason(replace_unstorable(reason.type), replace_unstorable(reason.text), strength)


def normalize_optional_text(text: str | None) -> str | None:
    """Return a text with unstorable characters replaced; None if it is empty."""
    return replace_unstorable(text) if text else None


def normalize_links(links: model.Links) -> model.Links:
    """Return links in the form in which they are stored: sorted by id, each once."""
    return convert_links(links, sorted_unique_ids)


def convert_links(links: model.Links, convert: Callable[[tuple[str, ...]], Iterable[str]]) -> model.Links:
    return model.Links(*(tuple(convert(getattr(links, kind.value))) for kind in model.LinkType))


def sorted_unique_ids(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(map(replace_unstorable, ids))))


def initial_status(content: model.DecisionContent) -> DecisionStatus:
    if content.status is not None:
        return content.status
    return DecisionStatus.DECIDED if content.outcome is None else DecisionStatus.REVIEWED


def with_status(entry: JournalEntry, *, superseded: bool) -> JournalEntry:
    """Return an entry with the status that follows from its content, its review and its links.

    `superseded` means that another decision of the same agent supersedes it. That overrides a review, and a review
    overrides the stated status.
    """
    status = entry.stated_status
    if superseded:
        status = DecisionStatus.SUPERSEDED
    elif entry.decision.reviewed_date is not None and status is not DecisionStatus.SUPERSEDED:
        status = DecisionStatus.REVIEWED
    return replace(entry, decision=replace(entry.decision, status=status))


STATED_FIELDS = tuple(field.name for field in fields(model.DecisionContent))
"""The fields of a content, which a decision has, too."""


def new_entry(
    decision_id: str,
    content: model.DecisionContent,
    content_hash: str,
    agent: str,
    at: datetime,
    *,
    source: str | None = None,
) -> JournalEntry:
    """Return the entry of a decision that is added to the journal at `at`, its default date."""
    status = initial_status(content)
    stated = {name: getattr(content, name) for name in STATED_FIELDS}
    decision = model.Decision(
        id=decision_id, agent=agent, source=source, **{**stated, "status": status, "date": content.date or at}
    )
    return JournalEntry(decision, status, content_hash)


def apply_import(entry: JournalEntry, content: model.DecisionContent, content_hash: str) -> JournalEntry:
    """Return an imported decision with new content from its source.

    The source wins for everything it states. Changes made here are kept: the visibility is that of the first import
    unless the owner changed it; a review (outcome, notes and reviewed date together) is kept until the source itself
    states an outcome, which then replaces the whole review. A source without a date keeps the present one.
    """
    present = entry.decision
    fresh = new_entry(present.id, content, content_hash, present.agent, present.date, source=present.source)
    decision = replace(fresh.decision, visibility=present.visibility, links=present.links)
    if content.outcome is None and present.reviewed_date is not None:
        decision = replace(decision, outcome=present.outcome, notes=present.notes, reviewed_date=present.reviewed_date)
    return with_status(replace(fresh, decision=decision), superseded=present.status is DecisionStatus.SUPERSEDED)


UPDATABLE_FIELDS = frozenset(STATED_FIELDS) - {"outcome", "notes", "visibility"}
"""The fields of a content that an update may change; reviews and sharing change the others."""

REQUIRED_FIELDS = frozenset({"title", "status", "date"})
"""The fields that an update cannot remove."""


def content_of(entry: JournalEntry) -> model.DecisionContent:
    stated = {name: getattr(entry.decision, name) for name in STATED_FIELDS}
    return model.DecisionContent(**{**stated, "status": entry.stated_status})


def has_same_content(before: JournalEntry, after: JournalEntry) -> bool:
    """Return True if two entries have the same content; their visibility may differ."""
    return replace(content_of(before), visibility=after.decision.visibility) == content_of(after)


def apply_update(entry: JournalEntry, changes: model.DecisionContent, names: Iterable[str]) -> JournalEntry:
    """Return an entry with the named fields of `changes`.

    Raises InvalidArgument if a name is not in UPDATABLE_FIELDS, or a required field has no value.
    """
    new = normalize_content(changes)
    values = {name: getattr(new, name) for name in names if is_updatable(name, new)}
    status = values.pop("status", entry.stated_status)
    present = entry.decision
    after = replace(entry, decision=replace(present, **values), stated_status=status)
    return with_status(after, superseded=present.status is DecisionStatus.SUPERSEDED)


def draft_values(changes: model.DecisionContent, names: Sequence[str]) -> dict[str, Any]:
    """Return the fields of an update that are part of the passages."""
    new = normalize_content(changes)
    return {name: getattr(new, name) for name in ("title", "context", "notes", "outcome") if name in names}


def is_updatable(name: str, changes: model.DecisionContent) -> bool:
    """Return True if an update may set a field as `changes` has it. Raises InvalidArgument if not."""
    if name not in UPDATABLE_FIELDS:
        raise InvalidArgument.field("update_mask", f"{name} cannot be updated")
    if name in REQUIRED_FIELDS and getattr(changes, name) in (None, ""):
        raise InvalidArgument.field(f"changes.{name}", "must be given, because the mask names it")
    return True


def review_of(decision: model.Decision, reviewer: str) -> model.DecisionReview:
    assert decision.outcome is not None, "a review sets it"
    assert decision.reviewed_date is not None, "a review sets it"
    return model.DecisionReview(reviewer, decision.outcome, decision.reviewed_date, decision.notes, decision.confidence)


def apply_review(entry: JournalEntry, outcome: Outcome, notes: str | None, at: datetime) -> JournalEntry:
    """Return a reviewed decision; lesson None keeps the present one, an empty lesson removes it."""
    present = entry.decision
    lesson = present.notes if notes is None else notes or None
    decision = replace(present, outcome=outcome, notes=lesson, reviewed_date=at)
    return with_status(replace(entry, decision=decision), superseded=present.status is DecisionStatus.SUPERSEDED)


def with_lesson(decision: model.Decision, outcome: Outcome, lesson: str | None) -> model.Decision:
    """Return a decision with the outcome and lesson of a review; lesson None keeps the present one."""
    return replace(decision, outcome=outcome, notes=decision.notes if lesson is None else lesson or None)


def redact_for_reader(decision: model.Decision, caller: str, readable: Container[str]) -> model.Decision:
    """Return a readable decision without the parts that the caller may not read.

    Another agent's decision has no context, texts of reasons, source and date of review, and only links to `readable`
    decisions: the id of a private one would reveal that it exists.
    """
    if decision.agent == caller:
        return decision
    reasons = tuple(model.Reason(reason.type, strength=reason.strength) for reason in decision.reasons)
    links = convert_links(decision.links, lambda ids: (key for key in ids if key in readable))
    return replace(decision, context=None, reasons=reasons, source=None, links=links, review_by=None)


def redact_decisions(
    store: SqlDecisionStore, decisions: Sequence[model.Decision], caller: str
) -> tuple[model.Decision, ...]:
    """Return readable decisions without the parts that the caller may not read. Raises QueryFailed."""
    others = [item.links for item in decisions if item.agent != caller]
    targets = {key for links in others for key in (*links.supersedes, *links.depends_on, *links.relates_to)}
    readable = store.get_readable(sorted(targets), caller, model.DecisionFilter())
    return tuple(redact_for_reader(item, caller, readable) for item in decisions)


def links_from(decision_id: str, links: model.Links) -> list[model.DecisionLink]:
    return [
        model.DecisionLink(decision_id, kind, other) for kind in model.LinkType for other in getattr(links, kind.value)
    ]


def check_linkable(
    decision: model.Decision, added: Sequence[model.DecisionLink], removed: Sequence[model.DecisionLink]
) -> None:
    """Raise InvalidArgument if a decision would be linked to itself, or would get too many links of a kind."""
    for kind in model.LinkType:
        targets = {link.to_id for link in added if link.type is kind}
        field = f"add.{kind.value}"
        if decision.id in targets:
            raise InvalidArgument.field(field, "must not name the decision itself")
        present = set(getattr(decision.links, kind.value))
        kept = present - {link.to_id for link in removed if link.type is kind}
        # An import may have given it more; adding nothing new is not an error then.
        if len(kept | targets) > MAX_LINKS_OF_KIND and targets - present:
            raise InvalidArgument.field(field, f"would give the decision more than {MAX_LINKS_OF_KIND} such links")


@dataclass(frozen=True, slots=True)
class ImportCandidate:
    """An import record with its decision id; its links refer to decisions by id."""

    record: model.ImportRecord
    decision_id: str
    content: model.DecisionContent
    content_hash: str
    declaration: DeclaredLinks


@dataclass(slots=True)
class ImportPlan:
    """The plan of an import: a result per record, each change, and the entries and links to store, by id."""

    results: list[model.ImportResult] = field(default_factory=list)
    changes: list[model.Decision] = field(default_factory=list)
    entries: dict[str, JournalEntry] = field(default_factory=dict)
    declarations: dict[str, DeclaredLinks] = field(default_factory=dict)


def make_import_candidate(record: model.ImportRecord, agent: str) -> ImportCandidate:
    """Return a record in the form in which it is stored for an agent.

    Its hash leaves out the visibility, because only that of the first import counts.
    """
    content = normalize_content(record.content)
    decision_id = decision_id_for_source(agent, replace_unstorable(record.source))
    declared = resolve_links(record, decision_id, agent)
    hidden = replace(content, visibility=Visibility.PRIVATE)
    return ImportCandidate(
        record, decision_id, content, hash_content(hidden, declared.links, declared.superseded_by), declared
    )


def resolve_links(record: model.ImportRecord, decision_id: str, agent: str) -> DeclaredLinks:
    """Return the links of a record by decision id, without links to itself."""

    def ids(sources: Iterable[str]) -> tuple[str, ...]:
        return sorted_unique_ids(
            {decision_id_for_source(agent, replace_unstorable(source)) for source in sources} - {decision_id}
        )

    links = record.links
    return DeclaredLinks(
        decision_id,
        model.Links(ids(links.supersedes), ids(links.depends_on), ids(links.relates_to)),
        superseded_by=ids(links.superseded_by),
    )


def plan_import(
    candidates: Iterable[ImportCandidate],
    known: Mapping[str, JournalEntry],
    deleted: Container[str],
    agent: str,
    at: datetime,
) -> ImportPlan:
    """Return the plan for importing candidates one after the other over the existing entries, by id.

    `deleted` are the ids of deleted decisions, which stay deleted unless a record restores them.
    """
    merged = ImportPlan()
    for item in candidates:
        if item.decision_id in deleted and item.decision_id not in merged.entries and not item.record.restore_deleted:
            merged.results.append(model.ImportResult(item.record.source, model.ImportAction.DELETED, item.decision_id))
            continue
        # An earlier record of the same import may have had the same source.
        present = merged.entries.get(item.decision_id) or known.get(item.decision_id)
        if present is None:
            action = model.ImportAction.IMPORTED
            source = replace_unstorable(item.record.source)
            entry = new_entry(item.decision_id, item.content, item.content_hash, agent, at, source=source)
        elif present.content_hash == item.content_hash:
            action = model.ImportAction.UNCHANGED
            entry = present
        else:
            action = model.ImportAction.UPDATED
            entry = apply_import(present, item.content, item.content_hash)
        if action is not model.ImportAction.UNCHANGED:
            merged.changes.append(entry.decision)
            merged.entries[item.decision_id] = entry
            merged.declarations[item.decision_id] = item.declaration
        merged.results.append(model.ImportResult(item.record.source, action, item.decision_id))
    return merged
