"""A server whose texts are embedded by an endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cstp_grpc.client.cstp_client import CstpClient
from cstp_grpc.contract.errors import QueryFailed
from cstp_grpc.platform.embedding.lexical_embedder import DIMENSIONS
from cstp_grpc.server.app import App
from tests.harness import TOKENS, running, settings
from tests.platform.embedding.endpoints import EmbeddingServer, embedding_server
from tests.waiting import SECONDS, wait_until


@pytest.fixture
def endpoint() -> Iterator[EmbeddingServer]:
    with embedding_server() as started:
        yield started


def configured(data_dir: Path, endpoint: EmbeddingServer, **more: Any) -> Any:
    embedding = {"provider": "openai", "url": endpoint.url, "model": "small", "dimensions": DIMENSIONS, "retries": 0}
    return settings(data_dir, embedding={**embedding, **more})


@contextmanager
def client_of(app: App) -> Iterator[CstpClient]:
    with CstpClient(f"grpc://{app.target}", TOKENS["alice"]) as client:
        yield client


def test_decisions_are_found_by_the_vectors_of_the_endpoint(tmp_path: Path, endpoint: EmbeddingServer) -> None:
    with running(configured(tmp_path, endpoint)) as app, client_of(app) as client:
        client.record_decision("Use a queue for mail")
        client.record_decision("Encrypt the backups")
        found = client.query_decisions("a queue for the mail")
        assert [each.title for each in found.decisions][:1] == ["Use a queue for mail"]


def test_what_cannot_be_embedded_is_an_error_and_never_an_empty_answer(
    tmp_path: Path, endpoint: EmbeddingServer
) -> None:
    with running(configured(tmp_path, endpoint)) as app, client_of(app) as client:
        client.record_decision("Use a queue for mail")
        endpoint.reply = lambda _: (500, {})
        reason = "could not be turned into a vector: the endpoint answers with HTTP 500"
        with pytest.raises(QueryFailed, match=reason):
            client.announce_intent("Move mail to a queue", correlation_id="c-1")
        with pytest.raises(QueryFailed, match=reason):
            client.query_decisions("mail queue")
        with pytest.raises(QueryFailed, match=reason):
            client.record_decision("Use another queue")
        assert [each.title for each in client.list_decisions()] == ["Use a queue for mail"]


def test_a_server_whose_endpoint_fails_serves_what_it_has_embedded(tmp_path: Path, endpoint: EmbeddingServer) -> None:
    with running(configured(tmp_path, endpoint)) as app, client_of(app) as client:
        client.record_decision("Use a queue for mail")
    asked = len(endpoint.requests)
    with running(configured(tmp_path, endpoint)) as app, client_of(app) as client:
        assert len(endpoint.requests) == asked
        assert client.query_decisions("a queue for mail").decisions


def test_searches_wait_for_the_endpoint_beside_each_other(tmp_path: Path, endpoint: EmbeddingServer) -> None:
    number = 6
    with running(configured(tmp_path, endpoint)) as app, client_of(app) as client:
        client.record_decision("Use a queue for mail")
        endpoint.may_answer.clear()
        asked = len(endpoint.requests)
        with ThreadPoolExecutor(number) as callers:
            answers = [callers.submit(client.query_decisions, f"queue number {n}") for n in range(number)]
            wait_until(lambda: len(endpoint.requests) == asked + number, "all queries are with the endpoint")
            # What needs no vector is answered meanwhile.
            assert client.check_guardrails("Move mail").evaluated
            endpoint.may_answer.set()
            assert all(answer.result(SECONDS) for answer in answers)


def test_only_queries_for_decisions_get_the_prompt_of_queries(tmp_path: Path, endpoint: EmbeddingServer) -> None:
    wanted = configured(tmp_path, endpoint, query_prefix="query: ", passage_prefix="passage: ")
    with running(wanted) as app, client_of(app) as client, CstpClient(f"grpc://{app.target}", TOKENS["bob"]) as bob:
        client.record_decision("Use a queue for mail")
        announced = client.announce_intent("Move mail to a queue", visibility="shared")
        assert [each.title for each in announced.similar_decisions] == ["Use a queue for mail"]
        session = bob.get_session_context(task="Move the mail to a queue")
        assert [each.intent for each in session.related_intents] == ["Move mail to a queue"]
        client.query_decisions("a queue for mail")
    assert sent_texts(endpoint) == {
        "passage: Use a queue for mail",
        "query: Move mail to a queue",
        "passage: Move mail to a queue",
        "passage: Move the mail to a queue",
        "query: a queue for mail",
    }


@pytest.mark.parametrize(
    "changed", [{"passage_prefix": "text: ", "query_prefix": "query: "}, {"query_prefix": "question: "}, {}]
)
def test_a_server_with_other_prompts_embeds_its_journal_again(
    tmp_path: Path, endpoint: EmbeddingServer, changed: dict[str, str]
) -> None:
    with running(configured(tmp_path, endpoint, query_prefix="query: ")) as app, client_of(app) as client:
        client.record_decision("Use a queue for mail")
    endpoint.requests.clear()
    with running(configured(tmp_path, endpoint, **changed)) as app, client_of(app) as client:
        assert sent_texts(endpoint) == {changed.get("passage_prefix", "") + "Use a queue for mail"}
        assert client.query_decisions("a queue for mail").decisions


def sent_texts(endpoint: EmbeddingServer) -> set[str]:
    return {text for request in endpoint.requests for text in request["input"]}
