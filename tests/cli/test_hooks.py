"""The hook of coding agents as a command, and putting it into their settings."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cstp_grpc.agents.hooks.hosts import HOSTS, load_host
from cstp_grpc.agents.hooks.model import MAX_PAYLOAD_BYTES
from cstp_grpc.cli.hook_run import HookRun, parse_usual_words
from cstp_grpc.cli.main import main
from tests.agents.hooks.payloads import encode, payload
from tests.cli.conftest import Invoke
from tests.cli.test_loading import modules_loaded
from tests.client.scripted import HttpReply, HttpServer, http_server
from tests.named_case import named_case

ALLOWED = {"allowed": True, "violations": [], "warnings": [], "approvalRequired": False}
LOCAL = Path(".claude/settings.local.json")
UNUSED = "http://127.0.0.1:1"


@pytest.fixture
def bridge() -> Iterator[HttpServer]:
    """A bridge whose server allows everything."""
    with http_server(HttpReply(lambda call: {"jsonrpc": "2.0", "id": call["id"], "result": ALLOWED})) as server:
        yield server


def run_hook(text: str | bytes, *options: str, agent: str = "claude-code") -> Any:
    """Return the hook's answer to a text on standard input."""
    done = CliRunner().invoke(main, ["hook", agent, *options], input=text)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def asked(answer: Any) -> str:
    """Return why the user is asked."""
    assert answer["hookSpecificOutput"]["hookEventName"] == "PreToolUse"
    assert answer["hookSpecificOutput"]["permissionDecision"] == "ask"
    reason: str = answer["hookSpecificOutput"]["permissionDecisionReason"]
    return reason


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        (b"\xff\xfe{}", "is not JSON"),
        ("[]", "is not a JSON object"),
        ('{"hook_event_name": "PreToolUse"}', "names no tool"),
        ('{"hook_event_name": 7}', "hook_event_name of the payload is no text"),
        (b" " * (MAX_PAYLOAD_BYTES + 1), "has more than"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_an_event_that_cannot_be_read_is_asked_about(text: str | bytes, why: str) -> None:
    assert why in asked(run_hook(text, "--agent", UNUSED))


def test_no_agent_is_told_to_go_on_with_a_call_that_was_not_judged() -> None:
    for agent in HOSTS:
        for options in [["--agent", UNUSED], ["--agent", "nobody"], ["--unknown"]]:
            with named_case(agent, options):
                for name in ("bash", "edit", "mcp"):
                    answered = json.dumps(run_hook(encode(payload(name, agent=agent)), *options, agent=agent))
                    assert '"ask"' in answered or '"deny"' in answered
                unread = json.dumps(run_hook("{", *options, agent=agent))
                assert '"ask"' in unread or '"deny"' in unread


def test_what_becomes_of_a_failure_is_an_option() -> None:
    denied = run_hook("{", "--on-failure", "deny")["hookSpecificOutput"]
    assert denied["permissionDecision"] == "deny"
    told = run_hook("{", "--on-failure", "allow")
    assert list(told) == ["systemMessage"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--agent", UNUSED], "No server answers at"),
        (["--agent", "nobody"], "There is no agent 'nobody'"),
        (["--agent", UNUSED, "--as", "x"], "--as is for --local"),
        (["--config", "missing.yaml"], "missing.yaml"),
        (["--agent", UNUSED, "--tools", "tools.yaml"], "tools.0.tool: must be given"),
        (["--agent", "grpc://127.0.0.1:1", "--timeout", "2"], "CSTP could not be asked"),
    ],
    ids=str,
)
def test_a_server_that_is_not_found_is_asked_about(options: list[str], why: str) -> None:
    Path("tools.yaml").write_text("tools: [{ask: check}]\n")
    assert why in asked(run_hook(encode(payload("bash")), *options))


@pytest.mark.parametrize("options", [["--approvals", "maybe"], ["--unknown"], ["--timeout", "0"], ["more"]], ids=str)
def test_wrong_options_are_asked_about_and_do_not_keep_a_turn_from_ending(options: list[str]) -> None:
    assert options[-1] in asked(run_hook(encode(payload("bash")), *options))
    assert list(run_hook(encode(payload("stop")), *options)) == ["systemMessage"]
    assert "is not JSON" in asked(run_hook("{", *options))
    for words in (["--on-failure", "deny"], ["--on-failure=deny"]):
        denied = run_hook(encode(payload("bash")), *words, *options)
        assert denied["hookSpecificOutput"]["permissionDecision"] == "deny"


