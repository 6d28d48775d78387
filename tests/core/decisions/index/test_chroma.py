"""The collection of a model's vectors in a real Chroma server, and the requests to it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest

from cstp_grpc.core.decisions.search import chroma_index
from cstp_grpc.core.decisions.search.ann_index import IndexCorrupted, IndexUnavailable
from cstp_grpc.core.decisions.search.chroma_index import ChromaHttpClient, ChromaIndex, collection_name
from cstp_grpc.core.decisions.search.chroma_process import ChildChromaServer
from cstp_grpc.core.decisions.store import Vector

DIMENSIONS = 16


def spread(count: int) -> list[Vector]:
    vectors = np.random.default_rng(5).standard_normal((count, DIMENSIONS)).astype(np.float32)
    return list(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = ChildChromaServer(tmp_path_factory.mktemp("chroma") / "index")
    yield server.start(threading.Event())
    server.stop()


@pytest.fixture
def index(url: str) -> Iterator[ChromaIndex]:
    with closing(ChromaIndex.open(url, "model", DIMENSIONS)) as index:
        index.reset()
        yield index


def test_it_proposes_the_nearest_first(index: ChromaIndex) -> None:
    vectors = spread(30)
    index.upsert([f"dec-{number}" for number in range(30)], vectors, 30)
    order = np.argsort([-float(vector @ vectors[3]) for vector in vectors])[:5]
    assert index.propose(vectors[3], 5) == [f"dec-{number}" for number in order]
    assert len(index.propose(vectors[3], 100)) == index.count() == 30


def test_an_empty_one_proposes_nothing(index: ChromaIndex) -> None:
    assert (index.propose(spread(1)[0], 5), index.count(), index.revision) == ([], 0, -1)


def test_a_vector_that_is_given_again_replaces_the_first(index: ChromaIndex) -> None:
    old, new = spread(2)
    index.upsert(["dec-0", "dec-1"], [old, old + new], 1)
    assert index.propose(old, 1) == ["dec-0"]
    index.upsert(["dec-0"], [-new], 2)
    assert (index.propose(old, 1), index.propose(-new, 1), index.count()) == (["dec-1"], ["dec-0"], 2)


def test_what_is_removed_is_not_proposed_and_may_come_back(index: ChromaIndex) -> None:
    vectors = spread(1200)
    ids = [f"dec-{number}" for number in range(1200)]
    index.upsert(ids, vectors, 1)
    index.remove([*ids[:1100], "dec-unknown"])
    assert index.count() == 100
    assert set(index.propose(vectors[0], 200)) == set(ids[1100:])
    index.remove([])
    index.upsert([], [], 2)
    index.upsert(ids[:1], vectors[:1], 3)
    assert index.propose(vectors[0], 1) == ["dec-0"]
    assert (index.count(), index.revision) == (101, 3)


def test_more_than_fits_into_one_request_is_taken(index: ChromaIndex) -> None:
    vectors = spread(2500)
    index.upsert([f"dec-{number}" for number in range(2500)], vectors, 2500)
    assert index.count() == 2500
    assert index.propose(vectors[2400], 1) == ["dec-2400"]


def test_it_knows_up_to_where_it_was_fed_when_it_is_opened_again(url: str, index: ChromaIndex) -> None:
    index.upsert(["dec-0"], spread(1), 41)
    index.upsert(["dec-0"], spread(1), 2**40)
    with closing(ChromaIndex.open(url, "model", DIMENSIONS)) as again:
        assert (again.revision, again.count()) == (2**40, 1)


def test_each_model_has_a_collection_of_its_own(url: str, index: ChromaIndex) -> None:
    with closing(ChromaIndex.open(url, "sentence-transformers/other v2", DIMENSIONS)) as other:
        other.upsert(["dec-0"], spread(1), 1)
        assert index.count() == 0
        assert index.other_collections() == [collection_name("sentence-transformers/other v2", DIMENSIONS)]
        other.reset()


def test_a_collection_that_was_removed_is_broken(url: str, index: ChromaIndex) -> None:
    with closing(ChromaIndex.open(url, "model", DIMENSIONS)) as elsewhere:
        elsewhere.reset()
    for use in (lambda: index.propose(spread(1)[0], 1), index.count, lambda: index.upsert(["d"], spread(1), 1)):
        with pytest.raises(IndexCorrupted):
            use()


def test_many_threads_may_ask_at_once(index: ChromaIndex) -> None:
    vectors = spread(200)
    index.upsert([f"dec-{number}" for number in range(200)], vectors, 200)
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda number: index.propose(vectors[number], 1), range(200)))
    assert answers == [[f"dec-{number}"] for number in range(200)]


def test_a_refused_request_is_broken_and_says_nothing_of_the_cause(index: ChromaIndex) -> None:
    index.upsert(["dec-0"], spread(1), 1)
    with pytest.raises(IndexCorrupted, match=r"^the Chroma server answers with status 4\d\d$"):
        index.propose(np.ones(3, np.float32), 1)


def respond(listener: socket.socket, answers: list[bytes]) -> threading.Thread:
    """Answer each connection once and close it without a warning."""
    listener.settimeout(10)

    def serve() -> None:
        for answer in answers:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def answer(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


def test_a_connection_that_the_server_closed_is_replaced() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = respond(listener, [answer("200 OK", b"1"), answer("200 OK", b"2")])
        with closing(ChromaHttpClient(f"http://127.0.0.1:{listener.getsockname()[1]}")) as http:
            assert [http.call("GET", "/count", None, 5.0) for _ in range(2)] == [1, 2]
        thread.join()


@pytest.mark.parametrize(
    ("reply", "attempts", "error"),
    [
        (answer("503 Service Unavailable", b""), 1, IndexUnavailable),
        (answer("429 Too Many Requests", b""), 1, IndexUnavailable),
        (answer("500 Internal Server Error", b"{}"), 1, IndexCorrupted),
        (answer("200 OK", b"<html>"), 1, IndexCorrupted),
        (b"SSH-2.0\r\n", 2, IndexUnavailable),
        (b"", 2, IndexUnavailable),
    ],
)
def test_strange_answers(
    reply: bytes, attempts: int, error: type[IndexUnavailable], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger=chroma_index.__name__)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = respond(listener, [reply] * attempts)
        with closing(ChromaHttpClient(f"http://gateway:password@127.0.0.1:{listener.getsockname()[1]}")) as http:
            with pytest.raises(IndexUnavailable) as raised:
                http.call("GET", "/count", None, 5.0)
            assert type(raised.value) is error
        thread.join()
    # A gateway in front of Chroma may need a password, which is nobody else's business.
    assert "password" not in caplog.text


def test_a_gateway_is_told_who_asks() -> None:
    heads: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                heads.append(connection.recv(4096).decode())
                connection.sendall(answer("200 OK", b"1"))

        thread = threading.Thread(target=serve)
        thread.start()
        port = listener.getsockname()[1]
        with closing(ChromaHttpClient(f"http://ada:p%40ss@127.0.0.1:{port}/index/")) as http:
            assert http.call("POST", "/count", {}, 5.0) == 1
        thread.join()
    lines = heads[0].split("\r\n")
    assert lines[0] == "POST /index/api/v2/count HTTP/1.1"
    assert {f"host: 127.0.0.1:{port}", "authorization: Basic YWRhOnBAc3M="} <= set(lines[1:])


def test_a_client_that_was_closed_asks_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        http = ChromaHttpClient(f"http://127.0.0.1:{listener.getsockname()[1]}")
        http.close()
        with pytest.raises(IndexUnavailable):
            http.call("GET", "/count", None, 5.0)
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_a_server_that_never_answers_is_given_up() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        closing(ChromaHttpClient(f"http://127.0.0.1:{listener.getsockname()[1]}")) as http,
        pytest.raises(IndexUnavailable),
    ):
        http.call("GET", "/count", None, 0.05)
