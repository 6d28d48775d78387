"""A process that has loaded what commands need, and runs hooks in forks of itself; it ends by itself.

Loading gRPC, or what a data folder needs, takes longer than all the rest of a hook. Only modules are kept: each fork
reads the configuration, the rules and the folder again, so that it answers as the hook itself would. The process has
no connections, and no threads, which forks would be without, but those of NumPy's OpenBLAS, which is made for forks.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import io
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from cstp_grpc.agents.hooks.hosts import HOSTS, load_host
from cstp_grpc.agents.hooks.model import MAX_PAYLOAD_BYTES
from cstp_grpc.common.version import VERSION
from cstp_grpc.platform.config.environment import environment_without_settings, process_environment, replace_environment

IDLE_SECONDS: Final = 600.0
"""How long the process stays without a hook. Chosen: longer than people read before they let an agent go on."""
MAX_WAITING: Final = 64
"""How many hooks may wait to be accepted. Chosen: more than agents run at once."""
REQUEST_SECONDS: Final = 5.0
"""How long a fork waits for its request, which is sent at once, and for its answer to be taken."""
MAX_SOCKET_PATH: Final = 100
"""Maximum length of the path of a socket: 104 bytes with the final zero on macOS, 108 on Linux."""
NAMESPACES: Final = ("/proc/self/ns/mnt", "/proc/self/ns/net")
"""The view that a process has of files and of the network, on Linux."""
MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
LOADING_SECONDS: Final = 600
"""Seconds for loading; no caller waits for it."""
LOADING_CONFIG: Final = "data_dir: data\nembedding: {provider: lexical}\nauth: {enabled: false}\n"
LOADING_EVENT: Final = json.dumps(
    {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "true"}, "cwd": "/"}
).encode()
GRPC_MODULES: Final = ("grpc", "grpc._channel", "google.rpc.error_details_pb2")
"""The modules that only calls over gRPC import."""


@dataclass(frozen=True, slots=True)
class PrintedAnswer:
    """The output of a hook."""

    output: str
    errors: str


def resident_socket() -> Path | None:
    """Return the socket path of this installation, in a folder of the user's own; None without a home."""
    code = Path(__file__)
    # With the time of installing: the same version may be installed again with other code.
    installed = f"{sys.executable}\0{code.parent}\0{VERSION}\0{code.stat().st_mtime_ns}\0{find_namespaces()}"
    name = hashlib.sha256(installed.encode()).hexdigest()[:16]
    try:
        home = Path.home()
    except RuntimeError:
        return None
    return home / ".cache" / "cstp" / f"hooks-{name}.sock"


def find_namespaces() -> str:
    """Return which files and addresses this process sees, empty where the system does not say."""
    # Containers may share a home, but have other files at the same paths and other servers at the same addresses.
    with contextlib.suppress(OSError):
        return "".join(map(os.readlink, NAMESPACES))
    return ""


