"""Fixtures of the decision memory."""

from __future__ import annotations

import pytest

from cstp_grpc.core.decisions.sql_change_log import SqlChangeLog
from cstp_grpc.core.decisions.sql_store import SqlDecisionStore
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.core.decisions.journals import JournalKit
from tests.core.decisions.shelves import Shelf


@pytest.fixture
def kit(database: Database, writer: GroupCommitWriter) -> JournalKit:
    """A journal on each kind of database."""
    return JournalKit(database, writer)


@pytest.fixture
def shelf(database: Database, writer: GroupCommitWriter) -> Shelf:
    """A store on each kind of database."""
    return Shelf(lambda sharing: SqlDecisionStore(database, sharing), writer, SqlChangeLog(database))
