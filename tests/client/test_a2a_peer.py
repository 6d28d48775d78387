"""Sending contexts to a real A2A agent."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from a2a.helpers import get_data_parts
from a2a.types.a2a_pb2 import AgentInterface, Role, TaskState
from a2a.utils.errors import InternalError, InvalidParamsError
from aiohttp import web

from cstp_grpc.client.a2a_client import MAX_RESPONSE_BYTES, A2aClient, A2aPermanentError, A2aTransientError
from cstp_grpc.contract.errors import InvalidArgument
from tests.certificates import Certificate
from tests.client.a2a_agent import CARD, Agent, Raw, body, ending, raising, reply, running_agent, take
from tests.client.official_a2a_server import leave_submitted, official_server
from tests.error_classes import failing
from tests.waiting import SECONDS, wait_until

TOKEN = "the-peers-token"
DATA = {"intent_type": "route_to_liaison_agent", "shared_context": {"a": [1, None, "ü"], "b": {"c": True}}}
SOON = 0.2
"""For what is known never to answer."""
ENOUGH_TO_SUBMIT = 1.0
"""For a task that is submitted, and never begun."""


@contextmanager
def peer_of(url: str, token: str | None = TOKEN, authority: bytes | None = None) -> Iterator[A2aClient]:
    peer = A2aClient(url, token, root_certificates=authority)
    try:
        yield peer
    finally:
        peer.close()


@pytest.fixture
def agent() -> Iterator[Agent]:
    with running_agent(Agent()) as running:
        yield running


@pytest.fixture
def peer(agent: Agent) -> Iterator[A2aClient]:
    with peer_of(agent.url) as made:
        yield made


def send(peer: A2aClient, seconds: float = SECONDS, **wanted: Any) -> str | None:
    given = {"data": DATA, "message_id": "share-1", "context_id": "session-1", **wanted}
    return peer.send(**given, seconds=seconds)


async def hang(request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
def test_a_context_arrives_as_one_data_part_and_the_task_is_told(agent: Agent, peer: A2aClient, binding: str) -> None:
    agent.binding = binding
    task_id = send(peer)
    [message] = agent.messages
    assert task_id
    assert task_id == message.task_id
    assert get_data_parts(message.parts) == [DATA]
    assert len(message.parts) == 1
    assert (message.message_id, message.context_id, message.role) == ("share-1", "session-1", Role.ROLE_USER)
    assert agent.blocking == [False]


@pytest.mark.parametrize(("binding", "legacy"), [("JSONRPC", False), ("HTTP+JSON", False), ("JSONRPC", True)])
def test_whole_numbers_arrive_as_integers(agent: Agent, peer: A2aClient, binding: str, legacy: bool) -> None:
    agent.binding, agent.legacy = binding, legacy
    send(peer, data={"shared_context": {"order": 1, "lines": [-2, 2**53], "price": 0.5, "rate": 3.0}})
    context = re.search(rb'"shared_context":(\{.*?\})', agent.bodies[-1].replace(b" ", b""))
    assert context
    numbers = sorted(re.findall(rb"[-\d.]+", context[1]))
    assert numbers == sorted([b"1", b"-2", b"9007199254740992", b"0.5", b"3"])


def test_without_a_conversation_the_agent_chooses_the_context(agent: Agent, peer: A2aClient) -> None:
    agent.play = reply
    send(peer, context_id=None)
    assert agent.blocking == [False]
    assert agent.messages[0].message_id == "share-1"


def test_the_token_is_sent_and_only_where_there_is_one(agent: Agent, peer: A2aClient) -> None:
    send(peer)
    assert {headers["authorization"] for headers in agent.headers} == {f"Bearer {TOKEN}"}
    agent.headers.clear()
    with peer_of(agent.url, token=None) as other:
        send(other)
    assert all("authorization" not in headers for headers in agent.headers)


def test_agents_of_a2a_0_3_are_spoken_to_likewise(agent: Agent, peer: A2aClient) -> None:
    agent.legacy = True
    assert send(peer)
    [message] = agent.messages
    assert get_data_parts(message.parts) == [DATA]
    assert (message.message_id, message.context_id) == ("share-1", "session-1")
    assert agent.blocking == [False]
    assert agent.headers[-1]["a2a-version"] == "0.3"


def test_a_message_is_an_acceptance_without_a_task(agent: Agent, peer: A2aClient) -> None:
    agent.play = reply
    assert send(peer) is None


@pytest.mark.parametrize("path", [CARD, "/cards/content.json", "/agents/content" + CARD])
def test_the_url_may_be_that_of_the_card(agent: Agent, path: str) -> None:
    with peer_of(agent.url + path) as peer:
        peer.probe(SECONDS)
        assert send(peer)


@pytest.mark.parametrize("path", ["", "/", "/agents/content", "/agents/content/"])
def test_the_url_may_be_that_of_the_site(agent: Agent, path: str) -> None:
    seen = []

    async def card(request: web.Request) -> web.StreamResponse:
        seen.append(request.path)
        return web.json_response(agent.card_json())

    agent.raws[path.rstrip("/") + CARD] = card
    with peer_of(agent.url + path) as peer:
        peer.probe(SECONDS)
    assert seen == [path.rstrip("/") + CARD]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (TaskState.TASK_STATE_REJECTED, "rejected"),
        (TaskState.TASK_STATE_FAILED, "failed"),
        (TaskState.TASK_STATE_CANCELED, "canceled"),
        (TaskState.TASK_STATE_AUTH_REQUIRED, "authentication required"),
    ],
)
def test_a_task_that_will_not_be_done_is_a_refusal(
    agent: Agent, peer: A2aClient, state: TaskState, message: str
) -> None:
    agent.play = ending(state)
    with failing(A2aPermanentError, message):
        send(peer)
    agent.play = ending(state, "No\n files\x00  today")
    with failing(A2aPermanentError, f"{message}: No files today"):
        send(peer, message_id="share-2")


@pytest.mark.parametrize("state", [TaskState.TASK_STATE_WORKING, TaskState.TASK_STATE_COMPLETED])
def test_a_task_that_is_worked_at_or_done_is_accepted(agent: Agent, peer: A2aClient, state: TaskState) -> None:
    agent.play = ending(state)
    assert send(peer)


def test_a_submitted_task_is_looked_at_again_and_sent_again_only_if_it_was_lost() -> None:
    with official_server(leave_submitted) as server, peer_of(server.url) as peer:
        with pytest.raises(A2aTransientError, match="has neither begun nor refused the task in time") as first:
            send(peer, ENOUGH_TO_SUBMIT)
        task_id = first.value.task_id
        assert task_id
        assert task_id == server.received[0].task_id
        server.begin()
        assert send(peer, task_id=task_id) == task_id
        server.lose(task_id)
        with pytest.raises(A2aTransientError, match="no longer has the task") as second:
            send(peer, task_id=task_id)
        assert second.value.task_id is None
        assert len(server.received) == 1


def test_a_long_reason_is_cut(agent: Agent, peer: A2aClient) -> None:
    agent.play = ending(TaskState.TASK_STATE_REJECTED, "no " * 100_000)
    with pytest.raises(A2aPermanentError) as refused:
        send(peer)
    assert len(str(refused.value)) < 600


def test_errors_of_the_protocol_are_refusals(agent: Agent, peer: A2aClient) -> None:
    agent.play = raising(InvalidParamsError("Only texts, please"))
    with failing(A2aPermanentError, "answered an error: Only texts, please"):
        send(peer)


def test_errors_of_the_protocol_are_refusals_over_http_and_json_too(agent: Agent, peer: A2aClient) -> None:
    agent.binding = "HTTP+JSON"
    agent.play = raising(InvalidParamsError("Only texts, please"))
    with failing(A2aPermanentError, "answered an error: not so"):
        send(peer)


def test_internal_errors_may_pass(agent: Agent, peer: A2aClient) -> None:
    agent.play = raising(InternalError("Oh"))
    with failing(A2aTransientError, "answered an error: Oh"):
        send(peer)
    agent.play = take
    assert send(peer, message_id="share-2")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, A2aPermanentError),
        (401, A2aPermanentError),
        (403, A2aPermanentError),
        (404, A2aTransientError),
        (413, A2aPermanentError),
        (429, A2aTransientError),
        (500, A2aTransientError),
        (502, A2aTransientError),
        (503, A2aTransientError),
    ],
)
@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
def test_http_statuses_tell_what_may_pass(
    agent: Agent, peer: A2aClient, status: int, kind: type[Exception], legacy: bool, binding: str
) -> None:
    agent.legacy, agent.binding = legacy, binding
    answer = body(b"<html>secret of a proxy</html>", status)
    agent.raws = {"/rpc": answer, "/rest/message:send": answer, "/rest/v1/message:send": answer}
    with pytest.raises(kind, match=f"HTTP {status}$"):
        send(peer)


def deep(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


GARBAGE: list[tuple[str, bytes]] = [
    ("nothing", b""),
    ("text", b"hello"),
    ("HTML", b"<html></html>"),
    ("a list", b"[]"),
    ("null", b"null"),
    ("no result", b'{"jsonrpc": "2.0", "id": "1"}'),
    ("an empty result", b'{"jsonrpc": "2.0", "id": "1", "result": {}}'),
    ("a result of text", b'{"jsonrpc": "2.0", "id": "1", "result": "yes"}'),
    ("another result", b'{"jsonrpc": "2.0", "id": "1", "result": {"task": 5}}'),
    ("a task without an id", b'{"jsonrpc": "2.0", "id": "1", "result": {"task": {"contextId": "c"}}}'),
    ("an id of NUL", b'{"jsonrpc": "2.0", "id": "1", "result": {"task": {"id": "a\\u0000"}}}'),
    ("a long id", b'{"jsonrpc": "2.0", "id": "1", "result": {"task": {"id": "' + b"a" * 10_000 + b'"}}}'),
    ("half a character", b'{"jsonrpc": "2.0", "id": "1", "result": {"task": {"id": "\\ud800"}}}'),
    ("an error of text", b'{"jsonrpc": "2.0", "id": "1", "error": "no"}'),
    ("an error of its own", b'{"jsonrpc": "2.0", "id": "1", "error": {"code": -31013, "message": "later"}}'),
    ("no UTF-8", b'{"jsonrpc": "2.0", "id": "\xff"}'),
    ("a long number", b'{"jsonrpc": "2.0", "id": ' + b"1" * 10_000 + b"}"),
    ("something deep", deep(100_000)),
]


@pytest.mark.parametrize("content", [content for _, content in GARBAGE], ids=[name for name, _ in GARBAGE])
@pytest.mark.parametrize("legacy", [False, True])
def test_garbage_is_no_acceptance(agent: Agent, peer: A2aClient, content: bytes, legacy: bool) -> None:
    agent.legacy = legacy
    agent.raws["/rpc"] = body(content)
    with failing(A2aTransientError, "an answer that is none of A2A"):
        send(peer)


@pytest.mark.parametrize("content", [content for _, content in GARBAGE], ids=[name for name, _ in GARBAGE])
def test_garbage_is_no_card(agent: Agent, peer: A2aClient, content: bytes) -> None:
    agent.raws[CARD] = body(content)
    with pytest.raises((A2aTransientError, A2aPermanentError), match="card"):
        peer.probe(SECONDS)


def test_a_site_without_a_card_is_told(agent: Agent, peer: A2aClient) -> None:
    agent.raws[CARD] = body(b"", 404)
    for attempt in (lambda: peer.probe(SECONDS), lambda: send(peer)):
        with failing(A2aTransientError, "no agent card"):
            attempt()


async def pour(request: web.Request) -> web.StreamResponse:
    """Answer without an end."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" " * 65_536)


