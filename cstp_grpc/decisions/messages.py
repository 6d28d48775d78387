"""Conversion between the messages of the contract and the values of the domains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from google.protobuf import struct_pb2, timestamp_pb2

from cstp_grpc.audit.model import AuditEvent
from cstp_grpc.decisions.model import Decision, DecisionFilter, ImportAction, Links, Reason
from cstp_grpc.enums import DecisionStatus, Outcome, PeerStatus, Severity, Stakes, Visibility
from cstp_grpc.gen.cstp.v1 import audit_pb2, cstp_pb2, journal_pb2, types_pb2
from cstp_grpc.guardrails.model import Violation

if TYPE_CHECKING:
    from google.protobuf.internal.enum_type_wrapper import _EnumTypeWrapper

NumberT = TypeVar("NumberT", bound=int)
WordT = TypeVar("WordT", bound=StrEnum)


class EnumMapping(Generic[NumberT, WordT]):
    """Maps an enum of the contract to an enum of the domain, whose names lack the prefix."""

    def __init__(self, wrapper: _EnumTypeWrapper[NumberT], words: type[WordT]) -> None:
        unspecified = wrapper.DESCRIPTOR.values_by_number[0].name
        prefix = unspecified.removesuffix("UNSPECIFIED")
        self._unspecified = wrapper.Value(unspecified)
        self._numbers = {word: wrapper.Value(prefix + word.name) for word in words}
        self._words = {number: word for word, number in self._numbers.items()}

    def word(self, number: NumberT) -> WordT | None:
        """Return the domain value of a number, or None for unspecified."""
        return self._words.get(number)

    def required_word(self, number: NumberT) -> WordT:
        """Return the domain value of a number that is not unspecified."""
        return self._words[number]

    def words(self, numbers: Iterable[NumberT]) -> tuple[WordT, ...]:
        """Return the domain values of numbers."""
        return tuple(self._words[number] for number in numbers)

    def number(self, word: WordT | None) -> NumberT:
        """Return the number of a domain value, unspecified for None."""
        return self._unspecified if word is None else self._numbers[word]


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECONDS_A_DAY = 86_400

STAKES = EnumMapping(types_pb2.Stakes, Stakes)
OUTCOME = EnumMapping(types_pb2.Outcome, Outcome)
STATUS = EnumMapping(types_pb2.DecisionStatus, DecisionStatus)
SEVERITY = EnumMapping(types_pb2.Severity, Severity)
VISIBILITY = EnumMapping(types_pb2.Visibility, Visibility)
AUDIT_EVENT = EnumMapping(audit_pb2.AuditEvent, AuditEvent)
PEER_STATUS = EnumMapping(types_pb2.PeerStatus, PeerStatus)
IMPORT_ACTION = EnumMapping(journal_pb2.ImportAction, ImportAction)


def optional_field(message: Any, field: str) -> Any:
    """Return a field with presence, or None if it is absent."""
    return getattr(message, field) if message.HasField(field) else None


def datetime_field(message: Any, field: str) -> datetime | None:
    """Return a timestamp field as an aware datetime in UTC, or None if it is absent."""
    stamp: timestamp_pb2.Timestamp | None = optional_field(message, field)
    return None if stamp is None else stamp.ToDatetime(UTC)


def timestamp_message(moment: datetime) -> timestamp_pb2.Timestamp:
    """Convert an aware datetime to a Timestamp."""
    # Several times as fast as Timestamp.FromDatetime, and on the way of every call.
    since = moment - EPOCH
    return timestamp_pb2.Timestamp(seconds=since.days * SECONDS_A_DAY + since.seconds, nanos=since.microseconds * 1000)


def optional_timestamp(moment: datetime | None) -> timestamp_pb2.Timestamp | None:
    """Convert an aware datetime to a Timestamp, None to None."""
    return None if moment is None else timestamp_message(moment)


def struct_to_dict(struct: struct_pb2.Struct) -> dict[str, Any]:
    """Convert a Struct to a JSON object; whole numbers become integers."""
    return {key: value_to_json(value) for key, value in struct.fields.items()}


def value_to_json(value: struct_pb2.Value) -> Any:
    """Convert a Value to a JSON value."""
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
    """Convert a JSON object to a Struct."""
    struct = struct_pb2.Struct()
    struct.update(dict(content))
    return struct


def parse_decision_filter(message: types_pb2.DecisionFilters) -> DecisionFilter:
    """Parse the conditions of a query or listing."""
    return DecisionFilter(
        category=optional_field(message, "category"),
        min_confidence=optional_field(message, "min_confidence"),
        max_confidence=optional_field(message, "max_confidence"),
        date_after=datetime_field(message, "date_after"),
        date_before=datetime_field(message, "date_before"),
        stakes=STAKES.words(message.stakes),
        status=STATUS.words(message.status),
        outcome=OUTCOME.words(message.outcome),
        tags=tuple(message.tags),
        project=optional_field(message, "project"),
        agent=optional_field(message, "agent"),
    )


def violation_message(item: Violation) -> types_pb2.Violation:
    """Convert a violation to a message."""
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


def decision_message(item: Decision, journal_revision: str | None = None) -> journal_pb2.Decision:
    """Convert a decision to a message, after a change with the revision of the journal."""
    return journal_pb2.Decision(
        id=item.id,
        title=item.title,
        context=item.context,
        category=item.category,
        stakes=STAKES.number(item.stakes),
        confidence=item.confidence,
        status=STATUS.number(item.status),
        outcome=OUTCOME.number(item.outcome),
        date=timestamp_message(item.date),
        reviewed_date=optional_timestamp(item.reviewed_date),
        notes=item.notes,
        reasons=[journal_pb2.Reason(type=r.type, text=r.text, strength=r.strength) for r in item.reasons],
        tags=item.tags,
        project=item.project,
        agent=item.agent,
        visibility=VISIBILITY.number(item.visibility),
        links=links_message(item.links),
        source=item.source,
        journal_revision=journal_revision,
    )


def links_message(item: Links) -> journal_pb2.Links:
    """Convert links to a message."""
    return journal_pb2.Links(supersedes=item.supersedes, depends_on=item.depends_on, relates_to=item.relates_to)


def parse_reasons(messages: Iterable[journal_pb2.Reason]) -> tuple[Reason, ...]:
    """Parse the reasons of a decision."""
    return tuple(Reason(r.type, r.text, optional_field(r, "strength")) for r in messages)


def claimed_agent_name(request: cstp_pb2.CheckGuardrailsRequest | cstp_pb2.AnnounceIntentRequest) -> str | None:
    """Return the agent name that the request claims, or None."""
    return optional_field(request.agent, "id") if request.HasField("agent") else None
