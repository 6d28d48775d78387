"""Contexts and successors of decisions, which searches leave out, in SQL."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from sqlalchemy import BindParameter, bindparam, select

from cstp_grpc.core.decisions.model import Decision, DecisionFilter
from cstp_grpc.core.decisions.sql_links import DECLARING, SUPERSEDES
from cstp_grpc.core.decisions.sql_store import SqlDecisionStore
from cstp_grpc.core.decisions.sql_tables import decision_links, decisions
from cstp_grpc.core.decisions.store import MAX_BACKGROUND, DecisionBackground, NeededBackground
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.unit_of_work import CompiledStatement

UNFILTERED = DecisionFilter()
PLACES = [f"id_{number}" for number in range(MAX_BACKGROUND)]
"""The names of the parameters for ids."""
BACKGROUND_IDS: list[BindParameter[str]] = [bindparam(name, type_=decisions.c.id.type) for name in PLACES]

CONTEXTS = select(decisions.c.id, decisions.c.context).where(
    decisions.c.id.in_(BACKGROUND_IDS), decisions.c.agent == bindparam("caller"), decisions.c.context.is_not(None)
)
BACKGROUND_SUCCESSORS = (
    select(decision_links.c.to_id, decision_links.c.from_id)
    .join(decisions, decisions.c.id == decision_links.c.to_id)
    .join(DECLARING, DECLARING.c.id == decision_links.c.declared_by)
    .where(
        decision_links.c.to_id.in_(BACKGROUND_IDS),
        decision_links.c.type == SUPERSEDES,
        # As for the status: an agent supersedes decisions of its own only.
        DECLARING.c.agent == decisions.c.agent,
    )
)


class SqlBackgroundReader:
    """Reads contexts and successors; `store` says which decisions an agent may read."""

    def __init__(self, database: Database, store: SqlDecisionStore) -> None:
        self._database = database
        self._store = store
        # Compiled, because announcements wait for them on the event loop.
        self._contexts = CompiledStatement(CONTEXTS, database.dialect)
        self._successors = CompiledStatement(BACKGROUND_SUCCESSORS, database.dialect)

    @property
    def is_local(self) -> bool:
        """Whether reading a few decisions only reads a file of this machine."""
        return self._store.is_local

    def read(self, needed: NeededBackground, caller: str) -> DecisionBackground:
        """Return the background of at most `MAX_BACKGROUND` decisions of each kind.

        An agent reads contexts of its own decisions, and of successors the latest that it may read. Raises QueryFailed.
        """
        contexts: dict[str, str] = {}
        named: dict[str, list[str]] = defaultdict(list)
        with self._database.open_driver_connection() as driver:
            if needed.contexts:
                values = {**name_places(needed.contexts), "caller": caller}
                contexts = {row[0]: row[1] for row in self._contexts.fetch(driver, values)}
            if needed.successors:
                for old, new in self._successors.fetch(driver, name_places(needed.successors)):
                    named[old].append(new)
        return DecisionBackground(contexts, self._read_latest(named, caller) if named else {})

    def _read_latest(self, named: Mapping[str, Sequence[str]], caller: str) -> dict[str, Decision]:
        """Return the latest successor that an agent may read, by the id of the decision that it superseded."""
        ids = sorted({new for successors in named.values() for new in successors})
        readable = self._store.get_readable(ids, caller, UNFILTERED)
        found = {old: [readable[new] for new in successors if new in readable] for old, successors in named.items()}
        return {
            old: max(successors, key=lambda decision: (decision.date, decision.id))
            for old, successors in found.items()
            if successors
        }


def name_places(ids: Sequence[str]) -> dict[str, str]:
    """Return the values of the parameters for ids; the last one is repeated, which changes no result."""
    assert len(ids) <= MAX_BACKGROUND
    return dict(zip(PLACES, [*ids, *[ids[-1]] * (MAX_BACKGROUND - len(ids))], strict=True))
