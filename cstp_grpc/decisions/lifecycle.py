"""What becomes of a decision: its status, what an update keeps, and what another agent may read of it."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from datetime import datetime

from cstp_grpc.decisions.model import Decision, DecisionContent, Links, Reason
from cstp_grpc.decisions.store import Entry
from cstp_grpc.vocabulary import DecisionStatus, Outcome


def stated_status(content: DecisionContent) -> DecisionStatus:
    """Return the status that a content gives its decision: decided, or reviewed beside an outcome, unless it says."""
    if content.status is not None:
        return content.status
    return DecisionStatus.DECIDED if content.outcome is None else DecisionStatus.REVIEWED


def with_status(entry: Entry, *, superseded: bool) -> Entry:
    """Return an entry with the status that follows from its content, its review and its links.

    `superseded` tells whether another decision of the same agent supersedes it. That outlasts a review, and a review
    outweighs what the content states.
    """
    status = entry.stated_status
    if superseded:
        status = DecisionStatus.SUPERSEDED
    elif entry.decision.reviewed_date is not None and status is not DecisionStatus.SUPERSEDED:
        status = DecisionStatus.REVIEWED
    return replace(entry, decision=replace(entry.decision, status=status))


def new_entry(
    decision_id: str,
    content: DecisionContent,
    content_hash: str,
    agent: str,
    at: datetime,
    *,
    source: str | None = None,
) -> Entry:
    """Return the entry of a decision that enters the journal at an instant, which is its date where it states none."""
    status = stated_status(content)
    decision = Decision(
        id=decision_id,
        title=content.title,
        status=status,
        date=content.date or at,
        agent=agent,
        visibility=content.visibility,
        context=content.context,
        category=content.category,
        stakes=content.stakes,
        confidence=content.confidence,
        outcome=content.outcome,
        notes=content.notes,
        reasons=content.reasons,
        tags=content.tags,
        project=content.project,
        source=source,
    )
    return Entry(decision, status, content_hash)


def updated(entry: Entry, content: DecisionContent, content_hash: str) -> Entry:
    """Return an imported decision with a new content of its source.

    The source wins for everything it states. What was done here stays: the visibility is the one of the first import
    unless the owner changed it; a review (outcome, notes and reviewed date together) is kept until the source itself
    states an outcome, which then replaces the review as a whole. A source without a date keeps the present one.
    """
    present = entry.decision
    fresh = new_entry(present.id, content, content_hash, present.agent, present.date, source=present.source)
    decision = replace(fresh.decision, visibility=present.visibility, links=present.links)
    if content.outcome is None and present.reviewed_date is not None:
        decision = replace(decision, outcome=present.outcome, notes=present.notes, reviewed_date=present.reviewed_date)
    return with_status(replace(fresh, decision=decision), superseded=present.status is DecisionStatus.SUPERSEDED)


def reviewed(entry: Entry, outcome: Outcome, notes: str | None, at: datetime) -> Entry:
    """Return a decision with its outcome and its lesson; None keeps the present lesson, an empty one removes it."""
    present = entry.decision
    lesson = present.notes if notes is None else notes or None
    decision = replace(present, outcome=outcome, notes=lesson, reviewed_date=at)
    return with_status(replace(entry, decision=decision), superseded=present.status is DecisionStatus.SUPERSEDED)


def as_read_by(decision: Decision, caller: str, readable: Container[str]) -> Decision:
    """Return a readable decision as an agent may see it.

    Another's comes without context, texts of reasons and source, and with links to `readable` decisions only: the id
    of a private one would tell that it is there.
    """
    if decision.agent == caller:
        return decision
    reasons = tuple(Reason(reason.type, strength=reason.strength) for reason in decision.reasons)
    return replace(decision, context=None, reasons=reasons, source=None, links=links_to(decision.links, readable))


def links_to(links: Links, targets: Container[str]) -> Links:
    """Return those of the links that lead to one of the targets."""
    return Links(
        supersedes=tuple(key for key in links.supersedes if key in targets),
        depends_on=tuple(key for key in links.depends_on if key in targets),
        relates_to=tuple(key for key in links.relates_to if key in targets),
    )
