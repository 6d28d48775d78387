"""Remote liaison agents: real A2A agents, and real CSTP servers over gRPC and JSON-RPC."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from a2a.helpers import get_data_parts
from a2a.types.a2a_pb2 import TaskState
from a2a.utils.errors import InvalidParamsError
from aiohttp import web
from pydantic import SecretStr

from cstp_grpc.client import CstpClient
from cstp_grpc.common.canonical_json import hash_canonical_json
from cstp_grpc.contract.enums import DEFAULT_TENANT
from cstp_grpc.contract.errors import ConfigError, ContextSharingFailed, LiaisonAgentUnavailable
from cstp_grpc.contract.rpc_errors import STATUS_KEY
from cstp_grpc.modules.liaison.agents import DeliveryRequest, RemoteLiaisonAgent
from cstp_grpc.modules.liaison.model import RoutingDecision, Share
from cstp_grpc.modules.liaison.remote_agents import MAX_HOPS, RemoteAgent, build_remote_agent
from cstp_grpc.platform.config import LiaisonSettings, PillarSettings
from cstp_grpc.platform.storage.delivery_queue import DeliveryFailed, DeliveryRejected
from cstp_grpc.server.interceptors.error_status import to_status
from tests.certificates import Certificate
from tests.client.a2a_agent import CARD, Agent, Raw, body, ending, raising, running_agent
from tests.error_classes import failing
from tests.harness import TOKENS, bridging, running, settings
from tests.named_case import named_case
from tests.waiting import SECONDS, wait_until

NOON = datetime(2026, 2, 4, 12, 0, tzinfo=UTC)
CONTEXT = {"shared_intent": "move the reports", "conversation_history": []}
QUICK = {"probe_seconds": 0.2, "delivery_seconds": 0.2}
"""Bounds for what is known never to answer."""


def share(**changes: Any) -> Share:
    first = Share(
        tenant=DEFAULT_TENANT,
        id="share-1",
        source_agent="guide",
        target_agent="liaison_content",
        conversation_id="session-1",
        shared_context=CONTEXT,
        context_hash=hash_canonical_json(CONTEXT),
        shared_by="alice",
        shared_at=NOON,
    )
    return replace(first, **changes)


DECISION = RoutingDecision("guide", "liaison_content", "files", NOON, "share-1")
ROUTED = DeliveryRequest(share(), DECISION, "content")


@contextmanager
def remote(
    kind: str, url: str, token: str | None = None, *, bounds: Mapping[str, float] | None = None, **more: Any
) -> Iterator[RemoteAgent]:
    """Build a remote agent for the length of a block; nothing is remembered unless `bounds` say so."""
    pillar = PillarSettings(kind=kind, url=url, token=None if token is None else SecretStr(token), **more)  # type: ignore[arg-type]
    wanted = {"probe_seconds": SECONDS, "delivery_seconds": SECONDS, "availability_seconds": 0.0, **(bounds or {})}
    agent = build_remote_agent("content", pillar, LiaisonSettings(**wanted))  # type: ignore[arg-type]
    try:
        yield agent
    finally:
        agent.close()


def unavailable(agent: RemoteAgent) -> LiaisonAgentUnavailable:
    with pytest.raises(LiaisonAgentUnavailable) as raised:
        agent.check(DEFAULT_TENANT)
    return raised.value


@pytest.fixture
def a2a() -> Iterator[Agent]:
    with running_agent(Agent()) as running_one:
        yield running_one


# A2A agents


def test_an_a2a_agent_is_given_all_of_a_parcel(a2a: Agent) -> None:
    with remote("a2a", a2a.url, "its-token") as agent:
        task_id = agent.deliver(ROUTED)
    [message] = a2a.messages
    assert task_id == message.task_id
    assert (message.message_id, message.context_id) == ("share-1", "session-1")
    assert get_data_parts(message.parts) == [
        {
            "intent_type": "route_to_liaison_agent",
            "share_id": "share-1",
            "source_agent": "guide",
            "target_agent": "liaison_content",
            "target_pillar": "content",
            "chat_session_id": "session-1",
            "routing_reason": "files",
            "routing_decision": {
                "from": "guide",
                "to": "liaison_content",
                "reason": "files",
                "decided_at": "2026-02-04T12:00:00Z",
                "idempotency_key": "share-1",
            },
            "context_hash": hash_canonical_json(CONTEXT),
            "shared_context": CONTEXT,
        }
    ]
    assert a2a.headers[-1]["authorization"] == "Bearer its-token"


def test_a_parcel_without_a_routing_says_so(a2a: Agent) -> None:
    with remote("a2a", a2a.url) as agent:
        agent.deliver(DeliveryRequest(share(conversation_id=None), None, "content"))
    [data] = get_data_parts(a2a.messages[0].parts)
    assert data == {
        "intent_type": "share_context_to_agent",
        "share_id": "share-1",
        "source_agent": "guide",
        "target_agent": "liaison_content",
        "target_pillar": "content",
        "context_hash": hash_canonical_json(CONTEXT),
        "shared_context": CONTEXT,
    }


def test_what_tenants_call_alike_is_different_to_the_agent(a2a: Agent) -> None:
    with remote("a2a", a2a.url) as agent:
        for tenant in (DEFAULT_TENANT, "acme", "other"):
            agent.deliver(DeliveryRequest(share(tenant=tenant), None, "content"))
            agent.deliver(DeliveryRequest(share(tenant=tenant), None, "content"))
    for names in ([each.message_id for each in a2a.messages], [each.context_id for each in a2a.messages]):
        assert len(set(names)) == 3
        assert names[::2] == names[1::2]


def test_an_a2a_agent_may_refuse(a2a: Agent) -> None:
    a2a.play = ending(TaskState.TASK_STATE_REJECTED, "Not today")
    with remote("a2a", a2a.url) as agent, failing(DeliveryRejected, "rejected: Not today"):
        agent.deliver(ROUTED)


def test_an_a2a_agent_may_be_broken(a2a: Agent) -> None:
    a2a.raws["/rpc"] = body(b"secret text of a proxy", 502)
    with remote("a2a", a2a.url) as agent, failing(DeliveryFailed, "answered HTTP 502"):
        agent.deliver(ROUTED)


def test_an_a2a_agent_is_there_as_long_as_its_card_is(a2a: Agent) -> None:
    with remote("a2a", a2a.url) as agent:
        agent.check(DEFAULT_TENANT)
        a2a.raws[CARD] = body(b"", 404)
        error = unavailable(agent)
        assert error.message == "liaison_content is not available: no agent card"
        assert error.metadata == {"target_pillar": "content", "reason": "no agent card"}
        del a2a.raws[CARD]
        agent.check(DEFAULT_TENANT)


def test_an_a2a_agent_that_hangs_is_not_waited_for(a2a: Agent) -> None:
    async def hang(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    a2a.raws = {CARD: hang}
    with remote("a2a", a2a.url, bounds=QUICK) as agent:
        assert unavailable(agent).metadata["reason"] == "no answer in time"
        with pytest.raises(DeliveryFailed, match="no answer in time"):
            agent.deliver(ROUTED)


# Availability


def cards_of(agent: Agent) -> int:
    """Return how often the card was asked for."""
    return len(agent.headers)


def test_availability_is_remembered(a2a: Agent) -> None:
    with remote("a2a", a2a.url, bounds={"availability_seconds": 3600.0}) as agent:
        for _ in range(3):
            agent.check(DEFAULT_TENANT)
    assert cards_of(a2a) == 1


def test_unavailability_is_remembered_and_the_error_says_for_how_long(a2a: Agent) -> None:
    a2a.raws[CARD] = body(b"", 503)
    with remote("a2a", a2a.url, bounds={"availability_seconds": 3600.0}) as agent:
        waits = [unavailable(agent).retry_after for _ in range(3)]
    assert cards_of(a2a) == 1
    assert all(wait is not None and 3500 < wait <= 3600 for wait in waits)


def test_many_who_ask_at_once_are_answered_by_one_probe(a2a: Agent) -> None:
    may_answer = asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def slowly(request: web.Request) -> web.StreamResponse:
        loops.append(asyncio.get_running_loop())
        await may_answer.wait()
        return web.json_response(a2a.card_json())

    a2a.raws[CARD] = slowly
    bounds = {"availability_seconds": 3600.0}
    with remote("a2a", a2a.url, bounds=bounds) as agent, ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(agent.check, DEFAULT_TENANT) for _ in range(8)]
        wait_until(lambda: bool(loops), "the card is asked for")
        assert not any(each.done() for each in asking)
        loops[0].call_soon_threadsafe(may_answer.set)
        for each in asking:
            each.result(SECONDS)
    assert cards_of(a2a) == 1


# CSTP servers


@dataclass(frozen=True)
class Server:
    """A CSTP server whose content agent is alice, reached in two ways."""

    urls: Mapping[str, str]
    client: CstpClient


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    pillars = {"content": {"agent": "alice"}}
    wanted = settings(tmp_path, liaison={"pillars": pillars})
    with ExitStack() as stack:
        app = stack.enter_context(running(wanted))
        bridge = stack.enter_context(bridging(wanted, app.target))
        client = stack.enter_context(CstpClient(app.target, TOKENS["alice"]))
        client.liaison.heartbeat("content")
        yield Server({"grpc": f"grpc://{app.target}", "jsonrpc": bridge}, client)


@pytest.fixture(params=["grpc", "jsonrpc"])
def kind(request: pytest.FixtureRequest) -> str:
    given: str = request.param
    return given


def test_a_server_shares_what_it_is_given_with_its_own_agent(server: Server, kind: str) -> None:
    with remote(kind, server.urls[kind], TOKENS["bob"]) as agent:
        agent.check(DEFAULT_TENANT)
        assert agent.deliver(ROUTED) is None
        agent.deliver(ROUTED)
    found = server.client.liaison.get_share("share-1")
    assert (found.source_agent, found.target_agent, found.conversation_id) == (
        "guide",
        "liaison_content",
        "session-1",
    )
    assert found.context_hash == hash_canonical_json(CONTEXT)
    events = server.client.liaison.list_events(types=["context_shared"])
    assert len(list(events)) == 1


def test_what_tenants_call_alike_is_different_to_a_server(server: Server, kind: str) -> None:
    with remote(kind, server.urls[kind], TOKENS["bob"]) as agent:
        for number, tenant in enumerate((DEFAULT_TENANT, "acme", "other")):
            context = {"number": number}
            changed = share(tenant=tenant, shared_context=context, context_hash=hash_canonical_json(context))
            agent.deliver(DeliveryRequest(changed, None, "content"))
    assert len(list(server.client.liaison.list_events(types=["context_shared"]))) == 3


@pytest.mark.parametrize(
    ("token", "changes", "reason"),
    [
        ("reader", {}, "PERMISSION_DENIED"),
        ("nobody-knows-this", {}, "AUTHENTICATION_REQUIRED"),
        ("bob", {"target_agent": "liaison_unknown"}, "INVALID_PILLAR"),
        ("bob", {"shared_context": {"text": "x" * 300_000}}, "CONTEXT_SHARING_FAILED"),
        ("bob", {"shared_context": {"other": 1}}, "CONFLICT"),
    ],
)
def test_a_refusal_of_a_server_is_final(
    server: Server, kind: str, token: str, changes: dict[str, Any], reason: str
) -> None:
    with remote(kind, server.urls[kind], TOKENS["bob"]) as agent:
        agent.deliver(ROUTED)
    with (
        remote(kind, server.urls[kind], TOKENS.get(token, token)) as agent,
        pytest.raises(DeliveryRejected, match=f"^answered {reason}: ") as refused,
    ):
        agent.deliver(DeliveryRequest(share(**changes), None, "content"))
    assert server.urls[kind] not in str(refused.value)


def refusal(words: str) -> Raw:
    """Return an answer of a JSON-RPC server that says so."""
    data = {"reason": "INVALID_ARGUMENT", "requestId": "1"}
    return body(
        json.dumps({"jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": words, "data": data}}).encode()
    )


def test_what_a_server_says_is_told_on_one_line_that_steers_nothing(
    a2a: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    a2a.raws["/cstp"] = refusal("not\n2026-02-04 12:00:00 INFO made up\x1b[31m\u202e so")
    told = "answered INVALID_ARGUMENT: not 2026-02-04 12:00:00 INFO made up [31m so"
    with remote("jsonrpc", a2a.url) as agent, failing(DeliveryRejected, told):
        agent.deliver(ROUTED)
    assert [record for record in caplog.messages if not record.isprintable()] == []


def test_what_an_agent_says_does_not_break_the_log(a2a: Agent, caplog: pytest.LogCaptureFixture) -> None:
    a2a.play = raising(InvalidParamsError(message="not\n2026-02-04 12:00:00 INFO made up\x1b[31m"))
    with remote("a2a", a2a.url) as agent, pytest.raises(DeliveryRejected):
        agent.deliver(ROUTED)
    assert [record for record in caplog.messages if "made up" in record]
    assert [record for record in caplog.messages if not record.isprintable()] == []


def test_what_a_server_says_has_room_in_an_error(a2a: Agent) -> None:
    a2a.raws["/cstp"] = refusal("\N{GRINNING FACE}" * 5000)
    with remote("jsonrpc", a2a.url) as agent, pytest.raises(DeliveryRejected) as refused:
        agent.deliver(ROUTED)
    words = str(refused.value)
    error = ContextSharingFailed(words, metadata={"reason": words})
    [details] = [value for name, value in to_status(error, "").trailing_metadata if name == STATUS_KEY]
    assert isinstance(details, bytes)
    assert len(quote(words)) + len(base64.b64encode(details)) < 7_000


def test_servers_that_point_at_each_other_do_not_share_for_ever(a2a: Agent) -> None:
    given: list[str] = []

    async def take(request: web.Request) -> web.StreamResponse:
        call = await request.json()
        given.append(call["params"]["idempotency_key"])
        return web.json_response({"jsonrpc": "2.0", "id": call["id"], "result": {"share": {}}})

    a2a.raws["/cstp"] = take
    with remote("jsonrpc", a2a.url) as agent:
        key = "share-1"
        for _ in range(MAX_HOPS):
            agent.deliver(DeliveryRequest(share(tenant="acme", id=key), None, "content"))
            key = given[-1]
        with failing(DeliveryRejected, "passed on by too many servers: do they point at each other?"):
            agent.deliver(DeliveryRequest(share(tenant="acme", id=key), None, "content"))
    assert len(set(given)) == len(given) == MAX_HOPS


def test_an_agent_that_is_away_from_its_server_may_come_back(server: Server, kind: str) -> None:
    server.client.liaison.heartbeat("content", leaving=True)
    with remote(kind, server.urls[kind], TOKENS["bob"]) as agent:
        with pytest.raises(DeliveryFailed, match="answered LIAISON_AGENT_UNAVAILABLE"):
            agent.deliver(ROUTED)
        server.client.liaison.heartbeat("content")
        agent.deliver(ROUTED)


def test_a_server_that_is_not_there_may_come_back(kind: str, free_port: int) -> None:
    scheme = {"grpc": "grpc", "jsonrpc": "http"}[kind]
    with remote(kind, f"{scheme}://127.0.0.1:{free_port}", "its-token") as agent:
        error = unavailable(agent)
        assert error.message == "liaison_content is not available: not reachable"
        with failing(DeliveryFailed, "not reachable"):
            agent.deliver(ROUTED)


def test_a_server_that_hangs_is_not_waited_for(kind: str) -> None:
    scheme = {"grpc": "grpc", "jsonrpc": "http"}[kind]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}"
        with remote(kind, url, "its-token", bounds=QUICK) as agent:
            assert unavailable(agent).metadata["reason"] in {"no answer in time", "not reachable"}
            with pytest.raises(DeliveryFailed):
                agent.deliver(ROUTED)


def test_a_bridge_whose_server_is_away_is_not_serving(tmp_path: Path, free_port: int) -> None:
    with bridging(settings(tmp_path), f"127.0.0.1:{free_port}") as url, remote("jsonrpc", url) as agent:
        assert unavailable(agent).metadata["reason"] == "not serving"


# Settings


@pytest.mark.parametrize(("delivery", "confirms"), [("outbox", False), ("confirm", True)])
def test_it_must_accept_first_where_the_settings_say_so(delivery: str, confirms: bool) -> None:
    with remote("grpc", "grpc://127.0.0.1:1", delivery=delivery) as agent:
        assert isinstance(agent, RemoteLiaisonAgent)
        assert agent.confirms is confirms


def test_settings_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    for kind, url, more, setting in [
        ("a2a", "grpc://127.0.0.1:1", {}, "url"),
        ("a2a", "http://user:secret@127.0.0.1", {}, "url"),
        ("grpc", "http://127.0.0.1:1", {}, "url"),
        ("grpc", "grpc://127.0.0.1", {}, "url"),
        ("jsonrpc", "grpc://127.0.0.1:1", {}, "url"),
        ("jsonrpc", "http://", {}, "url"),
        ("a2a", "http://127.0.0.1", {"token": "two words"}, "token"),
        ("grpc", "grpc://127.0.0.1:1", {"token": "two words"}, "token"),
        ("a2a", "https://127.0.0.1", {"ca_file": "absent"}, "ca_file"),
        ("grpc", "grpcs://127.0.0.1:1", {"ca_file": "absent"}, "ca_file"),
        ("jsonrpc", "https://127.0.0.1:1", {"ca_file": "no.pem"}, "ca_file"),
        ("a2a", "https://127.0.0.1:1", {"ca_file": "empty.pem"}, "ca_file"),
        ("grpc", "grpcs://127.0.0.1:1", {"ca_file": "no.pem"}, "ca_file"),
        ("grpc", "grpcs://user:secret@127.0.0.1:1", {}, "url"),
        ("grpc", "grpcs://:secret@127.0.0.1:1", {}, "url"),
        ("jsonrpc", "https://user:secret@127.0.0.1:1", {}, "url"),
        ("jsonrpc", "https://:secret@127.0.0.1:1", {}, "url"),
    ]:
        with named_case(kind, url, more):
            (tmp_path / "no.pem").write_text("no certificate")
            (tmp_path / "empty.pem").write_text("")
            given = {name: tmp_path / value if name == "ca_file" else SecretStr(value) for name, value in more.items()}
            pillar = PillarSettings(kind=kind, url=url, **given)  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match=rf"^liaison\.pillars\.content\.{setting}: ") as refused:
                build_remote_agent("content", pillar, LiaisonSettings())
            assert "secret" not in str(refused.value)


def test_the_authorities_of_the_settings_are_believed(certificate: Certificate) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate, certificate.key)
    with running_agent(Agent(), "localhost", context) as secure:
        with remote("a2a", secure.url, ca_file=certificate.certificate) as agent:
            agent.check(DEFAULT_TENANT)
            assert agent.deliver(ROUTED)
        with remote("a2a", secure.url) as agent:
            assert unavailable(agent).metadata["reason"] == "not reachable"
