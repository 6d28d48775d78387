"""How the client reads what a method answers with a stream."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest
from google.protobuf.message import Message

from cstp_grpc.client import CstpClient
from cstp_grpc.client.grpc_transport import ResponseStream
from cstp_grpc.contract.errors import (
    AuthenticationRequired,
    CstpError,
    DeadlineExceeded,
    MethodNotFound,
    NotFound,
    ServerUnreachable,
    Unavailable,
)
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.gen.cstp.v1 import access_pb2
from cstp_grpc.gen.liaison.v1 import liaison_pb2 as pb2
from tests.client.conversing import Stream, Watched, event, watched
from tests.waiting import SECONDS

WATCH = contract_methods()["liaison.watchEvents"]
REQUEST = pb2.WatchEventsRequest(after=3)


@contextmanager
def watching(*script: Stream, timeout: float | None = None) -> Iterator[tuple[Watched, ResponseStream]]:
    """Watch a server that answers by a script."""
    with (
        watched(*script) as server,
        CstpClient(server.target) as client,
        client.watch(WATCH, REQUEST, timeout) as answers,
    ):
        yield server, answers


def test_answers_come_in_their_order_until_the_server_ends_them() -> None:
    with watching([4, 5]) as (server, answers):
        assert list(answers) == [pb2.WatchEventsResponse(event=event(number)) for number in (4, 5)]
        assert list(answers) == []
    assert server.requests == [REQUEST]


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (NotFound("it is gone"), NotFound),
        (AuthenticationRequired("who are you"), AuthenticationRequired),
        (Unavailable("the server is stopping"), Unavailable),
        (grpc.StatusCode.CANCELLED, Unavailable),
    ],
)
def test_a_failure_in_the_middle_is_raised_after_what_came_before(
    failure: CstpError | grpc.StatusCode, kind: type[CstpError]
) -> None:
    with watching([4, failure]) as (_, answers):
        assert next(answers) == pb2.WatchEventsResponse(event=event(4))
        with pytest.raises(kind) as caught:
            next(answers)
    if isinstance(failure, CstpError):
        assert (caught.value.message, caught.value.request_id) == (failure.message, "req-1")


def test_a_server_that_is_not_there_is_unreachable(free_port: int) -> None:
    with (
        CstpClient(f"127.0.0.1:{free_port}") as client,
        client.watch(WATCH, REQUEST) as answers,
        pytest.raises(ServerUnreachable, match=str(free_port)),
    ):
        next(answers)


def test_a_stream_goes_on_no_longer_than_it_may() -> None:
    release = threading.Event()
    with watching([4, release], timeout=0.5) as (_, answers):
        read: list[Message] = []
        with pytest.raises(DeadlineExceeded):
            read.extend(answers)
        # The first one may come too late, and nothing comes after it.
        assert read in ([], [pb2.WatchEventsResponse(event=event(4))])
        release.set()


def test_a_stream_outlives_the_time_that_a_call_may_take() -> None:
    release = threading.Event()
    with (
        watched([4, release, 5]) as server,
        CstpClient(server.target, timeout=0.1) as client,
        client.watch(WATCH, REQUEST) as answers,
    ):
        assert next(answers)
        threading.Timer(0.3, release.set).start()
        assert next(answers) == pb2.WatchEventsResponse(event=event(5))


def test_another_thread_may_end_the_wait_for_an_answer() -> None:
    release = threading.Event()
    with watching([4, release]) as (_, answers):
        assert next(answers)
        left: list[object] = []
        reader = threading.Thread(target=lambda: left.extend(answers))
        reader.start()
        answers.close()
        reader.join(SECONDS)
        assert not reader.is_alive()
        assert left == []
        release.set()


def test_a_method_without_a_stream_of_answers_cannot_be_watched() -> None:
    with CstpClient("localhost:1") as client, pytest.raises(MethodNotFound, match=r"cstp\.getAccess does not answer"):
        client.watch(contract_methods()["cstp.getAccess"], access_pb2.GetAccessRequest())


def test_json_rpc_carries_no_stream_of_answers() -> None:
    with CstpClient("http://localhost:1") as client, pytest.raises(MethodNotFound, match="grpc://"):
        client.watch(WATCH, REQUEST)
