from __future__ import annotations

import json
import math
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cstp_grpc.contract.json_codec import CodecError, from_json, json_path, to_json
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.gen.cstp.v1 import audit_pb2, cstp_pb2, journal_pb2, types_pb2
from tests.client.everything import Everything, message_class
from tests.client.strategies import WELL_KNOWN, descriptor_of, json_values, messages, near_misses
from tests.example_counts import examples

TYPES: set[type[Message]] = {
    kind for method in contract_methods().values() for kind in (method.request, method.response)
} | {Everything}
ORDERED = sorted(TYPES, key=lambda kind: kind.DESCRIPTOR.full_name)
every_type = pytest.mark.parametrize("kind", ORDERED)
few = settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def violations(data: Any, kind: type[Message]) -> dict[str, str]:
    with pytest.raises(CodecError) as caught:
        from_json(data, kind)
    return {item.field: item.description for item in caught.value.violations}


def through_text(value: Any) -> Any:
    return json.loads(json.dumps(value, allow_nan=False))


def with_enum_names(data: Any, descriptor: Descriptor) -> Any:
    """Return JSON of ours in the spelling of ProtoJSON."""
    if not isinstance(data, dict) or descriptor.full_name in WELL_KNOWN:
        return data
    named = {}
    for field in descriptor.fields:
        value = data.get(field.json_name)
        if field.json_name not in data:
            continue
        if field.enum_type and value is not None:
            prefix = field.enum_type.values_by_number[0].name.removesuffix("UNSPECIFIED")
            value = [prefix + word.upper() for word in value] if field.is_repeated else prefix + value.upper()
        elif field.message_type and field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_name["value"].message_type
            value = {k: with_enum_names(v, inner) if inner else v for k, v in (value or {}).items()}
        elif field.message_type and field.is_repeated:
            value = [with_enum_names(item, field.message_type) for item in value or []]
        elif field.message_type:
            value = with_enum_names(value, field.message_type)
        named[field.json_name] = value
    return named


def without_unspecified(data: Any) -> Any:
    if isinstance(data, dict):
        kept = {key: without_unspecified(value) for key, value in data.items()}
        return {key: value for key, value in kept.items() if not str(value).endswith("_UNSPECIFIED")}
    return [without_unspecified(item) for item in data] if isinstance(data, list) else data


