"""What the SDK requires of requests is required here, without its long look into free-form data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from a2a.types import a2a_pb2
from a2a.utils.errors import InvalidParamsError
from a2a.utils.proto_utils import validate_proto_required_fields
from google.protobuf import json_format
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from bridge.a2a.message_parsing import MAX_ITEMS, check_required_fields

text = st.sampled_from(["", "x"])
parts = st.fixed_dictionaries({}, optional={"text": text, "metadata": st.just({"a": {"b": [1]}})})
messages = st.fixed_dictionaries(
    {},
    optional={
        "messageId": text,
        "role": st.sampled_from(["ROLE_UNSPECIFIED", "ROLE_USER"]),
        "parts": st.lists(parts, max_size=2),
        "extensions": st.lists(text, max_size=2),
    },
)
pushes = st.fixed_dictionaries(
    {}, optional={"url": text, "authentication": st.fixed_dictionaries({}, optional={"scheme": text})}
)
sendings = st.fixed_dictionaries(
    {},
    optional={
        "message": messages,
        "configuration": st.fixed_dictionaries({}, optional={"taskPushNotificationConfig": pushes}),
    },
)
gettings = st.fixed_dictionaries({}, optional={"id": text, "tenant": text})


def refused_fields(check: Callable[[Message], None], request: Message) -> set[str]:
    """Return which fields a check finds wrong."""
    try:
        check(request)
    except InvalidParamsError as error:
        return {item["field"] for item in (error.data or {})["errors"]}
    return set()


@pytest.mark.parametrize(
    ("kind", "documents"),
    [
        (a2a_pb2.SendMessageRequest, sendings),
        (a2a_pb2.GetTaskRequest, gettings),
        (a2a_pb2.ListTasksRequest, st.just({})),
    ],
)
@given(data=st.data())
def test_what_the_sdk_requires_is_required(
    kind: type[Message], documents: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    request = json_format.ParseDict(data.draw(documents), kind())
    assert refused_fields(check_required_fields, request) == refused_fields(validate_proto_required_fields, request)


@pytest.mark.parametrize("place", ["message.parts", "message.extensions", "configuration.accepted_output_modes"])
def test_lists_have_an_end(place: str) -> None:
    request = a2a_pb2.SendMessageRequest()
    request.message.message_id = "m"
    request.message.role = a2a_pb2.ROLE_USER
    request.message.parts.add(text="x")
    owner, _, name = place.partition(".")
    items = getattr(getattr(request, owner), name)
    item = a2a_pb2.Part(text="x") if name == "parts" else "x"
    items.extend([item] * (MAX_ITEMS - len(items)))
    assert not refused_fields(check_required_fields, request)
    items.append(item)
    assert refused_fields(check_required_fields, request) == {place}
