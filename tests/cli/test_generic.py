"""call, agent-card, version and the command as a whole."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys

import click
import pytest

from cstp_grpc.cli.main import COMMANDS, MEANT_COMMANDS, main
from cstp_grpc.common.version import VERSION
from cstp_grpc.contract.methods import contract_methods
from tests.cli.conftest import Invoke, Server
from tests.harness import bridging, settings
from tests.named_case import named_case


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the paths of all commands that are no groups."""
    if not isinstance(command, click.Group):
        return [path]
    context = click.Context(command)
    found = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
    return [leaf for name, inner in found if inner for leaf in leaves(inner, (*path, name))]


def test_every_command_explains_itself_with_examples(invoke: Invoke) -> None:
    for path in leaves(main):
        with named_case(path):
            result = invoke(*path, "--help")
            assert result.exit_code == 0
            assert "Example" in result.stdout
            assert f"cstp {' '.join(path)}" in result.stdout


def test_the_help_lists_every_command(invoke: Invoke) -> None:
    shown = invoke("--help").stdout
    assert all(path[0] in shown for path in leaves(main))


@pytest.fixture
def server(shared_server: Server) -> Server:
    """The server that all tests here ask."""
    return shared_server


def test_a_call_takes_params_as_the_method_does(server: Server) -> None:
    answer = json.loads(server.ok("call", "cstp.checkGuardrails", '{"action": {"description": "deploy"}}'))
    assert answer["allowed"] is True


def test_a_call_reads_params_from_standard_input(server: Server) -> None:
    result = server("call", "cstp.queryDecisions", "-", input='{"query": "anything", "limit": 3}')
    assert json.loads(result.stdout)["query"] == "anything"


def test_a_call_without_params_sends_none(server: Server) -> None:
    assert json.loads(server.ok("call", "cstp.listDecisions"))["decisions"] == []


def test_a_call_names_every_wrong_field(server: Server) -> None:
    result = server("call", "cstp.queryDecisions", '{"query": 1, "limits": 3}', "--json")
    assert result.exit_code == 1
    error = json.loads(result.stderr)["error"]
    assert error["reason"] == "INVALID_ARGUMENT"
    assert {violation["field"] for violation in error["violations"]} == {"query", "limits"}


def test_what_the_server_refuses_is_named_too(server: Server) -> None:
    result = server("call", "cstp.queryDecisions", '{"query": ""}')
    assert result.exit_code == 1
    assert "query" in result.stderr


@pytest.mark.parametrize("method", ["cstp.nothing", "cstp.importDecisions"])
def test_an_unknown_or_streaming_method_lists_those_there_are(server: Server, method: str) -> None:
    result = server("call", method)
    assert result.exit_code == 2
    unary = [name for name, described in contract_methods().items() if not described.streaming]
    assert all(name in result.stderr for name in unary)


def test_params_that_are_no_json_are_a_usage_error(server: Server) -> None:
    assert server("call", "cstp.queryDecisions", "{").exit_code == 2


def test_the_same_command_works_over_a_bridge(
    server: Server, invoke: Invoke, tmp_path_factory: pytest.TempPathFactory
) -> None:
    wanted = settings(tmp_path_factory.mktemp("bridge"))
    with bridging(wanted, server.app.target) as url:
        over_http = invoke(
            "check",
            "deploy",
            "--context",
            "affectsProduction=true",
            "--json",
            "--agent",
            url,
            "--token",
            "alice-secret-token",
        )
        over_grpc = server("check", "deploy", "--context", "affectsProduction=true", "--json")
        refused = invoke("query", "x", "--agent", url, "--token", "wrong-token")
        card = json.loads(invoke("agent-card", url).stdout)
    assert over_http.exit_code == over_grpc.exit_code == 3
    answers = [json.loads(result.stdout) | {"evaluatedAt": "", "checkId": ""} for result in (over_http, over_grpc)]
    assert answers[0] == answers[1]
    assert refused.exit_code == 1
    assert "--token" in refused.stderr
    assert "cstp.checkGuardrails" in card["capabilities"]["cstp"]["methods"]


def test_a_card_needs_a_bridge(invoke: Invoke, free_port: int) -> None:
    result = invoke("agent-card", f"http://127.0.0.1:{free_port}")
    assert result.exit_code == 1
    assert f"127.0.0.1:{free_port}" in result.stderr
    assert invoke("agent-card", "localhost").exit_code == 2


def test_the_version_is_that_of_the_distribution(invoke: Invoke) -> None:
    version = importlib.metadata.version("cstp-grpc")
    assert version == VERSION
    assert invoke("version").stdout == f"{version}\n"
    assert json.loads(invoke("version", "--json").stdout) == {"version": version}
    assert version in invoke("--version").stdout


def test_the_package_runs_as_the_command() -> None:
    result = subprocess.run([sys.executable, "-m", "cstp_grpc", "version"], capture_output=True, text=True, check=True)
    assert result.stdout == f"{VERSION}\n"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (("chek", "tidy up"), "check"),
        (("anounce", "tidy up"), "announce"),
        (("config", "chekc"), "check"),
        (("liaison", "opn"), "open"),
        (("call", "cstp.queryDecision"), "cstp.queryDecisions"),
        (("check", "tidy up", "--stake", "high"), "--stakes"),
    ],
)
def test_what_is_mistyped_is_answered_with_what_was_likely_meant(
    typed: tuple[str, ...], meant: str, invoke: Invoke
) -> None:
    result = invoke(*typed)
    assert result.exit_code == 2
    suggested = re.split("did you mean", result.stderr, flags=re.IGNORECASE)[1].partition("?")[0]
    assert f"{meant}'" in suggested


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (("log",), "cstp list, cstp audit or cstp record"),
        (("decide", "log"), "cstp record or cstp list"),
        (("decisions",), "cstp list"),
        (("search", "cache"), "cstp query"),
    ],
)
def test_a_word_for_another_command_is_answered_with_that_command(
    typed: tuple[str, ...], meant: str, invoke: Invoke
) -> None:
    result = invoke(*typed)
    assert result.exit_code == 2
    assert f"No such command '{typed[0]}'. Did you mean {meant}?" in result.stderr


def test_every_word_for_another_command_leads_to_existing_commands() -> None:
    assert not MEANT_COMMANDS.keys() & COMMANDS.keys()
    assert {each for meant in MEANT_COMMANDS.values() for each in meant} <= COMMANDS.keys()


def test_a_missing_argument_is_answered_with_an_example(invoke: Invoke) -> None:
    checked = invoke("check", "--stakes", "high")
    assert checked.exit_code == 2
    assert "Missing argument 'DESCRIPTION'. Describe the action" in checked.stderr
    assert "Example:\n  cstp check " in checked.stderr
    announced = invoke("announce")
    assert "Missing argument 'INTENT'. Example:\n  cstp announce \"Deploy the auth service" in announced.stderr


def test_what_resembles_nothing_is_answered_with_no_suggestion(invoke: Invoke) -> None:
    result = invoke("xyzzy")
    assert result.exit_code == 2
    assert "No such command 'xyzzy'." in result.stderr
    assert "mean" not in result.stderr
