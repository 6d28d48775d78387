"""serve, bridge and demo, as processes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Invoke, Server, enter_home
from tests.cli.serving import BOUND, ENVIRONMENT, READY, Process, answers, bridge_of, get, started
from tests.cli.test_configuration import DESIGN, DESIGN_TOKENS
from tests.databases import journal_template
from tests.modules.webhooks.receiver import receiving
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def developer_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Process, Path]]:
    """A developer's server, and the folder that it was started in."""
    folder = tmp_path_factory.mktemp("developer")
    with pytest.MonkeyPatch.context() as patched:
        enter_home(patched, folder)
        # As installed, with all packs.
        with started(
            "serve", "--dev", environment={**ENVIRONMENT, "CSTP_CSTP__GUARDRAILS__PRESET": "standard"}
        ) as process:
            process.wait_for(READY)
            yield process, folder
            assert process.end() == 0


@pytest.fixture
def developer(developer_server: tuple[Process, Path], home: Path, monkeypatch: pytest.MonkeyPatch) -> Process:
    """A developer's server that tests share, in whose folder commands are run."""
    process, folder = developer_server
    enter_home(monkeypatch, folder)
    return process


def test_a_developers_server_runs_the_console_and_says_so_first(home: Path) -> None:
    environment = {**ENVIRONMENT, "CSTP_CONSOLE__ENABLED": "true", "CSTP_CONSOLE__PORT": "0"}
    with started("serve", "--dev", environment=environment) as process:
        process.wait_for(READY)
        first = next(index for index, line in enumerate(process.printed) if "CSTP is ready" in line)
        link = process.printed[first + 1].split()[1]
        console, _, path = link.partition("/enter")
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        assert b"url=/" in browser.open(f"{console}/enter{path}", timeout=BOUND).read()
        assert b"Overview" in browser.open(console, timeout=BOUND).read()
        # The bridge sends browsers there, and nobody else.
        bridge = process.value("JSON-RPC").removesuffix("/cstp")
        asked = urllib.request.Request(f"{bridge}/", headers={"Accept": "text/html"})
        with urllib.request.urlopen(asked, timeout=BOUND) as redirected:
            assert redirected.url.startswith(f"{console}/")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{bridge}/", timeout=BOUND)
        refused.value.close()
        assert refused.value.code == 404
        assert process.end() == 0


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_first_start_needs_nothing_and_a_second_one_keeps_what_the_first_made(home: Path, invoke: Invoke) -> None:
    with started("serve", "--dev") as process:
        process.wait_for(READY)
        token = process.value("token").split()[0]
        assert "with 60 example decisions" in process.value("data")
        assert (home / "var/dev-token").read_text() == token
        assert mode(home / "var/dev-token") == mode(home / "var/agents.yaml") == 0o600
        # By what they are, not by their places: lines of the log may stand between.
        (announce,) = (line for line in process.printed if " announce " in line)
        (curl,) = (line for line in process.printed if line.strip().startswith("curl "))

        command = shlex.split(announce)
        assert command[1] == "announce"
        run = subprocess.run(
            [sys.executable, "-m", "cstp_grpc", *command[1:]], capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stderr
        assert "prefer-staged-rollout" in run.stdout

        run = subprocess.run(curl, shell=True, capture_output=True, text=True, check=True)
        titles = [decision["title"] for decision in json.loads(run.stdout)["result"]["decisions"]]
        assert "Change database schemas by expand and contract" in titles
        assert process.end(signal.SIGINT) == 0

    with started("serve", "--dev", "--no-bridge") as process:
        process.wait_for(READY)
        assert process.value("token") == "var/dev-token"
        assert process.value("data") == "var"
        assert not any(token in line for line in process.printed)
        listed = json.loads(invoke("list", "--limit", "100", "--json").stdout)["decisions"]
        assert len(listed) == 60
        assert {decision["visibility"] for decision in listed} == {"shared"}
        assert process.end() == 0


@pytest.mark.parametrize("way", [[], ["--local"], ["--agent", "developer-http"]], ids=["grpc", "local", "http"])
def test_a_newcomer_is_protected_from_dangerous_commands(
    way: list[str], developer: Process, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "the packaged standard rules; try: cstp check --command" in developer.value("rules")
    if way == ["--local"]:
        enter_home(monkeypatch, tmp_path)
        way = ["--local", "--as", "me"]
    for command, code in (("rm -rf /", 3), ("git push --force origin main", 3), ("rm -rf src", 4), ("ls -la", 0)):
        assert invoke("check", "--command", command, *way).exit_code == code


def test_a_developer_approves_with_the_command_that_a_denial_prints(
    developer: Process, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mode(Path("var/approver-token")) == 0o600
    asking = ("check", "--command", "rm -rf docs")
    asked = invoke(*asking)
    assert asked.exit_code == 4
    (grant,) = (line for line in asked.output.splitlines() if "cstp approvals grant" in line)
    with monkeypatch.context() as elsewhere:
        enter_home(elsewhere, tmp_path)
        granted = invoke(*shlex.split(grant)[1:])
        assert "is granted: developer may do it once" in granted.output, granted.output
    assert invoke(*asking).exit_code == 0


def test_the_commands_on_approvals_act_as_the_developers_approver(developer: Process, invoke: Invoke) -> None:
    asked = invoke("check", "--command", "rm -rf lib", "--json")
    approval = json.loads(asked.stdout)["approval"]["id"]
    assert approval in invoke("approvals", "list", "--status", "pending").stdout
    assert invoke("approvals", "grant", approval, "--agent", "developer").exit_code == 1
    assert invoke("approvals", "grant", approval).exit_code == 0
    assert invoke("check", "--command", "rm -rf lib").exit_code == 0


def test_a_hangup_ends_nothing(developer: Process, invoke: Invoke) -> None:
    bridge = bridge_of(developer.popen.pid)
    os.kill(developer.popen.pid, signal.SIGHUP)
    developer.wait_for("the rulebooks are those in force, agent-safety@")
    os.kill(bridge, signal.SIGHUP)
    developer.wait_for("WARNING bridge: SIGHUP is ignored")
    assert invoke("check", "tidy up").exit_code == 0
    assert invoke("check", "tidy up", "--agent", "developer-http").exit_code == 0
    assert bridge_of(developer.popen.pid) == bridge


@pytest.mark.slow
def test_a_bridge_that_is_killed_is_replaced_and_the_death_of_the_server_ends_it(home: Path, invoke: Invoke) -> None:
    with started("serve", "--dev") as process:
        process.wait_for(READY)
        os.kill(bridge_of(process.popen.pid), signal.SIGKILL)
        process.wait_for("The bridge was started again")
        assert invoke("check", "tidy up", "--agent", "developer-http").exit_code == 0

        process.end(signal.SIGKILL)
        # The bridge holds the other end of the output, so it ends only when the bridge has.
        with pytest.raises(AssertionError, match="it ended"):
            process.wait_for("a line that is never printed")


def test_programs_on_the_machine_of_a_developer_are_notified_of_tasks(developer: Process) -> None:
    with receiving() as receiver:
        token = developer.value("token").split()[0]
        url = developer.value("A2A").split("/.well-known")[0]
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Refactor the parser"}]}
        config = {"url": f"{receiver.url}/hook"}
        body = {"message": message, "configuration": {"taskPushNotificationConfig": config}}
        headers = {"Authorization": f"Bearer {token}", "A2A-Version": "1.0", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/a2a/v1/message:send", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=BOUND) as answer:
            assert answer.status == 200
        wait_until(lambda: len(receiver.received) == 2, "the task is told")


def test_a2a_is_found_where_the_server_says(developer: Process) -> None:
    card_url, target = developer.value("A2A").split(", gRPC ")
    interfaces = get(card_url)["supportedInterfaces"]
    # Not on the card, since no public target for gRPC is configured; it is served all the same.
    assert target not in [one["url"] for one in interfaces]
    assert answers(target)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds children by /proc")
def test_a_frozen_bridge_does_not_keep_the_server_from_stopping(home: Path) -> None:
    environment = {**ENVIRONMENT, "CSTP_GRPC__DRAIN_SECONDS": "1"}
    with started("serve", "--dev", environment=environment) as process:
        process.wait_for(READY)
        bridge = bridge_of(process.popen.pid)
        os.kill(bridge, signal.SIGSTOP)
        assert process.end() == 0
        process.wait_for("Stopped.")
        # The bridge holds the other end of the output, so it ends only when the bridge has.
        with pytest.raises(AssertionError, match="it ended"):
            process.wait_for("a line that is never printed")
        assert not Path(f"/proc/{bridge}").exists()


def test_the_card_of_a_developers_bridge_is_found_without_its_url(developer: Process, invoke: Invoke) -> None:
    url = developer.value("JSON-RPC").removesuffix("/cstp")
    assert get(f"{url}/health")["status"] == "ok"
    assert json.loads(invoke("agent-card").stdout)["url"] == url


def test_a_second_server_on_the_same_folder_is_refused(developer: Process, invoke: Invoke) -> None:
    agents = Path("var/agents.yaml").read_text()
    result = invoke("serve", "--dev", env=ENVIRONMENT)
    assert result.exit_code == 1
    assert "var: is in use by the cstp process" in result.stderr
    assert Path("var/agents.yaml").read_text() == agents


def test_a_configured_server_serves_its_agents_without_a_bridge(home: Path, invoke: Invoke) -> None:
    tokens = [{"name": "alice", "token": "${SECRET}", "permissions": ["query"]}]
    (home / "cstp.yaml").write_text(yaml.safe_dump({"data_dir": str(home / "data"), "auth": {"tokens": tokens}}))
    environment = {**ENVIRONMENT, "SECRET": "alice-secret-token"}
    with started("serve", "--config", "cstp.yaml", "--no-bridge", environment=environment) as process:
        process.wait_for(READY)
        assert not any("JSON-RPC" in line or "developer" in line for line in process.printed)
        target = process.value("gRPC")
        assert invoke("list", "--agent", f"grpc://{target}", "--token", "alice-secret-token").exit_code == 0
        assert process.end() == 0
    assert not (home / "data/dev-token").exists()


def test_the_configuration_of_the_design_starts_and_warns(home: Path, invoke: Invoke) -> None:
    (home / "etc").mkdir()
    (home / "etc" / "config.yaml").write_text(DESIGN)
    local = {"CSTP_SERVER__HOST": "127.0.0.1"}
    environment = {**ENVIRONMENT, **DESIGN_TOKENS, **local}
    with started("serve", "--config", "etc/config.yaml", environment=environment) as process:
        process.wait_for("auth.tokens: no token may announce, record or administer")
        process.wait_for(READY)
        assert process.value("rules") == "the packaged default rules"
        assert process.value("data") == "var"
        url = process.value("JSON-RPC").removesuffix("/cstp")
        result = invoke("check", "tidy up", "--agent", url, "--token", DESIGN_TOKENS["CSTP_TOKEN_EMERSON"])
        assert result.exit_code == 0, result.output
        assert process.end() == 0


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ({}, "auth.tokens: is empty"),
        ({"CSTP_AUTH__TOKENS": '[{"name": "a", "token": "short"}]'}, "auth.tokens.0.token"),
        ({"CSTP_GRPC__PORT": "seven"}, "grpc.port"),
    ],
)
def test_what_keeps_a_server_from_starting_is_named(invoke: Invoke, environment: dict[str, str], problem: str) -> None:
    result = invoke("serve", env={**ENVIRONMENT, **environment})
    assert result.exit_code == 1
    assert problem in result.stderr


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a text and no database\n" * 1000, "the file of the database is not a SQLite database"),
        (None, "the database is damaged and must be restored from a copy"),
    ],
)
def test_a_database_that_cannot_be_used_is_told_in_one_sentence(
    invoke: Invoke, home: Path, content: bytes | None, reason: str
) -> None:
    (home / "var").mkdir()
    damaged = journal_template()[:4096] + b"\xa5" * 400_000
    (home / "var" / "journal.db").write_bytes(damaged if content is None else content)
    result = invoke("serve", "--dev", env=ENVIRONMENT)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == f"Error: storage.url: the database cannot be used: {reason}"
    assert "SELECT" not in result.stderr
    assert "Traceback" not in result.stderr


