"""Reviews of one node by many at once, with an embedder that takes its time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from cstp_grpc.platform.embedding.lexical_embedder import DIMENSIONS
from tests.harness import TOKENS, GrpcCaller, Outcome, running, settings
from tests.modules.intent_layer.trees import write_tree
from tests.platform.embedding.endpoints import EmbeddingServer, embedding_server
from tests.waiting import SECONDS, wait_until

REVIEWERS = 17
ITEMS = 226
NODE = "## Purpose\n\nA shop.\n\n## Pitfalls\n\n" + "".join(
    f"- Shelf {n} holds {n * n} crates.\n" for n in range(ITEMS)
)


@pytest.fixture
def endpoint() -> Iterator[EmbeddingServer]:
    with embedding_server() as started:
        yield started


@contextmanager
def shop(folder: Path, endpoint: EmbeddingServer) -> Iterator[GrpcCaller]:
    write_tree(folder / "shop", {"CLAUDE.md": NODE})
    embedding = {
        "provider": "openai",
        "url": endpoint.url,
        "model": "small",
        "dimensions": DIMENSIONS,
        "timeout_seconds": 60,
    }
    layer = {"projects": [{"name": "shop", "root": str(folder / "shop")}], "refresh_seconds": 3600}
    with running(settings(folder / "data", intent_layer=layer, embedding=embedding)) as app:
        wait_until(lambda: bool(endpoint.requests), "the nodes are copied into the journal")
        caller = GrpcCaller(app.target)
        yield caller
        caller.close()


def report(caller: GrpcCaller, title: str) -> str:
    params = {"project": "shop", "path": "x.py", "type": "pitfall", "title": title, "detail": title}
    outcome = caller.call("intentLayer.reportLearning", params, TOKENS["alice"])
    assert outcome.result is not None, outcome
    learning_id: str = outcome.result["learning"]["id"]
    return learning_id


def review(caller: GrpcCaller, learning_id: str, verdict: str) -> Outcome:
    params = {"project": "shop", "id": learning_id, "verdict": verdict}
    return caller.call("intentLayer.reviewLearning", params, TOKENS["bob"])


def test_concurrent_reviews_of_a_large_node_embed_each_statement_once(
    tmp_path: Path, endpoint: EmbeddingServer
) -> None:
    with shop(tmp_path, endpoint) as caller, ThreadPoolExecutor(REVIEWERS) as pool:
        ids = [report(caller, title) for title in different_titles(REVIEWERS)]
        endpoint.requests.clear()
        outcomes = list(pool.map(lambda learning_id: review(caller, learning_id, "accept"), ids))
        compared = Counter(text for request in endpoint.requests for text in request["input"])
        node = (tmp_path / "shop" / "CLAUDE.md").read_text()
    assert [outcome.reason for outcome in outcomes] == [None] * REVIEWERS
    assert [node.count(f"_Source: {learning_id}.md_") for learning_id in ids] == [1] * REVIEWERS
    items = {text: count for text, count in compared.items() if "crates" in text and text.count("\n") == 0}
    assert len(items) == ITEMS
    assert set(items.values()) == {1}


def test_a_comparison_does_not_make_other_reviews_wait(tmp_path: Path, endpoint: EmbeddingServer) -> None:
    with shop(tmp_path, endpoint) as caller, ThreadPoolExecutor(1) as pool:
        accepted, rejected = report(caller, "Webhooks arrive twice"), report(caller, "Orders arrive late")
        endpoint.requests.clear()
        endpoint.may_answer.clear()
        accepting = pool.submit(review, caller, accepted, "accept")
        wait_until(lambda: bool(endpoint.requests), "the statements are being embedded")
        assert review(caller, rejected, "reject").reason is None
        assert not accepting.done()
        endpoint.may_answer.set()
        assert accepting.result(SECONDS).reason is None


def test_a_statement_that_is_added_during_the_comparison_is_compared_too(
    tmp_path: Path, endpoint: EmbeddingServer
) -> None:
    with shop(tmp_path, endpoint) as caller, ThreadPoolExecutor(1) as pool:
        accepted = report(caller, "Webhooks arrive twice")
        endpoint.requests.clear()
        endpoint.may_answer.clear()
        accepting = pool.submit(review, caller, accepted, "accept")
        wait_until(lambda: bool(endpoint.requests), "the statements are being embedded")
        (tmp_path / "shop" / "CLAUDE.md").write_text(f"{NODE}- Crates are blue.\n")
        endpoint.may_answer.set()
        assert accepting.result(SECONDS).reason is None
        assert "- Crates are blue." in [text for request in endpoint.requests for text in request["input"]]
    assert "- Crates are blue." in (tmp_path / "shop" / "CLAUDE.md").read_text()


def different_titles(count: int) -> list[str]:
    """Return titles that have no word in common."""
    return [" ".join(f"{letter}{vowel}{letter}{vowel}" for vowel in "aeiou") for letter in "bdfgklmnprstvzhjw"[:count]]
