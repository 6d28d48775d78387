"""Finding processes and their CPU and memory."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from tests.bench.cpu_time import cpu_seconds, run_to_end
from tests.bench.proc import connected_process, listeners, memory_of

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of processes in /proc")


@linux
def test_the_process_that_listens_on_a_port_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert listeners(server.getsockname()[1]) == [os.getpid()]


@linux
def test_a_socket_that_is_bound_and_does_not_listen_is_not_found() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert listeners(bound.getsockname()[1]) == []


@linux
def test_the_process_at_the_other_end_of_a_connection_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client, server.accept()[0]:
            assert connected_process(port, client.getsockname()[1], [os.getpid()]) == os.getpid()


@linux
def test_the_memory_of_a_process_is_told() -> None:
    memory = memory_of(os.getpid())
    assert memory
    assert 0 < memory.share <= memory.resident


@linux
def test_the_cpu_of_several_processes_is_that_of_each_together() -> None:
    before = cpu_seconds([os.getpid()])
    both = cpu_seconds([os.getpid(), os.getpid()])
    assert before
    assert both
    assert both >= 2 * before


def test_no_processes_have_no_cpu() -> None:
    assert cpu_seconds([]) is None


def test_a_command_that_ends_tells_its_wall_and_cpu_seconds() -> None:
    wall, cpu = run_to_end([sys.executable, "-c", "sum(range(300_000))"])
    assert wall > 0
    assert cpu > 0
