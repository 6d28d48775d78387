"""What commands load: what they need and no more, since agents run them often and wait for each import."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import click
import pytest

from cstp_grpc.cli.main import COMMANDS, command_stub, main
from tests.cli.conftest import Invoke, Server
from tests.client.scripted import HttpReply, http_server
from tests.databases import write_journal
from tests.harness import TOKENS
from tests.named_case import named_case

PROGRAM = """
import sys
from pathlib import Path
from cstp_grpc.cli.entry import run_program
_, listing, *words = sys.argv
sys.argv = ["cstp", *words]
try:
    run_program()
finally:
    Path(listing).write_text(" ".join(sys.modules))
"""
LIGHT_MODULES = {
    "cstp_grpc",
    "cstp_grpc.cli",
    "cstp_grpc.cli.entry",
    "cstp_grpc.cli.main",
    "cstp_grpc.common",
    "cstp_grpc.common.garbage_collection",
    "cstp_grpc.common.version",
}
"""What is loaded of this project to tell which commands exist."""
SETTINGS_LIBRARIES = {"pydantic", "pydantic_settings", "pydantic_core"}
SERVER_LIBRARIES = {"sqlalchemy", "alembic", "numpy", "onnxruntime", "cel_expr_python", "protovalidate", "chromadb"}
OTHER_PROTOCOLS = {"aiohttp", "httpx", "httpcore", "h11", "a2a", "cryptography", "http.client"}
CALLING_LIBRARIES = {"grpc", "google", "asyncio", "ssl"}
PRINTING_LIBRARIES = {"rich"}
METADATA = {"importlib.metadata"}


def modules_loaded(
    folder: Path, arguments: Sequence[object], exit_code: int = 0, stdin: IO[str] | None = None, **environment: str
) -> tuple[set[str], str]:
    """Return the modules that a command has loaded when it ends, and what it printed."""
    listing = folder / "modules.txt"
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(listing), *map(str, arguments)],
        env={**os.environ, **environment},
        stdin=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == exit_code, result.stderr
    return set(listing.read_text().split()), result.stdout


def test_the_end_of_a_command_scans_no_modules_for_garbage() -> None:
    # Functions that are registered earlier run later: this one sees what the last collection will find.
    program = (
        "import atexit, gc; from cstp_grpc.cli.main import main\n"
        "atexit.register(lambda: print(len(gc.get_objects())))\n"
        "main(['version'])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(result.stdout.split()[-1]) < 100


def own(modules: set[str]) -> set[str]:
    """Return the modules of this project."""
    return {name for name in modules if name.partition(".")[0] in {"cstp_grpc", "bridge"}}


HEAVY = (
    SETTINGS_LIBRARIES
    | SERVER_LIBRARIES
    | OTHER_PROTOCOLS
    | CALLING_LIBRARIES
    | PRINTING_LIBRARIES
    | METADATA
    | {"yaml", "json"}
)


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["--version"], []], ids=" ".join)
def test_listing_the_commands_loads_none_of_them(arguments: list[str], tmp_path: Path) -> None:
    modules, printed = modules_loaded(tmp_path, arguments, exit_code=0 if arguments else 2)
    assert own(modules) == LIGHT_MODULES
    assert not modules & HEAVY
    assert printed or not arguments


@pytest.mark.parametrize("words", ["cstp ", "cstp che", "cstp --ve"])
def test_completing_a_command_loads_none(words: str, tmp_path: Path) -> None:
    completing: dict[str, Any] = {"_CSTP_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "1"}
    modules, printed = modules_loaded(tmp_path, [], **completing)
    assert own(modules) == LIGHT_MODULES
    assert not modules & HEAVY
    assert printed


def test_the_help_lists_each_command_once(tmp_path: Path) -> None:
    _, printed = modules_loaded(tmp_path, ["--help"])
    listed = [line.split()[0] for line in printed.splitlines() if re.match(r"  [a-z]", line)]
    assert [name for name in listed if name in COMMANDS] == list(COMMANDS)


def test_no_summary_is_cut_off(invoke: Invoke) -> None:
    printed = invoke("--help", env={"COLUMNS": "80"}).stdout
    assert "  announce         Announce an intent and get advice." in printed
    assert "..." not in printed.partition("Look before you act:")[2]


def test_a_command_is_listed_with_its_own_first_sentence() -> None:
    for name in COMMANDS:
        for limit in [45, 78, 1000]:
            with named_case(name, limit):
                context = click.Context(main, info_name="cstp")
                command = main.get_command(context, name)
                assert command is not None
                assert not command.hidden
                assert not command.deprecated
                assert command_stub(name).get_short_help_str(limit) == command.get_short_help_str(limit)


@pytest.mark.parametrize(
    "name", ["query", "check", "announce", "call", "record", "list", "liaison", "audit", "guardrails", "version"]
)
def test_explaining_a_command_loads_nothing_to_run_it_with(name: str, tmp_path: Path) -> None:
    modules, printed = modules_loaded(tmp_path, [name, "--help"])
    assert printed
    assert not modules & (
        SETTINGS_LIBRARIES | SERVER_LIBRARIES | OTHER_PROTOCOLS | CALLING_LIBRARIES | PRINTING_LIBRARIES | METADATA
    )


@pytest.mark.parametrize(
    ("name", "text"), [("check", "deploy"), ("query", "deploy"), ("announce", "deploy"), ("call", "cstp.getAccess")]
)
@pytest.mark.parametrize("style", [[], ["--json"]], ids=["", "json"])
def test_a_call_over_grpc_loads_only_what_it_needs(
    name: str, text: str, style: list[str], server: Server, tmp_path: Path
) -> None:
    chosen = ["--agent", server.url, "--token", TOKENS["alice"]]
    modules, printed = modules_loaded(tmp_path, [name, text, *chosen, *style])
    assert printed
    assert not modules & (SETTINGS_LIBRARIES | SERVER_LIBRARIES | OTHER_PROTOCOLS | METADATA)
    assert not modules & {"cstp_grpc.gen.liaison", "cstp_grpc.gen.intent_layer", "google.rpc", "yaml"}
    assert "cstp_grpc.platform.config.settings" not in modules
    if style:
        assert not modules & PRINTING_LIBRARIES


def test_a_call_over_http_loads_no_whole_http_client(tmp_path: Path) -> None:
    reply = HttpReply(lambda call: {"jsonrpc": "2.0", "id": call["id"], "result": {"agent": "cstp"}})
    with http_server(reply) as server:
        modules, printed = modules_loaded(tmp_path, ["call", "cstp.getAccess", "--agent", server.url, "--json"])
    assert "cstp" in printed
    others = OTHER_PROTOCOLS - {"h11"}
    assert not modules & (SETTINGS_LIBRARIES | SERVER_LIBRARIES | PRINTING_LIBRARIES | METADATA | others)


CHECKED = {"allowed": True, "violations": [], "warnings": [], "dryrunViolations": [], "ignoredContext": []}
CHECKED |= {"evaluated": 3, "responses": [], "approvalRequired": False}


@pytest.mark.parametrize("style", [[], ["--json"]], ids=["", "json"])
def test_a_check_over_http_loads_neither_messages_nor_a_terminal(style: list[str], tmp_path: Path) -> None:
    with http_server(HttpReply(lambda call: {"jsonrpc": "2.0", "id": call["id"], "result": CHECKED})) as server:
        modules, printed = modules_loaded(tmp_path, ["check", "deploy", "--agent", server.url, *style])
    assert "allowed" in printed.lower()
    others = OTHER_PROTOCOLS - {"h11"}
    libraries = SETTINGS_LIBRARIES | SERVER_LIBRARIES | CALLING_LIBRARIES | PRINTING_LIBRARIES | METADATA | others
    assert not modules & (libraries | {"yaml", "random", "cstp_grpc.contract.rpc_errors"})


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "rename a variable"],
        pytest.param(["list"], marks=pytest.mark.slow),
        pytest.param(["audit"], marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_a_call_without_a_server_loads_nothing_to_serve_or_embed_with(arguments: list[str], tmp_path: Path) -> None:
    file = tmp_path / "cstp.yaml"
    file.write_text("data_dir: data\n")
    (tmp_path / "data").mkdir()
    write_journal(tmp_path / "data" / "journal.db")
    modules, _ = modules_loaded(tmp_path, [*arguments, "--local", "--config", file])
    assert not modules & (OTHER_PROTOCOLS | {"uvloop", "onnxruntime", "tokenizers", "chromadb", "alembic", "limits"})
    assert not modules & {
        "cstp_grpc.modules.intent_layer",
        "cstp_grpc.modules.liaison",
        "cstp_grpc.modules.federation",
        "pydantic_settings",
    }


def test_building_a_server_loads_no_http_client() -> None:
    program = "import sys, cstp_grpc.server.app; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not set(result.stdout.split()) & {"httpx", "httpcore", "h11", "a2a", "aiohttp"}


def test_a_call_of_the_described_server_judges_no_settings(server: Server, tmp_path: Path) -> None:
    data = tmp_path / "data"
    agents = [{"name": "developer", "url": server.url, "token": TOKENS["alice"]}]
    (data / "agents.yaml").write_text(json.dumps({"agents": agents}))
    file = tmp_path / "cstp.yaml"
    file.write_text("data_dir: data\ngrpc: {port: 1}\n")
    modules, printed = modules_loaded(tmp_path, ["check", "deploy", "--config", file])
    assert "Allowed" in printed
    assert not modules & (SETTINGS_LIBRARIES | SERVER_LIBRARIES | OTHER_PROTOCOLS | METADATA)


def test_calling_peers_loads_nothing_of_the_server(tmp_path: Path) -> None:
    file = tmp_path / "cstp.yaml"
    file.write_text('data_dir: data\nfederation: {peers: [{name: b, url: "grpc://127.0.0.1:1"}]}\n')
    modules, printed = modules_loaded(tmp_path, ["peers", "--config", file])
    assert "unreachable" in printed
    assert not modules & SERVER_LIBRARIES
