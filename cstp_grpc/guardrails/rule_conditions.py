"""Read the keys of a guardrail that need no expression: `match`, `scope`, `approvers` and `expires`."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

from cstp_grpc.enums import Severity, Stakes
from cstp_grpc.guardrails.model import EVERY_ACTION, EVERYBODY, RuleMatch, RuleScope
from cstp_grpc.guardrails.rulebook_format import MATCH, SCOPE
from cstp_grpc.guardrails.yaml_document import ReportProblem, YamlFields

INSTANT_HINT = 'must be an instant such as "2026-03-01T12:00:00Z"'


def read_match(fields: YamlFields, report: ReportProblem) -> RuleMatch:
    """Return the values that an action must have."""
    node = fields.get("match")
    if node is None:
        return EVERY_ACTION
    match = YamlFields(node, fields.where, report, MATCH.required, MATCH.optional)
    if node.value == {}:
        fields.report_problem("`match` is empty", "match")
    words = match.texts_or_text("stakes")
    for word in sorted(words.difference(Stakes)):
        match.report_problem(f"`stakes` must be of {', '.join(Stakes)}, not {word}", "stakes")
    return RuleMatch(
        stakes=frozenset(Stakes(word) for word in words.intersection(Stakes)),
        categories=match.texts_or_text("category"),
        agents=match.texts_or_text("agent"),
        projects=match.texts_or_text("project"),
    )


def read_scope(fields: YamlFields, report: ReportProblem) -> RuleScope:
    """Return whom a guardrail is for."""
    node = fields.get("scope")
    if node is None:
        return EVERYBODY
    scope = YamlFields(node, fields.where, report, SCOPE.required, SCOPE.optional)
    if node.value == {}:
        fields.report_problem("`scope` is empty", "scope")
    return RuleScope(agents=scope.texts_or_text("agents"), projects=scope.texts_or_text("projects"))


def read_approvers(fields: YamlFields) -> tuple[str, ...]:
    """Return the agents that may approve what a guardrail asks about, by name; empty for all with the permission."""
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
    """Return an instant of RFC 3339 in UTC, or None if the text is none."""
    try:
        instant = datetime.fromisoformat(text)
        # Raises OverflowError in the first hours of the year 1 and the last ones of 9999.
        return None if instant.tzinfo is None else instant.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