def test_a_missing_secret_is_named(invoke: Invoke, home: Path) -> None:
    (home / "cstp.yaml").write_text("auth: {tokens: [{name: a, token: '${ABSENT}'}]}")
    result = invoke("serve", "--config", "cstp.yaml")
    assert result.exit_code == 1
    assert "ABSENT" in result.stderr


def test_a_data_folder_that_cannot_be_made_is_named(invoke: Invoke, home: Path) -> None:
    (home / "var").write_text("a file")
    result = invoke("serve", "--dev", env=ENVIRONMENT)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: var")


def test_a_taken_port_is_named(server: Server, invoke: Invoke) -> None:
    environment = {**ENVIRONMENT, "CSTP_GRPC__PORT": str(server.app.port)}
    result = invoke("serve", "--dev", env=environment)
    assert result.exit_code == 1
    assert f":{server.app.port}" in result.stderr
    assert "grpc.port" in result.stderr


def test_a_port_of_the_bridge_that_is_taken_is_named(server: Server, invoke: Invoke) -> None:
    environment = {**ENVIRONMENT, "CSTP_SERVER__PORT": str(server.app.port)}
    result = invoke("serve", "--dev", env=environment)
    assert result.exit_code == 1
    assert (
        f"Error: The bridge cannot listen on 127.0.0.1:{server.app.port}: is the port taken? Set server.port"
        in result.stderr
    )


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [(lambda path: path.chmod(0o644), "others may read it"), (lambda path: path.write_text(""), "is empty")],
)
def test_a_token_file_that_cannot_be_trusted_is_refused(
    home: Path, invoke: Invoke, spoil: Callable[[Path], object], problem: str
) -> None:
    path = home / "var/dev-token"
    path.parent.mkdir()
    path.touch(mode=0o600)
    path.write_text("a-token-long-enough")
    spoil(path)
    result = invoke("serve", "--dev", env=ENVIRONMENT)
    assert result.exit_code == 1
    assert f"var/dev-token: {problem}" in result.stderr


