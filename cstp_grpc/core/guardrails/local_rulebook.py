"""Check actions by rulebooks in the process that acts, without a server, a database or gRPC."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import UnionType
from typing import Final

from cstp_grpc.contract.enums import Reaction, Stakes
from cstp_grpc.contract.errors import FieldViolation, InvalidArgument
from cstp_grpc.core.guardrails import model
from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator, UnknownInputPolicy
from cstp_grpc.core.guardrails.explanation import ExplainedVerdict, GuardrailExplainer
from cstp_grpc.core.guardrails.history import UNREAD_HISTORY, UnreadHistory
from cstp_grpc.core.guardrails.rulebook import load_rule_set
from cstp_grpc.core.guardrails.rulebook_files import packaged_rulebook_path

WARN_OF_UNKNOWN: Final = UnknownInputPolicy(unknown_action=Reaction.WARN)
"""The default of a server."""
INTENTS_OF_NO_SERVER: Final = model.IntentFacts(
    unreadable="only a server knows the intents of other agents, and no server is asked"
)
HISTORY_OF_NO_SERVER: Final = UnreadHistory("only a server knows the history, and no server is asked")

MAX_CHARACTERS: Final[Mapping[str, int]] = {
    "description": 8_000,
    "category": 100,
    "project": 200,
    "announced_context": 20_000,
}
"""As for the fields of the contract, so that an action is evaluated here only if a server would evaluate it."""

FIELD_TYPES: Final[Sequence[tuple[str, UnionType | type, str]]] = (
    ("description", str, "a text"),
    ("category", str | None, "a text"),
    ("project", str | None, "a text"),
    ("announced_context", str, "a text"),
    ("agent", str, "a text"),
    ("permissions", Set, "a set of texts"),
    ("confidence", int | float | None, "a number"),
    ("context", Mapping, "a map"),
    ("now", datetime | None, "an instant"),
)
"""The types of an action's fields that programs without a type checker might mistake, and how they are called."""


class Rulebook:
    """A rulebook, or a folder of them, that evaluates actions in this process. Thread-safe.

    Facts of a server cannot be evaluated: a guardrail that reads the intents of other agents, or the history, blocks,
    or warns if it would only warn. Verdicts are not recorded, and nobody can grant a missing approval.
    """

    def __init__(self, rule_set: model.RuleSet, policy: UnknownInputPolicy = WARN_OF_UNKNOWN) -> None:
        """Compile rules; most callers use `load`."""
        self._rule_set = rule_set
        self._evaluator = GuardrailEvaluator(rule_set, policy)
        enabled = [rule for rule in rule_set.guardrails if rule.is_in_force(None)]
        self._needs_agent = [rule.id for rule in enabled if depends_on_agent(rule)]
        self._needs_permissions = [rule.id for rule in enabled if reads_variable(rule, "agent.permissions")]

    @classmethod
    def load(cls, path: str | Path | None = None, policy: UnknownInputPolicy = WARN_OF_UNKNOWN) -> Rulebook:
        """Load the rulebook or folder at a path, or else the standard rules, with the rulebooks that they extend.

        `policy` is the reaction to undeclared keys, and to actions that state no declared input. Raises RulebookError
        with every problem in the files.
        """
        return cls(load_rule_set(packaged_rulebook_path("standard") if path is None else Path(path)), policy)

    @property
    def version(self) -> str:
        """The names and versions of the rulebooks, and a digest that changes with any byte of them."""
        return self._rule_set.version

    @property
    def guardrails(self) -> tuple[model.Guardrail, ...]:
        """All guardrails, in the order in which violations are reported."""
        return self._rule_set.guardrails

    @property
    def inputs(self) -> Mapping[str, model.InputDeclaration]:
        """The inputs that guardrails read from the context, by name."""
        return self._rule_set.inputs

    def check(self, action: model.Action) -> model.Verdict:
        """Return the verdict on an action, as of now unless it has an instant of its own.

        `agent` and `permissions` of the action are taken to be true. Raises InvalidArgument if a server would refuse
        the action, or if a guardrail depends on the agent and the action does not name it.
        """
        return self._evaluator.evaluate(self._complete(action))

    def explain(self, action: model.Action) -> ExplainedVerdict:
        """Return the verdict on an action with the outcome of each guardrail, as `check` does."""
        action = self._complete(action)
        explainer = GuardrailExplainer(self._evaluator, self.inputs, action)
        return ExplainedVerdict(self._evaluator.evaluate(action), tuple(map(explainer.explain, self.guardrails)))

    def _complete(self, action: model.Action) -> model.Action:
        """Return an action with all inputs of guardrails. Raises InvalidArgument if it cannot be evaluated."""
        # Why a server would refuse it, but for the size of its context, which is checked where it is read.
        problems = [
            *(list(find_wrong_types(action)) or find_wrong_values(action)),
            *self._find_missing_identity(action),
        ]
        if problems:
            raise InvalidArgument(
                "; ".join(f"{each.field}: {each.description}" for each in problems), violations=problems
            )
        return complete_action(replace(action, stakes=Stakes(action.stakes)))

    def _find_missing_identity(self, action: model.Action) -> Iterator[FieldViolation]:
        """Yield the facts of the agent that are missing, although guardrails depend on them.

        A server reads it from the token. Here a rule for some agents would not apply to an action without an agent.
        """
        if self._needs_agent and not action.agent:
            yield FieldViolation("action.agent", f"is missing; these depend on it: {', '.join(self._needs_agent)}")
        if self._needs_permissions and not action.permissions:
            names = ", ".join(self._needs_permissions)
            yield FieldViolation("action.permissions", f"are missing; these depend on them: {names}")


