from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.platform.embedding.lexical_embedder import LexicalEmbedder
from tests.named_case import named_case

RECORDS = (
    "Keep orders in PostgreSQL\nThe order service needs transactions across tables and reports by joins.",
    "Replace polling by a message queue\nWorkers asked for jobs every second. RabbitMQ hands them out at once.",
    "Encrypt backups with age\nDumps were copied in clear text to another site.",
    "ADR-0021: TLS by the load balancer\nCertificates on the instances expired unnoticed.",
    "Pin log4j to 2.17.1\nCVE-2021-44228 allowed remote code execution through lookups.",
    "Turn off ERR_CONN_4711 alerts\nThe alert fired nightly and nobody acted on it.",
    "Bound workerProcesses of the proxy\nIt started one per core of the host and memory ran out.",
    "Postpone the move to Kubernetes\nThe team of four cannot run it and the hosts are idle.",
)


def similarity(first: str, second: str) -> float:
    one, other = LexicalEmbedder().embed([first, second])
    return float(one @ other)


def best(query: str) -> str:
    embedder = LexicalEmbedder()
    return RECORDS[int(np.argmax(embedder.embed(RECORDS) @ embedder.embed([query])[0]))]


@given(st.lists(st.text(st.characters(exclude_categories=())), max_size=5))
def test_every_text_has_a_unit_vector(texts: list[str]) -> None:
    embedder = LexicalEmbedder()
    vectors = embedder.embed(texts)
    assert vectors.shape == (len(texts), embedder.dimensions)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


@given(st.lists(st.text(), min_size=1, max_size=5))
def test_a_text_has_the_same_vector_alone_and_among_others(texts: list[str]) -> None:
    embedder = LexicalEmbedder()
    np.testing.assert_array_equal(embedder.embed(texts), np.concatenate([embedder.embed([text]) for text in texts]))


def test_another_process_gets_the_same_vectors() -> None:
    program = (
        "import sys; from cstp_grpc.platform.embedding.lexical_embedder import LexicalEmbedder\n"
        "sys.stdout.buffer.write(LexicalEmbedder().embed(['Keep orders in PostgreSQL', '?']).tobytes())"
    )
    other = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONHASHSEED": "1234"}, capture_output=True, check=True, timeout=60
    )
    assert other.stdout == LexicalEmbedder().embed(["Keep orders in PostgreSQL", "?"]).tobytes()


def test_words_identifiers_and_misspellings_are_found() -> None:
    for query, start in [
        ("order transactions", "Keep orders"),
        ("message queues for workers", "Replace polling"),
        ("backup encryption", "Encrypt backups"),
        ("adr 0021", "ADR-0021"),
        ("certificate of the load-balancer", "ADR-0021"),
        ("CVE-2021-44228", "Pin log4j"),
        ("log4j 2.17.1", "Pin log4j"),
        ("err_conn_4711", "Turn off"),
        ("worker_processes", "Bound workerProcesses"),
        ("rabbitmq", "Replace polling"),
        ("kubernets", "Postpone"),
    ]:
        with named_case(query, start):
            assert best(query).startswith(start)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("CAFÉ policies", "cafe policy"),
        ("retryBudget", "retry_budget"),
        ("retried deployments", "retries deployment"),
        ("the balancer of the cluster", "balancer cluster"),
    ],
)
def test_spellings_of_the_same_words_are_close(first: str, second: str) -> None:
    assert similarity(first, second) > 0.7


def test_texts_with_other_words_are_far_apart() -> None:
    assert abs(similarity("encrypt every backup", "postpone the cluster")) < 0.2


def test_common_words_do_not_make_texts_similar() -> None:
    assert similarity("what should we do with the queue", "what should we do with the ledger") < 0.3


def test_texts_without_words_resemble_themselves_only() -> None:
    assert similarity("?!", "?!") == pytest.approx(1)
    assert abs(similarity("?!", "encrypt every backup")) < 0.2


def test_the_end_of_a_very_long_text_does_not_count() -> None:
    long = "ledger " * 2000
    assert similarity(long, long + "kubernetes") == pytest.approx(1)
