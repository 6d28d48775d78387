"""`cstp mcp-guard`: what hosts see of a server under guard, by the official client, over both revisions."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import mcp_types
import pytest
import yaml
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError

from cstp_grpc.client import CstpClient
from tests.agents.frameworks.scenario import (
    BLOCKED_WORDS,
    BROKEN_WORDS,
    NOBODY,
    QUESTION_WORDS,
    TOOLS,
    UNREACHABLE_WORDS,
    decision_about,
    name_table,
    outcome_of,
)
from tests.waiting import wait_until

T = TypeVar("T")
ROOT = Path(__file__).parents[3]
MODES = (pytest.param("legacy", marks=pytest.mark.slow), "2026-07-28")
SECONDS = 60.0


class Guarded:
    """A server under guard, and the host that starts it."""

    def __init__(self, folder: Path, target: str, token: str) -> None:
        self.dropped = folder / "dropped"
        self.tools = folder / "tools.yaml"
        self.tools.write_text(yaml.safe_dump(TOOLS))
        self.server = [sys.executable, "-m", "tests.agents.frameworks.table_server", str(self.dropped)]
        self._target = target
        inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        self.environment = {**inherited, "PYTHONPATH": str(ROOT), "CSTP_TOKEN": token}

    def command(self, *options: str, target: str | None = None, server: list[str] | None = None) -> list[str]:
        chosen = ["--agent", target or self._target, "--tools", str(self.tools)]
        return [sys.executable, "-m", "cstp_grpc", "mcp-guard", *chosen, *options, "--", *(server or self.server)]

    def parameters(self, *options: str, target: str | None = None) -> StdioServerParameters:
        program, *arguments = self.command(*options, target=target)
        return StdioServerParameters(command=program, args=arguments, env=self.environment)

    def run(
        self, use: Callable[[Client], Awaitable[T]], mode: str, *options: str, target: str | None = None, **host: Any
    ) -> T:
        """Return the result of `use` in a session with the server."""

        async def session() -> T:
            async with Client(self.parameters(*options, target=target), mode=mode, **host) as client:
                return await use(client)

        return asyncio.run(asyncio.wait_for(session(), SECONDS))

    def drop(self, table: str, mode: str, *options: str, **host: Any) -> mcp_types.CallToolResult:
        """Call the tool that drops a table."""
        return self.run(lambda client: client.call_tool("drop_table", {"table": table}), mode, *options, **host)

    def was_dropped(self, table: str) -> bool:
        return self.dropped.exists() and table in self.dropped.read_text().splitlines()


@pytest.fixture
def guarded(tmp_path: Path, target: str, token: str) -> Guarded:
    return Guarded(tmp_path, target, token)


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def text_of(result: mcp_types.CallToolResult) -> str:
    return "".join(block.text for block in result.content if isinstance(block, mcp_types.TextContent))


def test_what_is_allowed_is_called_and_what_is_blocked_is_not(guarded: Guarded, mode: str, client: CstpClient) -> None:
    scratch, orders, broken = map(name_table, ("scratch", "orders", "broken"))

    async def use(host: Client) -> list[mcp_types.CallToolResult]:
        return [await host.call_tool("drop_table", {"table": table}) for table in (scratch, orders, broken)]

    allowed, blocked, failed = guarded.run(use, mode)
    assert (text_of(allowed), allowed.is_error) == (f"{scratch} is dropped", False)
    assert outcome_of(client, scratch) == "success"
    assert blocked.is_error
    assert all(words in text_of(blocked) for words in BLOCKED_WORDS)
    assert decision_about(client, orders) is None
    assert failed.is_error
    decision = decision_about(client, broken)
    assert decision is not None
    assert (outcome_of(client, broken), BROKEN_WORDS in decision.notes) == ("failure", True)
    assert [guarded.was_dropped(table) for table in (scratch, orders, broken)] == [True, False, False]


@pytest.mark.slow
def test_what_cannot_be_judged_is_not_called_unless_that_is_wanted(guarded: Guarded, mode: str) -> None:
    table = name_table("scratch")
    result = guarded.drop(table, mode, target=NOBODY)
    assert (result.is_error, UNREACHABLE_WORDS in text_of(result)) == (True, True)
    assert not guarded.was_dropped(table)
    assert not guarded.drop(table, mode, "--on-failure", "allow", target=NOBODY).is_error
    assert guarded.was_dropped(table)


def test_everything_else_passes(guarded: Guarded, mode: str) -> None:
    told: list[Any] = []
    changed: list[Any] = []

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))

    async def hear(message: Any) -> None:
        changed.append(type(message).__name__)

    async def use(host: Client) -> None:
        assert mode != "legacy" or host.instructions == "Tables are dropped here."
        assert "offered_later" not in [tool.name for tool in (await host.list_tools()).tools]
        assert text_of(await host.call_tool("report", progress_callback=progress)) == "reported"
        assert "offered_later" in [tool.name for tool in (await host.list_tools()).tools]
        resource = (await host.read_resource("tables://all")).contents[0]
        assert isinstance(resource, mcp_types.TextResourceContents)
        with pytest.raises(MCPError, match="nothing"):
            await host.read_resource("tables://nothing")
        assert (await host.call_tool("nothing")).is_error

    guarded.run(use, mode, message_handler=hear)
    assert told == [(1, 2, "half")]
    if mode == "legacy":
        assert "ToolListChangedNotification" in changed


@pytest.mark.slow
def test_a_question_of_the_server_reaches_the_person_and_a_token_of_its_guard_not_the_server(guarded: Guarded) -> None:
    async def answer(_: Any, params: Any) -> mcp_types.ElicitResult:
        assert params.message == "Why?"
        return mcp_types.ElicitResult(action="accept", content={"why": "to tidy up"})

    async def use(host: Client) -> list[str]:
        return [text_of(await host.call_tool(tool)) for tool in ("ask_why", "list_tables")]

    assert guarded.run(use, "legacy", elicitation_callback=answer) == ["to tidy up", ""]


@pytest.mark.parametrize("approves", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_person_is_asked_for_an_approval(guarded: Guarded, mode: str, client: CstpClient, approves: bool) -> None:
    asked: list[str] = []

    async def answer(_: Any, params: Any) -> mcp_types.ElicitResult:
        asked.append(params.message)
        return mcp_types.ElicitResult(action="accept", content={"approve": approves})

    table = name_table("payments")
    result = guarded.drop(table, mode, "--approvals", "ask", elicitation_callback=answer)
    assert (len(asked), QUESTION_WORDS in asked[0]) == (1, True)
    assert asked[0].startswith(f'Call drop_table with {{"table": "{table}"}}\n')
    assert result.is_error is not approves
    assert guarded.was_dropped(table) is approves
    assert outcome_of(client, table) == ("success" if approves else None)


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--approvals", "ask")])
def test_without_a_person_what_needs_approval_is_not_called(
    guarded: Guarded, mode: str, options: tuple[str, ...]
) -> None:
    table = name_table("payments")
    result = guarded.drop(table, mode, *options)
    assert (result.is_error, "NOT ALLOWED without approval" in text_of(result)) == (True, True)
    assert not guarded.was_dropped(table)


def test_a_call_that_the_host_cancels_is_cancelled_at_the_server(guarded: Guarded, mode: str) -> None:
    async def use(host: Client) -> None:
        begun = asyncio.Event()

        async def progress(progress: float, total: float | None, message: str | None) -> None:
            begun.set()

        call = asyncio.create_task(host.call_tool("wait", progress_callback=progress))
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        while not guarded.was_dropped("cancelled"):
            await asyncio.sleep(0)

    guarded.run(use, mode)


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}


def calling(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}


def converse(
    guarded: Guarded, *messages: Any, options: Sequence[str] = (), server: list[str] | None = None, **chosen: Any
) -> subprocess.CompletedProcess[str]:
    """Run the command with messages on its standard input, which then ends."""
    lines = "".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in messages)
    command, pipe = guarded.command(*options, server=server, **chosen), subprocess.PIPE
    return subprocess.run(
        command, input=lines, env=guarded.environment, stdout=pipe, stderr=pipe, text=True, timeout=SECONDS, check=False
    )


INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
ECHO = [sys.executable, "-c", "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"]
"""A server that answers each message with itself."""


def test_the_end_of_the_server_ends_the_command_with_its_code(guarded: Guarded) -> None:
    command = subprocess.Popen(
        guarded.command(), env=guarded.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with command:
        assert command.stdin is not None
        assert command.stdout is not None
        # The server answers in no fixed order, so its end waits for the answer, as a host does.
        print(json.dumps(INITIALIZE), file=command.stdin, flush=True)
        assert json.loads(command.stdout.readline())["id"] == 1
        command.stdin.writelines(f"{json.dumps(each)}\n" for each in (INITIALIZED, calling("die")))
        command.stdin.flush()
        assert command.wait(SECONDS) == 7


@pytest.mark.slow
def test_the_end_of_the_input_ends_the_server_once_its_calls_are_answered(guarded: Guarded) -> None:
    table = name_table("scratch")
    ended = converse(guarded, INITIALIZE, INITIALIZED, calling("drop_table", table=table))
    assert ended.returncode == 0, ended.stderr
    assert guarded.was_dropped(table)


def test_a_server_that_a_signal_ends_gives_its_code(guarded: Guarded) -> None:
    server = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
    assert converse(guarded, server=server).returncode == 128 + signal.SIGKILL


def test_a_command_that_cannot_be_started_is_named(guarded: Guarded) -> None:
    ended = converse(guarded, server=["/nothing/of/the/kind"])
    assert (ended.returncode, "/nothing/of/the/kind cannot be started" in ended.stderr) == (1, True)


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_a_signal_is_passed_on_to_the_server(guarded: Guarded, tmp_path: Path, number: signal.Signals) -> None:
    program = (
        "import pathlib, signal, sys\n"
        "def end(number, _): pathlib.Path(sys.argv[2]).write_text(str(number)); sys.exit(5)\n"
        "for each in (signal.SIGINT, signal.SIGTERM): signal.signal(each, end)\n"
        "pathlib.Path(sys.argv[1]).touch()\n"
        "sys.stdin.read()\n"
    )
    ready, heard = tmp_path / "ready", tmp_path / "heard"
    command = guarded.command(server=[sys.executable, "-c", program, str(ready), str(heard)])
    with subprocess.Popen(command, env=guarded.environment, stdin=subprocess.PIPE) as process:
        try:
            wait_until(ready.exists, "the server is ready")
            process.send_signal(number)
            assert process.wait(SECONDS) == 5
        finally:
            process.kill()
    assert heard.read_text() == str(int(number))


def test_messages_are_not_changed_on_their_way(guarded: Guarded) -> None:
    messages: list[Any] = [
        {"jsonrpc": "2.0", "id": "a", "method": "x/y", "params": {"_meta": {"z": None}, "n": 1.5, "t": "ä\u2028"}},
        {"jsonrpc": "2.0", "method": "notifications/x", "params": {"deep": [{"k": [None, True, 2**60]}]}},
        {"jsonrpc": "2.0", "id": 7, "result": {"resultType": "other", "own": {"null": None}}},
        {"jsonrpc": "2.0", "id": "b", "error": {"code": -1, "message": "m", "data": {"d": None}}},
    ]
    ended = converse(guarded, *messages, server=ECHO)
    assert [json.loads(line) for line in ended.stdout.split("\n") if line] == messages


def test_what_could_be_a_call_and_cannot_be_judged_does_not_reach_the_server(guarded: Guarded) -> None:
    call = calling("drop_table", table="scratch")
    lines = [
        f"[{json.dumps(call)}]",
        json.dumps({**call, "id": 1.5}),
        json.dumps({**call, "id": None}),
        json.dumps({**call, "params": {"name": "drop_table", "arguments": ["scratch"]}}),
        json.dumps({**call, "params": {"name": "drop_table", "arguments": []}}),
        json.dumps({**call, "params": {"name": ["drop_table"]}}),
        json.dumps({"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "drop_table"}}),
        '{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params"',
    ]
    ended = converse(guarded, *lines, server=ECHO)
    assert ended.returncode == 0, ended.stderr
    answers = [json.loads(answer) for answer in ended.stdout.splitlines()]
    assert answers
    assert all("error" in answer for answer in answers)
    assert "drop_table" not in ended.stdout


@pytest.mark.parametrize(
    ("options", "passes"), [((), False), pytest.param(("--on-failure", "allow"), True, marks=pytest.mark.slow)]
)
def test_a_call_that_cannot_be_judged_reaches_the_server_only_if_that_is_wanted(
    guarded: Guarded, options: Sequence[str], *, passes: bool
) -> None:
    call = calling("drop_table", table=name_table("scratch"))
    (answer,) = map(
        json.loads, converse(guarded, call, options=options, server=ECHO, target=NOBODY).stdout.splitlines()
    )
    assert (answer == call, UNREACHABLE_WORDS in json.dumps(answer)) == (passes, not passes)


def test_two_calls_under_one_id_are_told_apart(guarded: Guarded) -> None:
    first, second = name_table("scratch"), name_table("orders")
    silent = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    ended = converse(guarded, calling("drop_table", table=first), calling("drop_table", table=second), server=silent)
    (answer,) = map(json.loads, ended.stdout.splitlines())
    assert answer["error"]["code"] == mcp_types.INVALID_REQUEST


@pytest.mark.slow
def test_rules_may_know_a_tool_by_the_name_that_hosts_give_it(guarded: Guarded) -> None:
    named = {**TOOLS["tools"][0], "tool": "mcp__tables__drop_table"}
    guarded.tools.write_text(yaml.safe_dump({"tools": [named]}))
    call = calling("drop_table", table=name_table("orders"))
    for name, passes in (("tables", False), ("others", True)):
        (answer,) = map(json.loads, converse(guarded, call, options=("--name", name), server=ECHO).stdout.splitlines())
        assert (answer == call) is passes, name


@pytest.mark.slow
def test_what_the_server_never_answers_is_abandoned(guarded: Guarded, client: CstpClient) -> None:
    table = name_table("scratch")
    program = "import sys; sys.stdin.readline()"
    ended = converse(guarded, calling("drop_table", table=table), server=[sys.executable, "-c", program])
    assert ended.returncode == 0, ended.stderr
    assert outcome_of(client, table) == "abandoned"


def test_a_proxy_that_cannot_answer_its_host_ends_and_so_does_the_server(guarded: Guarded, tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    program = (
        f"import pathlib, sys\nprint(sys.stdin.readline())\nsys.stdin.read(); pathlib.Path({str(ended)!r}).touch()"
    )
    command, pipe = guarded.command(server=[sys.executable, "-c", program]), subprocess.PIPE
    # Writing to a file that is open for reading fails at once.
    with (
        Path(os.devnull).open() as unwritable,
        subprocess.Popen(command, env=guarded.environment, stdin=pipe, stdout=unwritable, text=True) as process,
    ):
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(INITIALIZED) + "\n")
            process.stdin.write("no message\n")
            process.stdin.flush()
            assert process.wait(SECONDS) == 1
        finally:
            process.kill()
    wait_until(ended.exists, "the server ended")
