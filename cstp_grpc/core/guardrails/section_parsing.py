"""Read the sections of rulebooks without expressions: the conditions of guardrails, and the actions of tests."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta

from cstp_grpc.common.yaml_with_lines import YamlNode
from cstp_grpc.contract.enums import Outcome, Permission, Severity, Shell, Stakes
from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.core.commands.model import MAX_COMMAND_CHARACTERS, Invocation
from cstp_grpc.core.guardrails import model
from cstp_grpc.core.guardrails import rulebook_schema as schema
from cstp_grpc.core.guardrails.cel_engine import ParameterValue
from cstp_grpc.core.guardrails.cel_variables import parse_window_seconds
from cstp_grpc.core.guardrails.history import HistorySubject, PastOutcome, StatedHistory, parse_history_seconds
from cstp_grpc.core.guardrails.inputs import CONVERTERS, InputType, InputValueError, check_context_bounds
from cstp_grpc.core.guardrails.yaml_document import ReportProblem, YamlFields

INSTANT_HINT = 'must be an instant such as "2026-03-01T12:00:00Z"'


def read_match(fields: YamlFields) -> model.RuleMatch:
    """Return the values that an action must have."""
    match = fields.section("match", *schema.MATCH.keys)
    if match is None:
        return model.EVERY_ACTION
    return model.RuleMatch(
        stakes=match.check_words("stakes", match.texts_or_text("stakes"), Stakes),
        categories=match.texts_or_text("category"),
        agents=match.texts_or_text("agent"),
        projects=match.texts_or_text("project"),
    )


def read_scope(fields: YamlFields) -> model.RuleScope:
    scope = fields.section("scope", *schema.SCOPE.keys)
    if scope is None:
        return model.EVERYBODY
    return model.RuleScope(agents=scope.texts_or_text("agents"), projects=scope.texts_or_text("projects"))


def read_approvers(fields: YamlFields) -> tuple[str, ...]:
    if fields.get("approvers") is None:
        return ()
    severity = fields.get("severity")
    if severity is not None and severity.value != Severity.APPROVE:
        fields.report_problem(f"`approvers` are for the severity {Severity.APPROVE}", "approvers")
    return tuple(sorted(fields.texts_or_text("approvers")))


def read_expiry(fields: YamlFields) -> datetime | None:
    """Return the instant from which a guardrail does nothing; a date means its end in UTC."""
    text = fields.optional_text("expires")
    if text is None:
        return None
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return read_instant(
            fields, "expires", 'must be a date such as 2026-03-01, or an instant such as "2026-03-01T12:00:00Z"'
        )
    if day == date.max:
        return None
    return datetime.combine(day + timedelta(days=1), time(), UTC)


def read_instant(fields: YamlFields, key: str, hint: str = INSTANT_HINT) -> datetime | None:
    """Return an instant with its offset from UTC, or None without the key."""
    text = fields.optional_text(key)
    if text is None:
        return None
    # OverflowError in the first hours of the year 1 and the last ones of 9999.
    with suppress(ValueError, OverflowError):
        instant = datetime.fromisoformat(text)
        if instant.tzinfo is not None:
            return instant.astimezone(UTC)
    fields.report_problem(f"`{key}` {hint}", key)
    return None


def read_test_action(node: YamlNode, where: str, report: ReportProblem) -> model.Action:
    """Return the action of a test; a missing one is reported already."""
    if node.value is None:
        return model.Action("", intents=model.NO_INTENTS, history=StatedHistory(HistorySubject("")))
    fields = YamlFields(node, where, report, *schema.TEST_ACTION.keys)
    confidence = fields.number("confidence")
    if confidence is not None and not 0 <= confidence <= 1:
        fields.report_problem("`confidence` must be from 0 to 1", "confidence")
    subject = HistorySubject(
        fields.optional_text("agent") or "", fields.optional_text("category"), fields.optional_text("project")
    )
    invocation = Invocation(
        command=fields.optional_text("command", MAX_COMMAND_CHARACTERS) or "",
        shell=fields.enum_word("shell", Shell, Shell.BASH),
        directory=fields.optional_text("directory") or "",
        reads=fields.texts("reads"),
        writes=fields.texts("writes"),
    )
    files = " ".join([*invocation.reads, *invocation.writes])
    description = fields.optional_text("description") or invocation.command or files
    if not description:
        fields.report_problem("`description` is missing")
    outcomes = (YamlFields(item, where, report, *schema.PAST_OUTCOME.keys) for item in fields.items("history"))
    return model.Action(
        description=description,
        invocation=invocation,
        category=subject.category,
        stakes=fields.enum_word("stakes", Stakes, Stakes.MEDIUM),
        confidence=confidence,
        context=read_context(fields),
        code=read_code(fields, report),
        intents=read_intents(fields),
        project=subject.project,
        agent=subject.agent,
        permissions=fields.check_words("permissions", frozenset(fields.texts("permissions")), Permission),
        now=read_instant(fields, "now"),
        announced_context=fields.optional_text("announced_context", schema.MAX_ANNOUNCED_CONTEXT) or "",
        history=StatedHistory(subject, tuple(read_outcome(each, subject) for each in outcomes)),
    )


def read_code(fields: YamlFields, report: ReportProblem) -> model.CodeFacts:
    node = fields.get("code")
    if node is None:
        return model.NO_CODE
    code = YamlFields(node, fields.where, report, *schema.CODE.keys)
    boundaries = YamlFields(
        code.get("boundaries") or YamlNode(node.line, {}), fields.where, report, *schema.CODE_BOUNDARIES.keys
    )
    texts = {key: code.texts(key) for key in ("paths", "checks", "pitfalls")}
    texts |= {key: boundaries.texts(key) for key in schema.CODE_BOUNDARIES.optional}
    return model.CodeFacts(**texts, unreadable=code.optional_text("unreadable"))


def read_intents(fields: YamlFields) -> model.IntentFacts:
    ages = []
    for line, text in fields.lined_texts("related_intents"):
        try:
            ages.append(float(parse_window_seconds(text)))
        except ValueError as error:
            fields.report_at(line, f"`related_intents` contains {text}, but a time {error}")
    return model.IntentFacts(tuple(ages))


def read_outcome(fields: YamlFields, subject: HistorySubject) -> PastOutcome:
    """Return an outcome; fields that it does not state are those of the action."""
    age = 0
    if ago := fields.text("ago"):
        try:
            age = parse_history_seconds(ago)
        except ValueError as error:
            fields.report_problem(f"`ago` {error}", "ago")
    agent = fields.optional_text("agent")
    return PastOutcome(
        fields.enum_word("outcome", Outcome),
        age,
        subject.agent if agent is None else agent,
        fields.optional_text("category") or subject.category,
        fields.optional_text("project") or subject.project,
    )


def read_context(fields: YamlFields) -> Mapping[str, object]:
    context: dict[str, object] = {key: item.plain for key, item in fields.entries("context").items()}
    try:
        check_context_bounds(context)
    except InvalidArgument as error:
        fields.report_problem(f"`context` {invalid_value_reason(error)}", "context")
    return context


def invalid_value_reason(error: InputValueError | InvalidArgument) -> str:
    """Return the reason of an error without the field's name."""
    return error.violations[0].description if isinstance(error, InvalidArgument) else str(error)