def test_another_agent_is_wrong_usage(invoke: Invoke) -> None:
    assert invoke("hook", "nobody", input="").exit_code == 2


def test_a_fault_of_the_hook_itself_is_asked_about_and_printed_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr("cstp_grpc.cli.hook_run.answer_event", fail)
    done = CliRunner().invoke(main, ["hook", "claude-code"], input=encode(payload("bash")).encode())
    assert "RuntimeError: unforeseen" in asked(json.loads(done.stdout))
    assert "Traceback" in done.stderr


def test_a_fault_of_the_hook_itself_allows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RecursionError

    monkeypatch.setattr("cstp_grpc.cli.hook_run.answer_event", fail)
    assert "RecursionError" in asked(run_hook(encode(payload("bash")), "--on-failure", "allow"))


def test_whatever_takes_too_long_is_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(*_: Any) -> None:
        while True:
            signal.pause()

    monkeypatch.setattr("cstp_grpc.cli.hook_run.answer_event", wait)
    assert "it took more than 0.05 s" in asked(run_hook(encode(payload("bash")), "--timeout", "0.05"))
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_the_bridge_of_this_machines_own_server_is_called(bridge: HttpServer) -> None:
    write_described(bridge.url)
    assert run_hook(encode(payload("bash"))) == {}
    ((path, headers, _),) = bridge.requests
    assert (path, headers["authorization"]) == ("/cstp", "Bearer secret")


def test_a_table_of_tools_replaces_the_packaged_one(bridge: HttpServer) -> None:
    Path("tools.yaml").write_text("tools: [{tool: Bash, description: 'Run {command}', stakes: high}]\n")
    assert run_hook(encode(payload("bash")), "--agent", bridge.url, "--tools", "tools.yaml") == {}
    ((_, _, request),) = bridge.requests
    assert request["params"]["action"] == {"description": "Run npm test", "context": {}, "stakes": "high"}


OTHER_LIBRARIES = {"asyncio", "click", "google", "grpc", "http.client", "httpcore", "pydantic", "rich", "ssl", "yaml"}


@pytest.mark.parametrize("agent", HOSTS)
def test_a_hook_over_http_loads_little(agent: str, bridge: HttpServer, tmp_path: Path) -> None:
    event = tmp_path / "event.json"
    event.write_text(encode(payload("edit", agent=agent)))
    with ExitStack() as opened:
        standard_input = opened.enter_context(event.open())
        modules, _ = modules_loaded(tmp_path, ["hook", agent, "--agent", bridge.url], stdin=standard_input)
    others = {f"cstp_grpc.agents.hooks.{each.replace('-', '_')}" for each in HOSTS if each != agent}
    assert not modules & others
    assert not modules & OTHER_LIBRARIES
    plain = {f"cstp_grpc.contract{name}" for name in ("", ".errors", ".limits")}
    assert not {
        name for name in modules - plain if name.startswith(("cstp_grpc.contract", "cstp_grpc.gen", "cstp_grpc.server"))
    }


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--agent", "http://127.0.0.1:1", "--token", "secret", "--project", "shop", "--timeout", "2.5"],
        ["--agents-file", "a.yaml", "--agent", "developer-http", "--on-failure", "deny", "--approvals", "deny"],
        ["--local", "--as", "emerson", "--config", "cstp.yaml", "--resident", "--headless"],
        ["--ca-file", "ca.pem", "--tools", "tools.yaml", "--no-resident"],
        ["--agent", "first", "--agent", "last"],
    ],
    ids=" ".join,
)
def test_usual_options_are_read_as_click_reads_them(options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[HookRun] = []
    monkeypatch.setattr("cstp_grpc.cli.hook_command.run_hook", runs.append)
    words = ["claude-code", *options]
    assert CliRunner().invoke(main, ["hook", *words]).exit_code == 0
    quick = parse_usual_words(words)
    assert quick is not None
    configs = [each.state.config_file for each in (quick, *runs)]
    assert configs[0] == configs[1]
    assert [quick] == [each._replace(state=quick.state) for each in runs]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nobody"],
        ["--help"],
        ["claude-code", "--help"],
        ["claude-code", "--project"],
        ["claude-code", "--project", "--local"],
        ["claude-code", "--on-failure=deny"],
        ["claude-code", "--on-failure", "maybe"],
        ["claude-code", "--approvals", "allow"],
        ["claude-code", "--timeout", "soon"],
        ["claude-code", "--timeout", "nan"],
        ["claude-code", "--timeout", "0"],
        ["claude-code", "--resident", "--no-resident"],
        ["claude-code", "--config", "."],
        ["claude-code", "--tools", "x" * 300],
        ["claude-code", "more"],
    ],
    ids=lambda words: " ".join(words)[:60],
)
def test_other_words_are_left_to_click(words: list[str]) -> None:
    assert parse_usual_words(words) is None


