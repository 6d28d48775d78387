"""The bridge as a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from google.protobuf.message import Message

from bridge.__main__ import BridgeTask, run_bridge_process
from cstp_grpc.gen.cstp.v1 import cstp_pb2
from tests.bridge.support import TIMEOUT, Client, Scripted, call
from tests.waiting import wait_until

CONFIG = "server: {host: 127.0.0.1, port: 0}\ngrpc: {port: 0}\na2a: {grpc_port: 0}\n"


class Process:
    """A bridge that was started from the command line."""

    def __init__(self, folder: Path, *arguments: str, config: str = CONFIG, before: Sequence[str] = ()) -> None:
        file = folder / "config.yaml"
        file.write_text(config)
        self.port_file = folder / "port"
        command = [
            *before,
            sys.executable,
            "-m",
            "bridge",
            "--config",
            str(file),
            "--port-file",
            str(self.port_file),
            *arguments,
        ]
        self.popen = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def client(self) -> Client:
        """Wait until it listens."""

        def listens() -> bool:
            assert self.popen.poll() is None, self.popen.communicate()[1]
            return self.port_file.exists()

        wait_until(listens, "the bridge listens", TIMEOUT)
        host, port = self.port_file.read_text().split(":")
        return Client(host, int(port))

    def end(self) -> tuple[int, str]:
        """Wait until it ended, and return its exit code and its log."""
        _, log = self.popen.communicate(timeout=TIMEOUT)
        return self.popen.returncode, log


@pytest.fixture
def started(tmp_path: Path, target: str, server: Scripted) -> Iterator[Process]:
    process = Process(tmp_path, "--grpc-target", target)
    yield process
    if process.popen.poll() is None:
        process.popen.kill()
        process.end()


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_it_serves_until_it_is_told_to_stop(started: Process, target: str, number: signal.Signals) -> None:
    client = started.client()
    assert client.post(call("cstp.queryDecisions", {"query": "x"})).json["result"]["query"] == "x"
    started.popen.send_signal(number)
    code, log = started.end()
    assert code == 0
    assert f"listening on http://{client.host}:{client.port}, forwarding to {target}" in log
    assert "Traceback" not in log


def test_calls_in_progress_are_answered_before_it_stops(started: Process, server: Scripted) -> None:
    arrived, released = threading.Event(), threading.Event()

    def wait(request: Any, context: grpc.ServicerContext) -> Message:
        arrived.set()
        released.wait(TIMEOUT)
        return cstp_pb2.QueryDecisionsResponse(query="late")

    server.plays["cstp.queryDecisions"] = wait
    client = started.client()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.post, call("cstp.queryDecisions", {"query": "x"}))
        assert arrived.wait(TIMEOUT)
        started.popen.send_signal(signal.SIGTERM)
        for line in started.popen.stderr or ():
            if "stopping" in line:
                break
        released.set()
        assert answer.result(TIMEOUT).json["result"]["query"] == "late"
    assert started.end()[0] == 0


def test_it_needs_to_know_its_server(tmp_path: Path) -> None:
    code, log = Process(tmp_path).end()
    assert (code, log) == (1, "server.grpc_target: is needed where grpc.port is 0\n")


def problem_of(folder: Path, target: str, content: str) -> str:
    """Return the message of a bridge that cannot run with some settings."""
    file = folder / "config.yaml"
    file.write_text(content)
    problems: list[str] = []
    code = run_bridge_process(file, BridgeTask(target), lambda _: pytest.fail("it listens"), problems.append)
    assert code == 1
    (problem,) = problems
    return problem


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("server: {prot: 1}", "server.prot: is not a known setting"),
        (
            "server: {port: 0, trusted_proxies: [nowhere]}\na2a: {grpc_port: 0}",
            "server.trusted_proxies: nowhere is neither an address nor a network",
        ),
        (
            "server: {port: 0, trusted_proxies: [0.0.0.0/0]}\na2a: {grpc_port: 0}",
            "server.trusted_proxies: 0.0.0.0/0 would believe anyone",
        ),
        (
            "server: {port: 0, public_url: agent.example.com}\na2a: {grpc_port: 0}",
            "server.public_url: agent.example.com must begin with",
        ),
        ("server: {port: 0}\na2a: {grpc_port: 0, public_grpc_target: agent.example.com}", "a2a.public_grpc_target: "),
    ],
)
def test_settings_that_cannot_be_used_are_named(tmp_path: Path, target: str, config: str, problem: str) -> None:
    assert problem in problem_of(tmp_path, target, config)


@pytest.mark.parametrize(
    ("remote", "named"),
    [
        ("cstp.example.com:50051", "cstp.example.com"),
        ("grpc://10.0.0.5:50051", "10.0.0.5"),
        ("[2001:db8::5]:50051", "2001:db8::5"),
        ("127.0.0.1:50051,10.0.0.6:50051", "10.0.0.6"),
    ],
)
def test_tokens_are_not_sent_to_another_machine_without_tls(tmp_path: Path, remote: str, named: str) -> None:
    problem = problem_of(tmp_path, remote, CONFIG)
    assert problem.startswith(f"server.grpc_target: {named} is not this machine")
    assert "unencrypted" in problem
    assert "--insecure" in problem


@pytest.mark.parametrize(
    ("target", "serve", "is_required"),
    [
        ("192.0.2.1:50051", {"insecure": True}, True),
        ("192.0.2.1:50051", {}, False),
        ("grpcs://192.0.2.1:50051", {}, True),
    ],
)
def test_a_server_elsewhere_has_tls_or_is_meant_to_have_none(
    tmp_path: Path, target: str, serve: dict[str, bool], is_required: bool
) -> None:
    file = tmp_path / "config.yaml"
    # Nobody is there, which matters at the first call only.
    file.write_text(yaml.safe_dump({**yaml.safe_load(CONFIG), "serve": serve}))

    def stop(_: object) -> None:
        raise OSError("it listens")

    problems: list[str] = []
    code = run_bridge_process(file, BridgeTask(target), stop, problems.append, require_safe_settings=is_required)
    assert code == 1
    assert "it listens" in problems[0]


@pytest.mark.parametrize("setting", ["server.port", "a2a.grpc_port"])
def test_a_port_that_is_taken_is_named_with_its_setting(
    tmp_path: Path, bridge: Client, target: str, setting: str
) -> None:
    section, key = setting.split(".")
    content = yaml.safe_load(CONFIG)
    content[section][key] = bridge.port
    expected = f"cannot listen on 127.0.0.1:{bridge.port}: is the port taken? Set {setting} to another"
    assert expected in problem_of(tmp_path, target, yaml.safe_dump(content))


def test_a_port_file_that_cannot_be_written_is_named(tmp_path: Path, target: str) -> None:
    code, log = Process(tmp_path, "--grpc-target", target, "--a2a-port-file", str(tmp_path / "absent/port")).end()
    assert code == 1
    assert "cannot write its port file" in log
    assert "Traceback" not in log
