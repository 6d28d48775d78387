"""Times as people type them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.common.typed_times import parse_time
from tests.cli.conftest import Server

NOW = datetime(2026, 11, 28, 11, 30, tzinfo=UTC)
"""A Saturday."""


@pytest.mark.parametrize(
    ("text", "past", "future"),
    [
        ("7d", "2026-11-21T11:30:00", "2026-12-05T11:30:00"),
        ("1h30m", "2026-11-28T10:00:00", "2026-11-28T13:00:00"),
        ("2W", "2026-11-14T11:30:00", "2026-12-12T11:30:00"),
        ("now", "2026-11-28T11:30:00", "2026-11-28T11:30:00"),
        ("today", "2026-11-28T00:00:00", "2026-11-28T00:00:00"),
        ("Yesterday", "2026-11-27T00:00:00", "2026-11-27T00:00:00"),
        ("tomorrow", "2026-11-29T00:00:00", "2026-11-29T00:00:00"),
        ("2026-11-17", "2026-11-17T00:00:00", "2026-11-17T00:00:00"),
        ("2026-11-17T10:00:00+02:00", "2026-11-17T08:00:00", "2026-11-17T08:00:00"),
        ("last tuesday", "2026-11-24T00:00:00", "2026-11-24T00:00:00"),
        ("tuesday", "2026-11-24T00:00:00", "2026-12-01T00:00:00"),
        ("saturday", "2026-11-21T00:00:00", "2026-12-05T00:00:00"),
        ("sunday", "2026-11-22T00:00:00", "2026-11-29T00:00:00"),
        ("2 weeks ago", "2026-11-14T11:30:00", "2026-11-14T11:30:00"),
        ("next friday", "2026-12-04T00:00:00", "2026-12-04T00:00:00"),
        ("3 days ago", "2026-11-25T11:30:00", "2026-11-25T11:30:00"),
        ("17 nov 10:00", "2026-11-17T10:00:00", "2027-11-17T10:00:00"),
        ("september 2025", "2025-09-01T00:00:00", "2025-09-01T00:00:00"),
        ("yesterday at 15:30", "2026-11-27T15:30:00", "2026-11-27T15:30:00"),
    ],
)
def test_a_time_is_read_as_people_mean_it(text: str, past: str, future: str) -> None:
    assert parse_time(text, NOW, is_future=False).instant == datetime.fromisoformat(past).replace(tzinfo=UTC)
    assert parse_time(text, NOW, is_future=True).instant == datetime.fromisoformat(future).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    [
        *("", "1", "a", "12", "soon", "7x", "foo 7d", "9999999d", "9" * 101, "11/12/2026"),
        *("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-10:00"),
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time like 7d, yesterday, 2026-01-31"):
        parse_time(text, NOW, is_future=False)


def test_any_text_is_a_time_or_refused() -> None:
    @given(st.text(max_size=30), st.booleans())
    def check(text: str, is_future: bool) -> None:
        with contextlib.suppress(ValueError):
            assert parse_time(text, NOW, is_future=is_future).instant.tzinfo is not None

    check()


def test_simple_forms_do_not_load_the_library() -> None:
    program = (
        "import sys; from cstp_grpc.cli.typed_times import parse_past\n"
        "for text in ('7d', 'yesterday', '2026-11-17', 'last tuesday', '3 days ago'): parse_past(text)\n"
        "assert 'dateparser' not in sys.modules\n"
        "parse_past('last month')\n"
        "assert 'dateparser' in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.startswith("'last month' is 20")


def test_listings_take_such_times(shared_server: Server) -> None:
    shared_server.ok("record", "Use a queue", "--confidence", "0.5", "--category", "process")
    assert "Use a queue" in shared_server.ok("list", "--since", "1h")
    assert "Use a queue" not in shared_server.ok("list", "--until", "yesterday")
    assert shared_server.json("audit", "--after", "yesterday", "--before", "tomorrow")["entries"]
    refused = shared_server("list", "--after", "soon")
    assert refused.exit_code == 2
    assert "is not a time like 7d" in refused.stderr