@every_type
@given(data=st.data())
@few
def test_messages_survive_the_way_through_json(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(messages(descriptor_of(kind)))
    assert from_json(through_text(to_json(message)), kind) == message


@every_type
@given(data=st.data())
@few
def test_output_agrees_with_protojson_but_for_the_words_of_enums(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(messages(descriptor_of(kind)))
    expected = json_format.MessageToDict(message, always_print_fields_with_no_presence=True)
    assert with_enum_names(to_json(message), descriptor_of(kind)) == without_unspecified(expected)


@every_type
@given(data=st.data())
@few
def test_json_is_refused_by_name_or_means_what_it_means_in_protojson(kind: type[Message], data: st.DataObject) -> None:
    document = data.draw(near_misses(descriptor_of(kind)) | json_values)
    try:
        message = from_json(document, kind)
    except CodecError:
        return
    assert json_format.ParseDict(with_enum_names(document, descriptor_of(kind)), kind()) == message


def test_every_wrong_field_is_named_by_its_path() -> None:
    data = {
        "query": 1,
        "nope": None,
        "limit": "1",
        "filters": {"minConfidence": "x", "stakes": ["low", "hgh"], "dateAfter": "yesterday", "min_confidence": 1},
    }
    found = violations(data, cstp_pb2.QueryDecisionsRequest)
    assert found == {
        "query": "must be a string",
        "nope": "is not a known field",
        "limit": "must be a whole number",
        "filters.minConfidence": "must be a number",
        "filters.stakes[1]": 'must be one of "low", "medium", "high", "critical"',
        "filters.dateAfter": 'must be an RFC 3339 instant such as "2026-01-31T08:00:00Z"',
        "filters.min_confidence": "is not a known field",
    }


def test_items_of_lists_are_named_by_their_position() -> None:
    data = {"decision": {"title": "t", "reasons": [{"type": "a"}, {"type": 1}, "x"]}}
    assert violations(data, journal_pb2.RecordDecisionRequest) == {
        "decision.reasons[1].type": "must be a string",
        "decision.reasons[2]": "must be an object",
    }


@pytest.mark.parametrize("data", [None, [], "x", 1, True])
def test_what_is_no_object_is_no_message(data: Any) -> None:
    assert violations(data, cstp_pb2.QueryDecisionsRequest) == {"": "must be an object"}


def test_an_error_reads_as_a_sentence() -> None:
    with pytest.raises(CodecError, match=r"^query: must be a string; limit: must be a whole number$"):
        from_json({"query": 1, "limit": []}, cstp_pb2.QueryDecisionsRequest)
    with pytest.raises(CodecError, match=r"^must be an object$"):
        from_json(1, cstp_pb2.QueryDecisionsRequest)


def test_the_answer_to_a_bad_request_is_bounded() -> None:
    found = violations({"x" * 10_000 + str(number): 1 for number in range(1000)}, cstp_pb2.QueryDecisionsRequest)
    assert len(found) == 1, "the keys are cut to the same length"
    with pytest.raises(CodecError) as caught:
        from_json({str(number): 1 for number in range(1000)}, cstp_pb2.QueryDecisionsRequest)
    assert len(caught.value.violations) == 100


def test_a_key_of_half_a_surrogate_pair_can_be_shown() -> None:
    (field,) = violations({"\ud800": 1}, cstp_pb2.QueryDecisionsRequest)
    assert field.encode("utf-8")


def test_null_means_absent() -> None:
    request = from_json(
        {"query": "q", "limit": None, "filters": {"tags": None}, "agent": None, "includeReasons": None},
        cstp_pb2.QueryDecisionsRequest,
    )
    assert request == cstp_pb2.QueryDecisionsRequest(query="q", filters=types_pb2.DecisionFilters())


def test_null_is_a_value_where_any_value_is_taken() -> None:
    message = from_json({"value": None, "data": {"a": None}, "list": [None]}, Everything)
    assert to_json(message)["value"] is None
    assert to_json(message)["data"] == {"a": None}
    assert to_json(message)["list"] == [None]


@pytest.mark.parametrize(
    ("field", "kind"),
    [("texts", "a string"), ("ratios", "a number"), ("raws", "base64 text"), ("children", "an object")],
)
def test_null_is_no_item_of_a_list(field: str, kind: str) -> None:
    assert violations({field: [None]}, Everything) == {f"{field}[0]": f"must be {kind}"}


def test_fields_without_presence_are_printed_and_others_only_where_they_are_set() -> None:
    assert to_json(cstp_pb2.CheckGuardrailsResponse()) == {
        "allowed": False,
        "violations": [],
        "warnings": [],
        "evaluated": 0,
        "agent": "",
        "responses": [],
    }
    assert to_json(cstp_pb2.DecisionSummary(category="", confidence=0.0)) == {
        "id": "",
        "title": "",
        "category": "",
        "confidence": 0.0,
        "distance": 0.0,
        "reasons": [],
        "tags": [],
        "agent": "",
        "matchedBy": [],
        "similarCount": 0,
        "similarOutcomes": [],
    }


def test_field_masks_are_json_names_in_one_text() -> None:
    request = from_json({"id": "dec-1", "updateMask": "title,reviewBy"}, journal_pb2.UpdateDecisionRequest)
    assert list(request.update_mask.paths) == ["title", "review_by"]
    assert to_json(request) == {"id": "dec-1", "updateMask": "title,reviewBy"}
    assert list(from_json({"updateMask": ""}, journal_pb2.UpdateDecisionRequest).update_mask.paths) == []


@pytest.mark.parametrize("value", [["title"], "title, tags", "review_by", ",", "title,", 7, {}])
def test_anything_else_is_no_field_mask(value: object) -> None:
    expected = 'must be names of fields, separated by commas, such as "title,reviewBy"'
    assert violations({"updateMask": value}, journal_pb2.UpdateDecisionRequest) == {"updateMask": expected}


@pytest.mark.parametrize(
    ("number", "word"),
    [(types_pb2.STAKES_LOW, "low"), (types_pb2.STAKES_CRITICAL, "critical"), (types_pb2.STAKES_UNSPECIFIED, None)],
)
def test_enums_are_plain_words(number: types_pb2.Stakes.ValueType, word: str | None) -> None:
    printed = to_json(cstp_pb2.Action(stakes=number))
    assert printed.get("stakes") == word
    assert from_json(printed, cstp_pb2.Action).stakes == number


def test_the_words_of_enums_keep_their_underscores() -> None:
    entry = audit_pb2.AuditEntry(event=audit_pb2.AUDIT_EVENT_GUARDRAIL_CHECK)
    assert to_json(entry)["event"] == "guardrail_check"


@pytest.mark.parametrize("word", ["LOW", "Low", "STAKES_LOW", "unspecified", "STAKES_UNSPECIFIED", "", 1, 0, ["low"]])
def test_enums_take_exactly_their_words(word: Any) -> None:
    expected = 'must be one of "low", "medium", "high", "critical"'
    assert violations({"stakes": word}, cstp_pb2.Action) == {"stakes": expected}


def test_an_enum_value_of_a_later_contract_is_printed_as_its_number() -> None:
    later = cstp_pb2.Action()
    later.MergeFromString(b"\x18\x63")
    assert to_json(later)["stakes"] == 99


@pytest.mark.parametrize(("given", "expected"), [(1, 1), (1.0, 1), (-0.0, 0), (1e2, 100), (2**31 - 1, 2**31 - 1)])
def test_whole_numbers_may_be_written_as_floats(given: Any, expected: int) -> None:
    assert from_json({"count": given}, Everything).count == expected  # type: ignore[attr-defined]


@pytest.mark.parametrize("field", ["count", "natural", "long", "longNatural"])
@pytest.mark.parametrize(
    "value", [True, 1.5, 2**64, -(2**63) - 1, 1e300, math.inf, math.nan, "x", "1.0", "", "-", [], {}]
)
def test_whole_numbers_take_nothing_else(field: str, value: Any) -> None:
    assert violations({field: value}, Everything)[field].startswith("must be a whole number")


def test_32_bit_numbers_are_numbers_and_64_bit_ones_text() -> None:
    assert violations({"count": "1"}, Everything) == {"count": "must be a whole number"}
    assert violations({"natural": -1}, Everything) == {"natural": "must be a whole number from 0 to 4294967295"}
    assert from_json({"long": "-9", "longNatural": 7}, Everything) == Everything(long=-9, long_natural=7)
    assert to_json(Everything(long=-9))["long"] == "-9"


@pytest.mark.parametrize("value", [True, "1", [], {}])
def test_truth_values_and_texts_are_no_numbers(value: Any) -> None:
    assert violations({"ratio": value}, Everything) == {"ratio": "must be a number"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400])
def test_numbers_are_finite(value: float) -> None:
    found = violations({"ratio": value, "data": {"x": value}}, Everything)
    assert list(found) == ["ratio", "data.x"]
    assert set(found.values()) == {"must be a finite number within the range of a double"}


@pytest.mark.parametrize("value", [0, 1, "true", [], {}])
def test_truth_values_are_true_or_false(value: Any) -> None:
    assert violations({"flag": value}, Everything) == {"flag": "must be true or false"}


def test_strings_are_valid_unicode() -> None:
    expected = "must be valid Unicode, without lone surrogates"
    data = {"text": "a\ud800", "data": {"x": "\udfff", "\ud800": 1}, "counts": {"\ud800": 1}, "texts": ["é", "\udc00"]}
    found = violations(data, Everything)
    assert set(found.values()) == {expected}
    assert len(found) == 5
    assert from_json({"text": "é𝄞"}, Everything) == Everything(text="é𝄞")


@pytest.mark.parametrize("value", ["a", "YQ", "YQ==\n", "é", "_-==", 1])
def test_bytes_are_base64(value: Any) -> None:
    assert violations({"raw": value}, Everything) == {"raw": "must be base64 text"}
    assert violations({"packets": {"a": value}}, Everything) == {"packets.a": "must be base64 text"}
    message = from_json({"raw": "YQ==", "packets": {"a": "AA=="}}, Everything)
    assert message == Everything(raw=b"a", packets={"a": b"\0"})
    assert to_json(message)["packets"] == {"a": "AA=="}


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("2026-01-01T01:30:00+01:30", "2026-01-01T00:00:00Z"),
        ("2025-12-31T19:00:00-05:00", "2026-01-01T00:00:00Z"),
        ("2026-01-01T00:00:00.5Z", "2026-01-01T00:00:00.500Z"),
        ("2026-01-01T00:00:00.0005Z", "2026-01-01T00:00:00.000500Z"),
        ("2026-01-01T00:00:00.000000001Z", "2026-01-01T00:00:00.000000001Z"),
        ("1969-12-31T23:59:59.25Z", "1969-12-31T23:59:59.250Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
        ("9999-12-31T23:59:59.999999999Z", "9999-12-31T23:59:59.999999999Z"),
        ("2024-02-29T00:00:00Z", "2024-02-29T00:00:00Z"),
    ],
)
def test_instants_are_rfc_3339_and_printed_in_utc(given: str, printed: str) -> None:
    assert to_json(from_json({"at": given}, Everything))["at"] == printed


