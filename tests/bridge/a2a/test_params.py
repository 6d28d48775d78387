"""The params of A2A 1.0 are ProtoJSON: whatever is taken means what protobuf's own parser takes it for."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TypeVar

import pytest
from a2a.types import a2a_pb2
from google.protobuf import json_format
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.contract.json_codec import PROTO_JSON, CodecError, from_json

MessageT = TypeVar("MessageT", bound=Message)


def parse(document: object, kind: type[MessageT]) -> MessageT:
    return from_json(document, kind, PROTO_JSON)


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
free = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(text, free, max_size=3)
integers = st.integers(-(2**31), 2**31 - 1)


def members(**optional: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return objects that have any of the members, which may be null, and perhaps one that nobody knows."""
    return st.fixed_dictionaries({}, optional={**{k: v | st.none() for k, v in optional.items()}, "unknown": free})


parts = st.one_of(
    members(text=text, metadata=objects, mediaType=text),
    st.fixed_dictionaries({"data": free}),
    members(raw=st.sampled_from(["", "eA==", "eA", "-_-_", "+/+/"]), filename=text),
    members(url=text, media_type=text),
)
messages = members(
    messageId=text,
    context_id=text,
    role=st.sampled_from(["ROLE_USER", "ROLE_AGENT", 0, 1, 2]),
    parts=st.lists(parts, max_size=3),
    metadata=objects,
    extensions=st.lists(text, max_size=2),
    referenceTaskIds=st.lists(text, max_size=2),
)
sendings = members(
    tenant=text,
    message=messages,
    configuration=members(
        acceptedOutputModes=st.lists(text, max_size=2),
        historyLength=integers | integers.map(str) | integers.map(float),
        returnImmediately=st.booleans(),
    ),
    metadata=objects,
)
listings = members(
    contextId=text,
    status=st.sampled_from(a2a_pb2.TaskState.keys()),
    pageSize=integers,
    page_token=text,
    statusTimestampAfter=st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.123456+02:00"]),
    includeArtifacts=st.booleans(),
)


@pytest.mark.parametrize(
    ("kind", "documents"), [(a2a_pb2.SendMessageRequest, sendings), (a2a_pb2.ListTasksRequest, listings)]
)
@given(data=st.data())
def test_what_is_right_is_read_as_protobuf_reads_it(
    kind: type[Message], documents: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    document = data.draw(documents)
    assert parse(document, kind) == json_format.ParseDict(document, kind(), ignore_unknown_fields=True)


anything = st.recursive(
    free,
    lambda inner: st.dictionaries(
        st.sampled_from(["message", "parts", "text", "data", "raw", "role", "metadata", "configuration"]), inner
    ),
)


@given(anything)
def test_what_protobuf_does_not_read_is_refused(document: Any) -> None:
    try:
        expected = json_format.ParseDict(document, a2a_pb2.SendMessageRequest(), ignore_unknown_fields=True)
    except (json_format.ParseError, AttributeError, TypeError):
        with pytest.raises(CodecError) as caught:
            parse(document, a2a_pb2.SendMessageRequest)
        assert caught.value.violations
        return
    # Words that an enum does not have are refused here only.
    with suppress(CodecError):
        assert parse(document, a2a_pb2.SendMessageRequest) == expected


@pytest.mark.parametrize("word", ["\ud800", "\x00", "", "task_state_working"])
def test_no_other_word_is_taken_for_one_of_an_enum(word: str) -> None:
    with pytest.raises(CodecError) as caught:
        parse({"status": word}, a2a_pb2.ListTasksRequest)
    assert [each.field for each in caught.value.violations] == ["status"]


def test_an_integer_of_free_form_data_that_a_double_would_round_is_refused() -> None:
    message = {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"data": {"order": 2**53 + 1, "count": 2**53}}]}
    with pytest.raises(CodecError) as caught:
        parse({"message": message}, a2a_pb2.SendMessageRequest)
    assert [each.field for each in caught.value.violations] == ["message.parts[0].data.order"]
