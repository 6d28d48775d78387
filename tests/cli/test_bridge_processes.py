"""The processes of bridges beside a server: their addresses, their start and their end."""

from __future__ import annotations

import os
import queue
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from cstp_grpc.cli.process_supervision import ChildProcessFailed, ChildRestarted
from cstp_grpc.cli.server_stack import BridgeProcesses
from cstp_grpc.platform import config
from tests.cli.serving import BOUND, answers, get


def free_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let bridges that are started here choose their ports."""
    for name in ("CSTP_SERVER__PORT", "CSTP_A2A__GRPC_PORT"):
        monkeypatch.setenv(name, "0")


def bridges(config_file: Path | None = None, number: int = 1) -> BridgeProcesses:
    return BridgeProcesses(config.load_settings(config_file), config_file, number)


def test_a_bridge_that_listens_everywhere_is_named_by_a_reachable_address(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free_ports(monkeypatch)
    monkeypatch.setenv("CSTP_SERVER__HOST", "0.0.0.0")
    monkeypatch.setenv("CSTP_A2A__GRPC_HOST", "0.0.0.0")
    # What lies in the working folder is not run.
    for name in ("bridge.py", "yaml.py"):
        (home / name).write_text("raise SystemExit(9)")
    bridge = bridges()
    try:
        address = bridge.start("127.0.0.1:1", "")
        assert address.url.startswith("http://127.0.0.1:")
        assert address.a2a_target is not None
        assert address.a2a_target.startswith("127.0.0.1:")
        assert answers(address.a2a_target)
    finally:
        bridge.stop()


@pytest.mark.parametrize("number", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_bridges_without_a2a_have_one_address(home: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    free_ports(monkeypatch)
    monkeypatch.setenv("CSTP_A2A__ENABLED", "false")
    bridge = bridges(number=number)
    try:
        address = bridge.start("127.0.0.1:1", "")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(f"{address.url}/.well-known/agent-card.json")
        assert address.a2a_target is None
    finally:
        bridge.stop()


def test_a_bridge_loads_before_it_is_told_its_server(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free_ports(monkeypatch)
    bridge = bridges()
    bridge.prepare()
    child = bridge.processes[0].child
    assert child
    try:
        assert get(f"{bridge.start('127.0.0.1:1', '').url}/.well-known/agent-card.json")
        assert bridge.processes[0].child is child
    finally:
        bridge.stop()


def test_a_bridge_without_a_server_ends(home: Path) -> None:
    bridge = bridges()
    bridge.prepare()
    child = bridge.processes[0].child
    bridge.stop()
    assert child
    assert child.exit_code() is not None


def test_a_bridge_that_cannot_start_fails_at_once(home: Path) -> None:
    (home / "broken.yaml").write_text("nonsense: true")
    bridge = BridgeProcesses(config.load_settings(None), home / "broken.yaml")
    with pytest.raises(ChildProcessFailed, match="nonsense: is not a known setting"):
        bridge.start("127.0.0.1:1", "")
    bridge.stop()


@pytest.mark.slow
def test_a_bridge_that_dies_is_replaced_on_the_addresses_that_are_told(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free_ports(monkeypatch)
    bridge = bridges()
    events: queue.Queue[ChildRestarted | ChildProcessFailed] = queue.Queue()
    bridge.start("127.0.0.1:1", "")
    try:
        bridge.keep_alive(events.put)
        kill(bridge)
        event = events.get(timeout=BOUND)
        assert isinstance(event, ChildRestarted)
        assert get(f"{bridge.address(event.report).url}/.well-known/agent-card.json")
    finally:
        bridge.stop()


def kill(bridge: BridgeProcesses) -> None:
    child = bridge.processes[0].child
    assert child is not None
    os.kill(child.pid, signal.SIGKILL)
