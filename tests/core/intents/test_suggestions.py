"""What is suggested, and what is not worth saying."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.contract.enums import DecisionStatus, Outcome, Severity, Visibility
from cstp_grpc.core.decisions.model import Decision, Match
from cstp_grpc.core.decisions.store import DecisionBackground, NeededBackground
from cstp_grpc.core.guardrails.model import MissingInput, Verdict, Violation
from cstp_grpc.core.intents.model import Intent, IntentClosing, SharedIntent, Suggestion, SuggestionBars, SuggestionKind
from cstp_grpc.core.intents.related_intents import RelatedIntent
from cstp_grpc.core.intents.suggestions import (
    DECISION_SECTION,
    MAX_SUGGESTIONS,
    SuggestionSources,
    build_suggestions,
    find_needed_background,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
BARS = SuggestionBars(teaching=0.4, bare=0.6, related=0.5)
REBUILD = "Rebuild the orders search index tonight"


def match(
    title: str, outcome: Outcome | None = None, notes: str | None = None, score: float = 0.5, **more: Any
) -> Match:
    decision = Decision(
        id=title,
        title=title,
        status=DecisionStatus.REVIEWED if outcome else DecisionStatus.DECIDED,
        date=NOW,
        agent="alice",
        visibility=Visibility.SHARED,
        outcome=outcome,
        notes=notes,
    )
    return Match(replace(decision, **more), score)


def violation(suggestion: str | None, severity: Severity, missing: tuple[MissingInput, ...] = ()) -> Violation:
    return Violation("rule", "Rule", "no", severity, suggestion, missing_inputs=missing)


def verdict(blocking: list[str | None] | None = None, warning: list[str | None] | None = None) -> Verdict:
    return Verdict(
        tuple(violation(text, Severity.BLOCK) for text in blocking or []),
        tuple(violation(text, Severity.WARN) for text in warning or []),
        3,
        "v",
        allowed=not blocking,
    )


def related(
    score: float = 0.9, closing: IntentClosing | None = None, minutes: float = 5, *, allowed: bool | None = True
) -> RelatedIntent:
    received = NOW - timedelta(minutes=minutes)
    intent = Intent("bob", "c-1", "", received, intent=REBUILD, visibility=Visibility.SHARED, closing=closing)
    return RelatedIntent(SharedIntent(intent, np.zeros(1, np.float32), allowed), score)


def closing(outcome: Outcome, notes: str | None = None) -> IntentClosing:
    return IntentClosing(NOW - timedelta(hours=2), outcome, notes)


def suggest(*similar: Match, **more: Any) -> list[Suggestion]:
    sources = SuggestionSources(similar, verdict(), NOW, "alice", BARS)
    return build_suggestions(replace(sources, **more))


def said(*similar: Match, **more: Any) -> list[str]:
    return [suggestion.text for suggestion in suggest(*similar, **more)]


def test_a_blocking_guardrail_comes_first_and_lessons_of_trouble_before_success() -> None:
    similar = [
        match("Green", Outcome.SUCCESS, "keep doing it"),
        match("Amber", Outcome.PARTIAL, "watch the pool"),
        match("Red", Outcome.FAILURE, "never on Friday"),
    ]
    assert said(*similar, verdict=verdict(["Get a review"], ["Roll out slowly"])) == [
        "Get a review",
        "A similar decision succeeded only in part: Amber. Lesson: watch the pool",
        "A similar decision failed: Red. Lesson: never on Friday",
        "Roll out slowly",
        "A similar decision succeeded: Green. Lesson: keep doing it",
    ]


def deploy(
    number: int, outcome: Outcome | None = None, hidden: int = 0, outcomes: tuple[Outcome, ...] = (), lesson: str = ""
) -> Match:
    found = match(f"Deploy billing v3.{number}", outcome, lesson or None)
    return replace(found, similar_count=hidden, similar_outcomes=outcomes)


FAILED_DEPLOY = deploy(4, Outcome.FAILURE, lesson="Drain the queue")


@pytest.mark.parametrize(
    ("listed", "sentence"),
    [
        ([deploy(1, Outcome.SUCCESS, 5, (Outcome.SUCCESS,))], "One of 7 similar decisions failed"),
        ([deploy(1, Outcome.SUCCESS), deploy(2)], "One of 3 similar decisions failed"),
        ([deploy(1, Outcome.SUCCESS)], "A similar decision failed"),
        (
            [deploy(1, Outcome.SUCCESS, 5, (Outcome.SUCCESS, Outcome.FAILURE))],
            "At least one of 7 similar decisions failed",
        ),
        ([deploy(1, Outcome.PARTIAL), deploy(2)], "At least one of 3 similar decisions failed"),
        ([match("Deploy shipping v3.1", Outcome.SUCCESS)] * 2, "A similar decision failed"),
    ],
)
def test_a_failure_in_a_series_says_of_how_many(listed: list[Match], sentence: str) -> None:
    assert said(*listed, FAILED_DEPLOY) == [f"{sentence}: Deploy billing v3.4. Lesson: Drain the queue"]


def test_a_failure_that_stands_for_others_is_one_of_them_at_least() -> None:
    series = replace(FAILED_DEPLOY, similar_count=4, similar_outcomes=(Outcome.FAILURE, Outcome.SUCCESS))
    assert said(series) == ["At least one of 5 similar decisions failed: Deploy billing v3.4. Lesson: Drain the queue"]


def test_a_suggestion_says_what_it_rests_on() -> None:
    found = suggest(
        match("Red", Outcome.FAILURE, "never on Friday"),
        verdict=verdict(["Get a review"]),
        related=[related(0.75)],
        checks=["Run it"],
    )
    assert [(each.kind, each.decision_ids, each.guardrail_id, each.relevance, each.outcome) for each in found] == [
        (SuggestionKind.GUARDRAIL, (), "rule", None, None),
        (SuggestionKind.RELATED_INTENT, (), None, 0.75, None),
        (SuggestionKind.CHECK, (), None, None, None),
        (SuggestionKind.LESSON, ("Red",), None, 0.5, Outcome.FAILURE),
    ]
    assert found[1].intent == ("bob", "c-1", 1)


def test_nothing_more_is_read_of_what_is_hardly_relevant_or_of_others() -> None:
    old = match("Old", Outcome.SUCCESS, status=DecisionStatus.SUPERSEDED, score=0.39)
    old = replace(old, superseded_by="New")
    assert find_needed_background([old, match("Theirs", agent="bob"), match("Known", notes="x")], "alice", BARS) is None


def test_a_title_alone_is_not_worth_saying() -> None:
    assert said(match("Green", Outcome.SUCCESS, score=1), match("Open", score=1), match("Amber", Outcome.PARTIAL)) == []


def test_a_failure_without_a_lesson_is_said_if_it_is_very_similar() -> None:
    assert said(match("Red.", Outcome.FAILURE, score=0.59)) == []
    assert said(match("Red.", Outcome.FAILURE, score=0.6)) == [
        "A very similar decision failed: Red. No lesson is noted; alice made it"
    ]


def test_what_is_listed_but_hardly_relevant_teaches_nothing() -> None:
    assert said(match("Red", Outcome.FAILURE, "never on Friday", score=0.39)) == []


def test_the_bars_lie_between_what_is_listed_and_what_is_the_same() -> None:
    bars = SuggestionBars.above(0.2, 0.4)
    assert 0.2 < bars.teaching < bars.bare < 1
    assert 0.4 < bars.related < 1
    assert SuggestionBars.above(1, 1) == SuggestionBars(1, 1, 1)


def test_a_superseded_decision_is_said_to_be_superseded_by_what_and_with_its_lesson() -> None:
    new = match("Use Redis", Outcome.SUCCESS, "size it", score=0.41)
    old = replace(
        match("Use memcached.", Outcome.PARTIAL, "it forgets", status=DecisionStatus.SUPERSEDED),
        superseded_by="Use Redis",
    )
    assert find_needed_background([new, old], "bob", BARS) is None
    assert find_needed_background([old], "bob", BARS) == NeededBackground(successors=("Use memcached.",))
    (alone,) = suggest(old, background=DecisionBackground(successors={"Use memcached.": new.decision}))
    found = suggest(new, old)
    assert found[0] == alone
    assert [each.text for each in found] == [
        '"Use memcached" was superseded by "Use Redis". Lesson: it forgets',
        "A similar decision succeeded: Use Redis. Lesson: size it",
    ]
    assert (found[0].kind, found[0].decision_ids, found[0].outcome) == (
        SuggestionKind.SUPERSEDED,
        ("Use memcached.", "Use Redis"),
        Outcome.SUCCESS,
    )


def test_a_decision_that_was_superseded_by_something_else_is_not_to_be_relied_on() -> None:
    (text,) = said(match("Use memcached", Outcome.SUCCESS, status=DecisionStatus.SUPERSEDED))
    assert text == '"Use memcached" was superseded; look for its successor before you rely on it'


def test_own_decisions_without_an_outcome_are_precedents_if_they_teach_something() -> None:
    acm = "# 3. Use ACM\n\n## Context\n\nWe need certificates.\n\n## Decision\n\nWe will use ACM\nfor all.\n\nMore.\n"
    madr = "## Decision Outcome\n\n* Chosen option: madr, because it is lean\n* more\n"
    similar = [
        match("Use ACM"),
        match("Use Vault", notes="Seal it"),
        match("Use madr"),
        match("Say nothing", context="We met.\n\n## Context\n\nIt rained.\n"),
        match("Think", status=DecisionStatus.PROPOSED, notes="not yet"),
        match("Of another", agent="bob", notes="theirs"),
    ]
    assert find_needed_background(similar, "alice", BARS) == NeededBackground(("Use ACM", "Use madr"))
    background = DecisionBackground({"Use ACM": acm, "Use madr": madr})
    assert said(*similar, background=background) == [
        'You have decided on "Use ACM": We will use ACM for all.',
        'You have decided on "Use Vault": Seal it',
        'You have decided on "Use madr": Chosen option: madr, because it is lean',
    ]


def test_open_intents_of_others_come_before_what_the_past_teaches() -> None:
    failed = match("Red", Outcome.FAILURE, "never on Friday")
    assert said(failed, related=[related(minutes=5), related(minutes=90), related(minutes=0)]) == [
        f"bob announced this 5 minutes ago and has not closed it: {REBUILD}",
        f"bob announced this 1 hour ago and has not closed it: {REBUILD}",
        "A similar decision failed: Red. Lesson: never on Friday",
    ]


def test_intents_that_are_hardly_alike_blocked_or_closed_with_success_are_only_listed() -> None:
    assert said(related=[related(0.49), related(allowed=False), related(closing=closing(Outcome.SUCCESS))]) == []


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (Outcome.FAILURE, f"bob failed with this 2 hours ago: {REBUILD}. Lesson: the disk was full"),
        (Outcome.ABANDONED, f"bob gave up this 2 hours ago: {REBUILD}. Lesson: the disk was full"),
        (Outcome.PARTIAL, f"bob succeeded only in part with this 2 hours ago: {REBUILD}. Lesson: the disk was full"),
    ],
)
def test_intents_that_others_did_not_succeed_with_are_said(outcome: Outcome, text: str) -> None:
    (found,) = suggest(related=[related(closing=closing(outcome, "the disk\nwas full"))])
    assert (found.text, found.outcome) == (text, outcome)


def deployment(number: int, outcome: Outcome, *tags: str, title: str = "Deploy", **more: Any) -> Match:
    return match(f"{title} {number}", outcome, tags=tags, **more)


def test_a_tag_that_only_failures_have_is_said() -> None:
    found = suggest(
        deployment(1, Outcome.FAILURE, "friday", "eu"),
        deployment(2, Outcome.PARTIAL, "Friday"),
        deployment(3, Outcome.FAILURE, "eu"),
        deployment(4, Outcome.SUCCESS, "eu"),
        deployment(5, Outcome.SUCCESS),
    )
    assert [each.text for each in found] == [
        "2 of the 3 similar decisions that failed have the tag friday; none of the 2 that succeeded has it"
    ]
    assert (found[0].kind, found[0].decision_ids, found[0].outcome) == (
        SuggestionKind.CONDITION,
        ("Deploy 1", "Deploy 2"),
        None,
    )


def test_a_tag_that_only_successes_have_is_said() -> None:
    assert said(
        deployment(1, Outcome.FAILURE),
        deployment(2, Outcome.FAILURE),
        deployment(3, Outcome.SUCCESS, "canary"),
        deployment(4, Outcome.SUCCESS, "canary"),
    ) == ["2 of the 2 similar decisions that succeeded have the tag canary; none of the 2 that failed has it"]


def test_a_word_of_the_intent_that_only_failures_mention_is_said() -> None:
    similar = [
        deployment(1, Outcome.FAILURE, title="Deploy on Friday"),
        deployment(2, Outcome.FAILURE),
        deployment(3, Outcome.FAILURE, agent="bob", context="On friday, which only bob may know"),
        deployment(4, Outcome.SUCCESS),
        deployment(5, Outcome.SUCCESS),
    ]
    assert find_needed_background(similar, "alice", BARS) == NeededBackground(
        ("Deploy on Friday 1", "Deploy 2", "Deploy 4", "Deploy 5")
    )
    background = DecisionBackground({"Deploy 2": "Late on friday"})
    assert said(*similar, text="Deploy it this Friday", background=background) == [
        '2 of the 3 similar decisions that failed mention "friday", as you do; none of the 2 that succeeded does'
    ]
    assert said(*similar, text="Deploy it this Monday", background=background) == []


def test_single_failures_or_successes_distinguish_nothing() -> None:
    assert said(deployment(1, Outcome.FAILURE, "friday"), *[deployment(n, Outcome.SUCCESS) for n in (2, 3)]) == []
    assert said(deployment(1, Outcome.SUCCESS), *[deployment(n, Outcome.FAILURE, "friday") for n in (2, 3)]) == []


def test_a_guardrail_without_a_suggestion_names_the_inputs_that_it_lacks() -> None:
    missing = (MissingInput("reviewed", "bool"), MissingInput("window", "string"))
    blocked = Verdict((violation(None, Severity.BLOCK, missing),), (), 1, "v", allowed=False)
    assert said(verdict=blocked) == ["State reviewed, window in the metadata: the guardrail Rule reads it"]


def test_a_confidence_that_meant_something_else_is_said() -> None:
    assert said(warning="your 0.9 has meant 0.6", checks=["Run it"]) == ["your 0.9 has meant 0.6", "Check: Run it"]


def test_checks_come_after_what_blocks_and_do_not_crowd_out_what_went_wrong() -> None:
    similar = [match("Green", Outcome.SUCCESS), match("Red", Outcome.FAILURE, "never on Friday")]
    checks = ["Run the contract tests", "Update  the\nclient", "Ask the owner", "Wait a day"]
    assert said(*similar, verdict=verdict(["Get a review"]), checks=checks) == [
        "Get a review",
        "Check: Run the contract tests",
        "Check: Update the client",
        "A similar decision failed: Red. Lesson: never on Friday",
        "Check: Ask the owner",
    ]


def test_checks_that_are_blank_or_repeated_take_no_room() -> None:
    assert said(checks=["", "Run it", "run  it", "Look"]) == ["Check: Run it", "Check: Look"]


def test_the_same_words_are_said_once() -> None:
    assert said(verdict=verdict(["Get a  review", None], ["get a review"])) == ["Get a  review"]


def test_a_long_lesson_is_shortened() -> None:
    (told,) = said(match("Red", Outcome.FAILURE, "word " * 1000))
    assert len(told) < 500
    assert told.endswith("…")


texts = st.one_of(st.none(), st.text(max_size=30))
matches = st.builds(
    match,
    st.text(min_size=1, max_size=20),
    st.one_of(st.none(), st.sampled_from(Outcome)),
    texts,
    st.floats(-1, 1),
    status=st.sampled_from(DecisionStatus),
    tags=st.lists(st.sampled_from("abc"), max_size=2).map(tuple),
    context=texts,
)
closings = st.one_of(st.none(), st.builds(closing, st.sampled_from(Outcome), texts))
intents = st.builds(
    related, st.floats(0, 1), closings, st.floats(0, 2000), allowed=st.sampled_from([None, True, False])
)
due = st.lists(st.text(max_size=30), max_size=8)
verdicts = st.builds(verdict, st.lists(texts, max_size=4), st.lists(texts, max_size=4))
sources = st.builds(
    SuggestionSources,
    st.lists(matches, max_size=8),
    verdicts,
    st.just(NOW),
    st.sampled_from(["alice", "bob"]),
    st.just(BARS),
    due,
    st.lists(intents, max_size=5),
    st.one_of(st.none(), st.text(min_size=1, max_size=30).filter(str.strip)),
    st.text(max_size=30),
)


@given(sources)
def test_there_are_at_most_five_none_empty_and_none_twice(drawn: SuggestionSources) -> None:
    found = build_suggestions(drawn)
    assert len(found) <= MAX_SUGGESTIONS
    assert all(suggestion.text.strip() for suggestion in found)
    assert len({" ".join(suggestion.text.split()).casefold() for suggestion in found}) == len(found)
    assert all(suggestion.relevance is None or 0 <= suggestion.relevance <= 1 for suggestion in found)
    assert found == build_suggestions(drawn)


@given(sources)
def test_nothing_rests_on_what_is_hardly_relevant(drawn: SuggestionSources) -> None:
    known = {item.decision.id for item in drawn.similar if item.score >= BARS.teaching}
    for suggestion in build_suggestions(drawn):
        assert known.issuperset(suggestion.decision_ids[:1])
        if suggestion.intent is not None:
            assert suggestion.relevance is not None
            assert suggestion.relevance >= BARS.related


@given(sources)
def test_a_lesson_of_trouble_never_follows_one_of_success(drawn: SuggestionSources) -> None:
    lessons = [each.outcome for each in build_suggestions(drawn) if each.kind is SuggestionKind.LESSON]
    successes = [position for position, outcome in enumerate(lessons) if outcome is Outcome.SUCCESS]
    assert successes == list(range(len(lessons) - len(successes), len(lessons)))


@given(sources)
def test_what_blocks_is_answered_before_all_else(drawn: SuggestionSources) -> None:
    wanted = [v.suggestion for v in drawn.verdict.violations if v.suggestion and v.suggestion.strip()]
    found = build_suggestions(drawn)
    if wanted:
        assert found[0].text == wanted[0].strip()


@pytest.mark.parametrize(
    ("section", "statement"),
    [
        ("We do:\n\n* one\n* two\n\nAnd more.", "We do: one; two"),
        ("We do:\n\n1. one\n2) two", "We do: one; two"),
        ("We do:", "We do:"),
        ("We do:\n\n## Consequences\n\n* none", "We do:"),
        ("We do it.\n\n* because", "We do it."),
    ],
)
def test_what_was_decided_may_be_a_list(section: str, statement: str) -> None:
    precedent = match("Own", context=f"## Decision\n\n{section}\n", score=0.9)
    background = DecisionBackground({"Own": precedent.decision.context or ""}, {})
    assert said(match("Own", score=0.9), background=background) == [f'You have decided on "Own": {statement}']


def test_a_heading_of_many_spaces_is_looked_through_once() -> None:
    # With two runs of spaces beside each other, the search would take minutes.
    assert DECISION_SECTION.search("# Decision" + " " * 200_000 + "x") is None


def test_of_a_long_lesson_the_sentence_that_helps_is_quoted() -> None:
    notes = "Better dashboards. " * 30
    helps = DecisionBackground(lessons={"Upgrade DNS": "Read the vendor's release notes, too."})
    assert said(match("Upgrade DNS", Outcome.FAILURE, notes), background=helps) == [
        "A similar decision failed: Upgrade DNS. Lesson: Read the vendor's release notes, too."
    ]


def test_a_long_lesson_without_a_sentence_that_helps_is_silent() -> None:
    failed = match("Upgrade DNS", Outcome.FAILURE, "Better dashboards. " * 30, score=0.9)
    assert said(failed, background=DecisionBackground(lessons={"Upgrade DNS": ""})) == []


def test_the_contexts_of_own_long_lessons_are_needed() -> None:
    own = match("Upgrade DNS", Outcome.FAILURE, "Better dashboards. " * 30)
    other = match("Upgrade the mesh", Outcome.FAILURE, "Better dashboards. " * 30, agent="bob")
    needed = find_needed_background([own, other, match("Upgrade", Outcome.FAILURE, "Short.")], "alice", BARS)
    assert needed == NeededBackground(("Upgrade DNS",))
