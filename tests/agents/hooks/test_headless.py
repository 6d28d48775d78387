"""An agent that runs without its user is told no, since a question would make it wait for ever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agents.hooks.payloads import encode, payload
from tests.harness import TIMEOUT

UNUSED = "http://127.0.0.1:1"
LAUNCHER = """
import os, subprocess, sys
sys.exit(subprocess.run(["sh", "-c", os.environ["HOOK"] + " || exit 2"], input=os.environ["EVENT"].encode()).returncode)
"""


@pytest.fixture
def terminal() -> Iterator[int]:
    """The end of a terminal that an agent reads from."""
    leader, follower = os.openpty()
    yield follower
    os.close(follower)
    os.close(leader)


def answer_below(
    program: Path, agent: str, *words: str, stdin: int, options: tuple[str, ...] = (), home: Path | None = None
) -> str:
    """Return the whole answer of a hook that is started by a shell below a program with some words."""
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(LAUNCHER)
    hook = [sys.executable, "-m", "cstp_grpc", "hook", agent, "--agent", UNUSED, *options]
    event = encode(payload("bash", agent="copilot-cli" if agent == "copilot" else agent))
    done = subprocess.run(
        [sys.executable, str(program), *words],
        env={**os.environ, "HOOK": " ".join(hook), "EVENT": event, **({"HOME": str(home)} if home else {})},
        stdin=stdin,
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT,
    )
    return json.dumps(json.loads(done.stdout))


@pytest.mark.parametrize(("agent", "program"), [("gemini-cli", "gemini"), ("copilot", "copilot")])
@pytest.mark.parametrize("words", [("-p", "Drop it"), ("--prompt=Drop it",), ("--yolo", "-p", "Drop it")])
def test_an_agent_with_a_prompt_as_its_argument_is_denied(
    agent: str, program: str, words: tuple[str, ...], terminal: int, tmp_path: Path
) -> None:
    answer = answer_below(tmp_path / program, agent, *words, stdin=terminal)
    assert '"deny"' in answer
    assert '"ask"' not in answer
    assert "No server answers" in answer


@pytest.mark.parametrize(("agent", "program"), [("gemini-cli", "gemini"), ("copilot", "copilot")])
def test_an_agent_without_a_terminal_is_denied(agent: str, program: str, tmp_path: Path) -> None:
    assert '"deny"' in answer_below(tmp_path / program, agent, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("words", [(), ("--prompt-interactive", "Drop it"), ("-i", "use -p")])
def test_an_agent_at_a_terminal_asks(words: tuple[str, ...], terminal: int, tmp_path: Path) -> None:
    answer = answer_below(tmp_path / "gemini-cli" / "bundle" / "gemini.js", "gemini-cli", *words, stdin=terminal)
    assert '"ask"' in answer


def test_an_agent_below_an_editor_asks(tmp_path: Path) -> None:
    assert '"ask"' in answer_below(tmp_path / "gemini", "gemini-cli", "--acp", stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("options", [("--on-failure", "maybe"), ("--on-failure", "ask", "--headless")])
def test_a_wrong_option_and_a_stated_one_deny_too(options: tuple[str, ...], tmp_path: Path) -> None:
    assert '"deny"' in answer_below(tmp_path / "gemini", "gemini-cli", stdin=subprocess.DEVNULL, options=options)


def test_the_option_denies_whatever_agent_runs_the_hook(tmp_path: Path) -> None:
    event: Any = payload("bash", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "cstp_grpc", "hook", "claude-code", "--agent", UNUSED, "--headless"],
        input=encode(event),
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT,
    )
    assert json.loads(done.stdout)["hookSpecificOutput"]["permissionDecision"] == "deny"
