"""Conversion between guardrails and messages of the contract, for servicers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from cstp_grpc.contract import proto_values
from cstp_grpc.contract.enums import Permission
from cstp_grpc.contract.message_mapping import MessageMapper
from cstp_grpc.contract.proto_values import EnumMapping
from cstp_grpc.core.commands.messages import parse_invocation_fields
from cstp_grpc.core.guardrails.explanation import GuardrailExplanation
from cstp_grpc.core.guardrails.model import Action, CheckResult, Verdict, Violation
from cstp_grpc.core.guardrails.parsing import RulebookProblem
from cstp_grpc.core.guardrails.replay import GuardrailCounts, ReplayedAction, ReplaySummary, VerdictKind
from cstp_grpc.core.guardrails.rulebook_tests import RulebookTestResult, RuleCoverage
from cstp_grpc.core.guardrails.rules_in_force import ListedGuardrail, ListedInput
from cstp_grpc.core.guardrails.trials import ReplayProgress, TrialReport
from cstp_grpc.gen.cstp.v1 import cstp_pb2, guardrails_pb2, options_pb2, types_pb2

if TYPE_CHECKING:
    from cstp_grpc.contract.caller import Caller
    from cstp_grpc.core.guardrails.rules_in_force import ExplainedAction

PERMISSION = EnumMapping(options_pb2.Permission, Permission)

# The agent of a violation is named only where those of several are merged.
VIOLATION = MessageMapper(Violation, types_pb2.Violation, unset=("agent",))
VERDICT_FIELDS = {"dryrun_violations": "dryrun", "ignored_context": "ignored"}
GUARDRAIL_STATUS = MessageMapper(
    Verdict, cstp_pb2.GuardrailStatus, VERDICT_FIELDS, given=("check_id",), unset=("quorum",), nested=(VIOLATION,)
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
ACTION = MessageMapper(Action, cstp_pb2.Action, given=("agent", "permissions", "invocation"))


def claimed_agent_name(
    request: cstp_pb2.CheckGuardrailsRequest
    | cstp_pb2.AnnounceIntentRequest
    | guardrails_pb2.BatchCheckGuardrailsRequest,
) -> str | None:
    return proto_values.optional_field(request.agent, "id") if request.HasField("agent") else None


def parse_action(message: cstp_pb2.Action, caller: Caller) -> Action:
    return ACTION.decode(
        message, agent=caller.agent, permissions=caller.permissions, invocation=parse_invocation_fields(message)
    )


def parse_explained_action(
    request: guardrails_pb2.ExplainGuardrailsRequest | guardrails_pb2.TryRulebookRequest,
    caller: Caller,
    message: cstp_pb2.Action,
) -> Action:
    """Parse an action of a request that evaluates it, as of the agent and the instant that the request names."""
    action = parse_action(message, caller)
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
    rule = listed.guardrail
    suggestion = rule.suggestion
    if rule.suggestion_template is not None and not shows_expressions:
        suggestion = rule.suggestion_template.outline
    expression = rule.when.source if shows_expressions else None
    return GUARDRAIL.encode(listed, suggestion=suggestion, expression=expression)


def input_message(listed: ListedInput) -> guardrails_pb2.GuardrailInput:
    default = listed.declared.default
    # As the value of a member, because only structures convert what Python holds.
    value = None if default is None else proto_values.dict_to_struct({"default": default}).fields["default"]
    return INPUT.encode(listed, default_value=value)


def rulebook_file_name(file: str) -> str:
    """Return the name of a file for callers; of a packaged one without its folder, which is a detail of the machine."""
    return Path(file).name if Path(file).is_absolute() else file


def problem_messages(problems: Sequence[RulebookProblem]) -> list[guardrails_pb2.RulebookProblem]:
    """Convert problems of rulebooks to messages: some of them, and the beginning of each."""
    return [
        PROBLEM.encode(replace(each, file=rulebook_file_name(each.file), reason=each.reason[:MAX_PROBLEM_CHARACTERS]))
        for each in problems[:MAX_SHOWN_PROBLEMS]
    ]


def trial_message(report: TrialReport, agent: str, max_bytes: int) -> guardrails_pb2.TryRulebookResponse:
    """Convert the results of a trial to a message of the agent that answers, without what does not fit."""
    rules = report.rule_set
    message = guardrails_pb2.TryRulebookResponse(
        problems=problem_messages(report.problems),
        problem_count=len(report.problems),
        rule_set_version="" if report.problems else rules.version,
        truncated=report.is_truncated,
    )
    for each in report.coverage:
        message.coverage.append(
            COVERAGE.encode(
                each, file=rulebook_file_name(each.rulebook.file), actions_fired=report.actions_fired[each.guardrail.id]
            )
        )
    left = max_bytes - message.ByteSize()
    for test in report.tests:
        result = TESTED.encode(test)
        left -= result.ByteSize()
        if left < 0:
            message.truncated = True
            return message
        message.tests.append(result)
    names = {rule.id: book.name for book in rules.rulebooks for rule in book.guardrails}
    for tried in report.actions:
        added = message.actions.add()
        CHECK.write(added.verdict, CheckResult(tried.verdict, datetime.now(UTC)), agent=agent)
        left -= added.ByteSize()
        for explained in tried.guardrails:
            encoded = EXPLANATION.encode(explained, rulebook=names[explained.guardrail.id])
            left -= encoded.ByteSize()
            if left < 0:
                message.truncated = True
                return message
            added.guardrails.append(encoded)
    return message


def replay_message(progress: ReplayProgress) -> guardrails_pb2.ReplayRulebookResponse:
    """Convert the progress of a replay, or its end, to a message."""
    summary = progress.summary
    if not progress.is_done:
        return guardrails_pb2.ReplayRulebookResponse(
            progress=guardrails_pb2.ReplayProgress(
                actions=summary.recorded, reached_at=proto_values.optional_timestamp(summary.earliest)
            )
        )
    report = REPLAY.encode(
        summary,
        rule_set_version=progress.version,
        truncated=progress.is_truncated,
        unknown=summary.unknown,
        newly_stopped=summary.newly_stopped,
    )
    report.recorded_versions.update(summary.versions)
    for (before, after), count in sorted(summary.changes.items()):
        report.changes.add(
            before=REPLAY_VERDICT.number(before),
            after=REPLAY_VERDICT.number(after),
            count=count,
            examples=map(REPLAY_EXAMPLE.encode, summary.examples.get((before, after), ())),
        )
    for name, counts in summary.counts.items():
        REPLAYED_GUARDRAIL.write(report.guardrails.add(), counts, id=name)
    return guardrails_pb2.ReplayRulebookResponse(report=report)


MAX_SHOWN_PROBLEMS = 50
"""Maximum number of problems in an answer. Chosen: more are not read, and the log has all."""
MAX_PROBLEM_CHARACTERS = 500
"""Maximum length of a problem in an answer, because it may quote the file."""
PROBLEM = MessageMapper(RulebookProblem, guardrails_pb2.RulebookProblem)
COVERAGE = MessageMapper(
    RuleCoverage,
    guardrails_pb2.GuardrailCoverage,
    {"id": "guardrail.id", "line": "guardrail.line", "fired": "is_fired", "passed": "is_passed"},
    given=("file", "actions_fired"),
)
TESTED = MessageMapper(RulebookTestResult, guardrails_pb2.TestedAction, {"passed": lambda result: result.passed})
REPLAY_VERDICT = EnumMapping(guardrails_pb2.ReplayVerdict, VerdictKind)
REPLAY = MessageMapper(
    ReplaySummary,
    guardrails_pb2.ReplayReport,
    given=("rule_set_version", "truncated", "unknown", "newly_stopped"),
    unset=("recorded_versions", "changes", "guardrails"),
)
REPLAY_EXAMPLE = MessageMapper(
    ReplayedAction,
    guardrails_pb2.ReplayExample,
    {"would_fire": "fired", "fired": lambda example: sorted(example.recorded.fired)},
    parts=("recorded",),
)
REPLAYED_GUARDRAIL = MessageMapper(GuardrailCounts, guardrails_pb2.ReplayedGuardrail, given=("id",))
