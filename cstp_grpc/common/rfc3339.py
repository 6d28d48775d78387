"""Instants as text of RFC 3339."""

from __future__ import annotations

from datetime import UTC, datetime


def format_rfc3339(instant: datetime) -> str:
    """Format an aware instant in UTC: `2026-02-06T10:00:00Z`."""
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")
