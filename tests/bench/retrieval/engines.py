"""What is compared: vectors alone, words alone, and the server."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np

from cstp_grpc.gen.cstp.v1 import cstp_pb2, cstp_pb2_grpc, journal_pb2, journal_pb2_grpc
from cstp_grpc.platform.embedding.embedder import Embedder
from tests.bench.clients import TOKEN, dialled
from tests.bench.processes import server
from tests.bench.retrieval.corpora import Query, Record

RESULTS = 50
"""Results requested: the most that a query answers."""
K1, B = 1.2, 0.75
"""The usual constants of BM25 (Robertson and Zaragoza, 2009)."""
METADATA = (("authorization", f"Bearer {TOKEN}"),)
IMPORT_SECONDS = 1200
WORD = re.compile(r"[^\W_]+")


class Engine(Protocol):
    """Ranks the records of one corpus."""

    def rank(self, query: Query) -> Sequence[str]:
        """Return the sources of the records that it finds, best first, without the one that asks."""


class DenseEngine:
    """One vector for each record, of its title and context, by cosine similarity."""

    def __init__(self, records: Sequence[Record], embedder: Embedder) -> None:
        self._embedder = embedder
        self._sources = [each.source for each in records]
        self._vectors = embedder.embed([f"{each.title}\n{each.context}" for each in records])

    def rank(self, query: Query) -> Sequence[str]:
        """Return the sources by falling similarity."""
        scores = self._vectors @ self._embedder.embed([query.text])[0]
        ranked = [self._sources[place] for place in np.argsort(-scores, kind="stable")]
        return [source for source in ranked if source != query.asking][:RESULTS]


class WordsEngine:
    """Okapi BM25 over the words of title, context and source."""

    def __init__(self, records: Sequence[Record]) -> None:
        texts = [Counter(split_words(f"{each.source} {each.title} {each.context}")) for each in records]
        self._sources = [each.source for each in records]
        lengths = [sum(words.values()) for words in texts]
        mean = sum(lengths) / len(lengths)
        self._impacts: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for place, words in enumerate(texts):
            for word, count in words.items():
                impact = count * (K1 + 1) / (count + K1 * (1 - B + B * lengths[place] / mean))
                self._impacts[word].append((place, impact))

    def rank(self, query: Query) -> Sequence[str]:
        """Return the sources by falling score."""
        scores: dict[int, float] = defaultdict(float)
        for word, count in Counter(split_words(query.text)).items():
            found = self._impacts.get(word, [])
            rarity = math.log(1 + (len(self._sources) - len(found) + 0.5) / (len(found) + 0.5))
            for place, impact in found:
                scores[place] += count * rarity * impact
        ranked = [self._sources[place] for place in sorted(scores, key=lambda place: (-scores[place], place))]
        return [source for source in ranked if source != query.asking][:RESULTS]


class ServedEngine:
    """The server, asked over gRPC as an agent asks it; `min_score` None means its default."""

    def __init__(
        self, stub: cstp_pb2_grpc.CstpServiceStub, sources: Mapping[str, str], min_score: float | None
    ) -> None:
        self._stub = stub
        self._sources = sources
        self._min_score = min_score

    def rank(self, query: Query) -> Sequence[str]:
        """Return the sources in the order of the answer."""
        request = cstp_pb2.QueryDecisionsRequest(query=query.text, limit=RESULTS, min_score=self._min_score)
        answer = self._stub.QueryDecisions(request, metadata=METADATA)
        ranked = [self._sources[each.id] for each in answer.decisions]
        return [source for source in ranked if source != query.asking]

    def best_query_score(self, text: str) -> float:
        """Return the score of the first result of a query; 0 if there is none."""
        request = cstp_pb2.QueryDecisionsRequest(query=text, limit=1, min_score=self._min_score)
        answer = self._stub.QueryDecisions(request, metadata=METADATA)
        return max((each.score for each in answer.decisions), default=0.0)

    def best_feedback_score(self, intent: str) -> float:
        """Return the score of the most relevant decision in the feedback on an announcement; 0 if there is none."""
        answer = self._stub.AnnounceIntent(cstp_pb2.AnnounceIntentRequest(intent=intent), metadata=METADATA)
        return max((each.score for each in answer.similar_decisions), default=0.0)


@contextmanager
def served_engines(records: Sequence[Record], folder: Path, provider: str) -> Iterator[Mapping[str, ServedEngine]]:
    """Run a server with the records, and yield it without a threshold and with its default one."""
    with server(folder, "--provider", provider) as served, dialled(served.grpc) as channel:
        stub = journal_pb2_grpc.JournalServiceStub(channel)
        imported = stub.ImportDecisions(map(import_request, records), metadata=METADATA, timeout=IMPORT_SECONDS)
        sources = {each.decision_id: each.source for each in imported.results}
        queries = cstp_pb2_grpc.CstpServiceStub(channel)
        yield {"ours at 0": ServedEngine(queries, sources, 0.0), "ours": ServedEngine(queries, sources, None)}


def import_request(record: Record) -> journal_pb2.ImportDecisionsRequest:
    """Return the request that imports a record."""
    request = journal_pb2.ImportDecisionsRequest(source=record.source)
    request.decision.title = record.title
    if record.context:
        request.decision.context = record.context
    return request


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return [word.lower() for word in WORD.findall(text)]
