"""Texts of callers are normalized in bounded time."""

from __future__ import annotations

import time
import unicodedata
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.common.unicode_text import normalize_text
from cstp_grpc.core.decisions.decision_terms import analyze_text
from cstp_grpc.core.guardrails.plain_sentences import normalize_words

# Each mark belongs before the one that it follows; U+0F73 is two marks in one, and U+FF9E counts as a letter.
UNSORTED = ["\u0300\u0316", "\u0f73", "\u0300\uff9e"]
FORMS: st.SearchStrategy[Literal["NFKC", "NFKD"]] = st.sampled_from(["NFKC", "NFKD"])


@pytest.mark.parametrize("marks", UNSORTED)
def test_any_number_of_accents_is_normalized_in_bounded_time(marks: str) -> None:
    text = "Drop a" + marks * (200_000 // len(marks)) + " table"

    started = time.process_time()
    assert normalize_text(text, "NFKC") == "Drop a table"
    assert normalize_words(text) == " drop a table "
    assert [term.text for term in analyze_text(text)] == ["drop", "tabl"]
    # Sorting them takes half a minute.
    assert time.process_time() - started < 5


@given(st.text(st.sampled_from("aé\u0301\u0316\u0f73\uff9eﬁ㎏ -"), max_size=30), FORMS)
def test_texts_of_languages_are_normalized_as_unicode_says(text: str, form: Literal["NFKC", "NFKD"]) -> None:
    assert normalize_text(text, form) == unicodedata.normalize(form, text)


def test_what_stands_among_too_many_accents_is_kept() -> None:
    assert normalize_text("㎏" * 20 + "\u0301" * 20 + "é", "NFKC") == "kg" * 20 + "é"
