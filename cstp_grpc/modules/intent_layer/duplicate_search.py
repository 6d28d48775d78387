"""The search for likely duplicates of a learning: statements of a node, and other learnings."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Protocol

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.common.unicode_text import truncate_text
from cstp_grpc.contract.errors import InvalidArgument, QueryFailed, Unavailable
from cstp_grpc.modules.intent_layer import node_document
from cstp_grpc.modules.intent_layer.learning_merge import NodeEntry, covering_node, new_node_file
from cstp_grpc.modules.intent_layer.model import ROOT, DuplicateMatch, Learning
from cstp_grpc.modules.intent_layer.project_tree import ProjectTree

WORD_OVERLAP_THRESHOLD = 0.6
"""Word overlap (Jaccard) from which two entries are likely the same.

Measured on the pairs in the tests: reworded ones share 0.6 to 1 of their words, different ones about the same thing at
most 0.5.
"""
MEANING_THRESHOLD = 0.8
"""Cosine similarity from which they are. Measured: different facts about one subject have 0.5 to 0.75."""
MAX_DUPLICATES = 20
"""Duplicates in an answer at most. Chosen: a reviewer reads a few."""
MAX_TEXT = 1000
"""Characters of a statement in an answer at most."""

WORD = re.compile(r"[^\W_]+")
CAMEL_CASE_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
SOURCE_LINE_REGEX = re.compile(rf"^[ \t]*{node_document.SOURCE_LINE_PATTERN}[ \t]*$", re.MULTILINE)
BULLET = re.compile(r"\s*(?:#+|[-*+]|\d+[.)])?\s*(?:\[[ xX]\])?\s*")
STOP_WORD_TEXT = """
    a about after all also always an and any are as at be because been before being but by can cannot could do does
    don done each else even every few for from get gets go goes had has have here how if in into is it its just may
    might more most must need needs never no not of on once only or other our out over own same shall should since
    so some such than that the their them then there these they this those through to too under until up us use used
    uses using very via was we were what when where which while who why will with would you your
