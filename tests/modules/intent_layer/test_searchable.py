"""What nodes say, entry by entry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.modules.intent_layer.journal_sync import file_of_source, import_records, split_entries
from cstp_grpc.modules.intent_layer.model import Node, NodeFile
from cstp_grpc.modules.intent_layer.node_document import parse_node

LINES = st.sampled_from(
    [
        "",
        "## Pitfalls",
        "## Checks",
        "## Of our own",
        "### A heading",
        "#### A deeper one",
        "- an item",
        "  of two lines",
        "- [ ] to do",
        "1. first",
        "- ",
        "A paragraph",
        "```",
        "> quoted",
        "| a | b |",
        "<!-- a comment",
        "-->",
        "_Source: CHECK-2026-02-06-a1b2c3d4e5f60718-4567.md_",
        "\u2028",
    ]
)
TEXTS = st.lists(LINES, max_size=30).map("\n".join) | st.text(max_size=200)


def node_of(text: str) -> Node:
    file = NodeFile("src/AGENTS.md", text, parse_node(text, "src/AGENTS.md").sections(), 1)
    return Node("src", (file,))


@given(TEXTS)
def test_entries_are_what_the_text_says_in_its_order(text: str) -> None:
    place = 0
    for title, said in split_entries(text):
        assert title.strip()
        assert said in text
        place = text.index(said, place)


@given(TEXTS)
def test_any_node_has_records_that_the_journal_takes(text: str) -> None:
    found = list(import_records("shop", node_of(text)))
    assert len({record.source for record in found}) == len(found)
    for record in found:
        assert file_of_source(record.source, "shop") == "src/AGENTS.md"
        assert record.content.title.strip()
        assert len(record.content.title) <= 200
        assert record.content.category
        assert len(record.content.category) <= 100


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- one\n- two\n  more of two", [("one", "- one"), ("two", "- two\n  more of two")]),
        ("### One\n\n- an item of it\n\n### Two", [("One", "### One\n\n- an item of it"), ("Two", "### Two")]),
        ("Said first.\n\n- [ ] then this", [("Said first.", "Said first."), ("then this", "- [ ] then this")]),
        ("- [x] **done**\n\n  in full\n\n  _Source: A.md_", [("**done**", "- [x] **done**\n\n  in full")]),
        ("```\n### no heading\n```", []),
        ("", []),
    ],
)
def test_headings_items_and_paragraphs_begin_entries(text: str, expected: list[tuple[str, str]]) -> None:
    assert split_entries(text) == expected


@pytest.mark.slow
def test_however_many_entries_are_called_the_same_each_has_its_source() -> None:
    text = "## Pitfalls\n\n### a 2\n\n" + "### a\n" * 20_000
    assert len({record.source for record in import_records("shop", node_of(text))}) == 20_001


def test_long_titles_and_texts_are_shortened() -> None:
    (record,) = import_records("shop", node_of(f"## Pitfalls\n\n- {'long ' * 10_000}"))
    assert len(record.content.title) == 200
    assert record.content.context
    assert len(record.content.context) == 20_000
    assert record.content.title.endswith("…")


def test_an_introduction_is_found_whole() -> None:
    node = node_of("# API\n\nNever edit by hand.\n\n- Ask first\n\n## Pitfalls\n\nOne\n")
    introduction, _ = import_records("shop", node)
    assert introduction.source == "intent-layer:shop:src/AGENTS.md#introduction/introduction-of-src"
    assert introduction.content.title == "Introduction of src"
    assert introduction.content.context == "Never edit by hand.\n\n- Ask first"
