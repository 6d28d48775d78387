"""The conditions on audit entries in SQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.expression import ColumnElement

from cstp_grpc.common.unicode_text import replace_unstorable
from cstp_grpc.core.audit.model import JUDGMENTS, AuditEvent, AuditFilter
from cstp_grpc.core.audit.sql_tables import BLOCKED, NOT_A_CHECK, audit_entries, audit_guardrails

IS_JUDGMENT: Final = audit_entries.c.event.in_([event.value for event in JUDGMENTS]) & audit_entries.c.allowed.is_not(
    None
)
"""The condition on the verdicts on checked and announced actions."""


class JudgedMember(ColumnElement[str]):
    """A text of the evaluated action, such as its category; NULL without one."""

    inherit_cache = False
    type = sa.Text()

    def __init__(self, name: str) -> None:
        self.name = name


@compiles(JudgedMember, "sqlite")
def compile_for_sqlite(element: JudgedMember, compiler: SQLCompiler, **options: Any) -> str:
    judged = compiler.process(audit_entries.c.judged, **options)
    return f"json_extract(CAST({judged} AS TEXT), '$.{element.name}')"


@compiles(JudgedMember, "postgresql")
def compile_for_postgresql(element: JudgedMember, compiler: SQLCompiler, **options: Any) -> str:
    judged = compiler.process(audit_entries.c.judged, **options)
    # PostgreSQL reads no JSON with an escaped NUL, which a caller may have sent.
    text = f"replace(convert_from({judged}, 'UTF8'), '\\u0000', '\\u0020')"
    return f"({text}::json ->> '{element.name}')"


CATEGORY: Final = JudgedMember("category")
PROJECT: Final = JudgedMember("project")
STAKES: Final = JudgedMember("stakes")


def filter_clauses(conditions: AuditFilter) -> Iterator[ColumnElement[bool] | sa.TextClause]:
    """Yield the conditions on entries, except those on their instant and their guardrails."""
    table = audit_entries.c
    for column, wanted in (
        (table.requesting_agent, conditions.requesting_agent),
        (table.request_id, conditions.request_id),
        (table.correlation_id, conditions.correlation_id),
        (table.decision_id, conditions.decision_id),
        (table.error, conditions.error),
        (table.approval_id, conditions.approval_id),
        (CATEGORY, conditions.category),
        (PROJECT, conditions.project),
    ):
        if wanted is not None:
            yield column == replace_unstorable(wanted)
    if conditions.stakes:
        yield STAKES.in_([stakes.value for stakes in conditions.stakes])
    for word in conditions.words:
        yield table.action.icontains(replace_unstorable(word), autoescape=True)
    if conditions.event is not None:
        yield table.event == conditions.event
        if conditions.event != AuditEvent.GUARDRAIL_CHECK:
            yield sa.text(NOT_A_CHECK)  # implied, and needed to use the partial index
    if conditions.with_judged:
        yield IS_JUDGMENT
    if conditions.allowed is not None:
        # As the partial index is written: the planner compares conditions, not their meaning.
        yield table.allowed.is_(True) if conditions.allowed else sa.text(BLOCKED)


def all_clauses(conditions: AuditFilter) -> Iterator[ColumnElement[bool] | sa.TextClause]:
    """Yield all conditions on entries, for queries that need no order."""
    yield from filter_clauses(conditions)
    table, named = audit_entries.c, audit_guardrails.c
    if conditions.after is not None:
        yield table.timestamp >= conditions.after
    if conditions.before is not None:
        yield table.timestamp <= conditions.before
    if conditions.guardrail_id is not None:
        wanted = named.guardrail_id == replace_unstorable(conditions.guardrail_id)
        yield table.id.in_(sa.select(named.entry_id).where(wanted))
