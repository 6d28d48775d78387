"""Ranks the rows that pass a filter by their relevance to a query."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.contract.enums import Outcome
from cstp_grpc.core.decisions.decision_terms import QueryTerm, TermField
from cstp_grpc.core.decisions.model import Contribution, MatchReason, ScoreFeature
from cstp_grpc.core.decisions.search import relevance
from cstp_grpc.core.decisions.search.matrix_snapshot import OUTCOME_BITS, Mask, MatrixSnapshot, StringInterner
from cstp_grpc.core.decisions.search.row_vectors import Rows, Scores, SharedScans, dot_products
from cstp_grpc.core.decisions.search.word_index import FoundTerms, inverse_document_frequency

EVIDENCE_TOLERANCE = 1e-5
"""Maximum error of the evidence in the first pass: a float32 sum of the products of unit vectors is off by about 1e-6.
"""

ROUNDED_OFF = 1e-6
"""Maximum error of an exact evidence that is not rounded yet."""

LEAST_EVIDENCE = -1000.0
"""Less than any evidence, and more than that of rows that do not pass."""

MAX_EXACT_ROWS = 100
"""Rows that are scored exactly at once: selecting among fewer first takes as long (measured)."""

MIN_ROWS_TO_ESTIMATE = 1200
"""Rows from which estimating their similarities first is faster than computing them (measured)."""

DENSE_SHARE = 0.5
"""The share of passing rows from which scoring all rows in memory order is faster than gathering those that pass."""

ESTIMATED_SHARE = 0.06
"""The share of passing rows from which estimating all rows is faster than gathering those that pass (measured)."""

SAMPLED_ROWS = 128
"""Maximum number of rows that tell how far a query's similarities spread, in 25 us. Chosen: with all rows of the
benchmark as many right and irrelevant results reach each score."""

# Plain numbers, since the operators of enumerations take microseconds and every result needs some.
IDENTIFYING_FIELDS = int(TermField.NAME | TermField.UNIT)
LESSON_FIELD, TITLE_FIELD, NAME_FIELD = int(TermField.LESSON), int(TermField.TITLE), int(TermField.NAME)
FAILED = OUTCOME_BITS[Outcome.FAILURE]
NOT_IDENTIFYING = np.uint8(~IDENTIFYING_FIELDS & 0xFF)

COVERAGE_SHOWN = 0.15
"""Coverage from which a match is said to share words. Chosen: one common word of a sentence is less."""

MEANING_SHOWN = 0.3
"""Similarity from which a match is said to mean something similar; unrelated texts have it in one case of twenty."""


MATCH_REASONS = (MatchReason.IDENTIFIER, MatchReason.WORDS, MatchReason.MEANING, MatchReason.LESSON)
REASONS: Mapping[tuple[bool, ...], tuple[MatchReason, ...]] = {
    # A result without a good reason was found because no other result has a more similar meaning.
    applies: tuple(compress(MATCH_REASONS, applies)) or (MatchReason.MEANING,)
    for applies in product((False, True), repeat=len(MATCH_REASONS))
}
"""The reasons by whether each of MATCH_REASONS applies."""


class ScoredDecision(NamedTuple):
    """A decision id with its relevance, 0 to 1, and its cosine similarity, -1 to 1; `date` is in seconds since the
    epoch."""

    decision_id: str
    score: float
    date: float
    similarity: float
    matched_by: tuple[MatchReason, ...]


@dataclass(frozen=True, slots=True, eq=False)
class WordEvidence:
    """The rows with any word of a query, in rising order: the share of the query that each covers, the evidence that
    this share and the name of the row add, and the bits of `TermField` where the words occur.

    `unknown` is the share of the query's words that no decision has; rare words count more."""

    rows: Rows
    coverage: NDArray[np.float64]
    added: NDArray[np.float64]
    fields: NDArray[np.uint8]
    unknown: float

    def added_to(self, rows: Rows) -> NDArray[np.float64]:
        """Return the evidence for some rows in rising order, 0 for those without any of the words."""
        added = np.zeros(len(rows))
        if len(self.rows) < len(rows):
            places, found = find_places(self.rows, rows)
            added[places[found]] = self.added[found]
        else:
            places, found = find_places(rows, self.rows)
            added[found] = self.added[places[found]]
        return added


NO_WORDS = WordEvidence(np.empty(0, np.intp), np.empty(0), np.empty(0), np.empty(0, np.uint8), 1.0)


