"""Streams over HTTP: their headers, and all their ways to end; what they tell is in a2a/test_upstream.py."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from a2a.types import a2a_pb2
from aiohttp import web

from bridge import http_response
from cstp_grpc.gen.cstp.v1 import tasks_pb2
from cstp_grpc.platform.config import ServerSettings
from tests.bridge.a2a.raw import Core, Raw, call, events_of, saying, saying_in_0_3, to_bytes
from tests.bridge.a2a.talking import asynchronous
from tests.bridge.support import JSON, Client, Scripted, bridging

STREAM = "text/event-stream"
SECONDS = 20.0

WAYS = [
    pytest.param("/a2a", call("SendStreamingMessage", saying("Deploy")), "1.0", id="jsonrpc-1.0"),
    pytest.param("/a2a", call("message/stream", saying_in_0_3("Deploy")), "0.3", id="jsonrpc-0.3"),
    pytest.param("/a2a/v1/message:stream", saying("Deploy"), "1.0", id="rest-1.0"),
]


@pytest.fixture(scope="module")
def _bridge(shared: tuple[Scripted, str]) -> Iterator[Client]:
    with bridging(shared[1], ServerSettings(cors_origins=["*"])) as client:
        yield client


@pytest.fixture
def raw(_bridge: Client, script: Core) -> Raw:
    """A bridge before the scripted server."""
    return Raw(_bridge)


@pytest.mark.parametrize(("path", "body", "version"), WAYS)
def test_nothing_keeps_a_stream_back_or_stores_it(raw: Raw, script: Core, path: str, body: Any, version: str) -> None:
    script.go_on.set()
    answer = raw.send("POST", path, body, version=version, headers={"Origin": "https://x.example", "X-Request-Id": "r"})
    assert answer.status == 200
    wanted = {
        "Content-Type": STREAM,
        "Cache-Control": "no-store",
        "X-Accel-Buffering": "no",
        "X-Request-Id": "r",
        "Access-Control-Allow-Origin": "*",
    }
    assert {name: answer.headers[name] for name in wanted} == wanted
    assert len(events_of(answer)) == 3


def test_clients_of_http_1_0_get_streams_too(raw: Raw, script: Core) -> None:
    script.go_on.set()
    content = to_bytes(call("SendStreamingMessage", saying("Deploy")))
    head = f"POST /a2a HTTP/1.0\r\nHost: x\r\nA2A-Version: 1.0\r\nContent-Type: {JSON}\r\n"
    with socket.create_connection((raw.client.host, raw.client.port), SECONDS) as connection:
        connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    headers, _, body = answer.partition(b"\r\n\r\n")
    assert b"chunked" not in headers
    assert len([line for line in body.splitlines() if line.startswith(b"data: {")]) == 3


def test_a_bridge_that_stops_breaks_its_subscriptions_off(
    shared: tuple[Scripted, str], script: Core, caplog: pytest.LogCaptureFixture
) -> None:
    script.server.plays["cstp.getTask"] = lambda request, context: tasks_pb2.GetTaskResponse(task=at_work(request.id))
    with ExitStack() as open_streams, bridging(shared[1], ServerSettings()) as client:
        stream = open_streams.enter_context(Raw(client).streaming(call("SubscribeToTask", {"id": "x"})))
        assert stream.next()["result"]["task"]["id"] == "x"
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]


def at_work(task_id: str) -> tasks_pb2.Task:
    """Return a task that never ends."""
    status = a2a_pb2.TaskStatus(state=a2a_pb2.TaskState.TASK_STATE_WORKING)
    content = a2a_pb2.Task(id=task_id, context_id="c", status=status).SerializeToString()
    working = tasks_pb2.TASK_STATE_WORKING
    return tasks_pb2.Task(id=task_id, context_id="c", content=content, version=1, state=working)


@dataclass
class Story:
    """Events that a test tells one by one, and whether they are still listened to."""

    more: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def tell(self) -> AsyncGenerator[object, None]:
        try:
            while (event := await self.more.get()) is not None:
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            self.closed.set()


async def worded(error: Exception) -> str:
    return f"it broke: {error}"


@asynccontextmanager
async def reading(story: Story, ping_seconds: float = 0.05) -> AsyncIterator[aiohttp.ClientResponse]:
    """Yield the response to somebody who reads a story, which has begun."""

    async def handle(request: web.Request) -> web.StreamResponse:
        events = story.tell()
        first = await anext(events)
        wording = http_response.EventEncoder(str, worded, error_name="error")
        return await http_response.stream_events(request, first, events, wording, {"X-Mark": "here"}, ping_seconds)

    app = web.Application()
    app.router.add_post("/", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        story.more.put_nowait("once")
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        async with aiohttp.ClientSession() as session, session.post(url) as response:
            yield response
    finally:
        await runner.cleanup()


@asynchronous
async def test_a_quiet_stream_shows_that_it_is_alive() -> None:
    story = Story()
    async with reading(story) as response:
        assert response.headers["X-Mark"] == "here"
        assert await response.content.readuntil(b"\r\n\r\n") == b"data: once\r\n\r\n"
        assert (await response.content.readuntil(b"\r\n\r\n")).startswith(b":")
        story.more.put_nowait("upon a time")
        while (line := await response.content.readline()).startswith((b":", b"\r\n")):
            assert not story.closed.is_set()
        assert line == b"data: upon a time\r\n"
        story.more.put_nowait(None)
        assert b"data" not in await response.content.read()
    assert story.closed.is_set()


@asynchronous
async def test_a_reader_that_leaves_ends_the_story_though_nothing_is_sent() -> None:
    story = Story()
    async with reading(story, ping_seconds=3600) as response:
        await response.content.readuntil(b"\r\n\r\n")
        response.close()
        await asyncio.wait_for(story.closed.wait(), SECONDS)


@asynchronous
async def test_an_error_is_worded_and_ends_the_story() -> None:
    story = Story()
    async with reading(story) as response:
        story.more.put_nowait(ValueError("a secret word"))
        content = await response.content.read()
    events = [part for part in content.split(b"\r\n\r\n") if part and not part.startswith(b":")]
    assert events == [b"data: once", b"event: error\r\ndata: it broke: a secret word"]
    assert story.closed.is_set()


@asynchronous
async def test_a_bridge_that_stops_closes_its_stories() -> None:
    story = Story()

    async def handle(request: web.Request) -> web.StreamResponse:
        events = story.tell()
        return await http_response.stream_events(
            request, await anext(events), events, http_response.EventEncoder(str, worded), {}
        )

    app = web.Application()
    app.router.add_get("/", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.05)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    story.more.put_nowait("once")
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        await response.content.readuntil(b"\r\n\r\n")
        await runner.cleanup()
    assert story.closed.is_set()
