"""The passages of a decision, which are embedded so that a search finds any part of it, and their vectors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.core.decisions.decision_terms import SearchedContent, cached_terms
from cstp_grpc.core.decisions.model import Decision
from cstp_grpc.core.decisions.store import PassageVectors, Vector
from cstp_grpc.platform.embedding.embedder import Embedder

PASSAGE_FORMAT = 1
"""The number of the rules in this module. It is stored with vectors, so that those of other rules are made again."""

MAX_PASSAGES = 16
"""Passages of a decision. Chosen: 13 000 characters are read whole, and the longest text costs 16 times a short one."""

PASSAGE_CHARACTERS = 900
"""Characters of a passage without its title. Chosen: all-MiniLM-L6-v2 reads 256 tokens, about 1100 characters."""

LIST_ITEM = re.compile(r"\n[ \t]*(?:[-*+]|\d{1,3}[.)])[ \t]+|\n[ \t]*\n")
"""Where a text is split into its paragraphs and the items of its lists."""

BREAK = re.compile(r"\n\s*\n+|(?<=[.!?])\s+(?=[A-Z\d\"'(])")
"""Where a text is split if it can be: at empty lines and between sentences."""


@dataclass(frozen=True, slots=True)
class Passages:
    """The texts of a decision's passages, at least one; if `has_lesson`, the last one is its lesson."""

    texts: tuple[str, ...]
    has_lesson: bool = False


def decision_passages(decision: Decision) -> Passages:
    """Return the passages of a decision: its title with each part of its context, and with its lesson.

    A context that is too long for `MAX_PASSAGES` gives passages from all over it, among them the first and the last.
    """
    title = decision.title
    lesson = lesson_passage(decision)
    count = MAX_PASSAGES - 1 if lesson else MAX_PASSAGES
    parts = spread_evenly(list(split_text(decision.context or "", PASSAGE_CHARACTERS)), count)
    texts = tuple(f"{title}\n{part}" for part in parts) or (title,)
    return Passages((*texts, lesson), has_lesson=True) if lesson else Passages(texts)


def lesson_passage(decision: Decision) -> str | None:
    """Return the title with outcome and lesson, cut to one passage; None without a lesson."""
    if not decision.notes:
        return None
    outcome = f"{decision.outcome.value}: " if decision.outcome else ""
    return f"{decision.title}\n{outcome}{decision.notes[:PASSAGE_CHARACTERS]}"


def split_text(text: str, limit: int) -> Iterator[str]:
    """Yield parts of a text with at most `limit` characters each, whole sentences if they fit."""
    part = ""
    for sentence in split_sentences(text, limit):
        if part and len(part) + 1 + len(sentence) > limit:
            yield part
            part = sentence
        else:
            part = f"{part}\n{sentence}" if part else sentence
    if part:
        yield part


def split_sentences(text: str, limit: int) -> Iterator[str]:
    """Yield the sentences of a text without blank ones; those longer than `limit` in pieces, cut at a space."""
    for piece in BREAK.split(text):
        sentence = piece.strip()
        while len(sentence) > limit:
            # In the second half only, so that no piece is a fraction of the maximum.
            space = sentence.rfind(" ", limit // 2, limit)
            cut = limit if space < 0 else space
            yield sentence[:cut].rstrip()
            sentence = sentence[cut:].lstrip()
        if sentence:
            yield sentence


def split_listed_sentences(text: str, limit: int) -> Iterator[str]:
    """Yield the sentences of the paragraphs and list items of a text as `split_sentences` does, each on one line."""
    for item in LIST_ITEM.split(f"\n{text}"):
        yield from split_sentences(" ".join(item.split()), limit)


def spread_evenly(parts: Sequence[str], count: int) -> Sequence[str]:
    """Return `count` of the parts from all over the text, in their order; all of them if they are not more."""
    if len(parts) <= count:
        return parts
    return [parts[round(place * (len(parts) - 1) / (count - 1))] for place in range(count)]


class PreparedTexts:
    """The vectors of passages, computed before the transaction that stores them.

    Embedding takes milliseconds for each text, in which all other writers would wait.
    """

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._vectors: dict[str, Vector] = {}

    def prepare(self, decisions: Iterable[Decision]) -> None:
        """Embed the passages of decisions, and work out their terms. Raises QueryFailed."""
        missing: dict[str, None] = {}
        for decision in decisions:
            cached_terms(SearchedContent.of(decision))
            missing.update((text, None) for text in decision_passages(decision).texts if text not in self._vectors)
        if missing:
            self._vectors.update(zip(missing, self._embedder.embed(list(missing)), strict=True))

    def vectors_of(self, decision: Decision) -> tuple[str, PassageVectors]:
        """Return the id of a decision with the vectors of its passages. Raises QueryFailed."""
        # Embeds only if another change came between the preparation and the transaction, which is rare.
        self.prepare([decision])
        passages = decision_passages(decision)
        vectors = np.stack([self._vectors[text] for text in passages.texts])
        return decision.id, PassageVectors(vectors, passages.has_lesson)
