"""The GitHub Action and the pre-commit hooks: their steps, run as GitHub and pre-commit run them."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from tests.core.guardrails.rulebooks import content, rule, write
from tests.github_actions import ACTIONS, BOUND, developer_environment, run_action
from tests.installations import ROOT, run_with_extras

HOOKS = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}
RULES = [rule("nothing-risky", "context.risky")]
INPUTS = {"risky": {"type": "bool", "default": False}}
TESTS = [
    {"name": "risky", "action": {"description": "do it", "context": {"risky": True}}, "expect": ["nothing-risky"]},
    {"name": "harmless", "action": {"description": "do it", "context": {"risky": False}}, "expect": []},
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout of somebody's rules."""
    folder = tmp_path / "a project"
    (folder / "guardrails").mkdir(parents=True)
    write(folder / "guardrails" / "ours.yaml", content(RULES, INPUTS, TESTS))
    return folder


def run_hook(identifier: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a hook as pre-commit does: its entry with its arguments, or those of the configuration instead."""
    hook = HOOKS[identifier]
    assert hook["pass_filenames"] is False
    return subprocess.run(
        [*shlex.split(hook["entry"]), *(arguments or hook["args"])],
        cwd=folder,
        env=developer_environment(folder),
        capture_output=True,
        text=True,
        check=False,
        timeout=BOUND,
    )


def test_the_action_validates_and_tests_the_rulebooks_of_a_checkout(project: Path) -> None:
    code, printed = run_action("guardrails", project)
    assert (code, printed.splitlines()[-1]) == (0, "2 of 2 tests passed.")
    assert "guardrails/ours.yaml: 1 guardrail" in printed


def test_the_action_fails_where_a_rulebook_cannot_be_used(project: Path) -> None:
    write(project / "guardrails" / "theirs.yaml", "guardrails: []")
    code, printed = run_action("guardrails", project)
    assert code == 3
    assert "guardrails/theirs.yaml:1: rulebook: `apiVersion` is missing" in printed


def test_the_action_fails_where_tests_fail_or_are_missing(project: Path) -> None:
    write(project / "more rules.yaml", content([rule("r", "false")], tests=[]))
    assert run_action("guardrails", project, {"path": "more rules.yaml"})[0] == 0
    assert run_action("guardrails", project, {"path": "more rules.yaml", "require-coverage": "true"})[0] == 4
    wrong = [{**TESTS[0], "expect": []}]
    write(project / "more rules.yaml", content(RULES, INPUTS, wrong))
    code, printed = run_action("guardrails", project, {"path": "more rules.yaml", "junit": "results.xml"})
    assert code == 4
    assert "nothing-risky fired" in printed
    assert ElementTree.parse(project / "results.xml").getroot().get("failures") == "1"


def test_an_input_of_the_action_is_no_script(project: Path) -> None:
    for path in ('"; touch broken; "', "$(touch broken)", "--help"):
        assert run_action("guardrails", project, {"path": path})[0] == 2
    assert not (project / "broken").exists()


def test_the_action_installs_all_that_its_commands_load(project: Path) -> None:
    install = yaml.safe_load((ACTIONS / "guardrails" / "action.yml").read_text())["runs"]["steps"][0]["run"]
    extra = install.split()[-1]
    for arguments in (["validate", "guardrails"], ["test", "guardrails", "--junit", "r.xml"]):
        done = run_with_extras(["guardrails", *arguments], [extra], cwd=project, env=developer_environment(project))
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("identifier", ["guardrails-validate", "guardrails-test"])
def test_the_hooks_pass_good_rulebooks_and_stop_broken_ones(identifier: str, project: Path) -> None:
    assert run_hook(identifier, project).returncode == 0
    write(project / "guardrails" / "theirs.yaml", content([rule("r", "context.x")], name="theirs"))
    stopped = run_hook(identifier, project)
    assert stopped.returncode == 3
    assert "context.x is not declared in inputs" in stopped.stderr
    assert run_hook(identifier, project, "guardrails/ours.yaml").returncode == 0


def test_the_hook_stops_tests_that_fail(project: Path) -> None:
    write(project / "guardrails" / "ours.yaml", content(RULES, INPUTS, [{**TESTS[1], "expect": ["nothing-risky"]}]))
    assert run_hook("guardrails-validate", project).returncode == 0
    assert run_hook("guardrails-test", project).returncode == 4


@pytest.mark.parametrize("identifier", ["guardrails-validate", "guardrails-test"])
def test_the_hooks_run_for_rulebooks(identifier: str) -> None:
    hook: Mapping[str, Any] = HOOKS[identifier]
    for name, is_rulebook in (("guardrails/ours.yaml", True), ("rules.yml", True), ("src/main.py", False)):
        assert bool(re.search(hook["files"], name)) is is_rulebook