def read_parameters(
    fields: YamlFields, arguments: Mapping[str, object], report: ReportProblem
) -> Mapping[str, ParameterValue]:
    """Return the parameters that a rulebook declares, with the given values or their defaults."""
    node = fields.get("parameters")
    declared = fields.entries("parameters", "parameters")
    parameters = {}
    for name, item in declared.items():
        where = f"parameters.{name}"
        if not schema.INPUT_NAME_PATTERN.fullmatch(name):
            report(item.line, where, "is not a name that an expression can read")
            continue
        declaration = YamlFields(item, where, report, *schema.PARAMETER.keys)
        kind = declaration.enum_word("type", InputType)
        if kind not in schema.PARAMETER_TYPES:
            declaration.report_problem(f"`type` must be one of {', '.join(schema.PARAMETER_TYPES)}", "type")
            continue
        # Nobody reads it yet; it is checked like every text.
        declaration.optional_text("description")
        value = arguments.get(name, declaration.plain("default"))
        if value is None:
            report(item.line, where, "has no default, and no rulebook that extends this one gives it a value")
            continue
        try:
            check_context_bounds({name: value})
            parameters[name] = ParameterValue(kind, convert_parameter(kind, value))
        except (InputValueError, InvalidArgument) as error:
            report(item.line, where, f"the value {invalid_value_reason(error)}")
    for name in sorted(arguments.keys() - declared.keys()):
        line = node.line if node else fields.line
        report(line, "parameters", f"{name} is missing, but a rulebook that extends this one gives it a value")
    return parameters


def convert_parameter(kind: InputType, value: object) -> object:
    converted = CONVERTERS[kind](value)
    if isinstance(converted, list) and not all(isinstance(item, bool | float | str) for item in converted):
        raise InputValueError("must be a list of texts, numbers or bools")
    return converted
