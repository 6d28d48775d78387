"""Sessions of real coding agents with the hook; `make test-hosts` runs them."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.agents.hosts.agents import AGENTS, EDITED, NEW
from tests.agents.hosts.conftest import Workplace
from tests.agents.hosts.scripted_model import ToolCall

pytestmark = pytest.mark.timeout(300)
DANGEROUS = "rm -r victim"
HARMLESS = "printf '%s is well' all"
SAID = "all is well"
BEFORE_EDITS = 3
"""How many tool calls come before the edits."""
CONTRACT = "Money is in cents"


@dataclass
class Session:
    """What came of a session in which the model wants something dangerous, and in the end is granted it."""

    workplace: Workplace
    settings: tuple[bytes | None, bytes | None, bytes | None]
    """The settings before, during and after it."""
    requests: dict[int, str]
    """The conversation after each number of tool calls."""
    deleted: str
    pushed: str
    said: str
    stood: bool
    """Whether the victim stood before its deletion was granted."""


@pytest.fixture(scope="module")
def session(workplace: Workplace) -> Session:
    shell, victim = workplace.agent.shell, workplace.victim
    stood = []

    def grant(_: str) -> ToolCall:
        """Have a person grant what was denied first, and ask again."""
        stood.append(victim.exists())
        (command,) = re.findall(r"cstp (approvals grant .* --agent \w+)", workplace.model.results[0])
        workplace.cstp(*shlex.split(command))
        return shell(DANGEROUS)

    before = workplace.settings()
    workplace.install()
    during = workplace.settings()
    push = shell("git push --force origin main")
    deleted, pushed, said, *_ = workplace.work(shell(DANGEROUS), push, shell(HARMLESS), *workplace.agent.edits, grant)
    requests = workplace.model.requests
    workplace.cstp("uninstall", workplace.agent.host, "--yes")
    settings = (before, during, workplace.settings())
    return Session(workplace, settings, requests, deleted, pushed, said, stood == [True])


def test_a_dangerous_command_is_stopped_and_the_model_learns_why(session: Session) -> None:
    assert session.stood
    assert "The command deletes a folder with all that is in it" in session.deleted
    assert "Show what it would delete first" in session.deleted
    assert "The history of a branch that others build on would be overwritten" in session.pushed
    assert "Push a commit that reverts the change" in session.pushed


def test_a_harmless_command_runs(session: Session) -> None:
    assert SAID in session.said


def test_what_governs_a_file_comes_with_its_edit(session: Session) -> None:
    assert (session.workplace.project / EDITED).read_text() == NEW
    after = BEFORE_EDITS + len(session.workplace.agent.edits)
    # Agents may read the node themselves, and precedents name it.
    assert session.requests[after].count(CONTRACT) > session.requests[after - 1].count(CONTRACT)


def test_a_command_that_a_person_grants_runs(session: Session) -> None:
    assert not session.workplace.victim.exists()


def test_settings_are_as_before_when_the_hook_is_taken_out(session: Session) -> None:
    before, during, after = session.settings
    assert after == before != during


def test_the_hook_leaves_no_trace(workplace: Workplace) -> None:
    before = workplace.files()
    assert "Rules: default, agent-safety, standard (filesystem, git, " in workplace.install()
    during = workplace.files()
    workplace.cstp("uninstall", workplace.agent.host, "--yes")
    assert workplace.files() == before != during


@pytest.mark.parametrize(("url", "token"), [("http://127.0.0.1:9", None), (None, "wrong")], ids=["away", "wrong token"])
def test_a_command_that_nobody_judged_does_not_run(
    workplace: Workplace, url: str | None, token: str | None, tmp_path: Path
) -> None:
    entry = workplace.described_server()
    described = tmp_path / "agents.yaml"
    described.write_text(json.dumps({"agents": [entry | ({"url": url} if url else {"token": token})]}))
    workplace.install(agents_file=described)
    (said,) = workplace.work(workplace.agent.shell(HARMLESS))
    workplace.cstp("uninstall", workplace.agent.host, "--yes")
    assert SAID not in said
    assert "CSTP could not be asked" in said


@pytest.mark.parametrize("workplace", [each for each in AGENTS if each.host == "codex"], indirect=True, ids=["codex"])
def test_codex_starts_no_shell_into_which_it_could_type_what_is_not_judged(workplace: Workplace) -> None:
    workplace.install()
    (refused,) = workplace.work(workplace.agent.shell("bash"))
    workplace.cstp("uninstall", "codex", "--yes")
    assert "An interactive shell runs commands that are not checked" in refused


@pytest.mark.parametrize("workplace", [each for each in AGENTS if each.host == "pi"], indirect=True, ids=["pi"])
def test_pi_has_the_tools_judged_that_a_script_of_its_model_calls(workplace: Workplace) -> None:
    workplace.install()
    (refused,) = workplace.work(ToolCall("codemode", {"code": f"await tools.bash({{command: '{DANGEROUS}'}})"}))
    workplace.cstp("uninstall", "pi", "--yes")
    assert "The command deletes a folder with all that is in it" in refused


@pytest.mark.parametrize(
    "workplace", [each for each in AGENTS if each.check], indirect=True, ids=lambda each: each.host
)
def test_what_the_model_reads_of_our_mcp_server_begins_with_the_verdict(workplace: Workplace) -> None:
    program, server = workplace.agent.command[0], ("--agents-file", str(workplace.agents_file), "--agent", "developer")
    added = workplace.run([program, "mcp", "add", "cstp", "--", "cstp", "mcp", *server])
    assert added.returncode == 0, added.stderr
    assert workplace.agent.check
    (result,) = workplace.work(workplace.agent.check)
    assert workplace.run([program, "mcp", "remove", "cstp"]).returncode == 0
    # Codex puts the time before each result.
    read = re.sub(r"^Wall time: .*\nOutput:\n", "", result)
    assert read.startswith('{"verdict":"approval required","text":"NOT ALLOWED without approval. ')
    assert (
        '- "The command deletes a folder with all that is in it, and nothing can restore it" [delete-folder'
        in (json.loads(read)["text"])
    )
