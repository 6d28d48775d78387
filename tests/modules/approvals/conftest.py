"""Fixtures for approvals."""

from __future__ import annotations

import pytest

from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.modules.approvals.kit import ApprovalKit


@pytest.fixture
def kit(database: Database, writer: GroupCommitWriter) -> ApprovalKit:
    """Approvals on every database."""
    return ApprovalKit(database, writer)
