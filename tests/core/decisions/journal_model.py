"""What the journal promises, in plain dicts, to compare the journal with."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from cstp_grpc.contract.enums import DecisionStatus, Outcome, Visibility
from cstp_grpc.core.decisions.model import (
    Decision,
    DecisionContent,
    DecisionHistory,
    DecisionReview,
    FormerContent,
    ImportAction,
    ImportRecord,
    Links,
    Reason,
    SourceLinks,
)

LINK_KINDS = ("supersedes", "depends_on", "relates_to")


@dataclass
class Review:
    """A review made here."""

    outcome: Outcome
    notes: str | None
    at: datetime


@dataclass
class Known:
    """A decision as its owner and its reviewers left it."""

    agent: str
    content: DecisionContent
    visibility: Visibility
    date: datetime
    source: str | None = None
    review: Review | None = None
    reviews: list[DecisionReview] = field(default_factory=list)
    links: Links = field(default_factory=Links)
    superseded_by: tuple[str, ...] = ()
    said: tuple[DecisionContent, SourceLinks] | None = None
    former: list[FormerContent] = field(default_factory=list)
    lost: dict[str, list[str]] = field(default_factory=dict)
    """The kinds of the links that deletions took away and an import may bring back, by the deleted id."""

    def effective(self) -> DecisionContent:
        """The content with what a review made of it, whoever may read it."""
        said, review = self.content, self.review
        stated = said.status or (DecisionStatus.REVIEWED if said.outcome else DecisionStatus.DECIDED)
        return replace(
            said,
            status=stated,
            date=self.date,
            outcome=review.outcome if review else said.outcome,
            notes=review.notes if review else said.notes,
            visibility=Visibility.PRIVATE,
        )


class JournalModel:
    """Decisions by id, and by agent and source."""

    def __init__(self) -> None:
        self.known: dict[str, Known] = {}
        self.deleted: dict[str, str] = {}
        """The agents of deleted decisions, by id."""

    def readable(self, key: str, caller: str) -> bool:
        item = self.known.get(key)
        return item is not None and (item.agent == caller or item.visibility is Visibility.SHARED)

    def expected(self, key: str, caller: str) -> Decision:
        """A decision as a caller that may read it sees it."""
        item = self.known[key]
        own = item.agent == caller
        said = item.content
        review = item.review
        return Decision(
            id=key,
            title=said.title,
            status=self.status(key),
            date=item.date,
            agent=item.agent,
            visibility=item.visibility,
            context=said.context if own else None,
            category=said.category,
            stakes=said.stakes,
            confidence=said.confidence,
            outcome=review.outcome if review else said.outcome,
            reviewed_date=review.at if review else None,
            notes=review.notes if review else said.notes,
            reasons=tuple(Reason(item.type, item.text if own else "", item.strength) for item in said.reasons),
            tags=said.tags,
            project=said.project,
            links=self.links(key) if own else self.readable_links(key, caller),
            source=item.source if own else None,
            review_by=said.review_by if own else None,
        )

    def status(self, key: str) -> DecisionStatus:
        item = self.known[key]
        stated = item.content.status
        if stated is DecisionStatus.SUPERSEDED or self.is_superseded(key):
            return DecisionStatus.SUPERSEDED
        if item.review:
            return DecisionStatus.REVIEWED
        if stated:
            return stated
        return DecisionStatus.REVIEWED if item.content.outcome else DecisionStatus.DECIDED

    def is_superseded(self, key: str) -> bool:
        agent = self.known[key].agent
        own = [item for item in self.known.values() if item.agent == agent]
        return bool(self.known[key].superseded_by) or any(key in item.links.supersedes for item in own)

    def links(self, key: str) -> Links:
        links = self.known[key].links
        superseded = {other for other, item in self.known.items() if key in item.superseded_by}
        return Links(
            supersedes=tuple(sorted({*links.supersedes, *superseded})),
            depends_on=tuple(sorted(set(links.depends_on))),
            relates_to=tuple(sorted(set(links.relates_to))),
        )

    def readable_links(self, key: str, caller: str) -> Links:
        links = self.links(key)
        return Links(
            *(
                tuple(other for other in targets if self.readable(other, caller))
                for targets in (links.supersedes, links.depends_on, links.relates_to)
            )
        )

    def record(self, key: str, agent: str, content: DecisionContent, links: Links, at: datetime) -> None:
        self.known[key] = Known(agent, content, content.visibility, content.date or at, links=links)

    def review(self, key: str, outcome: Outcome, notes: str | None, reviewer: str, at: datetime) -> None:
        item = self.known[key]
        present = item.review.notes if item.review else item.content.notes
        item.review = Review(outcome, present if notes is None else notes, at)
        item.reviews.insert(0, DecisionReview(reviewer, outcome, at, item.review.notes, item.content.confidence))

    def history(self, key: str, caller: str) -> DecisionHistory:
        """What happened to a decision, as a caller sees it."""
        item = self.known[key]
        former = tuple(item.former) if item.agent == caller else ()
        return DecisionHistory(tuple(item.reviews), len(item.reviews), len(item.former) + 1, former)

    def keep_former(self, key: str, before: DecisionContent, visibility: Visibility, at: datetime) -> bool:
        """Keep the content that a decision had, if it has another; tell whether it has."""
        item = self.known[key]
        if item.effective() == before:
            return False
        item.former.insert(0, FormerContent(len(item.former) + 1, replace(before, visibility=visibility), at))
        return True

    def update(self, key: str, values: dict[str, Any], at: datetime) -> bool:
        """Set fields of the content; tell whether that changed it."""
        item = self.known[key]
        before = item.effective()
        item.content = replace(item.content, **{"status": before.status, **values})
        item.date = values.get("date", item.date)
        return self.keep_former(key, before, item.visibility, at)

    def delete(self, key: str) -> None:
        """Remove a decision and all links from and to it."""
        deleted = self.known.pop(key)
        self.deleted[key] = deleted.agent
        for item in self.known.values():
            links = item.links
            if item.agent == deleted.agent and deleted.source is not None:
                kinds = [kind for kind in LINK_KINDS if key in getattr(links, kind)]
                item.lost[key] = kinds + (["superseded_by"] if key in item.superseded_by else [])
            item.links = Links(
                *(
                    tuple(other for other in targets if other != key)
                    for targets in (links.supersedes, links.depends_on, links.relates_to)
                )
            )
            item.superseded_by = tuple(other for other in item.superseded_by if other != key)

    def restore_links(self, key: str) -> None:
        """Bring back the links that the deletion of a decision took away."""
        for item in self.known.values():
            for kind in item.lost.pop(key, []):
                if kind == "superseded_by":
                    item.superseded_by = (*item.superseded_by, key)
                else:
                    item.links = replace(item.links, **{kind: (*getattr(item.links, kind), key)})

    def is_due(self, key: str, at: datetime) -> bool:
        """Whether the review of a decision is due."""
        review_by, review = self.known[key].content.review_by, self.known[key].review
        if review_by is None or review_by > at or self.status(key) is DecisionStatus.SUPERSEDED:
            return False
        return review is None or review.at < review_by

    def import_one(self, agent: str, record: ImportRecord, ids: dict[str, str], at: datetime) -> ImportAction:
        """Import one record; `ids` are the identifiers of the agent's sources."""
        content = record.content
        said = (replace(content, visibility=Visibility.PRIVATE), said_links(record))
        key = ids[record.source]
        if key in self.deleted:
            if not record.restore_deleted:
                return ImportAction.DELETED
            del self.deleted[key]
            self.restore_links(key)
        item = self.known.get(key)
        if item is not None and item.said == said:
            return ImportAction.UNCHANGED
        action = ImportAction.IMPORTED if item is None else ImportAction.UPDATED
        if item is None:
            item = Known(agent, content, content.visibility, content.date or at, source=record.source)
            self.known[key] = item
        item.content = content
        item.date = content.date or item.date
        item.said = said
        item.lost.clear()
        if content.outcome is not None:
            item.review = None
        links = record.links
        others = {source: other for source, other in ids.items() if source != record.source}
        item.links = Links(
            *(
                tuple(others[source] for source in sources if source in others)
                for sources in (links.supersedes, links.depends_on, links.relates_to)
            )
        )
        item.superseded_by = tuple(others[source] for source in links.superseded_by if source in others)
        return action


def said_links(record: ImportRecord) -> SourceLinks:
    """What a record says of others; neither the order counts nor what it says of itself."""
    links = record.links
    return SourceLinks(
        *(
            tuple(sorted(set(sources) - {record.source}))
            for sources in (links.supersedes, links.superseded_by, links.depends_on, links.relates_to)
        )
    )
