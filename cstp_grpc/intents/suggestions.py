"""What past decisions, guardrails and the checks on the code suggest for an intent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from cstp_grpc.decisions.model import Match
from cstp_grpc.guardrails.model import Verdict
from cstp_grpc.vocabulary import Outcome

MAX_SUGGESTIONS = 5
MAX_LESSON = 400
"""Characters of a lesson or a check that a suggestion quotes."""
FIRST_CHECKS = 2
"""How many checks come before lessons: the code's own list must not keep what went wrong from being told."""

TOLD = {
    Outcome.FAILURE: "A similar decision failed",
    Outcome.PARTIAL: "A similar decision succeeded only in part",
    Outcome.ABANDONED: "A similar decision was abandoned",
    Outcome.SUCCESS: "A similar decision succeeded",
}


def suggest(similar: Sequence[Match], verdict: Verdict, checks: Sequence[str] = ()) -> list[str]:
    """Return at most five suggestions, the most useful first and none twice.

    The order: how to satisfy guardrails that block; the first two of the `checks` that are still to be made; lessons of
    failures and partial successes; how to satisfy guardrails that warn; failures and partial successes without a
    lesson; the other checks; other lessons; successes. Within each group the order of the verdict, of `checks` or of
    `similar` (most similar first) holds.
    """
    return first_distinct(ranked(similar, verdict, checks), MAX_SUGGESTIONS)


def ranked(similar: Sequence[Match], verdict: Verdict, checks: Sequence[str]) -> Iterator[str]:
    """Yield every suggestion, the most useful first."""
    troubled = [match for match in similar if match.decision.outcome in (Outcome.FAILURE, Outcome.PARTIAL)]
    others = [match for match in similar if match.decision.outcome in (Outcome.SUCCESS, Outcome.ABANDONED)]
    due = [f"Check: {shortened(check)}" for check in checks if check.strip()]
    yield from (v.suggestion for v in verdict.violations if v.suggestion)
    yield from due[:FIRST_CHECKS]
    yield from (told(match) for match in troubled if lesson(match))
    yield from (v.suggestion for v in verdict.warnings if v.suggestion)
    yield from (told(match) for match in troubled if not lesson(match))
    yield from due[FIRST_CHECKS:]
    yield from (told(match) for match in others if lesson(match))
    yield from (told(match) for match in others if not lesson(match))


def told(match: Match) -> str:
    """Return what happened with a decision whose outcome is known, and its lesson where there is one."""
    assert match.decision.outcome is not None
    sentence = f"{TOLD[match.decision.outcome]}: {match.decision.title.strip().rstrip('.')}."
    return f"{sentence} Lesson: {lesson(match)}" if lesson(match) else sentence


def lesson(match: Match) -> str:
    """Return a decision's notes on one line, shortened; empty where it has none."""
    return shortened(match.decision.notes or "")


def shortened(text: str) -> str:
    """Return a text on one line, cut where it is long."""
    text = " ".join(text.split())
    return text if len(text) <= MAX_LESSON else text[: MAX_LESSON - 1].rstrip() + "…"


def first_distinct(texts: Iterable[str], count: int) -> list[str]:
    """Return the first `count` texts, leaving out blank ones and repetitions in other case or spacing."""
    chosen: dict[str, str] = {}
    for text in filter(str.strip, texts):
        chosen.setdefault(" ".join(text.split()).casefold(), text.strip())
        if len(chosen) == count:
            break
    return list(chosen.values())
