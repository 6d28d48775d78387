"""The links between decisions in SQL."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import sqlalchemy as sa

from cstp_grpc.core.decisions.model import DecisionLink, Links, LinkType
from cstp_grpc.core.decisions.sql_mapping import split_into_chunks
from cstp_grpc.core.decisions.sql_tables import decision_links, decisions, suspended_links
from cstp_grpc.core.decisions.store import DeclaredLinks
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork

SUPERSEDES = LinkType.SUPERSEDES.value

IDS: sa.BindParameter[str] = sa.bindparam("ids", expanding=True)

FROM_IDS = (
    sa.select(decision_links.c.from_id, decision_links.c.type, decision_links.c.to_id)
    .where(decision_links.c.from_id.in_(IDS))
    .distinct()
    .order_by(decision_links.c.to_id)
)

DECLARED = sa.select(
    decision_links.c.declared_by, decision_links.c.from_id, decision_links.c.type, decision_links.c.to_id
).where(decision_links.c.declared_by.in_(IDS))

DECLARED_TARGETS = sa.select(decision_links.c.to_id).where(
    decision_links.c.declared_by.in_(IDS), decision_links.c.type == SUPERSEDES
)

DECLARING = decisions.alias("declaring")

SUPERSEDED = (
    sa.select(decisions.c.id)
    .join(decision_links, decision_links.c.to_id == decisions.c.id)
    .join(DECLARING, DECLARING.c.id == decision_links.c.declared_by)
    .where(
        decisions.c.id.in_(IDS),
        decision_links.c.type == SUPERSEDES,
        # Security: an agent must not change the status of another agent's decision by linking to it.
        DECLARING.c.agent == decisions.c.agent,
    )
)

SUCCESSORS = (
    SUPERSEDED.with_only_columns(decisions.c.id, decision_links.c.from_id).distinct().order_by(decision_links.c.from_id)
)

SUMMARIES = (
    sa.select(decision_links.c.from_id)
    .join(decisions, decisions.c.id == decision_links.c.from_id)
    .where(
        decision_links.c.to_id.in_(IDS),
        decision_links.c.type == LinkType.SUMMARIZES.value,
        decisions.c.agent == sa.bindparam("agent"),
    )
    .distinct()
)

TOUCHING = (
    sa.select(decision_links.c.from_id, decision_links.c.type, decision_links.c.to_id)
    .where(sa.or_(decision_links.c.from_id.in_(IDS), decision_links.c.to_id.in_(IDS)))
    .distinct()
    .order_by(decision_links.c.from_id, decision_links.c.type, decision_links.c.to_id)
    .limit(sa.bindparam("limit", type_=sa.Integer))
)

SAME_LINK = sa.and_(
    decision_links.c.from_id == sa.bindparam("link_from"),
    decision_links.c.type == sa.bindparam("link_type"),
    decision_links.c.to_id == sa.bindparam("link_to"),
)


def link_parameters(link: DecisionLink) -> dict[str, str]:
    return {"link_from": link.from_id, "link_type": link.type.value, "link_to": link.to_id}


def read_links(unit_of_work: UnitOfWork, ids: Sequence[str]) -> Mapping[str, Links]:
    """Return the links from decisions by id, also links that other decisions declared."""
    targets: dict[tuple[str, str], list[str]] = defaultdict(list)
    for chunk in split_into_chunks(ids):
        for from_id, kind, to_id in unit_of_work.execute(FROM_IDS, {"ids": chunk}):
            targets[from_id, kind].append(to_id)
    return {key: Links(*(tuple(targets[key, kind]) for kind in LinkType)) for key in ids}


def read_declared(unit_of_work: UnitOfWork, ids: Sequence[str]) -> dict[str, DeclaredLinks]:
    """Return the links that decisions declare, by id."""
    targets: dict[tuple[str, str], list[str]] = defaultdict(list)
    successors: dict[str, list[str]] = defaultdict(list)
    for chunk in split_into_chunks(ids):
        for declared_by, from_id, kind, to_id in unit_of_work.execute(DECLARED, {"ids": chunk}):
            if from_id == declared_by:
                targets[declared_by, kind].append(to_id)
            else:
                successors[declared_by].append(from_id)
    # Sorted here: databases order ids differently.
    links = {key: Links(*(tuple(sorted(targets[key, kind])) for kind in LinkType)) for key in ids}
    return {key: DeclaredLinks(key, links[key], tuple(sorted(successors[key]))) for key in ids}


def replace_links(unit_of_work: UnitOfWork, declarations: Sequence[DeclaredLinks]) -> set[str]:
    """Replace the links that decisions declare and return the ids that are, or were, superseded by them."""
    targets: set[str] = set()
    for chunk in split_into_chunks([item.decision_id for item in declarations]):
        # Earlier targets, too: a decision that is no longer superseded gets its status back.
        targets.update(unit_of_work.execute(DECLARED_TARGETS, {"ids": chunk}).scalars())
        for table in (decision_links, suspended_links):
            unit_of_work.execute(sa.delete(table).where(table.c.declared_by.in_(chunk)))
    rows = [row for item in declarations for row in link_rows(item)]
    if rows:
        unit_of_work.execute(sa.insert(decision_links), rows)
    return targets.union(row["to_id"] for row in rows if row["type"] == SUPERSEDES)


def link_rows(item: DeclaredLinks) -> Iterator[dict[str, str]]:
    own = [(kind, item.decision_id, other) for kind in LinkType for other in getattr(item.links, kind)]
    # Some sources only name their successor; the link is the one that the successor would declare.
    declared = [*own, *((LinkType.SUPERSEDES, other, item.decision_id) for other in item.superseded_by)]
    for kind, from_id, to_id in declared:
        yield {"declared_by": item.decision_id, "from_id": from_id, "type": kind.value, "to_id": to_id}


def suspend_links(unit_of_work: UnitOfWork, decision_id: str) -> None:
    """Keep the links from and to a decision that is being deleted, if an import can restore it.

    These are those that other decisions of its agent declare.
    """
    deleted = decisions.alias("deleted")
    kept = (
        sa.select(*decision_links.c, deleted.c.id)
        .join(DECLARING, DECLARING.c.id == decision_links.c.declared_by)
        .join(deleted, deleted.c.agent == DECLARING.c.agent)
        .where(
            deleted.c.id == decision_id,
            deleted.c.source.is_not(None),
            decision_links.c.declared_by != decision_id,
            sa.or_(decision_links.c.from_id == decision_id, decision_links.c.to_id == decision_id),
        )
    )
    names = [*(column.name for column in decision_links.c), "deleted_id"]
    unit_of_work.execute(sa.insert(suspended_links).from_select(names, kept))


def restore_links(unit_of_work: UnitOfWork, ids: Sequence[str]) -> set[str]:
    """Bring back the links that the deletion of decisions took away, and return the ids that are superseded by them."""
    targets: set[str] = set()
    links = [suspended_links.c[column.name] for column in decision_links.c]
    known = sa.select(decision_links.c.declared_by).where(
        *(column == suspended_links.c[column.name] for column in decision_links.c)
    )
    for chunk in split_into_chunks(ids):
        restored = suspended_links.c.deleted_id.in_(chunk)
        superseding = sa.select(suspended_links.c.to_id).where(restored, suspended_links.c.type == SUPERSEDES)
        targets.update(unit_of_work.execute(superseding).scalars())
        names = [column.name for column in decision_links.c]
        unit_of_work.execute(
            sa.insert(decision_links).from_select(names, sa.select(*links).where(restored, ~known.exists()))
        )
        unit_of_work.execute(sa.delete(suspended_links).where(restored))
    return targets


def find_successor_ids(unit_of_work: UnitOfWork, ids: Sequence[str]) -> dict[str, list[str]]:
    """Return the ids of the decisions that supersede those of `ids`, by links of the same agent."""
    found: dict[str, list[str]] = defaultdict(list)
    for chunk in split_into_chunks(ids):
        for key, successor in unit_of_work.execute(SUCCESSORS, {"ids": chunk}):
            found[key].append(successor)
    return dict(found)


def find_summary_ids(unit_of_work: UnitOfWork, agent: str, ids: Sequence[str]) -> list[str]:
    """Return the ids of an agent's summaries that cite decisions, which may be missing."""
    found = (unit_of_work.execute(SUMMARIES, {"agent": agent, "ids": chunk}) for chunk in split_into_chunks(ids))
    return sorted({key for rows in found for key in rows.scalars()})


def find_superseded_ids(unit_of_work: UnitOfWork, ids: Sequence[str]) -> set[str]:
    """Return the ids that a link declared by the same agent supersedes."""
    return {
        key for chunk in split_into_chunks(ids) for key in unit_of_work.execute(SUPERSEDED, {"ids": chunk}).scalars()
    }
