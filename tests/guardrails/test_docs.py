from __future__ import annotations

import re
from pathlib import Path

import pytest

from cstp_grpc.guardrails.rulebook import load
from cstp_grpc.guardrails.testing import run_tests
from tests.guardrails.rulebooks import write

GUIDE = Path(__file__).parents[2] / "docs" / "guardrails.md"


@pytest.mark.parametrize(("number", "tests"), [(0, 3), (1, 5), (2, 5)], ids=["databases", "code", "hand-overs"])
def test_the_rulebooks_in_the_guide_load_and_their_tests_pass(tmp_path: Path, number: int, tests: int) -> None:
    examples = re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) == 3

    results = run_tests(load(write(tmp_path / "example.yaml", examples[number])))

    assert [(result.name, result.failures) for result in results if not result.passed] == []
    assert len(results) == tests
