"""Read the sections of rulebooks without expressions: the conditions of guardrails, and the actions of tests."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta

from cstp_grpc.common.yaml_with_lines import YamlNode
from cstp_grpc.contract.enums import Outcome, Permission, Severity, Shell, Stakes
from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.core.commands.model import MAX_COMMAND_CHARACTERS, Invocation
from cstp_grpc.core.guardrails import model
from cstp_grpc.core.guardrails import rulebook_schema as schema
from cstp_grpc.core.guardrails.cel_variables import parse_window_seconds
from cstp_grpc.core.guardrails.history import HistorySubject, PastOutcome, StatedHistory, parse_history_seconds
from cstp_grpc.core.guardrails.inputs import InputValueError, check_context_bounds
from cstp_grpc.core.guardrails.yaml_document import ReportProblem, YamlFields, mapping_entries

INSTANT_HINT = 'must be an instant such as "2026-03-01T12:00:00Z"'


def read_match(fields: YamlFields) -> model.RuleMatch:
    """Return the values that an action must have."""
    match = fields.section("match", *schema.MATCH.keys)
    if match is None:
        return model.EVERY_ACTION
    words = match.texts_or_text("stakes")
    for word in sorted(words.difference(Stakes)):
        match.report_problem(f"`stakes` must be of {', '.join(Stakes)}, not {word}", "stakes")
    return model.RuleMatch(
        stakes=frozenset(Stakes(word) for word in words.intersection(Stakes)),
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
    """Return an instant with its offset from UTC, or None if absent."""
    text = fields.optional_text(key)
    if text is None:
        return None
    instant = parse_instant(text)
    if instant is None:
        fields.report_problem(f"`{key}` {hint}", key)
    return instant


def parse_instant(text: str) -> datetime | None:
    try:
        instant = datetime.fromisoformat(text)
        # Raises OverflowError in the first hours of the year 1 and the last ones of 9999.
        return None if instant.tzinfo is None else instant.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


class TestActionReader:
    """Reads the action of a test and reports what is wrong with it."""

    __test__ = False

    def __init__(self, report: ReportProblem) -> None:
        self._report = report

    def read(self, node: YamlNode, where: str) -> model.Action:
        """Return the action; a missing one is reported already."""
        if node.value is None:
            return model.Action("", intents=model.NO_INTENTS, history=StatedHistory(HistorySubject("")))
        fields = YamlFields(node, where, self._report, *schema.TEST_ACTION.keys)
        confidence = fields.number("confidence")
        if confidence is not None and not 0 <= confidence <= 1:
            fields.report_problem("`confidence` must be from 0 to 1", "confidence")
        subject = HistorySubject(
            fields.optional_text("agent") or "", fields.optional_text("category"), fields.optional_text("project")
        )
        invocation = self._invocation(fields)
        files = " ".join([*invocation.reads, *invocation.writes])
        description = fields.optional_text("description") or invocation.command or files
        if not description:
            fields.report_problem("`description` is missing")
        return model.Action(
            description=description,
            invocation=invocation,
            category=subject.category,
            stakes=fields.enum_word("stakes", Stakes, Stakes.MEDIUM),
            confidence=confidence,
            context=self._context(fields),
            code=self._code(fields),
            intents=self._intents(fields),
            project=subject.project,
            agent=subject.agent,
            permissions=read_permissions(fields),
            now=read_instant(fields, "now"),
            announced_context=fields.optional_text("announced_context", schema.MAX_ANNOUNCED_CONTEXT) or "",
            history=StatedHistory(subject, self._outcomes(fields, subject)),
        )

    def _invocation(self, fields: YamlFields) -> Invocation:
        return Invocation(
            command=fields.optional_text("command", MAX_COMMAND_CHARACTERS) or "",
            shell=fields.enum_word("shell", Shell, Shell.BASH),
            directory=fields.optional_text("directory") or "",
            reads=read_texts(fields, "reads"),
            writes=read_texts(fields, "writes"),
        )

    def _code(self, fields: YamlFields) -> model.CodeFacts:
        node = fields.get("code")
        if node is None:
            return model.NO_CODE
        code = YamlFields(node, fields.where, self._report, *schema.CODE.keys)
        boundaries = YamlFields(
            code.get("boundaries") or YamlNode(node.line, {}), fields.where, self._report, *schema.CODE_BOUNDARIES.keys
        )
        return model.CodeFacts(
            paths=read_texts(code, "paths"),
            never=read_texts(boundaries, "never"),
            ask_first=read_texts(boundaries, "ask_first"),
            always=read_texts(boundaries, "always"),
            checks=read_texts(code, "checks"),
            pitfalls=read_texts(code, "pitfalls"),
            unreadable=code.optional_text("unreadable"),
        )

    def _intents(self, fields: YamlFields) -> model.IntentFacts:
        ages = []
        for line, text in fields.texts("related_intents"):
            try:
                ages.append(float(parse_window_seconds(text)))
            except ValueError as error:
                self._report(line, fields.where, f"`related_intents` holds {text}, but a time {error}")
        return model.IntentFacts(tuple(ages))

    def _outcomes(self, fields: YamlFields, subject: HistorySubject) -> tuple[PastOutcome, ...]:
        return tuple(self._outcome(node, fields.where, subject) for node in fields.items("history"))

    def _outcome(self, node: YamlNode, where: str, subject: HistorySubject) -> PastOutcome:
        """Return an outcome; what it does not say is as in the action."""
        fields = YamlFields(node, where, self._report, *schema.PAST_OUTCOME.keys)
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

    def _context(self, fields: YamlFields) -> Mapping[str, object]:
        node = fields.get("context")
        if node is None:
            return {}
        found = mapping_entries(node, fields.where, self._report)
        context: dict[str, object] = {key: item.plain for key, item in found.items()}
        try:
            check_context_bounds(context)
        except InvalidArgument as error:
            fields.report_problem(f"`context` {invalid_value_reason(error)}", "context")
        return context


def read_permissions(fields: YamlFields) -> frozenset[str]:
    found = frozenset(text for _, text in fields.texts("permissions"))
    for word in sorted(found.difference(Permission)):
        fields.report_problem(f"`permissions` must be of {', '.join(Permission)}, not {word}", "permissions")
    return found


def read_texts(fields: YamlFields, key: str) -> tuple[str, ...]:
    return tuple(text for _, text in fields.texts(key))


def invalid_value_reason(error: InputValueError | InvalidArgument) -> str:
    """Return the reason of an error without the field's name."""
    return error.violations[0].description if isinstance(error, InvalidArgument) else str(error)