def find_places(wanted: Rows, rows: Rows) -> tuple[Rows, Mask]:
    """Return the place of each wanted row among `rows`, which are in rising order, and whether it is there."""
    places = np.searchsorted(rows, wanted)
    if not len(rows):
        return places, np.zeros(len(wanted), np.bool_)
    # There is no place beyond the last one; any other place does as well, since its row is not the wanted one.
    places[places == len(rows)] = 0
    return places, rows[places] == wanted


class PassingRows:
    """The rows of a snapshot that a caller finds under a filter, in rising order, and which of them are exemplary."""

    def __init__(self, snapshot: MatrixSnapshot, rows: Rows) -> None:
        self.rows = rows
        self._snapshot = snapshot
        # Written by any thread without a lock: two that miss at the same time store equal arrays.
        self._exemplary: tuple[Rows, Rows] | None = None
        self._excluded: Mask | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def exemplary(self) -> tuple[Rows, Rows]:
        if self._exemplary is None:
            failed, has_lesson = exemplary_masks(self._snapshot, self.rows)
            self._exemplary = self.rows[failed], self.rows[has_lesson]
        return self._exemplary

    def excluded(self) -> Mask:
        if self._excluded is None:
            excluded = np.ones(self._snapshot.size, np.bool_)
            excluded[self.rows] = False
            self._excluded = excluded
        return self._excluded


class ReadableRows:
    """All rows of a snapshot that a caller may read: a mask of them, their number, and a sample in rising order."""

    def __init__(self, mask: Mask) -> None:
        rows = np.flatnonzero(mask)
        self.mask = mask
        self.count = len(rows)
        # Powers of two, so that most of the sample stays the same while a journal grows.
        self.sample: Rows = rows[:: 2 ** max(math.ceil(math.log2(max(len(rows), 1) / SAMPLED_ROWS)), 0)].copy()


@dataclass(frozen=True, slots=True, eq=False)
class CollectionStatistics:
    """The figures that a ranking needs of all decisions that the caller may read, if it gets only some of them.

    `count` is their number, `frequencies` how many have each term of the query, by hash, and `similarities` are those
    of a sample to the query.
    """

    count: int
    frequencies: Mapping[int, int]
    similarities: Scores


def exemplary_masks(snapshot: MatrixSnapshot, rows: Rows) -> tuple[Mask, Mask]:
    failed = (snapshot.columns.outcomes[rows] & FAILED) != 0
    return failed, snapshot.passages.has_lesson[rows]