def write_described(url: str) -> None:
    """Write the agents file of a developer's server with a bridge."""
    agents = [
        {"name": "developer", "url": "grpc://127.0.0.1:1", "token": "secret"},
        {"name": "developer-http", "url": url, "token": "secret"},
    ]
    Path("var").mkdir()
    Path("var/agents.yaml").write_text(json.dumps({"agents": agents}))


def hook_words(path: Path = LOCAL) -> list[str]:
    """Return the command of the hook in settings, in its words behind the program."""
    command = json.loads(path.read_text())["hooks"]["PreToolUse"][-1]["hooks"][0]["command"]
    words = shlex.split(command)
    return words[words.index("hook") :]


def test_installing_shows_what_it_writes_and_asks(invoke: Invoke) -> None:
    refused = invoke("install", "claude-code", "--agent", UNUSED, input="n\n")
    assert refused.exit_code == 1
    assert '+    "PreToolUse": [' in refused.stdout
    assert not LOCAL.exists()
    written: Result = invoke("install", "claude-code", "--agent", UNUSED, input="y\n")
    assert written.exit_code == 0, written.output
    assert hook_words() == ["hook", "claude-code", "--agent", UNUSED]
    assert set(json.loads(LOCAL.read_text())["hooks"]) == {
        "SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "PostToolUseFailure", "Stop"
    }  # fmt: skip


def test_installing_twice_changes_nothing_and_uninstalling_leaves_the_rest(invoke: Invoke) -> None:
    LOCAL.parent.mkdir()
    before = '{ "model":"opus",\r\n\t"hooks":{"Stop":[{"hooks":[{"type":"command","command":"./done.sh"}]}]} }'
    LOCAL.write_bytes(before.encode())
    LOCAL.chmod(0o640)
    assert invoke("install", "claude-code", "--yes", "--local").exit_code == 0
    installed = LOCAL.read_bytes()
    again = invoke("install", "claude-code", "--yes", "--local")
    assert "nothing to change" in again.stdout
    assert LOCAL.read_bytes() == installed
    assert invoke("install", "claude-code", "--yes", "--local", "--on-failure", "deny").exit_code == 0
    assert hook_words() == ["hook", "claude-code", "--on-failure", "deny", "--local", "--resident"]
    assert invoke("uninstall", "claude-code", "--yes").exit_code == 0
    assert LOCAL.read_bytes() == before.encode()
    assert LOCAL.stat().st_mode & 0o777 == 0o640
    assert "nothing to change" in invoke("uninstall", "claude-code", "--yes").stdout


def test_this_machines_own_server_is_named_by_its_agents_file(invoke: Invoke, home: Path, bridge: HttpServer) -> None:
    write_described(bridge.url)
    assert invoke("install", "claude-code", "--yes", "--project", "shop").exit_code == 0
    described = str(home / "var" / "agents.yaml")
    words = ["hook", "claude-code", "--project", "shop", "--agents-file", described, "--agent", "developer-http"]
    assert hook_words() == words
    assert "secret" not in LOCAL.read_text()


