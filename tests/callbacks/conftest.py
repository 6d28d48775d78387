"""Fixtures of callbacks."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from cstp_grpc.storage.writer import Writer
from tests.callbacks.kit import Kit


@pytest.fixture
def kit(engine: Engine, writer: Writer) -> Kit:
    return Kit(engine, writer)
