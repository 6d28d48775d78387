"""All tables of a journal's database, whichever modules a server leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Final

from cstp_grpc.core.audit import sql_tables as audit
from cstp_grpc.core.decisions import sql_tables as decisions
from cstp_grpc.core.intents import sql_store as intents
from cstp_grpc.core.tokens import sql_store as tokens
from cstp_grpc.modules.approvals import sql_store as approvals
from cstp_grpc.modules.callbacks import sql_store as callbacks
from cstp_grpc.modules.liaison import sql_tables as liaison
from cstp_grpc.modules.notifications import sql_store as notifications
from cstp_grpc.modules.tasks import sql_store as tasks
from cstp_grpc.platform.storage.table_copy import Tables, find_tables

TABLE_MODULES: Final[Sequence[ModuleType]] = (
    *(audit, decisions, intents, approvals, callbacks, liaison, notifications, tasks, tokens),
)
"""The modules that define tables; a test compares them with a migrated database."""


def journal_tables() -> Tables:
    """Return all tables, each after the tables that it references."""
    return find_tables(TABLE_MODULES)
