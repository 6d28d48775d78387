"""Fixtures of callbacks."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from cstp_grpc.storage.writer import GroupCommitWriter
from tests.callbacks.kit import Kit


@pytest.fixture
def kit(engine: Engine, writer: GroupCommitWriter) -> Kit:
    return Kit(engine, writer)
