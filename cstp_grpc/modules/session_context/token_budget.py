"""Cuts a session context to a budget of tokens, the most useful first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from cstp_grpc.common.token_estimate import CHARACTERS_PER_TOKEN, count_tokens
from cstp_grpc.modules.session_context.markdown_rendering import render_page, render_parts
from cstp_grpc.modules.session_context.model import FittedContext, SessionContext, SessionContextPart

ITEMS_PER_ROUND: Final[Mapping[SessionContextPart, int]] = {
    SessionContextPart.REVIEWS_DUE: 2,
    SessionContextPart.FAILURES: 2,
    SessionContextPart.RELATED_INTENTS: 2,
    SessionContextPart.GUARDRAILS: 4,
    SessionContextPart.LESSONS: 3,
    SessionContextPart.SUMMARIES: 1,
    SessionContextPart.CODE: 2,
    SessionContextPart.CALIBRATION: 2,
    SessionContextPart.INPUTS: 4,
    SessionContextPart.RECENT: 2,
}
"""How many items each part adds in a round. Chosen: the first round of short items takes some 600 tokens."""


def fit_to_budget(context: SessionContext, max_tokens: int) -> FittedContext:
    """Return as much of a context as its Markdown has room for.

    Items are taken in rounds, in which every part adds a few, and the longest beginning of that order that fits is
    kept. So a larger budget has all that a smaller one has. An empty page fits into any budget that the contract
    accepts.
    """
    parts = render_parts(context)
    counts = dict.fromkeys(SessionContextPart, 0)
    best, characters = dict(counts), 0
    for part in order_in_rounds({part: len(texts) for part, texts in parts.items()}):
        characters += len(parts[part][counts[part]])
        counts[part] += 1
        # Not the first page that does not fit: one with an item more may be shorter, because a part that is complete is
        # not mentioned among those that are cut. Beyond this, no page fits.
        if characters > max_tokens * CHARACTERS_PER_TOKEN:
            break
        if count_tokens(render_page(context, parts, counts)) <= max_tokens:
            best = dict(counts)
    markdown = render_page(context, parts, best)
    return FittedContext(context.keep_first(best), context.omissions(best), markdown, count_tokens(markdown))


def order_in_rounds(sizes: Mapping[SessionContextPart, int]) -> Iterator[SessionContextPart]:
    left = dict(sizes)
    while any(left.values()):
        for part in SessionContextPart:
            taken = min(ITEMS_PER_ROUND[part], left[part])
            left[part] -= taken
            yield from [part] * taken
