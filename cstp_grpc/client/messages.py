"""Plain Python values to messages of the contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from google.protobuf import struct_pb2, timestamp_pb2
from google.protobuf.message import Message

from cstp_grpc.errors import InvalidArgument
from cstp_grpc.gen.cstp.v1 import types_pb2

if TYPE_CHECKING:
    from google.protobuf.internal.enum_type_wrapper import _EnumTypeWrapper

NumberT = TypeVar("NumberT", bound=int)
MessageT = TypeVar("MessageT", bound=Message)

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
"""A value that JSON can write."""


def decision_filters(
    *,
    category: str | None = None,
    min_confidence: float | None = None,
    max_confidence: float | None = None,
    date_after: datetime | None = None,
    date_before: datetime | None = None,
    stakes: Sequence[str] = (),
    status: Sequence[str] = (),
    outcome: Sequence[str] = (),
    tags: Sequence[str] = (),
    project: str | None = None,
    agent: str | None = None,
) -> types_pb2.DecisionFilters:
    """Return conditions that decisions must all meet; what is left out does not restrict.

    Bounds are inclusive and dates aware; `stakes`, `status` and `outcome` mean any of, `tags` all of.
    Raises InvalidArgument.
    """
    return types_pb2.DecisionFilters(
        category=category,
        min_confidence=min_confidence,
        max_confidence=max_confidence,
        date_after=timestamp(date_after, "date_after"),
        date_before=timestamp(date_before, "date_before"),
        stakes=[number(types_pb2.Stakes, word, "stakes") for word in stakes],
        status=[number(types_pb2.DecisionStatus, word, "status") for word in status],
        outcome=[number(types_pb2.Outcome, word, "outcome") for word in outcome],
        tags=tags,
        project=project,
        agent=agent,
    )


def number(enum: _EnumTypeWrapper[NumberT], word: str | None, field: str) -> NumberT:
    """Return the number of a plain word in an enum of the contract, unspecified for None. Raises InvalidArgument."""
    unspecified = enum.DESCRIPTOR.values_by_number[0].name
    prefix = unspecified.removesuffix("UNSPECIFIED")
    if word is None:
        return enum.Value(unspecified)
    name = prefix + word.upper()
    if name == unspecified or name not in enum.keys():  # noqa: SIM118 - an enum's wrapper is no mapping
        words = (name.removeprefix(prefix).lower() for name in enum.keys() if name != unspecified)  # noqa: SIM118
        raise InvalidArgument.field(field, f"{word!r} is not one of {', '.join(words)}")
    return enum.Value(name)


def timestamp(moment: datetime | None, field: str) -> timestamp_pb2.Timestamp | None:
    """Return an instant as a message; None for None. Raises InvalidArgument where it has no time zone."""
    if moment is None:
        return None
    if moment.tzinfo is None:
        raise InvalidArgument.field(field, "needs a time zone")
    stamp = timestamp_pb2.Timestamp()
    stamp.FromDatetime(moment)
    return stamp


def struct(content: Mapping[str, Json] | None, field: str) -> struct_pb2.Struct | None:
    """Return a JSON object as a message; None for None. Raises InvalidArgument where it is not JSON."""
    if content is None:
        return None
    message = struct_pb2.Struct()
    try:
        message.update(dict(content))
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidArgument.field(field, f"is not a JSON object: {error}") from error
    return message


def expect(answer: Message, kind: type[MessageT]) -> MessageT:
    """Return the answer, known to be of a kind. Raises TypeError."""
    if not isinstance(answer, kind):
        raise TypeError(f"expected {kind.__name__}, got {type(answer).__name__}")
    return answer
