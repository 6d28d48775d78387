"""Takes an answer of a peer for what it is: nothing that a peer says is taken on trust, and nothing told on unread."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from itertools import accumulate
from typing import Final

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from cstp_grpc.gen.cstp.v1 import access_pb2, cstp_pb2, options_pb2, types_pb2

MAX_AGENT: Final = 500
MAX_IDENTIFIER: Final = 200
MAX_TITLE: Final = 500
MAX_NAME: Final = 2_000
MAX_TEXT: Final = 20_000
MAX_TAGS: Final = 100
MAX_DECISIONS: Final = 50
MAX_FINDINGS: Final = 1_000
MAX_INPUTS: Final = 1_000
MAX_SUGGESTIONS: Final = 5
MAX_EVALUATED: Final = 1_000_000
MAX_BYTES: Final = 256 * 1024
"""How much of one peer's answer is told on, so that the answers of several fit into one message."""
ROUNDING: Final = 1e-5
"""By how much distances and scores may be off: vectors of others may be of single precision."""
SECONDS: Final = range(-62_135_596_800, 253_402_300_800)
"""The years 1 to 9999, which JSON can write."""
SPACES: Final = "\n\t\r"
"""What texts may have in them although it cannot be printed."""

OUTCOMES: Final = frozenset(types_pb2.Outcome.values())
STAKES: Final = frozenset(types_pb2.Stakes.values())
STATES: Final = frozenset(types_pb2.DecisionStatus.values())
PERMISSIONS: Final = frozenset(options_pb2.Permission.values())


class NotUnderstood(Exception):
    """An answer makes no sense; the message says why, without any of its content."""


def accept(message: Message) -> None:
    """Take out of an answer what this contract does not know and what cannot be printed.

    Raises NotUnderstood where it makes no sense, or is no answer to what peers are asked.
    """
    message.DiscardUnknownFields()
    match message:
        case cstp_pb2.CheckGuardrailsResponse():
            accept_verdict(message)
        case cstp_pb2.QueryDecisionsResponse():
            accept_found(message)
        case cstp_pb2.AnnounceIntentResponse():
            accept_receipt(message)
        case access_pb2.GetAccessResponse():
            accept_access(message)
        case _:
            raise NotUnderstood("it is no answer to this")


def accept_verdict(message: cstp_pb2.CheckGuardrailsResponse | cstp_pb2.GuardrailStatus) -> None:
    """Accept a verdict."""
    if isinstance(message, cstp_pb2.CheckGuardrailsResponse):
        check_sender(message.agent, present=message.HasField("evaluated_at"))
        check_instant(message.evaluated_at)
    if message.allowed == bool(message.violations):
        raise NotUnderstood("it allows what it blocks" if message.allowed else "it denies without a violation")
    if not 0 <= message.evaluated <= MAX_EVALUATED:
        raise NotUnderstood("the number of guardrails is out of range")
    findings = (*message.violations, *message.warnings)
    check_count(findings, MAX_FINDINGS, "violations")
    if fitting(findings) < len(findings):
        raise NotUnderstood(f"the violations have more than {MAX_BYTES} bytes")
    for each in findings:
        check_identifier(each.guardrail_id, "guardrail's identifier")
        check_label(each.code)
        check_label(each.agent, MAX_AGENT)
        each.name = cleaned(each.name, MAX_NAME)
        each.message = cleaned(each.message, MAX_TEXT)
        if each.suggestion:
            each.suggestion = cleaned(each.suggestion, MAX_TEXT)
        accept_missing(each.missing_inputs)


def accept_missing(inputs: Sequence[types_pb2.MissingInput]) -> None:
    """Accept the inputs that a violation says were not given."""
    check_count(inputs, MAX_INPUTS, "missing inputs of a violation")
    for each in inputs:
        check_identifier(each.name, "input's name")
        check_label(each.type)
        if each.description:
            each.description = cleaned(each.description, MAX_TEXT)


def accept_found(message: cstp_pb2.QueryDecisionsResponse) -> None:
    """Accept what was found for a query."""
    check_sender(message.agent)
    accept_decisions(message.decisions)
    for each in message.decisions:
        accept_summary(each)


def accept_receipt(message: cstp_pb2.AnnounceIntentResponse) -> None:
    """Accept what an announcement was answered; at most five suggestions are told on."""
    check_sender(message.responding_agent, present=message.received and message.HasField("received_at"))
    check_instant(message.received_at)
    accept_decisions(message.similar_decisions)
    for each in message.similar_decisions:
        if not abs(1 - each.distance - each.score) <= ROUNDING:
            raise NotUnderstood("a score is not that of its distance")
    message.suggestions[:] = [cleaned(text, MAX_TEXT) for text in message.suggestions[:MAX_SUGGESTIONS]]
    if message.HasField("guardrail_status"):
        accept_verdict(message.guardrail_status)


