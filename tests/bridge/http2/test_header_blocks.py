"""Header blocks as RFC 7541 has them."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from bridge.http2.header_blocks import Header, HeaderBlockError, decode_header_block, encode_header
from tests.example_counts import examples

texts = st.text(st.characters(max_codepoint=255), max_size=300)


@pytest.mark.parametrize(
    ("block", "headers"),
    [
        # The examples of RFC 7541, appendices C.2 to C.6, as far as they need no dynamic table.
        ("400a637573746f6d2d6b65790d637573746f6d2d686561646572", [("custom-key", "custom-header")]),
        ("040c2f73616d706c652f70617468", [(":path", "/sample/path")]),
        ("100870617373776f726406736563726574", [("password", "secret")]),
        ("82", [(":method", "GET")]),
        (
            "828684418cf1e3c2e5f23a6ba0ab90f4ff",
            [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")],
        ),
        ("5886a8eb10649cbf", [("cache-control", "no-cache")]),
        ("408825a849e95ba97d7f8925a849e95bb8e8b4bf", [("custom-key", "custom-value")]),
        (
            "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae82ae43d3",
            [
                (":status", "302"),
                ("cache-control", "private"),
                ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
                ("location", "https://www.example.com"),
            ],
        ),
        # A table of 0 bytes, as the client announces it.
        ("2088", [(":status", "200")]),
        ("", []),
    ],
)
def test_a_block_is_read(block: str, headers: list[Header]) -> None:
    assert decode_header_block(bytes.fromhex(block)) == headers


@pytest.mark.parametrize(
    "block",
    [
        "80",  # the index 0
        "be",  # the index 62, the first of the dynamic table
        "3f01",  # a table of 32 bytes
        "40",  # no name
        "400a6375",  # a name that is too short
        "4081000161",  # a text in Huffman's code that ends with zeros
        "4084ffffffff0161",  # the code that ends a text
        "ffffffffffffffffff7f",  # an index beyond all bounds
    ],
)
def test_a_block_that_is_none_is_refused(block: str) -> None:
    with pytest.raises(HeaderBlockError):
        decode_header_block(bytes.fromhex(block))


@hypothesis_settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(texts, texts), max_size=5))
def test_what_is_written_is_read(headers: list[Header]) -> None:
    assert decode_header_block(b"".join(encode_header(*each) for each in headers)) == headers


@hypothesis_settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_block_or_refused(block: bytes) -> None:
    with suppress(HeaderBlockError):
        decode_header_block(block)
