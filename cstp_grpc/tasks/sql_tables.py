"""The tables of A2A tasks and their push notifications, as the newest migration leaves them."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKeyConstraint, Index, Integer, LargeBinary, Table, Text

from cstp_grpc.storage.schema import IDENTIFIER, UtcDateTime, metadata

tasks = Table(
    "tasks",
    metadata,
    Column("agent", IDENTIFIER, primary_key=True),
    Column("id", IDENTIFIER, primary_key=True),
    Column("context_id", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    Column("settles_at", UtcDateTime, nullable=False),
    # Last, because SQLite reads a row from its start: a column behind large content costs reading the content too.
    Column("content", LargeBinary, nullable=False),
    Index(None, "agent", "settles_at", "id"),
    Index(None, "agent", "context_id", "settles_at", "id"),
    Index(None, "settles_at"),
)
"""A2A tasks, one row for each agent and id.

`updated_at` is when the task was saved. `settles_at` is when it cannot change any more: the same instant for one that
ended, the end of its time for any other. So one index orders settled tasks and finds those that can still change, and
nothing is written when the time of a task runs out.
"""

push_configs = Table(
    "push_configs",
    metadata,
    Column("agent", IDENTIFIER, primary_key=True),
    Column("task_id", IDENTIFIER, primary_key=True),
    Column("id", IDENTIFIER, primary_key=True),
    Column("set_at", UtcDateTime, nullable=False),
    Column("format", Text, nullable=False),
    Column("url", Text, nullable=False),
    Column("token", Text, nullable=False),
    Column("scheme", Text, nullable=False),
    Column("credentials", Text, nullable=False),
    ForeignKeyConstraint(["agent", "task_id"], ["tasks.agent", "tasks.id"], ondelete="CASCADE"),
    sqlite_with_rowid=False,
)
"""The push configurations of tasks; `url`, `token` and `credentials` may be secrets."""

task_notifications = Table(
    "task_notifications",
    metadata,
    Column("agent", IDENTIFIER, primary_key=True),
    Column("task_id", IDENTIFIER, primary_key=True),
    Column("config_id", IDENTIFIER, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("id", IDENTIFIER, nullable=False),
    Column("caused_at", UtcDateTime, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("next_attempt_at", UtcDateTime, nullable=False),
    Column("context_id", Text),
    Column("state", Text),
    Column("changed_at", UtcDateTime),
    Column("content", LargeBinary),
    ForeignKeyConstraint(
        ["agent", "task_id", "config_id"],
        ["push_configs.agent", "push_configs.task_id", "push_configs.id"],
        ondelete="CASCADE",
    ),
    Index(None, "next_attempt_at"),
)
"""Queued push notifications, each about a version of a task, until they are delivered or abandoned.

The last four columns are a snapshot of a version that was replaced before its notification was delivered; NULL for the
stored version. While a task is at work, a notification about the version after it is queued for the end of its time.
"""