class CandidateRows:
    """Rows that pass a filter, ready to be ranked.

    `reader` is the number of the caller, or negative without one; `readable` are all rows that the caller may read.
    With `statistics`, the rows are some of a collection that is described by these.
    """

    def __init__(
        self,
        snapshot: MatrixSnapshot,
        passing: PassingRows,
        reader: int,
        readable: ReadableRows,
        interner: StringInterner,
        scans: SharedScans,
        statistics: CollectionStatistics | None = None,
    ) -> None:
        self._statistics = statistics
        self._snapshot = snapshot
        self._passing = passing
        self._rows = passing.rows
        self._reader = reader
        self._readable = readable
        self._interner = interner
        self._scans = scans
        # Those for the last query, which is often ranked by again, with a larger limit.
        self._known_words: tuple[relevance.RankedQuery, WordEvidence] | None = None
        self._known_curve: tuple[relevance.RankedQuery, relevance.RelevanceCurve] | None = None
        self._known_scan: tuple[relevance.RankedQuery, Scores] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def best(
        self, query: relevance.RankedQuery, limit: int, min_score: float, *, with_exemplars: bool = False
    ) -> list[ScoredDecision]:
        """Return the top rows by falling relevance, then date, then id; at most `limit`, none below `min_score`.

        With exemplars, the top failure and the top row with a lesson follow, unless they are among them.
        """
        if not len(self._rows):
            return []
        words = self._word_evidence(query)
        curve = self.curve(query)
        least = curve.evidence(min_score)
        # Each step ranks the remaining rows of the step before more exactly.
        rows = self._promising_rows(query, words, limit, least, with_exemplars=with_exemplars)
        added = self._added_evidence(query, words, rows)
        if len(rows) > MAX_EXACT_ROWS:
            scan = self._scan(query)
            evidence = (self._snapshot.best_of(rows, query.vector) if scan is None else scan[rows]) + added
            places = self._select_places(rows, evidence, limit, least, EVIDENCE_TOLERANCE, with_exemplars)
            rows, added = rows[places], added[places]
        ranked = self._exact_results(query, curve, words, rows, added, limit, least, with_exemplars=with_exemplars)
        chosen = [item for _, item in ranked[:limit]]
        if with_exemplars and len(ranked) > limit:
            for exemplary in exemplary_masks(self._snapshot, np.array([row for row, _ in ranked], np.intp)):
                chosen += [ranked[place][1] for place in np.flatnonzero(exemplary)[:1] if place >= limit]
            chosen = list(dict.fromkeys(chosen))
        return [item for item in chosen if item.score >= min_score]

    def curve(self, query: relevance.RankedQuery) -> relevance.RelevanceCurve:
        """Return the curve for a query, by its similarities to a sample of the rows that the caller may read.

        It is raised if none of these has some of its words. Neither depends on the filter, so that a decision has the
        same score under any.
        """
        if query.curve.spread is None:
            return query.curve
        if self._known_curve is None or self._known_curve[0] is not query:
            similarities = self._sampled_similarities(query)
            curve = query.curve.for_query(similarities.astype(np.float64).round(relevance.SCORE_DECIMALS))
            if unknown := self._word_evidence(query).unknown:
                curve = curve.raised(ScoreFeature.UNKNOWN_WORDS, unknown**2, relevance.UNKNOWN_WORDS_WEIGHT)
            self._known_curve = query, curve
        return self._known_curve[1]

    def _sampled_similarities(self, query: relevance.RankedQuery) -> Scores:
        if self._statistics is not None:
            return self._statistics.similarities
        scan, sample = self._scan(query), self._readable.sample
        return self._snapshot.best_of(sample, query.vector) if scan is None else scan[sample]

    def _scan(self, query: relevance.RankedQuery) -> Scores | None:
        """Return the similarities of all rows, in their order, if most are needed but too few for estimates."""
        snapshot = self._snapshot
        if not max(MAX_EXACT_ROWS, DENSE_SHARE * snapshot.size) < len(self._rows) < MIN_ROWS_TO_ESTIMATE:
            return None
        if self._known_scan is None or self._known_scan[0] is not query:
            products = snapshot.passages.vectors.products(snapshot.passage_count, query.vector)
            self._known_scan = query, snapshot.best_of_each(products)
        return self._known_scan[1]

    def _promising_rows(
        self, query: relevance.RankedQuery, words: WordEvidence, limit: int, least: float, *, with_exemplars: bool
    ) -> Rows:
        """Return rows, among them all that `best` returns: if they are many, those that are good by an estimate."""
        snapshot, rows = self._snapshot, self._rows
        if len(rows) < max(MIN_ROWS_TO_ESTIMATE, ESTIMATED_SHARE * snapshot.size):
            return rows
        estimates, error = self._scans.estimates(snapshot.passages.vectors, snapshot.passage_count, query.vector)
        evidence = snapshot.best_of_each(estimates)
        if evidence is estimates:
            # Searches that are made together share the estimates.
            evidence = evidence.copy()
        evidence[words.rows] += words.added
        for column, number, weight in self._favoured_columns(query):
            evidence[column[: snapshot.size] == number] += weight
        if len(rows) < snapshot.size:
            np.copyto(evidence, -np.inf, where=self._passing.excluded())
        # The evidence that counts is rounded, too.
        error += EVIDENCE_TOLERANCE
        selected = select_best(evidence, limit, max(least, LEAST_EVIDENCE), error)
        if not with_exemplars:
            return selected
        kept = np.zeros(snapshot.size, np.bool_)
        kept[selected] = True
        for examples in self._passing.exemplary():
            kept[examples[select_best(evidence[examples], 1, least, error)]] = True
        return np.flatnonzero(kept)

    def _select_places(
        self, rows: Rows, evidence: NDArray[np.float64], limit: int, least: float, error: float, with_exemplars: bool
    ) -> Rows:
        """Return the places of the rows that `best` may return by an evidence that is off by at most an error."""
        least -= error
        kept = evidence >= least
        if len(rows) > limit:
            # Twice the error: the row that is really the last may score too low, and the least too high.
            kept &= evidence >= np.partition(evidence, -limit)[-limit] - 2 * error
            for exemplary in exemplary_masks(self._snapshot, rows) if with_exemplars else ():
                if exemplary.any():
                    kept |= exemplary & (evidence >= max(least, evidence[exemplary].max() - 2 * error))
        return np.flatnonzero(kept)

    def _word_evidence(self, query: relevance.RankedQuery) -> WordEvidence:
        """Return the evidence of the query's words.

        The rarity of words, and the words of a very long query that are left out, depend only on rows that the caller
        may read, so that scores reveal nothing about the others.
        """
        if self._known_words is not None and self._known_words[0] is query:
            return self._known_words[1]
        found = self._snapshot.words.find([term.hash for term in query.terms], self._reader, self._readable.mask)
        terms = [query.terms[place] for place in found.places]
        total, known = self._readable.count, found.counts
        if self._statistics is not None:
            total, known = self._statistics.count, [self._statistics.frequencies.get(term.hash, 0) for term in terms]
        rarities = [
            term.count * inverse_document_frequency(total, min(count, total))
            for term, count in zip(terms, known, strict=True)
        ]
        words = sum_word_evidence(terms, rarities, known, found, query.length, self._snapshot.size)
        if query.is_identifier:
            words.added[(words.fields & IDENTIFYING_FIELDS) != 0] += relevance.IDENTIFIER_WEIGHT
        self._known_words = query, words
        return words

    def _favoured_columns(self, query: relevance.RankedQuery) -> Iterator[tuple[NDArray[np.int32], int, float]]:
        """Yield the columns in which a value is favoured, with its number and the evidence that it adds."""
        columns, favoured = self._snapshot.columns, query.favoured
        if favoured.category is not None:
            yield columns.categories, self._interner.find(favoured.category), relevance.CATEGORY_WEIGHT
        if favoured.project is not None:
            yield columns.projects, self._interner.find(favoured.project), relevance.PROJECT_WEIGHT

    def _added_evidence(self, query: relevance.RankedQuery, words: WordEvidence, rows: Rows) -> NDArray[np.float64]:
        added = words.added_to(rows)
        for column, number, weight in self._favoured_columns(query):
            added += weight * (column[rows] == number)
        return added

    def explain(self, query: relevance.RankedQuery) -> list[tuple[ScoredDecision, tuple[Contribution, ...]]]:
        """Return all rows as `best` does, each with the contributions whose sum, times the slope, gives its score."""
        words, of_query = self._word_evidence(query), tuple(self.curve(query).contributions())
        row_of = {self._snapshot.ids[row]: row for row in self._rows.tolist()}
        return [
            (item, (*row_contributions(query, words, row_of[item.decision_id], item.similarity), *of_query))
            for item in self.best(query, len(self._rows), 0.0)
        ]

    def _exact_results(
        self,
        query: relevance.RankedQuery,
        curve: relevance.RelevanceCurve,
        words: WordEvidence,
        rows: Rows,
        added: NDArray[np.float64],
        limit: int,
        least: float,
        *,
        with_exemplars: bool,
    ) -> list[tuple[int, ScoredDecision]]:
        """Return the rows that `best` may return in their order, by their exact evidence."""
        snapshot = self._snapshot
        if not len(rows):
            return []
        vectors, firsts = snapshot.take(rows)
        # In float64 and row by row, so that a score does not depend on which path or batch computed it.
        products = dot_products(vectors.astype(np.float64), query.vector.astype(np.float64)).round(
            relevance.SCORE_DECIMALS
        )
        similarities = np.minimum(np.maximum(np.maximum.reduceat(products, firsts), -1.0), 1.0)
        kept = self._select_places(rows, similarities + added, limit, least, ROUNDED_OFF, with_exemplars)
        rows, similarities, added = rows[kept], similarities[kept], added[kept]
        # Places among the rows with words; those of other rows are of any row, and not used.
        places, has_words = find_places(rows, words.rows)
        lasts = products[(np.append(firsts[1:], len(products)) - 1)[kept]]
        by_lesson = snapshot.passages.has_lesson[rows] & (lasts >= similarities)
        dates = snapshot.columns.dates[rows]
        columns = (rows, similarities, added, dates, by_lesson, places, has_words)
        found = []
        for row, similarity, more, date, of_lesson, place, covers in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            evidence = round(similarity + more, relevance.SCORE_DECIMALS)
            score = round(curve.score(evidence), relevance.SCORE_DECIMALS)
            coverage, fields = (float(words.coverage[place]), int(words.fields[place])) if covers else (0.0, 0)
            why = match_reasons(similarity, coverage, fields, by_lesson=of_lesson)
            found.append((evidence, row, ScoredDecision(snapshot.ids[row], score, date, similarity, why)))
        found.sort(key=lambda item: (-item[0], -item[2].date, item[2].decision_id))
        return [(row, item) for _, row, item in found]


