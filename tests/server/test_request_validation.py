"""Validation of requests: the recognition of valid ones agrees with the full validation, and callers are told why."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from cstp_grpc.contract.errors import FieldViolation, InvalidArgument
from cstp_grpc.contract.json_codec import from_json
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.gen.buf.validate import validate_pb2
from cstp_grpc.gen.cstp.v1 import cstp_pb2, intents_pb2, journal_pb2
from cstp_grpc.server.request_validation import (
    STRUCT,
    FastValidator,
    RequestValidator,
    StructBounds,
    contract_validator,
    find_malformed_fields,
)
from tests.client.strategies import descriptor_of
from tests.example_counts import examples
from tests.named_case import named_case

BOUNDS = StructBounds(depth=2, values=2, context_values=2)
# White space of one definition and not of another, characters that Python's regular expressions take for others.
TEXTS = ("", " ", "\t\n", "\x85", "\x1c", "\u2003", "\u200b", "a", "a\n", "é", "\x00", "c-1", "~!")
DOUBLES = (math.nan, math.inf, -math.inf, -0.0, 0.0, 0.5, 1.0, 1.0000000001, -1e-9, 2.0)
INTEGERS = (-1, 0, 1, 2, 2**31 - 1)
METHODS = {method.request.DESCRIPTOR.full_name: method.request for method in contract_methods().values()}


def texts(rules: validate_pb2.FieldRules) -> st.SearchStrategy[str]:
    """Texts that are as long as a rule says, or a character more or less."""
    lengths = {
        length + difference
        for length in (rules.string.min_len, rules.string.max_len, 128)
        for difference in (-1, 0, 1)
        if length + difference > 0
    }
    return st.sampled_from(TEXTS) | st.builds(str.__mul__, st.sampled_from("aé "), st.sampled_from(sorted(lengths)))


def integers(bounds: Any) -> st.SearchStrategy[int]:
    known = [edge + difference for edge in (bounds.gte, bounds.lte) for difference in (-1, 0, 1)]
    return st.sampled_from([*INTEGERS, *(number for number in known if -(2**31) <= number < 2**31)])


def json_like(depth: int) -> st.SearchStrategy[Value]:
    leaves = st.sampled_from([Value(), Value(bool_value=True), Value(number_value=1), Value(number_value=math.nan)])
    if not depth:
        return leaves
    return leaves | structs(depth - 1).map(lambda inner: Value(struct_value=inner))


def structs(depth: int = 2) -> st.SearchStrategy[Struct]:
    fields = st.dictionaries(st.sampled_from("abcdef"), json_like(depth), max_size=6)
    return fields.map(lambda given_fields: Struct(fields=given_fields))


def single(field: FieldDescriptor, rules: validate_pb2.FieldRules, depth: int) -> st.SearchStrategy[Any]:
    """One value of a field, at the edge of what its rules allow."""
    if field.enum_type is not None:
        return st.integers(-1, len(field.enum_type.values))
    if field.message_type is not None:
        if field.message_type.full_name == Struct.DESCRIPTOR.full_name:
            return structs()
        if field.message_type.full_name == Timestamp.DESCRIPTOR.full_name:
            return st.builds(Timestamp, seconds=st.sampled_from([0, 1]), nanos=st.sampled_from([-1, 0, 999_999_999]))
        kind = message_factory.GetMessageClass(field.message_type)
        return edge_messages(descriptor_of(kind), depth - 1) if depth else st.builds(kind)
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            return texts(rules)
        case FieldDescriptor.TYPE_DOUBLE:
            return st.sampled_from(DOUBLES)
        case FieldDescriptor.TYPE_BOOL:
            return st.booleans()
        case FieldDescriptor.TYPE_BYTES:
            return st.binary(max_size=2)
        case FieldDescriptor.TYPE_INT64:
            return integers(rules.int64)
    return integers(rules.int32)


@st.composite
def edge_messages(draw: st.DrawFn, descriptor: Descriptor, depth: int = 3) -> Message:
    """Messages whose fields are at the edge of what is valid."""
    message = message_factory.GetMessageClass(descriptor)()
    for field in descriptor.fields:
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if is_map or not draw(st.booleans()):
            continue
        rules = field.GetOptions().Extensions[validate_pb2.field]
        if field.is_repeated:
            items = draw(st.lists(single(field, rules.repeated.items, depth), max_size=2))
            more = rules.repeated.max_items - len(items) + 1
            if items and more <= 60 and draw(st.booleans()):
                items += items[:1] * more
            getattr(message, field.name).extend(items)
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(draw(single(field, rules, depth)))
            getattr(message, field.name).SetInParent()
        else:
            setattr(message, field.name, draw(single(field, rules, depth)))
    return message


@settings(max_examples=examples(4000, least=300))
@given(st.sampled_from(sorted(METHODS)).flatmap(lambda name: edge_messages(descriptor_of(METHODS[name]))))
def test_what_is_recognized_is_valid(message: Message) -> None:
    if FastValidator(BOUNDS).accepts(message):
        assert list(find_malformed_fields(message, "", BOUNDS)) == []
        assert contract_validator().collect_violations(message) == []


@pytest.mark.parametrize(
    "method",
    ["cstp.announceIntent", "cstp.batchCheckGuardrails", "cstp.checkGuardrails", "cstp.queryDecisions"],
)
def test_usual_requests_of_hot_paths_are_recognized(method: str) -> None:
    rpc = contract_methods()[method]
    validator = FastValidator(StructBounds(24, 20_000, 2_000))
    for example in rpc.examples:
        assert validator.accepts(from_json(json.loads(example), rpc.request)), example


def text_places(kind: type[Message], prefix: str = "") -> Iterator[tuple[str, Message]]:
    """Yield the path of each text field, lists and nested messages included, with a message that has NUL there."""
    for field in descriptor_of(kind).fields:
        index = "[0]" if field.is_repeated else ""
        path, message = f"{prefix}{field.name}{index}", kind()
        place = getattr(message, field.name)
        if field.type == FieldDescriptor.TYPE_STRING:
            place.append("a\0b") if field.is_repeated else setattr(message, field.name, "a\0b")
            yield path, message
        elif field.message_type is not None and field.message_type.full_name == STRUCT:
            for content in ({"a": "b\0"}, {"a\0": 1}, {"a": [{"b": ["\0"]}]}, {"a": [{"\0": 1}]}):
                changed = kind()
                getattr(changed, field.name).update(content)
                yield path, changed
        elif field.message_type is not None and not field.message_type.full_name.startswith("google.protobuf"):
            assert not field.message_type.GetOptions().map_entry, f"{path}: say how its texts are checked"
            inner = message_factory.GetMessageClass(field.message_type)
            for below, wrong in text_places(inner, f"{path}."):
                changed = kind()
                target = getattr(changed, field.name)
                (target.add() if field.is_repeated else target).CopyFrom(wrong)
                yield below, changed


def test_no_text_of_any_request_has_nul() -> None:
    for name in sorted(METHODS):
        with named_case(name):
            validator = RequestValidator(StructBounds(24, 1000, 1000))
            for path, message in text_places(METHODS[name]):
                with pytest.raises(InvalidArgument) as caught:
                    validator.validate(message)
                assert FieldViolation(path, "must not contain NUL") in caught.value.violations


@settings(max_examples=examples(1000, least=200))
@given(context=structs(depth=3))
def test_structured_data_is_recognized_if_and_only_if_it_is_within_bounds(context: Struct) -> None:
    action = cstp_pb2.Action(description="Deploy", context=context)
    is_valid = list(find_malformed_fields(action, "", BOUNDS)) == []
    assert FastValidator(BOUNDS).accepts(action) == is_valid


@pytest.mark.parametrize(
    ("request_message", "violation"),
    [
        (intents_pb2.CloseIntentRequest(correlation_id="c-1"), FieldViolation("outcome", "must be given")),
        (journal_pb2.GetDecisionRequest(), FieldViolation("id", "must not be empty")),
        (
            journal_pb2.LinkDecisionsRequest(id="dec-1", add=journal_pb2.Links(depends_on=[""])),
            FieldViolation("add.depends_on[0]", "must not be empty"),
        ),
    ],
)
def test_what_is_missing_is_said_to_be_missing(request_message: Message, violation: FieldViolation) -> None:
    with pytest.raises(InvalidArgument) as caught:
        RequestValidator(StructBounds(2, 10, 10)).validate(request_message)
    assert caught.value.violations == (violation,)
