"""Wiring of session contexts."""

from __future__ import annotations

from cstp_grpc.core.intents.sql_store import SqlIntentStore
from cstp_grpc.gen.cstp.v1 import session_context_pb2_grpc
from cstp_grpc.modules.calibration.analyst import ReviewAnalyst
from cstp_grpc.modules.session_context.reader import SessionContextReader, SessionSources
from cstp_grpc.modules.session_context.ready_queue import ReadyQueueReader
from cstp_grpc.modules.session_context.servicer import SessionContextService
from cstp_grpc.server.server_module import Module, SharedParts


def build_session_context_module(
    shared: SharedParts, sources: SessionSources, intents: SqlIntentStore, analyst: ReviewAnalyst
) -> Module:
    """Build the service that gives agents their context at the start of a session, and their ready queue."""
    queues = ReadyQueueReader(sources.decisions, intents, analyst, shared.clock)
    servicer = SessionContextService(SessionContextReader(sources, shared.sink, shared.clock), queues)
    registration = (session_context_pb2_grpc.add_SessionContextServiceServicer_to_server, servicer)
    return Module(servicers=[registration])