@pytest.mark.parametrize(
    ("agent", "scope", "path"),
    [
        ("claude-code", "user", "~/.claude/settings.json"),
        ("claude-code", "project", ".claude/settings.json"),
        ("claude-code", "local", ".claude/settings.local.json"),
        ("claude-code", None, ".claude/settings.local.json"),
        ("codex", "user", "~/.codex/hooks.json"),
        ("codex", "project", ".codex/hooks.json"),
        ("codex", None, "~/.codex/hooks.json"),
        ("cursor", "user", "~/.cursor/hooks.json"),
        ("cursor", "project", ".cursor/hooks.json"),
        ("gemini-cli", "user", "~/.gemini/settings.json"),
        ("gemini-cli", "project", ".gemini/settings.json"),
        ("copilot", "user", "~/.copilot/hooks/cstp.json"),
        ("copilot", "project", ".github/hooks/cstp.json"),
    ],
)
def test_each_scope_has_its_file(agent: str, scope: str | None, path: str, invoke: Invoke, home: Path) -> None:
    chosen = [] if scope is None else ["--scope", scope]
    assert invoke("install", agent, "--yes", *chosen, "--agent", UNUSED).exit_code == 0
    settings = Path(path).expanduser()
    installed = settings.read_text()
    (command,) = {hook["command"] for hook in hooks_in(json.loads(installed)) if "||" not in hook["command"]}
    assert command.endswith(f"hook {agent} --agent {UNUSED}")
    assert command.startswith("cstp ") == (scope == "project")
    again = invoke("install", agent, "--yes", *chosen, "--agent", UNUSED)
    assert "nothing to change" in again.stdout
    assert invoke("install", agent, "--yes", *chosen, "--agent", UNUSED, "--on-failure", "deny").exit_code == 0
    removed = invoke("uninstall", agent, "--yes", *chosen)
    assert removed.exit_code == 0
    assert removed.stdout.endswith(f"{settings}: removed, because `cstp install` created it\n")
    assert not list(home.iterdir()), "no file and no folder is left"
    assert "nothing to change" in invoke("uninstall", agent, "--yes", *chosen).stdout


def test_another_plugin_of_the_same_name_is_left_alone(invoke: Invoke) -> None:
    plugin = Path(load_host("opencode").settings_files["user"]).expanduser()
    plugin.parent.mkdir(parents=True)
    plugin.write_text("export const Other = async () => ({});\n")
    refused = invoke("install", "opencode", "--yes", "--agent", UNUSED)
    assert (refused.exit_code, "is another plugin" in refused.output) == (1, True)
    assert "nothing to change" in invoke("uninstall", "opencode", "--yes").output
    assert plugin.read_text() == "export const Other = async () => ({});\n"


@pytest.mark.parametrize("agent", [each for each in HOSTS if load_host(each).write_plugin is None])
@pytest.mark.parametrize(
    "before", ["{}", '{\n  "version": 1\n}\n', '{"version": 1, "hooks": {}}\n', '{\n  "hooks": {}\n}\n']
)
def test_a_file_that_was_there_is_as_before(agent: str, before: str, invoke: Invoke) -> None:
    settings = Path(load_host(agent).settings_files["user"]).expanduser()
    if agent == "copilot" and before == load_host(agent).empty_settings:
        # The name of the file says whose it is.
        return
    settings.parent.mkdir(parents=True)
    settings.write_text(before)
    for options in ([], ["--on-failure", "deny"]):
        arguments = ["--scope", "user", "--yes", "--agent", UNUSED, *options]
        assert invoke("install", agent, *arguments).exit_code == 0
    assert invoke("uninstall", agent, "--scope", "user", "--yes").exit_code == 0
    assert settings.read_text() == before


def test_a_file_with_hooks_of_the_user_stays(invoke: Invoke) -> None:
    assert invoke("install", "codex", "--yes", "--agent", UNUSED).exit_code == 0
    settings = Path("~/.codex/hooks.json").expanduser()
    content = json.loads(settings.read_text())
    content["hooks"]["Stop"].append({"hooks": [{"type": "command", "command": "./done.sh"}]})
    settings.write_text(json.dumps(content))
    assert invoke("uninstall", "codex", "--yes").exit_code == 0
    assert json.loads(settings.read_text()) == {"hooks": {"Stop": content["hooks"]["Stop"][1:]}}


def test_it_is_said_when_the_hook_takes_effect(invoke: Invoke) -> None:
    codex = invoke("install", "codex", "--yes", "--agent", UNUSED).stdout
    assert "hooks.json: written; codex ignores the hook until you trust it: type /hooks in codex\n" in codex
    assert "no tool call is checked until the server answers: No server answers at" in codex
    claude = invoke("install", "claude-code", "--yes", "--agent", UNUSED).stdout
    assert "settings.local.json: written; sessions of claude-code that start from now on use it\n" in claude
    LOCAL.write_text(LOCAL.read_text().replace("{", '{"model": "opus",', 1))
    claude = invoke("uninstall", "claude-code", "--yes").stdout
    assert claude.endswith("written; sessions of claude-code that start from now on do not use it\n")


