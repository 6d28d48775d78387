"""Ranks the rows that pass a filter by their relevance to a query."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cstp_grpc.decisions.decision_terms import TermField
from cstp_grpc.decisions.model import MatchReason
from cstp_grpc.decisions.search.int8_codes import select_best
from cstp_grpc.decisions.search.matrix_columns import OUTCOME_BITS, Mask, StringInterner
from cstp_grpc.decisions.search.matrix_snapshot import MatrixSnapshot
from cstp_grpc.decisions.search.relevance import (
    CATEGORY_WEIGHT,
    NAME_WEIGHT,
    PROJECT_WEIGHT,
    SCORE_DECIMALS,
    RankedQuery,
    evidence_of_words,
)
from cstp_grpc.decisions.search.row_vectors import ParallelDotProduct, Rows, dot_products
from cstp_grpc.decisions.search.shared_scans import SharedScans
from cstp_grpc.decisions.search.word_index import inverse_document_frequency
from cstp_grpc.enums import Outcome

EVIDENCE_TOLERANCE = 1e-5
"""Maximum error of the evidence in the first pass: a float32 sum of the products of unit vectors is off by about 1e-6.
"""

MIN_ROWS_TO_ESTIMATE = 3000
"""Rows from which estimating their similarities first is faster than computing them (measured)."""

ESTIMATED_SHARE = 0.2
"""The share of passing rows from which estimating all rows is faster than gathering those that pass (measured)."""

# Plain numbers, since the operators of enumerations take microseconds and every result needs some.
IDENTIFYING_FIELDS = int(TermField.NAME | TermField.UNIT)
LESSON_FIELD, TITLE_FIELD = int(TermField.LESSON), int(TermField.TITLE)

COVERAGE_SHOWN = 0.15
"""Coverage from which a match is said to share words. Chosen: one common word of a sentence is less."""

MEANING_SHOWN = 0.3
"""Similarity from which a match is said to mean something similar; unrelated texts have it in one case of twenty."""


@dataclass(frozen=True, slots=True)
class ScoredDecision:
    """A decision id with its relevance, 0 to 1, and its cosine similarity, -1 to 1; `date` is in seconds since the
    epoch."""

    decision_id: str
    score: float
    date: float
    similarity: float
    matched_by: tuple[MatchReason, ...]


@dataclass(frozen=True, slots=True, eq=False)
class WordEvidence:
    """What the words of a query say about each row: the share of the query that it covers, the evidence that this and
    its name add, and the bits of `TermField` where they occur."""

    coverage: NDArray[np.float64]
    added: NDArray[np.float64]
    fields: NDArray[np.uint8]


class CandidateRows:
    """Rows that pass a filter, ready to be ranked.

    `reader` is the number of the caller, or negative if it has none, and `readable` are all rows that it may read.
    """

    def __init__(
        self,
        snapshot: MatrixSnapshot,
        rows: Rows,
        reader: int,
        readable: Mask,
        interner: StringInterner,
        scorer: ParallelDotProduct,
        scans: SharedScans,
    ) -> None:
        self._snapshot = snapshot
        self._rows = rows
        self._reader = reader
        self._readable = readable
        self._interner = interner
        self._scorer = scorer
        self._scans = scans

    def __len__(self) -> int:
        return len(self._rows)

    def best(
        self, query: RankedQuery, limit: int, min_score: float, *, with_exemplars: bool = False
    ) -> list[ScoredDecision]:
        """Return the top rows by falling relevance, then date, then id; at most `limit`, none below `min_score`.

        With exemplars, the top failure and the top row with a lesson follow, unless they are among them.
        """
        words = self._word_evidence(query)
        least = query.curve.evidence(min_score)
        rows = self._promising_rows(query, words, limit, least, with_exemplars=with_exemplars)
        added = self._added_evidence(query, words, rows)
        evidence = self._snapshot.similarities(rows, query.vector, self._scorer) + added
        near = evidence >= least - EVIDENCE_TOLERANCE
        if not near.all():
            rows, added, evidence = rows[near], added[near], evidence[near]
        if len(rows) > limit:
            # Twice the tolerance: the row that is really the last may score too low, and the least too high.
            kept = evidence >= np.partition(evidence, -limit)[-limit] - 2 * EVIDENCE_TOLERANCE
            for exemplary in self._exemplary_masks(rows) if with_exemplars else ():
                if exemplary.any():
                    kept |= exemplary & (evidence >= evidence[exemplary].max() - 2 * EVIDENCE_TOLERANCE)
            rows, added = rows[kept], added[kept]
        ranked = self._exact_results(query, words, rows, added)
        chosen = [item for _, item in ranked[:limit]]
        for exemplary in self._exemplary_masks(np.array([row for row, _ in ranked], np.intp)) if with_exemplars else ():
            chosen += [ranked[place][1] for place in np.flatnonzero(exemplary)[:1] if place >= limit]
        return [item for item in dict.fromkeys(chosen) if item.score >= min_score]

    def _promising_rows(
        self, query: RankedQuery, words: WordEvidence, limit: int, least: float, *, with_exemplars: bool
    ) -> Rows:
        """Return rows, among them all that `best` returns: if they are many, those that are good by an estimate."""
        snapshot, rows = self._snapshot, self._rows
        if len(rows) < max(MIN_ROWS_TO_ESTIMATE, ESTIMATED_SHARE * snapshot.size):
            return rows
        passages, count = snapshot.passages, snapshot.passage_count
        estimates, error = self._scans.estimates(passages.vectors, count, query.vector)
        estimates = passages.best_of_each(estimates, snapshot.size)
        if len(rows) < snapshot.size:
            estimates = estimates[rows]
        # The evidence that counts is rounded, too.
        error += EVIDENCE_TOLERANCE
        evidence = (estimates + self._added_evidence(query, words, rows)).astype(np.float32)
        places = select_best(evidence, limit, least, error)
        for exemplary in self._exemplary_masks(rows) if with_exemplars else ():
            examples = np.flatnonzero(exemplary)
            places = np.union1d(places, examples[select_best(evidence[examples], 1, least, error)])
        return rows[places]

    def _exemplary_masks(self, rows: Rows) -> tuple[Mask, Mask]:
        """Return masks of the rows that failed, and of those with a lesson."""
        snapshot = self._snapshot
        failed = (snapshot.columns.outcomes[rows] & OUTCOME_BITS[Outcome.FAILURE]) != 0
        return failed, snapshot.passages.has_lesson[rows]

    def rows_with_most_words(self, query: RankedQuery, count: int) -> tuple[Rows, float]:
        """Return the `count` rows with most evidence beside their similarity, and the most that others have."""
        added = self._added_evidence(query, self._word_evidence(query), self._rows)
        if len(added) <= count:
            return self._rows, 0.0
        least = np.partition(added, -count)[-count]
        # With less than `least`: equal ones are all taken, unless that is none at all, which every row has.
        taken = added >= least if least > 0 else added > 0
        return self._rows[taken], float(added[~taken].max(initial=0.0))

    def _word_evidence(self, query: RankedQuery) -> WordEvidence:
        """Return the evidence of the query's words on all rows.

        How rare a word is, and which words of a very long query are left out, follows from what the caller may read
        alone, so that scores tell nothing about the rest.
        """
        snapshot = self._snapshot
        coverage, fields = np.zeros(snapshot.size), np.zeros(snapshot.size, np.uint8)
        known = int(np.count_nonzero(self._readable))
        rarities: list[float] = []
        hashes = [term.hash for term in query.terms]
        for place, postings in snapshot.words.find(hashes, self._reader, self._readable):
            term = query.terms[place]
            if term.is_compound and not len(postings.rows):
                # Its words happen to stand together; an unknown word, on the other hand, leaves the query less covered.
                continue
            rarity = term.count * inverse_document_frequency(known, len(postings.rows))
            rarities.append(rarity)
            coverage[postings.rows] += np.multiply(postings.impacts, rarity, dtype=np.float64)
            fields[postings.rows] |= (
                postings.fields if term.is_unit else postings.fields & ~np.uint8(IDENTIFYING_FIELDS)
            )
        coverage /= sum(rarities) or 1.0
        added = evidence_of_words(coverage, rarities)
        added[(fields & TermField.NAME) != 0] += NAME_WEIGHT
        return WordEvidence(coverage, added, fields)

    def _added_evidence(self, query: RankedQuery, words: WordEvidence, rows: Rows) -> NDArray[np.float64]:
        """Return the evidence beside the similarity; the array may be that of `words`."""
        # All rows need no copy, which would take as long as the words themselves.
        added = words.added if len(rows) == len(words.added) else words.added[rows]
        for column, text, weight in (
            (self._snapshot.columns.categories, query.favoured.category, CATEGORY_WEIGHT),
            (self._snapshot.columns.projects, query.favoured.project, PROJECT_WEIGHT),
        ):
            if text is not None:
                # Not in place: the evidence of words may be used again.
                added = added + weight * (column[rows] == self._interner.find(text))
        return added

    def _exact_results(
        self, query: RankedQuery, words: WordEvidence, rows: Rows, added: NDArray[np.float64]
    ) -> list[tuple[int, ScoredDecision]]:
        """Return the rows in their order, by their exact evidence."""
        snapshot = self._snapshot
        if not len(rows):
            return []
        vectors, firsts = snapshot.passages.take(rows, snapshot.size, snapshot.passage_count)
        # In float64 and row by row, so that a score does not depend on which path or batch computed it.
        products = dot_products(vectors.astype(np.float64), query.vector.astype(np.float64)).round(SCORE_DECIMALS)
        similarities = np.clip(np.maximum.reduceat(products, firsts), -1.0, 1.0)
        lasts = np.append(firsts[1:], len(products)) - 1
        by_lesson = snapshot.passages.has_lesson[rows] & (products[lasts] >= similarities)
        found = []
        for place, row in enumerate(rows.tolist()):
            similarity = float(similarities[place])
            evidence = round(similarity + float(added[place]), SCORE_DECIMALS)
            score = round(query.curve.score(evidence), SCORE_DECIMALS)
            why = match_reasons(
                similarity, float(words.coverage[row]), int(words.fields[row]), by_lesson=bool(by_lesson[place])
            )
            date = float(snapshot.columns.dates[row])
            found.append((evidence, row, ScoredDecision(snapshot.ids[row], score, date, similarity, why)))
        found.sort(key=lambda item: (-item[0], -item[2].date, item[2].decision_id))
        return [(row, item) for _, row, item in found]


def match_reasons(similarity: float, coverage: float, fields: int, *, by_lesson: bool) -> tuple[MatchReason, ...]:
    """Return why a row was found; `by_lesson` means that its lesson is the passage closest in meaning."""
    shares_words, is_similar = coverage >= COVERAGE_SHOWN, similarity >= MEANING_SHOWN
    words_of_lesson = bool(fields & LESSON_FIELD) and not fields & TITLE_FIELD
    reasons = {
        MatchReason.IDENTIFIER: bool(fields & IDENTIFYING_FIELDS),
        MatchReason.WORDS: shares_words,
        MatchReason.MEANING: is_similar,
        MatchReason.LESSON: (by_lesson and is_similar) or (words_of_lesson and shares_words),
    }
    # What was found for no good reason was found because nothing else means more.
    return tuple(reason for reason, applies in reasons.items() if applies) or (MatchReason.MEANING,)
