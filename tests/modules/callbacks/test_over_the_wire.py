"""Announcing agents are told later by real servers, over both transports."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from sqlalchemy import Table, func, select

from cstp_grpc.gen.cstp.v1 import cstp_pb2, cstp_pb2_grpc
from cstp_grpc.modules.callbacks.sql_store import callbacks, citations
from cstp_grpc.platform.config import Settings
from cstp_grpc.platform.storage.database import open_database
from cstp_grpc.server.app import App
from tests.grpc_servers import grpc_server
from tests.harness import TOKENS, GrpcCaller, JsonRpcCaller, bridging, running, settings
from tests.modules.approvals.serving import RULEBOOK
from tests.modules.federation.agents import PEER_TOKEN, agent_settings, peer
from tests.modules.webhooks.receiver import Receiver, receiving
from tests.waiting import SECONDS, wait_until

Caller = GrpcCaller | JsonRpcCaller
SOON = 0.3


class SlowAgent(cstp_pb2_grpc.CstpServiceServicer):
    """An agent that answers announcements when it is let."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.asked: list[cstp_pb2.AnnounceIntentRequest] = []

    def AnnounceIntent(  # noqa: N802
        self, request: cstp_pb2.AnnounceIntentRequest, context: grpc.ServicerContext
    ) -> cstp_pb2.AnnounceIntentResponse:
        self.asked.append(request)
        self.may_answer.wait(SECONDS)
        return cstp_pb2.AnnounceIntentResponse(
            received=True,
            correlation_id=request.correlation_id,
            received_at=Timestamp(seconds=1_767_268_800),
            guardrail_status=cstp_pb2.GuardrailStatus(allowed=True, evaluated=3),
            suggestions=["Ship on Monday"],
            responding_agent="slow",
        )


@contextmanager
def slow_agent() -> Iterator[tuple[SlowAgent, str]]:
    # The generated base class answers other methods with UNIMPLEMENTED; only its stub calls it abstract.
    agent = SlowAgent()  # type: ignore[abstract]
    with grpc_server(lambda server: cstp_pb2_grpc.add_CstpServiceServicer_to_server(agent, server)) as port:
        try:
            yield agent, f"grpc://127.0.0.1:{port}"
        finally:
            agent.may_answer.set()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


def telling(wanted: Settings) -> AbstractContextManager[App]:
    """Run a server that may call this machine."""
    return running(wanted, permitted=lambda address: address == "127.0.0.1")


@contextmanager
def calling(app: App, wanted: Settings, transport: str) -> Iterator[Caller]:
    with ExitStack() as opened:
        caller: Caller = GrpcCaller(app.target)
        if transport == "jsonrpc":
            opened.callback(caller.close)
            caller = JsonRpcCaller(opened.enter_context(bridging(wanted, app.target)))
        opened.callback(caller.close)
        yield caller


def house(folder: Path, receiver: Receiver, **more: Any) -> Settings:
    return agent_settings(folder, "house", callbacks={"allow": [f"{receiver.url}/hooks/"]}, **more)


def result_of(caller: Caller, method: str, params: dict[str, Any]) -> dict[str, Any]:
    outcome = caller.call(method, params)
    assert outcome.result is not None, outcome
    return outcome.result


def announce(caller: Caller, receiver: Receiver, url: str = "/hooks/7", **more: Any) -> dict[str, Any]:
    params = {"intent": "Use a queue", "correlationId": "c-1", "agent": {"url": f"{receiver.url}{url}"}, **more}
    return result_of(caller, "cstp.announceIntent", params)


def record(caller: Caller, title: str = "Use a queue") -> str:
    decision = {"title": title, "visibility": "shared", "notes": "It was slow"}
    identifier: str = result_of(caller, "cstp.recordDecision", {"decision": decision})["decision"]["id"]
    return identifier


def review(caller: Caller, identifier: str) -> None:
    result_of(caller, "cstp.reviewDecision", {"id": identifier, "outcome": "failure"})


def entries(caller: Caller) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = result_of(caller, "cstp.listAuditEntries", {"event": "callback_sent"})["entries"]
    return found


def count(wanted: Settings, *tables: Table) -> int:
    database = open_database(wanted.storage_url, 1)
    with database.engine.connect() as connection:
        counts = [connection.execute(select(func.count()).select_from(table)).scalar_one() for table in tables]
    database.close()
    return sum(counts)


@pytest.mark.parametrize("transport", ["grpc", "jsonrpc"])
def test_a_decision_that_fails_is_told_to_whom_it_was_cited(tmp_path: Path, receiver: Receiver, transport: str) -> None:
    wanted = house(tmp_path, receiver)
    with telling(wanted) as app, calling(app, wanted, transport) as caller:
        identifier = record(caller)
        assert announce(caller, receiver)["similarDecisions"][0]["id"] == identifier
        review(caller, identifier)
        wait_until(lambda: bool(receiver.received), "it is told")
        wait_until(lambda: bool(entries(caller)), "it is on record")
        (entry,) = entries(caller)
    (received,) = receiver.received
    assert received.path == "/hooks/7"
    assert received.content["method"] == "cstp.citedDecisionFailed"
    assert "id" not in received.content
    assert (received.params["correlationId"], received.params["respondingAgent"]) == ("c-1", "house")
    assert received.params["decision"]["id"] == identifier
    assert received.params["decision"]["outcome"] == "failure"
    assert (entry["requestingAgent"], entry["correlationId"], entry["decisionId"]) == ("alice", "c-1", identifier)
    assert entry["requestId"] == received.params["notificationId"]


