"""Unary calls on the event loop, before real gRPC servers."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Never, cast

import grpc
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from bridge.grpc_channel import GrpcChannel, ServerAddress, format_timeout
from bridge.http2.connection import DATA, PING, PREFACE, encode_frame
from tests.bridge.a2a.talking import asynchronous
from tests.bridge.http2.test_connection import Peer, settings_frame
from tests.example_counts import examples
from tests.grpc_servers import grpc_server
from tests.waiting import SECONDS

PATH = "/test.Service/Call"
Behavior = Callable[[bytes, grpc.ServicerContext], bytes]


@contextmanager
def answering(behavior: Behavior, port: int = 0) -> Iterator[ServerAddress]:
    """Run a server whose only method takes and returns bytes."""
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(behavior)
    handlers = grpc.method_handlers_generic_handler("test.Service", {"Call": handler})
    options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)]
    with grpc_server(
        lambda server: server.add_generic_rpc_handlers([handlers]), address=f"127.0.0.1:{port}", options=options
    ) as listening:
        yield ServerAddress("127.0.0.1", listening)


@asynccontextmanager
async def opened(*addresses: ServerAddress) -> AsyncIterator[GrpcChannel]:
    channel = GrpcChannel(addresses)
    try:
        yield channel
    finally:
        await channel.close()


async def fail(channel: GrpcChannel, timeout: float = SECONDS, request: bytes = b"") -> grpc.aio.AioRpcError:
    """Return the error of a call."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary(PATH)(request, timeout=timeout)
    return caught.value


@asynchronous
async def test_a_call_takes_its_metadata_and_deadline_along() -> None:
    def describe(request: bytes, context: grpc.ServicerContext) -> bytes:
        sent = dict(context.invocation_metadata())
        assert 10 < context.time_remaining() <= 15
        return b"%b %d" % (request, len(sent["authorization"]) + len(sent["x-request-id"]))

    with answering(describe) as address:
        async with opened(address) as channel:
            metadata = (("x-request-id", "r-1"), ("authorization", "Bearer " + "t" * 4000))
            call = channel.unary_unary(PATH, str.encode, bytes.decode)
            assert await call("hello", timeout=15, metadata=metadata) == "hello 4010"


@hypothesis_settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 3_000_000), st.integers(0, 3_000_000))
def test_messages_of_any_size_arrive(asked: int, answered: int) -> None:
    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        assert request == b"q" * asked
        return b"a" * answered

    @asynchronous
    async def run() -> None:
        with answering(answer) as address:
            async with opened(address) as channel:
                call = channel.unary_unary(PATH)
                both = await asyncio.gather(*(call(b"q" * asked, timeout=SECONDS) for _ in range(2)))
                assert both == [b"a" * answered] * 2

    run()


failures = st.tuples(
    st.sampled_from([code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]),
    st.text(st.characters(codec="utf-8"), max_size=50),
    st.binary(max_size=200),
)


def test_a_failure_says_what_it_says_to_a_channel_of_grpcio() -> None:
    planned: list[Any] = []

    def refuse(request: bytes, context: grpc.ServicerContext) -> bytes:
        code, details, binary = planned[0]
        context.set_trailing_metadata((("details-bin", binary), ("x-request-id", "r-1")))
        context.abort(code, details)
        raise AssertionError

    with answering(refuse) as address:

        @hypothesis_settings(max_examples=examples(100), deadline=None)
        @given(failures)
        def compare(failure: tuple[grpc.StatusCode, str, bytes]) -> None:
            planned[:] = [failure]

            @asynchronous
            async def run() -> None:
                async with opened(address) as channel:
                    found = await fail(channel)
                async with grpc.aio.insecure_channel(f"{address.host}:{address.port}") as usual:
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await usual.unary_unary(PATH)(cast(Never, b""), timeout=SECONDS)
                wanted = caught.value
                assert (found.code(), found.details()) == (wanted.code(), wanted.details())
                assert dict(found.trailing_metadata() or ()) == dict(wanted.trailing_metadata() or ())

            run()

        compare()


