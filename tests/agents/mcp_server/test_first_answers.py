"""The first answers over standard streams: those of the SDK, before it is loaded."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import anyio
import mcp_types
import pytest
from mcp.shared.message import SessionMessage
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from cstp_grpc.agents.mcp_server.clients import SingleClient
from cstp_grpc.agents.mcp_server.first_answers import HANDSHAKE_VERSIONS, MODERN_VERSION
from cstp_grpc.agents.mcp_server.server_setup import build_mcp_server
from cstp_grpc.client import AsyncCstpClient
from cstp_grpc.server.app import App
from tests.agents.mcp_server.hosts import SECONDS, stdio_parameters
from tests.cli.test_loading import modules_loaded

Message = dict[str, Any]
CLIENT = {"name": "t", "version": "1"}
PREFIX = "io.modelcontextprotocol/"
ENVELOPE = {
    f"{PREFIX}protocolVersion": MODERN_VERSION,
    f"{PREFIX}clientInfo": CLIENT,
    f"{PREFIX}clientCapabilities": {},
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
CHECK = {"name": "check_action", "arguments": {"description": "Deploy", "context": {"window": "weekend"}}}
NOBODY = "grpc://127.0.0.1:1"


def request(number: int | str, method: str, **params: Any) -> Message:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def initialize(version: str, number: int | str = 1) -> Message:
    return request(number, "initialize", protocolVersion=version, capabilities={"elicitation": {}}, clientInfo=CLIENT)


DISCOVER = request("d", "server/discover", _meta=ENVELOPE)
MODERN = [DISCOVER, request(2, "tools/list", _meta=ENVELOPE)]
LEGACY = [
    [initialize(version), INITIALIZED, request(2, "tools/list"), request(3, "ping")] for version in HANDSHAKE_VERSIONS
]


async def answers_of_the_sdk(messages: list[Message]) -> list[Message]:
    """Return what the SDK's server answers to messages."""
    to_server, received = anyio.create_memory_object_stream[SessionMessage | Exception](10)
    sent, from_server = anyio.create_memory_object_stream[SessionMessage](10)
    answers = []
    async with AsyncCstpClient("127.0.0.1:1", None) as client, from_server, to_server:
        server = build_mcp_server(SingleClient(client))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.run, received, sent, server.create_initialization_options())
            for message in messages:
                await to_server.send(SessionMessage(mcp_types.jsonrpc_message_adapter.validate_python(message)))
                if "id" in message:
                    answer = (await from_server.receive()).message
                    answers.append(json.loads(answer.model_dump_json(by_alias=True, exclude_unset=True)))
            tasks.cancel_scope.cancel()
    return answers


@contextmanager
def conversation(target: str) -> Iterator[Any]:
    """Start the command, and yield a function that sends messages and returns the answer to each request."""
    parameters = stdio_parameters(target)
    command, pipe = [parameters.command, *parameters.args], subprocess.PIPE
    with subprocess.Popen(command, env=parameters.env, stdin=pipe, stdout=pipe, text=True) as process:
        to_server, from_server = cast("IO[str]", process.stdin), cast("IO[str]", process.stdout)

        def say(*messages: Message) -> list[Message]:
            to_server.write("".join(f"{json.dumps(message)}\n" for message in messages))
            to_server.flush()
            return [json.loads(from_server.readline()) for each in messages if "id" in each]

        try:
            yield say
            to_server.close()
            assert process.wait(SECONDS) == 0
            assert from_server.read() == ""
        finally:
            process.kill()


def test_the_versions_are_those_of_the_sdk() -> None:
    assert HANDSHAKE_VERSIONS == HANDSHAKE_PROTOCOL_VERSIONS
    assert (MODERN_VERSION,) == MODERN_PROTOCOL_VERSIONS


@pytest.mark.parametrize("messages", [MODERN, *LEGACY], ids=[MODERN_VERSION, *HANDSHAKE_VERSIONS])
def test_the_first_answers_are_those_of_the_sdk_which_is_not_loaded(messages: list[Message], tmp_path: Path) -> None:
    given = tmp_path / "input"
    given.write_text("".join(f"{json.dumps(message)}\n" for message in messages))
    with given.open() as stdin:
        loaded, printed = modules_loaded(tmp_path, ["mcp", "--agent", NOBODY], stdin=stdin)
    assert [json.loads(line) for line in printed.splitlines()] == anyio.run(answers_of_the_sdk, messages)
    assert loaded & {"mcp", "mcp_types", "pydantic", "grpc", "asyncio"} == set()


@pytest.mark.timeout(SECONDS)
def test_a_host_whose_probe_was_late_may_still_initialize(cstp_server: App) -> None:
    with conversation(cstp_server.target) as say:
        (discovered, initialized) = say(DISCOVER, initialize("2025-11-25"))
        assert discovered["result"]["supportedVersions"] == [MODERN_VERSION]
        assert initialized["result"]["protocolVersion"] == "2025-11-25"
        (called,) = say(INITIALIZED, request(5, "tools/call", **CHECK))
        assert called["result"]["content"][0]["text"].startswith("ALLOWED, with warnings")


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("beginning", [MODERN, pytest.param(LEGACY[-1], marks=pytest.mark.slow)])
def test_the_sdk_goes_on_where_the_first_answers_end(beginning: list[Message], cstp_server: App) -> None:
    envelope = {"_meta": ENVELOPE} if beginning is MODERN else {}
    with conversation(cstp_server.target) as say:
        say(*beginning)
        # All at once, and more than is read at a time.
        long = request(7, "tools/call", name="check_action", arguments={"description": "x" * 200_000}, **envelope)
        called, refused, listed = say(
            request(6, "tools/call", **CHECK, **envelope), long, request(8, "prompts/list", **envelope)
        )
        by_id = {each["id"]: each for each in (called, refused, listed)}
        assert by_id[6]["result"]["content"][0]["text"].startswith("ALLOWED, with warnings")
        assert by_id[7]["result"]["isError"]
        assert len(by_id[8]["result"]["prompts"]) == 2


QUESTIONABLE = [
    request(1, "initialize", protocolVersion="2025-11-25", capabilities={"roots": 7}, clientInfo=CLIENT),
    request(1, "server/discover", _meta={f"{PREFIX}protocolVersion": MODERN_VERSION}),
    {"jsonrpc": "2.0", "id": 1, "method": ["initialize"]},
]
OTHERS = [
    request(1, "initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={}),
    request(1, "initialize", protocolVersion=["2025-11-25"], capabilities={}, clientInfo=CLIENT),
    request(1, "server/discover", _meta={**ENVELOPE, f"{PREFIX}protocolVersion": "1900-01-01"}),
    request(1, "tools/list"),
    {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": []},
]


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize(
    "message", [*QUESTIONABLE, *(pytest.param(each, marks=pytest.mark.slow) for each in OTHERS)], ids=str
)
def test_what_is_not_certainly_right_is_left_to_the_sdk(message: Message, cstp_server: App) -> None:
    with conversation(cstp_server.target) as say:
        (answer,) = say(message)
        assert "error" in answer
