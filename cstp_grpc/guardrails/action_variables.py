"""Read the variables of expressions that are no inputs: the action, its code and the related intents."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cstp_grpc.guardrails.cel_engine import STAKES_ORDER
from cstp_grpc.guardrails.cel_variables import (
    INTENTS_VARIABLE,
    MENTIONS_VARIABLE,
    NOW_VARIABLE,
    normalize_words,
)
from cstp_grpc.guardrails.input_values import InputValueError, to_number, to_string
from cstp_grpc.guardrails.model import Action, CodeFacts

ReadVariable = Callable[[Action], object]
"""Returns a variable's value, or None if it is absent. Raises InputValueError."""


def read_now(action: Action) -> object:
    """Return the instant of the check. Raises InputValueError if there is none, as in tests that fix none."""
    if action.now is None:
        raise InputValueError("is not given; tests fix it with `now`")
    return action.now


def read_words(action: Action) -> object:
    """Return the words of the description and of the announced context. Raises InputValueError."""
    return normalize_words(to_string(f"{action.description} {action.announced_context}"))


def read_category(action: Action) -> object:
    """Return the action's category, or None. Raises InputValueError."""
    return None if action.category is None else to_string(action.category)


def read_confidence(action: Action) -> object:
    """Return the action's confidence, or None. Raises InputValueError."""
    return None if action.confidence is None else to_number(action.confidence)


ACTION_READERS: Mapping[str, ReadVariable] = {
    "action.description": lambda action: to_string(action.description),
    "action.category": read_category,
    "action.stakes": lambda action: STAKES_ORDER[action.stakes],
    "action.confidence": read_confidence,
    "action.project": lambda action: None if action.project is None else to_string(action.project),
    "agent.id": lambda action: to_string(action.agent),
    "agent.permissions": lambda action: sorted(action.permissions),
    NOW_VARIABLE: read_now,
}


def code_reader(texts: Callable[[CodeFacts], tuple[str, ...]]) -> ReadVariable:
    """Return a function that reads facts about the action's code; incomplete facts are an error."""

    def read(action: Action) -> object:
        # Even if some notes were read: the one that matters may be among the others.
        if action.code.unreadable is not None:
            raise InputValueError(f"cannot be read: {action.code.unreadable}")
        return [to_string(text) for text in texts(action.code)]

    return read


CODE_READERS: Mapping[str, ReadVariable] = {
    # The paths come from the call, and so are known even if nothing about them can be read.
    "code.paths": lambda action: [to_string(path) for path in action.code.paths],
    "code.boundaries.never": code_reader(lambda code: code.never),
    "code.boundaries.ask_first": code_reader(lambda code: code.ask_first),
    "code.boundaries.always": code_reader(lambda code: code.always),
    "code.checks": code_reader(lambda code: code.checks),
    "code.pitfalls": code_reader(lambda code: code.pitfalls),
}


def read_related_ages(action: Action) -> object:
    """Return the ages of the related intents in seconds. Raises InputValueError if they are unknown."""
    if action.intents.unreadable is not None:
        raise InputValueError(f"cannot be read: {action.intents.unreadable}")
    return list(action.intents.ages)


LARGE_READERS: Mapping[str, ReadVariable] = {
    **CODE_READERS,
    INTENTS_VARIABLE: read_related_ages,
    MENTIONS_VARIABLE: read_words,
}
"""The readers of what may be as large as a context, and counts as such."""
FACT_READERS: Mapping[str, ReadVariable] = {**ACTION_READERS, **LARGE_READERS}
"""The readers of everything but the inputs."""
