"""What searches leave out of a decision, in SQL."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from sqlalchemy import select

from cstp_grpc.decisions.background import DecisionBackground
from cstp_grpc.decisions.model import Decision, DecisionFilter
from cstp_grpc.decisions.sql_store import IDS, SUPERSEDES
from cstp_grpc.decisions.sql_tables import decision_links, decisions
from cstp_grpc.decisions.store import DecisionStore
from cstp_grpc.storage.database import Database

UNFILTERED = DecisionFilter()
DECLARING = decisions.alias("declaring")
CONTEXTS = select(decisions.c.id, decisions.c.context).where(decisions.c.id.in_(IDS))
SUCCESSORS = (
    select(decision_links.c.to_id, decision_links.c.from_id)
    .join(decisions, decisions.c.id == decision_links.c.to_id)
    .join(DECLARING, DECLARING.c.id == decision_links.c.declared_by)
    .where(
        decision_links.c.to_id.in_(IDS),
        decision_links.c.type == SUPERSEDES,
        # As for the status: an agent supersedes decisions of its own only.
        DECLARING.c.agent == decisions.c.agent,
    )
)


class SqlBackgroundReader:
    """Reads contexts and successors; `store` says which decisions an agent may read."""

    def __init__(self, database: Database, store: DecisionStore) -> None:
        self._database = database
        self._store = store

    @property
    def is_local(self) -> bool:
        """Whether the database is a file of this machine."""
        return self._store.is_local

    def read(self, ids: Sequence[str], caller: str) -> Mapping[str, DecisionBackground]:
        """Return the background of decisions as an agent may read it, by id: contexts of its own, readable successors.

        Raises QueryFailed.
        """
        successors: dict[str, list[str]] = defaultdict(list)
        with self._database.read_snapshot() as unit_of_work:
            own = CONTEXTS.where(decisions.c.agent == caller)
            contexts = {row.id: row.context for row in unit_of_work.execute(own, {"ids": list(ids)})}
            for to_id, from_id in unit_of_work.execute(SUCCESSORS, {"ids": list(ids)}):
                successors[to_id].append(from_id)
        named = {key for keys in successors.values() for key in keys}
        readable = self._store.get_readable(sorted(named), caller, UNFILTERED)
        return {key: DecisionBackground(contexts.get(key), latest_decision(readable, successors[key])) for key in ids}


def latest_decision(readable: Mapping[str, Decision], ids: Sequence[str]) -> Decision | None:
    """Return the latest of the decisions of `ids` that are readable, or None."""
    found = (readable[key] for key in ids if key in readable)
    return max(found, key=lambda decision: (decision.date, decision.id), default=None)
