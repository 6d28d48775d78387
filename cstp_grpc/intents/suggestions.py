"""Suggests next steps on an announcement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from cstp_grpc.decisions.model import Match
from cstp_grpc.enums import Outcome
from cstp_grpc.guardrails.model import Verdict

MAX_SUGGESTIONS = 5
MAX_LESSON = 400
"""Characters of a lesson or a check that a suggestion quotes."""
FIRST_CHECKS = 2
"""How many checks come before lessons: the code's own list must not keep what went wrong from being told."""

OUTCOME_SENTENCES = {
    Outcome.FAILURE: "A similar decision failed",
    Outcome.PARTIAL: "A similar decision succeeded only in part",
    Outcome.ABANDONED: "A similar decision was abandoned",
    Outcome.SUCCESS: "A similar decision succeeded",
}


def build_suggestions(
    similar: Sequence[Match], verdict: Verdict, checks: Sequence[str] = (), warning: str | None = None
) -> list[str]:
    """Return at most five suggestions, the most useful first and without duplicates.

    The order: how to satisfy guardrails that block; the `warning` about the confidence; the first two of the `checks`
    not made yet; lessons of failures and partial successes; how to satisfy guardrails that warn; failures and partial
    successes without a lesson; the other checks; other lessons; successes. Each group keeps the order of the verdict,
    of `checks` or of `similar` (most similar first).
    """
    return take_distinct(rank_suggestions(similar, verdict, checks, warning), MAX_SUGGESTIONS)


def rank_suggestions(
    similar: Sequence[Match], verdict: Verdict, checks: Sequence[str], warning: str | None
) -> Iterator[str]:
    """Yield every suggestion, the most useful first."""
    troubled = [match for match in similar if match.decision.outcome in (Outcome.FAILURE, Outcome.PARTIAL)]
    others = [match for match in similar if match.decision.outcome in (Outcome.SUCCESS, Outcome.ABANDONED)]
    due = [f"Check: {truncate_line(check)}" for check in checks if check.strip()]
    yield from (v.suggestion for v in verdict.violations if v.suggestion)
    if warning is not None:
        yield warning
    yield from due[:FIRST_CHECKS]
    yield from (outcome_sentence(match) for match in troubled if lesson_text(match))
    yield from (v.suggestion for v in verdict.warnings if v.suggestion)
    yield from (outcome_sentence(match) for match in troubled if not lesson_text(match))
    yield from due[FIRST_CHECKS:]
    yield from (outcome_sentence(match) for match in others if lesson_text(match))
    yield from (outcome_sentence(match) for match in others if not lesson_text(match))


def outcome_sentence(match: Match) -> str:
    """Return a sentence about the outcome of a matched decision, with its lesson if it has one."""
    assert match.decision.outcome is not None
    sentence = f"{OUTCOME_SENTENCES[match.decision.outcome]}: {match.decision.title.strip().rstrip('.')}."
    return f"{sentence} Lesson: {lesson_text(match)}" if lesson_text(match) else sentence


def lesson_text(match: Match) -> str:
    """Return a decision's notes on one line, truncated; empty if it has none."""
    return truncate_line(match.decision.notes or "")


def truncate_line(text: str) -> str:
    """Return a text on one line, truncated to `MAX_LESSON` characters."""
    text = " ".join(text.split())
    return text if len(text) <= MAX_LESSON else text[: MAX_LESSON - 1].rstrip() + "…"


def take_distinct(texts: Iterable[str], count: int) -> list[str]:
    """Return the first `count` texts, without blank ones and repetitions in other case or spacing."""
    chosen: dict[str, str] = {}
    for text in filter(str.strip, texts):
        chosen.setdefault(" ".join(text.split()).casefold(), text.strip())
        if len(chosen) == count:
            break
    return list(chosen.values())
