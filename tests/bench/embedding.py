"""Section `embedding`: what a text costs when many are embedded, beside large batches on one thread."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cstp_grpc.platform.embedding.embedder import BATCH_TOKENS, Embedder, EmbeddingThreads
from cstp_grpc.platform.embedding.model_files import WeightsMissing, find_model_files
from cstp_grpc.platform.embedding.onnx_embedders import MiniLmEmbedder
from tests.bench import corpus
from tests.bench.results import Better
from tests.bench.retrieval.corpora import read_corpora
from tests.bench.run import Run

LARGE_BATCH_TOKENS = 2048
"""Tokens of a batch that fill the caches of a processor: the yardstick."""
THREADS = 2
TEXTS = 120
"""Texts of a round, of every length: each n-th of the corpus."""


@dataclass(frozen=True)
class Cost:
    """Seconds of the processor and of the clock."""

    cpu: float
    wall: float


def measure_embedding(run: Run) -> None:
    """Measure both ways beside each other, round by round."""
    try:
        weights = find_model_files(None, download=False)
    except WeightsMissing:
        run.skip("", "the weights of the model are not on this machine")
        return
    models = run.folder / "models"
    plain = MiniLmEmbedder(weights, models, EmbeddingThreads(1, 1), LARGE_BATCH_TOKENS)
    alone = MiniLmEmbedder(weights, models, EmbeddingThreads(1, 1), BATCH_TOKENS)
    shared = MiniLmEmbedder(weights, models, EmbeddingThreads(1, THREADS), BATCH_TOKENS)
    texts = sample_texts(run.data, TEXTS // 10 if run.small else TEXTS)
    cpu, alone_wall, wall = [], [], []
    for number in range(run.rounds):
        run.progress(f"round {number + 1}/{run.rounds}: {len(texts)} texts")
        before, one, two = (measure_cost(embedder, texts) for embedder in (plain, alone, shared))
        cpu.append(one.cpu / before.cpu)
        alone_wall.append(one.wall / before.wall)
        wall.append(two.wall / before.wall)
        each = before.cpu / len(texts) * 1000
        run.note(f"{each:.1f} ms of CPU a text in large batches, {one.cpu / before.cpu:.2f} x in small ones")
    run.add("small-batches.cpu", "x", Better.LOWER, cpu)
    run.add("small-batches.wall", "x", Better.LOWER, alone_wall)
    run.add(f"small-batches-{THREADS}-threads.wall", "x", Better.LOWER, wall)


def measure_cost(embedder: Embedder, texts: Sequence[str]) -> Cost:
    """Return the seconds that embedding all texts takes."""
    cpu, wall = time.process_time(), time.perf_counter()
    embedder.embed(texts)
    return Cost(time.process_time() - cpu, time.perf_counter() - wall)


def sample_texts(data: Path | None, count: int) -> Sequence[str]:
    """Return texts of the corpora in a folder, or made ones without a folder."""
    if data is None:
        requests = corpus.decisions(count)
        return [f"{each.decision.title}\n{each.decision.context}" for each in requests]
    corpora = read_corpora(data)
    records = [record for name in ("proposals", "long records") for record in corpora[name]]
    return [f"{each.title}\n{each.context}" for each in records[:: max(1, len(records) // count)]]
