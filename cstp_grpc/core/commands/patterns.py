"""Match commands against the phrases by which rules name them, such as `git push` and `aws * delete-*`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate
from typing import NamedTuple

from cstp_grpc.core.commands.model import Command


class CommandPhrase(NamedTuple):
    """A phrase of a rule, with the pattern of each of its words."""

    phrase: str
    words: tuple[re.Pattern[str], ...]


class CommandPhrases:
    """The phrases of a rule set, found by the program that they begin with."""

    def __init__(self, phrases: Iterable[str]) -> None:
        self._by_program: dict[str, list[CommandPhrase]] = {}
        self._by_pattern: list[tuple[re.Pattern[str], CommandPhrase]] = []
        for phrase in sorted(set(phrases)):
            first, *rest = phrase.lower().split()
            compiled = CommandPhrase(phrase, tuple(re.compile(translate(word)) for word in rest))
            if re.search(r"[*?\[]", first):
                self._by_pattern.append((re.compile(translate(first)), compiled))
            else:
                self._by_program.setdefault(first, []).append(compiled)

    def matching(self, command: Command) -> list[str]:
        """Return the phrases that a command begins with. None match one that only prints help or what it would do."""
        if command.is_dry_run or not command.program:
            return []
        program = command.program.lower()
        candidates = self._by_program.get(program, ())
        if self._by_pattern:
            candidates = [*candidates, *(each for pattern, each in self._by_pattern if pattern.match(program))]
        return [each.phrase for each in candidates if any(begins_with(names, each) for names in command.names)]


def begins_with(names: tuple[str, ...], phrase: CommandPhrase) -> bool:
    if len(names) <= len(phrase.words):
        return False
    return all(pattern.match(word.lower()) for pattern, word in zip(phrase.words, names[1:], strict=False))
