"""Parse the command of a tool call, and match it against the phrases of rules, such as `git push`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fnmatch import translate
from typing import NamedTuple, TypeAlias

from cstp_grpc.contract.enums import Shell
from cstp_grpc.core.commands.effects import Scene
from cstp_grpc.core.commands.model import MAX_WORD_CHARACTERS, Command, Invocation
from cstp_grpc.core.commands.powershell_text import PowerShellReader
from cstp_grpc.core.commands.shell_text import ShellReader


def parse_invocation(invocation: Invocation) -> list[Command]:
    """Return the simple commands of an invocation, and one without a program for the files that a tool accesses.

    Never raises for any text: the reason why something cannot be read is in `unresolved`.
    """
    found: list[Command] = []
    if invocation.command:
        found += parse_command(invocation.command, invocation.shell, invocation.directory)
    if invocation.reads or invocation.writes:
        scene = Scene(invocation.directory, invocation.directory)
        text = " ".join([*invocation.reads, *invocation.writes])[:MAX_WORD_CHARACTERS]
        reads, writes = scene.kinds_of(invocation.reads), scene.kinds_of(invocation.writes)
        found.append(Command("", text=text, reads=frozenset(reads), writes=frozenset(writes)))
    return found


def parse_command(text: str, shell: Shell = Shell.BASH, directory: str = "") -> list[Command]:
    """Return the simple commands of a text that runs in `directory`, which is also the root of the project."""
    reader = ShellReader(directory, directory)
    if shell is Shell.POWERSHELL:
        PowerShellReader(reader.commands).read(text)
    else:
        reader.read(text)
    return reader.commands.found


WILDCARD = re.compile(r"[*?\[]")
WordTest: TypeAlias = Callable[[str], object]
"""Returns a true value for a word that matches."""


class CommandPhrase(NamedTuple):
    """A phrase of a rule, with the test of each of its words."""

    phrase: str
    words: tuple[WordTest, ...]


def word_test(word: str) -> WordTest:
    return re.compile(translate(word)).match if WILDCARD.search(word) else word.__eq__


class CommandPhrases:
    """The phrases of a rule set, found by the program that they begin with."""

    def __init__(self, phrases: Iterable[str]) -> None:
        self._by_program: dict[str, list[CommandPhrase]] = {}
        self._by_pattern: list[tuple[WordTest, CommandPhrase]] = []
        for phrase in sorted(set(phrases)):
            first, *rest = phrase.lower().split()
            compiled = CommandPhrase(phrase, tuple(map(word_test, rest)))
            if WILDCARD.search(first):
                self._by_pattern.append((word_test(first), compiled))
            else:
                self._by_program.setdefault(first, []).append(compiled)

    def matching(self, command: Command) -> list[str]:
        """Return the phrases that a command begins with. None match one that only prints help or what it would do."""
        if command.is_dry_run or not command.program:
            return []
        program = command.program.lower()
        candidates = self._by_program.get(program, ())
        if self._by_pattern:
            candidates = [*candidates, *(each for matches, each in self._by_pattern if matches(program))]
        return [each.phrase for each in candidates if any(begins_with(names, each) for names in command.names)]


def begins_with(names: tuple[str, ...], phrase: CommandPhrase) -> bool:
    if len(names) <= len(phrase.words):
        return False
    return all(matches(word.lower()) for matches, word in zip(phrase.words, names[1:], strict=False))