def sum_word_evidence(
    terms: Sequence[QueryTerm],
    rarities: Sequence[float],
    known: Sequence[int],
    found: FoundTerms,
    length: int,
    size: int,
) -> WordEvidence:
    """Return the evidence of terms that were found, given how rare each is, for the rows of `size` that have any.

    `known` is how many decisions have each term. The query has `length` words.
    """
    postings, counts = found.postings, found.counts
    unknown = relevance.unknown_share(terms, rarities, known)
    if not len(postings.rows):
        return replace(NO_WORDS, unknown=unknown)
    occurs = np.zeros(size, np.bool_)
    found_rows = postings.rows.astype(np.intp)
    occurs[found_rows] = True
    rows = np.flatnonzero(occurs)
    # The number of each row among those, without sorting; the rest of the array is never read.
    numbers = np.empty(size, np.intp)
    numbers[rows] = np.arange(len(rows))
    places = numbers.take(found_rows)
    covered = np.bincount(places, postings.impacts * np.repeat(rarities, counts), len(rows))
    fields, begin = np.zeros(len(rows), np.uint8), 0
    for term, count in zip(terms, counts, strict=True):
        # Term by term, since a row has each term once, and one that were repeated here would be set only once.
        end = begin + count
        bits = postings.fields[begin:end]
        fields[places[begin:end]] |= bits if term.is_unit else bits & NOT_IDENTIFYING
        begin = end
    # The words of a compound that was not found happen to stand together; an unknown word, on the other hand, leaves
    # the query less covered.
    counted = [
        rarity for term, rarity, count in zip(terms, rarities, known, strict=True) if count or not term.is_compound
    ]
    coverage = covered / sum(counted)
    added = relevance.evidence_of_words(coverage, counted, length)
    added[(fields & NAME_FIELD) != 0] += relevance.NAME_WEIGHT
    return WordEvidence(rows, coverage, added, fields, unknown)


