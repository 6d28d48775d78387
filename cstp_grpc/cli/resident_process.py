"""A process that has loaded what commands need, and runs hooks in forks of itself; it ends by itself.

Loading gRPC, or what a data folder needs, takes longer than all the rest of a hook. Modules are kept, and rules by the
content of their files: each fork reads the configuration, the files and the folder again, so that it answers as the
hook itself would. The process has no connections, and no threads, which forks would be without, but those of NumPy's
OpenBLAS, which is made for forks.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import io
import json
import os
import pickle
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NoReturn

from cstp_grpc.agents.hooks.hosts import HOSTS, load_host
from cstp_grpc.cli import hook_run
from cstp_grpc.cli.resident_client import MAX_BYTES, is_private, read_to_end
from cstp_grpc.common.garbage_collection import spare_modules_collection
from cstp_grpc.core.guardrails.reloading import RuleLoader
from cstp_grpc.core.guardrails.rulebook import RulebookError, read_rulebooks
from cstp_grpc.platform.config.environment import replace_environment

IDLE_SECONDS: Final = 600.0
"""How long the process stays without a hook. Chosen: longer than people read before they let an agent go on."""
TOLD_BYTES: Final = 65_536
"""Maximum size of the report of a fork. Chosen: several times the longest path."""
MAX_WAITING: Final = 64
"""How many hooks may wait to be accepted. Chosen: more than agents run at once."""
REQUEST_SECONDS: Final = 5.0
"""How long a fork waits for its request, which is sent at once, and for its answer to be taken."""
LOADING_SECONDS: Final = 600
"""Seconds for loading; no caller waits for it."""
LOADING_CONFIG: Final = "data_dir: data\nembedding: {provider: lexical}\n"
LOADING_EVENT: Final = json.dumps(
    {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "true"}, "cwd": "/"}
).encode()
GRPC_MODULES: Final = ("grpc", "grpc._channel", "google.rpc.error_details_pb2")
"""The modules that only calls over gRPC import."""


def serve_hooks(path: Path, load: Callable[[], None], idle_seconds: float = IDLE_SECONDS) -> None:
    """Run hooks that are asked for at a path, until none came for a time; `load` imports what they need.

    Does nothing if another process does so. Raises OSError.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_private(str(path.parent)):
        return
    with path.with_suffix(".lock").open("w") as lock, socket.socket(socket.AF_UNIX) as listener:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        remove_leftovers(path.parent)
        load()
        # Forks share these objects with this process as long as nothing, such as a collection, writes to them.
        gc.freeze()
        # Of a process that was killed: only one has the lock.
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        listener.listen(MAX_WAITING)
        # So that forks that have ended leave no zombies.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        told, telling = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        # A hook that connects after the last accept is closed without an answer, and answers itself.
        while ready := select.select([listener, told], [], [], idle_seconds)[0]:
            if told in ready:
                keep_rules(told.recv(TOLD_BYTES))
                continue
            RuleLoader.newest = None
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    listener.close()
                    run_fork(connection, telling)
        path.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Delete the files of processes that have ended, such as those of containers that are gone."""
    for path in folder.glob("hooks-*.lock"):
        # Locked by a process that is alive. One that just starts may lose its socket; hooks then answer themselves.
        with contextlib.suppress(OSError), path.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.with_suffix(".sock").unlink(missing_ok=True)
            path.unlink()


def load_modules() -> None:
    """Import what hooks need, by answering one with a data folder, and what calls over gRPC need.

    Nothing is called over gRPC: it would start threads.
    """
    import tempfile

    spare_modules_collection()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "cstp.yaml")
        config.write_text(LOADING_CONFIG)
        words = [HOSTS[0], "--local", "--config", str(config), "--timeout", str(LOADING_SECONDS)]
        run_hook(words, LOADING_EVENT, os.getppid())
        os.chdir("/")
    for host in HOSTS:
        load_host(host)
    for name in GRPC_MODULES:
        # What is not installed is missing to the hook itself as well, which says so.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def keep_rules(told: bytes) -> None:
    """Load the rules of a fork, so that the next forks need not."""
    folder, loader = pickle.loads(told)  # noqa: S301 - written by our own fork
    # Others may have changed the files; then the next fork finds the errors.
    with contextlib.suppress(RulebookError, OSError), contextlib.chdir(folder):
        loader.load(*read_rulebooks(loader.path))
    gc.freeze()


def run_fork(connection: socket.socket, telling: socket.socket) -> NoReturn:
    """Run the hook that a connection asks for, answer with its output, tell which rules were loaded, and exit."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        request = b"".join(read_to_end(connection.fileno(), 2 * MAX_BYTES, time.monotonic() + REQUEST_SECONDS))
        output, errors = (text.encode(errors="replace") for text in answer_request(request))
        connection.settimeout(REQUEST_SECONDS)
        connection.sendall(b"%d %d\n%b%b" % (len(output), len(errors), output, errors))
        status = 0
        if RuleLoader.newest is not None:
            telling.send(pickle.dumps((Path.cwd(), RuleLoader.newest)))
    finally:
        # Without the handlers and the cleaning up that belong to the process.
        os._exit(status)


def answer_request(request: bytes) -> tuple[str, str]:
    """Return the output and errors of the hook that a request asks for; changes what processes have from their caller.

    `ask_resident` writes requests.
    """
    size, _, rest = request.partition(b"\n")
    header, event = rest[: int(size)], rest[int(size) :]
    folder, parent, count, *fields = map(os.fsdecode, header.split(b"\0"))
    words, variables = fields[: int(count)], fields[int(count) :]
    replace_environment({name: value for name, _, value in (each.partition("=") for each in variables)})
    os.chdir(folder)
    return run_hook(words, event, int(parent))


def run_hook(words: Sequence[str], event: bytes, parent: int) -> tuple[str, str]:
    """Return the output and errors of a hook that was run by a process, its parent; replaces standard input."""
    if words[0] in HOSTS and hook_run.is_headless_session(load_host(words[0]), words, parent):
        words = [*words, "--headless"]
    output, errors = io.StringIO(), io.StringIO()
    sys.stdin = io.TextIOWrapper(io.BytesIO(event))
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors), contextlib.suppress(SystemExit):
        # Without `--resident` these are the words of nearly all hooks, which click would read in longer.
        hook = hook_run.parse_usual_words([word for word in words if word != "--resident"])
        if hook is not None:
            hook_run.run_hook(hook)
        else:
            from cstp_grpc.cli.main import main

            # The last one counts.
            main.main(["hook", *words, "--no-resident"], prog_name="cstp")
    return output.getvalue(), errors.getvalue()


if __name__ == "__main__":
    serve_hooks(Path(sys.argv[1]), load_modules)
