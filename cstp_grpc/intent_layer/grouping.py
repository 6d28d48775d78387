"""Learnings that likely say the same, so that a reviewer decides on them together."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from cstp_grpc.errors import InvalidArgument, Unavailable
from cstp_grpc.intent_layer.duplicates import THRESHOLD, significant_words
from cstp_grpc.intent_layer.merging import covering
from cstp_grpc.intent_layer.model import ROOT, Learning
from cstp_grpc.intent_layer.placement import new_file
from cstp_grpc.intent_layer.tree import Tree

Words = frozenset[str]


def group_duplicates(
    tree: Tree, learnings: Sequence[Learning], threshold: float = THRESHOLD
) -> tuple[tuple[Learning, ...], ...]:
    """Return learnings in groups, the first of each in their order.

    In a group are those that would go into the same node and whose words, or those of their titles, overlap with those
    of the first by `threshold`, as in `duplicates.find_duplicates`.
    """
    nodes = [_node_of(tree, learning) for learning in learnings]
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
    """Finds the sets of words that overlap with one, without comparing it with each.

    Two sets whose overlap (Jaccard) is at least a threshold have one of their rarest words in common: of a set of n,
    one of the n - ceil(threshold * n) + 1 rarest.
    """

    def __init__(self, sets: Sequence[Words], threshold: float) -> None:
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
        words = sorted(self._sets[number], key=lambda word: (self._counts[word], word))
        return words[: len(words) - math.ceil(self._threshold * len(words)) + 1]

    def _overlap(self, first: int, second: int) -> float:
        ours, theirs = self._sets[first], self._sets[second]
        return len(ours & theirs) / len(ours | theirs)


def _node_of(tree: Tree, learning: Learning) -> str:
    """Return the file that a learning would go into, or its own if that cannot be told."""
    try:
        node = covering(tree, tuple(tree.locate(path) for path in learning.paths))
    except (InvalidArgument, Unavailable):
        return learning.file
    return node.path if node else new_file(ROOT)