@pytest.mark.parametrize("transport", ["grpc", "jsonrpc"])
def test_what_a_peer_answers_late_is_told(tmp_path: Path, receiver: Receiver, transport: str) -> None:
    with slow_agent() as (slow, url):
        peers = [peer("slow", url, role="required", timeout_seconds=SOON)]
        wanted = house(tmp_path, receiver, peers=peers)
        with telling(wanted) as app, calling(app, wanted, transport) as caller:
            answer = announce(caller, receiver, scope="federated")
            assert answer["guardrailStatus"]["allowed"] is False
            assert [each["status"] for each in answer["responses"]] == ["timed_out"]
            wait_until(lambda: bool(slow.asked), "the peer is asked")
            assert not slow.asked[0].agent.url
            slow.may_answer.set()
            wait_until(lambda: bool(receiver.received), "it is told")
    (received,) = receiver.received
    assert received.content["method"] == "cstp.lateFeedback"
    assert set(received.params) == {"notificationId", "correlationId", "respondingAgent", "revision", "response"}
    assert received.params["revision"] == answer["revision"] == 1
    response = received.params["response"]
    assert (response["agent"], response["status"]) == ("slow", "answered")
    assert response["guardrailStatus"]["allowed"] is True
    assert response["feedback"]["suggestions"] == ["Ship on Monday"]


def test_what_could_not_be_sent_is_sent_by_the_next_process(tmp_path: Path, receiver: Receiver) -> None:
    wanted = house(tmp_path, receiver)
    receiver.statuses = [503, 204]
    with telling(wanted) as app, calling(app, wanted, "grpc") as caller:
        identifier = record(caller)
        announce(caller, receiver)
        review(caller, identifier)
        wait_until(lambda: len(receiver.received) == 1, "it is tried")
    with telling(wanted) as app, calling(app, wanted, "grpc") as caller:
        wait_until(lambda: bool(entries(caller)), "it is sent")
    first, second = receiver.received
    assert first.content == second.content


def test_nobody_is_told_at_an_address_that_is_not_on_the_list(tmp_path: Path, receiver: Receiver) -> None:
    wanted = house(tmp_path, receiver)
    with telling(wanted) as app, calling(app, wanted, "grpc") as caller:
        identifier = record(caller)
        for number, url in enumerate(("/hooks", "/other", "/hooks/../x", "/hooks/%2e%2e/x")):
            announce(caller, receiver, url, correlationId=f"c-{number}")
        review(caller, identifier)
        assert count(wanted, citations, callbacks) == 0


def test_without_a_list_nothing_is_kept_and_nothing_runs(tmp_path: Path, receiver: Receiver) -> None:
    wanted = agent_settings(tmp_path, "house")
    with telling(wanted) as app, calling(app, wanted, "grpc") as caller:
        identifier = record(caller)
        announce(caller, receiver)
        review(caller, identifier)
        assert count(wanted, citations, callbacks) == 0
        names = {thread.name for thread in threading.enumerate()}
        assert not [name for name in names if name.startswith(("callbacks", "citation"))]


def test_a_server_calls_no_address_of_its_own_network(tmp_path: Path, receiver: Receiver) -> None:
    wanted = house(tmp_path, receiver)
    with running(wanted) as app, calling(app, wanted, "grpc") as caller:
        identifier = record(caller)
        announce(caller, receiver)
        review(caller, identifier)
        wait_until(lambda: bool(entries(caller)), "it is given up")
        assert [entry["error"] for entry in entries(caller)] == ["UNAVAILABLE"]
    assert receiver.received == []


def test_what_is_not_shared_any_more_is_not_told(tmp_path: Path, receiver: Receiver) -> None:
    wanted = house(tmp_path, receiver)
    receiver.statuses = [503]
    with telling(wanted) as app, calling(app, wanted, "grpc") as alice:
        identifier = record(alice)
        params = {"intent": "Use a queue", "agent": {"url": f"{receiver.url}/hooks/"}}
        outcome = alice.call("cstp.announceIntent", params, PEER_TOKEN)
        assert outcome.result is not None
        review(alice, identifier)
        wait_until(lambda: bool(receiver.received), "it is tried")
        result_of(alice, "cstp.unshareDecision", {"id": identifier})
        wait_until(lambda: count(wanted, callbacks) == 0, "it is withdrawn")
        assert entries(alice) == []


@pytest.mark.parametrize("decision", ["grant", "deny"])
def test_an_agent_that_waits_for_an_approval_is_told_of_the_decision(
    receiver: Receiver, decision: str, tmp_path: Path
) -> None:
    rules = {"guardrails": {"config_path": str(RULEBOOK)}}
    wanted = settings(tmp_path, cstp=rules, federation={"callbacks": {"allow": [f"{receiver.url}/hooks/"]}})
    with telling(wanted) as app, calling(app, wanted, "grpc") as caller:
        intent = {"intent": "Update prices", "metadata": {"rows": 5000}, "correlationId": "prices-1"}
        answer = result_of(caller, "cstp.announceIntent", {**intent, "agent": {"url": f"{receiver.url}/hooks/1"}})
        approval_id = answer["guardrailStatus"]["approval"]["id"]
        decided = caller.call(f"cstp.{decision}Approval", {"id": approval_id, "comment": "Seen"}, TOKENS["bob"])
        assert decided.reason is None, decided
        wait_until(lambda: len(receiver.received) == 1, "alice is told")
    (told,) = receiver.received
    assert told.content["method"] == "cstp.approvalDecided"
    assert told.content["params"]["correlationId"] == "prices-1"
    approval = told.content["params"]["approval"]
    status = {"grant": "granted", "deny": "denied"}[decision]
    assert (approval["id"], approval["status"], approval["comment"]) == (approval_id, status, "Seen")
