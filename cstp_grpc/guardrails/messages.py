"""Conversion between guardrails and messages of the contract, for servicers."""

from __future__ import annotations

from cstp_grpc.caller import Caller
from cstp_grpc.contract import proto_values
from cstp_grpc.enums import Stakes
from cstp_grpc.gen.cstp.v1 import cstp_pb2, types_pb2
from cstp_grpc.guardrails.checker import CheckResult
from cstp_grpc.guardrails.model import Action, IgnoredInput, Violation


def parse_action(message: cstp_pb2.Action, caller: Caller) -> Action:
    """Parse the action of a caller."""
    return Action(
        description=message.description,
        category=proto_values.optional_field(message, "category"),
        stakes=proto_values.STAKES.word(message.stakes) or Stakes.MEDIUM,
        confidence=proto_values.optional_field(message, "confidence"),
        context=proto_values.struct_to_dict(message.context),
        project=proto_values.optional_field(message, "project"),
        agent=caller.agent,
        permissions=caller.permissions,
    )


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
            types_pb2.MissingInput(
                name=each.name, type=each.type, description=each.description, values=each.values or None
            )
            for each in item.missing_inputs
        ],
    )


def ignored_input_message(item: IgnoredInput) -> types_pb2.IgnoredInput:
    """Convert an ignored key to a message."""
    return types_pb2.IgnoredInput(name=item.name, closest=item.closest)


def check_message(check: CheckResult, agent: str, check_id: str) -> cstp_pb2.CheckGuardrailsResponse:
    """Convert the result of a check to a message of the agent that answers."""
    verdict = check.verdict
    return cstp_pb2.CheckGuardrailsResponse(
        allowed=verdict.allowed,
        violations=[violation_message(each) for each in verdict.violations],
        warnings=[violation_message(each) for each in verdict.warnings],
        evaluated=verdict.evaluated,
        evaluated_at=proto_values.timestamp_message(check.evaluated_at),
        agent=agent,
        dryrun_violations=[violation_message(each) for each in verdict.dryrun],
        approval_required=verdict.approval_required,
        rule_set_version=verdict.rule_set_version,
        check_id=check_id,
        assumed=verdict.assumed,
        ignored_context=[ignored_input_message(each) for each in verdict.ignored],
    )
