"""What a node says already is found, in other words too, and what only sounds like it is not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cstp_grpc.contract.errors import QueryFailed
from cstp_grpc.modules.intent_layer.duplicate_search import (
    WORD_OVERLAP_THRESHOLD,
    find_duplicates,
    significant_words,
    word_overlap,
)
from cstp_grpc.modules.intent_layer.learning_merge import NodeEntry, insert_entry
from cstp_grpc.modules.intent_layer.model import DuplicateMatch
from cstp_grpc.modules.intent_layer.node_document import parse_node
from tests.example_counts import examples
from tests.named_case import named_case

ID = "PITFALL-2026-02-06-1-2"
NODE = """# API

## Purpose

Serves the shop's API.

## Pitfalls

- Never commit the .env file.
- Chroma ignores adding an id twice
  and cannot filter fast.

### Handlers are arrow functions

The loader calls them without a receiver.

- Bind nothing in them.

_Source: PITFALL-2026-01-01-1-1.md_

## Checks

- [ ] Run migrations before the tests
"""


def entry(title: str, detail: str = "Something else entirely.", section: str = "Pitfalls") -> NodeEntry:
    return NodeEntry(section, checkbox=False, title=title, detail=detail, learning_id=ID)


def found(title: str, detail: str = "Something else entirely.", **options: object) -> tuple[DuplicateMatch, ...]:
    return find_duplicates(parse_node(NODE, "AGENTS.md"), entry(title, detail), **options)  # type: ignore[arg-type]


def test_reworded_statements_are_likely_the_same() -> None:
    for first, second in [
        ("Handlers are arrow functions", "Handlers must be arrow functions"),
        ("Never commit the .env file", "Do not commit .env files"),
        ("Run migrations before the tests", "Before tests, run the migrations"),
        ("Use idempotency keys for payments", "Payments need idempotency keys"),
        ("Close the database connection after each request", "Close database connections after every request"),
        ("getUser returns null for deleted accounts", "get_user returns null when the account was deleted"),
        ("Arrow functions in API module", "The API module wants arrow functions everywhere"),
        ("Handlers log the request id first", "A handler first logs its request's id"),
    ]:
        with named_case(first, second):
            assert word_overlap(first, second) >= WORD_OVERLAP_THRESHOLD


def test_different_statements_about_one_thing_are_not() -> None:
    for first, second in [
        ("Handlers are arrow functions", "Handlers return promises"),
        ("Never commit the .env file", "Never commit generated code"),
        ("Run migrations before the tests", "Run the linter before the tests"),
        ("Use idempotency keys for payments", "Payments are rounded to cents"),
        ("Close the database connection after each request", "Open the database connection lazily"),
        ("getUser returns null for deleted accounts", "getUser throws for locked accounts"),
        ("Tokens expire after an hour", "Sessions expire after a day"),
        ("It is", "It is not"),
    ]:
        with named_case(first, second):
            assert word_overlap(first, second) < WORD_OVERLAP_THRESHOLD


@given(st.text(), st.text())
def test_overlap_is_a_share_and_the_same_both_ways(first: str, second: str) -> None:
    assert 0 <= word_overlap(first, second) == word_overlap(second, first) <= 1
    assert word_overlap(first, first) == (1 if significant_words(first) else 0)


@pytest.mark.parametrize(
    ("title", "line", "text"),
    [
        ("Do not commit .env files", 9, "- Never commit the .env file."),
        (
            "Chroma cannot filter fast and ignores adding ids twice",
            10,
            "- Chroma ignores adding an id twice\n  and cannot",
        ),
        ("Handler: arrow function", 13, "### Handlers are arrow functions\n\nThe loader"),
        ("Before tests run migrations", 23, "- [ ] Run migrations before the tests"),
        ("Serves the API of the shop", 5, "Serves the shop's API."),
    ],
)
def test_it_is_found_where_it_stands(title: str, line: int, text: str) -> None:
    (duplicate,) = found(title)
    assert (duplicate.file, duplicate.line) == ("AGENTS.md", line)
    assert duplicate.text.startswith(text)
    assert WORD_OVERLAP_THRESHOLD <= duplicate.score <= 1


def test_what_is_new_has_no_duplicates() -> None:
    assert found("Routes are matched in order", "The first one wins, so put the special ones first.") == ()


def test_the_detail_counts_too() -> None:
    assert found("Watch out", "The loader calls handlers, which are arrow functions, without receiver: bind nothing!")


def test_the_threshold_decides() -> None:
    assert found("Handlers are arrow closures", threshold=0.5)
    assert not found("Handlers are arrow closures", threshold=0.6)


def test_what_came_from_the_same_report_is_certain() -> None:
    merged = insert_entry(parse_node(NODE, "AGENTS.md"), entry("Routes are matched in order"))
    (duplicate,) = find_duplicates(parse_node(merged, "AGENTS.md"), entry("Reworded", "Since then."), threshold=1.1)
    assert duplicate.score == 1
    assert duplicate.text.startswith("### Routes are matched in order")


@pytest.mark.slow
def test_of_very_many_the_likeliest_are_shown() -> None:
    node = parse_node(
        "## Pitfalls\n" + "- Bind the receiver to handlers\n" * 20_000 + "- Bind the receiver\n", "AGENTS.md"
    )
    shown = find_duplicates(node, entry("Bind the receiver"))
    assert len(shown) == 20
    assert (shown[0].line, shown[0].score) == (20_002, 1)


def test_long_statements_are_shortened() -> None:
    node = parse_node("## Pitfalls\n\n" + "receiver " * 1000, "AGENTS.md")
    (duplicate,) = find_duplicates(node, entry("Receiver"), WORD_OVERLAP_THRESHOLD)
    assert len(duplicate.text) in range(990, 1001)


class Meanings:
    """Knows what means the same by a word in it."""

    def __init__(self, word: str, score: float) -> None:
        self._word = word
        self._score = score

    def compare(self, text: str, others: Sequence[str]) -> Sequence[float]:
        return [self._score if self._word in other else 0.1 for other in others]


class Broken:
    def compare(self, text: str, others: Sequence[str]) -> Sequence[float]:
        raise QueryFailed("the embedder cannot answer")


def test_meaning_finds_what_words_do_not() -> None:
    assert found("Secrets stay out of git") == ()
    (duplicate,) = found("Secrets stay out of git", similarity=Meanings(".env", 0.9))
    assert (duplicate.line, duplicate.score) == (9, 0.9)
    assert found("Secrets stay out of git", similarity=Meanings(".env", 0.7)) == ()


def test_without_meanings_words_decide() -> None:
    (duplicate,) = found("Do not commit .env files", similarity=Broken())
    assert duplicate.line == 9


@settings(max_examples=examples(200), deadline=None)
@given(st.text(), st.text())
def test_whatever_was_merged_is_found_again(title: str, detail: str) -> None:
    new = entry(" ".join(title.split()) or "-", detail)
    merged = parse_node(insert_entry(parse_node(NODE, "AGENTS.md"), new), "AGENTS.md")
    assert max(duplicate.score for duplicate in find_duplicates(merged, new)) == 1
