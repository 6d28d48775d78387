"""A connection before a server whose frames a test writes."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from bridge.http2.connection import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Http2Connection,
    Http2Response,
    RequestFailed,
    StreamReset,
    encode_frame,
)
from bridge.http2.header_blocks import encode_header
from tests.bridge.a2a.talking import asynchronous
from tests.example_counts import examples

REQUEST = encode_header(":path", "/")
OK = encode_header(":status", "200")
TRAILERS = encode_header("grpc-status", "0")
MAX_HEADER_BYTES = 20_000


@dataclass
class Frame:
    """A frame that the client sent."""

    kind: int
    flags: int
    stream: int
    content: bytes


class Peer:
    """The server's end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))

    async def next_frame(self) -> Frame:
        """Return the next frame that is no acknowledgement."""
        while True:
            head = await self.reader.readexactly(9)
            found = Frame(
                head[3], head[4], int.from_bytes(head[5:]), await self.reader.readexactly(int.from_bytes(head[:3]))
            )
            if not (found.kind == SETTINGS and found.flags & ACK):
                return found

    async def next_request(self) -> int:
        """Return the stream of the next request, which has come to its end."""
        begun = await self.next_frame()
        assert begun.kind == HEADERS
        while not (begun.kind == DATA and begun.flags & END_STREAM):
            begun = await self.next_frame()
        return begun.stream

    def answer(self, stream: int, content: bytes = b"") -> None:
        self.send(
            encode_frame(HEADERS, END_HEADERS, stream, OK),
            encode_frame(DATA, 0, stream, content),
            encode_frame(HEADERS, END_HEADERS | END_STREAM, stream, TRAILERS),
        )


def settings_frame(**values: int) -> bytes:
    keys = {"window": INITIAL_WINDOW_SIZE, "streams": MAX_CONCURRENT_STREAMS}
    return encode_frame(
        SETTINGS, 0, 0, b"".join(struct.pack(">HI", keys[name], value) for name, value in values.items())
    )


@asynccontextmanager
async def connected(**values: int) -> AsyncIterator[tuple[Http2Connection, Peer]]:
    """Yield a connection, and the server's end of it, which has announced its settings."""
    arrived: asyncio.Future[Peer] = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda *ends: arrived.set_result(Peer(*ends)), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(
        lambda: Http2Connection(lambda _: None, MAX_HEADER_BYTES), "127.0.0.1", port
    )
    peer = await arrived
    try:
        assert await peer.reader.readexactly(len(PREFACE)) == PREFACE
        assert (await peer.next_frame()).kind == SETTINGS
        assert (await peer.next_frame()).kind == WINDOW_UPDATE
        peer.send(settings_frame(**values))
        # Answered after the settings were read.
        peer.send(encode_frame(PING, 0, 0, b"settings"))
        assert (await peer.next_frame()).content == b"settings"
        yield connection, peer
    finally:
        await connection.close()
        peer.writer.close()
        await peer.writer.wait_closed()
        server.close()
        await server.wait_closed()


def begin(connection: Http2Connection, content: bytes = b"x") -> asyncio.Task[Http2Response]:
    return asyncio.create_task(connection.request(REQUEST, content))


@asynchronous
async def test_responses_come_in_any_order() -> None:
    async with connected() as (connection, peer):
        first, second = begin(connection), begin(connection)
        streams = [await peer.next_request(), await peer.next_request()]
        peer.answer(streams[1], b"second")
        assert (await second).content == b"second"
        peer.answer(streams[0], b"first")
        response = await first
        assert (response.content, response.trailers) == (b"first", [("grpc-status", "0")])


@asynchronous
async def test_no_more_is_sent_than_the_server_takes() -> None:
    content = bytes(range(256)) * 400
    async with connected(window=10_000) as (connection, peer):
        pending = begin(connection, content)
        assert (await peer.next_frame()).kind == HEADERS
        received, granted = b"", 10_000
        while len(received) < len(content):
            part = await peer.next_frame()
            received += part.content
            assert len(received) <= granted
            assert bool(part.flags & END_STREAM) is (len(received) == len(content))
            if len(received) == granted:
                granted += 7_000
                more = (7_000).to_bytes(4)
                peer.send(encode_frame(WINDOW_UPDATE, 0, 0, more), encode_frame(WINDOW_UPDATE, 0, part.stream, more))
        assert received == content
        peer.answer(1)
        await pending


@asynchronous
async def test_a_smaller_window_holds_for_requests_in_progress() -> None:
    async with connected(window=10) as (connection, peer):
        pending = begin(connection, b"x" * 20)
        await peer.next_frame()
        assert len((await peer.next_frame()).content) == 10
        peer.send(settings_frame(window=4), encode_frame(WINDOW_UPDATE, 0, 1, (7).to_bytes(4)))
        assert len((await peer.next_frame()).content) == 1
        peer.answer(1)
        await pending
        assert (await peer.next_frame()).kind == RST_STREAM


@asynchronous
async def test_no_more_requests_are_in_progress_than_the_server_takes() -> None:
    async with connected(streams=1) as (connection, peer):
        first, second = begin(connection), begin(connection)
        assert await peer.next_request() == 1
        peer.send(encode_frame(PING, 0, 0, b"between."))
        assert (await peer.next_frame()).kind == PING
        peer.answer(1)
        await first
        assert await peer.next_request() == 3
        peer.answer(3)
        await second


