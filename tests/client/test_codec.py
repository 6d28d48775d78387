"""Messages in JSON: fields, enums, choices, maps, paths, and agreement with ProtoJSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cstp_grpc.contract.json_codec import CodecError, from_json, json_path, to_json
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.gen.cstp.v1 import audit_pb2, cstp_pb2, journal_pb2, types_pb2
from tests.client.codec_errors import violations
from tests.client.everything import Everything, message_class
from tests.client.strategies import WELL_KNOWN, descriptor_of, json_values, messages, near_misses
from tests.example_counts import examples
from tests.named_case import named_case

TYPES: set[type[Message]] = {
    kind for method in contract_methods().values() for kind in (method.request, method.response)
} | {Everything}


every_type = st.sampled_from(sorted(TYPES, key=lambda kind: kind.DESCRIPTOR.full_name))


many = settings(max_examples=examples(2400, least=200), deadline=None, suppress_health_check=[HealthCheck.too_slow])


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


@given(every_type, st.data())
@many
def test_messages_survive_the_way_through_json(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(messages(descriptor_of(kind)))
    assert from_json(through_text(to_json(message)), kind) == message


@given(every_type, st.data())
@many
def test_output_agrees_with_protojson_but_for_the_words_of_enums(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(messages(descriptor_of(kind)))
    expected = json_format.MessageToDict(message, always_print_fields_with_no_presence=True)
    assert with_enum_names(to_json(message), descriptor_of(kind)) == without_unspecified(expected)


@given(every_type, st.data())
@many
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
    texts = dict.fromkeys(("text", "raw", "target_pillar"), "")
    numbers = {"flag": False, "ratio": 0.0, "count": 0, "natural": 0, "long": "0", "longNatural": "0"}
    lists: dict[str, object] = {
        name: [] for name in ("colours", "texts", "ratios", "raws", "children", "instants", "lengths")
    }
    maps: dict[str, object] = {name: {} for name in ("counts", "named", "labels", "packets", "timers")}
    printed = {**texts, **numbers, **lists, **maps}
    assert to_json(Everything()) == printed
    assert to_json(Everything(maybe_text="", maybe_ratio=0.0)) == {**printed, "maybeText": "", "maybeRatio": 0.0}


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


def test_enums_take_exactly_their_words() -> None:
    for word in ["LOW", "Low", "STAKES_LOW", "unspecified", "STAKES_UNSPECIFIED", "", 1, 0, ["low"]]:
        with named_case(word):
            expected = 'must be one of "low", "medium", "high", "critical"'
            assert violations({"stakes": word}, cstp_pb2.Action) == {"stakes": expected}


def test_an_enum_value_of_a_later_contract_is_printed_as_its_number() -> None:
    later = cstp_pb2.Action()
    later.MergeFromString(b"\x18\x63")
    assert to_json(later)["stakes"] == 99


def test_an_empty_message_is_present() -> None:
    request = from_json({"query": "q", "filters": {}}, cstp_pb2.QueryDecisionsRequest)
    assert request.HasField("filters")
    assert from_json({"at": "1970-01-01T00:00:00Z", "data": {}}, Everything).HasField("at")


def test_only_one_of_a_choice_may_be_set() -> None:
    assert violations({"byName": "x", "byNumber": 0, "byChild": {}}, Everything) == {
        "byNumber": 'cannot be set together with "byName"',
        "byChild": 'cannot be set together with "byName"',
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


@settings(max_examples=examples(300), deadline=None)
@given(
    st.integers(-(2**63), 2**63 - 1) | st.integers(-62_135_596_801, 253_402_300_800),
    st.integers(-(2**31), 2**31 - 1) | st.integers(0, 999).map(lambda part: part * 1_000_000) | st.integers(0, 10**9),
)
def test_instants_are_printed_as_protobuf_prints_them(seconds: int, nanos: int) -> None:
    moment = Timestamp(seconds=seconds, nanos=nanos)
    message = cstp_pb2.CheckGuardrailsResponse(evaluated_at=moment)
    try:
        text = moment.ToJsonString()
    except ValueError:
        with pytest.raises(ValueError, match="timestamp"):
            to_json(message)
    else:
        assert to_json(message)["evaluatedAt"] == text
