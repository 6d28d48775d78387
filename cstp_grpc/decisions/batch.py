"""Records to import, laid over what was imported before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from cstp_grpc.decisions.identity import content_hash, imported_id, ordered, tidy
from cstp_grpc.decisions.lifecycle import new_entry, updated
from cstp_grpc.decisions.model import Decision, DecisionContent, ImportAction, ImportRecord, ImportResult, Links
from cstp_grpc.decisions.store import Declaration, Entry
from cstp_grpc.storage.text import storable
from cstp_grpc.vocabulary import Visibility


@dataclass(frozen=True, slots=True)
class Candidate:
    """A record with its identity; its links name decisions by identifier."""

    record: ImportRecord
    decision_id: str
    content: DecisionContent
    content_hash: str
    declaration: Declaration


@dataclass(slots=True)
class Merged:
    """What comes of importing: a result for each record, each change, and the entries and links to store, by id."""

    results: list[ImportResult] = field(default_factory=list)
    changes: list[Decision] = field(default_factory=list)
    entries: dict[str, Entry] = field(default_factory=dict)
    declarations: dict[str, Declaration] = field(default_factory=dict)


def candidate(record: ImportRecord, agent: str) -> Candidate:
    """Return a record as it is kept for an agent.

    Its hash leaves the visibility out, because only that of the first import counts.
    """
    content = tidy(record.content)
    decision_id = imported_id(agent, storable(record.source))
    declared = declaration(record, decision_id, agent)
    hidden = replace(content, visibility=Visibility.PRIVATE)
    return Candidate(
        record, decision_id, content, content_hash(hidden, declared.links, declared.superseded_by), declared
    )


def declaration(record: ImportRecord, decision_id: str, agent: str) -> Declaration:
    """Return the links of a record by identifier, without those to itself."""

    def ids(sources: Iterable[str]) -> tuple[str, ...]:
        return ordered({imported_id(agent, storable(source)) for source in sources} - {decision_id})

    links = record.links
    return Declaration(
        decision_id,
        Links(ids(links.supersedes), ids(links.depends_on), ids(links.relates_to)),
        superseded_by=ids(links.superseded_by),
    )


def merge(candidates: Iterable[Candidate], known: Mapping[str, Entry], agent: str, at: datetime) -> Merged:
    """Return what comes of importing candidates one after the other over the entries that are known, by id."""
    merged = Merged()
    for item in candidates:
        present = merged.entries.get(item.decision_id) or known.get(item.decision_id)
        if present is None:
            action = ImportAction.IMPORTED
            source = storable(item.record.source)
            entry = new_entry(item.decision_id, item.content, item.content_hash, agent, at, source=source)
        elif present.content_hash == item.content_hash:
            action = ImportAction.UNCHANGED
            entry = present
        else:
            action = ImportAction.UPDATED
            entry = updated(present, item.content, item.content_hash)
        if action is not ImportAction.UNCHANGED:
            merged.changes.append(entry.decision)
            merged.entries[item.decision_id] = entry
            merged.declarations[item.decision_id] = item.declaration
        merged.results.append(ImportResult(item.record.source, action, item.decision_id))
    return merged
