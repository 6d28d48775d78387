"""The sentence of a long lesson that helps with an announcement; the rest of it is about other things."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice

import numpy as np

from cstp_grpc.core.decisions.model import Decision
from cstp_grpc.core.decisions.passages import split_listed_sentences
from cstp_grpc.core.intents.model import IntentVector

LONG_LESSON = 200
"""Characters up to which notes without a list are said whole. Chosen: people write one or two sentences; imported
sections are longer or lists."""

LEAST_SIMILARITY = 0.5
"""Similarity to the announcement from which a sentence is said (docs/adr/0036)."""

MAX_QUOTED_RECORDS = 2
MAX_SENTENCES = 24
"""Sentences of a record that are compared: those that are not cached take 2 to 5 ms each, in one batch."""
MAX_SENTENCE = 300
SHORTEST_SENTENCE = 16

LESSON_SECTION = re.compile(
    r"^#{1,6}[ \t]+(?:lessons?(?: learn(?:ed|t))?|contributing factors?|action items?|root causes?)[ \t:]*$"
    r"(.*?)(?=^#|\Z)",
    re.IGNORECASE | re.MULTILINE | re.DOTALL,
)
LISTED = re.compile(r"^[ \t]*[-*+][ \t]", re.MULTILINE)


def is_long_lesson(decision: Decision) -> bool:
    """Return True if the notes of a decision with an outcome are long or a list."""
    notes = decision.notes or ""
    return decision.outcome is not None and (len(notes) > LONG_LESSON or LISTED.search(notes) is not None)


def lesson_sentences(decision: Decision) -> list[str]:
    """Return the sentences and list items of a decision's notes, and of the sections of its context that teach."""
    texts = (decision.notes or "", *LESSON_SECTION.findall(decision.context or ""))
    sentences = (sentence for text in texts for sentence in split_listed_sentences(text, MAX_SENTENCE))
    distinct = dict.fromkeys(sentence for sentence in sentences if len(sentence) >= SHORTEST_SENTENCE)
    return list(islice(distinct, MAX_SENTENCES))


async def quote_lessons(
    decisions: Iterable[Decision], intent: str, embed: Callable[[Sequence[str]], Awaitable[Sequence[IntentVector]]]
) -> dict[str, str]:
    """Return the sentence of each long lesson that helps with an intent, by decision; "" if none does.

    Most announcements find no long lesson, and nothing is embedded. Raises QueryFailed.
    """
    long = [decision for decision in decisions if is_long_lesson(decision)]
    # Only the most relevant records are worth the time; the others stay silent.
    lessons = dict.fromkeys((decision.id for decision in long), "")
    for decision in long[:MAX_QUOTED_RECORDS]:
        sentences = lesson_sentences(decision)
        # At once, since an embedder may be an endpoint.
        vector, *others = await embed([intent, *sentences])
        found = [(float(np.vdot(other, vector)), each) for other, each in zip(others, sentences, strict=True)]
        similarity, sentence = max(found, default=(0.0, ""))
        if similarity >= LEAST_SIMILARITY:
            lessons[decision.id] = sentence
    return lessons
