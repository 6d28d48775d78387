"""The parts that a call is made of, each measured alone in this process."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from cstp_grpc.config import EmbeddingSettings
from cstp_grpc.decisions.embedding.build import build_embedder
from cstp_grpc.guardrails.evaluator import Evaluator
from cstp_grpc.guardrails.model import Action
from cstp_grpc.guardrails.rulebook import default_rulebook, load
from cstp_grpc.vocabulary import Stakes
from tests.bench import corpus
from tests.bench.clients import CHECK
from tests.bench.load import Call, Series


def durable_transaction(folder: Path) -> Callable[[], Call]:
    """Return a maker of transactions that put one row of an audit entry's size on disk, by the bare driver."""

    def make() -> Call:
        connection = sqlite3.connect(folder / "alone.db", isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE IF NOT EXISTS entries (id INTEGER PRIMARY KEY, content TEXT)")
        row = ("x" * 300,)

        def send(_: object) -> object:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO entries (content) VALUES (?)", row)
            return connection.execute("COMMIT")

        return Call(lambda: None, send)

    return make


def evaluation() -> Callable[[], Call]:
    """Return a maker of judgements by the default rulebook."""
    evaluator = Evaluator(load(default_rulebook()))
    content = CHECK["action"]
    action = Action(content["description"], content["category"], Stakes.HIGH, content["confidence"], content["context"])
    return lambda: Call(lambda: action, evaluator.evaluate)


def embedding(data_dir: Path) -> Callable[[], Call]:
    """Return a maker of embeddings of texts that no cache knows."""
    embedder = build_embedder(**EmbeddingSettings(cache_size=0).model_dump(), data_dir=data_dir)
    texts = corpus.questions(seed=13)
    return lambda: Call(lambda: [next(texts)], embedder.embed)


def parts(folder: Path, data_dir: Path) -> list[Series]:
    """Return the series of every part."""
    return [
        Series("one durable transaction (sqlite3)", 1, durable_transaction(folder)),
        Series("guardrail engine, default rulebook", 1, evaluation()),
        Series("embedding of a question", 1, embedding(data_dir)),
    ]
