"""A server whose pillars are served elsewhere: routing until the agent has the context."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from a2a.helpers import get_data_parts
from a2a.types.a2a_pb2 import TaskState

from cstp_grpc.client import CstpClient, RetryPolicy
from cstp_grpc.contract.errors import ContextSharingFailed, LiaisonAgentUnavailable
from cstp_grpc.gen.liaison.v1 import liaison_pb2 as pb2
from tests.client.a2a_agent import CARD, Agent, body, ending, running_agent, take
from tests.harness import TOKENS, running, settings
from tests.waiting import wait_until

PENDING, DELIVERED, FAILED = (
    pb2.DELIVERY_STATE_PENDING,
    pb2.DELIVERY_STATE_DELIVERED,
    pb2.DELIVERY_STATE_FAILED,
)


@contextmanager
def guide(folder: Path, delivery_seconds: float = 10.0, **pillar: Any) -> Iterator[CstpClient]:
    """Serve with a pillar of files, and yield a client that has a session open, called s-1."""
    liaison = {"pillars": {"files": pillar}, "availability_seconds": 0, "delivery_seconds": delivery_seconds}
    with (
        running(settings(folder, liaison=liaison)) as app,
        CstpClient(app.target, TOKENS["alice"], retries=RetryPolicy(attempts=1)) as client,
    ):
        client.liaison.open_session(chat_session_id="s-1", context={"shared_intent": "move the reports"})
        yield client


@pytest.fixture
def a2a() -> Iterator[Agent]:
    with running_agent(Agent()) as agent:
        yield agent


def key_of(answer: pb2.RouteToLiaisonAgentResponse) -> str:
    payload = answer.artifacts.liaison_agent_activation.semantic_payload
    return payload.routing_decision.idempotency_key


def share_in(client: CstpClient, share_id: str, state: pb2.DeliveryState.ValueType) -> pb2.Share:
    wait_until(lambda: client.liaison.get_share(share_id).delivery == state, "the delivery has come that far")
    return client.liaison.get_share(share_id)


def types(client: CstpClient) -> list[str]:
    return [event.type for event in client.liaison.list_events(chat_session_id="s-1")]


def test_a_routed_session_reaches_an_a2a_agent(tmp_path: Path, a2a: Agent) -> None:
    with guide(tmp_path, kind="a2a", url=a2a.url, token="its-own-token") as client:
        key = key_of(client.liaison.route_to_liaison_agent("files", chat_session_id="s-1", routing_reason="uploads"))
        share = share_in(client, key, DELIVERED)
        assert types(client) == ["session_opened", "liaison_agent_activated", "context_delivered"]
        assert client.liaison.get_session("s-1").active_agent == "liaison_files"
    [message] = a2a.messages
    [data] = get_data_parts(message.parts)
    assert (message.message_id, message.context_id, share.task_id) == (key, "s-1", message.task_id)
    assert data["shared_context"] == {"shared_intent": "move the reports", "conversation_history": []}
    assert (data["context_hash"], data["routing_reason"]) == (share.context_hash, "uploads")


def test_one_that_rejects_it_afterwards_is_told(tmp_path: Path, a2a: Agent) -> None:
    a2a.play = ending(TaskState.TASK_STATE_REJECTED, "Not today")
    with guide(tmp_path, kind="a2a", url=a2a.url) as client:
        key = key_of(client.liaison.route_to_liaison_agent("files", chat_session_id="s-1"))
        share_in(client, key, FAILED)
        assert types(client)[-1] == "delivery_failed"


def test_what_was_not_delivered_is_after_a_restart(tmp_path: Path, a2a: Agent) -> None:
    a2a.raws["/rpc"] = body(b"", 503)
    with guide(tmp_path, kind="a2a", url=a2a.url) as client:
        key = key_of(client.liaison.route_to_liaison_agent("files", chat_session_id="s-1"))
        wait_until(lambda: client.liaison.get_share(key).attempts > 0, "it was tried")
        assert client.liaison.get_share(key).delivery == PENDING
    del a2a.raws["/rpc"]
    with guide(tmp_path, kind="a2a", url=a2a.url) as client:
        share_in(client, key, DELIVERED)
    assert [message.message_id for message in a2a.messages] == [key]


def test_one_that_must_accept_first_has_it_before_the_session_is_handed_over(tmp_path: Path, a2a: Agent) -> None:
    with guide(tmp_path, kind="a2a", url=a2a.url, delivery="confirm") as client:
        key = key_of(client.liaison.route_to_liaison_agent("files", chat_session_id="s-1"))
        assert client.liaison.get_share(key).delivery == DELIVERED
        assert client.liaison.get_share(key).task_id == a2a.messages[0].task_id


@pytest.mark.parametrize("answer", ["rejected", "broken"])
def test_after_a_refusal_nothing_has_changed(tmp_path: Path, a2a: Agent, answer: str) -> None:
    if answer == "rejected":
        a2a.play = ending(TaskState.TASK_STATE_REJECTED, "Not today")
    else:
        a2a.raws["/rpc"] = body(b"secret of a proxy", 500)
    with guide(tmp_path, kind="a2a", url=a2a.url, delivery="confirm") as client:
        with pytest.raises(ContextSharingFailed) as failed:
            client.liaison.route_to_liaison_agent("files", chat_session_id="s-1")
        assert "secret" not in failed.value.message
        assert client.liaison.get_session("s-1").active_agent == "guide"
        assert types(client) == ["session_opened"]
        a2a.play, a2a.raws = take, {}
        client.liaison.route_to_liaison_agent("files", chat_session_id="s-1")
        assert client.liaison.get_session("s-1").active_agent == "liaison_files"


def test_a_session_is_not_routed_to_one_that_is_away(tmp_path: Path, a2a: Agent) -> None:
    a2a.raws[CARD] = body(b"", 404)
    with guide(tmp_path, kind="a2a", url=a2a.url) as client:
        with pytest.raises(LiaisonAgentUnavailable, match="no agent card"):
            client.liaison.route_to_liaison_agent("files", chat_session_id="s-1")
        assert types(client) == ["session_opened"]


def test_a_routed_session_reaches_the_agent_of_another_server(tmp_path: Path) -> None:
    there = settings(tmp_path / "there", liaison={"pillars": {"files": {"agent": "alice"}}})
    with running(there) as app, CstpClient(app.target, TOKENS["alice"]) as specialist:
        specialist.liaison.heartbeat("files")
        url = f"grpc://{app.target}"
        with guide(tmp_path / "here", kind="grpc", url=url, token=TOKENS["bob"]) as client:
            key = key_of(client.liaison.route_to_liaison_agent("files", chat_session_id="s-1"))
            share_in(client, key, DELIVERED)
        assert specialist.liaison.get_share(key).conversation_id == "s-1"
