"""Readers of the variables of expressions: the action, its commands and code, the related intents and the past."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from google.protobuf import descriptor_pool

from cstp_grpc.core.commands.model import NO_INVOCATION, Command
from cstp_grpc.core.commands.parsing import CommandPhrases, parse_invocation
from cstp_grpc.core.guardrails import cel_variables
from cstp_grpc.core.guardrails.history import HISTORY_SCOPES, HistoryQuery, HistoryScope
from cstp_grpc.core.guardrails.inputs import InputValueError, to_number, to_string
from cstp_grpc.core.guardrails.model import Action, CodeFacts
from cstp_grpc.core.guardrails.plain_sentences import Intention, IntentionFinder, normalize_words
from cstp_grpc.gen.cstp.v1 import commands_pb2

ReadVariable = Callable[[Action], object]
"""Returns a variable's value, or None if it is absent. Raises InputValueError."""

COMMAND_TYPE: Final[str] = commands_pb2.Command.DESCRIPTOR.full_name
"""The type of an item of the variable `commands`: a message, whose fields the engine type-checks."""

DESCRIPTORS: Final = descriptor_pool.Default()
"""The pool that knows the type."""

MAX_COMMAND_BYTES: Final = 24_000
"""Size of all commands together from which the rest is summed up as too large, so that every rule stays cheap."""

MAX_KEPT_TEXTS: Final = 256
MAX_KEPT_CHARACTERS: Final = 2_000
"""How many texts, and how long ones, have their intentions kept. Chosen: half a megabyte; agents ask again about an
action that was blocked, and check what they have announced."""


def command_message(command: Command, phrases: Iterable[str]) -> commands_pb2.Command:
    """Convert a command that begins with these phrases to a message."""
    return commands_pb2.Command(
        program=command.program,
        text=command.text,
        arguments=command.arguments,
        flags=command.flags,
        operands=command.operands,
        environment=command.environment,
        directory=command.directory,
        phrases=phrases,
        deletes=sorted(command.deletes),
        writes=sorted(command.writes),
        reads=sorted(command.reads),
        sql=sorted(command.sql),
        unresolved=sorted(command.unresolved),
        recursive=command.is_recursive,
        privileged=command.is_privileged,
        remote=command.is_remote,
        dry_run=command.is_dry_run,
        sends_out=command.sends_out,
    )


def commands_reader(phrases: Iterable[str]) -> Callable[[Action], list[commands_pb2.Command]]:
    """Return a function that parses the commands of an action, for rules that name them by these phrases."""
    known = CommandPhrases(phrases)

    def read(action: Action) -> list[commands_pb2.Command]:
        found: list[commands_pb2.Command] = []
        # Most actions have no command.
        if action.invocation is NO_INVOCATION:
            return found
        size = 0
        for command in parse_invocation(action.invocation):
            message = command_message(command, known.matching(command))
            size += message.ByteSize()
            if size > MAX_COMMAND_BYTES:
                # The effects count; the words of commands beyond the limit are left out.
                for field in ("arguments", "operands", "environment", "flags", "text", "directory"):
                    message.ClearField(field)
            found.append(message)
        return found

    return read


def read_now(action: Action) -> object:
    """Return the instant of the check. Raises InputValueError without an instant, as in tests without `now`."""
    if action.now is None:
        raise InputValueError("is not given; tests fix it with `now`")
    return action.now


def read_words(action: Action) -> object:
    """Return the words of the description, the announced context and the command. Raises InputValueError."""
    # Hooks describe a command by itself, cut to the length of a description.
    command = "" if action.invocation.command == action.description else action.invocation.command
    return normalize_words(to_string(f"{action.description} {action.announced_context} {command}"))


def words_beside_command(action: Action) -> str:
    words, command = action.description, action.invocation.command
    if not command:
        return words
    if command.startswith(words):
        return ""
    # Hooks and tool guards describe a call by its arguments, in JSON. Only with its quotation marks: a short command
    # would take letters out of the words.
    return words.replace(json.dumps(command, ensure_ascii=False), " ").replace(json.dumps(command), " ")


def intentions_reader(sought: Iterable[Intention]) -> ReadVariable:
    """Return a function that finds which of these intentions the sentences of an action have."""
    find = IntentionFinder(sought).find
    find_again = lru_cache(MAX_KEPT_TEXTS)(find)

    def read(action: Action) -> object:
        text = to_string(f"{words_beside_command(action)}\n\n{action.announced_context}")
        return find_again(text) if len(text) <= MAX_KEPT_CHARACTERS else find(text)

    return read


ACTION_READERS: Mapping[str, ReadVariable] = {
    "action.description": lambda action: to_string(action.description),
    "action.category": lambda action: None if action.category is None else to_string(action.category),
    "action.stakes": lambda action: cel_variables.STAKES_ORDER[action.stakes],
    "action.confidence": lambda action: None if action.confidence is None else to_number(action.confidence),
    "action.project": lambda action: None if action.project is None else to_string(action.project),
    "agent.id": lambda action: to_string(action.agent),
    "agent.permissions": lambda action: sorted(action.permissions),
    "action.command": lambda action: to_string(action.invocation.command) if action.invocation.command else None,
    cel_variables.NOW_VARIABLE: read_now,
}


def code_reader(texts: Callable[[CodeFacts], tuple[str, ...]]) -> ReadVariable:
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


def history_reader(scopes: Sequence[HistoryScope], queries: Sequence[HistoryQuery]) -> ReadVariable:
    def read(action: Action) -> object:
        # Before the check for unreadable history: a caller that states no category must get this error.
        if (missing := action.history_subject.find_missing(scopes)) is not None:
            raise InputValueError(f"needs action.{missing}, which is missing")
        if action.history.unreadable is not None:
            raise InputValueError(f"cannot be read: {action.history.unreadable}")
        return {query.key: action.history.count(query) for query in queries}

    return read


HISTORY_READERS: Mapping[str, ReadVariable] = {
    name: history_reader(scopes, ()) for name, scopes in HISTORY_SCOPES.items()
}
"""Readers of history that is unreadable; they give the reason."""

LARGE_READERS: Mapping[str, ReadVariable] = {
    **CODE_READERS,
    cel_variables.INTENTS_VARIABLE: read_related_ages,
    cel_variables.MENTIONS_VARIABLE: read_words,
}
"""The readers of values that may be as large as a context, and count as such."""

FACT_READERS: Mapping[str, ReadVariable] = {
    **ACTION_READERS,
    **LARGE_READERS,
    **HISTORY_READERS,
    cel_variables.COMMANDS_VARIABLE: commands_reader(()),
    cel_variables.INTENDS_VARIABLE: intentions_reader(()),
}
"""The readers of everything but the inputs."""


def group_history_readers(queries: Sequence[HistoryQuery]) -> dict[str, ReadVariable]:
    grouped: dict[str, list[HistoryQuery]] = {}
    for query in queries:
        grouped.setdefault(query.variable, []).append(query)
    return {name: history_reader(HISTORY_SCOPES[name], asked) for name, asked in grouped.items()}