@pytest.mark.parametrize(
    "value",
    [
        "2026-01-01",
        "2026-01-01T00:00:00",
        "2026-01-01 00:00:00Z",
        "2026-01-01t00:00:00z",
        "2026-1-1T00:00:00Z",
        "2026-01-01T00:00Z",
        "2026-01-01T00:00:00.Z",
        "2026-01-01T00:00:00.1234567890Z",
        "2026-01-01T00:00:00+24:00",
        "2026-01-01T00:00:00+0100",
        " 2026-01-01T00:00:00Z",
        "2026-01-01T00:00:00Z\n",
        "٢٠٢٦-01-01T00:00:00Z",
        "2026-02-30T00:00:00Z",
        "2026-01-01T24:00:00Z",
        "2026-01-01T00:00:60Z",
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00+00:01",
        "9999-12-31T23:59:59-00:01",
        1767225600,
        {},
    ],
)
def test_anything_else_is_no_instant(value: Any) -> None:
    assert list(violations({"at": value}, Everything)) == ["at"]


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ("0s", "0s"),
        ("300s", "300s"),
        ("007s", "7s"),
        ("1.5s", "1.500s"),
        ("-1.5s", "-1.500s"),
        ("-0.25s", "-0.250s"),
        ("0.0005s", "0.000500s"),
        ("0.000000001s", "0.000000001s"),
        ("-0s", "0s"),
        ("315576000000s", "315576000000s"),
        ("-315576000000s", "-315576000000s"),
    ],
)
def test_lengths_of_time_are_seconds_with_an_s(given: str, printed: str) -> None:
    message = from_json({"length": given, "lengths": [given], "timers": {"a": given}}, Everything)
    assert to_json(message)["length"] == printed
    assert to_json(message)["lengths"] == [printed]
    assert to_json(message)["timers"] == {"a": printed}


