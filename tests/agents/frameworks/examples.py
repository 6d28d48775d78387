"""The example of a framework, run as its reader runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.agents.frameworks.scenario import MODULE_VARIABLE

EXAMPLES = Path(__file__).parents[3] / "examples" / "frameworks"
SECONDS = 60.0


def test_the_example_runs_what_is_allowed_and_tells_the_model_of_the_rest(
    target: str, token: str, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(token)
    example = EXAMPLES / f"{os.environ[MODULE_VARIABLE]}_agent.py"
    command = [sys.executable, str(example), target, str(tmp_path / "token")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "scratch is dropped" in ended.stdout
    assert "orders is dropped" not in ended.stdout
    assert "BLOCKED" in ended.stdout
