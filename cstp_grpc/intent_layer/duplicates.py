"""What a node says already that is likely the same as something learned."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from cstp_grpc.errors import QueryFailed
from cstp_grpc.intent_layer.markdown import LINE_END, Document, SectionSpan, block_tokens
from cstp_grpc.intent_layer.marks import MARK_PATTERN
from cstp_grpc.intent_layer.merging import Entry
from cstp_grpc.intent_layer.model import Duplicate

THRESHOLD = 0.6
"""From which overlap of words two entries are likely the same.

Of the pairs in the tests, reworded ones share 0.6 to 1 of their words, different ones about the same thing at most 0.5.
"""
MEANING_THRESHOLD = 0.8
"""From which likeness of meaning they are; sentence embeddings put different facts about one thing at 0.5 to 0.75."""
MAX_DUPLICATES = 20
"""How many are shown; more tell a reviewer nothing."""
MAX_TEXT = 1000
"""How many characters of what a node says are shown."""

WORD = re.compile(r"[^\W_]+")
CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
MARK_LINE = re.compile(rf"^[ \t]*{MARK_PATTERN}[ \t]*$", re.MULTILINE)
BULLET = re.compile(r"\s*(?:#+|[-*+]|\d+[.)])?\s*(?:\[[ xX]\])?\s*")
FILLING = """
    a about after all also always an and any are as at be because been before being but by can cannot could do does
    don done each else even every few for from get gets go goes had has have here how if in into is it its just may
    might more most must need needs never no not of on once only or other our out over own same shall should since
    so some such than that the their them then there these they this those through to too under until up us use used
    uses using very via was we were what when where which while who why will with would you your
"""
STOP_WORDS = frozenset(FILLING.split())


class Similarity(Protocol):
    """Tells how alike texts are in what they mean."""

    def compare(self, text: str, others: Sequence[str]) -> Sequence[float]:
        """Return for each of the others how alike it is, 0 to 1. Raises QueryFailed."""


@dataclass(frozen=True, slots=True)
class _Statement:
    """Something that a node says, from a line up to another, excluded."""

    line: int
    end: int
    text: str

    @property
    def head(self) -> str:
        return self.text.partition("\n")[0]


def find_duplicates(
    document: Document, entry: Entry, threshold: float = THRESHOLD, similarity: Similarity | None = None
) -> tuple[Duplicate, ...]:
    """Return what a node says that is likely the same as an entry, the likeliest first, in whichever section.

    Statements are what stands under a heading of level 3 or below, items of lists, and paragraphs. Their words, or
    those of their first line and of the entry's title, overlap by `threshold` (Jaccard, without filling words), or
    they mean the same. Where meanings cannot be compared, words decide. What came from the same report is certain.
    """
    statements = [statement for span in document.spans for statement in _statements(document, span)]
    meanings = _meanings(entry, statements, similarity)
    scored = [
        (_score(entry, statement, threshold, meaning), statement)
        for statement, meaning in zip(statements, meanings, strict=True)
    ]
    likely = sorted(
        ((score, statement) for score, statement in scored if score is not None),
        key=lambda each: (-each[0], each[1].end - each[1].line, each[1].line),
    )
    chosen: list[tuple[float, _Statement]] = []
    for score, statement in likely:
        if len(chosen) == MAX_DUPLICATES:
            break
        if all(statement.end <= other.line or other.end <= statement.line for _, other in chosen):
            chosen.append((score, statement))
    return tuple(Duplicate(document.file, each.line, _shown(each.text), score) for score, each in chosen)


def significant_words(text: str) -> frozenset[str]:
    """Return the words that tell texts apart: without case, filling words and the s of the plural."""
    words = WORD.findall(CAMEL.sub(" ", text).casefold())
    return frozenset(_singular(word) for word in words if word not in STOP_WORDS)


def overlap(first: str, second: str) -> float:
    """Return how many of the significant words of two texts are in both, 0 to 1; 0 where there are none."""
    ours, theirs = significant_words(first), significant_words(second)
    return len(ours & theirs) / len(ours | theirs) if ours and theirs else 0.0


def _score(entry: Entry, statement: _Statement, threshold: float, meaning: float) -> float | None:
    """Return how alike they are; None where not enough."""
    if entry.mark in statement.text:
        return 1.0
    said = MARK_LINE.sub("", statement.text)
    words = max(
        overlap(f"{entry.title}\n{entry.detail}", said), overlap(entry.title, BULLET.sub("", statement.head, 1))
    )
    return max(words, meaning) if words >= threshold or meaning >= MEANING_THRESHOLD else None


def _meanings(entry: Entry, statements: Sequence[_Statement], similarity: Similarity | None) -> Sequence[float]:
    if similarity and statements:
        with suppress(QueryFailed):
            texts = [MARK_LINE.sub("", statement.text).strip() for statement in statements]
            return [min(max(score, 0.0), 1.0) for score in similarity.compare(f"{entry.title}\n{entry.detail}", texts)]
    return [0.0] * len(statements)


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _shown(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1].rstrip() + "…"


def _statements(document: Document, span: SectionSpan) -> Iterator[_Statement]:
    """Yield what a section says; what stands under a heading as a whole, and the items in it."""
    lines = LINE_END.split(document.body(span))
    tokens = block_tokens("\n".join(lines))
    blocks = [token for token in tokens if token.map and token.level == 0 and token.nesting >= 0]
    headings = [token.map[0] for token in blocks if token.type == "heading_open" and token.map]
    for start, end in pairwise([*headings, len(lines)]):
        yield _statement(span, lines, start, end)
    for token in tokens:
        item = token.type == "list_item_open" and token.level == 1
        paragraph = token.type == "paragraph_open" and token.level == 0
        if token.map and (item or (paragraph and not any(start < token.map[0] for start in headings))):
            yield _statement(span, lines, *token.map)


def _statement(span: SectionSpan, lines: Sequence[str], start: int, end: int) -> _Statement:
    return _Statement(span.body_line + start, span.body_line + end, "\n".join(lines[start:end]).rstrip())
