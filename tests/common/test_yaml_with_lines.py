"""The strict YAML reader that rulebooks, mapping files and records share."""

from __future__ import annotations

import pytest

from cstp_grpc.common.yaml_with_lines import YamlError, YamlNode, YamlReader
from tests.named_case import named_case


def read(text: str) -> YamlNode:
    (document,) = YamlReader().read(text)
    return document


def test_every_value_has_the_line_of_its_key_or_item() -> None:
    root = read("a:\n  b: 1\nc:\n- x\n\n- y\n")
    assert isinstance(root.value, dict)
    assert {key: node.line for key, node in root.value.items()} == {"a": 1, "c": 3}
    items = root.value["c"].value
    assert isinstance(items, list)
    assert [node.line for node in items] == [4, 6]
    assert root.plain == {"a": {"b": 1}, "c": ["x", "y"]}


def test_lines_count_from_the_first_line_of_the_text() -> None:
    with pytest.raises(YamlError) as error:
        YamlReader(first_line=10).read("a: 1\na: 2\n")
    assert error.value.line == 11


def test_scalars_are_those_of_the_core_schema() -> None:
    for text, value in [
        ("0012", "0012"),
        ("no", "no"),
        ("2020-01-01", "2020-01-01"),
        ("0x1F", "0x1F"),
        ("1.10", 1.1),
        ("-0", 0),
        ("1e5", 100_000.0),
        ("~", None),
        ("True", True),
        ("'1'", "1"),
    ]:
        with named_case(text, value):
            assert read(text).plain == value


def test_an_alias_repeats_its_value_on_its_own_line() -> None:
    root = read("a: &a\n  b: 1\nc: *a\nd:\n- *a\n")
    assert isinstance(root.value, dict)
    assert root.value["c"].line == 3
    assert root.value["a"].line == 1
    assert root.plain == {"a": {"b": 1}, "c": {"b": 1}, "d": [{"b": 1}]}


def test_aliases_share_their_values_instead_of_copying_them() -> None:
    bomb = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 50))
    plain = read(bomb).plain
    assert isinstance(plain, dict)
    last = plain["a49"]
    assert isinstance(last, list)
    assert last[0] is last[8]


def test_a_long_chain_of_aliases_does_not_exhaust_the_stack() -> None:
    chain = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 3000))
    root = read(chain)
    assert isinstance(root.value, dict)
    assert isinstance(root.value["a2999"].plain, list)
