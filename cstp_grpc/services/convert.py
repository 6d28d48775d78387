"""Between the contract's messages and plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from google.protobuf import struct_pb2, timestamp_pb2

from cstp_grpc.audit.model import AuditEvent
from cstp_grpc.decisions.model import Decision, DecisionFilter, ImportAction, Links, Reason
from cstp_grpc.gen.cstp.v1 import audit_pb2, cstp_pb2, journal_pb2, types_pb2
from cstp_grpc.guardrails.model import Violation
from cstp_grpc.vocabulary import DecisionStatus, Outcome, PeerStatus, Severity, Stakes, Visibility

if TYPE_CHECKING:
    from google.protobuf.internal.enum_type_wrapper import _EnumTypeWrapper

NumberT = TypeVar("NumberT", bound=int)
WordT = TypeVar("WordT", bound=StrEnum)


class EnumWords(Generic[NumberT, WordT]):
    """One enum of the contract beside the words of the domain, which are its names without the prefix."""

    def __init__(self, wrapper: _EnumTypeWrapper[NumberT], words: type[WordT]) -> None:
        unspecified = wrapper.DESCRIPTOR.values_by_number[0].name
        prefix = unspecified.removesuffix("UNSPECIFIED")
        self._unspecified = wrapper.Value(unspecified)
        self._numbers = {word: wrapper.Value(prefix + word.name) for word in words}
        self._words = {number: word for word, number in self._numbers.items()}

    def word(self, number: NumberT) -> WordT | None:
        """Return the domain's word; None for unspecified."""
        return self._words.get(number)

    def required(self, number: NumberT) -> WordT:
        """Return the domain's word of a number that is not unspecified."""
        return self._words[number]

    def words(self, numbers: Iterable[NumberT]) -> tuple[WordT, ...]:
        """Return the domain's words."""
        return tuple(self._words[number] for number in numbers)

    def number(self, word: WordT | None) -> NumberT:
        """Return the contract's number; unspecified for None."""
        return self._unspecified if word is None else self._numbers[word]


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECONDS_A_DAY = 86_400

STAKES = EnumWords(types_pb2.Stakes, Stakes)
OUTCOME = EnumWords(types_pb2.Outcome, Outcome)
STATUS = EnumWords(types_pb2.DecisionStatus, DecisionStatus)
SEVERITY = EnumWords(types_pb2.Severity, Severity)
VISIBILITY = EnumWords(types_pb2.Visibility, Visibility)
AUDIT_EVENT = EnumWords(audit_pb2.AuditEvent, AuditEvent)
PEER_STATUS = EnumWords(types_pb2.PeerStatus, PeerStatus)
IMPORT_ACTION = EnumWords(journal_pb2.ImportAction, ImportAction)


def optional(message: Any, field: str) -> Any:
    """Return a field with presence, or None where it is absent."""
    return getattr(message, field) if message.HasField(field) else None


def instant(message: Any, field: str) -> datetime | None:
    """Return an instant, aware and in UTC, or None where it is absent."""
    stamp: timestamp_pb2.Timestamp | None = optional(message, field)
    return None if stamp is None else stamp.ToDatetime(UTC)


def timestamp(moment: datetime) -> timestamp_pb2.Timestamp:
    """Return an aware instant as a message."""
    # Several times as fast as Timestamp.FromDatetime, and on the way of every call.
    since = moment - EPOCH
    return timestamp_pb2.Timestamp(seconds=since.days * SECONDS_A_DAY + since.seconds, nanos=since.microseconds * 1000)


def maybe_timestamp(moment: datetime | None) -> timestamp_pb2.Timestamp | None:
    """Return an aware instant as a message, None for None."""
    return None if moment is None else timestamp(moment)


def struct_to_dict(struct: struct_pb2.Struct) -> dict[str, Any]:
    """Return the JSON object that a Struct holds; whole numbers become integers."""
    return {key: value_to_json(value) for key, value in struct.fields.items()}


def value_to_json(value: struct_pb2.Value) -> Any:
    """Return the JSON value that a Value holds."""
    kind = value.WhichOneof("kind")
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() else number
    if kind == "struct_value":
        return struct_to_dict(value.struct_value)
    if kind == "list_value":
        return [value_to_json(item) for item in value.list_value.values]
    return getattr(value, kind) if kind not in (None, "null_value") else None


def dict_to_struct(content: Mapping[str, Any]) -> struct_pb2.Struct:
    """Return a JSON object as a Struct."""
    struct = struct_pb2.Struct()
    struct.update(dict(content))
    return struct


def decision_filter(message: types_pb2.DecisionFilters) -> DecisionFilter:
    """Return the conditions of a query or listing."""
    return DecisionFilter(
        category=optional(message, "category"),
        min_confidence=optional(message, "min_confidence"),
        max_confidence=optional(message, "max_confidence"),
        date_after=instant(message, "date_after"),
        date_before=instant(message, "date_before"),
        stakes=STAKES.words(message.stakes),
        status=STATUS.words(message.status),
        outcome=OUTCOME.words(message.outcome),
        tags=tuple(message.tags),
        project=optional(message, "project"),
        agent=optional(message, "agent"),
    )


def violation(item: Violation) -> types_pb2.Violation:
    """Return a violation as a message."""
    return types_pb2.Violation(
        guardrail_id=item.guardrail_id,
        name=item.name,
        message=item.message,
        severity=SEVERITY.number(item.severity),
        suggestion=item.suggestion,
        code=item.code,
        missing_inputs=[
            types_pb2.MissingInput(name=each.name, type=each.type, description=each.description)
            for each in item.missing_inputs
        ],
    )


def decision(item: Decision, journal_revision: str | None = None) -> journal_pb2.Decision:
    """Return a decision as a message, after a change with the revision of the journal."""
    return journal_pb2.Decision(
        id=item.id,
        title=item.title,
        context=item.context,
        category=item.category,
        stakes=STAKES.number(item.stakes),
        confidence=item.confidence,
        status=STATUS.number(item.status),
        outcome=OUTCOME.number(item.outcome),
        date=timestamp(item.date),
        reviewed_date=maybe_timestamp(item.reviewed_date),
        notes=item.notes,
        reasons=[journal_pb2.Reason(type=r.type, text=r.text, strength=r.strength) for r in item.reasons],
        tags=item.tags,
        project=item.project,
        agent=item.agent,
        visibility=VISIBILITY.number(item.visibility),
        links=links(item.links),
        source=item.source,
        journal_revision=journal_revision,
    )


def links(item: Links) -> journal_pb2.Links:
    """Return links as a message."""
    return journal_pb2.Links(supersedes=item.supersedes, depends_on=item.depends_on, relates_to=item.relates_to)


def reasons(messages: Iterable[journal_pb2.Reason]) -> tuple[Reason, ...]:
    """Return the reasons of a decision."""
    return tuple(Reason(r.type, r.text, optional(r, "strength")) for r in messages)


def claimed_agent(request: cstp_pb2.CheckGuardrailsRequest | cstp_pb2.AnnounceIntentRequest) -> str | None:
    """Return the name that the agent claims."""
    return optional(request.agent, "id") if request.HasField("agent") else None
