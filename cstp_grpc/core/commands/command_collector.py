"""Collect the commands of a text, its downloads and the files that it writes."""

from __future__ import annotations

import posixpath
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from cstp_grpc.core.commands import model
from cstp_grpc.core.commands.effects import Scene
from cstp_grpc.core.commands.places import resolve_path
from cstp_grpc.core.commands.shell_words import Flow, WordReader
from cstp_grpc.core.commands.wrappers import value_of

SOURCE_REASONS: Final = {
    "downloaded": model.Unresolved.DOWNLOADED,
    "decoded": model.Unresolved.DECODED,
    "piped": model.Unresolved.PIPED,
}


class ShellTexts(ABC):
    """Reads shell texts, which contain commands, which may run shell texts themselves."""

    words: WordReader

    @abstractmethod
    def read(self, text: str, stdin: Flow | None = None) -> Flow:
        """Read a text and return its output."""

    @abstractmethod
    def call_function(self, words: Sequence[str], stdin: Flow | None) -> Flow | None:
        """Run a function or an alias that the text defines; None if it defines none of this name."""

    @abstractmethod
    def define_alias(self, name: str, text: str) -> None: ...


class CommandCollector(ABC):
    """Collects commands; `directory` is where the next one runs, empty if unknown."""

    def __init__(self, shell: ShellTexts, project: str, directory: str) -> None:
        self.shell = shell
        self._project = project
        self.directory = directory or project
        self.found: list[model.Command] = []
        self._runs = 0
        self._parsed_characters = 0
        self._fetched: set[str] = set()
        """Files that the text downloads."""
        self._written: dict[str, str] = {}
        """The content that the text itself writes to files, by their paths."""
        self._written_read = 0
        self.is_privileged = False
        self.is_remote = False

    @property
    def scene(self) -> Scene:
        return Scene(self.directory, "" if self.is_remote else self._project)

    def note(self, reason: model.Unresolved, text: str = "") -> None:
        self.add(model.Command("", text=text), model.Effects(unresolved={reason}))

    def save_output(self, path: str, flow: Flow, is_appended: bool) -> None:
        """Store the text that is written to a file, which may be run later."""
        place = resolve_path(path, self.directory)
        if flow.source in ("downloaded", "decoded"):
            self._fetched.add(place)
        elif flow.literal is not None and not self.is_remote:
            before = self._written.get(place, "") if is_appended else ""
            self._written[place] = f"{before}{flow.literal}\n"[: model.MAX_COMMAND_CHARACTERS + 1]

    def read_written(self, path: str) -> str | None:
        """Return the content that the text wrote to a file; None without any, or after MAX_READ_CHARACTERS."""
        text = None if self.is_remote else self._written.get(resolve_path(path, self.directory))
        self._written_read += len(text or "")
        if text and self._written_read > model.MAX_READ_CHARACTERS:
            self.note(model.Unresolved.TOO_LARGE)
            return None
        return text

    def copy_written(self, words: Sequence[str], operands: Sequence[str]) -> None:
        """Store the known contents that `cp` or `mv` copies to a file or into a folder."""
        folder = value_of(words, "-t", "--target-directory")
        *sources, target = [word for word in operands if word != folder] + ([folder] if folder else [])
        for source in sources:
            place = resolve_path(source, self.directory)
            for path in (target, posixpath.join(target, posixpath.basename(source))):
                copied = resolve_path(path, self.directory)
                if place in self._fetched:
                    self._fetched.add(copied)
                if place in self._written:
                    self._written[copied] = self._written[place]

    def add(self, command: model.Command, effects: model.Effects) -> None:
        """Add a command with its effects."""
        if len(self.found) >= model.MAX_COMMANDS:
            last = self.found[-1]
            self.found[-1] = replace(last, unresolved=last.unresolved | {model.Unresolved.TOO_LARGE})
            return
        if command.is_dry_run:
            effects = model.Effects(
                reads=effects.reads, unresolved=effects.unresolved, is_recursive=effects.is_recursive
            )
        self.found.append(
            replace(
                command,
                text=command.text[: model.MAX_WORD_CHARACTERS],
                directory=self.directory,
                deletes=frozenset(effects.deletes),
                writes=frozenset(effects.writes),
                reads=frozenset(effects.reads),
                is_recursive=effects.is_recursive,
                sql=frozenset(effects.sql),
                unresolved=frozenset(effects.unresolved),
                sends_out=effects.sends_out,
                is_privileged=self.is_privileged,
                is_remote=self.is_remote,
            )
        )

    @abstractmethod
    def run(self, words: Sequence[str], assignments: Sequence[str], stdin: Flow | None, effects: model.Effects) -> Flow:
        """Read a command in words and return its output."""

    def substituted_reason(self) -> model.Unresolved | None:
        """Return why the output of the substitutions of this command is unknown; None if it is known."""
        flows = [flow for flow in self.shell.words.flows if flow.literal is None]
        sources = [flow.source for flow in flows]
        for source in ("downloaded", "decoded"):
            if source in sources:
                return SOURCE_REASONS[source]
        return model.Unresolved.EVALUATED
