"""Fixtures of the tasks."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from cstp_grpc.storage.writer import GroupCommitWriter
from tests.tasks.keeping import KeeperKit


@pytest.fixture
def kit(engine: Engine, writer: GroupCommitWriter) -> KeeperKit:
    return KeeperKit(engine, writer)
