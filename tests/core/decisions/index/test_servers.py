"""The child process of the embedded index."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cstp_grpc.core.decisions.search import chroma_process
from cstp_grpc.core.decisions.search.ann_index import IndexCorrupted, IndexUnavailable
from cstp_grpc.core.decisions.search.chroma_index import ChromaHttpClient
from cstp_grpc.core.decisions.search.chroma_process import (
    LONGEST_PAUSE,
    ChildChromaServer,
    ChromaServer,
    SharedChromaServer,
    backoff_seconds,
)
from tests.waiting import wait_until

PARENT = """
import sys, threading
from pathlib import Path
from cstp_grpc.core.decisions.search.chroma_process import ChildChromaServer
server = ChildChromaServer(Path(sys.argv[1]))
server.start(threading.Event())
print(server.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ChildChromaServer]:
    server = ChildChromaServer(tmp_path / "index")
    yield server
    server.stop()


def start(server: ChildChromaServer) -> str:
    return server.start(threading.Event())


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def locked(path: Path) -> bool:
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_a_hangup_does_not_end_it(server: ChildChromaServer) -> None:
    url = start(server)
    assert server.pid is not None
    os.kill(server.pid, signal.SIGHUP)
    with closing(ChromaHttpClient(url)) as http:
        http.heartbeat(10)
    server.check()


def test_it_answers_until_it_is_stopped_and_can_be_started_again(server: ChildChromaServer) -> None:
    for _ in range(2):
        with closing(ChromaHttpClient(start(server))) as http:
            http.heartbeat(5.0)
            server.check()
            assert server.stop() is False
            with pytest.raises(IndexUnavailable):
                http.heartbeat(5.0)


@pytest.mark.slow
def test_a_child_never_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path / "index")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert alive(child)
        assert locked(tmp_path / "index.lock")
        parent.kill()
    wait_until(lambda: not alive(child), "the child has ended")
    assert not locked(tmp_path / "index.lock")


@pytest.mark.slow
def test_a_child_that_lives_on_keeps_its_folder(tmp_path: Path, server: ChildChromaServer) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path / "index")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        os.kill(child, signal.SIGSTOP)
        parent.kill()
    try:
        with pytest.raises(IndexUnavailable, match="is in use by another process"):
            start(server)
    finally:
        os.kill(child, signal.SIGKILL)
    wait_until(lambda: not alive(child), "the child has ended")
    start(server)


def test_another_server_cannot_use_the_folder(server: ChildChromaServer, tmp_path: Path) -> None:
    start(server)
    second = ChildChromaServer(tmp_path / "index")
    for use in (lambda: start(second), second.wipe):
        with pytest.raises(IndexUnavailable, match="is in use by another process"):
            use()
    server.check()


def test_other_processes_find_the_child_by_its_folder(server: ChildChromaServer, tmp_path: Path) -> None:
    shared = SharedChromaServer(tmp_path / "index")
    with pytest.raises(IndexUnavailable, match="has not been started"):
        shared.start(threading.Event())
    for _ in range(2):
        url = start(server)
        assert shared.start(threading.Event()) == url
        server.stop()
        with pytest.raises(IndexUnavailable, match="has not been started"):
            shared.start(threading.Event())


def test_a_port_that_was_taken_meanwhile_is_given_up(
    server: ChildChromaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = [taken.getsockname()[1], chroma_process.find_free_port()]
        monkeypatch.setattr(chroma_process, "find_free_port", lambda: ports.pop(0))
        start(server)
    assert ports == []


def test_a_folder_that_cannot_be_opened_is_named_broken(server: ChildChromaServer, tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "chroma.sqlite3").write_bytes(b"garbage" * 1000)
    with pytest.raises(IndexCorrupted):
        start(server)
    assert server.stop() is True
    server.wipe()
    start(server)


@pytest.mark.parametrize(
    ("number", "error"),
    [(signal.SIGKILL, IndexUnavailable), (signal.SIGTERM, IndexUnavailable), (signal.SIGSEGV, IndexCorrupted)],
)
def test_how_a_child_ended_tells_whether_its_folder_is_to_blame(
    server: ChildChromaServer, number: signal.Signals, error: type[IndexUnavailable]
) -> None:
    start(server)
    assert server.pid is not None
    os.kill(server.pid, number)
    found: list[IndexUnavailable] = []

    def ended() -> bool:
        try:
            server.check()
        except IndexUnavailable as unavailable:
            found.append(unavailable)
        return bool(found)

    wait_until(ended, "the end is noticed")
    assert type(found[0]) is error
    assert server.stop() is (error is IndexCorrupted)


def test_a_start_is_given_up_when_it_is_no_longer_wanted(server: ChildChromaServer) -> None:
    unwanted = threading.Event()
    unwanted.set()
    with pytest.raises(IndexUnavailable):
        server.start(unwanted)


def test_its_log_has_no_line_for_each_request_and_does_not_grow_for_ever(
    server: ChildChromaServer, tmp_path: Path
) -> None:
    log = tmp_path / "index.log"
    log.write_bytes(b"x" * (chroma_process.MAX_LOG_BYTES + 1))
    with closing(ChromaHttpClient(start(server))) as http:
        before = log.stat().st_size
        for _ in range(20):
            http.call("GET", "/tenants/default_tenant", None, 5.0)
    assert log.stat().st_size == before < 10_000


def test_what_answers_at_a_url_must_be_chroma() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(IndexUnavailable, match="not a Chroma server"):
            ChromaServer(f"http://127.0.0.1:{listener.getsockname()[1]}").start(threading.Event())
        thread.join()


def test_the_pause_before_another_start_stays_bounded_however_often_it_failed() -> None:
    pauses = [backoff_seconds(failures) for failures in range(1, 2000)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE
