"""Rulebooks and actions for measuring guardrail engines."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from cstp_grpc.contract.enums import Stakes
from cstp_grpc.core.guardrails.model import Action

CATEGORIES = (
    "database",
    "deployment",
    "security",
    "infrastructure",
    "documentation",
    "testing",
    "finance",
    "communication",
    "access",
    "process",
)
INPUT_TYPES = {
    "affectsProduction": "bool",
    "codeReviewCompleted": "bool",
    "ciPassing": "bool",
    "destroysData": "bool",
    "backupVerified": "bool",
    "rows": "number",
    "recipients": "number",
    "amount": "number",
    "rolloutPercent": "number",
    "environment": "string",
}
DEFAULTS: Mapping[str, Any] = {"bool": False, "number": 0, "string": "staging"}


class PortableRule(NamedTuple):
    """A condition in the languages of the engines."""

    cel: str
    rego: str
    cedar: str


PORTABLE_RULES = (
    PortableRule(
        "context.affectsProduction && !context.codeReviewCompleted",
        "input.affectsProduction; not input.codeReviewCompleted",
        "context.affectsProduction && !context.codeReviewCompleted",
    ),
    PortableRule(
        "context.rows > {limit} && !context.backupVerified",
        "input.rows > {limit}; not input.backupVerified",
        "context.rows > {limit} && !context.backupVerified",
    ),
    PortableRule(
        'context.environment == "production" && context.recipients > {limit}',
        'input.environment == "production"; input.recipients > {limit}',
        'context.environment == "production" && context.recipients > {limit}',
    ),
    PortableRule(
        "context.destroysData && !context.backupVerified",
        "input.destroysData; not input.backupVerified",
        "context.destroysData && !context.backupVerified",
    ),
    PortableRule(
        "context.amount > {limit} && !context.ciPassing",
        "input.amount > {limit}; not input.ciPassing",
        "context.amount > {limit} && !context.ciPassing",
    ),
)
"""Rules that every engine can express."""
FIRST_LIMIT = 1_000
"""The limit of the first rule; each further one has the next."""

ACTION = Action(
    "Deploy the authentication service to production",
    category="deployment",
    stakes=Stakes.MEDIUM,
    confidence=0.85,
    context={
        "affectsProduction": True,
        "codeReviewCompleted": True,
        "ciPassing": True,
        "destroysData": False,
        "backupVerified": False,
        "rows": 20,
        "recipients": 3,
        "amount": 0,
        "rolloutPercent": 10,
        "environment": "production",
    },
    agent="ci",
)
"""An action that passes all rules, as nearly all do."""


def varied_actions(count: int) -> list[Action]:
    """Return different actions as agents ask about them: most state some of the inputs, few what no rule allows."""
    generator = random.Random(1)
    return [varied_action(generator, number) for number in range(count)]


def varied_action(generator: random.Random, number: int) -> Action:
    """Return one of the actions."""
    facts = {
        "affectsProduction": generator.random() < 0.3,
        "destroysData": generator.random() < 0.02,
        "rows": generator.randrange(1_020),
        "recipients": generator.randrange(105),
        "amount": generator.choice([0] * 9 + [generator.randrange(100)]),
        "rolloutPercent": generator.randrange(52),
        "environment": generator.choice(["staging", "production"]),
    }
    given = {key: value for key, value in facts.items() if generator.random() < 0.6}
    precautions = {key: generator.random() < 0.98 for key in ("codeReviewCompleted", "ciPassing", "backupVerified")}
    return replace(
        ACTION,
        description=f"{generator.choice(['Deploy', 'Change', 'Remove', 'Announce'])} part {number} of the shop",
        category=generator.choice(CATEGORIES),
        stakes=generator.choices(list(Stakes), (50, 45, 4, 1))[0],
        confidence=round(generator.uniform(0.4, 1), 2),
        context=given | precautions,
    )


def portable_rules(count: int) -> list[PortableRule]:
    """Return so many rules in all languages, each with a limit of its own."""
    return [
        PortableRule(*(text.replace("{limit}", str(FIRST_LIMIT + number)) for text in rule))
        for number in range(count)
        for rule in [PORTABLE_RULES[number % len(PORTABLE_RULES)]]
    ]


def mixed_rules(count: int) -> list[dict[str, Any]]:
    """Return so many rules as rulebooks have them: conditions on inputs, on the action, on words, and matches."""
    return [mixed_rule(number) for number in range(count)]


def mixed_rule(number: int) -> dict[str, Any]:
    """Return one of the rules."""
    category = CATEGORIES[number // 10 % len(CATEGORIES)]
    words = ", ".join(f'"{phrase} {number}"' for phrase in ("drop table", "without review", "force push"))
    kinds: tuple[dict[str, Any], ...] = (
        {"when": "context.affectsProduction && !context.codeReviewCompleted"},
        {"when": f"context.rows > {1_000 + number} && !context.backupVerified"},
        {"when": "action.stakes >= stakes.high && (!has(action.confidence) || action.confidence < 0.5)"},
        {"when": f"action.mentions([{words}])"},
        {"when": "context.affectsProduction && context.rolloutPercent > 50"},
        {"match": {"category": category}, "when": f"context.amount > {number}"},
        {"match": {"category": category, "stakes": ["high", "critical"]}},
        {"match": {"project": f"project-{number % 30}"}, "when": 'context.environment == "production"'},
        {"when": f'context.recipients > {100 + number} && context.environment == "production"'},
        {"match": {"category": category}, "when": "context.destroysData && !context.backupVerified"},
    )
    severity = ("block", "warn", "approve")[number % 3]
    common = {"id": f"rule-{number}", "name": f"Rule {number}", "severity": severity, "message": f"Rule {number}"}
    return common | kinds[number % len(kinds)]


def write_rules(path: Path, rules: list[dict[str, Any]]) -> Path:
    """Write a rulebook of these rules."""
    content = {
        "apiVersion": "cstp.guardrails/v1",
        "metadata": {"name": "measured", "version": "1"},
        "inputs": {name: {"type": kind, "default": DEFAULTS[kind]} for name, kind in INPUT_TYPES.items()},
        "guardrails": rules,
    }
    # JSON is YAML, too.
    path.write_text(json.dumps(content))
    return path
