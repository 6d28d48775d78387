"""Rulebooks once they are read and found sound."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cstp_grpc.guardrails.model import Action
from cstp_grpc.guardrails.scanner import Expression
from cstp_grpc.guardrails.values import InputType
from cstp_grpc.vocabulary import Severity

MAX_NAMED = 5
"""How many rulebooks a version names."""


@dataclass(frozen=True, slots=True)
class Input:
    """A value that rules read from the context; `default`, a JSON value, answers where the caller says nothing."""

    name: str
    type: InputType
    default: Any
    description: str | None
    line: int


@dataclass(frozen=True, slots=True)
class Guardrail:
    """A rule: where `when` holds, the action is blocked or warned of."""

    id: str
    name: str
    when: Expression
    severity: Severity
    message: str
    suggestion: str | None
    description: str | None
    line: int


@dataclass(frozen=True, slots=True)
class RulebookTest:
    """An action, and the guardrails of the same rulebook that must fire.

    `expect_errors` are those that cannot be evaluated; `expect_allowed` None demands nothing of the verdict.
    """

    name: str
    action: Action
    expect: frozenset[str]
    expect_errors: frozenset[str]
    expect_allowed: bool | None
    line: int


@dataclass(frozen=True, slots=True)
class Rulebook:
    """A file of guardrails with the inputs they read and their tests; `digest` is the SHA-256 of the file."""

    file: str
    name: str
    version: str
    owner: str | None
    inputs: Mapping[str, Input]
    guardrails: tuple[Guardrail, ...]
    tests: tuple[RulebookTest, ...]
    digest: str


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Everything that actions are judged by, in the order in which violations are answered."""

    rulebooks: tuple[Rulebook, ...]

    @property
    def guardrails(self) -> tuple[Guardrail, ...]:
        """All guardrails."""
        return tuple(guardrail for rulebook in self.rulebooks for guardrail in rulebook.guardrails)

    @property
    def inputs(self) -> Mapping[str, Input]:
        """All inputs by name; rulebooks that share one agree on it."""
        return {name: declared for rulebook in self.rulebooks for name, declared in rulebook.inputs.items()}

    @property
    def version(self) -> str:
        """The rulebooks as `name@version`, and 12 hexadecimal digits that change with the content of any of them.

        For instance `default@2026.1+0123456789ab`.
        """
        named = sorted(f"{rulebook.name}@{rulebook.version}" for rulebook in self.rulebooks)
        more = [f"{len(named) - MAX_NAMED} more"] if len(named) > MAX_NAMED else []
        digests = "".join(sorted(rulebook.digest for rulebook in self.rulebooks))
        return f"{','.join(named[:MAX_NAMED] + more)}+{hashlib.sha256(digests.encode()).hexdigest()[:12]}"
