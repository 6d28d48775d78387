"""A server of chat sessions that answers as a test tells it, and records what it is asked."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from cstp_grpc.contract.errors import CstpError
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.gen.liaison.v1 import liaison_pb2 as pb2
from cstp_grpc.server.interceptors.error_status import to_status
from tests.grpc_servers import grpc_server
from tests.waiting import SECONDS

Stream = Sequence[int | CstpError | grpc.StatusCode | threading.Event]
"""The sequences of the events of a stream, what it waits for, and how it fails."""


def event(sequence: int) -> pb2.Event:
    return pb2.Event(type="message_appended", sequence=sequence, chat_session_id="s-1", user_id="ada", agent="guide")


@dataclass
class Watched:
    """Gives each watch the next stream of its script, which ends after its last event where it does not fail."""

    script: list[Stream]
    requests: list[pb2.WatchEventsRequest] = field(default_factory=list)
    target: str = ""
    newest: int = 0
    """The sequence of the newest event when somebody asks."""

    def events(self, request: pb2.ListEventsRequest, context: grpc.ServicerContext) -> pb2.ListEventsResponse:
        return pb2.ListEventsResponse(newest=self.newest)

    def watch(
        self, request: pb2.WatchEventsRequest, context: grpc.ServicerContext
    ) -> Iterator[pb2.WatchEventsResponse]:
        self.requests.append(request)
        # Else it would be sent with the first event.
        context.send_initial_metadata(())
        for given in self.script.pop(0):
            if isinstance(given, CstpError):
                context.abort_with_status(to_status(given, "req-1"))
            if isinstance(given, grpc.StatusCode):
                context.abort(given, "in a few words")
            if isinstance(given, threading.Event):
                given.wait(SECONDS)
                continue
            assert isinstance(given, int)
            yield pb2.WatchEventsResponse(event=event(given))


@contextmanager
def watched(*script: Stream, address: str = "127.0.0.1:0") -> Iterator[Watched]:
    """Run a server for the length of a block."""
    servicer = Watched(list(script))
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "WatchEvents": grpc.unary_stream_rpc_method_handler(
            servicer.watch, pb2.WatchEventsRequest.FromString, pb2.WatchEventsResponse.SerializeToString
        ),
        "ListEvents": grpc.unary_unary_rpc_method_handler(
            servicer.events, pb2.ListEventsRequest.FromString, pb2.ListEventsResponse.SerializeToString
        ),
    }
    service = contract_methods()["liaison.watchEvents"].service
    handler = grpc.method_handlers_generic_handler(service, handlers)
    with grpc_server(lambda server: server.add_generic_rpc_handlers((handler,)), address=address) as port:
        servicer.target = f"127.0.0.1:{port}"
        yield servicer
