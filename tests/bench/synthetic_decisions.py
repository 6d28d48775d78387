"""Many decisions with made vectors, written into a journal without embedding them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cstp_grpc.contract.enums import DecisionStatus, Outcome, Visibility
from cstp_grpc.core.decisions.model import Decision
from cstp_grpc.core.decisions.read_policy import SHARE_WITH_ALL
from cstp_grpc.core.decisions.sql_change_log import SqlChangeLog
from cstp_grpc.core.decisions.sql_store import SqlDecisionStore
from cstp_grpc.core.decisions.store import JournalEntry, PassageVectors
from cstp_grpc.platform import config
from cstp_grpc.platform.embedding.embedder import Embedder
from cstp_grpc.platform.storage.database import open_database
from cstp_grpc.platform.storage.migration import migrate_database
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.bench import corpus

Vectors = NDArray[np.float32]

TOPICS = 50
"""Texts that are searched for; half of the vectors lie around those of the texts, the others anywhere."""
CATEGORIES = ("architecture", "process", "security", "operations")
TAGS = 7
"""Tags, of which each decision has one."""
AGENT, OTHER_AGENT = "bench", "other"
PRIVATE_STEP = 10
"""Each decision whose number this divides is private to OTHER_AGENT; the others are shared by AGENT."""
START = datetime(2020, 1, 1, tzinfo=UTC)
BATCH = 5_000
"""Decisions of one transaction."""


def topic_texts() -> list[str]:
    """Return the texts of the topics."""
    return [text for text, _ in zip(corpus.questions(), range(TOPICS), strict=False)]


def make_vectors(topics: Vectors, size: int) -> Vectors:
    """Return unit vectors: half of them with cosines of 0.4 to 0.9 to a topic, half random, the same each time."""
    generator = np.random.default_rng(7)
    vectors = np.empty((size, topics.shape[1]), np.float32)
    for start in range(0, size, BATCH):
        part = vectors[start : start + BATCH]
        part[:] = generator.standard_normal(part.shape, np.float32)
        around = generator.random(len(part)) < 0.5
        distances = generator.uniform(0.5, 2.3, len(part)).astype(np.float32) / np.sqrt(np.float32(part.shape[1]))
        part[around] *= distances[around, np.newaxis]
        part[around] += topics[generator.integers(len(topics), size=int(around.sum()))]
        part /= np.sqrt(np.vecdot(part, part))[:, np.newaxis]
    return vectors


def make_entry(number: int) -> JournalEntry:
    """Return a decision. Its words are no other's, so that only its vector is found and it belongs to no series."""
    private = number % PRIVATE_STEP == 0
    decision = Decision(
        id=decision_id(number),
        title=f"{made_word(number)} {made_word(number * 7919 + 13)}",
        status=DecisionStatus.REVIEWED,
        date=START + timedelta(minutes=number),
        agent=OTHER_AGENT if private else AGENT,
        visibility=Visibility.PRIVATE if private else Visibility.SHARED,
        category=CATEGORIES[number % len(CATEGORIES)],
        confidence=number % 101 / 100,
        outcome=list(Outcome)[number % len(Outcome)],
        tags=(f"tag-{number % TAGS}",),
    )
    return JournalEntry(decision, DecisionStatus.DECIDED, content_hash="")


def made_word(number: int) -> str:
    """Return a word that no language has, another one for each number."""
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    word = "x"
    while number:
        number, place = divmod(number, len(syllables))
        word += syllables[place]
    return word


def decision_id(number: int) -> str:
    """Return the id of a decision."""
    return f"dec-{number:08}"


def write_decisions(
    data_dir: Path, embedder: Embedder, vectors: Vectors, make: Callable[[int], JournalEntry] = make_entry
) -> None:
    """Make the journal of a data folder with a decision for each vector."""
    settings = config.load_settings(None, data_dir=data_dir)
    database = open_database(settings.storage_url, settings.storage.pool_size)
    try:
        migrate_database(database)
        store, writer = SqlDecisionStore(database, SHARE_WITH_ALL), GroupCommitWriter(database, 600)
        changes = SqlChangeLog(database)

        def insert(numbers: Sequence[int], unit_of_work: UnitOfWork) -> None:
            # Numbered as the server numbers changes, which therefore continues after them.
            entries = [(make(number), changes.append(unit_of_work, decision_id(number))) for number in numbers]
            store.insert(unit_of_work, entries, START)
            passages = [(decision_id(number), PassageVectors(vectors[number : number + 1])) for number in numbers]
            store.put_vectors(unit_of_work, embedder.model, passages)

        try:
            for numbers in batches(len(vectors)):
                writer.run(partial(insert, numbers))
        finally:
            writer.close()
    finally:
        database.close()


def batches(size: int) -> Iterator[range]:
    """Yield the numbers of decisions in batches."""
    for start in range(0, size, BATCH):
        yield range(start, min(size, start + BATCH))
