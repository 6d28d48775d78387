"""Page tokens."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.platform.storage.pagination import (
    decode_page_token,
    encode_page_token,
    from_microseconds,
    to_microseconds,
)
from tests.named_case import named_case

INTEGERS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@dataclass(frozen=True)
class Conditions:
    agent: str | None = None


@dataclass(frozen=True)
class OtherConditions:
    agent: str | None = None


@given(INTEGERS, TEXTS)
def test_a_token_gives_back_its_key(number: int, text: str) -> None:
    token = encode_page_token(Conditions("a"), (number, text))
    assert decode_page_token(token, Conditions("a"), (int, str)) == [number, text]
    assert token.isascii()


@pytest.mark.parametrize("other", [Conditions(), Conditions("b"), OtherConditions("a")])
def test_a_token_belongs_to_its_listing(other: object) -> None:
    with pytest.raises(InvalidArgument, match="page_token: belongs to other conditions"):
        decode_page_token(encode_page_token(Conditions("a"), (1,)), other, (int,))


@given(st.text())
def test_what_is_no_token_is_refused_by_name(token: str) -> None:
    refuse(token)


@given(JSON)
def test_what_is_json_but_no_token_is_refused_by_name(content: object) -> None:
    refuse(encoded(content))


def test_a_key_of_another_form_is_refused_by_name() -> None:
    for key in [(), (1, 2), (True,), ("1",), (1.0,), (None,), (2**63,), ("\0",), ("\ud800",)]:
        with named_case(key):
            (fingerprint, _) = decoded(encode_page_token(Conditions(), (1,)))
            refuse(encoded([fingerprint, *key]))
            if key and isinstance(key[0], str) and key[0] != "1":
                with pytest.raises(InvalidArgument):
                    decode_page_token(encoded([fingerprint, *key]), Conditions(), (str,))


def refuse(token: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        decode_page_token(token, Conditions(), (int,))
    assert [violation.field for violation in refused.value.violations] == ["page_token"]


def encoded(content: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode()


def decoded(token: str) -> list[object]:
    content: list[object] = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    return content


@given(st.datetimes(timezones=st.just(UTC)))
def test_an_instant_survives_its_key(instant: datetime) -> None:
    assert from_microseconds(to_microseconds(instant)) == instant


@pytest.mark.parametrize("count", [-(2**63), 2**63 - 1])
def test_an_instant_beyond_the_calendar_is_refused_by_name(count: int) -> None:
    with pytest.raises(InvalidArgument, match="page_token"):
        from_microseconds(count)
