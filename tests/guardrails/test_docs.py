from __future__ import annotations

import re
from pathlib import Path

from cstp_grpc.guardrails.rulebook import load
from cstp_grpc.guardrails.testing import run_tests
from tests.guardrails.rulebooks import write

GUIDE = Path(__file__).parents[2] / "docs" / "guardrails.md"


def test_the_rulebook_in_the_guide_loads_and_its_tests_pass(tmp_path: Path) -> None:
    [example] = re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)

    results = run_tests(load(write(tmp_path / "databases.yaml", example)))

    assert [(result.name, result.failures) for result in results if not result.passed] == []
    assert len(results) == 3
