"""Fixtures of the decision memory."""

from __future__ import annotations

import pytest

from cstp_grpc.storage.database import Database
from cstp_grpc.storage.writer import GroupCommitWriter
from tests.decisions.journals import JournalKit


@pytest.fixture
def kit(database: Database, writer: GroupCommitWriter) -> JournalKit:
    """A journal on each kind of database."""
    return JournalKit(database, writer)