def test_the_bridge_runs_alone_too_whatever_lies_in_the_working_folder(server: Server, home: Path) -> None:
    (home / "bridge.py").write_text("raise SystemExit(9)")
    files = {"--port-file": home / "port", "--a2a-port-file": home / "a2a-port"}
    options = [part for option, path in files.items() for part in (option, str(path))]
    with started("bridge", "--grpc-target", server.app.target, *options) as process:
        process.wait_for("listening on")
        assert get(f"http://{files['--port-file'].read_text()}/health")["status"] == "ok"
        assert answers(files["--a2a-port-file"].read_text())
        process.popen.send_signal(signal.SIGHUP)
        process.wait_for("SIGHUP is ignored")
        assert process.end() == 0


def test_the_demonstration_leaves_nothing_and_keeps_to_itself_whatever_the_environment_says(
    server: Server, home: Path, tmp_path: Path
) -> None:
    taken = str(server.app.port)
    folder = tmp_path / "temporary"
    folder.mkdir()
    environment = {
        "TMPDIR": str(folder),
        "CSTP_GRPC__PORT": taken,
        "CSTP_SERVER__PORT": taken,
        "CSTP_SERVER__GRPC_TARGET": "127.0.0.1:1",
        "CSTP_A2A__GRPC_PORT": taken,
        "CSTP_SERVER__TLS": '{"certificate": "absent.pem", "key": "absent.pem"}',
        "CSTP_LOGGING__LEVEL": "nonsense",
        "CSTP_AUTH__ENABLED": "false",
        "CSTP_INTENT_LAYER__PROJECTS": '[{"name": "shop", "root": "/nowhere"}]',
    }
    with started("demo", environment=environment) as process:
        process.wait_for("60 example decisions were imported")
        process.wait_for("announced over gRPC to grpc://127.0.0.1:")
        process.wait_for("Received by demo")
        process.wait_for("announced over JSON-RPC to http://127.0.0.1:")
        process.wait_for("Received by demo")
        process.wait_for("Stopped.")
        assert process.popen.wait(BOUND) == 0
    assert list(folder.glob("cstp-*")) == []
    assert not (home / "var").exists()
