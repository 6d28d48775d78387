"""Validate and sanitize the responses of peers before they are merged or forwarded; unknown fields are dropped."""

from __future__ import annotations

from collections.abc import Container, MutableSequence, Sequence, Sized
from itertools import accumulate
from typing import Final

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from cstp_grpc.gen.cstp.v1 import access_pb2, cstp_pb2, intents_pb2, types_pb2

MAX_PEER_RESPONSE_BYTES: Final = 4 * 1024 * 1024
"""The largest response that is read from a peer: the default of gRPC, and of the setting `grpc.max_message_bytes`."""
MAX_AGENT_CHARACTERS: Final = 500
"""The names of agents on the way to the one that said it, joined by `/`; each has at most 200 characters."""

# The contract allows as much in requests, so that a conforming peer has nothing longer to answer.
MAX_IDENTIFIER_CHARACTERS: Final = 200
MAX_TITLE_CHARACTERS: Final = 500
MAX_TEXT_CHARACTERS: Final = 20_000
MAX_TAGS: Final = 100
MAX_DECISIONS: Final = 50
MAX_REASONS: Final = 10

# The contract sets no limit on these; they are far beyond the size of rulebooks, and bound a hostile peer.
MAX_NAME_CHARACTERS: Final = 2_000
MAX_VIOLATIONS: Final = 1_000
MAX_MISSING_INPUTS: Final = 1_000
MAX_EVALUATED: Final = 1_000_000
MAX_STATED_NAMES: Final = 500
"""Assumed inputs, and likewise ignored keys, of a verdict."""

MAX_SUGGESTIONS: Final = 5
"""As many as an agent gives by itself."""
MAX_RELATED: Final = 5
"""As many related intents as an agent reports by itself."""
MAX_PATHS: Final = 100
MAX_FORWARDED_BYTES: Final = 256 * 1024
"""How much of one peer's response is forwarded: that of 16 peers, the default of `federation.max_peers`, is as much as
`grpc.max_message_bytes` by default."""
ROUNDING_TOLERANCE: Final = 1e-5
"""Tolerance for distances and scores: other agents may store single-precision vectors."""
TIMESTAMP_SECONDS: Final = range(-62_135_596_800, 253_402_300_800)
"""The years 1 to 9999, which JSON can express."""
ALLOWED_CONTROLS: Final = "\n\t\r"
"""Non-printable characters that texts may contain."""


class InvalidPeerResponse(Exception):
    """A response is invalid; the message gives the reason without any of the response's content."""


def validate_response(message: Message) -> None:
    """Remove unknown fields and non-printable characters from a response.

    Raises InvalidPeerResponse if it is inconsistent, or not a response to a call that peers get.
    """
    # First: unknown fields cannot be validated, and would be passed on with the message.
    message.DiscardUnknownFields()
    match message:
        case cstp_pb2.CheckGuardrailsResponse():
            validate_verdict(message)
        case cstp_pb2.QueryDecisionsResponse():
            check_sender(message.agent)
            validate_decisions(message.decisions)
            for each in message.decisions:
                validate_summary(each)
        case cstp_pb2.AnnounceIntentResponse():
            validate_announcement(message)
        case access_pb2.GetAccessResponse():
            check_sender(message.agent)
            check_label(message.requesting_agent, MAX_AGENT_CHARACTERS)
            check_label(message.version)
            drop_unknown_values(message, "permissions")
        case _:
            raise InvalidPeerResponse("it does not answer this call")


def validate_verdict(message: cstp_pb2.CheckGuardrailsResponse | cstp_pb2.GuardrailStatus) -> None:
    if isinstance(message, cstp_pb2.CheckGuardrailsResponse):
        check_sender(message.agent, present=message.HasField("evaluated_at"))
        check_instant(message.evaluated_at)
    # Fail closed: a verdict that contradicts itself is invalid.
    if message.allowed == bool(message.violations):
        raise InvalidPeerResponse("it allows what it blocks" if message.allowed else "it denies without a violation")
    if not 0 <= message.evaluated <= MAX_EVALUATED:
        raise InvalidPeerResponse("the number of guardrails is out of range")
    violations = (*message.violations, *message.warnings, *message.dryrun_violations)
    check_count(violations, MAX_VIOLATIONS, "violations")
    if count_within_limit(violations) < len(violations):
        raise InvalidPeerResponse(f"the violations have more than {MAX_FORWARDED_BYTES} bytes")
    for each in violations:
        check_identifier(each.guardrail_id, "guardrail's identifier")
        check_label(each.code)
        check_label(each.agent, MAX_AGENT_CHARACTERS)
        sanitize_fields(each, MAX_NAME_CHARACTERS, "name")
        sanitize_fields(each, MAX_TEXT_CHARACTERS, "message", "suggestion")
        validate_missing_inputs(each.missing_inputs)
    validate_verdict_basis(message)


