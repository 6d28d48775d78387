"""The servicer of erasures: translate, call the domain once, translate back."""

from __future__ import annotations

from dataclasses import asdict

import grpc

from cstp_grpc.contract.caller import current_caller
from cstp_grpc.gen.cstp.v1 import erasure_pb2, erasure_pb2_grpc
from cstp_grpc.modules.erasure.eraser import AgentEraser
from cstp_grpc.modules.erasure.subject_eraser import SubjectEraser


class ErasureService(erasure_pb2_grpc.ErasureServiceServicer):
    """Serves cstp.v1.ErasureService."""

    def __init__(self, eraser: AgentEraser, subjects: SubjectEraser) -> None:
        self._eraser = eraser
        self._subjects = subjects

    def EraseAgent(
        self, request: erasure_pb2.EraseAgentRequest, context: grpc.ServicerContext
    ) -> erasure_pb2.EraseAgentResponse:
        act = self._eraser.count if request.dry_run else self._eraser.erase
        return erasure_pb2.EraseAgentResponse(**asdict(act(current_caller.get(), request.agent)))

    def EraseSubject(
        self, request: erasure_pb2.EraseSubjectRequest, context: grpc.ServicerContext
    ) -> erasure_pb2.EraseSubjectResponse:
        act = self._subjects.erase if request.confirm else self._subjects.count
        return erasure_pb2.EraseSubjectResponse(**asdict(act(current_caller.get(), request.subject)))
