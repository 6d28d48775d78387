"""The scripts of `cstp completion`, in the shells that they are for."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke

ROOT = Path(__file__).resolve().parents[2]
START = {
    "bash": 'eval "$(cstp completion bash)"; complete -p cstp >&2',
    # Of its own functions, it shows completions by the last two; to load all of them takes it a second.
    "zsh": """
compdef() { [[ "$*" == "_cstp_completion cstp" ]] || exit 1; }
eval "$(cstp completion zsh)"
_describe() { print -rl -- "${(@P)3%%:*}" }
compadd() { print -rl -- "${(@P)@[-1]}" }
""",
    "fish": "cstp completion fish | source",
}
"""What is done once in each shell, as in its start-up file."""
ASK = {
    "bash": """
COMPREPLY=()
COMP_WORDS=(%s)
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_cstp_completion cstp
printf '%%s\\n' "${COMPREPLY[@]}"
""",
    "zsh": """
words=(%s)
CURRENT=${#words}
_cstp_completion
""",
    "fish": 'complete -C "%s"',
}
"""What a shell does when a line is completed: it calls the function that the script has registered."""
OPTIONS = {"bash": ["--norc", "-ec"], "zsh": ["-fec"], "fish": ["--no-config", "-c"]}
END = "=== end of the completions ==="
BOUND = 60.0


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a shell on whose PATH is the command."""
    command = tmp_path / "bin" / "cstp"
    command.parent.mkdir()
    # As the command that pip installs: click asks for completions by the name of the program.
    program = "from cstp_grpc.cli.main import main; main(prog_name='cstp')"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c "{program}" "$@"\n')
    command.chmod(0o755)
    return {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


def completions(shell: str, lines: Sequence[str], environment: dict[str, str]) -> list[set[str]]:
    """Return the completions that a shell offers for each of some lines that end where the cursor is."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    words = [line.removesuffix("''") if shell == "fish" else line for line in lines]
    program = "\n".join([START[shell], *(f"{ASK[shell] % each}\necho '{END}'" for each in words)])
    command = [shell, *OPTIONS[shell], program]
    asked = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=BOUND)
    assert asked.returncode == 0, asked.stderr
    # fish has a description behind a tab.
    answers = asked.stdout.split(END)[: len(lines)]
    return [{line.partition("\t")[0].strip() for line in answer.splitlines()} - {""} for answer in answers]


@pytest.mark.parametrize("shell", sorted(START))
def test_a_shell_completes_commands_options_and_values(shell: str, environment: dict[str, str]) -> None:
    lines = ["cstp guard", "cstp guardrails ''", "cstp check --stak", "cstp check --stakes ''", "cstp completion z"]
    group, commands, option, values, argument = completions(shell, lines, environment)
    assert group == {"guardrails"}
    assert {"validate", "test", "new"} <= commands
    assert option == {"--stakes"}
    assert {"low", "critical"} <= values
    assert argument == {"zsh"}


def test_another_shell_is_refused_with_those_that_are_known(invoke: Invoke) -> None:
    refused = invoke("completion", "tcsh")
    assert refused.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in refused.output
