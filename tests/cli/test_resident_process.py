"""The process that answers hooks of data folders and over gRPC sooner."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from cstp_grpc.cli import resident_client
from cstp_grpc.cli.hook_run import start_resident
from cstp_grpc.cli.resident_client import resident_socket
from tests.agents.hooks.payloads import encode, payload
from tests.cli.test_loading import modules_loaded, own
from tests.client.scripted import HttpReply, http_server
from tests.harness import TIMEOUT
from tests.waiting import wait_until

ALLOWED = {"allowed": True, "violations": [], "warnings": [], "approvalRequired": False}
SERVE = "from pathlib import Path; from cstp_grpc.cli.resident_process import serve_hooks; "


def start(path: Path, idle_seconds: float = 600, errors: IO[str] | None = None) -> subprocess.Popen[bytes]:
    """Start the process, which loads nothing before it is asked."""
    program = f"{SERVE} serve_hooks(Path({str(path)!r}), lambda: None, {idle_seconds})"
    return subprocess.Popen([sys.executable, "-c", program], stderr=errors, cwd="/")


@contextmanager
def resident(path: Path, idle_seconds: float = 600, errors: IO[str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run the process until the end of the block."""
    with start(path, idle_seconds, errors) as process:
        try:
            wait_until(lambda: path.exists() or process.poll() is not None, "a socket, or the end of the process")
            yield process
        finally:
            process.kill()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder of the user's own, whose path is short as that of a socket must be."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def path(short_folder: Path) -> Path:
    return short_folder / "hooks.sock"


def ask_resident(path: Path, words: Sequence[str], event: bytes) -> tuple[str, str] | None:
    return resident_client.ask_resident(str(path), words, event, time.monotonic() + TIMEOUT)


def ask(path: Path, *arguments: str, event: Any = None) -> Any:
    answer = ask_resident(path, ["claude-code", *arguments], encode(event or payload("bash")).encode())
    assert answer is not None
    output, errors = answer
    assert errors == ""
    return json.loads(output)


