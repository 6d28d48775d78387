"""Logging of server processes to standard error."""

from __future__ import annotations

import logging
import sys

from cstp_grpc.config import Settings


def log_to_stderr(settings: Settings, process: str | None = None) -> None:
    """Log to standard error, one line per event; `process` names this process among several."""
    name = f"{process}: " if process else ""
    logging.basicConfig(
        level=settings.logging.level.upper(),
        stream=sys.stderr,
        format=f"%(asctime)s %(levelname)s {name}%(name)s: %(message)s",
    )
    # Alembic tells every migration step and httpx every request; the server itself says what matters.
    for talkative in ("alembic", "httpx"):
        logging.getLogger(talkative).setLevel(logging.WARNING)
