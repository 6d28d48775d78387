"""Servers that commands run as processes, and how tests ask what they serve."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

BOUND = 60.0
"""Seconds after which something that should have happened has not."""
ENVIRONMENT = {
    "CSTP_GRPC__PORT": "0",
    "CSTP_SERVER__PORT": "0",
    "CSTP_A2A__GRPC_PORT": "0",
    "CSTP_CONSOLE__ENABLED": "false",
    "CSTP_EMBEDDING__PROVIDER": "lexical",
    # Loads sooner than all packs, at each of many starts.
    "CSTP_CSTP__GUARDRAILS__PRESET": "default",
    # Without the week of the example agents, which takes seconds to replay.
    "CSTP_EXAMPLES": "decisions",
}
PROGRAM = (sys.executable, "-m", "cstp_grpc")
READY = "Ctrl-C stops everything."


@dataclass
class Process:
    """A running command whose output can be waited for."""

    popen: subprocess.Popen[str]
    lines: queue.Queue[str] = field(default_factory=queue.Queue)
    printed: list[str] = field(default_factory=list)

    def wait_for(self, text: str) -> str:
        """Return the next line that holds a text."""
        while True:
            try:
                line = self.lines.get(timeout=BOUND)
            except queue.Empty:
                pytest.fail(f"{text!r} was not printed, but: {self.printed}")
            assert line, f"it ended before it printed {text!r}: {self.printed}"
            self.printed.append(line)
            if text in line:
                return line

    def value(self, name: str) -> str:
        """Return the value printed behind a name."""
        return next(line.split(maxsplit=1)[1].strip() for line in self.printed if line.strip().startswith(name))

    def rest(self) -> list[str]:
        """Return the last lines that it printed, and that nobody waited for."""
        return list(self.lines.queue)[-40:]

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.popen.send_signal(number)
        return self.popen.wait(BOUND)


@contextmanager
def started(
    *arguments: str, environment: Mapping[str, str] = ENVIRONMENT, program: Sequence[str] = PROGRAM
) -> Iterator[Process]:
    """Run the command for the length of a block; `program` is another one that is called in its place."""
    command = [*program, *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **environment}
    ) as popen:
        process = Process(popen)

        def read() -> None:
            assert popen.stdout
            for line in popen.stdout:
                process.lines.put(line)
            process.lines.put("")

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield process
        finally:
            popen.kill()
            popen.wait()
            reader.join()


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=BOUND) as answer:
        return json.load(answer)


def answers(target: str) -> bool:
    """Whether a gRPC server says that it is well."""
    with grpc.insecure_channel(target) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=BOUND)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def bridge_of(pid: int) -> int:
    """Return the process id of a server's bridge."""
    found = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split(maxsplit=2) for line in found.splitlines()]
    return next(int(child) for child, parent, command in rows if int(parent) == pid and " bridge " in command)