def complete_action(action: model.Action) -> model.Action:
    """Return an action with an instant, and the reason for each fact that is not looked up."""
    intents = INTENTS_OF_NO_SERVER if action.intents is model.UNREAD_INTENTS else action.intents
    history = HISTORY_OF_NO_SERVER if action.history is UNREAD_HISTORY else action.history
    return replace(action, intents=intents, history=history, now=action.now or datetime.now(UTC))


def depends_on_agent(rule: model.Guardrail) -> bool:
    """Return whether a guardrail is for some agents only, or reads who acts."""
    return bool(rule.match.agents or rule.scope.agents) or reads_variable(rule, "agent.id")


def reads_variable(rule: model.Guardrail, name: str) -> bool:
    return any(name in expression.values for expression in rule.expressions)


def find_wrong_types(action: model.Action) -> Iterator[FieldViolation]:
    """Yield the fields that are not of their type; a server gets them from a message, which has types."""
    for name, kind, word in FIELD_TYPES:
        value = getattr(action, name)
        # Bools are numbers for Python, and True would be full confidence.
        if not isinstance(value, kind) or (name == "confidence" and isinstance(value, bool)):
            yield FieldViolation(f"action.{name}", f"must be {word}")


def find_wrong_values(action: model.Action) -> Iterator[FieldViolation]:
    """Yield why a server would refuse an action whose fields are of their types."""
    if not action.description.strip():
        yield FieldViolation("action.description", "must not be empty or blank")
    for name, text in (("category", action.category), ("project", action.project)):
        if text == "":
            yield FieldViolation(f"action.{name}", "must not be empty; leave it out")
    for name, limit in MAX_CHARACTERS.items():
        if len(getattr(action, name) or "") > limit:
            yield FieldViolation(f"action.{name}", f"has more than {limit} characters")
    if action.stakes not in list(Stakes):
        yield FieldViolation("action.stakes", f"must be one of {', '.join(Stakes)}")
    confidence = action.confidence
    if confidence is not None and not (math.isfinite(confidence) and 0 <= confidence <= 1):
        yield FieldViolation("action.confidence", "must be from 0 to 1")
    if action.now is not None and action.now.tzinfo is None:
        yield FieldViolation("action.now", "must have an offset from UTC")
    if not all(isinstance(key, str) for key in action.context):
        yield FieldViolation("action.context", "must have texts as keys")
