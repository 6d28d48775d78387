import hashlib
import json
import math
from typing import Any, Literal

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.common.canonical_json import encode_canonical_json, hash_canonical_json

EXACT = 2**53 - 1
SURROGATES: tuple[Literal["Cs"]] = ("Cs",)
TEXT = st.text(st.characters(exclude_categories=SURROGATES), max_size=6)
AWKWARD = st.sampled_from(
    [
        1e-4,
        9.9e-5,
        1e-6,
        1e-7,
        1e15,
        1e16,
        123456789012345.67,
        1e21,
        1e22,
        5e-324,
        1.7976931348623157e308,
        -0.0,
        1.0,
        0.1,
    ]
)
NUMBERS = st.integers(-EXACT, EXACT) | st.floats(allow_nan=False, allow_infinity=False) | AWKWARD
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_every_value_is_written_as_the_library_for_rfc_8785_writes_it(value: Any) -> None:
    assert encode_canonical_json(value).encode() == rfc8785.dumps(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_is_written_as_the_library_writes_it_and_reads_as_itself(number: float) -> None:
    assert encode_canonical_json(number).encode() == rfc8785.dumps(number)
    assert float(json.loads(encode_canonical_json(number))) == number


@given(st.dictionaries(TEXT, st.none(), max_size=6))
def test_members_are_in_the_order_of_their_names_in_utf_16(names: dict[str, None]) -> None:
    written = list(json.loads(encode_canonical_json(names)))
    assert written == sorted(names, key=lambda name: name.encode("utf-16-be"))


@given(VALUES)
def test_the_text_of_what_was_read_from_a_text_is_the_same(value: Any) -> None:
    assert encode_canonical_json(json.loads(encode_canonical_json(value))) == encode_canonical_json(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [True, None, "x"]}, '{"a":[true,null,"x"],"b":1}'),
        ({"\U0001f600": 1, "\ufb33": 2}, '{"\U0001f600":1,"\ufb33":2}'),
        ('\x00\x1f\x7f"\\/\b\f\n\r\té€\u2028', '"\\u0000\\u001f\x7f\\"\\\\/\\b\\f\\n\\r\\té€\u2028"'),
        ([0.0, -0.0, 1.0, 1e20, 1e21, 1e-6, 1e-7, 0.002], "[0,0,1,100000000000000000000,1e+21,0.000001,1e-7,0.002]"),
        ([333333333.33333329, 4.50, 1e30], "[333333333.3333333,4.5,1e+30]"),
        ({}, "{}"),
        ([], "[]"),
    ],
)
def test_the_text_of(value: Any, text: str) -> None:
    assert encode_canonical_json(value) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (EXACT, "9007199254740991"),
        (-EXACT, "-9007199254740991"),
        (2**53, "9007199254740992"),
        (2**53 + 1, "9007199254740992"),
        (-(2**63), "-9223372036854776000"),
        (10**22, "1e+22"),
        (int(math.pi * 1e300), encode_canonical_json(math.pi * 1e300)),
    ],
)
def test_whole_numbers_beyond_what_is_exact_are_written_as_doubles(number: int, text: str) -> None:
    assert encode_canonical_json({"of": [number, {"and": number}]}) == f'{{"of":[{text},{{"and":{text}}}]}}'


@pytest.mark.parametrize("value", [math.nan, math.inf, {"a": -math.inf}, {1: "a"}, {"a": object()}])
def test_what_json_does_not_know_is_refused(value: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the library words it
        encode_canonical_json(value)


def test_the_digest_is_that_of_the_text_in_utf_8() -> None:
    assert hash_canonical_json({"é": 1}) == hashlib.sha256('{"é":1}'.encode()).hexdigest()