def validate_verdict_basis(message: cstp_pb2.CheckGuardrailsResponse | cstp_pb2.GuardrailStatus) -> None:
    """Validate the evidence of a verdict; older agents state none."""
    check_label(message.rule_set_version, MAX_NAME_CHARACTERS)
    check_label(message.check_id)
    check_count(message.assumed, MAX_STATED_NAMES, "assumed inputs")
    check_count(message.ignored_context, MAX_STATED_NAMES, "ignored keys")
    for name in message.assumed:
        check_identifier(name, "input's name")
    for each in message.ignored_context:
        sanitize_fields(each, MAX_IDENTIFIER_CHARACTERS, "name")
        check_label(each.closest)
    if message.HasField("approval"):
        check_identifier(message.approval.id, "approval's identifier")
        check_label(message.approval.digest)
        check_instant(message.approval.expires_at)
        sanitize_fields(message.approval, MAX_TEXT_CHARACTERS, "comment", "instructions")


def validate_missing_inputs(inputs: Sequence[types_pb2.MissingInput]) -> None:
    check_count(inputs, MAX_MISSING_INPUTS, "missing inputs of a violation")
    for each in inputs:
        check_identifier(each.name, "input's name")
        check_label(each.type)
        check_count(each.values, MAX_STATED_NAMES, "values of an input")
        each.values[:] = [sanitize_text(value, MAX_NAME_CHARACTERS) for value in each.values]
        sanitize_fields(each, MAX_TEXT_CHARACTERS, "description")


def validate_announcement(message: cstp_pb2.AnnounceIntentResponse) -> None:
    """Validate the response to an announcement, and keep at most MAX_SUGGESTIONS suggestions."""
    check_sender(message.responding_agent, present=message.received and message.HasField("received_at"))
    check_instant(message.received_at)
    validate_decisions(message.similar_decisions)
    for each in message.similar_decisions:
        # Agents of older versions state 1 - distance, which may be below 0.
        if not -1 - ROUNDING_TOLERANCE <= each.score <= 1 + ROUNDING_TOLERANCE:
            raise InvalidPeerResponse("a score is out of range")
    message.suggestions[:] = [
        sanitize_text(text, MAX_TEXT_CHARACTERS) for text in message.suggestions[:MAX_SUGGESTIONS]
    ]
    del message.suggestion_details[MAX_SUGGESTIONS:]
    for detail in message.suggestion_details:
        validate_suggestion(detail)
    # As the last decisions, these are advice and may be cut.
    del message.related_intents[MAX_RELATED:]
    del message.related_intents[count_within_limit(message.related_intents) :]
    for related in message.related_intents:
        validate_related_intent(related)
    if message.HasField("guardrail_status"):
        validate_verdict(message.guardrail_status)


def validate_suggestion(message: cstp_pb2.Suggestion) -> None:
    sanitize_fields(message, MAX_TEXT_CHARACTERS, "text")
    clear_unknown_values(message, "kind", "outcome")
    check_count(message.decision_ids, MAX_DECISIONS, "decisions of a suggestion")
    for each in (*message.decision_ids, message.guardrail_id, message.agent, message.correlation_id):
        check_label(each)
    check_label(message.origin, MAX_AGENT_CHARACTERS)
    check_score(message.relevance)


def validate_related_intent(message: intents_pb2.RelatedIntent) -> None:
    check_identifier(message.agent, "agent's name")
    check_identifier(message.correlation_id, "correlation id")
    check_label(message.origin, MAX_AGENT_CHARACTERS)
    check_score(message.score)
    if not message.HasField("received_at"):
        raise InvalidPeerResponse("an intent has no date")
    check_instant(message.received_at)
    sanitize_fields(message, MAX_TEXT_CHARACTERS, "intent")
    sanitize_fields(message, MAX_IDENTIFIER_CHARACTERS, "category", "project")
    check_count(message.paths, MAX_PATHS, "paths of an intent")
    message.paths[:] = [sanitize_text(path, MAX_TEXT_CHARACTERS) for path in message.paths]
    clear_unknown_values(message, "stakes")
    if message.HasField("closing"):
        check_instant(message.closing.closed_at)
        check_label(message.closing.decision_id)
        sanitize_fields(message.closing, MAX_TEXT_CHARACTERS, "notes")
        clear_unknown_values(message.closing, "outcome")


