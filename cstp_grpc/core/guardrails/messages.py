"""Conversion between guardrails and messages of the contract, for servicers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cstp_grpc.contract import proto_values
from cstp_grpc.contract.enums import Enforcement, InputOrigin, Permission, RuleOutcome, Shell, Stakes
from cstp_grpc.contract.proto_values import EnumMapping
from cstp_grpc.core.commands.model import NO_INVOCATION, Invocation
from cstp_grpc.core.guardrails.inputs import IgnoredInput
from cstp_grpc.core.guardrails.model import Action, CheckResult, Verdict, VerdictApproval, Violation
from cstp_grpc.gen.cstp.v1 import commands_pb2, cstp_pb2, guardrails_pb2, options_pb2, types_pb2

if TYPE_CHECKING:
    from cstp_grpc.contract.caller import Caller
    from cstp_grpc.core.guardrails.explanation import GuardrailExplanation
    from cstp_grpc.core.guardrails.rules_in_force import ExplainedAction, ListedGuardrail, ListedInput

ENFORCEMENT = EnumMapping(guardrails_pb2.Enforcement, Enforcement)
PERMISSION = EnumMapping(options_pb2.Permission, Permission)
RULE_OUTCOME = EnumMapping(guardrails_pb2.RuleOutcome, RuleOutcome)
SHELL = EnumMapping(commands_pb2.Shell, Shell)
INPUT_ORIGIN = EnumMapping(guardrails_pb2.InputOrigin, InputOrigin)


def claimed_agent_name(
    request: cstp_pb2.CheckGuardrailsRequest
    | cstp_pb2.AnnounceIntentRequest
    | guardrails_pb2.BatchCheckGuardrailsRequest,
) -> str | None:
    return proto_values.optional_field(request.agent, "id") if request.HasField("agent") else None


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
        invocation=parse_invocation_fields(message),
    )


def parse_invocation_fields(message: cstp_pb2.Action | cstp_pb2.AnnounceIntentRequest) -> Invocation:
    """Parse the command of an action and the files that its tool accesses."""
    # Most actions have none.
    if not (message.command or message.reads or message.writes):
        return NO_INVOCATION
    return Invocation(
        command=message.command,
        shell=SHELL.word(message.shell) or Shell.BASH,
        directory=message.directory,
        reads=tuple(message.reads),
        writes=tuple(message.writes),
    )


def invocation_fields(invocation: Invocation) -> dict[str, Any]:
    """Return the fields of an action that state its command and files; none without them."""
    if invocation is NO_INVOCATION:
        return {}
    return {
        "command": invocation.command or None,
        "shell": SHELL.number(invocation.shell) if invocation.command else None,
        "directory": invocation.directory or None,
        "reads": invocation.reads,
        "writes": invocation.writes,
    }


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


def verdict_approval_message(approval: VerdictApproval) -> types_pb2.VerdictApproval:
    """Convert the approval request of a verdict to a message."""
    return types_pb2.VerdictApproval(
        id=approval.id,
        digest=approval.digest,
        status=proto_values.APPROVAL_STATUS.number(approval.status),
        expires_at=proto_values.timestamp_message(approval.expires_at),
        comment=approval.comment,
        instructions=approval.instructions,
    )


def check_message(check: CheckResult, agent: str, check_id: str) -> cstp_pb2.CheckGuardrailsResponse:
    """Convert the result of a check to a message of the agent that answers."""
    message = cstp_pb2.CheckGuardrailsResponse()
    write_check(message, check, agent, check_id)
    return message


def write_check(message: cstp_pb2.CheckGuardrailsResponse, check: CheckResult, agent: str, check_id: str) -> None:
    """Set the fields of a response to the result of a check by the agent that answers."""
    message.evaluated_at.CopyFrom(proto_values.timestamp_message(check.evaluated_at))
    message.agent = agent
    write_verdict(message, check.verdict, check_id)


def guardrail_status_message(verdict: Verdict, check_id: str) -> cstp_pb2.GuardrailStatus:
    """Convert a verdict to the status in an announcement's response."""
    message = cstp_pb2.GuardrailStatus()
    write_verdict(message, verdict, check_id)
    return message


