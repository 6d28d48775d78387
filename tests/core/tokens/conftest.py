"""Fixtures for tokens."""

from __future__ import annotations

import pytest

from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.core.tokens.kit import TokenKit


@pytest.fixture
def kit(database: Database, writer: GroupCommitWriter) -> TokenKit:
    """Tokens on every database."""
    return TokenKit(database, writer)
