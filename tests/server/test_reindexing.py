"""Another embedder for the journal of a server that runs, on either database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cstp_grpc.client.cstp_client import CstpClient
from cstp_grpc.platform.config import Settings
from cstp_grpc.platform.embedding.lexical_embedder import DIMENSIONS
from cstp_grpc.server.reindex import reindex_journal
from tests.harness import TOKENS, running, settings
from tests.platform.embedding.endpoints import EmbeddingServer, Reply, embedding_server

TITLES = ("Use a queue for mail", "Encrypt the backups", "Rotate the keys")


@pytest.fixture
def endpoint() -> Iterator[EmbeddingServer]:
    with embedding_server() as started:
        yield started


class Setting:
    """The settings of a journal with the old embedder and with the new one."""

    def __init__(self, folder: Path, url: str, endpoint: EmbeddingServer) -> None:
        new = {"provider": "openai", "url": endpoint.url, "model": "small", "dimensions": DIMENSIONS}
        self.old = settings(folder / "data", storage={"url": url})
        self.new = settings(folder / "data", storage={"url": url}, embedding=new)
        self.progress: list[int] = []

    def reindex(self) -> Any:
        def start(total: int) -> Any:
            self.progress = [total]
            return self.progress.append

        return reindex_journal(self.new, start)


@pytest.fixture
def journal(tmp_path: Path, database_url: str, endpoint: EmbeddingServer) -> Setting:
    return Setting(tmp_path, database_url, endpoint)


@contextmanager
def serving(wanted: Settings) -> Iterator[CstpClient]:
    with running(wanted) as app, CstpClient(f"grpc://{app.target}", TOKENS["alice"]) as client:
        yield client


def first_found(client: CstpClient, query: str) -> str:
    title: str = client.query_decisions(query).decisions[0].title
    return title


def test_a_server_serves_on_while_its_journal_is_embedded_anew(journal: Setting, endpoint: EmbeddingServer) -> None:
    answer = endpoint.reply
    seen: list[str] = []
    with serving(journal.old) as client:
        for title in TITLES:
            client.record_decision(title)

        def record_meanwhile(texts: Sequence[str]) -> Reply:
            # While the first batch is being embedded: a search, and a new decision.
            if not seen:
                seen.append(first_found(client, "a queue for mail"))
                client.record_decision("Compress the logs")
            return answer(texts)

        endpoint.reply = record_meanwhile
        report = journal.reindex()
        assert seen == [TITLES[0]]
        assert (report.embedded, report.decisions, report.in_use) == (4, 4, False)
        assert journal.progress[0] == 3
        assert sum(journal.progress[1:]) == 4
        assert first_found(client, "compress the logs") == "Compress the logs"
    endpoint.requests.clear()
    with serving(journal.new) as client:
        assert endpoint.requests == []
        assert first_found(client, "a queue for mail") == TITLES[0]


def test_a_restart_before_all_is_embedded_embeds_the_rest(journal: Setting, endpoint: EmbeddingServer) -> None:
    with serving(journal.old) as client:
        for title in TITLES[:2]:
            client.record_decision(title)
        journal.reindex()
        client.record_decision(TITLES[2])
    endpoint.requests.clear()
    with serving(journal.new) as client:
        assert [request["input"] for request in endpoint.requests] == [[TITLES[2]]]
        assert first_found(client, "rotate keys") == TITLES[2]


def test_the_old_embedder_can_be_kept_after_all(journal: Setting, endpoint: EmbeddingServer) -> None:
    with serving(journal.old) as client:
        client.record_decision(TITLES[0])
        journal.reindex()
    endpoint.requests.clear()
    with serving(journal.old) as client:
        assert first_found(client, "a queue for mail") == TITLES[0]
    assert endpoint.requests == []


def test_without_a_server_only_the_journal_of_this_machine_is_switched(journal: Setting, database_kind: str) -> None:
    with serving(journal.old) as client:
        client.record_decision(TITLES[0])
    assert journal.reindex().in_use == (database_kind == "sqlite")
    assert journal.reindex().embedded == 0
