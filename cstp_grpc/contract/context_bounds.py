"""Where requests hold the context of a check, and which of them hold too many values."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from cstp_grpc.contract.errors import FieldViolation

CONTEXT_FIELDS: Final = frozenset({"cstp.v1.Action.context", "cstp.v1.AnnounceIntentRequest.metadata"})
"""The fields that guardrails read as the context, by their full names."""


def describe_excess(limit: int) -> str:
    """Return the violation of structured data with more values than a limit."""
    return f"holds more than {limit} values"


@functools.cache
def fields_with_contexts(kind: Descriptor) -> tuple[FieldDescriptor, ...]:
    """Return the fields of a message type that are contexts or contain them."""
    return tuple(
        field
        for field in kind.fields
        if field.full_name in CONTEXT_FIELDS
        or (
            field.message_type is not None
            and field.message_type.file.package == kind.file.package
            and fields_with_contexts(field.message_type)
        )
    )


def find_large_contexts(params: object, kind: Descriptor, limit: int, prefix: str = "") -> Iterator[FieldViolation]:
    """Yield the contexts with more values than a limit in the JSON of a message, before any is converted."""
    if not isinstance(params, dict):
        return
    for field in fields_with_contexts(kind):
        path = prefix + field.json_name
        for value in [params[name] for name in {field.name, field.json_name} & params.keys()]:
            if field.full_name in CONTEXT_FIELDS:
                if has_more_members(value, limit):
                    yield FieldViolation(path, describe_excess(limit))
            elif field.is_repeated and isinstance(value, list):
                for index, item in enumerate(value):
                    yield from find_large_contexts(
                        item, cast(Descriptor, field.message_type), limit, f"{path}[{index}]."
                    )
            else:
                yield from find_large_contexts(value, cast(Descriptor, field.message_type), limit, f"{path}.")


def has_more_members(value: object, limit: int) -> bool:
    """Return whether a JSON value contains more values than a limit, nested ones included."""
    pending, left = [value], limit
    while pending:
        found = pending.pop()
        members = found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()
        left -= len(members)
        if left < 0:
            return True
        pending += (each for each in members if isinstance(each, dict | list))
    return False
