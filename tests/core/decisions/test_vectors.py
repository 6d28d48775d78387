"""Vectors that several processes have in memory once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from cstp_grpc.core.decisions.search.row_vectors import SharedVectorPool
from cstp_grpc.server.interceptors.rate_limits import create_shared_memory
from tests.core.decisions.numbered_vectors import DIMENSIONS, NUMBERS, vector_of

ADD = """
import random, sys
from cstp_grpc.core.decisions.search.row_vectors import SharedVectorPool
from tests.core.decisions.numbered_vectors import DIMENSIONS, NUMBERS, vector_of

pool = SharedVectorPool(int(sys.argv[1]), DIMENSIONS)
numbers = list(range(NUMBERS))
random.Random(sys.argv[2]).shuffle(numbers)
print("ready", flush=True)
sys.stdin.readline()
for number in numbers:
    slot = pool.slot_of(vector_of(number))
    assert (pool.vectors[slot] == vector_of(number)).all(), number
"""


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = create_shared_memory()
    yield descriptor
    os.close(descriptor)


def test_a_vector_has_one_slot_for_all(memory: int) -> None:
    here, there = SharedVectorPool(memory, DIMENSIONS), SharedVectorPool(memory, DIMENSIONS)
    slots = [here.slot_of(vector_of(number)) for number in range(10)]
    assert slots == list(range(10))
    assert [there.slot_of(vector_of(number)) for number in range(12)] == list(range(12))
    assert [here.slot_of(vector_of(number)) for number in (11, 10, 0)] == [11, 10, 0]
    assert (here.vectors == there.vectors).all()


def test_what_one_process_adds_beyond_the_room_is_seen_by_all(memory: int) -> None:
    here, there = SharedVectorPool(memory, DIMENSIONS), SharedVectorPool(memory, DIMENSIONS)
    for number in range(NUMBERS):
        here.slot_of(vector_of(number))
    before = there.vectors
    assert there.slot_of(vector_of(NUMBERS)) == NUMBERS
    assert [float(vector[0]) for vector in there.vectors] == [number + 1 for number in range(NUMBERS + 1)]
    assert len(before) == 0


def test_a_vector_of_another_length_is_refused(memory: int) -> None:
    pool = SharedVectorPool(memory, DIMENSIONS)
    with pytest.raises(ValueError, match="shape"):
        pool.slot_of(np.ones(DIMENSIONS + 1, np.float32))
    assert len(pool.vectors) == 0


@pytest.mark.parametrize("killed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_processes_that_add_at_once_agree_also_if_one_is_killed(memory: int, killed: int) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ADD, str(memory), str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[memory],
        )
        for seed in range(3)
    ]
    pool = SharedVectorPool(memory, DIMENSIONS)
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
        for process in processes[:killed]:
            process.kill()
        codes = [process.wait(60) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert codes[killed:] == [0] * (3 - killed)
    slots = [pool.slot_of(vector_of(number)) for number in range(NUMBERS)]
    assert len(set(slots)) == NUMBERS
    assert len(pool.vectors) == NUMBERS
    assert all((vector == vector[0]).all() for vector in pool.vectors)
