"""How decisions relate, in SQL."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from sqlalchemy import BindParameter, Connection, bindparam, delete, insert, select

from cstp_grpc.decisions.model import Links
from cstp_grpc.decisions.sql_rows import chunks
from cstp_grpc.decisions.store import Declaration
from cstp_grpc.storage.tables import decision_links, decisions

SUPERSEDES = "supersedes"
DEPENDS_ON = "depends_on"
RELATES_TO = "relates_to"

IDS: BindParameter[str] = bindparam("ids", expanding=True)

FROM_IDS = (
    select(decision_links.c.from_id, decision_links.c.type, decision_links.c.to_id)
    .where(decision_links.c.from_id.in_(IDS))
    .distinct()
    .order_by(decision_links.c.to_id)
)

DECLARED_TARGETS = select(decision_links.c.to_id).where(
    decision_links.c.declared_by.in_(IDS), decision_links.c.type == SUPERSEDES
)

DECLARING = decisions.alias("declaring")

SUPERSEDED = (
    select(decisions.c.id)
    .join(decision_links, decision_links.c.to_id == decisions.c.id)
    .join(DECLARING, DECLARING.c.id == decision_links.c.declared_by)
    .where(
        decisions.c.id.in_(IDS),
        decision_links.c.type == SUPERSEDES,
        # Nobody makes another agent's decision superseded.
        DECLARING.c.agent == decisions.c.agent,
    )
)


def links_of(connection: Connection, ids: Sequence[str]) -> Mapping[str, Links]:
    """Return the links from decisions by id, whoever declared them."""
    targets: dict[tuple[str, str], list[str]] = defaultdict(list)
    for chunk in chunks(ids):
        for from_id, kind, to_id in connection.execute(FROM_IDS, {"ids": chunk}):
            targets[from_id, kind].append(to_id)
    return {key: Links(*(tuple(targets[key, kind]) for kind in (SUPERSEDES, DEPENDS_ON, RELATES_TO))) for key in ids}


def declare(connection: Connection, declarations: Sequence[Declaration]) -> set[str]:
    """Replace the links that decisions declare and return the ids that are, or were, superseded by them."""
    targets: set[str] = set()
    for chunk in chunks([item.decision_id for item in declarations]):
        targets.update(connection.execute(DECLARED_TARGETS, {"ids": chunk}).scalars())
        connection.execute(delete(decision_links).where(decision_links.c.declared_by.in_(chunk)))
    rows = [row for item in declarations for row in link_rows(item)]
    if rows:
        connection.execute(insert(decision_links), rows)
    return targets.union(row["to_id"] for row in rows if row["type"] == SUPERSEDES)


def link_rows(item: Declaration) -> Iterator[dict[str, str]]:
    """Yield the rows of what a decision declares."""

    def rows(kind: str, ends: Iterable[tuple[str, str]]) -> Iterator[dict[str, str]]:
        for from_id, to_id in ends:
            yield {"declared_by": item.decision_id, "from_id": from_id, "type": kind, "to_id": to_id}

    yield from rows(SUPERSEDES, ((item.decision_id, other) for other in item.links.supersedes))
    yield from rows(SUPERSEDES, ((other, item.decision_id) for other in item.superseded_by))
    yield from rows(DEPENDS_ON, ((item.decision_id, other) for other in item.links.depends_on))
    yield from rows(RELATES_TO, ((item.decision_id, other) for other in item.links.relates_to))


def superseded(connection: Connection, ids: Sequence[str]) -> set[str]:
    """Return those of `ids` that a link declared by the same agent says are superseded."""
    return {key for chunk in chunks(ids) for key in connection.execute(SUPERSEDED, {"ids": chunk}).scalars()}
