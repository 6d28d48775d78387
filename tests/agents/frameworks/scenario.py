"""What the agents of all frameworks do in tests: drop tables, some of which guardrails protect.

It is imported in the environments of the frameworks, too, which have no server: that one runs in the process that
starts their tests.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from cstp_grpc.agents.frameworks.tool_guard import ToolGuard
from cstp_grpc.agents.hooks.tool_rules import ToolRules
from cstp_grpc.client import CstpClient, RetryPolicy
from cstp_grpc.gen.cstp.v1 import journal_pb2, types_pb2

TARGET_VARIABLE = "FRAMEWORKS_TARGET"
TOKEN_VARIABLE = "FRAMEWORKS_TOKEN"
MODULE_VARIABLE = "FRAMEWORKS_MODULE"
"""By which variables the tests of a framework are told of the server, and which framework they are about."""
RULEBOOK = """
apiVersion: cstp.guardrails/v1
metadata: {name: tables, version: "1"}
inputs:
  destroysData: {type: bool, default: false, description: Whether data are lost}
  movesMoney: {type: bool, default: false, description: Whether money is moved}
guardrails:
  - id: no-data-loss
    name: Data are kept
    when: context.destroysData
    severity: block
    message: Orders are never dropped
    suggestion: Archive the table
  - id: ask-about-money
    name: Money is approved
    when: context.movesMoney
    severity: approve
    message: A person approves what moves money
"""
PROTECTED = [
    {"argument": "table", "matches": "^orders", "set": {"destroysData": True}},
    {"argument": "table", "matches": "^payments", "set": {"movesMoney": True}},
]
TOOLS: dict[str, Any] = {
    "tools": [
        {
            "tool": "drop_table",
            "ask": "announce",
            "description": "Drop the table {table}",
            "category": "database",
            "inputs": PROTECTED,
        },
        {"tool": "read_table", "ask": "check", "description": "Read the table {table}", "inputs": PROTECTED},
        {"tool": "list_tables", "ask": "nothing"},
    ]
}
RULES = ToolRules.parse(TOOLS)
BLOCKED_WORDS = ("Orders are never dropped", "Archive the table")
"""What a model is told of a blocked call: message and suggestion."""
QUESTION_WORDS = "A person approves what moves money"
UNREACHABLE_WORDS = "CSTP could not be asked"
BROKEN_WORDS = "the disk is full"
NOBODY = "grpc://127.0.0.1:1"
"""A target at which nobody listens: the port of tcpmux."""


def name_table(kind: str) -> str:
    """Return a name that no other test uses, of a table that is `orders`, `payments`, `broken` or of another kind."""
    return f"{kind}_{uuid.uuid4().hex[:8]}"


@dataclass
class Tables:
    """What the tool does, whichever framework calls it."""

    dropped: list[str] = field(default_factory=list)

    def drop(self, table: str) -> str:
        """Drop a table; the broken ones cannot be dropped."""
        if table.startswith("broken"):
            raise OSError(BROKEN_WORDS)
        self.dropped.append(table)
        return f"{table} is dropped"


def guard_with(client: Any, **options: Any) -> ToolGuard:
    """Return a guard with the rules of the scenario."""
    return ToolGuard(client, rules=RULES, **{"confidence": 0.7, **options})


@contextmanager
def unreachable_client() -> Iterator[CstpClient]:
    """Yield a client whose server is away."""
    with CstpClient(NOBODY, "no-token", retries=RetryPolicy(attempts=1)) as client:
        yield client


def decision_about(client: CstpClient, table: str) -> journal_pb2.Decision | None:
    """Return the decision to drop a table, or None if none was recorded."""
    found = [each for each in client.list_decisions() if each.title == f"Drop the table {table}"]
    assert len(found) <= 1
    return found[0] if found else None


def outcome_of(client: CstpClient, table: str) -> str | None:
    """Return the outcome of the decision to drop a table, or None if none was recorded."""
    decision = decision_about(client, table)
    return decision and types_pb2.Outcome.Name(decision.outcome).removeprefix("OUTCOME_").lower()
