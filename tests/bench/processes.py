"""The processes that are measured."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import wait_until

START_TIMEOUT = 120.0


@dataclass(frozen=True)
class Served:
    """A measured server: its process and its ports."""

    pid: int
    grpc: int
    noop: int


@contextmanager
def server(data_dir: Path, *flags: str) -> Iterator[Served]:
    """Run a server with a no-op beside it; `flags` are those of `tests.bench.server`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.server", str(data_dir), *flags], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server did not start: exit code {process.wait()}")
        ports = json.loads(line)
        yield Served(process.pid, ports["grpc"], ports["noop"])
    finally:
        stop(process)


@dataclass(frozen=True)
class Bridge:
    """A measured bridge: its process and its ports."""

    pid: int
    http: int
    a2a: int


@contextmanager
def bridge(grpc_port: int, folder: Path) -> Iterator[Bridge]:
    """Run a bridge to a server."""
    port_file, a2a_port_file = folder / "bridge-port", folder / "a2a-port"
    for file in (port_file, a2a_port_file):
        file.unlink(missing_ok=True)
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
            return port_file.exists() and a2a_port_file.exists()

        wait_until(listens, "the bridge listens", START_TIMEOUT)
        yield Bridge(process.pid, read_port(port_file), read_port(a2a_port_file))
    finally:
        stop(process)


def stop(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """End a process in good order."""
    process.terminate()
    try:
        process.wait(START_TIMEOUT)
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def read_port(path: Path) -> int:
    """Return the port that a port file names."""
    return int(path.read_text().rsplit(":", 1)[1])


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
