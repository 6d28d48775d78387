"""Wiring of erasures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cstp_grpc.core.decisions.journal import Journal
from cstp_grpc.core.tokens.sql_store import SqlTokenStore
from cstp_grpc.gen.cstp.v1 import erasure_pb2_grpc
from cstp_grpc.modules.erasure.audit_contents import AuditContentEraser
from cstp_grpc.modules.erasure.eraser import AgentEraser
from cstp_grpc.modules.erasure.servicer import ErasureService
from cstp_grpc.modules.erasure.sql_store import SqlAgentRecordStore
from cstp_grpc.modules.erasure.subject_eraser import SubjectEraser
from cstp_grpc.modules.erasure.user_sessions import StoredUserSessions
from cstp_grpc.server.server_module import Module, SharedParts


def build_erasure_module(shared: SharedParts, journal: Journal, on_erased: Sequence[Callable[[], object]]) -> Module:
    """Build the service that erases the data of agents and of subjects; `on_erased` are called after an agent's."""
    sink = shared.sink
    store = SqlAgentRecordStore(shared.database)
    contents = AuditContentEraser(store, sink, shared.writer, shared.clock)
    auth, tokens = shared.settings.auth, SqlTokenStore(shared.database)

    def find_tenants(agent: str) -> set[str]:
        with shared.database.read_snapshot() as unit_of_work:
            known = {*tokens.find_tenants(unit_of_work, agent)}
        if (configured := auth.tenants.get(agent)) is not None:
            known.add(configured)
        elif not known:
            known.update(
                each.tenant for each in auth.jwt if not each.tenant_claim and agent.startswith(each.agent_prefix)
            )
        return known

    eraser = AgentEraser(store, journal, sink, shared.writer, shared.clock, contents, on_erased, find_tenants)
    sessions = StoredUserSessions(shared.database, shared.writer, sink, shared.clock)
    subjects = SubjectEraser(store, sessions, contents, sink, shared.clock)
    return Module(servicers=[(erasure_pb2_grpc.add_ErasureServiceServicer_to_server, ErasureService(eraser, subjects))])
