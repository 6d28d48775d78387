"""The actions in the folder `actions`, with their steps run as GitHub runs them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import yaml

from tests.installations import ROOT

ACTIONS = ROOT / "actions"
BOUND = 60.0
"""Seconds in which a step has ended."""


def developer_environment(folder: Path) -> dict[str, str]:
    """Return the environment of a developer or runner on whose PATH is the command."""
    # The command of this interpreter, whatever the folder is called that the command was installed from.
    command = folder.parent / "bin" / "cstp"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m cstp_grpc "$@"\n')
    command.chmod(0o755)
    return {**runner_environment(folder), "PATH": f"{command.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


def runner_environment(folder: Path) -> dict[str, str]:
    """Return the environment of a runner, with a home folder and a temporary folder beside the checkout."""
    hidden = {"PYTHONPATH", "VIRTUAL_ENV"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CSTP_") and name not in hidden}
    beside = folder.parent
    return {**kept, "HOME": str(beside), "RUNNER_TEMP": str(beside / "temp"), "GITHUB_PATH": str(beside / "path")}


def run_action(
    name: str,
    folder: Path,
    inputs: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    seconds: float = BOUND,
) -> tuple[int, str]:
    """Run the steps of an action in a checkout until one fails; return its exit code and what was printed."""
    action = yaml.safe_load((ACTIONS / name / "action.yml").read_text())
    given = {key: (inputs or {}).get(key, described.get("default")) for key, described in action["inputs"].items()}
    assert (inputs or {}).keys() <= given.keys()
    values = {f"inputs.{key}": value for key, value in given.items()} | {"github.action_path": str(ACTIONS / name)}
    variables = dict(developer_environment(folder) if environment is None else environment)
    printed = ""
    for step in action["runs"]["steps"]:
        assert "${{" not in step["run"], "an input in a script could run anything"
        # As GitHub runs `shell: bash`.
        result = subprocess.run(
            [step["shell"], "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=folder,
            env={**variables, **{key: fill_in(text, values) for key, text in step["env"].items()}},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=seconds,
        )
        printed += result.stdout
        if result.returncode:
            return result.returncode, printed
        added = Path(variables["GITHUB_PATH"])
        if added.exists():
            # The steps that follow have these folders on their PATH.
            variables["PATH"] = ":".join([*reversed(added.read_text().split("\n")[:-1]), variables["PATH"]])
            added.unlink()
    return 0, printed


def fill_in(text: str, values: Mapping[str, str]) -> str:
    """Return a text of an action with the values of its expressions."""
    return re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda match: values[match[1]], text)
