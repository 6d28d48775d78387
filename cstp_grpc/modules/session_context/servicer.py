"""The servicer of session contexts."""

from __future__ import annotations

import grpc

from cstp_grpc.contract.caller import current_caller
from cstp_grpc.gen.cstp.v1 import session_context_pb2, session_context_pb2_grpc
from cstp_grpc.modules.session_context.messages import RESPONSE, parse_session_context
from cstp_grpc.modules.session_context.reader import SessionContextReader


class SessionContextService(session_context_pb2_grpc.SessionContextServiceServicer):
    """Serves cstp.v1.SessionContextService."""

    def __init__(self, reader: SessionContextReader) -> None:
        self._reader = reader

    def GetSessionContext(
        self, request: session_context_pb2.GetSessionContextRequest, context: grpc.ServicerContext
    ) -> session_context_pb2.GetSessionContextResponse:
        return RESPONSE.encode(self._reader.read(parse_session_context(request), current_caller.get()))
