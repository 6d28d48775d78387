"""The values of messages in JSON: numbers, texts, bytes, instants, lengths of time and free-form data."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct

from cstp_grpc.contract.json_codec import from_json, to_json
from cstp_grpc.gen.cstp.v1 import cstp_pb2
from tests.client.codec_errors import violations
from tests.client.everything import Everything
from tests.named_case import named_case


@pytest.mark.parametrize(("given", "expected"), [(1, 1), (1.0, 1), (-0.0, 0), (1e2, 100), (2**31 - 1, 2**31 - 1)])
def test_whole_numbers_may_be_written_as_floats(given: Any, expected: int) -> None:
    assert from_json({"count": given}, Everything).count == expected  # type: ignore[attr-defined]


def test_whole_numbers_take_nothing_else() -> None:
    for field in ["count", "natural", "long", "longNatural"]:
        for value in [True, 1.5, 2**64, -(2**63) - 1, 1e300, math.inf, math.nan, "x", "1.0", "", "-", [], {}]:
            with named_case(field, value):
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


def test_instants_are_rfc_3339_and_printed_in_utc() -> None:
    for given, printed in [
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
    ]:
        with named_case(given, printed):
            assert to_json(from_json({"at": given}, Everything))["at"] == printed


def test_anything_else_is_no_instant() -> None:
    for value in [
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
    ]:
        with named_case(value):
            assert list(violations({"at": value}, Everything)) == ["at"]


def test_lengths_of_time_are_seconds_with_an_s() -> None:
    for given, printed in [
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
    ]:
        with named_case(given, printed):
            message = from_json({"length": given, "lengths": [given], "timers": {"a": given}}, Everything)
            assert to_json(message)["length"] == printed
            assert to_json(message)["lengths"] == [printed]
            assert to_json(message)["timers"] == {"a": printed}


def test_anything_else_is_no_length_of_time() -> None:
    for value in [
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
    ]:
        with named_case(value):
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


def test_free_data_is_a_message_too() -> None:
    assert to_json(from_json({"a": [1, {"b": None}]}, Struct)) == {"a": [1, {"b": None}]}