@asynchronous
async def test_a_cancelled_request_is_ended_at_the_server() -> None:
    async with connected() as (connection, peer):
        pending = begin(connection)
        stream = await peer.next_request()
        pending.cancel()
        ended = await peer.next_frame()
        assert (ended.kind, ended.stream) == (RST_STREAM, stream)
        # What was under way when it was cancelled harms nobody.
        peer.answer(stream)
        other = begin(connection)
        peer.answer(await peer.next_request(), b"other")
        assert (await other).content == b"other"


@pytest.mark.parametrize(("code", "processed"), [(REFUSED_STREAM, False), (2, True)])
@asynchronous
async def test_a_reset_says_whether_the_request_was_processed(code: int, processed: bool) -> None:
    async with connected() as (connection, peer):
        pending = begin(connection)
        peer.send(encode_frame(RST_STREAM, 0, await peer.next_request(), code.to_bytes(4)))
        with pytest.raises(StreamReset) as caught:
            await pending
        assert (caught.value.code, caught.value.processed) == (code, processed)
        assert connection.is_usable


@asynchronous
async def test_a_server_that_closes_the_connection_answers_what_it_has_begun() -> None:
    async with connected() as (connection, peer):
        first, second = begin(connection), begin(connection)
        streams = [await peer.next_request(), await peer.next_request()]
        peer.send(encode_frame(GOAWAY, 0, 0, struct.pack(">II", streams[0], 0)))
        with pytest.raises(RequestFailed) as caught:
            await second
        assert not caught.value.processed
        assert not connection.is_usable
        with pytest.raises(RequestFailed) as caught:
            await begin(connection)
        assert not caught.value.processed
        peer.answer(streams[0], b"first")
        assert (await first).content == b"first"
        assert await peer.reader.read() == b""


@asynchronous
async def test_a_connection_that_breaks_fails_its_requests() -> None:
    async with connected(window=1) as (connection, peer):
        pending = [begin(connection, b""), begin(connection, b"more than the window")]
        await peer.next_request()
        peer.writer.close()
        for each in pending:
            with pytest.raises(RequestFailed) as caught:
                await each
            assert caught.value.processed


@pytest.mark.parametrize(
    "sent",
    [
        encode_frame(DATA, 0, 1, b"before headers"),
        encode_frame(HEADERS, END_HEADERS, 1, b"\xbe"),
        encode_frame(HEADERS, END_HEADERS | PADDED, 1, b"\x09"),
        encode_frame(HEADERS, 0, 1, OK) + encode_frame(PING, 0, 0, bytes(8)),
        encode_frame(HEADERS, 0, 1, OK) + encode_frame(CONTINUATION, END_HEADERS, 3, OK),
        encode_frame(CONTINUATION, END_HEADERS, 1, OK),
        encode_frame(HEADERS, 0, 1, bytes(16_000)) + encode_frame(CONTINUATION, 0, 1, bytes(16_000)),
        encode_frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4)),
        encode_frame(RST_STREAM, 0, 1, b""),
        encode_frame(SETTINGS, 0, 0, b"12345"),
        encode_frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, 2**31)),
        (16_385).to_bytes(3) + bytes(6),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
@asynchronous
async def test_a_server_that_speaks_no_http2_ends_the_connection(sent: bytes) -> None:
    async with connected() as (connection, peer):
        pending = begin(connection)
        await peer.next_request()
        peer.send(sent)
        with pytest.raises(RequestFailed):
            await pending
        assert not connection.is_usable


RESPONSE = (
    encode_frame(HEADERS, END_HEADERS, 1, encode_header(":status", "103"))
    + encode_frame(HEADERS, PRIORITY | PADDED, 1, b"\x02" + bytes(5) + OK[:3] + bytes(2))
    + encode_frame(CONTINUATION, END_HEADERS, 1, OK[3:])
    + encode_frame(0x20, 0, 0, b"of an extension")
    + encode_frame(DATA, PADDED, 1, b"\x03one" + bytes(3))
    + encode_frame(WINDOW_UPDATE, 0, 7, (1).to_bytes(4))
    + encode_frame(DATA, 0, 1, b"two")
    + encode_frame(HEADERS, END_HEADERS | END_STREAM, 1, TRAILERS)
)
"""A response that uses what HTTP/2 allows."""


def cut_at(content: bytes, places: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(places), len(content)]
    return [content[begin:end] for begin, end in itertools.pairwise(edges)]


@hypothesis_settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.integers(0, len(RESPONSE)), max_size=20))
def test_a_response_may_arrive_in_any_parts(places: list[int]) -> None:
    @asynchronous
    async def run() -> None:
        async with connected() as (connection, peer):
            pending = begin(connection)
            await peer.next_request()
            for part in cut_at(RESPONSE, places):
                connection.data_received(part)
            response = await pending
            assert response.headers == [(":status", "200")]
            assert (response.content, response.trailers) == (b"onetwo", [("grpc-status", "0")])

    run()


@hypothesis_settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(
        st.builds(
            encode_frame, st.integers(0, 10), st.integers(0, 255), st.sampled_from([0, 1, 3]), st.binary(max_size=40)
        ),
        max_size=8,
    )
)
def test_any_frames_answer_a_request_or_leave_it_to_fail(frames: list[bytes]) -> None:
    @asynchronous
    async def run() -> None:
        async with connected() as (connection, peer):
            pending = begin(connection)
            await peer.next_request()
            peer.send(*frames)
            peer.writer.close()
            with suppress(RequestFailed):
                assert isinstance(await pending, Http2Response)

    run()
