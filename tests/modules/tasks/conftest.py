"""Fixtures of the tasks."""

from __future__ import annotations

import pytest

from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.modules.tasks.keeping import KeeperKit


@pytest.fixture
def kit(database: Database, writer: GroupCommitWriter) -> KeeperKit:
    return KeeperKit(database, writer)