def validate_decisions(
    decisions: MutableSequence[cstp_pb2.DecisionSummary] | MutableSequence[cstp_pb2.SimilarDecision],
) -> None:
    """Validate found decisions, and drop the last ones if they exceed the byte limit."""
    check_count(decisions, MAX_DECISIONS, "decisions")
    # Decisions are advice and may be cut; violations may not, since a block would be lost (see validate_verdict).
    del decisions[count_within_limit(decisions) :]
    for each in decisions:
        check_identifier(each.id, "decision's identifier")
        if not each.title:
            raise InvalidPeerResponse("a decision has no title")
        # Written so that NaN fails: every comparison with it is false.
        if not -ROUNDING_TOLERANCE <= each.distance <= 2 + ROUNDING_TOLERANCE:
            raise InvalidPeerResponse("a distance is out of range")
        check_label(each.origin, MAX_AGENT_CHARACTERS)
        del each.matched_by[MAX_REASONS:], each.similar_outcomes[MAX_REASONS:]
        drop_unknown_values(each, "matched_by", "similar_outcomes")
        if not each.HasField("date"):
            raise InvalidPeerResponse("a decision has no date")
        check_instant(each.date)
        sanitize_fields(each, MAX_TITLE_CHARACTERS, "title")
        sanitize_fields(each, MAX_TEXT_CHARACTERS, "notes")
        clear_unknown_values(each, "outcome", "status")
        if each.similar_count < 0:
            raise InvalidPeerResponse("a number of similar decisions is negative")
        if each.HasField("superseded_by"):
            check_identifier(each.superseded_by, "decision's identifier")


def validate_summary(message: cstp_pb2.DecisionSummary) -> None:
    """Validate the fields of a decision that only queries return."""
    check_score(message.score)
    if not 0 <= message.confidence <= 1:
        raise InvalidPeerResponse("a confidence is out of range")
    if len(message.tags) > MAX_TAGS or len(message.reasons) > MAX_TAGS:
        raise InvalidPeerResponse("a decision has too many tags or reasons")
    sanitize_fields(message, MAX_IDENTIFIER_CHARACTERS, "category", "project", "agent")
    message.tags[:] = [sanitize_text(tag, MAX_IDENTIFIER_CHARACTERS) for tag in message.tags]
    message.reasons[:] = [sanitize_text(reason, MAX_IDENTIFIER_CHARACTERS) for reason in message.reasons]
    clear_unknown_values(message, "stakes")


def check_sender(name: str, *, present: bool = True) -> None:
    """Raise InvalidPeerResponse if the responder's name or a mandatory part is missing."""
    if not name or not present:
        raise InvalidPeerResponse("it does not answer this call")
    check_label(name, MAX_AGENT_CHARACTERS)


def check_score(score: float) -> None:
    # Written so that NaN fails: every comparison with it is false.
    if not -ROUNDING_TOLERANCE <= score <= 1 + ROUNDING_TOLERANCE:
        raise InvalidPeerResponse("a score is out of range")


def check_count(messages: Sized, count: int, what: str) -> None:
    if len(messages) > count:
        raise InvalidPeerResponse(f"there are more than {count} {what}")


def count_within_limit(messages: Sequence[Message]) -> int:
    """Return how many of the first messages fit into MAX_FORWARDED_BYTES."""
    sizes = accumulate(each.ByteSize() for each in messages)
    return sum(size <= MAX_FORWARDED_BYTES for size in sizes)


def check_identifier(text: str, what: str) -> None:
    """Raise InvalidPeerResponse if an identifier is empty, too long or not printable."""
    if not text.strip():
        raise InvalidPeerResponse(f"a {what} is empty")
    check_label(text)


def check_label(text: str, length: int = MAX_IDENTIFIER_CHARACTERS) -> None:
    """Raise InvalidPeerResponse if a name is too long or not printable."""
    check_length(text, length)
    if not text.isprintable():
        raise InvalidPeerResponse("a name has characters that cannot be printed")


def check_length(text: str, length: int) -> None:
    if len(text) > length:
        raise InvalidPeerResponse(f"a text has more than {length} characters")


def check_instant(stamp: Timestamp) -> None:
    if stamp.seconds not in TIMESTAMP_SECONDS or not 0 <= stamp.nanos < 1_000_000_000:
        raise InvalidPeerResponse("an instant is out of range")


def sanitize_text(text: str, length: int) -> str:
    """Replace non-printable characters of a text by spaces. Raises InvalidPeerResponse if it is too long."""
    check_length(text, length)
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in ALLOWED_CONTROLS else " " for each in text)


def sanitize_fields(message: Message, length: int, *names: str) -> None:
    """Sanitize text fields of a message; absent ones stay absent. Raises InvalidPeerResponse."""
    for name in names:
        text = getattr(message, name)
        if (sanitized := sanitize_text(text, length)) != text:
            setattr(message, name, sanitized)


def clear_unknown_values(message: Message, *names: str) -> None:
    """Clear enum fields whose values are of a later contract: such a number means nothing here."""
    for name in names:
        if getattr(message, name) not in known_values(message, name):
            setattr(message, name, 0)


def drop_unknown_values(message: Message, *names: str) -> None:
    for name in names:
        known, values = known_values(message, name), getattr(message, name)
        values[:] = [value for value in values if value in known]


def known_values(message: Message, name: str) -> Container[int]:
    kind = message.DESCRIPTOR.fields_by_name[name].enum_type
    assert kind is not None, f"{name} is an enum"
    return kind.values_by_number
