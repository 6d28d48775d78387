"""Conversion of violations to messages of the contract."""

from __future__ import annotations

from cstp_grpc.contract import proto_values
from cstp_grpc.gen.cstp.v1 import types_pb2
from cstp_grpc.guardrails.model import Violation


def violation_message(item: Violation) -> types_pb2.Violation:
    """Convert a violation to a message."""
    return types_pb2.Violation(
        guardrail_id=item.guardrail_id,
        name=item.name,
        message=item.message,
        severity=proto_values.SEVERITY.number(item.severity),
        suggestion=item.suggestion,
        code=item.code,
        missing_inputs=[
            types_pb2.MissingInput(name=each.name, type=each.type, description=each.description)
            for each in item.missing_inputs
        ],
    )
