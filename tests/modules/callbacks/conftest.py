"""Fixtures of callbacks."""

from __future__ import annotations

import pytest

from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.modules.callbacks.kit import Kit


@pytest.fixture
def kit(database: Database, writer: GroupCommitWriter) -> Kit:
    return Kit(database, writer)
