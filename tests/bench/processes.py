"""The processes that are measured."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import wait_until

START_TIMEOUT = 120.0


@dataclass(frozen=True)
class Served:
    """Where a server listens; `ready_seconds` is from the start of its process until it serves."""

    grpc: int
    noop: int
    ready_seconds: float


@contextmanager
def server(data_dir: Path, *flags: str) -> Iterator[Served]:
    """Run the measured server."""
    started = time.time()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.server", str(data_dir), *flags], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server did not start: exit code {process.wait()}")
        said = json.loads(line)
        yield Served(said["grpc"], said["noop"], said["ready"] - started)
    finally:
        process.terminate()
        process.wait()


@dataclass(frozen=True)
class BridgePorts:
    """Where a bridge listens."""

    http: int
    a2a: int


@contextmanager
def bridge(grpc_port: int, folder: Path) -> Iterator[BridgePorts]:
    """Run a bridge to the server and yield its ports."""
    port_file, a2a_port_file = folder / "bridge-port", folder / "a2a-port"
    port_file.unlink(missing_ok=True)
    config = folder / "bridge.yaml"
    config.write_text("server: {port: 0}\na2a: {grpc_port: 0}\n")
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "bridge", "--config", str(config)),
            *("--grpc-target", f"127.0.0.1:{grpc_port}", "--port-file", str(port_file)),
            *("--a2a-port-file", str(a2a_port_file)),
        ],
        stderr=subprocess.DEVNULL,
    )
    try:

        def listens() -> bool:
            if process.poll() is not None:
                raise RuntimeError(f"the bridge did not start: exit code {process.returncode}")
            return port_file.exists()

        wait_until(listens, "the bridge listens", START_TIMEOUT)
        yield BridgePorts(port_in(port_file), port_in(a2a_port_file))
    finally:
        process.terminate()
        process.wait()


def port_in(path: Path) -> int:
    """Return the port that a port file names."""
    return int(path.read_text().rsplit(":", 1)[1])
