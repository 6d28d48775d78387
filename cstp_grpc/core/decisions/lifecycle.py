"""The life cycle of a decision: normal form, identifiers and hashes, status, reviews, and imports."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from cstp_grpc.common.lazy_dataclass import asdict, dataclass, field, fields, replace
from cstp_grpc.common.unicode_text import replace_unstorable
from cstp_grpc.contract.enums import DecisionStatus, Outcome, Visibility
from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.core.decisions import model
from cstp_grpc.core.decisions.sql_store import SqlDecisionStore
from cstp_grpc.core.decisions.store import DeclaredLinks, JournalEntry
from cstp_grpc.core.decisions.topic_summaries import is_faithful

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


MAX_AHEAD = timedelta(days=1)
"""How far ahead the clock of another journal may be. Chosen: a wrong one must neither win nor defer expiry for long."""
TICK = timedelta(microseconds=1)
"""The shortest time that databases and messages distinguish."""


def next_change(entry: JournalEntry, at: datetime) -> datetime:
    """Return the instant of a change made at `at`: later than the last change, even if clocks differ."""
    return at if entry.changed_at is None else max(at, entry.changed_at + TICK)


def merge_state(
    candidate: ImportCandidate, identity: model.DecisionIdentity, present: JournalEntry | None, agent: str, at: datetime
) -> JournalEntry | model.ImportAction:
    """Return the entry of a decision of another journal, or why the present one stays.

    The later date of change counts, for the whole state with review and visibility; the present source stays. Links
    are not compared: those that other decisions declare change without that date.
    """
    changed_at = min(identity.provenance.changed_date, at + MAX_AHEAD)
    content = replace(candidate.content, status=identity.provenance.stated_status or candidate.content.status)
    source = replace_unstorable(identity.source or candidate.record.source)
    fresh = new_entry(identity.id, content, candidate.content_hash, agent, at, source=source)
    decision = replace(fresh.decision, reviewed_date=identity.reviewed_date)
    entry = replace(fresh, recorded_at=identity.provenance.recorded_date, changed_at=changed_at)
    if present is None:
        return with_status(replace(entry, decision=decision), superseded=False)
    known = present.decision
    entry = replace(
        entry,
        decision=replace(decision, source=known.source, links=known.links),
        idempotency_key=present.idempotency_key,
    )
    entry = with_status(entry, superseded=known.status is DecisionStatus.SUPERSEDED)
    if present.changed_at is None or changed_at > present.changed_at:
        return entry
    return model.ImportAction.UNCHANGED if entry == present else model.ImportAction.OUTDATED


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
    others = [item for item in decisions if item.agent != caller]
    targets = {link.to_id for item in others for link in links_from(item.id, item.links)}
    readable = store.get_readable(sorted(targets), caller, model.DecisionFilter())
    return tuple(redact_for_reader(item, caller, readable) for item in decisions)


def refuse_summary(entry: JournalEntry) -> None:
    """Raise InvalidArgument if an entry is a summary, which follows from the decisions that it cites."""
    if entry.decision.links.summarizes:
        raise InvalidArgument.field("id", "is a summary; change the decisions that it cites, and compact again")


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
    """The plan of an import: a result per record, and what to store and to delete, by id.

    `origins` says where states of other journals come from.
    """

    results: list[model.ImportResult] = field(default_factory=list)
    changes: list[model.Decision] = field(default_factory=list)
    entries: dict[str, JournalEntry] = field(default_factory=dict)
    declarations: dict[str, DeclaredLinks] = field(default_factory=dict)
    reviews: dict[str, Sequence[model.DecisionReview]] = field(default_factory=dict)
    deletions: dict[str, model.DeletedDecision] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def discard(self, decision_id: str) -> None:
        """Store nothing of a decision."""
        for planned in (self.entries, self.declarations, self.reviews):
            planned.pop(decision_id, None)
        self.changes = [item for item in self.changes if item.id != decision_id]


def make_import_candidate(record: model.ImportRecord, agent: str) -> ImportCandidate:
    """Return a record in the form in which it is stored for an agent.

    Its hash leaves out the visibility, because only that of the first import counts.
    """
    content = normalize_content(record.content)
    if (identity := record.identity) is not None:
        provenance = identity.provenance
        declared = DeclaredLinks(
            identity.id,
            convert_links(provenance.links, lambda ids: sorted_unique_ids(set(ids) - {identity.id})),
            superseded_by=sorted_unique_ids(set(provenance.superseded_by) - {identity.id}),
        )
        content_hash = provenance.content_hash or hash_content(content, declared.links, declared.superseded_by)
        return ImportCandidate(record, identity.id, content, content_hash, declared)
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


@dataclass(frozen=True, slots=True)
class ImportPlanner:
    """Plans the import of an agent over the existing entries and the remains of deleted decisions, by id."""

    known: Mapping[str, JournalEntry]
    deleted: Mapping[str, model.DeletedDecision]
    agent: str
    at: datetime

    def plan(self, candidates: Iterable[ImportCandidate]) -> ImportPlan:
        """Return the plan for importing candidates one after the other.

        Deleted decisions stay deleted unless a record restores them.
        """
        plan = ImportPlan()
        for item in candidates:
            action = self._add(plan, item)
            plan.results.append(model.ImportResult(item.record.source, action, item.decision_id))
        for place, result in enumerate(plan.results):
            if result.decision_id in plan.entries and not self._is_faithful(plan, result.decision_id):
                plan.discard(result.decision_id)
                plan.results[place] = replace(result, action=model.ImportAction.OUTDATED)
        return plan

    def _is_faithful(self, plan: ImportPlan, key: str) -> bool:
        """Return whether a decision that is imported is not a summary, or agrees with the decisions that it cites."""
        links = plan.declarations[key].links
        present = {**self.known, **plan.entries}
        gone = {*plan.deletions, *self.deleted} - plan.entries.keys()
        cited = {each: present[each].decision for each in links.summarizes if each in present}
        summary = replace(plan.entries[key].decision, links=links)
        return gone.isdisjoint(links.summarizes) and is_faithful(summary, cited)

    def _add(self, plan: ImportPlan, item: ImportCandidate) -> model.ImportAction:
        key, identity = item.decision_id, item.record.identity
        # An earlier record of the same import may have had the same source.
        present = plan.entries.get(key) or self.known.get(key)
        if present is not None and present.decision.agent != self.agent:
            return model.ImportAction.REFUSED
        if identity is not None:
            plan.origins[key] = f"{item.record.source}, as of {identity.provenance.changed_date.isoformat()}"
            if identity.is_deleted:
                return self._delete(plan, identity, present)
        remains = None if key in plan.entries else self.deleted.get(key)
        # Security: a stated id must not bring back what another agent, or an erasure, has deleted.
        is_own = identity is None or remains is None or remains.agent == self.agent
        if key in plan.deletions or (remains is not None and not (item.record.restore_deleted and is_own)):
            return model.ImportAction.DELETED
        merged = self._merge(item, present)
        if isinstance(merged, model.ImportAction):
            return merged
        if remains is not None:
            # Otherwise the same deletion, imported again, would count.
            merged = replace(merged, changed_at=max(merged.changed_at or self.at, remains.deleted_at + TICK))
        plan.changes.append(merged.decision)
        plan.entries[key] = merged
        plan.declarations[key] = item.declaration
        if identity is not None:
            plan.reviews[key] = identity.provenance.reviews
        return model.ImportAction.IMPORTED if present is None else model.ImportAction.UPDATED

    def _merge(self, item: ImportCandidate, present: JournalEntry | None) -> JournalEntry | model.ImportAction:
        if item.record.identity is not None:
            return merge_state(item, item.record.identity, present, self.agent, self.at)
        if present is None:
            source = replace_unstorable(item.record.source)
            return new_entry(item.decision_id, item.content, item.content_hash, self.agent, self.at, source=source)
        if present.content_hash == item.content_hash:
            return model.ImportAction.UNCHANGED
        after = apply_import(present, item.content, item.content_hash)
        return replace(after, changed_at=next_change(present, self.at))

    def _delete(
        self, plan: ImportPlan, identity: model.DecisionIdentity, present: JournalEntry | None
    ) -> model.ImportAction:
        deleted_at = min(identity.provenance.changed_date, self.at + MAX_AHEAD)
        if identity.id in plan.deletions or (present is None and identity.id in self.deleted):
            return model.ImportAction.UNCHANGED
        if present is not None and (present.changed_at is None or present.changed_at > deleted_at):
            return model.ImportAction.OUTDATED
        plan.discard(identity.id)
        if identity.id not in self.deleted:
            key = None if present is None else present.idempotency_key
            plan.deletions[identity.id] = model.DeletedDecision(identity.id, self.agent, deleted_at, key)
        return model.ImportAction.ERASED