def write_verdict(
    message: cstp_pb2.CheckGuardrailsResponse | cstp_pb2.GuardrailStatus, verdict: Verdict, check_id: str
) -> None:
    """Set the fields that responses to checks and announcements have of a verdict."""
    # One by one: a message that is made with its fields takes twice as long, and one that is put into another is
    # copied.
    message.allowed = verdict.allowed
    message.evaluated = verdict.evaluated
    message.rule_set_version = verdict.rule_set_version
    message.check_id = check_id
    # Nearly all of these are empty.
    if verdict.violations:
        message.violations.extend(map(violation_message, verdict.violations))
        message.approval_required = verdict.approval_required
    if verdict.approval is not None:
        message.approval.CopyFrom(verdict_approval_message(verdict.approval))
    if verdict.warnings:
        message.warnings.extend(map(violation_message, verdict.warnings))
    if verdict.dryrun:
        message.dryrun_violations.extend(map(violation_message, verdict.dryrun))
    if verdict.assumed:
        message.assumed.extend(verdict.assumed)
    if verdict.ignored:
        message.ignored_context.extend(map(ignored_input_message, verdict.ignored))


def parse_explained_action(request: guardrails_pb2.ExplainGuardrailsRequest, caller: Caller) -> Action:
    """Parse the action of a request to explain guardrails, as of the agent and the instant that it names."""
    action = parse_action(request.action, caller)
    acting_agent = proto_values.optional_field(request, "acting_agent")
    if acting_agent is not None or request.permissions:
        permissions = frozenset(PERMISSION.words(request.permissions))
        action = replace(action, agent=acting_agent or caller.agent, permissions=permissions)
    return replace(action, now=proto_values.datetime_field(request, "at"))


def explanation_message(explained: ExplainedAction, agent: str) -> guardrails_pb2.ExplainGuardrailsResponse:
    """Convert an explained action to a message of the agent that answers."""
    return guardrails_pb2.ExplainGuardrailsResponse(
        verdict=check_message(explained.result, agent, check_id=""),
        guardrails=[
            guardrail_explanation_message(each, listed.rulebook.name) for listed, each in explained.guardrails.items
        ],
        next_page_token=explained.guardrails.next_token,
        rule_set_version=explained.result.verdict.rule_set_version,
    )


def guardrail_explanation_message(each: GuardrailExplanation, rulebook: str) -> guardrails_pb2.GuardrailExplanation:
    """Convert what became of a guardrail to a message."""
    return guardrails_pb2.GuardrailExplanation(
        id=each.guardrail.id,
        rulebook=rulebook,
        severity=proto_values.SEVERITY.number(each.guardrail.severity),
        enforcement=ENFORCEMENT.number(each.guardrail.enforcement),
        outcome=RULE_OUTCOME.number(each.outcome),
        reason=each.reason,
        violation=None if each.violation is None else violation_message(each.violation),
        parts=[
            guardrails_pb2.ExplainedPart(
                expression=part.expression, value=part.value, error=part.error, decisive=part.is_decisive
            )
            for part in each.parts
        ],
        inputs=[
            guardrails_pb2.ExplainedInput(
                name=found.name,
                origin=INPUT_ORIGIN.number(found.origin),
                value=found.value,
                given_as=found.given_as,
                problem=found.problem,
            )
            for found in each.inputs
        ],
        microseconds=each.microseconds,
    )


def guardrail_message(listed: ListedGuardrail, *, shows_expressions: bool) -> guardrails_pb2.Guardrail:
    """Convert a guardrail to a message."""
    rule = listed.guardrail
    suggestion = rule.suggestion
    if rule.suggestion_template is not None and not shows_expressions:
        suggestion = rule.suggestion_template.outline
    return guardrails_pb2.Guardrail(
        id=rule.id,
        name=rule.name,
        description=rule.description,
        severity=proto_values.SEVERITY.number(rule.severity),
        enforcement=ENFORCEMENT.number(rule.enforcement),
        expires=proto_values.optional_timestamp(rule.expires),
        owner=rule.owner or listed.rulebook.owner,
        tags=rule.tags,
        rulebook=listed.rulebook.name,
        inputs=listed.inputs,
        suggestion=suggestion,
        expression=rule.when.source if shows_expressions else None,
        categories=sorted(rule.match.categories),
        stakes=[proto_values.STAKES.number(stakes) for stakes in sorted(rule.match.stakes)],
        approvers=rule.approvers,
    )


def input_message(listed: ListedInput) -> guardrails_pb2.GuardrailInput:
    """Convert an input to a message."""
    declared = listed.declared
    message = guardrails_pb2.GuardrailInput(
        name=declared.name,
        type=declared.type,
        description=declared.description,
        required=declared.is_required,
        values=declared.values,
        guardrail_ids=listed.guardrail_ids,
    )
    if declared.default is not None:
        # As the value of a member, because only structures convert what Python holds.
        message.default_value.CopyFrom(proto_values.dict_to_struct({"default": declared.default}).fields["default"])
    return message
