"""Wiring of the audit trail."""

from __future__ import annotations

from dataclasses import dataclass

from cstp_grpc.audit.model import AuditSink, NullAuditSink
from cstp_grpc.audit.refused_calls import RefusalCounter, RefusalRecorder
from cstp_grpc.audit.servicer import AuditService, IntentLister
from cstp_grpc.audit.sql_trail import SqlAuditTrail
from cstp_grpc.gen.cstp.v1 import audit_pb2_grpc
from cstp_grpc.server_module import Module, SharedParts


@dataclass(frozen=True, slots=True)
class AuditParts:
    """The audit module, and where the other rooms write their entries."""

    module: Module
    sink: AuditSink


def build_audit_module(shared: SharedParts, refusals: RefusalCounter, list_intents: IntentLister) -> AuditParts:
    """Build the audit trail; `refusals` counts refused calls, `list_intents` lists announced intents."""
    trail = SqlAuditTrail(shared.database, shared.writer, shared.settings.audit.judged_content)
    servicers = [(audit_pb2_grpc.add_AuditServiceServicer_to_server, AuditService(trail, list_intents))]
    if not shared.settings.audit.enabled:
        # The servicer stays: what was recorded before can still be listed. Only refused calls are not recorded any
        # more.
        return AuditParts(Module(servicers=servicers), NullAuditSink())
    recorder = RefusalRecorder(refusals, trail, shared.clock)
    return AuditParts(Module(servicers=servicers, background=[recorder]), trail)
