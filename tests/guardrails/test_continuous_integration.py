"""The GitHub Action and the pre-commit hooks: their steps, run as GitHub and pre-commit run them."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from packaging.requirements import Requirement

from tests.guardrails.rulebooks import content, rule, write

ROOT = Path(__file__).resolve().parents[2]
ACTION = ROOT / ".github" / "actions" / "guardrails"
HOOKS = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}
BOUND = 60.0
"""Seconds in which a step has ended."""
RULES = [rule("nothing-risky", "context.risky")]
INPUTS = {"risky": {"type": "bool", "default": False}}
TESTS = [
    {"name": "risky", "action": {"description": "do it", "context": {"risky": True}}, "expect": ["nothing-risky"]},
    {"name": "harmless", "action": {"description": "do it", "context": {"risky": False}}, "expect": []},
]
LOADED = """
import runpy, sys
sys.argv = ["cstp", *sys.argv[1:]]
try:
    runpy.run_module("cstp_grpc", run_name="__main__")
except SystemExit as end:
    assert not end.code
print("LOADED", *sorted({name.partition(".")[0] for name in sys.modules}))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout of somebody's rules."""
    folder = tmp_path / "a project"
    (folder / "guardrails").mkdir(parents=True)
    write(folder / "guardrails" / "ours.yaml", content(RULES, INPUTS, TESTS))
    return folder


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a developer or runner on whose PATH is the command."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CSTP_")}
    # The command of this interpreter, whatever the folder is called that the command was installed from.
    command = folder.parent / "bin" / "cstp"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m cstp_grpc "$@"\n')
    command.chmod(0o755)
    return {
        **kept,
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder.parent),
    }


def run_action(folder: Path, **inputs: str) -> tuple[int, str]:
    """Run the steps of the action in a checkout until one fails; return its exit code and what was printed."""
    action = yaml.safe_load((ACTION / "action.yml").read_text())
    given = {name: inputs.get(name, described["default"]) for name, described in action["inputs"].items()}
    assert inputs.keys() <= given.keys()
    values = {f"inputs.{name}": value for name, value in given.items()} | {"github.action_path": str(ACTION)}
    runner = {"RUNNER_TEMP": str(folder.parent / "temp"), "GITHUB_PATH": str(folder.parent / "path")}
    printed = ""
    for step in action["runs"]["steps"]:
        assert "${{" not in step["run"], "an input in a script could run anything"
        variables = {name: fill_in(text, values) for name, text in step["env"].items()}
        # As GitHub runs `shell: bash`.
        result = subprocess.run(
            [step["shell"], "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=folder,
            env={**environment(folder), **runner, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=BOUND,
        )
        printed += result.stdout
        if result.returncode:
            return result.returncode, printed
    return 0, printed


def fill_in(text: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda match: values[match[1]], text)


def run_hook(identifier: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a hook as pre-commit does: its entry with its arguments, or those of the configuration instead."""
    hook = HOOKS[identifier]
    assert hook["pass_filenames"] is False
    return subprocess.run(
        [*shlex.split(hook["entry"]), *(arguments or hook["args"])],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        check=False,
        timeout=BOUND,
    )


def test_the_action_validates_and_tests_the_rulebooks_of_a_checkout(project: Path) -> None:
    code, printed = run_action(project)
    assert (code, printed.splitlines()[-1]) == (0, "2 of 2 tests passed.")
    assert "guardrails/ours.yaml: 1 guardrail" in printed


def test_the_action_fails_where_a_rulebook_cannot_be_used(project: Path) -> None:
    write(project / "guardrails" / "theirs.yaml", "guardrails: []")
    code, printed = run_action(project)
    assert code == 3
    assert "guardrails/theirs.yaml:1: rulebook: `apiVersion` is missing" in printed


def test_the_action_fails_where_tests_fail_or_are_missing(project: Path) -> None:
    write(project / "more rules.yaml", content([rule("r", "false")], tests=[]))
    assert run_action(project, path="more rules.yaml")[0] == 0
    assert run_action(project, path="more rules.yaml", **{"require-coverage": "true"})[0] == 4
    wrong = [{**TESTS[0], "expect": []}]
    write(project / "more rules.yaml", content(RULES, INPUTS, wrong))
    code, printed = run_action(project, path="more rules.yaml", junit="results.xml")
    assert code == 4
    assert "nothing-risky fired" in printed
    assert ElementTree.parse(project / "results.xml").getroot().get("failures") == "1"


def test_an_input_of_the_action_is_no_script(project: Path) -> None:
    for path in ('"; touch broken; "', "$(touch broken)", "--help"):
        assert run_action(project, path=path)[0] == 2
    assert not (project / "broken").exists()


def test_the_action_installs_all_that_its_commands_load(project: Path) -> None:
    step = yaml.safe_load((ACTION / "action.yml").read_text())["runs"]["steps"][0]["run"]
    named = re.search(r"constraints.txt\" \\\n +(.+)\n", step)
    assert named
    installed = with_dependencies(named[1].split())
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert set(named[1].split()) <= {Requirement(text).name for text in declared}
    distributions = importlib.metadata.packages_distributions()
    for command in ("validate", "test"):
        arguments = ["guardrails", command, "guardrails", *(["--junit", "r.xml"] if command == "test" else [])]
        printed = subprocess.run(
            [sys.executable, "-c", LOADED, *arguments],
            cwd=project,
            env=environment(project),
            capture_output=True,
            text=True,
            check=True,
            timeout=BOUND,
        ).stdout
        loaded = set(printed.rpartition("LOADED ")[2].split()) - sys.stdlib_module_names - {"cstp_grpc", "__mp_main__"}
        assert "click" in loaded
        # Of a package that several distributions share, such as google, one must be among them.
        assert {
            name for name in loaded if name in distributions and not installed & names_of(distributions[name])
        } == set()


def names_of(distributions: list[str]) -> set[str]:
    return {normalize_name(name) for name in distributions}


def normalize_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def with_dependencies(names: list[str]) -> set[str]:
    """Return distributions with all that they need, as pip installs them."""
    found: set[str] = {"setuptools"}
    pending = [normalize_name(name) for name in names]
    while pending:
        name = pending.pop()
        if name in found:
            continue
        found.add(name)
        needed = map(Requirement, importlib.metadata.requires(name) or [])
        pending += [
            normalize_name(each.name) for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})
        ]
    return found


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
