"""Which sentence of a long lesson is quoted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import ClassVar

import numpy as np

from cstp_grpc.contract.enums import Outcome
from cstp_grpc.core.decisions.model import Decision
from cstp_grpc.core.intents.model import IntentVector
from cstp_grpc.core.intents.quoted_lessons import lesson_sentences, quote_lessons
from cstp_grpc.platform.embedding.embedder import CachedEmbedder, Vectors
from cstp_grpc.platform.embedding.lexical_embedder import LexicalEmbedder
from cstp_grpc.platform.storage.database import Database
from tests.core.intents.related import build_related
from tests.core.intents.test_suggestions import match

GENERIC = "We need better monitoring of everything that can break in any of the clusters. " * 3
HELPFUL = "Read the release notes of the vendor before an upgrade."
FAILED = match("Upgrade DNS", Outcome.FAILURE, f"{GENERIC}{HELPFUL}").decision


async def embed(texts: Sequence[str]) -> list[IntentVector]:
    """Return the same vector for texts about upgrades, and another one for all others."""
    return [np.array([1, 0] if "upgrade" in text.lower() else [0, 1], np.float32) for text in texts]


def quote(intent: str, *decisions: Decision) -> dict[str, str]:
    return asyncio.run(quote_lessons(decisions, intent, embed))


def test_the_nearest_sentence_is_quoted() -> None:
    assert quote("Upgrade the name servers", FAILED) == {"Upgrade DNS": HELPFUL}


def test_nothing_is_quoted_if_no_sentence_is_near() -> None:
    lesson = match("Upgrade DNS", Outcome.FAILURE, GENERIC).decision
    assert quote("Upgrade the name servers", lesson) == {"Upgrade DNS": ""}


def test_short_lessons_are_not_shortened() -> None:
    assert quote("Upgrade the name servers", match("Upgrade DNS", Outcome.FAILURE, HELPFUL).decision) == {}


def test_a_list_is_not_said_whole() -> None:
    lesson = match("Upgrade DNS", Outcome.FAILURE, f"- We need better monitoring\n- {HELPFUL}").decision
    assert quote("Upgrade the name servers", lesson) == {"Upgrade DNS": HELPFUL}


def test_only_the_first_records_are_compared() -> None:
    several = [match(f"Upgrade {number}", Outcome.FAILURE, f"{GENERIC}{HELPFUL}").decision for number in range(3)]
    assert list(quote("Upgrade the name servers", *several).values()) == [HELPFUL, HELPFUL, ""]


def test_sections_that_teach_are_read() -> None:
    context = "# DNS\n## Timeline\n- 10:00 it broke for all\n## Action items\n\n- Pin the version of DNS\n1. Test it\n"
    decision = match("Upgrade DNS", Outcome.FAILURE, "Two things were learned.", context=context).decision
    assert lesson_sentences(decision) == ["Two things were learned.", "Pin the version of DNS"]


def test_texts_that_are_not_cached_are_embedded_at_once(database: Database) -> None:
    class Recorder(LexicalEmbedder):
        batches: ClassVar[list[list[str]]] = []

        def embed(self, texts: Sequence[str]) -> Vectors:
            self.batches.append(list(texts))
            return super().embed(texts)

    related = build_related(database, lambda: datetime.now(UTC), embedder=CachedEmbedder(Recorder(), 10))
    first = asyncio.run(related.embed_all(["read the notes", "pin the version"]))
    again = asyncio.run(related.embed_all(["pin the version", "test it", "read the notes"]))
    assert Recorder.batches == [["read the notes", "pin the version"], ["test it"]]
    assert [first[1].tolist(), first[0].tolist()] == [again[0].tolist(), again[2].tolist()]
