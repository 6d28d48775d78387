"""Agents that ask their peers, and what tests ask them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.harness import GrpcCaller, JsonRpcCaller

PRODUCTION = {"id": "no-production", "when": "context.production", "suggestion": "Ask for a window"}
RISK = {"id": "no-risk", "when": "context.risky"}
OWN = {"id": "not-twice", "when": "context.reviewed", "message": "It was reviewed"}
SHARED = {"visibility": "shared"}
TIMEOUT = 20.0


Caller = GrpcCaller | JsonRpcCaller


@dataclass(frozen=True)
class House:
    """Agent a with its peers: b, which is required, and c, which advises; each has a decision of its own."""

    a: Caller
    b: GrpcCaller
    c: GrpcCaller
    targets: tuple[str, str]
    """Where b and c are."""

    def check(self, scope: str | None = "federated", **more: Any) -> dict[str, Any]:
        return result_of(self.a, "cstp.checkGuardrails", {**given(scope), "action": {"description": "Ship it", **more}})


def given(scope: str | None) -> dict[str, Any]:
    return {} if scope is None else {"scope": scope}


def result_of(caller: Caller, method: str, params: dict[str, Any]) -> dict[str, Any]:
    outcome = caller.call(method, params)
    assert outcome.result is not None, outcome
    return outcome.result


def brief(verdict: dict[str, Any]) -> tuple[bool, list[str], list[str]]:
    """Return whether an action is allowed, what blocks and what warns, each as `agent/guardrail`."""
    violations, warnings = (
        [f"{each.get('agent')}/{each['guardrailId']}" for each in verdict[name]] for name in ("violations", "warnings")
    )
    return verdict["allowed"], violations, warnings


def statuses(answer: dict[str, Any]) -> dict[str, str]:
    return {response["agent"]: response["status"] for response in answer["responses"]}


def record(caller: Caller, title: str, **more: Any) -> str:
    answer = result_of(caller, "cstp.recordDecision", {"decision": {"title": title, **SHARED, **more}})
    identifier: str = answer["decision"]["id"]
    return identifier


@contextmanager
def silent() -> Iterator[str]:
    """Hold a port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        yield f"grpc://127.0.0.1:{held.getsockname()[1]}"


@contextmanager
def held() -> Iterator[socket.socket]:
    """Hold a free port until it is needed."""
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        yield port


def at_port(wanted: Any, number: int) -> Any:
    return wanted.grpc.model_copy(update={"port": number})


METHODS: dict[str, dict[str, Any]] = {
    "cstp.checkGuardrails": {"action": {"description": "Ship it", "stakes": "critical", "context": {"reviewed": True}}},
    "cstp.announceIntent": {"intent": "Ship it", "stakes": "critical", "metadata": {"reviewed": True}},
    "cstp.queryDecisions": {"query": "queue"},
}
