"""The command as a process: what is on its streams, when it ends, and what it says where something is missing."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import mcp_types
import pytest
from click.testing import CliRunner
from mcp.client import Client

from cstp_grpc.cli import mcp_command
from cstp_grpc.cli.main import main
from cstp_grpc.client import CstpClient
from cstp_grpc.server.app import App
from tests.agents.mcp_server.hosts import MODERN, MODES_OF_COMMANDS, ROOT, SECONDS, stdio_parameters, text_of
from tests.databases import write_journal

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}


def converse(app: App, *lines: str) -> subprocess.CompletedProcess[str]:
    """Run the command with lines on its standard input, which then ends."""
    parameters = stdio_parameters(app.target)
    return subprocess.run(
        [parameters.command, *parameters.args],
        input="".join(f"{line}\n" for line in lines),
        env=parameters.env,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def test_only_the_protocol_is_on_standard_output_and_the_end_of_input_ends_it(cstp_server: App) -> None:
    ended = converse(cstp_server, json.dumps(INITIALIZE), "this is no JSON")
    assert ended.returncode == 0, ended.stderr
    answers: list[dict[str, Any]] = [json.loads(line) for line in ended.stdout.splitlines()]
    assert all(answer["jsonrpc"] == "2.0" for answer in answers)
    assert answers[0]["result"]["serverInfo"]["name"] == "cstp"
    assert "look_before_acting" in answers[0]["result"]["instructions"]


def test_what_cannot_be_read_is_answered(cstp_server: App) -> None:
    # A text that was cut amid an emoji, as a host in JavaScript sends it.
    cut = {"name": "check_action", "arguments": {"description": "\ud83d"}}
    messages = [
        INITIALIZE,
        {"jsonrpc": "2.0", "id": "cut", "method": "tools/call", "params": cut},
        {"jsonrpc": "2.0", "id": "\ud83d", "method": "ping"},
        {"jsonrpc": "2.0", "id": True, "method": "\ud83d"},
        {"jsonrpc": "2.0", "method": "notifications/\ud83d"},
        {"jsonrpc": "2.0", "id": 9, "result": {"content": "\ud83d"}},
    ]
    ended = converse(cstp_server, *map(json.dumps, messages), "{", "[" * 100_000, '"text"', "[]", '{"id": 1}')
    assert ended.returncode == 0, ended.stderr
    answers = [json.loads(line) for line in ended.stdout.splitlines()]
    errors = [(answer["id"], answer["error"]["code"]) for answer in answers if "error" in answer]
    parse, invalid = (None, mcp_types.PARSE_ERROR), (None, mcp_types.INVALID_REQUEST)
    assert errors == [("cut", mcp_types.PARSE_ERROR), parse, parse, parse, parse, invalid, invalid, invalid]


def test_a_folder_that_cannot_be_opened_is_told_to_a_person(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text("guardrails: none\n")
    config = tmp_path / "cstp.yaml"
    config.write_text("data_dir: data\nembedding: {provider: lexical}\ncstp: {guardrails: {config_path: rules.yaml}}\n")
    parameters = stdio_parameters("127.0.0.1:1")
    parameters.args[-2:] = ["--local", "--config", str(config)]

    async def check() -> str:
        async with Client(parameters, mode=MODERN) as client:
            return text_of(await client.call_tool("check_action", {"description": "Deploy"}))

    told = asyncio.run(check())
    assert told.startswith("NO VERDICT")
    assert "rules.yaml" in told
    assert "tell a person" in told
    assert "in a moment" not in told


@pytest.mark.parametrize("mode", MODES_OF_COMMANDS)
def test_a_data_folder_is_used_without_a_server(mode: str, tmp_path: Path) -> None:
    write_journal(tmp_path / "journal.db")
    own = {"CSTP_DATA_DIR": str(tmp_path), "CSTP_EMBEDDING__PROVIDER": "lexical"}
    parameters = stdio_parameters("127.0.0.1:1", **own)
    parameters.args[-2:] = ["--local", "--as", "claude-code"]

    async def use_tools() -> list[str]:
        async with Client(parameters, mode=mode) as client:
            recorded = await client.call_tool("record_decision", {"title": "Keep sessions in Redis"})
            found = await client.call_tool("find_decisions", {"query": "sessions"})
            return [text_of(recorded), text_of(found)]

    assert all("Keep sessions in Redis" in text for text in asyncio.run(use_tools()))
    with CstpClient(f"local:{tmp_path}", agent="claude-code") as client:
        assert [decision.agent for decision in client.list_decisions()] == ["claude-code"]


def test_a_data_folder_is_not_served_to_strangers() -> None:
    result = CliRunner().invoke(main, ["mcp", "--http", "--local"])
    assert result.exit_code == 2
    assert "needs a server" in result.output


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_a_signal_ends_it_although_its_input_goes_on(cstp_server: App, number: signal.Signals) -> None:
    parameters = stdio_parameters(cstp_server.target)
    command = [parameters.command, *parameters.args]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=parameters.env, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(f"{json.dumps(INITIALIZE)}\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["id"] == INITIALIZE["id"]
            process.send_signal(number)
            assert process.wait(SECONDS) == -number
        finally:
            process.kill()


def test_without_the_sdk_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    result = CliRunner().invoke(main, ["mcp", "--agent", "grpc://127.0.0.1:1"])
    assert result.exit_code == 1
    assert "[mcp]'" in result.output


def test_it_does_not_listen_beyond_this_machine_unasked() -> None:
    result = CliRunner().invoke(main, ["mcp", "--http", "--host", "0.0.0.0", "--agent", "grpc://127.0.0.1:1"])
    assert result.exit_code == 1
    assert "--insecure" in result.stderr


def test_a_bridge_is_refused_with_what_is_wanted() -> None:
    result = CliRunner().invoke(main, ["mcp", "--agent", "http://127.0.0.1:1"])
    assert result.exit_code == 1
    assert "grpc://" in result.output


def test_the_sdk_is_loaded_by_this_command_alone() -> None:
    program = "import sys, cstp_grpc.cli.mcp_command; sys.exit('mcp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
    assert isinstance(mcp_command.mcp_command, click.Command)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--authorization-server", "https://issuer.example.com/"], "needs --public-url"),
        (["--public-url", "mcp.example.com"], "is not an http or https URL"),
        (["--public-url", "https://"], "is not an http or https URL"),
        (["--authorization-server", "https://x:99999/"], "is not an http or https URL"),
    ],
)
def test_what_hosts_are_told_of_issuers_must_be_complete(options: list[str], problem: str) -> None:
    refused = CliRunner().invoke(main, ["mcp", "--http", "--agent", "grpc://127.0.0.1:1", *options])
    assert refused.exit_code == 2
    assert problem in refused.stderr
