"""Fixtures of the decision memory."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from cstp_grpc.storage.writer import GroupCommitWriter
from tests.decisions.journals import JournalKit


@pytest.fixture
def kit(engine: Engine, writer: GroupCommitWriter) -> JournalKit:
    """A journal on each kind of database."""
    return JournalKit(engine, writer)
