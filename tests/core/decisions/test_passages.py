"""The passages of decisions."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.contract.enums import DecisionStatus, Outcome, Visibility
from cstp_grpc.core.decisions.model import Decision
from cstp_grpc.core.decisions.passages import MAX_PASSAGES, PASSAGE_CHARACTERS, decision_passages, split_text


def decision(title: str = "title", **changes: object) -> Decision:
    return Decision(
        "dec-1",
        title,
        DecisionStatus.DECIDED,
        datetime(2026, 1, 1, tzinfo=UTC),
        "alice",
        Visibility.SHARED,
        **changes,  # type: ignore[arg-type]
    )


def test_a_short_decision_is_one_passage() -> None:
    assert decision_passages(decision()).texts == ("title",)
    assert decision_passages(decision(context="It is short.")).texts == ("title\nIt is short.",)


def test_the_lesson_is_the_last_passage() -> None:
    passages = decision_passages(decision(context="why", notes="never again", outcome=Outcome.FAILURE))
    assert passages.texts == ("title\nwhy", "title\nfailure: never again")
    assert passages.has_lesson
    assert not decision_passages(decision(context="why", outcome=Outcome.FAILURE)).has_lesson


def test_a_long_context_is_read_from_beginning_to_end() -> None:
    sentences = [f"Sentence number {number} says something of its own." for number in range(100)]
    texts = decision_passages(decision(context=" ".join(sentences))).texts
    assert all(text.startswith("title\n") for text in texts)
    joined = "\n".join(text.removeprefix("title\n") for text in texts)
    assert [sentence for sentence in sentences if sentence not in joined] == []


def test_a_context_that_is_too_long_gives_passages_from_all_over_it() -> None:
    sentences = [f"Sentence number {number} says something of its own." for number in range(5000)]
    texts = decision_passages(decision(context="\n\n".join(sentences), notes="lesson")).texts
    assert len(texts) == MAX_PASSAGES
    assert sentences[0] in texts[0]
    assert sentences[-1] in texts[-2]
    assert any(sentence in texts[7] for sentence in sentences[2000:3000])


@given(st.text(), st.integers(2, 50))
def test_a_text_is_split_without_loss(text: str, limit: int) -> None:
    parts = list(split_text(text, limit))
    assert all(0 < len(part) <= limit for part in parts)
    assert "".join("".join(parts).split()) == "".join(text.split())


@given(st.text(min_size=1), st.none() | st.text(max_size=5000), st.none() | st.text(max_size=2000))
def test_passages_are_few_and_bounded(title: str, context: str | None, notes: str | None) -> None:
    passages = decision_passages(decision(title, context=context, notes=notes))
    assert 1 <= len(passages.texts) <= MAX_PASSAGES
    longest = len(title) + 1 + PASSAGE_CHARACTERS
    assert all(len(text) <= longest for text in passages.texts)
    assert passages.has_lesson == bool(notes)
