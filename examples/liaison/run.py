"""Runs the example: a CSTP server, two liaison agents and the guide, each in its own process.

The exit code is 0 if both conversations succeeded. It leaves no files and no processes.
"""

from __future__ import annotations

import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

FOLDER = Path(__file__).parent
SECONDS = 60.0
"""Time limit of the whole example."""
STOP_SECONDS = 10.0
"""Time limit for a program to stop."""


def main() -> int:
    """Run everything and return the exit code of the guide."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="cstp-liaison-") as folder, Programs(SECONDS) as programs:
        try:
            return run(programs, Path(folder))
        except (Ended, TimeoutError) as error:
            print(error)
            return 1
        except KeyboardInterrupt:
            return 130


def run(programs: Programs, folder: Path) -> int:
    """Start all programs, each once its dependencies are ready, and return the exit code of the guide."""
    grpc_port, a2a_port = free_ports(2)
    guide, content, insights, a2a = (secrets.token_urlsafe(32) for _ in range(4))
    server = {
        "LIAISON_DATA_DIR": str(folder),
        "LIAISON_GRPC_PORT": str(grpc_port),
        "INSIGHTS_PORT": str(a2a_port),
        "GUIDE_TOKEN": guide,
        "CONTENT_AGENT_TOKEN": content,
        "INSIGHTS_AGENT_TOKEN": insights,
        "INSIGHTS_A2A_TOKEN": a2a,
    }
    target = {"CSTP_TARGET": f"grpc://127.0.0.1:{grpc_port}"}
    programs.start("server", "-m", "cstp_grpc", "serve", "--no-bridge", "--config", str(FOLDER / "cstp.yaml"), **server)
    programs.wait_for("server", "Ctrl-C stops everything.")
    position = {"POSITION_FILE": str(folder / "content.position")}
    programs.start("content", str(FOLDER / "content_agent.py"), CSTP_TOKEN=content, **target, **position)
    served = {"A2A_PORT": str(a2a_port), "A2A_TOKEN": a2a}
    programs.start("insights", str(FOLDER / "insights_agent.py"), CSTP_TOKEN=insights, **target, **served)
    programs.wait_for("content", "ready")
    programs.wait_for("insights", "ready")
    programs.start("guide", str(FOLDER / "guide.py"), CSTP_TOKEN=guide, **target)
    return programs.wait("guide")


class Ended(Exception):
    """A program ended too early."""


class Programs:
    """Python programs that run together. The end of a `with` block stops all of them, the last one first.

    While it waits, their output is shown with their names; all waiting ends after `seconds`.
    """

    def __init__(self, seconds: float) -> None:
        self._ends = time.monotonic() + seconds
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._readers: list[threading.Thread] = []
        self._lines: queue.SimpleQueue[tuple[str, str | None]] = queue.SimpleQueue()
        self._stopping = ExitStack()

    def __enter__(self) -> Self:
        """Return the object itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop all programs and show the rest of their output."""
        self._stopping.close()
        while not self._lines.empty():
            show(*self._lines.get())

    def start(self, name: str, *command: str, **environment: str) -> None:
        """Start Python with a command; its environment is ours without CSTP's settings, plus `environment`."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("CSTP_")}
        program = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            env={**inherited, "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1", **environment},
            # Ctrl-C goes only to this process, which stops the others in order.
            start_new_session=True,
        )
        reader = threading.Thread(target=self._read, args=(name, program))
        reader.start()
        self._running[name] = program
        self._stopping.callback(stop, program, reader)

    def wait_for(self, name: str, text: str) -> None:
        """Wait until a program prints a text. Raises Ended and TimeoutError."""
        while True:
            speaker, line = self._next()
            if line is None:
                raise Ended(f"{speaker} ended too soon")
            if speaker == name and text in line:
                return

    def wait(self, name: str) -> int:
        """Wait until a program ends, and return its exit code. Raises Ended if another one ends before."""
        while True:
            speaker, line = self._next()
            if line is None and speaker != name:
                raise Ended(f"{speaker} ended too soon")
            if line is None:
                return self._running[name].wait(STOP_SECONDS)

    def _next(self) -> tuple[str, str | None]:
        """Show and return the next line of any program and its name; None is its end."""
        try:
            name, line = self._lines.get(timeout=max(self._ends - time.monotonic(), 0))
        except queue.Empty:
            raise TimeoutError(f"not done within {SECONDS:g} seconds") from None
        show(name, line)
        return name, line

    def _read(self, name: str, program: subprocess.Popen[str]) -> None:
        assert program.stdout
        for line in program.stdout:
            self._lines.put((name, line))
        self._lines.put((name, None))


def show(name: str, line: str | None) -> None:
    """Print a line of a program; None is its end."""
    if line is not None:
        print(f"{name:<8} | {line}", end="", flush=True)


def stop(program: subprocess.Popen[str], reader: threading.Thread) -> None:
    """Ask a program to stop, and kill it if it does not."""
    program.terminate()
    try:
        program.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()
    reader.join()
    assert program.stdout
    program.stdout.close()


def free_ports(count: int) -> list[int]:
    """Return free ports of this machine."""
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


if __name__ == "__main__":
    sys.exit(main())
