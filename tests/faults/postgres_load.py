"""A server on PostgreSQL under a mixed load, whose writes are all looked for afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from tests.cli.serving import Process
from tests.faults.load import MixedLoad
from tests.faults.serving import serving
from tests.test_kill import verify


@contextmanager
def loaded(settings: Path, *, kill: bool = False) -> Iterator[tuple[Process, MixedLoad]]:
    """Run a server with a load on it, and verify afterwards, with a server started anew, that all is there."""
    with serving(settings) as process:
        load = MixedLoad(lambda: process.value("gRPC"))
        with load.running():
            load.wait_for_progress()
            yield process, load
            load.wait_for_progress()
        if kill:
            process.popen.kill()
        else:
            assert process.end() == 0, process.rest()
    with serving(settings) as process, grpc.insecure_channel(process.value("gRPC")) as channel:
        verify(channel, load.done)
    load.assert_safe()