def test_it_answers_what_the_hook_would(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = HttpReply(lambda call: {"jsonrpc": "2.0", "id": call["id"], "result": ALLOWED})
    with http_server(reply) as server, resident(path):
        for token in ("first", "second"):
            monkeypatch.setenv("CSTP_TOKEN", token)
            assert ask(path, "--agent", server.url) == {}
        asked = [headers["authorization"] for _, headers, _ in server.requests]
        assert asked == ["Bearer first", "Bearer second"]
        # In the folder of the caller, and with wrong options as well.
        Path("tools.yaml").write_text("tools: [{tool: Bash, ask: nothing}]\n")
        assert ask(path, "--agent", "http://127.0.0.1:1", "--tools", "tools.yaml") == {}
        wrong = ask(path, "--unknown")["hookSpecificOutput"]
        assert wrong["permissionDecision"] == "ask"
        unread = ask_resident(path, ["claude-code"], b"{")
        assert unread is not None
        assert "is not JSON" in unread[0]


@pytest.fixture
def local_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The options of a hook with a data folder and a rulebook of its own."""
    for name in list(os.environ):
        if name.startswith("CSTP_"):
            monkeypatch.delenv(name)
    rule = "{id: no-tests, name: No Tests, when: 'action.mentions([\"npm test\"])', severity: warn, message: No tests}"
    old = "{id: old, name: Old, when: 'false', severity: warn, message: Old, expires: 2020-01-01}"
    (tmp_path / "rules.yaml").write_text(
        f"apiVersion: cstp.guardrails/v1\nmetadata: {{name: shop, version: '1'}}\nguardrails: [{rule}, {old}]\n"
    )
    (tmp_path / "cstp.yaml").write_text(
        "data_dir: data\nembedding: {provider: lexical}\nauth: {enabled: false}\n"
        "cstp: {guardrails: {config_path: rules.yaml}}\n"
    )
    return ["--local", "--config", str(tmp_path / "cstp.yaml"), "--timeout", "60"]


def ask_for_verdict(path: Path, options: Sequence[str]) -> Any:
    answer = ask_resident(path, ["claude-code", *options], encode(payload("bash")).encode())
    assert answer is not None
    assert "the guardrail old expired" in answer[1]
    return json.loads(answer[0])["hookSpecificOutput"]


def test_each_answer_is_of_the_rules_of_its_moment(path: Path, tmp_path: Path, local_options: list[str]) -> None:
    rules = tmp_path / "rules.yaml"
    log = tmp_path / "log"
    with log.open("w") as errors, resident(path, errors=errors):
        assert "No tests" in ask_for_verdict(path, local_options)["additionalContext"]
        # The process has the rules of its fork when it reports the expired one itself.
        wait_until(lambda: log.read_text().count("expired") == 1, "rules that are kept")
        assert "No tests" in ask_for_verdict(path, local_options)["additionalContext"]
        rules.write_text(rules.read_text().replace("severity: warn, message: No", "severity: block, message: No"))
        assert ask_for_verdict(path, local_options)["permissionDecision"] == "deny"
        wait_until(lambda: log.read_text().count("expired") == 2, "rules that are kept")
        assert ask_for_verdict(path, local_options)["permissionDecision"] == "deny"
        rules.write_text("guardrails: no\n")
        assert ask(path, *local_options)["hookSpecificOutput"]["permissionDecision"] == "ask"


def test_rules_at_a_path_in_the_folder_of_the_hook_are_kept(
    path: Path, tmp_path: Path, local_options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.chdir(tmp_path)
    options = ["cstp.yaml" if option.endswith("cstp.yaml") else option for option in local_options]
    with log.open("w") as errors, resident(path, errors=errors):
        assert "No tests" in ask_for_verdict(path, options)["additionalContext"]
        wait_until(lambda: log.read_text().count("expired") == 1, "rules that are kept")
        assert "No tests" in ask_for_verdict(path, options)["additionalContext"]


def test_it_ends_by_itself_and_the_next_one_takes_its_place(path: Path) -> None:
    with resident(path, idle_seconds=0.2) as process:
        assert process.wait(TIMEOUT) == 0
    assert not path.exists()
    assert ask_resident(path, ["claude-code"], b"{}") is None
    with resident(path) as killed:
        killed.kill()
        killed.wait(TIMEOUT)
    assert path.exists()
    assert ask_resident(path, ["claude-code"], b"{}") is None
    with start(path) as process:
        wait_until(lambda: ask_resident(path, ["claude-code"], b"{}") is not None, "an answer")
        process.kill()


def test_what_others_left_is_deleted_and_what_lives_is_not(short_folder: Path) -> None:
    paths = [short_folder / f"hooks-{name}.sock" for name in ("dead", "alive", "new")]
    with resident(paths[0]) as killed:
        killed.kill()
        killed.wait(TIMEOUT)
    with resident(paths[1]), resident(paths[2]):
        left = sorted(path.name for path in short_folder.iterdir())
        assert left == ["hooks-alive.lock", "hooks-alive.sock", "hooks-new.lock", "hooks-new.sock"]
        assert ask_resident(paths[1], ["claude-code"], b"{") is not None


def test_there_is_only_one(path: Path) -> None:
    with resident(path), start(path) as second:
        assert second.wait(TIMEOUT) == 0
        assert ask_resident(path, ["claude-code"], b"{") is not None


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_folder_that_others_may_enter_is_not_used(path: Path, mode: int) -> None:
    path.parent.chmod(mode)
    with resident(path) as process:
        assert process.wait(TIMEOUT) == 0
    assert not path.exists()
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(path))
        listener.listen()
        assert ask_resident(path, ["claude-code"], b"{}") is None


@pytest.mark.parametrize(
    "sent",
    [b"", b"{}", b"\n{}", b"2\n{}", b"2 0\n{", b"2 0\n{}x", b"-1 3\n{}", b"\xff 0\n", b"1 0\n\n", b"1 0\n\xff"],
)
def test_an_answer_that_is_none_leaves_the_hook_to_itself(path: Path, sent: bytes) -> None:
    program = (
        "import socket, sys\n"
        "listener = socket.socket(socket.AF_UNIX)\n"
        "listener.bind(sys.argv[1])\n"
        "listener.listen()\n"
        "connection, _ = listener.accept()\n"
        "while connection.recv(65536): pass\n"
        f"connection.sendall({sent!r})\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(path)]):
        wait_until(path.exists, "a socket")
        assert ask_resident(path, ["claude-code"], b"{}") is None


@pytest.mark.skipif(sys.platform != "linux", reason="the process is found by what Linux says of its socket")
def test_a_hook_leaves_one_that_the_next_hook_asks(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(short_folder))
    where = resident_socket()
    assert where is not None
    command = [sys.executable, "-m", "cstp_grpc", "hook", "claude-code", "--agent", "grpc://127.0.0.1:1", "--resident"]
    event = encode(payload("bash"))
    first = subprocess.run(command, input=event, capture_output=True, text=True, check=True, timeout=TIMEOUT)
    # It loads all libraries first, for which a busy machine takes its time.
    wait_until(Path(where).exists, "a socket", 4 * TIMEOUT)
    second = subprocess.run(command, input=event, capture_output=True, text=True, check=True, timeout=TIMEOUT)
    assert json.loads(first.stdout) == json.loads(second.stdout)
    assert "could not be asked" in second.stdout
    with closing(socket.socket(socket.AF_UNIX)) as connection:
        connection.connect(where)
        pid, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    os.kill(pid, signal.SIGKILL)


@pytest.fixture
def listening(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Something that listens where hooks ask, and keeps them from leaving a process."""
    monkeypatch.setenv("HOME", str(short_folder))
    path = Path(resident_socket() or "")
    path.parent.mkdir(mode=0o700, parents=True)
    with path.with_suffix(".lock").open("w") as lock, closing(socket.socket(socket.AF_UNIX)) as listener:
        fcntl.flock(lock, fcntl.LOCK_EX)
        listener.bind(str(path))
        listener.listen()
        yield listener


def start_hook(*options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "cstp_grpc", "hook", "claude-code", "--resident", *options]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_hook_without_an_answer_reads_its_event_again(listening: socket.socket) -> None:
    reply = HttpReply(lambda call: {"jsonrpc": "2.0", "id": call["id"], "result": ALLOWED})
    with http_server(reply) as server, start_hook("--agent", server.url) as hook:
        assert hook.stdin is not None
        hook.stdin.write(encode(payload("bash")))
        hook.stdin.close()
        connection, _ = listening.accept()
        connection.close()
        assert hook.wait(TIMEOUT) == 0
        assert len(server.requests) == 1


@pytest.mark.parametrize("sent", [True, False])
def test_the_limit_of_a_hook_holds_while_it_asks(sent: bool, listening: socket.socket) -> None:
    with start_hook("--timeout", "0.2") as hook:
        assert hook.stdin is not None
        assert hook.stdout is not None
        if sent:
            hook.stdin.write(encode(payload("bash")))
            hook.stdin.close()
        answer = json.loads(hook.stdout.read())["hookSpecificOutput"]
        assert answer["permissionDecision"] == "ask"
        assert "it took more than 0.2 s" in answer["permissionDecisionReason"]


def test_a_hook_that_is_answered_loads_next_to_nothing(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(short_folder))
    event = short_folder / "event.json"
    event.write_text(encode(payload("bash")))
    with resident(Path(resident_socket() or "")), event.open() as stdin:
        options = ["hook", "claude-code", "--agent", "http://127.0.0.1:1", "--resident"]
        modules, printed = modules_loaded(short_folder, options, stdin=stdin)
    assert "No server answers" in printed
    assert own(modules) == {
        "cstp_grpc",
        "cstp_grpc.cli",
        "cstp_grpc.cli.entry",
        "cstp_grpc.cli.resident_client",
        "cstp_grpc.common",
        "cstp_grpc.common.garbage_collection",
        "cstp_grpc.common.version",
    }
    assert not modules & {"click", "json", "socket", "hashlib", "dataclasses"}


def socket_of(*command: str) -> str:
    """Return the socket that a process started by a command asks."""
    program = "from cstp_grpc.cli.resident_client import resident_socket; print(resident_socket())"
    given = [*command, sys.executable, "-c", program]
    return subprocess.run(given, capture_output=True, text=True, check=True, timeout=TIMEOUT).stdout


def can_unshare(option: str) -> bool:
    """Return whether a process may have a view of files or of the network of its own here."""
    program = shutil.which("unshare")
    return program is not None and subprocess.run([program, "-r", option, "true"], check=False).returncode == 0


@pytest.mark.parametrize("option", ["--mount", "--net"])
def test_a_container_with_the_same_home_has_its_own(option: str) -> None:
    if not can_unshare(option):
        pytest.skip("needs namespaces")
    assert socket_of() == socket_of()
    assert socket_of("unshare", "-r", option) != socket_of()


def test_code_that_is_installed_again_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = tmp_path / "resident_client.py"
    code.touch()
    monkeypatch.setattr("cstp_grpc.cli.resident_client.__file__", str(code))
    before = resident_socket()
    assert resident_socket() == before
    os.utime(code, ns=(0, 1))
    assert resident_socket() != before


def test_a_user_without_a_home_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert resident_socket() is None


def test_a_path_that_is_too_long_for_a_socket_starts_nothing(short_folder: Path) -> None:
    assert not start_resident(str(short_folder / ("x" * 120) / "hooks.sock"))
