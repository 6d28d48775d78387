"""Rulebooks for tests, written as data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator
from cstp_grpc.core.guardrails.model import Action, RuleSet, Verdict
from cstp_grpc.core.guardrails.parsing import parse_rulebook


def rule(identifier: str, when: str, severity: str = "block", **more: Any) -> dict[str, Any]:
    return {"id": identifier, "name": identifier, "when": when, "severity": severity, "message": "no", **more}


def content(
    guardrails: Sequence[Mapping[str, Any]],
    inputs: Mapping[str, Any] | None = None,
    tests: Sequence[Mapping[str, Any]] = (),
    name: str = "book",
) -> str:
    """Return a rulebook as JSON, which is YAML."""
    return json.dumps(
        {
            "apiVersion": "cstp.guardrails/v1",
            "metadata": {"name": name, "version": "1", "owner": "tests"},
            "inputs": inputs or {},
            "guardrails": guardrails,
            "tests": tests,
        },
        indent=1,
    )


def rule_set(guardrails: Sequence[Mapping[str, Any]], inputs: Mapping[str, Any] | None = None) -> RuleSet:
    parsed = parse_rulebook("book.yaml", content(guardrails, inputs).encode())
    assert parsed.rulebook, parsed.problems
    return RuleSet((parsed.rulebook,))


def judge(when: str, inputs: Mapping[str, Any], context: Mapping[str, Any], **action: Any) -> Verdict:
    """Return the verdict of a single blocking rule."""
    evaluator = GuardrailEvaluator(rule_set([rule("r", when)], inputs))
    return evaluator.evaluate(Action("do it", context=context, **action))


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path
