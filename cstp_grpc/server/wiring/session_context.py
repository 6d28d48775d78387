"""Wiring of session contexts."""

from __future__ import annotations

from cstp_grpc.gen.cstp.v1 import session_context_pb2_grpc
from cstp_grpc.modules.session_context.reader import SessionContextReader, SessionSources
from cstp_grpc.modules.session_context.servicer import SessionContextService
from cstp_grpc.server.server_module import Module, SharedParts


def build_session_context_module(shared: SharedParts, sources: SessionSources) -> Module:
    """Build the service that gives agents their context at the start of a session."""
    servicer = SessionContextService(SessionContextReader(sources, shared.sink, shared.clock))
    registration = (session_context_pb2_grpc.add_SessionContextServiceServicer_to_server, servicer)
    return Module(servicers=[registration])
