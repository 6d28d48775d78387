"""All tables of a journal's database, whichever rooms a server leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Final

from cstp_grpc.approvals import sql_store as approvals
from cstp_grpc.audit import sql_tables as audit
from cstp_grpc.callbacks import sql_store as callbacks
from cstp_grpc.decisions import sql_tables as decisions
from cstp_grpc.intents import sql_store as intents
from cstp_grpc.liaison import sql_tables as liaison
from cstp_grpc.storage.table_copy import Tables, find_tables
from cstp_grpc.tasks import sql_store as tasks
from cstp_grpc.tokens import sql_store as tokens

TABLE_MODULES: Final[Sequence[ModuleType]] = (audit, decisions, intents, approvals, callbacks, liaison, tasks, tokens)
"""The modules that define tables; a test compares them with a migrated database."""


def journal_tables() -> Tables:
    """Return all tables, each after those that it refers to."""
    return find_tables(TABLE_MODULES)
