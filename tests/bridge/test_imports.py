"""A bridge that has only started holds nothing that only some of its calls need."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

NEEDED_LATER = (
    "a2a.client",
    "a2a.compat.v0_3.types",
    "a2a.server",
    "cryptography",
    "httpx",
    "jwt",
    "opentelemetry",
    "sqlalchemy",
)


@pytest.fixture(scope="module")
def imported() -> set[str]:
    program = "import json, sys, bridge.__main__; print(json.dumps(list(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    return set(json.loads(answer.stdout))


@pytest.mark.parametrize("module", NEEDED_LATER)
def test_a_bridge_starts_without_what_few_calls_need(module: str, imported: set[str]) -> None:
    assert module not in imported