def row_contributions(
    query: relevance.RankedQuery, words: WordEvidence, row: int, similarity: float
) -> Iterator[Contribution]:
    """Yield the features of a row that add evidence; nothing is favoured by the query."""
    yield Contribution(ScoreFeature.MEANING, similarity, 1.0)
    places, has_words = find_places(np.array([row]), words.rows)
    if not has_words[0]:
        return
    coverage, added, fields = (float(each[places[0]]) for each in (words.coverage, words.added, words.fields))
    found = []
    if int(fields) & NAME_FIELD:
        found.append(Contribution(ScoreFeature.NAME, 1.0, relevance.NAME_WEIGHT))
    if query.is_identifier and int(fields) & IDENTIFYING_FIELDS:
        found.append(Contribution(ScoreFeature.IDENTIFIER, 1.0, relevance.IDENTIFIER_WEIGHT))
    # The rest of what the ranking has added for words.
    of_words = added - sum(each.amount for each in found)
    yield Contribution(ScoreFeature.WORDS, coverage, of_words / coverage)
    yield from found


def match_reasons(similarity: float, coverage: float, fields: int, *, by_lesson: bool) -> tuple[MatchReason, ...]:
    """Return why a row was found; `by_lesson` means that its lesson is the passage closest in meaning."""
    shares_words, is_similar = coverage >= COVERAGE_SHOWN, similarity >= MEANING_SHOWN
    words_of_lesson = bool(fields & LESSON_FIELD) and not fields & TITLE_FIELD
    of_lesson = (by_lesson and is_similar) or (words_of_lesson and shares_words)
    return REASONS[bool(fields & IDENTIFYING_FIELDS), shares_words, is_similar, of_lesson]


GROUPS = 64
"""Rows of a group, of which a lower bound of the best scores takes only the maximum."""


def select_best(estimates: Scores, limit: int, least: float, error: float) -> NDArray[np.intp]:
    """Return the places of all estimates whose scores may be among the `limit` best and at least `least`.

    `error` is the maximum difference between an estimate and its score.
    """
    least -= error
    if len(estimates) > limit:
        # As many scores are at least the limit-th best estimate less `error`; the score of an estimate that is lower by
        # twice the error is below those.
        least = max(least, nth_best_bound(estimates, limit) - 2 * error)
    return np.flatnonzero(estimates >= np.float32(least))


def nth_best_bound(scores: Scores, n: int) -> float:
    """Return a score that at least `n` of the scores, of which there are more, reach: about the n-th best."""
    length = len(scores) // GROUPS
    if length > n:
        # Only the maximum of each group counts, which takes a tenth of the time of looking at all. Each group has rows
        # from everywhere, since neighbours are often alike.
        scores = scores[: length * GROUPS].reshape(GROUPS, length).max(axis=0)
    return float(np.partition(scores, -n)[-n])
