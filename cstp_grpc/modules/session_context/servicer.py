"""The servicer of session contexts."""

from __future__ import annotations

import grpc

from cstp_grpc.contract.caller import current_caller
from cstp_grpc.gen.cstp.v1 import session_context_pb2, session_context_pb2_grpc
from cstp_grpc.modules.session_context.messages import READY_QUEUE, RESPONSE, parse_ready_queue, parse_session_context
from cstp_grpc.modules.session_context.reader import SessionContextReader
from cstp_grpc.modules.session_context.ready_queue import ReadyQueueReader


class SessionContextService(session_context_pb2_grpc.SessionContextServiceServicer):
    """Serves cstp.v1.SessionContextService."""

    def __init__(self, reader: SessionContextReader, queues: ReadyQueueReader) -> None:
        self._reader = reader
        self._queues = queues

    def GetSessionContext(
        self, request: session_context_pb2.GetSessionContextRequest, context: grpc.ServicerContext
    ) -> session_context_pb2.GetSessionContextResponse:
        return RESPONSE.encode(self._reader.read(parse_session_context(request), current_caller.get()))

    def GetReadyQueue(
        self, request: session_context_pb2.GetReadyQueueRequest, context: grpc.ServicerContext
    ) -> session_context_pb2.GetReadyQueueResponse:
        return READY_QUEUE.encode(self._queues.read(parse_ready_queue(request), current_caller.get()))
