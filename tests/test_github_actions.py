"""The actions that ask about an action and judge nodes, and how actions install the command."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.core.guardrails.rulebooks import content, rule, write
from tests.github_actions import run_action, runner_environment
from tests.harness import TOKENS, running, settings
from tests.package_index import skip_where_unreachable

RULES = content([rule("nothing-risky", "context.risky")], {"risky": {"type": "bool", "default": False}})
RISKY = json.dumps({"risky": True})
INSTALL_SECONDS = 600.0


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout with a rulebook."""
    folder = tmp_path / "a project"
    folder.mkdir()
    write(folder / "rules.yaml", RULES)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that judges by the rulebook."""
    folder = tmp_path_factory.mktemp("server")
    write(folder / "rules.yaml", RULES)
    with running(settings(folder / "data", cstp={"guardrails": {"config_path": folder / "rules.yaml"}})) as app:
        yield f"grpc://{app.target}"


def test_an_allowed_action_passes_and_a_blocked_one_stops_the_job(server: str, project: Path) -> None:
    asked = {"action": "Deploy the shop", "server": server, "token": TOKENS["alice"], "context": '{"risky": false}'}
    assert run_action("check", project, {**asked, "stakes": "high", "confidence": "0.9", "category": "deploy"})[0] == 0
    code, printed = run_action("check", project, {**asked, "context": RISKY})
    assert code == 3
    assert "nothing-risky" in printed


def test_a_server_that_knows_the_caller_by_no_token_stops_the_job(server: str, project: Path) -> None:
    code, printed = run_action("check", project, {"action": "Deploy", "server": server})
    assert code == 1
    assert "token" in printed


def test_an_action_is_judged_by_rules_without_a_server(project: Path) -> None:
    asked = {"action": "Deploy the shop", "rules": "rules.yaml"}
    assert run_action("check", project, {**asked, "context": '{"risky": false}'})[0] == 0
    assert run_action("check", project, {**asked, "context": RISKY})[0] == 3


def test_somebody_must_be_asked(project: Path) -> None:
    code, printed = run_action("check", project, {"action": "Deploy the shop"})
    assert (code, printed) == (2, "Name whom to ask: a server, or rules.\n")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('"; touch broken; "', marks=pytest.mark.slow),
        "$(touch broken)",
        pytest.param("--help", marks=pytest.mark.slow),
    ],
)
def test_inputs_are_no_scripts_and_no_options(text: str, project: Path) -> None:
    assert run_action("check", project, {"action": text, "rules": "rules.yaml", "context": RISKY})[0] == 3
    assert run_action("check", project, {"action": "Deploy", "rules": "rules.yaml", "stakes": text})[0] == 2
    assert run_action("context", project, {"path": text})[0] == 1
    assert not (project / "broken").exists()


@pytest.mark.slow
def test_nodes_are_judged(project: Path) -> None:
    assert run_action("context", project)[0] == 0
    (project / "AGENTS.md").write_text("# Shop\n\n## Contracts\n\n- Look at `src/gone.py`.\n")
    code, printed = run_action("context", project, {"strict": "true"})
    assert code == 1
    assert "AGENTS.md:" in printed
    assert run_action("context", project, {"strict": "true", "path": "rules.yaml"})[0] == 1
    (project / "docs").mkdir()
    assert run_action("context", project, {"strict": "true", "path": "docs"})[0] == 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_actions_of_a_job_install_the_command_with_what_each_needs(project: Path) -> None:
    found = shutil.which("cstp")
    path = os.pathsep.join(
        folder for folder in os.environ["PATH"].split(os.pathsep) if found is None or folder != str(Path(found).parent)
    )
    runner = {**runner_environment(project), "PATH": path}
    code, printed = run_action("context", project, environment=runner, seconds=INSTALL_SECONDS)
    skip_where_unreachable(code, printed)
    assert code == 0, printed
    asked = {"action": "Deploy the shop", "rules": "rules.yaml", "context": '{"risky": false}'}
    code, printed = run_action("check", project, asked, environment=runner, seconds=INSTALL_SECONDS)
    # Large, and perhaps in memory.
    shutil.rmtree(runner["RUNNER_TEMP"])
    assert code == 0, printed
    assert printed.startswith("Allowed")
