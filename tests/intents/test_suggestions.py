from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.decisions.model import Decision, Match
from cstp_grpc.enums import DecisionStatus, Outcome, Severity, Visibility
from cstp_grpc.guardrails.model import Verdict, Violation
from cstp_grpc.intents.suggestions import MAX_SUGGESTIONS, build_suggestions

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def match(title: str, outcome: Outcome | None, notes: str | None = None, score: float = 0.5) -> Match:
    decision = Decision(
        id=title,
        title=title,
        status=DecisionStatus.DECIDED,
        date=NOW,
        agent="alice",
        visibility=Visibility.SHARED,
        outcome=outcome,
        notes=notes,
    )
    return Match(decision, score)


def violation(suggestion: str | None, severity: Severity) -> Violation:
    return Violation("rule", "Rule", "no", severity, suggestion)


def verdict(blocking: list[str | None] | None = None, warning: list[str | None] | None = None) -> Verdict:
    return Verdict(
        tuple(violation(text, Severity.BLOCK) for text in blocking or []),
        tuple(violation(text, Severity.WARN) for text in warning or []),
        3,
        "v",
        allowed=not blocking,
    )


def test_a_blocking_guardrail_comes_first_and_lessons_of_trouble_before_success() -> None:
    similar = [
        match("Green", Outcome.SUCCESS, "keep doing it"),
        match("Amber", Outcome.PARTIAL, "watch the pool"),
        match("Red", Outcome.FAILURE, "never on Friday"),
    ]
    assert build_suggestions(similar, verdict(["Get a review"], ["Roll out slowly"])) == [
        "Get a review",
        "A similar decision succeeded only in part: Amber. Lesson: watch the pool",
        "A similar decision failed: Red. Lesson: never on Friday",
        "Roll out slowly",
        "A similar decision succeeded: Green. Lesson: keep doing it",
    ]


def test_a_failure_without_a_lesson_still_outranks_a_success_with_one() -> None:
    similar = [match("Green", Outcome.SUCCESS, "keep doing it"), match("Red.", Outcome.FAILURE)]
    assert build_suggestions(similar, verdict()) == [
        "A similar decision failed: Red.",
        "A similar decision succeeded: Green. Lesson: keep doing it",
    ]


def test_checks_come_after_what_blocks_and_do_not_crowd_out_what_went_wrong() -> None:
    similar = [match("Green", Outcome.SUCCESS), match("Red", Outcome.FAILURE, "never on Friday")]
    checks = ["Run the contract tests", "Update  the\nclient", "Ask the owner", "Wait a day"]
    assert build_suggestions(similar, verdict(["Get a review"]), checks) == [
        "Get a review",
        "Check: Run the contract tests",
        "Check: Update the client",
        "A similar decision failed: Red. Lesson: never on Friday",
        "Check: Ask the owner",
    ]


def test_checks_that_are_blank_or_repeated_take_no_room() -> None:
    assert build_suggestions([], verdict(), ["", "Run it", "run  it", "Look"]) == ["Check: Run it", "Check: Look"]


def test_what_has_no_outcome_yet_suggests_nothing() -> None:
    assert build_suggestions([match("Open", None, "who knows")], verdict()) == []


def test_the_same_words_are_said_once() -> None:
    assert build_suggestions([], verdict(["Get a  review", None], ["get a review"])) == ["Get a  review"]


def test_a_long_lesson_is_shortened() -> None:
    (told,) = build_suggestions([match("Red", Outcome.FAILURE, "word " * 1000)], verdict())
    assert len(told) < 500
    assert told.endswith("…")


texts = st.one_of(st.none(), st.text(max_size=30))
matches = st.builds(match, st.text(min_size=1, max_size=20), st.one_of(st.none(), st.sampled_from(Outcome)), texts)
due = st.lists(st.text(max_size=30), max_size=8)
verdicts = st.builds(verdict, st.lists(texts, max_size=4), st.lists(texts, max_size=4))


@given(st.lists(matches, max_size=8), verdicts, due)
def test_there_are_at_most_five_none_empty_and_none_twice(
    similar: list[Match], judged: Verdict, checks: list[str]
) -> None:
    found = build_suggestions(similar, judged, checks)
    assert len(found) <= MAX_SUGGESTIONS
    assert all(text.strip() for text in found)
    assert len({" ".join(text.split()).casefold() for text in found}) == len(found)
    assert found == build_suggestions(similar, judged, checks)


@given(st.lists(matches, max_size=8), verdicts)
def test_a_lesson_of_trouble_never_follows_a_success(similar: list[Match], judged: Verdict) -> None:
    own = {v.suggestion for v in (*judged.violations, *judged.warnings)}
    found = [text for text in build_suggestions(similar, judged) if text not in own]
    troubles = [
        i
        for i, text in enumerate(found)
        if text.startswith(("A similar decision failed", "A similar decision succeeded only"))
    ]
    successes = [i for i, text in enumerate(found) if text.startswith("A similar decision succeeded:")]
    assert not troubles or not successes or max(troubles) < min(successes)


@given(st.lists(matches, max_size=8), verdicts, due)
def test_what_blocks_is_answered_before_all_else(similar: list[Match], judged: Verdict, checks: list[str]) -> None:
    wanted = [v.suggestion for v in judged.violations if v.suggestion and v.suggestion.strip()]
    found = build_suggestions(similar, judged, checks)
    if wanted:
        assert found[0].strip() == wanted[0].strip()