def ask_resident(path: Path, arguments: Sequence[str], payload: bytes) -> PrintedAnswer | None:
    """Return the output of a hook that the process listening at a path runs; None if none answers."""
    try:
        request = {"arguments": list(arguments), "environment": process_environment(), "folder": str(Path.cwd())}
        if not is_private(path.parent):
            return None
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            connection.sendall(json.dumps(request).encode() + b"\n" + payload)
            connection.shutdown(socket.SHUT_WR)
            answer = json.loads(read_to_end(connection, MAX_ANSWER_BYTES))
        # A hook that printed no answer has failed, and no answer would let a call through.
        return PrintedAnswer(answer["output"], answer["errors"]) if answer["output"].strip() else None
    # Whatever is wrong with it, the hook can answer itself. That the time is up is no such fault.
    except TimeoutError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def start_resident(path: Path) -> bool:
    """Start the process that listens at a path, and return whether that can be. Raises OSError."""
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        return False
    # Imported here, since most hooks only ask.
    import subprocess

    # In a session of its own, so that it outlives the agent, and with no file of the hook's open.
    subprocess.Popen(
        [sys.executable, "-m", __name__, str(path)],
        cwd="/",
        env=environment_without_settings(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return True


def is_private(folder: Path) -> bool:
    """Return whether nobody but this user can put something into a folder. Raises OSError."""
    found = folder.stat()
    return found.st_uid == os.getuid() and not found.st_mode & 0o077


def read_to_end(connection: socket.socket, limit: int) -> bytes:
    """Return the bytes that a peer sends until it closes. Raises OSError, and ValueError beyond a limit of bytes."""
    read = bytearray()
    while piece := connection.recv(65_536):
        read += piece
        if len(read) > limit:
            raise ValueError(f"more than {limit} bytes were sent")
    return bytes(read)


def serve_hooks(path: Path, load: Callable[[], None], idle_seconds: float = IDLE_SECONDS) -> None:
    """Run hooks that are asked for at a path, until none came for a time; `load` imports what they need.

    Does nothing if another process does so. Raises OSError.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_private(path.parent):
        return
    with path.with_suffix(".lock").open("w") as lock, socket.socket(socket.AF_UNIX) as listener:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        remove_leftovers(path.parent)
        load()
        # Of a process that was killed. Whoever has the lock is alone.
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        listener.listen(MAX_WAITING)
        listener.settimeout(idle_seconds)
        # The system buries the forks.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        # A hook that connects after the last accept is closed without an answer, and answers itself.
        with contextlib.suppress(TimeoutError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    if os.fork() == 0:
                        listener.close()
                        run_fork(connection)
        path.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Delete the files of processes that have ended, such as those of containers that are gone."""
    for path in folder.glob("hooks-*.lock"):
        # Whoever has the lock is alive. If one is just starting, it may lose its socket; hooks then answer themselves.
        with contextlib.suppress(OSError), path.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.with_suffix(".sock").unlink(missing_ok=True)
            path.unlink()


def load_modules() -> None:
    """Import what hooks need, by answering one with a data folder, and what calls over gRPC need.

    Nothing is called over gRPC: it would start threads.
    """
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "cstp.yaml")
        config.write_text(LOADING_CONFIG)
        arguments = [HOSTS[0], "--local", "--config", str(config), "--timeout", str(LOADING_SECONDS)]
        run_hook({"arguments": arguments, "environment": process_environment(), "folder": folder}, LOADING_EVENT)
        os.chdir("/")
    for host in HOSTS:
        load_host(host)
    for name in GRPC_MODULES:
        # What is not installed is missing to the hook itself as well, which says so.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def run_fork(connection: socket.socket) -> NoReturn:
    """Run the hook that a connection asks for, answer with its output, and exit."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        connection.settimeout(REQUEST_SECONDS)
        header, _, payload = read_to_end(connection, 2 * MAX_PAYLOAD_BYTES).partition(b"\n")
        answer = run_hook(json.loads(header), payload)
        connection.sendall(json.dumps({"output": answer.output, "errors": answer.errors}).encode())
        status = 0
    finally:
        # Without the handlers and the cleaning up that belong to the process.
        os._exit(status)


def run_hook(request: dict[str, Any], payload: bytes) -> PrintedAnswer:
    """Return the output of a hook; changes the environment, the working folder and standard input of this process."""
    from cstp_grpc.cli.main import main

    replace_environment(request["environment"])
    os.chdir(request["folder"])
    output, errors = io.StringIO(), io.StringIO()
    sys.stdin = io.TextIOWrapper(io.BytesIO(payload))
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors), contextlib.suppress(SystemExit):
        main.main(["hook", *request["arguments"]], prog_name="cstp")
    return PrintedAnswer(output.getvalue(), errors.getvalue())


if __name__ == "__main__":
    serve_hooks(Path(sys.argv[1]), load_modules)