def hooks_in(settings: Any) -> Iterator[Any]:
    """Yield all hooks in settings, in groups or not."""
    for groups in settings["hooks"].values():
        for group in groups:
            yield from group.get("hooks", [group])


def test_a_scope_that_an_agent_does_not_have_is_wrong_usage(invoke: Invoke) -> None:
    for command in ("install", "uninstall"):
        refused = invoke(command, "codex", "--yes", "--scope", "local")
        assert refused.exit_code == 2
        assert "codex has no settings of the scope local: user, project" in refused.stderr


def test_agents_that_share_a_file_keep_their_hooks_apart(invoke: Invoke) -> None:
    LOCAL.parent.mkdir()
    other = {"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "cstp hook codex"}]}]}}
    LOCAL.write_text(json.dumps(other))
    assert invoke("install", "claude-code", "--yes", "--agent", UNUSED).exit_code == 0
    assert invoke("uninstall", "claude-code", "--yes").exit_code == 0
    assert json.loads(LOCAL.read_text()) == other


def test_a_table_of_tools_is_checked_and_has_the_hook_run_for_all(invoke: Invoke, home: Path) -> None:
    Path("tools.yaml").write_text("tools: {}\n")
    refused = invoke("install", "claude-code", "--yes", "--agent", UNUSED, "--tools", "tools.yaml")
    assert (refused.exit_code, LOCAL.exists()) == (1, False)
    assert "tools.yaml: tools: must be a list" in refused.stderr
    Path("tools.yaml").write_text("tools: []\n")
    assert invoke("install", "claude-code", "--yes", "--agent", UNUSED, "--tools", "tools.yaml").exit_code == 0
    assert hook_words() == ["hook", "claude-code", "--tools", str(home / "tools.yaml"), "--agent", UNUSED]
    assert json.loads(LOCAL.read_text())["hooks"]["PreToolUse"][0]["matcher"] == "*"


@pytest.mark.parametrize(
    ("options", "resident"),
    [
        (["--agent", "grpcs://cstp.example.com:50051"], True),
        (["--agent", "grpcs://cstp.example.com:50051", "--no-resident"], False),
        (["--agent", UNUSED], False),
        (["--agent", UNUSED, "--resident"], True),
    ],
)
def test_a_hook_that_is_slow_to_load_leaves_a_process(options: list[str], resident: bool, invoke: Invoke) -> None:
    assert invoke("install", "claude-code", "--yes", *options).exit_code == 0
    assert ("--resident" in hook_words()) is resident


def test_a_token_is_not_written_into_settings(invoke: Invoke) -> None:
    refused = invoke("install", "claude-code", "--yes", "--agent", UNUSED, "--token", "secret")
    assert refused.exit_code == 2
    assert not LOCAL.exists()


@pytest.mark.parametrize("content", [b"{} // mine", b"\xff", b"[]"])
def test_settings_that_are_not_understood_stay_as_they_are(content: bytes, invoke: Invoke) -> None:
    LOCAL.parent.mkdir()
    LOCAL.write_bytes(content)
    for command in ("install", "uninstall"):
        refused = invoke(command, "claude-code", "--yes", *(["--agent", UNUSED] if command == "install" else []))
        assert refused.exit_code == 1
        assert str(LOCAL) in refused.stderr
    assert LOCAL.read_bytes() == content


def test_settings_that_change_meanwhile_are_not_overwritten(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    LOCAL.parent.mkdir()

    def change(*_: Any, **__: Any) -> bool:
        LOCAL.write_text('{"model": "opus"}')
        return True

    monkeypatch.setattr("click.confirm", change)
    refused = invoke("install", "claude-code", "--agent", UNUSED)
    assert (refused.exit_code, LOCAL.read_text()) == (1, '{"model": "opus"}')
    assert "was changed meanwhile" in refused.stderr


QUICK = [sys.executable, "-m", "cstp_grpc", "hook", "claude-code", "--agent"]


def test_an_interrupt_ends_a_hook_quietly() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        command = [*QUICK, f"http://127.0.0.1:{silent.getsockname()[1]}"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdin is not None
            process.stdin.write(encode(payload("bash")).encode())
            process.stdin.close()
            silent.settimeout(60)
            connection, _ = silent.accept()
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            told = process.stderr.read()
            connection.close()
    assert (process.returncode, told) == (1, b"\nAborted!\n")


def test_an_answer_that_nobody_reads_ends_a_hook_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*QUICK, UNUSED], input=b"{}", stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")