@pytest.mark.parametrize(
    "value",
    [
        "",
        "s",
        "1",
        "1.s",
        ".5s",
        "+1s",
        "1e3s",
        "1m",
        " 1s",
        "1s\n",
        "1.0000000001s",
        "--1s",
        "١s",
        1,
        1.5,
        True,
        {},
        [],
    ],
)
def test_anything_else_is_no_length_of_time(value: Any) -> None:
    expected = 'must be a length of time in seconds such as "1.5s"'
    data = {"length": value, "lengths": ["1s", value], "timers": {"a": value}}
    assert violations(data, Everything) == {"length": expected, "lengths[1]": expected, "timers.a": expected}


@pytest.mark.parametrize("value", ["315576000001s", "-315576000001s", "999999999999s"])
def test_a_length_of_time_is_at_most_ten_thousand_years(value: str) -> None:
    assert violations({"length": value}, Everything) == {
        "length": "must be a length of time from -315576000000s to 315576000000s"
    }


def with_length(seconds: int, nanos: int) -> Message:
    message = Everything()
    message.length.seconds = seconds  # type: ignore[attr-defined]
    message.length.nanos = nanos  # type: ignore[attr-defined]
    return message


def test_what_json_cannot_express_is_not_printed() -> None:
    beyond = Everything()
    beyond.at.seconds = 253_402_300_800  # type: ignore[attr-defined]
    infinite = Everything()
    infinite.data.fields["x"].number_value = math.inf  # type: ignore[attr-defined]
    lengths = [with_length(315_576_000_001, 0), with_length(1, -1), with_length(-1, 1), with_length(0, 10**9)]
    for message in (beyond, infinite, Everything(ratio=math.nan), *lengths):
        with pytest.raises(ValueError, match=r"no form in JSON|is not valid"):
            to_json(message)


