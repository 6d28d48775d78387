"""The exceptions that servers answer with, and how a test expects one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cstp_grpc.contract.rpc_errors import ERROR_CLASSES, REASON_CODES

SERVER_ERRORS = [kind for reason, kind in ERROR_CLASSES.items() if not REASON_CODES[reason].bridge_only]


@contextmanager
def failing(kind: type[Exception], message: str) -> Iterator[None]:
    """Expect an error with exactly this message."""
    with pytest.raises(kind) as raised:
        yield
    assert str(raised.value) == message
