"""Groups of failures that resemble each other, and the words that they have in common."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cstp_grpc.calibration.model import RecurringFailure, ReviewedDecision
from cstp_grpc.decisions.search.row_vectors import dot_products
from cstp_grpc.decisions.store import Vector
from cstp_grpc.embedding.lexical_embedder import STOP_WORDS, split_words, stem_word

MIN_SIMILARITY: Final = 0.5
"""The mean similarity of two groups that are one. Chosen: of pairs that are about the same, half are more similar by
all-MiniLM-L6-v2, and of unrelated pairs 95 % are less similar than 0.31."""

MAX_FAILURES: Final = 400
"""Failures that are compared with each other, the latest. Chosen: it takes about 0.1 s, and rises with the cube."""

MAX_OTHERS: Final = 2000
"""Decisions that did not fail whose words are counted, the latest. Chosen: splitting their texts takes about 0.1 s."""

MAX_TERMS: Final = 5
MIN_TERM_LENGTH: Final = 3
"""Letters of a common word; shorter ones say little alone."""

Similarities = NDArray[np.float64]


def find_recurring_failures(
    failures: Sequence[ReviewedDecision], vectors: Mapping[str, Vector], others: Sequence[ReviewedDecision]
) -> list[RecurringFailure]:
    """Return the groups of at least two failures, the largest first, then the latest.

    Of the latest `MAX_FAILURES`, those without a vector belong to no group. `others` are the decisions that did not
    fail, against which words are judged.
    """
    known = [item for item in latest_first(failures)[:MAX_FAILURES] if item.id in vectors]
    if len(known) < 2:
        return []
    matrix = np.stack([vectors[item.id] for item in known]).astype(np.float64)
    # Row by row and not as one matrix product, whose threads would take the time of other calls.
    similarities = np.stack([dot_products(matrix, row) for row in matrix])
    background = [*known, *latest_first(others)[:MAX_OTHERS]]
    word_counts = count_decisions_by_word(background)
    found = []
    for places in link_groups(similarities, MIN_SIMILARITY):
        members = [known[place] for place in places]
        terms = common_terms(members, word_counts, len(background))
        found.append(RecurringFailure(members, terms, mean_similarity(similarities, places)))
    return sorted(found, key=lambda group: (-len(group.decisions), -group.decisions[0].date.timestamp()))


def latest_first(decisions: Sequence[ReviewedDecision]) -> list[ReviewedDecision]:
    """Return decisions by falling date, then by id."""
    return sorted(decisions, key=lambda item: (-item.date.timestamp(), item.id))


def link_groups(similarities: Similarities, least: float) -> list[list[int]]:
    """Return the groups of at least two items whose mean similarity to each other is at least `least`.

    The two most similar groups become one until none are similar enough (average linkage: Sokal and Michener 1958, A
    Statistical Method for Evaluating Systematic Relationships). Linking by means forms no chains, whose ends have
    nothing in common. Numbers within a group rise.
    """
    links = similarities.copy()
    np.fill_diagonal(links, -np.inf)
    groups: dict[int, list[int]] = {place: [place] for place in range(len(links))}
    while len(groups) > 1:
        # Of equal ones the first: the same for the same items in the same order.
        first, second = sorted(divmod(int(links.argmax()), len(links)))
        if links[first, second] < least:
            break
        one, other = len(groups[first]), len(groups[second])
        # The mean over all pairs of the united group and each other one (Lance and Williams 1967).
        merged = (one * links[first] + other * links[second]) / (one + other)
        links[first], links[:, first] = merged, merged
        links[second], links[:, second] = -np.inf, -np.inf
        links[first, first] = -np.inf
        groups[first] = sorted(groups[first] + groups.pop(second))
    return [places for places in groups.values() if len(places) > 1]


def mean_similarity(similarities: Similarities, places: Sequence[int]) -> float:
    """Return the mean similarity of the pairs of a group."""
    within = similarities[np.ix_(places, places)]
    pairs = len(places) * (len(places) - 1)
    return float((within.sum() - within.trace()) / pairs)


def count_decisions_by_word(decisions: Sequence[ReviewedDecision]) -> Counter[str]:
    """Return in how many decisions each stem occurs."""
    return Counter(stem for item in decisions for stem in words_by_stem(item))


def words_by_stem(decision: ReviewedDecision) -> dict[str, str]:
    """Return the words of title, tags and lesson by their stems, without common ones and numbers."""
    found: dict[str, str] = {}
    for text in (decision.title, *decision.tags, decision.notes or ""):
        for word in split_words(text):
            if len(word) >= MIN_TERM_LENGTH and word not in STOP_WORDS and not word.isdigit():
                found.setdefault(stem_word(word), word)
    return found


def common_terms(members: Sequence[ReviewedDecision], word_counts: Mapping[str, int], total: int) -> list[str]:
    """Return words that at least half of the members, and at least two, have; the most particular to them first.

    How particular they are is judged by the log-likelihood ratio against all decisions (Dunning 1993, Accurate Methods
    for the Statistics of Surprise and Coincidence).
    """
    within: Counter[str] = Counter()
    spellings: dict[str, Counter[str]] = {}
    for member in members:
        for stem, word in words_by_stem(member).items():
            within[stem] += 1
            spellings.setdefault(stem, Counter())[word] += 1
    needed = max(2, math.ceil(len(members) / 2))
    ranked = sorted(
        (-log_likelihood_ratio(count, len(members), word_counts[stem], total), stem)
        for stem, count in within.items()
        if count >= needed
    )
    return [most_common_spelling(spellings[stem]) for _, stem in ranked[:MAX_TERMS]]


def most_common_spelling(spellings: Counter[str]) -> str:
    """Return the most common word of a stem; of equally common ones the shortest, then the first."""
    return min(spellings, key=lambda word: (-spellings[word], len(word), word))


def log_likelihood_ratio(within: int, members: int, everywhere: int, total: int) -> float:
    """Return how surely a word is more common within a group than outside of it; 0 if it is not."""
    outside, rest = everywhere - within, total - members
    if outside * members >= within * rest:
        return 0.0
    overall = everywhere / total
    return 2 * (
        log_likelihood(within, members, within / members)
        + log_likelihood(outside, rest, outside / rest if rest else 0.0)
        - log_likelihood(within, members, overall)
        - log_likelihood(outside, rest, overall)
    )


def log_likelihood(count: int, total: int, rate: float) -> float:
    """Return the logarithm of the likelihood of `count` among `total` at a rate; what does not occur adds nothing."""
    occurring = count * math.log(rate) if count else 0.0
    absent = (total - count) * math.log(1 - rate) if total > count else 0.0
    return occurring + absent