def test_whole_numbers_of_free_data_print_as_integers() -> None:
    data = {"a": 1.0, "b": 2, "c": 0.5, "d": 2.0**53, "e": 1e300, "f": -0.0}
    printed = to_json(from_json({"data": data}, Everything))["data"]
    assert json.dumps(printed) == '{"a": 1, "b": 2, "c": 0.5, "d": 9007199254740992, "e": 1e+300, "f": 0}'


def test_whole_numbers_up_to_21_digits_print_as_integers() -> None:
    data = {"a": 2**60, "b": -(2**60), "c": 999999999999999868928, "d": 10**21}
    printed = to_json(from_json({"data": data}, Everything))["data"]
    assert json.dumps(printed) == (
        '{"a": 1152921504606846976, "b": -1152921504606846976, "c": 999999999999999868928, "d": 1e+21}'
    )
    assert from_json({"data": printed}, Everything) == from_json({"data": data}, Everything)


def test_integers_that_a_double_would_round_are_refused_by_field() -> None:
    data = {"order": 2**53 + 1, "lines": [1, {"id": -(2**53) - 1}], "exact": 2**53, "text": str(2**53 + 1)}
    found = violations({"data": data, "value": 10**19 + 1}, Everything)
    assert list(found) == ["data.order", "data.lines[1].id", "value"]
    assert set(found.values()) == {"is an integer that a double would round; send it as a string"}


def nested(levels: int, innermost: Any, key: str | None = "a") -> Any:
    for _ in range(levels):
        innermost = {key: innermost} if key else [innermost]
    return innermost


@pytest.mark.parametrize("key", ["a", None])
def test_free_data_nests_up_to_24_levels(key: str | None) -> None:
    fits = {"data": {"top": nested(23, 1, key)}}
    assert to_json(from_json(fits, Everything))["data"] == fits["data"]
    (field, description), *others = violations({"data": {"top": nested(24, 1, key)}}, Everything).items()
    assert not others
    assert field == "data.top" + 23 * (".a" if key else "[0]")
    assert description == "is nested more than 24 levels deep"


def test_depth_is_refused_long_before_python_gives_up() -> None:
    assert len(violations({"data": nested(900, 1)}, Everything)) == 1
    assert len(violations({"value": nested(900, 1, None)}, Everything)) == 1


