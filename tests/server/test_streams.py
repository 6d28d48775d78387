"""Methods that answer with a stream, with servicers that answer as a test tells them."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from cstp_grpc.contract.caller import current_caller
from cstp_grpc.contract.errors import NotFound, Unavailable
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.core.audit.refused_calls import RefusalCounter
from cstp_grpc.gen.liaison.v1 import liaison_pb2, liaison_pb2_grpc
from cstp_grpc.server.app import utc_now
from cstp_grpc.server.call_handlers import ServicerRegistration
from cstp_grpc.server.execution import CallPools
from cstp_grpc.server.grpc_server import GrpcServer, build_call_policy
from tests.harness import TIMEOUT, TOKENS, decoded, settings

PATH = contract_methods()["liaison.watchEvents"].path
ALICE = (("authorization", f"Bearer {TOKENS['alice']}"),)
NAMED = (*ALICE, ("x-request-id", "r-1"))
WATCH = liaison_pb2.WatchEventsRequest()

Context = grpc.aio.ServicerContext[Any, Any]
Responses = AsyncGenerator[liaison_pb2.WatchEventsResponse, None]
Answer = Callable[[liaison_pb2.WatchEventsRequest, Context], Responses]


@dataclass
class Served:
    """A server, and a channel to it."""

    server: GrpcServer
    target: str
    channel: grpc.Channel

    def watch(self, metadata: tuple[tuple[str, str], ...] = ALICE) -> Any:
        """Begin to watch, for longer than a server is waited for that stops."""
        stub = liaison_pb2_grpc.LiaisonServiceStub(self.channel)
        return stub.WatchEvents(WATCH, metadata=metadata, timeout=3 * TIMEOUT)


@contextmanager
def silent(served: Served, count: int, metadata: Sequence[tuple[str, str]]) -> Iterator[list[Any]]:
    """Keep calls of WatchEvents open, as long as the block lasts, that never send their message."""
    release = threading.Event()

    def nothing() -> Iterator[bytes]:
        release.wait(TIMEOUT)
        yield from ()

    watch: Any = served.channel.stream_stream(PATH)
    calls = [watch(nothing(), metadata=metadata, timeout=TIMEOUT) for _ in range(count)]
    yield calls
    release.set()
    for call in calls:
        call.cancel()


@contextmanager
def serving(folder: Path, *servicers: ServicerRegistration, **overrides: Any) -> Iterator[Served]:
    """Run a server of some servicers for the length of a block."""
    wanted = settings(folder, **overrides)
    server = GrpcServer(wanted.grpc, build_call_policy(wanted, RefusalCounter(utc_now)), servicers, {}, CallPools())
    target = f"127.0.0.1:{server.start().port}"
    try:
        with grpc.insecure_channel(target) as channel:
            yield Served(server, target, channel)
    finally:
        server.stop(0)


def answering(answer: Answer) -> ServicerRegistration:
    """Return the registration of a WatchEvents that gives this answer."""

    async def watch(request: liaison_pb2.WatchEventsRequest, context: Context) -> Responses:
        return answer(request, context)

    method = contract_methods()["liaison.watchEvents"]
    behavior: Any = watch
    handler = grpc.unary_stream_rpc_method_handler(
        behavior, method.request.FromString, method.response.SerializeToString
    )
    service = grpc.method_handlers_generic_handler(method.service, {method.rpc: handler})
    return lambda _, server: server.add_generic_rpc_handlers((service,)), None


async def numbered(*sequences: int) -> Responses:
    """Yield events of given sequences."""
    for sequence in sequences:
        yield liaison_pb2.WatchEventsResponse(event=liaison_pb2.Event(sequence=sequence))


@dataclass
class Endless:
    """Answers that wait, after the first, until the call is over."""

    closed: threading.Event = field(default_factory=threading.Event)

    async def __call__(self, request: Any, context: Context) -> Responses:
        try:
            async for answer in numbered(1):
                yield answer
            await asyncio.Event().wait()
        finally:
            self.closed.set()


def test_answers_come_in_their_order_and_with_the_request_id(tmp_path: Path) -> None:
    with serving(tmp_path, answering(lambda *_: numbered(1, 2, 3))) as served:
        call = served.watch(NAMED)
        assert [answer.event.sequence for answer in call] == [1, 2, 3]
        assert call.code() is grpc.StatusCode.OK
        assert ("x-request-id", "r-1") in call.trailing_metadata()


def test_a_caller_is_told_that_it_was_let_in_before_there_is_anything_to_answer(tmp_path: Path) -> None:
    release = threading.Event()

    async def late() -> Responses:
        await asyncio.to_thread(release.wait, TIMEOUT)
        async for answer in numbered(1):
            yield answer

    with serving(tmp_path, answering(lambda *_: late())) as served:
        call = served.watch()
        assert call.initial_metadata() is not None
        release.set()
        assert [answer.event.sequence for answer in call] == [1]


def test_who_is_not_let_in_gets_the_error_with_the_request_id(tmp_path: Path) -> None:
    def refuse(*_: object) -> Responses:
        raise Unavailable("there is no room")

    with serving(tmp_path, answering(refuse)) as served, pytest.raises(grpc.RpcError) as caught:
        next(served.watch(NAMED))
    answered = decoded(caught.value)
    assert (answered.reason, answered.message, answered.data) == (
        "UNAVAILABLE",
        "there is no room",
        {"requestId": "r-1"},
    )


def test_an_error_in_the_middle_comes_after_the_answers_before_it(tmp_path: Path) -> None:
    async def broken() -> Responses:
        async for answer in numbered(1, 2):
            yield answer
        raise NotFound("it is gone", metadata={"what": "session"})

    with serving(tmp_path, answering(lambda *_: broken())) as served:
        call = served.watch(NAMED)
        assert [next(call).event.sequence, next(call).event.sequence] == [1, 2]
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
    answered = decoded(caught.value)
    assert (answered.reason, answered.message) == ("NOT_FOUND", "it is gone")
    assert answered.data == {"requestId": "r-1", "what": "session"}


def test_the_unforeseen_in_the_middle_tells_nothing_but_the_request_id(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken() -> Responses:
        async for answer in numbered(1):
            yield answer
        raise RuntimeError("the password is hunter2")

    with serving(tmp_path, answering(lambda *_: broken())) as served:
        call = served.watch(NAMED)
        next(call)
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
    answered = decoded(caught.value)
    assert (answered.reason, answered.data) == ("INTERNAL", {"requestId": "r-1"})
    assert "hunter2" not in str(caught.value)
    assert any("r-1" in record.getMessage() and record.exc_info for record in caplog.records)


def test_it_is_known_who_calls_as_long_as_answers_come(tmp_path: Path) -> None:
    async def named() -> Responses:
        for _ in range(2):
            yield liaison_pb2.WatchEventsResponse(event=liaison_pb2.Event(agent=current_caller.get().agent))

    with serving(tmp_path, answering(lambda *_: named())) as served:
        assert [answer.event.agent for answer in served.watch()] == ["alice", "alice"]


def test_a_caller_that_leaves_ends_the_answers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    endless = Endless()
    with serving(tmp_path, answering(endless)) as served:
        call = served.watch()
        assert next(call).event.sequence == 1
        call.cancel()
        assert endless.closed.wait(TIMEOUT)
    assert not caplog.records


def test_a_caller_that_does_not_read_keeps_nobody_else_from_reading(tmp_path: Path) -> None:
    large = liaison_pb2.WatchEventsResponse(event=liaison_pb2.Event(agent="x" * 100_000))
    sent, closed = [0], threading.Event()

    async def flood() -> Responses:
        try:
            while True:
                sent[0] += 1
                yield large
        finally:
            closed.set()

    calls = iter([flood(), numbered(1, 2)])
    with serving(tmp_path, answering(lambda *_: next(calls))) as served:
        silent = served.watch()
        next(silent)
        assert [answer.event.sequence for answer in served.watch()] == [1, 2]
        assert sent[0] < 10_000, "answers pile up"
        silent.cancel()
        assert closed.wait(TIMEOUT)


@pytest.mark.parametrize("metadata", [(), (("authorization", "Bearer of-somebody-else"),)], ids=["none", "unknown"])
def test_strangers_are_refused_before_they_send_anything(tmp_path: Path, metadata: Sequence[tuple[str, str]]) -> None:
    named = (*metadata, ("x-request-id", "r-1"))
    with serving(tmp_path, answering(lambda *_: numbered(1))) as served, silent(served, 20, named) as calls:
        for call in calls:
            with pytest.raises(grpc.RpcError) as caught:
                next(call)
            answered = decoded(caught.value)
            assert (answered.reason, answered.data) == ("AUTHENTICATION_REQUIRED", {"requestId": "r-1"})


def test_a_message_that_does_not_come_in_time_ends_its_call(tmp_path: Path) -> None:
    hurried = {"message_seconds": 0.2}
    with (
        serving(tmp_path, answering(lambda *_: numbered(1)), grpc=hurried) as served,
        silent(served, 10, ALICE) as calls,
    ):
        for call in calls:
            with pytest.raises(grpc.RpcError) as caught:
                next(call)
            assert decoded(caught.value).reason == "DEADLINE_EXCEEDED"


def test_a_request_that_is_not_well_formed_is_named(tmp_path: Path) -> None:
    with serving(tmp_path, answering(lambda *_: numbered(1))) as served:
        stub = liaison_pb2_grpc.LiaisonServiceStub(served.channel)
        with pytest.raises(grpc.RpcError) as caught:
            next(stub.WatchEvents(liaison_pb2.WatchEventsRequest(after=-1), metadata=ALICE, timeout=TIMEOUT))
    assert decoded(caught.value).fields == ("after",)


def test_a_server_that_stops_does_not_wait_for_streams_without_an_end(tmp_path: Path) -> None:
    with serving(tmp_path, answering(Endless())) as served:
        call = served.watch()
        assert next(call).event.sequence == 1
        stopping = threading.Thread(target=served.server.stop, args=(100 * TIMEOUT,))
        stopping.start()
        stopping.join(TIMEOUT)
        assert not stopping.is_alive()
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
        answered = decoded(caught.value)
        assert (answered.reason, answered.message) == ("UNAVAILABLE", "the server is stopping")


def test_a_server_that_stops_waits_for_no_caller_that_does_not_read(tmp_path: Path) -> None:
    large = liaison_pb2.WatchEventsResponse(event=liaison_pb2.Event(agent="x" * 100_000))

    async def flood() -> Responses:
        while True:
            yield large

    with serving(tmp_path, answering(lambda *_: flood())) as served:
        call = served.watch()
        next(call)
        stopping = threading.Thread(target=served.server.stop, args=(100 * TIMEOUT,))
        stopping.start()
        stopping.join(TIMEOUT)
        assert not stopping.is_alive()
        call.cancel()


def test_equal_answers_are_equal_bytes(tmp_path: Path) -> None:
    names = [f"member-{number}" for number in range(50)]
    answers = []
    for order in (names, names[::-1]):
        answer = liaison_pb2.WatchEventsResponse()
        for name in order:
            answer.event.data[name] = len(name)
        answers.append(answer)
    assert answers[0] == answers[1]

    async def both() -> Responses:
        for answer in answers:
            yield answer

    with serving(tmp_path, answering(lambda *_: both())) as served:
        watch: Any = served.channel.unary_stream(PATH)
        first, second = watch(WATCH.SerializeToString(), metadata=ALICE, timeout=TIMEOUT)
    assert first == second
