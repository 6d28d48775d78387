"""The outcomes of decisions and of closed intents in SQL."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Select, and_, bindparam, case, exists, func, select

from cstp_grpc.core.decisions.sql_mapping import OUTCOME, TAGS, VISIBILITY, Values, decode_json_list
from cstp_grpc.core.decisions.sql_tables import decisions, deleted_decisions
from cstp_grpc.core.intents import recent_outcomes
from cstp_grpc.core.intents.sql_store import IS_NUMBERED, intents
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.unit_of_work import CompiledStatement, UtcDateTime

STATE = select(
    select(func.coalesce(func.max(decisions.c.revision), -1)).scalar_subquery(),
    select(func.coalesce(func.max(deleted_decisions.c.revision), -1)).scalar_subquery(),
    select(func.coalesce(func.max(intents.c.closing_number), 0)).where(IS_NUMBERED).scalar_subquery(),
)
"""The newest revisions of decisions and of deletions, and the newest number of a closing, each the end of an index."""

KNOWN_AT = case(
    (decisions.c.reviewed_date.is_not(None), decisions.c.reviewed_date),
    # A date is stated by its agent, and must not lie in the future, where it would count for longer.
    (decisions.c.date < decisions.c.created_at, decisions.c.date),
    else_=decisions.c.created_at,
)
"""When the outcome of a decision became known."""
DECISION = (
    decisions.c.id,
    decisions.c.agent,
    decisions.c.category,
    decisions.c.project,
    decisions.c.visibility,
    decisions.c.outcome,
    KNOWN_AT.label("known_at"),
    TAGS,
)
"""The columns that `outcome_of_decision` unpacks."""

HAS_OUTCOME_ITSELF = exists().where(decisions.c.id == intents.c.decision_id, decisions.c.outcome.is_not(None))
CLOSING = (
    intents.c.id,
    intents.c.agent,
    intents.c.category,
    intents.c.project,
    intents.c.visibility,
    intents.c.outcome,
    intents.c.closed_at,
    intents.c.decision_id,
    HAS_OUTCOME_ITSELF.label("is_decided"),
)
"""The columns that `outcome_of_closing` unpacks."""

SINCE = bindparam("since", type_=UtcDateTime())
AFTER = bindparam("after", type_=BigInteger())


def decisions_query(*conditions: ColumnElement[bool]) -> Select[Any]:
    return select(*DECISION).where(*conditions)


# Two queries, because an index on one column is used for each. What is not reviewed but was recorded with its outcome
# counts from its date; see KNOWN_AT.
RECENTLY_REVIEWED = decisions_query(decisions.c.reviewed_date >= SINCE, decisions.c.outcome.is_not(None))
RECENT_WITH_OUTCOME = decisions_query(
    decisions.c.date >= SINCE, decisions.c.reviewed_date.is_(None), decisions.c.outcome.is_not(None)
)
RECENT_CLOSINGS = select(*CLOSING).where(and_(intents.c.closed_at.is_not(None), intents.c.closed_at >= SINCE))
CHANGED_DECISIONS = decisions_query(decisions.c.revision > AFTER)
DELETED = select(deleted_decisions.c.id).where(deleted_decisions.c.revision > AFTER)
NEW_CLOSINGS = select(*CLOSING).where(and_(IS_NUMBERED, intents.c.closing_number > AFTER))


class SqlOutcomeStore:
    """Reads outcomes from the tables of decisions and intents.

    `read_changes`, if only this process writes, returns another value after each change without asking the database.
    """

    def __init__(self, database: Database, read_changes: Callable[[], object] | None = None) -> None:
        self._local = database.is_sqlite
        self._read_changes = read_changes
        self._known: tuple[object, recent_outcomes.OutcomeState] | None = None
        """The last state with its value of `read_changes`; threads that set it at the same time set equal values."""
        # Read in one snapshot, so that no change falls between its parts.
        self._database = database.with_repeatable_reads()
        # Compiled, since each of 100 000 rows would take twice as long otherwise, and every check asks for the state
        # that has a rule over the past.
        self._state = CompiledStatement(STATE, database.dialect)
        self._recent = [
            (CompiledStatement(query, database.dialect), convert)
            for query, convert in (
                (RECENTLY_REVIEWED, outcome_of_decision),
                (RECENT_WITH_OUTCOME, outcome_of_decision),
                (RECENT_CLOSINGS, outcome_of_closing),
            )
        ]
        self._changed_decisions = CompiledStatement(CHANGED_DECISIONS, database.dialect)
        self._new_closings = CompiledStatement(NEW_CLOSINGS, database.dialect)
        self._deleted = CompiledStatement(DELETED, database.dialect)

    @property
    def is_local(self) -> bool:
        """Whether reads take microseconds, because the database is a file of this machine."""
        return self._local

    def read_state(self) -> recent_outcomes.OutcomeState:
        """Return up to where changes are committed. Raises QueryFailed."""
        # Read before the state: a commit in between gives another value to the next call.
        changes = None if self._read_changes is None else self._read_changes()
        if changes is not None and self._known is not None and self._known[0] == changes:
            # Memory must not answer for a database that is gone.
            self._database.refuse_if_lost()
            return self._known[1]
        with self._database.open_driver_connection() as driver:
            state = state_from_row(self._state.fetch(driver, {})[0])
        self._known = changes, state
        return state

    def load_since(self, instant: datetime) -> recent_outcomes.OutcomeChanges:
        """Return all outcomes known since an instant, and the state that they are of. Raises QueryFailed."""
        with self._database.read_snapshot() as unit_of_work:
            state = state_from_row(self._state.all(unit_of_work, {})[0])
            found = [
                convert(row) for query, convert in self._recent for row in query.all(unit_of_work, {"since": instant})
            ]
        return recent_outcomes.OutcomeChanges(state, found)

    def changes_after(self, state: recent_outcomes.OutcomeState) -> recent_outcomes.OutcomeChanges:
        """Return the decisions and closings that changed after a state, and the new state. Raises QueryFailed.

        A decision that changed for another reason is among them, as it is.
        """
        with self._database.read_snapshot() as unit_of_work:
            newest = state_from_row(self._state.all(unit_of_work, {})[0])
            changed = {"after": state.revision}
            closed = {"after": state.closing_number}
            found = [
                *map(outcome_of_decision, self._changed_decisions.all(unit_of_work, changed)),
                *map(outcome_of_closing, self._new_closings.all(unit_of_work, closed)),
            ]
            deleted = self._deleted.all(unit_of_work, changed)
        return recent_outcomes.OutcomeChanges(
            newest, found, tuple(recent_outcomes.decision_source(key) for (key,) in deleted)
        )


def state_from_row(row: Values) -> recent_outcomes.OutcomeState:
    changed, deleted, closing_number = row
    # The greater one alone never falls: if the decision of the newest revision is deleted, it takes that along.
    return recent_outcomes.OutcomeState(max(changed, deleted), closing_number)


def outcome_of_decision(row: Values) -> recent_outcomes.KnownOutcome:
    key, agent, category, project, visibility, outcome, at, tags = row
    return recent_outcomes.KnownOutcome(
        recent_outcomes.decision_source(key),
        agent,
        category,
        project,
        VISIBILITY[visibility],
        OUTCOME[outcome],
        at,
        decode_json_list(tags),
    )


def outcome_of_closing(row: Values) -> recent_outcomes.KnownOutcome:
    number, agent, category, project, visibility, outcome, closed_at, decision_id, is_decided = row
    return recent_outcomes.KnownOutcome(
        recent_outcomes.intent_source(number),
        agent,
        category,
        project,
        VISIBILITY[visibility],
        OUTCOME[outcome],
        closed_at,
        decision_source=None if decision_id is None else recent_outcomes.decision_source(decision_id),
        is_counted=not is_decided,
    )
