"""Routings and messages that wait for the disk hold no thread; what they answer is tried by the cases."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cstp_grpc.contract.json_codec import from_json
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.modules.liaison.routing import Router, RoutingAttempt, RoutingPlan
from tests.case_setup import CASES
from tests.harness import TIMEOUT, TOKENS, GrpcCaller, running, settings

ROUTE = "liaison.routeToLiaisonAgent"
WAITING = 12
"""More than any lane has threads."""
CONTEXT = {"topic": "files"}


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """Let nobody write to a database for the length of a block."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


def open_session(caller: GrpcCaller, session_id: str) -> None:
    outcome = caller.call("liaison.openSession", {"user_id": session_id, "chat_session_id": session_id})
    assert outcome.reason is None


def routing(session_id: str, **params: Any) -> dict[str, Any]:
    return {"target_pillar": "content", "chat_session_id": session_id, "context_to_share": CONTEXT, **params}


def begin(caller: GrpcCaller, method: str, params: dict[str, Any]) -> Any:
    """Begin a call, and return its future."""
    rpc = contract_methods()[method]
    invoke = caller.channel.unary_unary(rpc.path, rpc.request.SerializeToString, rpc.response.FromString)
    metadata = (("authorization", f"Bearer {TOKENS['alice']}"),)
    return invoke.future(from_json(params, rpc.request), timeout=TIMEOUT, metadata=metadata)


def test_a_routing_is_repeated_while_others_wait_for_the_disk(tmp_path: Path) -> None:
    wanted = settings(tmp_path)
    with running(wanted) as app, closing(GrpcCaller(app.target)) as caller:
        caller.call("liaison.heartbeat", {"target_pillar": "content"})
        for number in range(WAITING):
            open_session(caller, f"s-{number}")
        open_session(caller, "again")
        first = caller.call(ROUTE, routing("again")).result
        with locked(Path(wanted.storage_url.removeprefix("sqlite:///"))):
            begun = [begin(caller, ROUTE, routing(f"s-{number}")) for number in range(WAITING)]
            assert caller.call(ROUTE, routing("again")).result == first
            assert not any(call.done() for call in begun)
        sequences = [call.result().events[0].sequence for call in begun]
    assert len(set(sequences)) == WAITING


def test_sessions_are_listed_while_messages_wait_for_the_disk(tmp_path: Path) -> None:
    wanted = settings(tmp_path)
    said = {"chat_session_id": "s-1", "role": "user", "content": "Hello"}
    with running(wanted) as app, closing(GrpcCaller(app.target)) as caller:
        open_session(caller, "s-1")
        with locked(Path(wanted.storage_url.removeprefix("sqlite:///"))):
            begun = [begin(caller, "liaison.appendMessage", said) for _ in range(WAITING)]
            listed = caller.call("liaison.listSessions", {}).result
            assert listed is not None
            assert [session["message_count"] for session in listed["chat_sessions"]] == [0]
            assert not any(call.done() for call in begun)
        sequences = [call.result().message.sequence for call in begun]
    assert sorted(sequences) == list(range(1, WAITING + 1))


@pytest.mark.parametrize("size", [10, 20_000])
def test_a_routing_of_any_size_is_answered_and_on_disk(tmp_path: Path, size: int) -> None:
    """Small ones go another way than large ones."""
    context = {"text": "x" * size}
    with running(settings(tmp_path)) as app, closing(GrpcCaller(app.target)) as caller:
        caller.call("liaison.heartbeat", {"target_pillar": "content"})
        caller.call("liaison.openSession", {"user_id": "ada", "chat_session_id": "s-1", "context": context})
        answered = caller.call(ROUTE, routing("s-1", context_to_share=context)).result
        read = caller.call("liaison.getSession", {"chat_session_id": "s-1"}).result
    assert answered is not None
    assert read is not None
    assert answered["chat_session"] == read["chat_session"]
    activation = answered["artifacts"]["liaison_agent_activation"]
    assert activation["semantic_payload"]["shared_context"] == context


@pytest.mark.parametrize("rulebook", ["liaison.yaml", "breaker.yaml"])
def test_guardrails_over_the_past_are_not_judged_on_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rulebook: str
) -> None:
    planned: list[RoutingAttempt] = []
    plan_on_loop = Router._plan_on_loop

    def observe(self: Router, attempt: RoutingAttempt) -> RoutingPlan | None:
        planned.append(attempt)
        return plan_on_loop(self, attempt)

    monkeypatch.setattr(Router, "_plan_on_loop", observe)
    guardrails = {"config_path": str(CASES / "rulebooks" / rulebook)}
    with running(settings(tmp_path, cstp={"guardrails": guardrails})) as app, closing(GrpcCaller(app.target)) as caller:
        caller.call("liaison.heartbeat", {"target_pillar": "content"})
        open_session(caller, "s-1")
        assert caller.call(ROUTE, routing("s-1", routing_reason="files")).reason is None
    assert len(planned) == (rulebook == "liaison.yaml")
