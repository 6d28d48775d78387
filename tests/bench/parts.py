"""Parts that a call is made of, each alone in this process."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.bench.load import OneByOne

COMMITS_TO_FIRST_CHECKPOINT: Final = 1100
"""SQLite makes one after 1000 pages, of which a commit writes at least one."""


def durable_transaction(folder: Path, count: int = 1) -> OneByOne:
    """Return transactions that put so many rows of an audit entry's size on disk, by the bare driver."""
    connection = sqlite3.connect(folder / "transactions.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("CREATE TABLE IF NOT EXISTS entries (id INTEGER PRIMARY KEY, content TEXT)")
    rows = [("x" * 300,)] * count

    def send(_: object) -> object:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO entries (content) VALUES (?)", rows)
        return connection.execute("COMMIT")

    # Commits take longer while the log grows, which it does until its first checkpoint; a server's log has its size.
    for _ in range(COMMITS_TO_FIRST_CHECKPOINT):
        send(None)
    connection.execute("PRAGMA synchronous=FULL")
    return without_request(send)


def without_request(act: Callable[[object], object]) -> OneByOne:
    """Return calls of a function that needs no request."""
    return OneByOne(lambda: None, act)
