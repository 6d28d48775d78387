"""What agents answer, from messages of the contract to plain values; nothing that a peer says is taken on trust."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from cstp_grpc.client.federation.merge import by_id, by_key, judgement
from cstp_grpc.client.federation.model import Finding, Found, Judgement, Recollection
from cstp_grpc.client.words import one_line
from cstp_grpc.gen.cstp.v1 import access_pb2, cstp_pb2, types_pb2

DecisionT = TypeVar("DecisionT", cstp_pb2.DecisionSummary, cstp_pb2.SimilarDecision)

MAX_AGENT: Final = 500
MAX_IDENTIFIER: Final = 200
MAX_TITLE: Final = 500
MAX_NAME: Final = 2_000
MAX_TEXT: Final = 20_000
MAX_TAGS: Final = 100
MAX_DECISIONS: Final = 50
MAX_FINDINGS: Final = 1_000
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

BLOCK: Final = types_pb2.SEVERITY_BLOCK
OUTCOMES: Final = frozenset(types_pb2.Outcome.values())
STAKES: Final = frozenset(types_pb2.Stakes.values())
STATES: Final = frozenset(types_pb2.DecisionStatus.values())


class NotUnderstood(Exception):
    """An answer makes no sense; the message says why, without any of its content."""


def check_answer(message: Message) -> None:
    """Raise NotUnderstood where what a peer answered makes no sense, or is no answer to what peers are asked."""
    match message:
        case cstp_pb2.CheckGuardrailsResponse():
            check_verdict(message)
        case cstp_pb2.QueryDecisionsResponse():
            check_found(message)
        case cstp_pb2.AnnounceIntentResponse():
            check_receipt(message)
            check_similar(message)
            check_suggestions(message)
            if message.HasField("guardrail_status"):
                check_verdict(message.guardrail_status)
        case access_pb2.GetAccessResponse():
            check_sender(message.agent)
        case _:
            raise NotUnderstood("it is no answer to this")


def judgement_of(
    message: cstp_pb2.CheckGuardrailsResponse | cstp_pb2.GuardrailStatus,
    agent: str,
    *,
    itself: str = "",
    ours: bool = False,
) -> Judgement:
    """Return the verdict that an agent answered.

    `itself` is what the agent calls itself, so that its own guardrails are told from those of its peers; with `ours`
    the answer is of this agent and not checked. Raises NotUnderstood.
    """
    if not ours:
        check_verdict(message)
    blocking = by_key(finding(each, agent, itself, blocks=True) for each in message.violations)
    warning = by_key(finding(each, agent, itself, blocks=each.severity == BLOCK) for each in message.warnings)
    return judgement(blocking, warning, {agent: message.evaluated})


def check_verdict(message: cstp_pb2.CheckGuardrailsResponse | cstp_pb2.GuardrailStatus) -> None:
    """Raise NotUnderstood where a verdict makes no sense."""
    if isinstance(message, cstp_pb2.CheckGuardrailsResponse):
        check_sender(message.agent, present=message.HasField("evaluated_at"))
        check_instant(message.evaluated_at)
    if message.allowed == bool(message.violations):
        raise NotUnderstood("it allows what it blocks" if message.allowed else "it denies without a violation")
    if not 0 <= message.evaluated <= MAX_EVALUATED:
        raise NotUnderstood("the number of guardrails is out of range")
    check_size((*message.violations, *message.warnings), MAX_FINDINGS, "violations")
    for each in (*message.violations, *message.warnings):
        check_identifier(each.guardrail_id, "guardrail's identifier")
        check_length(each.name, MAX_NAME)
        check_length(each.message, MAX_TEXT)
        check_length(each.suggestion, MAX_TEXT)
        check_label(each.code)
        check_label(each.agent, MAX_AGENT)


def finding(message: types_pb2.Violation, agent: str, itself: str, *, blocks: bool) -> Finding:
    """Return a violation or warning that an agent answered."""
    return Finding(
        agent=named(agent, message.agent, itself),
        guardrail_id=message.guardrail_id,
        name=clean(message.name),
        message=clean(message.message),
        blocks=blocks,
        suggestion=clean(message.suggestion) if message.suggestion else None,
        code=message.code or None,
    )


def recollection_of(
    message: cstp_pb2.QueryDecisionsResponse, agent: str, trust: float, *, ours: bool = False
) -> Recollection:
    """Return the decisions that an agent found for a query, with messages of DecisionSummary as their contents.

    `trust` is 0 to 1; with `ours` the answer is of this agent and not checked. Raises NotUnderstood.
    """
    if not ours:
        check_found(message)
    return recollection(message.decisions, agent, trust, itself=message.agent, ours=ours)


def similar_of(
    message: cstp_pb2.AnnounceIntentResponse, agent: str, trust: float, *, ours: bool = False
) -> Recollection:
    """Return the decisions like an intent, as recollection_of does, with messages of SimilarDecision as contents."""
    if not ours:
        check_similar(message)
    return recollection(message.similar_decisions, agent, trust, itself=message.responding_agent, ours=ours)


def suggestions_of(message: cstp_pb2.AnnounceIntentResponse) -> tuple[str, ...]:
    """Return at most five suggestions of a peer. Raises NotUnderstood."""
    check_suggestions(message)
    return tuple(clean(text) for text in message.suggestions[:MAX_SUGGESTIONS])


def check_receipt(message: cstp_pb2.AnnounceIntentResponse) -> None:
    """Raise NotUnderstood where a peer does not say who it is and when it received an intent."""
    check_sender(message.responding_agent, present=message.received and message.HasField("received_at"))
    check_instant(message.received_at)


def recollection(decisions: Sequence[DecisionT], agent: str, trust: float, *, itself: str, ours: bool) -> Recollection:
    """Return decisions by identifier, each with the agent that has it."""
    found = [found_by(each, agent, trust, itself=itself, ours=ours) for each in decisions]
    best = by_id(found)
    totals = {agent: 0}
    for each in best.values():
        totals[each.agent] = totals.get(each.agent, 0) + 1
    return Recollection(best, totals)


def found_by(message: DecisionT, agent: str, trust: float, *, itself: str, ours: bool) -> Found:
    """Return a decision that an agent found; what is told of it names the agent that has it."""
    told = type(message)()
    told.CopyFrom(message)
    if not ours:
        tidy(told)
    told.origin = named(agent, message.origin, itself)
    score = min(max(1 - message.distance, 0.0), 1.0)
    return Found(message.id, told.origin, score * trust, told.SerializeToString(deterministic=True))


def tidy(message: cstp_pb2.DecisionSummary | cstp_pb2.SimilarDecision) -> None:
    """Take out of a decision what this contract does not know and what cannot be printed."""
    message.DiscardUnknownFields()
    message.title = clean(message.title)
    if message.notes:
        message.notes = clean(message.notes)
    if message.outcome not in OUTCOMES:
        message.outcome = types_pb2.OUTCOME_UNSPECIFIED
    if isinstance(message, cstp_pb2.DecisionSummary):
        if message.stakes not in STAKES:
            message.stakes = types_pb2.STAKES_UNSPECIFIED
        if message.status not in STATES:
            message.status = types_pb2.DECISION_STATUS_UNSPECIFIED


def check_found(message: cstp_pb2.QueryDecisionsResponse) -> None:
    """Raise NotUnderstood where what was found for a query makes no sense."""
    check_sender(message.agent)
    check_decisions(message.decisions)
    for each in message.decisions:
        check_summary(each)


def check_similar(message: cstp_pb2.AnnounceIntentResponse) -> None:
    """Raise NotUnderstood where decisions that are like an intent make no sense."""
    check_decisions(message.similar_decisions)
    for each in message.similar_decisions:
        if not abs(1 - each.distance - each.score) <= ROUNDING:
            raise NotUnderstood("a score is not that of its distance")


def check_suggestions(message: cstp_pb2.AnnounceIntentResponse) -> None:
    """Raise NotUnderstood where a suggestion that is told on is too long."""
    for text in message.suggestions[:MAX_SUGGESTIONS]:
        check_length(text, MAX_TEXT)


def check_decisions(decisions: Sequence[cstp_pb2.DecisionSummary] | Sequence[cstp_pb2.SimilarDecision]) -> None:
    """Raise NotUnderstood where decisions that were found make no sense."""
    check_size(decisions, MAX_DECISIONS, "decisions")
    for each in decisions:
        check_identifier(each.id, "decision's identifier")
        if not each.title.strip():
            raise NotUnderstood("a decision has no title")
        if not -ROUNDING <= each.distance <= 2 + ROUNDING:
            raise NotUnderstood("a distance is out of range")
        check_length(each.title, MAX_TITLE)
        check_length(each.notes, MAX_TEXT)
        check_label(each.origin, MAX_AGENT)
        if not each.HasField("date"):
            raise NotUnderstood("a decision has no date")
        check_instant(each.date)


def check_summary(message: cstp_pb2.DecisionSummary) -> None:
    """Raise NotUnderstood where what queries alone tell of a decision makes no sense."""
    if not 0 <= message.confidence <= 1:
        raise NotUnderstood("a confidence is out of range")
    if len(message.tags) > MAX_TAGS or len(message.reasons) > MAX_TAGS:
        raise NotUnderstood("a decision has too many tags or reasons")
    for label in (message.category, message.project, message.agent, *message.tags, *message.reasons):
        check_label(label)


def check_sender(name: str, *, present: bool = True) -> None:
    """Raise NotUnderstood where an answer does not say who answers, or lacks what makes it an answer."""
    if not name or not present:
        raise NotUnderstood("it is no answer to this")
    check_label(name, MAX_AGENT)


def check_size(messages: Sequence[Message], count: int, what: str) -> None:
    """Raise NotUnderstood where there are too many messages, or they are too large together."""
    if len(messages) > count:
        raise NotUnderstood(f"there are more than {count} {what}")
    if sum(each.ByteSize() for each in messages) > MAX_BYTES:
        raise NotUnderstood(f"the {what} have more than {MAX_BYTES} bytes")


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


def named(agent: str, theirs: str, itself: str = "") -> str:
    """Return the name here of what a peer calls `theirs`, which is itself or a peer of its own.

    It is `agent` or `agent/theirs`, at most 500 characters on one line.
    """
    if not theirs or theirs == itself:
        return agent
    words = one_line(theirs)
    return f"{agent}/{words}"[:MAX_AGENT] if words else agent


def clean(text: str) -> str:
    """Return a text with spaces in the place of what steers a terminal or turns its direction."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in SPACES else " " for each in text)