"""
STOP_WORDS = frozenset(STOP_WORD_TEXT.split())


class TextSimilarity(Protocol):
    """Compares the meaning of texts."""

    def compare(self, text: str, others: Sequence[str]) -> Sequence[float]:
        """Return the similarity of the text to each of the others, from 0 to 1. Raises QueryFailed."""


class StatementsChanged(Exception):
    """A statement has not been compared yet, and no comparison is allowed now."""


class RecordedSimilarity:
    """The similarities that were computed for one review; once `is_complete`, it computes no more."""

    def __init__(self, inner: TextSimilarity) -> None:
        self._inner = inner
        self._scores: dict[tuple[str, str], float] = {}
        self._failure: QueryFailed | None = None
        self.is_complete = False

    def compare(self, text: str, others: Sequence[str]) -> Sequence[float]:
        """Return the similarities. Raises QueryFailed, and StatementsChanged if a new one is needed but not allowed."""
        if self._failure:
            raise self._failure
        if new := [other for other in dict.fromkeys(others) if (text, other) not in self._scores]:
            if self.is_complete:
                raise StatementsChanged
            try:
                scores = self._inner.compare(text, new)
            except QueryFailed as error:
                self._failure = error
                raise
            self._scores.update(zip(((text, other) for other in new), scores, strict=True))
        return [self._scores[text, other] for other in others]


@dataclass(frozen=True, slots=True)
class _Statement:
    """A statement in a node: its lines from `line` up to `end` (excluded), and its text."""

    line: int
    end: int
    text: str

    @property
    def head(self) -> str:
        return self.text.partition("\n")[0]


def find_duplicates(
    document: node_document.NodeDocument,
    entry: NodeEntry,
    threshold: float = WORD_OVERLAP_THRESHOLD,
    similarity: TextSimilarity | None = None,
) -> tuple[DuplicateMatch, ...]:
    """Return the statements of a node that are likely the same as an entry, most similar first.

    All sections are searched. A statement is the text under a heading of level 3 or below, a list item, or a paragraph.
    It matches if its words, or those of its first line and of the entry's title, overlap by `threshold` (Jaccard,
    without stop words), or if its meaning is similar. If meanings cannot be compared, words decide. A statement from
    the same report has score 1.
    """
    statements = [statement for span in document.spans for statement in _split_statements(document, span)]
    meanings = _meaning_scores(entry, statements, similarity)
    scored = [
        (_score_statement(entry, statement, threshold, meaning), statement)
        for statement, meaning in zip(statements, meanings, strict=True)
    ]
    likely = sorted(
        ((score, statement) for score, statement in scored if score is not None),
        # Of equal scores the shortest statement, which names the place best.
        key=lambda each: (-each[0], each[1].end - each[1].line, each[1].line),
    )
    chosen: list[tuple[float, _Statement]] = []
    for score, statement in likely:
        if len(chosen) == MAX_DUPLICATES:
            break
        # Largest similarity first; a statement that contains or lies in a chosen one is the same finding.
        if all(statement.end <= other.line or other.end <= statement.line for _, other in chosen):
            chosen.append((score, statement))
    return tuple(
        DuplicateMatch(document.file, each.line, truncate_text(each.text, MAX_TEXT), score) for score, each in chosen
    )


def significant_words(text: str) -> frozenset[str]:
    """Return the words of a text in lower case, without stop words and without the plural s."""
    # Split before the case is folded, which would hide the boundaries.
    words = WORD.findall(CAMEL_CASE_BOUNDARY.sub(" ", text).casefold())
    return frozenset(_singular_form(word) for word in words if word not in STOP_WORDS)


def word_overlap(first: str, second: str) -> float:
    """Return the Jaccard overlap of the significant words of two texts, from 0 to 1."""
    ours, theirs = significant_words(first), significant_words(second)
    return len(ours & theirs) / len(ours | theirs) if ours and theirs else 0.0


def _score_statement(entry: NodeEntry, statement: _Statement, threshold: float, meaning: float) -> float | None:
    """Return the similarity of an entry and a statement, or None if it is below both thresholds."""
    # The same report was merged before, whatever has been edited since.
    if entry.mark in statement.text:
        return 1.0
    content = SOURCE_LINE_REGEX.sub("", statement.text)
    words = max(
        word_overlap(f"{entry.title}\n{entry.detail}", content),
        # A long explanation dilutes the overlap of the whole texts; the titles alone may still be the same.
        word_overlap(entry.title, BULLET.sub("", statement.head, 1)),
    )
    return max(words, meaning) if words >= threshold or meaning >= MEANING_THRESHOLD else None


def _meaning_scores(
    entry: NodeEntry, statements: Sequence[_Statement], similarity: TextSimilarity | None
) -> Sequence[float]:
    if similarity and statements:
        # Without an embedder the words decide: a review must not fail for want of a second opinion.
        with suppress(QueryFailed):
            texts = [SOURCE_LINE_REGEX.sub("", statement.text).strip() for statement in statements]
            return [min(max(score, 0.0), 1.0) for score in similarity.compare(f"{entry.title}\n{entry.detail}", texts)]
    return [0.0] * len(statements)


def _singular_form(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _split_statements(document: node_document.NodeDocument, span: node_document.SectionSpan) -> Iterator[_Statement]:
    """Yield the statements of a section: the text under each heading as a whole, and the items in it."""
    lines = node_document.LINE_END.split(document.body(span))
    tokens = node_document.parse_blocks("\n".join(lines))
    blocks = [token for token in tokens if token.map and token.level == 0 and token.nesting >= 0]
    headings = [token.map[0] for token in blocks if token.type == "heading_open" and token.map]
    for start, end in pairwise([*headings, len(lines)]):
        yield _make_statement(span, lines, start, end)
    for token in tokens:
        # Level 1 is an item of a list at the margin; nested ones are a part of it.
        item = token.type == "list_item_open" and token.level == 1
        paragraph = token.type == "paragraph_open" and token.level == 0
        if token.map and (item or (paragraph and not any(start < token.map[0] for start in headings))):
            yield _make_statement(span, lines, *token.map)


def _make_statement(span: node_document.SectionSpan, lines: Sequence[str], start: int, end: int) -> _Statement:
    return _Statement(span.body_line + start, span.body_line + end, "\n".join(lines[start:end]).rstrip())


WordSet = frozenset[str]


def group_duplicates(
    tree: ProjectTree, learnings: Sequence[Learning], threshold: float = WORD_OVERLAP_THRESHOLD
) -> tuple[tuple[Learning, ...], ...]:
    """Group learnings that are likely duplicates, each group by its first learning.

    A learning joins a group if it would be merged into the same node, and its words, or those of its title, overlap
    with those of the first by `threshold`, as in `find_duplicates`.
    """
    nodes = [_target_node_file(tree, learning) for learning in learnings]
    texts = _LeaderIndex([significant_words(f"{each.title}\n{each.detail}") for each in learnings], threshold)
    titles = _LeaderIndex([significant_words(each.title) for each in learnings], threshold)
    groups: dict[int, list[Learning]] = {}
    for number, learning in enumerate(learnings):
        alike = sorted({*texts.leaders_like(number), *titles.leaders_like(number)})
        leader = next((other for other in alike if nodes[other] == nodes[number]), None)
        if leader is None:
            groups[number] = [learning]
            texts.add(number)
            titles.add(number)
        else:
            groups[leader].append(learning)
    return tuple(tuple(group) for group in groups.values())


class _LeaderIndex:
    """Finds the sets of words that overlap with a given one, without comparing every pair.

    Two sets whose overlap (Jaccard) is at least a threshold share one of their rarest words: of a set of n, one of the
    n - ceil(threshold * n) + 1 rarest.
    """

    def __init__(self, sets: Sequence[WordSet], threshold: float) -> None:
        self._sets = sets
        self._threshold = threshold
        self._counts = Counter(word for words in sets for word in words)
        self._leaders: defaultdict[str, list[int]] = defaultdict(list)

    def add(self, number: int) -> None:
        for word in self._rarest(number):
            self._leaders[word].append(number)

    def leaders_like(self, number: int) -> set[int]:
        candidates = {other for word in self._rarest(number) for other in self._leaders.get(word, ())}
        return {other for other in candidates if self._overlap(other, number) >= self._threshold}

    def _rarest(self, number: int) -> list[str]:
        # Prefix filtering: at this threshold two sets share at least ceil(threshold * n) words, so that not all of the
        # n - ceil(threshold * n) + 1 rarest of one can be missing from the other. Ties are broken by the word, since
        # both sets must be in the same order.
        words = sorted(self._sets[number], key=lambda word: (self._counts[word], word))
        return words[: len(words) - math.ceil(self._threshold * len(words)) + 1]

    def _overlap(self, first: int, second: int) -> float:
        ours, theirs = self._sets[first], self._sets[second]
        return len(ours & theirs) / len(ours | theirs)


def _target_node_file(tree: ProjectTree, learning: Learning) -> str:
    """Return the file that a learning would be merged into, or its report if that is unknown."""
    try:
        node = covering_node(tree, tuple(tree.locate(path) for path in learning.paths))
    except (InvalidArgument, Unavailable):
        return learning.file
    return node.path if node else new_node_file(ROOT)
