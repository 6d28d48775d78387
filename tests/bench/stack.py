"""`cstp serve` with its bridge, as users run it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.bench.clients import TOKEN
from tests.bench.processes import START_TIMEOUT, free_port, stop
from tests.waiting import wait_until

CSTP = str(Path(sys.executable).with_name("cstp"))
POLL_SECONDS = 0.02


@dataclass
class Stack:
    """A configured stack; it may be started often."""

    config: Path
    grpc: int
    http: int

    def start(self, *flags: str) -> subprocess.Popen[bytes]:
        """Start it, without waiting."""
        return subprocess.Popen(
            [CSTP, "serve", "--config", str(self.config), *flags],
            stdout=subprocess.DEVNULL,
            stderr=self.config.with_suffix(".log").open("ab"),
            env=clean_environment(),
        )

    def is_serving(self) -> bool:
        """Return whether gRPC answers that it serves."""
        with grpc.insecure_channel(f"127.0.0.1:{self.grpc}") as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            try:
                answer = check(health_pb2.HealthCheckRequest(), timeout=5)
            except grpc.RpcError:
                return False
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def is_bridging(self) -> bool:
        """Return whether HTTP answers that it serves."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def is_ready(self) -> bool:
        """Return whether both doors are open."""
        return listens(self.grpc) and listens(self.http) and self.is_serving() and self.is_bridging()

    def start_until_ready(self) -> tuple[subprocess.Popen[bytes], float]:
        """Start it, again if it ends at once as a service manager would, and return the seconds until it is ready."""
        begun = time.perf_counter()
        process = self.start()
        while not self.is_ready():
            if time.perf_counter() - begun > START_TIMEOUT:
                stop(process)
                raise RuntimeError(f"not ready within {START_TIMEOUT:g} s; {self.log()}")
            if process.poll() is not None:
                process = self.start()
            time.sleep(POLL_SECONDS)
        return process, time.perf_counter() - begun

    def log(self) -> str:
        """Return the end of the log."""
        return self.config.with_suffix(".log").read_text()[-2_000:]


def configure(folder: Path, data_dir: Path, **settings: Any) -> Stack:
    """Write the configuration of a stack on free ports."""
    ports = [free_port() for _ in range(3)]
    content = {
        "data_dir": str(data_dir),
        "grpc": {"port": ports[0]},
        "server": {"port": ports[1]},
        "a2a": {"grpc_port": ports[2]},
        "auth": {
            "tokens": [{"name": "bench", "token": TOKEN, "permissions": ["query", "check", "announce", "record"]}]
        },
        "rate_limits": {"enabled": False},
        **settings,
    }
    path = folder / f"stack-{ports[0]}.yaml"
    # JSON is YAML, too.
    path.write_text(json.dumps(content))
    return Stack(path, ports[0], ports[1])


@contextmanager
def serving(stack: Stack, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a stack without its bridge."""
    process = stack.start("--no-bridge", *flags)
    try:

        def serves() -> bool:
            if process.poll() is not None:
                raise RuntimeError(f"the server did not start: {stack.log()}")
            return listens(stack.grpc) and stack.is_serving()

        wait_until(serves, "the server serves", START_TIMEOUT)
        yield process
    finally:
        stop(process)


def listens(port: int) -> bool:
    """Return whether anybody accepts connections on a port."""
    try:
        with socket.create_connection(("127.0.0.1", port), 5):
            return True
    except OSError:
        return False


def clean_environment(**extra: str) -> Mapping[str, str]:
    """Return the environment without this developer's settings, and so that modules stay compiled, as installed."""
    left_out = ("CSTP_", "PYTHONDONTWRITEBYTECODE")
    return {**{name: value for name, value in os.environ.items() if not name.startswith(left_out)}, **extra}
