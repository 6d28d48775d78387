"""Writes the google.rpc details of an error, for the server and for A2A."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from google.protobuf.any_pb2 import Any
from google.protobuf.message import Message
from google.rpc import error_details_pb2

from cstp_grpc.contract.rpc_errors import DOMAIN
from cstp_grpc.errors import BlockingGuardrail, FieldViolation


def make_error_details(
    reason: str,
    metadata: Mapping[str, str],
    *,
    domain: str = DOMAIN,
    violations: Iterable[FieldViolation] = (),
    blocks: Iterable[BlockingGuardrail] = (),
    retry_after_ms: int | None = None,
) -> list[Message]:
    """Return ErrorInfo, then BadRequest, PreconditionFailure and RetryInfo if there is something to tell in them."""
    info = error_details_pb2.ErrorInfo(reason=reason, domain=domain, metadata=metadata)
    bad_request = error_details_pb2.BadRequest()
    for violation in violations:
        bad_request.field_violations.add(field=violation.field, description=violation.description)
    precondition = error_details_pb2.PreconditionFailure()
    for block in blocks:
        precondition.violations.add(type=block.guardrail_id, subject=block.name, description=block.message)
    details: list[Message] = [info]
    details += [detail for detail in (bad_request, precondition) if detail.ByteSize()]
    if retry_after_ms is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(retry_after_ms)
        details.append(retry)
    return details


def pack_any(detail: Message) -> Any:
    """Return a detail in its envelope."""
    envelope = Any()
    envelope.Pack(detail)
    return envelope