@asynchronous
async def test_a_call_beyond_its_deadline_ends_at_the_server_too() -> None:
    ended = threading.Event()

    def wait(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.add_callback(ended.set)
        ended.wait(SECONDS)
        return b""

    with answering(wait) as address:
        async with opened(address) as channel:
            assert (await fail(channel, timeout=0.2)).code() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert await asyncio.to_thread(ended.wait, SECONDS)


@asynchronous
async def test_a_cancelled_call_ends_at_the_server_too() -> None:
    begun, ended = threading.Event(), threading.Event()

    def wait(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.add_callback(ended.set)
        begun.set()
        ended.wait(SECONDS)
        return b""

    with answering(wait) as address:
        async with opened(address) as channel:
            call = asyncio.ensure_future(channel.unary_unary(PATH)(b"", timeout=SECONDS))
            assert await asyncio.to_thread(begun.wait, SECONDS)
            call.cancel()
            assert await asyncio.to_thread(ended.wait, SECONDS)


@asynchronous
async def test_a_server_is_called_again_once_it_is_back() -> None:
    async with unreachable() as (channel, port):
        assert (await fail(channel)).code() is grpc.StatusCode.UNAVAILABLE
        with answering(lambda request, context: b"back", port):
            assert await eventually(channel) == b"back"
        assert (await fail(channel)).code() is grpc.StatusCode.UNAVAILABLE
        with answering(lambda request, context: b"again", port):
            assert await eventually(channel) == b"again"


@asynchronous
async def test_a_closed_channel_ends_its_calls_and_takes_no_more() -> None:
    begun, ended = threading.Event(), threading.Event()

    def wait(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.add_callback(ended.set)
        begun.set()
        ended.wait(SECONDS)
        return b""

    with answering(wait) as address:
        async with opened(address) as channel:
            call = asyncio.ensure_future(channel.unary_unary(PATH)(b"", timeout=SECONDS))
            assert await asyncio.to_thread(begun.wait, SECONDS)
        with pytest.raises(asyncio.CancelledError):
            await call
        with pytest.raises(grpc.aio.UsageError):
            await channel.unary_unary(PATH)(b"", timeout=SECONDS)
        assert await asyncio.to_thread(ended.wait, SECONDS)


@asynchronous
async def test_a_call_that_waits_for_its_turn_ends_with_the_channel() -> None:
    connections: list[Peer] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(peer := Peer(reader, writer))
        await reader.readexactly(len(PREFACE))
        while (await peer.next_frame()).kind != DATA:
            pass
        # Answered after the settings were read.
        peer.send(settings_frame(streams=1), encode_frame(PING, 0, 0, b"settings"))
        await peer.next_frame()
        begun.set()
        await reader.read()
        writer.close()

    begun = asyncio.Event()
    server = await asyncio.start_server(take, "127.0.0.1", 0)
    channel = GrpcChannel([ServerAddress("127.0.0.1", server.sockets[0].getsockname()[1])])
    call = channel.unary_unary(PATH)
    calls = [asyncio.ensure_future(call(b"", timeout=SECONDS))]
    await begun.wait()
    calls.append(asyncio.ensure_future(call(b"", timeout=SECONDS)))
    # The second one runs until it waits.
    await asyncio.sleep(0)
    await channel.close()
    first, second = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(first, asyncio.CancelledError)
    assert isinstance(second, grpc.aio.UsageError)
    assert len(connections) == 1
    server.close()


@asynchronous
async def test_a_connection_that_is_not_made_in_time_is_given_up() -> None:
    taken: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: taken.append(writer), "127.0.0.1", 0)
    address = ServerAddress("127.0.0.1", server.sockets[0].getsockname()[1])
    # It takes connections and says nothing, so that TLS never begins.
    channel = GrpcChannel([address], ssl.create_default_context(), connect_seconds=0.05)
    failure = await fail(channel)
    assert failure.code() is grpc.StatusCode.UNAVAILABLE
    assert failure.details() == f"failed to connect to {address}: not within 0.05 seconds"
    await channel.close()
    for writer in taken:
        writer.close()
    server.close()


@asynccontextmanager
async def unreachable() -> AsyncIterator[tuple[GrpcChannel, int]]:
    """Yield a channel to a port on which nobody listens."""
    with answering(lambda request, context: b"") as address:
        pass
    async with opened(address) as channel:
        yield channel, address.port


async def eventually(channel: GrpcChannel) -> bytes:
    """Return the answer of the first call that gets one."""
    async with asyncio.timeout(SECONDS):
        while True:
            with suppress(grpc.aio.AioRpcError):
                answer: bytes = await channel.unary_unary(PATH)(b"", timeout=SECONDS)
                return answer
            await asyncio.sleep(0.01)


@asynchronous
async def test_several_servers_are_called_in_turn_and_those_that_are_away_are_passed_over() -> None:
    with (
        answering(lambda request, context: b"first") as first,
        answering(lambda request, context: b"second") as second,
    ):
        with answering(lambda request, context: b"third") as third:
            pass
        async with opened(first, third, second) as channel:
            answers = [await channel.unary_unary(PATH)(b"", timeout=SECONDS) for _ in range(6)]
            assert set(answers) == {b"first", b"second"}


@asynchronous
async def test_what_does_not_speak_grpc_is_no_answer() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server, opened(ServerAddress("127.0.0.1", server.sockets[0].getsockname()[1])) as channel:
        assert (await fail(channel)).code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:50051", ServerAddress("localhost", 50051)),
        ("[::1]:50051", ServerAddress("::1", 50051)),
        ("[::1]", ServerAddress("::1", 443)),
        ("cstp.example.com", ServerAddress("cstp.example.com", 443)),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, address: ServerAddress) -> None:
    assert ServerAddress.parse(text) == address
    assert ServerAddress.parse(str(address)) == address


@pytest.mark.parametrize(("seconds", "text"), [(15, "15000m"), (0.0001, "1m"), (1e9, "99999999m")])
def test_a_timeout_is_written_in_milliseconds(seconds: float, text: str) -> None:
    assert format_timeout(seconds) == text
