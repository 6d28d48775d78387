"""Fixtures of the servicers."""

from __future__ import annotations

import pytest

from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.services.served import Served


@pytest.fixture
def database_kind() -> str:
    """Servicers translate; the stores' tests try the other database."""
    return "sqlite"


@pytest.fixture
def served(database: Database, writer: GroupCommitWriter) -> Served:
    return Served(database, writer)