def accept_access(message: access_pb2.GetAccessResponse) -> None:
    """Accept what a peer says of itself and of whom it takes us for."""
    check_sender(message.agent)
    check_label(message.requesting_agent, MAX_AGENT)
    check_label(message.version)
    message.permissions[:] = [each for each in message.permissions if each in PERMISSIONS]


def accept_decisions(
    decisions: MutableSequence[cstp_pb2.DecisionSummary] | MutableSequence[cstp_pb2.SimilarDecision],
) -> None:
    """Accept what is told of decisions that were found, whatever asked for them; the last are left out without room."""
    check_count(decisions, MAX_DECISIONS, "decisions")
    del decisions[fitting(decisions) :]
    for each in decisions:
        check_identifier(each.id, "decision's identifier")
        if not each.title:
            raise NotUnderstood("a decision has no title")
        if not -ROUNDING <= each.distance <= 2 + ROUNDING:
            raise NotUnderstood("a distance is out of range")
        check_label(each.origin, MAX_AGENT)
        if not each.HasField("date"):
            raise NotUnderstood("a decision has no date")
        check_instant(each.date)
        each.title = cleaned(each.title, MAX_TITLE)
        if each.notes:
            each.notes = cleaned(each.notes, MAX_TEXT)
        if each.outcome not in OUTCOMES:
            each.outcome = types_pb2.OUTCOME_UNSPECIFIED


def accept_summary(message: cstp_pb2.DecisionSummary) -> None:
    """Accept what queries alone tell of a decision."""
    if not 0 <= message.confidence <= 1:
        raise NotUnderstood("a confidence is out of range")
    if len(message.tags) > MAX_TAGS or len(message.reasons) > MAX_TAGS:
        raise NotUnderstood("a decision has too many tags or reasons")
    if message.category:
        message.category = cleaned(message.category, MAX_IDENTIFIER)
    if message.project:
        message.project = cleaned(message.project, MAX_IDENTIFIER)
    message.agent = cleaned(message.agent, MAX_IDENTIFIER)
    message.tags[:] = [cleaned(tag, MAX_IDENTIFIER) for tag in message.tags]
    message.reasons[:] = [cleaned(reason, MAX_IDENTIFIER) for reason in message.reasons]
    if message.stakes not in STAKES:
        message.stakes = types_pb2.STAKES_UNSPECIFIED
    if message.status not in STATES:
        message.status = types_pb2.DECISION_STATUS_UNSPECIFIED


def check_sender(name: str, *, present: bool = True) -> None:
    """Raise NotUnderstood where an answer does not say who answers, or lacks what makes it an answer."""
    if not name or not present:
        raise NotUnderstood("it is no answer to this")
    check_label(name, MAX_AGENT)


def check_count(messages: Sequence[Message], count: int, what: str) -> None:
    """Raise NotUnderstood where there are too many messages."""
    if len(messages) > count:
        raise NotUnderstood(f"there are more than {count} {what}")


def fitting(messages: Sequence[Message]) -> int:
    """Return how many of the first messages there is room for."""
    sizes = accumulate(each.ByteSize() for each in messages)
    return sum(size <= MAX_BYTES for size in sizes)


def check_identifier(text: str, what: str) -> None:
    """Raise NotUnderstood where an identifier is empty, too long or cannot be printed."""
    if not text.strip():
        raise NotUnderstood(f"a {what} is empty")
    check_label(text)


def check_label(text: str, length: int = MAX_IDENTIFIER) -> None:
    """Raise NotUnderstood where a name is too long or cannot be printed."""
    check_length(text, length)
    if not text.isprintable():
        raise NotUnderstood("a name has characters that cannot be printed")


def check_length(text: str, length: int) -> None:
    """Raise NotUnderstood where a text is too long."""
    if len(text) > length:
        raise NotUnderstood(f"a text has more than {length} characters")


def check_instant(stamp: Timestamp) -> None:
    """Raise NotUnderstood where an instant cannot be written."""
    if stamp.seconds not in SECONDS or not 0 <= stamp.nanos < 1_000_000_000:
        raise NotUnderstood("an instant is out of range")


def cleaned(text: str, length: int) -> str:
    """Return a text with spaces in the place of what steers a terminal or turns its direction.

    Raises NotUnderstood where it is too long.
    """
    check_length(text, length)
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in SPACES else " " for each in text)
