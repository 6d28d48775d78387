"""reindex: another embedder for a journal, with and without a server that runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from cstp_grpc.client.cstp_client import CstpClient
from cstp_grpc.core.decisions.reindexing import PREPARED_BATCH
from cstp_grpc.platform.embedding.lexical_embedder import DIMENSIONS
from tests.cli.conftest import Invoke
from tests.harness import TOKENS, running, settings
from tests.platform.embedding.endpoints import EmbeddingServer, embedding_server
from tests.waiting import SECONDS, wait_until

OLD = {"CSTP_EMBEDDING__PROVIDER": "lexical"}


@pytest.fixture
def endpoint() -> Iterator[EmbeddingServer]:
    with embedding_server() as started:
        yield started


def new(endpoint: EmbeddingServer) -> dict[str, str]:
    """Return the environment of the new embedder."""
    embedding = {"PROVIDER": "openai", "URL": endpoint.url, "MODEL": "small", "DIMENSIONS": str(DIMENSIONS)}
    return {**{f"CSTP_EMBEDDING__{key}": value for key, value in embedding.items()}}


def import_titles(invoke: Invoke, home: Path, count: int) -> list[str]:
    """Import decisions with the old embedder and return their titles."""
    titles = [f"Decision number {number}" for number in range(count)]
    lines = [json.dumps({"id": title, "title": title, "date": "2026-01-01"}) for title in titles]
    (home / "records.jsonl").write_text("\n".join(lines))
    assert invoke("import", "records.jsonl", env=OLD).exit_code == 0
    return titles


def texts(endpoint: EmbeddingServer) -> list[str]:
    return [text for request in endpoint.requests for text in request["input"]]


def test_without_a_server_the_new_vectors_are_used_at_once(
    invoke: Invoke, home: Path, endpoint: EmbeddingServer
) -> None:
    titles = import_titles(invoke, home, 5)
    result = invoke("reindex", env=new(endpoint))
    assert result.exit_code == 0, result.output
    assert f"5 of 5 decisions were embedded with openai:small:{DIMENSIONS}:centred" in result.stdout
    assert "Searches use its vectors." in result.stdout
    assert sorted(texts(endpoint)) == titles
    again = invoke("reindex", "--json", env=new(endpoint))
    report = {"model": f"openai:small:{DIMENSIONS}:centred", "embedded": 0, "decisions": 5, "inUse": True}
    assert json.loads(again.stdout) == report
    # An import finds every vector of the new model, and asks for none.
    assert "5 unchanged" in invoke("import", "records.jsonl", env=new(endpoint)).stdout
    assert sorted(texts(endpoint)) == titles


@pytest.mark.slow
def test_a_reindexing_that_is_killed_goes_on_where_it_stopped(
    invoke: Invoke, home: Path, endpoint: EmbeddingServer
) -> None:
    titles = import_titles(invoke, home, PREPARED_BATCH + 10)
    first_batch, answer = PREPARED_BATCH, endpoint.reply

    def stop_after_the_first_batch(wanted: object) -> tuple[int, object]:
        if len(texts(endpoint)) > first_batch:
            endpoint.may_answer.clear()
            endpoint.may_answer.wait(SECONDS)
        return answer(wanted)  # type: ignore[arg-type]

    endpoint.reply = stop_after_the_first_batch
    environment: Mapping[str, str] = {**os.environ, **new(endpoint), "CSTP_EMBEDDING__BATCH": str(PREPARED_BATCH)}
    process = subprocess.Popen([sys.executable, "-m", "cstp_grpc", "reindex"], env=environment, cwd=home)
    try:
        wait_until(lambda: len(texts(endpoint)) == len(titles), "the second batch is asked for")
    finally:
        process.kill()
        process.wait(SECONDS)
    endpoint.reply = answer
    endpoint.may_answer.set()
    endpoint.requests.clear()
    result = invoke("reindex", env=new(endpoint))
    assert f"10 of {len(titles)} decisions were embedded" in result.stdout, result.output
    assert len(texts(endpoint)) == 10


def test_a_server_goes_on_with_the_old_vectors_and_takes_the_new_ones_over_when_restarted(
    invoke: Invoke, home: Path, endpoint: EmbeddingServer
) -> None:
    old = settings(home / "var" / "cstp")
    data_dir = {"CSTP_DATA_DIR": str(old.data_dir)}
    with running(old) as app, CstpClient(f"grpc://{app.target}", TOKENS["alice"]) as client:
        recorded = [client.record_decision(title) for title in ("Use a queue for mail", "Encrypt the backups")]
        result = invoke("reindex", env={**new(endpoint), **data_dir})
        assert result.exit_code == 0, result.output
        assert "Servers use its vectors once they are restarted with this configuration." in result.stdout
        assert client.query_decisions("a queue for mail").decisions[0].id == recorded[0].id
        client.record_decision("Rotate the keys")
    asked = len(texts(endpoint))
    assert asked == 2
    embedding = {"provider": "openai", "url": endpoint.url, "model": "small", "dimensions": DIMENSIONS}
    after = settings(old.data_dir, embedding=embedding)
    with running(after) as app, CstpClient(f"grpc://{app.target}", TOKENS["alice"]) as client:
        # What was recorded in between is all that is left to embed.
        assert texts(endpoint)[asked:] == ["Rotate the keys"]
        assert client.query_decisions("a queue for mail").decisions[0].id == recorded[0].id


def test_an_endpoint_that_fails_is_told_and_nothing_is_lost(
    invoke: Invoke, home: Path, endpoint: EmbeddingServer
) -> None:
    import_titles(invoke, home, 3)
    endpoint.reply = lambda _: (401, {})
    result = invoke("reindex", env=new(endpoint))
    assert result.exit_code == 1
    assert "the endpoint answers with HTTP 401" in result.stderr
    assert "3 unchanged" in invoke("import", "records.jsonl", env=OLD).stdout