@pytest.mark.parametrize("path", [CARD, "/rpc"])
@pytest.mark.parametrize("answer", [pour, body(b" " * (MAX_RESPONSE_BYTES + 1))], ids=["endless", "huge"])
def test_answers_that_are_too_large_are_not_read(agent: Agent, peer: A2aClient, path: str, answer: Raw) -> None:
    agent.raws[path] = answer
    with failing(A2aTransientError, "an answer that is too large"):
        send(peer)


def test_compressed_answers_are_not_read(agent: Agent, peer: A2aClient) -> None:
    headers: dict[str, Any] = {"Content-Encoding": "gzip"}
    agent.raws["/rpc"] = body(gzip.compress(b" " * 10_000_000), **headers)
    with failing(A2aTransientError, "an answer that is too large"):
        send(peer)
    assert agent.headers[-1]["accept-encoding"] == "identity"


async def dribble(request: web.Request) -> web.StreamResponse:
    """Answer a byte at a time, without an end."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" ")
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("answer", [hang, dribble])
@pytest.mark.parametrize("path", [CARD, "/rpc"])
def test_an_agent_that_hangs_is_not_waited_for(agent: Agent, peer: A2aClient, path: str, answer: Raw) -> None:
    agent.raws[path] = answer
    with failing(A2aTransientError, "no answer in time"):
        send(peer, seconds=SOON)


def test_one_that_accepts_no_connection_is_not_reachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    with peer_of(f"http://127.0.0.1:{port}") as peer:
        for attempt in (lambda: peer.probe(SECONDS), lambda: send(peer)):
            with failing(A2aTransientError, "not reachable"):
                attempt()


def test_one_that_hangs_does_not_hold_up_other_calls(agent: Agent, peer: A2aClient) -> None:
    peer.probe(SECONDS)
    hanging = threading.Event()

    async def wait(request: web.Request) -> web.StreamResponse:
        hanging.set()
        return await hang(request)

    agent.raws["/rpc"] = wait
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(send, peer)
        assert hanging.wait(SECONDS)
        del agent.raws["/rpc"]
        assert send(peer, message_id="share-2")
        assert not slow.done()
        peer.close()
        with failing(A2aTransientError, "not called any more"):
            slow.result(SECONDS)
    with failing(A2aTransientError, "not called any more"):
        send(peer)


@pytest.fixture
def stranger() -> Iterator[Agent]:
    """An agent on another host, which must never hear of anything."""
    with running_agent(Agent(), "127.0.0.2") as running:
        yield running


@pytest.mark.parametrize("legacy", [False, True])
def test_a_card_cannot_send_us_to_another_host(agent: Agent, peer: A2aClient, stranger: Agent, legacy: bool) -> None:
    agent.legacy = legacy
    version = "0.3.0" if legacy else "1.0"
    agent.interfaces = [AgentInterface(url=f"{stranger.url}/rpc", protocol_binding="JSONRPC", protocol_version=version)]
    for attempt in (lambda: peer.probe(SECONDS), lambda: send(peer)):
        with pytest.raises(A2aPermanentError, match="other hosts"):
            attempt()
    assert stranger.headers == []


def test_an_interface_of_the_own_host_is_taken_before_others(agent: Agent, peer: A2aClient, stranger: Agent) -> None:
    urls = [f"{stranger.url}/rpc", "http://user:secret@127.0.0.1:1/rpc", "http://[", f"{agent.url}/rpc"]
    agent.interfaces = [AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version="1.0") for url in urls]
    assert send(peer)
    assert stranger.headers == []


def test_an_interface_may_be_on_another_port(agent: Agent) -> None:
    with running_agent(Agent()) as other:
        agent.interfaces = [AgentInterface(url=f"{other.url}/rpc", protocol_binding="JSONRPC", protocol_version="1.0")]
        with peer_of(agent.url) as peer:
            assert send(peer)
        assert len(other.messages) == 1


@pytest.mark.parametrize("path", [CARD, "/rpc"])
@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirects_are_not_followed(agent: Agent, peer: A2aClient, stranger: Agent, path: str, status: int) -> None:
    agent.raws[path] = body(b"", status, Location=f"{stranger.url}{path}")
    with pytest.raises(A2aPermanentError, match="redirects"):
        send(peer)
    assert stranger.headers == []


def test_an_agent_that_speaks_grpc_alone_is_told(agent: Agent, peer: A2aClient) -> None:
    agent.interfaces = [AgentInterface(url="127.0.0.1:1", protocol_binding="GRPC", protocol_version="1.0")]
    with pytest.raises(A2aPermanentError, match=r"JSON-RPC or HTTP\+JSON"):
        peer.probe(SECONDS)


def test_an_agent_that_moved_is_found_again(agent: Agent, peer: A2aClient) -> None:
    assert send(peer)
    agent.raws["/rpc"] = body(b"", 503)
    agent.binding = "HTTP+JSON"
    with pytest.raises(A2aTransientError):
        send(peer)
    assert send(peer, message_id="share-2")


@contextmanager
def secure_agent(certificate: Certificate) -> Iterator[Agent]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate, certificate.key)
    with running_agent(Agent(), "localhost", context) as running:
        yield running


def test_an_agent_certified_by_the_given_authority_is_sent_to(certificate: Certificate) -> None:
    with secure_agent(certificate) as agent, peer_of(agent.url, authority=certificate.authority) as peer:
        assert send(peer)


def test_an_agent_that_nobody_known_certifies_is_not(certificate: Certificate) -> None:
    with secure_agent(certificate) as agent, peer_of(agent.url) as peer:
        with failing(A2aTransientError, "not reachable"):
            send(peer)
        assert agent.headers == []


def test_a_card_cannot_send_us_from_https_to_http(certificate: Certificate) -> None:
    with (
        running_agent(Agent(), "localhost") as plain,
        secure_agent(certificate) as agent,
        peer_of(agent.url, authority=certificate.authority) as peer,
    ):
        agent.interfaces = [AgentInterface(url=f"{plain.url}/rpc", protocol_binding="JSONRPC", protocol_version="1.0")]
        with pytest.raises(A2aPermanentError, match="less secure"):
            send(peer)
        assert plain.headers == []


@pytest.mark.parametrize(
    "url", ["", "agent", "grpc://127.0.0.1:1", "http://", "http://user:secret@host", "http://host:99999", "http://\x00"]
)
def test_a_url_that_cannot_be_used_is_refused_at_once(url: str) -> None:
    with pytest.raises(InvalidArgument, match="url"):
        A2aClient(url, TOKEN)


def test_a_token_that_cannot_be_sent_is_refused_at_once() -> None:
    with pytest.raises(InvalidArgument, match="token"):
        A2aClient("http://127.0.0.1:1", "two words")


def test_many_send_at_once(agent: Agent, peer: A2aClient) -> None:
    with ThreadPoolExecutor(8) as pool:
        sent = [pool.submit(send, peer, message_id=f"share-{number}", context_id=None) for number in range(40)]
        tasks = {each.result(SECONDS) for each in sent}
    assert len(tasks) == 40
    wait_until(lambda: len(agent.messages) == 40, "all arrive")


def test_what_is_sent_may_be_large(agent: Agent, peer: A2aClient) -> None:
    context = {"text": "x" * 1_000_000}
    assert send(peer, data={"shared_context": context})
    assert json.dumps(get_data_parts(agent.messages[0].parts)[0]["shared_context"]) == json.dumps(context)
