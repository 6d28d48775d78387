"""Conversion between guardrails and messages of the contract, for servicers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cstp_grpc.contract import proto_values
from cstp_grpc.contract.enums import Permission
from cstp_grpc.contract.message_mapping import MessageMapper
from cstp_grpc.contract.proto_values import EnumMapping
from cstp_grpc.core.commands.messages import parse_invocation_fields
from cstp_grpc.core.guardrails.explanation import GuardrailExplanation
from cstp_grpc.core.guardrails.model import Action, CheckResult, Verdict, Violation
from cstp_grpc.core.guardrails.rules_in_force import ListedGuardrail, ListedInput
from cstp_grpc.gen.cstp.v1 import cstp_pb2, guardrails_pb2, options_pb2, types_pb2

if TYPE_CHECKING:
    from cstp_grpc.contract.caller import Caller
    from cstp_grpc.core.guardrails.rules_in_force import ExplainedAction

PERMISSION = EnumMapping(options_pb2.Permission, Permission)

# The agent of a violation is named only where those of several are merged.
VIOLATION = MessageMapper(Violation, types_pb2.Violation, unset=("agent",))
VERDICT_FIELDS = {"dryrun_violations": "dryrun", "ignored_context": "ignored"}
GUARDRAIL_STATUS = MessageMapper(
    Verdict,
    cstp_pb2.GuardrailStatus,
    VERDICT_FIELDS,
    given=("check_id",),
    unset=("quorum",),
    nested=(VIOLATION,),
)
CHECK = MessageMapper(
    CheckResult,
    cstp_pb2.CheckGuardrailsResponse,
    {name: f"verdict.{attribute}" for name, attribute in VERDICT_FIELDS.items()},
    parts=("verdict",),
    given=("agent", "check_id"),
    unset=("quorum", "responses"),
    nested=(VIOLATION,),
)
EXPLANATION = MessageMapper(
    GuardrailExplanation,
    guardrails_pb2.GuardrailExplanation,
    parts=("guardrail",),
    given=("rulebook",),
    nested=(VIOLATION,),
)
GUARDRAIL = MessageMapper(
    ListedGuardrail,
    guardrails_pb2.Guardrail,
    {
        "owner": lambda listed: listed.guardrail.owner or listed.rulebook.owner,
        "rulebook": "rulebook.name",
        "categories": "guardrail.match.categories",
        "stakes": "guardrail.match.stakes",
    },
    parts=("guardrail",),
    given=("suggestion", "expression"),
)
INPUT = MessageMapper(ListedInput, guardrails_pb2.GuardrailInput, parts=("declared",), given=("default_value",))
ACTION = MessageMapper(
    Action,
    cstp_pb2.Action,
    given=("agent", "permissions", "invocation"),
)


def claimed_agent_name(
    request: cstp_pb2.CheckGuardrailsRequest
    | cstp_pb2.AnnounceIntentRequest
    | guardrails_pb2.BatchCheckGuardrailsRequest,
) -> str | None:
    return proto_values.optional_field(request.agent, "id") if request.HasField("agent") else None


def parse_action(message: cstp_pb2.Action, caller: Caller) -> Action:
    """Parse the action of a caller."""
    return ACTION.decode(
        message, agent=caller.agent, permissions=caller.permissions, invocation=parse_invocation_fields(message)
    )


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
        verdict=CHECK.encode(explained.result, agent=agent),
        guardrails=[
            EXPLANATION.encode(each, rulebook=listed.rulebook.name) for listed, each in explained.guardrails.items
        ],
        next_page_token=explained.guardrails.next_token,
        rule_set_version=explained.result.verdict.rule_set_version,
    )


def guardrail_message(listed: ListedGuardrail, *, shows_expressions: bool) -> guardrails_pb2.Guardrail:
    """Convert a guardrail to a message."""
    rule = listed.guardrail
    suggestion = rule.suggestion
    if rule.suggestion_template is not None and not shows_expressions:
        suggestion = rule.suggestion_template.outline
    expression = rule.when.source if shows_expressions else None
    return GUARDRAIL.encode(listed, suggestion=suggestion, expression=expression)


def input_message(listed: ListedInput) -> guardrails_pb2.GuardrailInput:
    """Convert an input to a message."""
    default = listed.declared.default
    # As the value of a member, because only structures convert what Python holds.
    value = None if default is None else proto_values.dict_to_struct({"default": default}).fields["default"]
    return INPUT.encode(listed, default_value=value)
