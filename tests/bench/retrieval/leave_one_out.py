"""Chooses weights of the evidence on collections, and measures each collection with those chosen without it.

`.venv/bin/python -m tests.bench.retrieval.leave_one_out --data FOLDER` reads each JSON file of the folder: `records`
with `source`, `title`, `context` and perhaps `notes`; `queries` with `text`, `right` (sources) and perhaps `asking` (a
source that does not count); and perhaps `group`, for collections that are left out together.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cstp_grpc.core.decisions.decision_terms import SearchedContent, analyze_content
from cstp_grpc.core.decisions.passages import MAX_PASSAGES, PASSAGE_CHARACTERS, split_text, spread_evenly
from cstp_grpc.core.decisions.search.ranking import NAME_FIELD, sum_word_evidence
from cstp_grpc.core.decisions.search.relevance import LONG_QUERY, LONG_QUERY_WEIGHTS, NAME_WEIGHT, RankedQuery
from cstp_grpc.core.decisions.search.word_index import SHARED, WordIndex, inverse_document_frequency
from cstp_grpc.platform.embedding.embedder import Embedder
from cstp_grpc.server.wiring.embedding import build_embedder
from tests.bench.retrieval.corpora import Query, Record
from tests.bench.retrieval.engines import WordsEngine
from tests.bench.retrieval.measures import reciprocal_rank

Array = NDArray[np.float64]

FIRST, MEAN = (0.0, 0.1, 0.2, 0.3), (0.0, 0.1, 0.2)
"""Shares of the first passage and of the mean passage in the similarity; the rest is the best one."""
WORDS = ((0.0, 1.5), (0.4, 0.75), (0.5, 0.4), (0.6, 0.3), (0.5, 0.2))
"""Weights of coverage, and of coverage that is not coincidental, for short queries."""
LENGTHS = (10**9, 40, 20)
"""Words of a query from which the weights of `LONG_QUERY_WEIGHTS` count."""
GRID = tuple(product(FIRST, MEAN, WORDS, LENGTHS))
BEFORE = (0.0, 0.0, (0.0, 1.5), 10**9)


@dataclass(frozen=True, slots=True)
class Asked:
    """A query with the features of each record, and the records that are right or do not count."""

    length: int
    best: Array
    mean: Array
    first: Array
    coverage: Array
    squared: Array
    named: Array
    right: NDArray[np.bool_]
    counts: NDArray[np.bool_]

    def rank(self, evidence: Array) -> float:
        """Return the reciprocal rank of the best right record."""
        ranked = np.where(self.counts, evidence, -np.inf)
        return float(1 / (1 + (ranked > ranked[self.right].max()).sum()))

    def evidence(self, weights: tuple[float, float, tuple[float, float], int]) -> Array:
        """Return the evidence of each record under weights of the grid."""
        first, mean, words, length = weights
        share = min(self.length / length, 1.0)
        linear, squared = (low + share * (high - low) for low, high in zip(words, LONG_QUERY_WEIGHTS, strict=True))
        similarity = self.best + first * (self.first - self.best) + mean * (self.mean - self.best)
        return similarity + linear * self.coverage + squared * self.squared + NAME_WEIGHT * self.named


def read_queries(content: Mapping[str, Any], embedder: Embedder) -> Iterator[Asked]:
    """Yield the queries of a collection with their features."""
    records: Sequence[Mapping[str, Any]] = content["records"]
    sources = [each["source"] for each in records]
    texts = [record_passages(each) for each in records]
    counts = np.array([len(each) for each in texts])
    starts = np.cumsum(counts) - counts
    vectors = np.concatenate([embedder.embed(each) for each in texts])
    contents = (
        SearchedContent(
            str(i), each["title"], each["context"], each.get("notes"), (), (each["source"],), each["source"]
        )
        for i, each in enumerate(records)
    )
    size = len(records)
    index = WordIndex().with_rows(0, [analyze_content(each) for each in contents], np.full(size, SHARED, np.int32))
    for asked in content["queries"]:
        query = RankedQuery.of(asked["text"], embedder.embed([asked["text"]])[0], embedder.model)
        products = (vectors @ query.vector).astype(np.float64)
        found = index.find([term.hash for term in query.terms], SHARED, np.ones(size, np.bool_))
        terms = [query.terms[place] for place in found.places]
        rarities = [
            term.count * inverse_document_frequency(size, count)
            for term, count in zip(terms, found.counts, strict=True)
        ]
        words = sum_word_evidence(terms, rarities, found.counts, found, LONG_QUERY, size)
        coverage, squared, named = np.zeros((3, size))
        coverage[words.rows] = words.coverage
        named[words.rows] = (words.fields & NAME_FIELD) != 0
        squared[words.rows] = (words.added - NAME_WEIGHT * named[words.rows]) / LONG_QUERY_WEIGHTS[1]
        yield Asked(
            query.length,
            np.maximum.reduceat(products, starts),
            np.add.reduceat(products, starts) / counts,
            products[starts],
            coverage,
            squared,
            named,
            np.array([source in asked["right"] for source in sources]),
            np.array([source != asked.get("asking") for source in sources]),
        )


def record_passages(record: Mapping[str, Any]) -> list[str]:
    """Return the passages of a record; its notes are one."""
    parts = spread_evenly(list(split_text(record["context"], PASSAGE_CHARACTERS)), MAX_PASSAGES - 1)
    return [f"{record['title']}\n{part}" for part in (*parts, *filter(None, [record.get("notes")]))] or [
        record["title"]
    ]


def rank_by_words(content: Mapping[str, Any]) -> float:
    """Return the mean reciprocal rank of BM25."""
    engine = WordsEngine([Record(each["source"], each["title"], each["context"]) for each in content["records"]])
    asked = [Query(each["text"], frozenset(each["right"]), each.get("asking")) for each in content["queries"]]
    return sum(reciprocal_rank(engine.rank(query), query.right) for query in asked) / len(asked)


def main() -> None:
    """Print a row for each collection, and the mean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    folder: Path = parser.parse_args().data
    embedder = build_embedder("minilm", None, download=False, threads=2, cache_size=0, data_dir=folder)
    names, groups, rows, scores = [], [], [], []
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        queries = list(read_queries(content, embedder))
        names.append(path.stem)
        groups.append(content.get("group", path.stem))
        scores.append([np.mean([each.rank(each.evidence(weights)) for each in queries]) for weights in GRID])
        rows.append([float(np.mean([each.rank(each.first) for each in queries])), rank_by_words(content)])
    measured = np.array(scores)
    print(f"{'collection':30}{'one vector':>12}{'BM25':>8}{'before':>8}{'left out':>10}  chosen without it")
    for place, name in enumerate(names):
        others = [other for other, group in enumerate(groups) if group != groups[place]]
        chosen = int(measured[others].mean(axis=0).argmax())
        rows[place] += [float(measured[place, GRID.index(BEFORE)]), float(measured[place, chosen])]
        print(f"{name:30}{'':4}{'  '.join(f'{value:6.3f}' for value in rows[place])}  {GRID[chosen]}")
    print(f"{'mean':30}{'':4}{'  '.join(f'{value:6.3f}' for value in np.mean(rows, axis=0))}")


if __name__ == "__main__":
    main()
