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
    "prometheus_client",
    "sqlalchemy",
)


def modules_after_importing(*names: str) -> set[str]:
    program = f"import json, sys, {', '.join(names)}; print(json.dumps(list(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    return set(json.loads(answer.stdout))


@pytest.fixture(scope="module")
def imported() -> set[str]:
    return modules_after_importing("bridge.__main__", "bridge.a2a.module")


@pytest.mark.parametrize("module", NEEDED_LATER)
def test_a_bridge_starts_without_what_few_calls_need(module: str, imported: set[str]) -> None:
    assert module not in imported


def test_a_bridge_without_a2a_does_not_load_it() -> None:
    imported = modules_after_importing("bridge.__main__")
    assert "bridge.app" in imported
    assert not {name for name in imported if name == "a2a" or name.startswith(("a2a.", "bridge.a2a."))}
