"""The terms of texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.core.decisions.decision_terms import analyze_text, hash_term, pair_words, stem_word
from tests.named_case import named_case


def words(text: str) -> list[str]:
    return [term.text for term in analyze_text(text) if not term.is_unit]


def units(text: str) -> set[str]:
    return {term.text for term in analyze_text(text) if term.is_unit}


def test_spellings_of_an_identifier_have_one_unit() -> None:
    for unit, spellings in [
        ("pep 703", ["PEP 703", "pep-0703", "PEP703", "see pep_703.", "(PEP #703)"]),
        ("abc 123", ["ABC-123", "abc 123", "ABC-123: title"]),
        ("v 3 7", ["v3.7", "V3.7"]),
        (
            "max connections",
            ["max_connections", "maxConnections", "MaxConnections", "max-connections", "MAX__CONNECTIONS"],
        ),
        ("http server", ["HTTPServer", "http_server"]),
        ("db pool py", ["db/pool.py", "`db/pool.py`", "db\\pool.py"]),
        ("err conn reset", ["ERR_CONN_RESET", "err-conn-reset"]),
        ("10 1 0 0 16", ["10.1.0.0/16"]),
    ]:
        with named_case(unit, spellings):
            for spelling in spellings:
                assert unit in units(spelling), spelling


def test_parts_of_an_identifier_are_words_too() -> None:
    assert words("PEP-0703 in db/pool.py") == ["pep", "703", "db", "pool", "py"]


def test_neighbours_in_an_identifier_are_units_too() -> None:
    assert {"db pool", "pool py"} <= units("db/pool.py")


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("Adopt a lock file format", ["lock fil", "fil format"]),
        ("lock. File", []),
        ("lock: file\nlock", []),
        ("PEP 751 files", []),
        ("read db/pool.py twice", ["read db", "py twic"]),
        ("", []),
    ],
)
def test_pairs_are_words_beside_each_other(text: str, pairs: list[str]) -> None:
    assert list(pair_words(text)) == pairs


@pytest.mark.parametrize("text", ["use a cache", "the end. 12 more", "requirementsspecification 7", "in 2019"])
def test_what_only_looks_like_an_identifier_has_no_unit(text: str) -> None:
    assert units(text) == set()


@pytest.mark.parametrize(
    "forms",
    [
        ["cache", "caches", "cached", "caching"],
        ["policy", "policies"],
        ["stop", "stopped", "stopping", "stops"],
        ["query", "queries", "queried"],
        ["pass", "passed", "passing"],
    ],
)
def test_inflected_words_have_one_stem(forms: list[str]) -> None:
    assert len({stem_word(form) for form in forms}) == 1


def test_case_accents_and_stop_words_do_not_count() -> None:
    assert words("Das CAFÉ of the users' wouldn't") == ["das", "caf", "user"]
    assert words("STRASSE") == words("Straße")


def test_scripts_without_spaces_are_split_into_pairs() -> None:
    assert words("移行戦略") == ["移行", "行戦", "戦略"]
    assert set(words("戦略")) <= set(words("移行戦略"))


@given(st.text())
def test_any_text_has_terms_that_are_found_again(text: str) -> None:
    terms = analyze_text(text)
    assert terms == analyze_text(text)
    assert all(term.text.strip() == term.text for term in terms)
    assert all(0 <= hash_term(term.text) < 2**32 for term in terms)


def test_hashes_never_change() -> None:
    assert hash_term("pep 703") == 829389501