@pytest.mark.parametrize("value", [1, "x", [], True])
def test_a_struct_is_an_object(value: Any) -> None:
    assert violations({"action": {"context": value}}, cstp_pb2.CheckGuardrailsRequest) == {
        "action.context": "must be an object"
    }


@pytest.mark.parametrize("value", [b"x", object(), {1: 2}, (1,)])
def test_what_is_no_json_is_refused_by_name(value: Any) -> None:
    assert violations({"data": {"x": value}}, Everything)


def test_an_empty_message_is_present() -> None:
    request = from_json({"query": "q", "filters": {}}, cstp_pb2.QueryDecisionsRequest)
    assert request.HasField("filters")
    assert from_json({"at": "1970-01-01T00:00:00Z", "data": {}}, Everything).HasField("at")


def test_only_one_of_a_choice_may_be_set() -> None:
    assert violations({"byName": "x", "byNumber": 0, "byChild": {}}, Everything) == {
        "byNumber": 'cannot be set beside "byName"',
        "byChild": 'cannot be set beside "byName"',
    }
    assert from_json({"byName": None, "byNumber": 0}, Everything) == Everything(by_number=0)


def test_maps_are_objects_in_the_order_of_their_keys() -> None:
    message = from_json({"counts": {"b": 2, "a": 1}, "named": {"x": {"text": "t"}}}, Everything)
    assert list(to_json(message)["counts"]) == ["a", "b"]
    assert to_json(message)["named"]["x"]["text"] == "t"
    assert violations({"counts": {"a": "1"}, "named": {"x": {"nope": 1}, "y": None}}, Everything) == {
        "counts.a": "must be a whole number",
        "named.x.nope": "is not a known field",
        "named.y": "must be an object",
    }
    assert to_json(from_json({"labels": {"b": "x", "a": ""}}, Everything))["labels"] == {"a": "", "b": "x"}
    assert violations({"labels": {"a": 1, "b": None}}, Everything) == {
        "labels.a": "must be a string",
        "labels.b": "must be a string",
    }


def test_names_are_those_that_the_contract_gives() -> None:
    assert to_json(Everything(renamed="x"))["target_pillar"] == "x"
    assert violations({"targetPillar": "x"}, Everything) == {"targetPillar": "is not a known field"}


@pytest.mark.parametrize(("name", "data"), [("WithFloat", {}), ("WithNumberedKeys", {}), ("WithPrefixless", {})])
def test_a_field_without_a_json_form_is_an_error_of_the_contract(name: str, data: Any) -> None:
    with pytest.raises(TypeError, match=f"cstp.everything.v1|{name}"):
        to_json(message_class(name)())
    with pytest.raises(TypeError):
        from_json(data, message_class(name))


def test_free_data_is_a_message_too() -> None:
    assert to_json(from_json({"a": [1, {"b": None}]}, Struct)) == {"a": [1, {"b": None}]}


@pytest.mark.parametrize(
    ("proto", "expected"),
    [
        ("filters.min_confidence", "filters.minConfidence"),
        ("include_reasons", "includeReasons"),
        ("filters", "filters"),
        ("filters.stakes[1]", "filters.stakes[1]"),
        ("filters.no_such_field.min_confidence", "filters.no_such_field.min_confidence"),
        ("", ""),
    ],
)
def test_paths_of_the_contract_become_json_paths(proto: str, expected: str) -> None:
    assert json_path(cstp_pb2.QueryDecisionsRequest, proto) == expected


def test_paths_through_lists_maps_and_free_data_become_json_paths() -> None:
    assert json_path(journal_pb2.ImportDecisionsRequest, "links.superseded_by[3]") == "links.supersededBy[3]"
    assert json_path(Everything, "children[2].maybe_text") == "children[2].maybeText"
    assert json_path(Everything, 'named["a.b_c"].maybe_text') == 'named["a.b_c"].maybeText'
    assert json_path(Everything, "data.some_key") == "data.some_key"
    assert json_path(Everything, "renamed") == "target_pillar"
