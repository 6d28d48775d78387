"""How failures of CSTP look to A2A clients, whatever their reason."""

from __future__ import annotations

import grpc
import pytest
from google.rpc import code_pb2

from bridge.a2a.errors import Refused, grpc_error, jsonrpc_error, rest_error
from bridge.status import REASONS, Failure

EXPECTED = {
    "PARSE_ERROR": (-32700, grpc.StatusCode.INVALID_ARGUMENT, 400),
    "INVALID_REQUEST": (-32600, grpc.StatusCode.INVALID_ARGUMENT, 400),
    "METHOD_NOT_FOUND": (-32601, grpc.StatusCode.UNIMPLEMENTED, 404),
    "INVALID_ARGUMENT": (-32602, grpc.StatusCode.INVALID_ARGUMENT, 400),
    "INTERNAL": (-32603, grpc.StatusCode.INTERNAL, 500),
    "AUTHENTICATION_REQUIRED": (-31001, grpc.StatusCode.UNAUTHENTICATED, 401),
    "RATE_LIMITED": (-31002, grpc.StatusCode.RESOURCE_EXHAUSTED, 429),
    "QUERY_FAILED": (-31003, grpc.StatusCode.UNAVAILABLE, 503),
    "GUARDRAIL_EVAL_FAILED": (-31004, grpc.StatusCode.FAILED_PRECONDITION, 400),
    "PERMISSION_DENIED": (-31010, grpc.StatusCode.PERMISSION_DENIED, 403),
    "NOT_FOUND": (-31011, grpc.StatusCode.NOT_FOUND, 404),
    "CONFLICT": (-31012, grpc.StatusCode.ABORTED, 409),
    "DEADLINE_EXCEEDED": (-31013, grpc.StatusCode.DEADLINE_EXCEEDED, 504),
    "UNAVAILABLE": (-31013, grpc.StatusCode.UNAVAILABLE, 503),
    "MISSING_PARAMETER": (-32602, grpc.StatusCode.INVALID_ARGUMENT, 400),
    "INVALID_PILLAR": (-32602, grpc.StatusCode.INVALID_ARGUMENT, 400),
    "SESSION_NOT_FOUND": (-31011, grpc.StatusCode.NOT_FOUND, 404),
    "CONTEXT_SHARING_FAILED": (-31013, grpc.StatusCode.FAILED_PRECONDITION, 400),
    "SESSION_UPDATE_FAILED": (-31012, grpc.StatusCode.ABORTED, 409),
    "LIAISON_AGENT_UNAVAILABLE": (-31013, grpc.StatusCode.UNAVAILABLE, 503),
    "SESSION_WITH_ANOTHER_AGENT": (-31012, grpc.StatusCode.FAILED_PRECONDITION, 400),
}


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_has_its_code_and_status_on_each_transport(reason: str) -> None:
    refused = Refused(Failure(reason, "In plain words"))
    code, status, http_status = EXPECTED[reason]
    assert jsonrpc_error(refused, "r-1")["code"] == code
    assert grpc_error(refused, "r-1").code == code_pb2.Code.Value(status.name)
    answered, body = rest_error(refused, "r-1")
    assert (answered, body["error"]["status"]) == (http_status, status.name)
    assert body["error"]["details"][0]["reason"] == reason
