"""The model of a parsed command: its program, and its effects on files, data and other machines."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from cstp_grpc.common.lazy_dataclass import asdict, dataclass, field
from cstp_grpc.contract.enums import Shell

MAX_COMMAND_CHARACTERS: Final = 64 * 1024
"""Maximum length of a shell text. Chosen: ten times the longest that coding agents write in practice."""
MAX_READ_CHARACTERS: Final = 2 * MAX_COMMAND_CHARACTERS
"""Maximum length of the shell texts, and of the written files that are read in all: functions and loops repeat them."""
MAX_COMMANDS: Final = 200
"""Maximum number of simple commands that are reported for a text; beyond it the text is `TOO_LARGE`."""
MAX_NESTING: Final = 10
"""Maximum nesting of shells, substitutions and functions that is followed."""
MAX_WORD_CHARACTERS: Final = 300
"""Length to which the words of a command are cut once its effects are known."""

UNKNOWN: Final = "\ue000"
"""Stands in words for the value of an expansion that cannot be resolved; a private-use character."""


class Place(StrEnum):
    """Kinds of paths that a command touches; a path can be of several kinds."""

    ROOT = "root"
    """The root folder or everything in it."""
    SYSTEM = "system"
    """Folders of the operating system."""
    HOME = "home"
    """A home folder itself, or everything in it."""
    DEVICE = "device"
    """A block device or kernel memory."""
    PROJECT = "project"
    """Inside the working folder."""
    PROJECT_ROOT = "project-root"
    """The working folder itself, or everything in it."""
    BUILD = "build"
    """Output that a build, test or package manager can create again."""
    TEMPORARY = "temporary"
    """A temporary folder."""
    OUTSIDE = "outside"
    """Outside of the working folder, and of no other kind."""
    UNKNOWN = "unknown"
    """A path that cannot be resolved, such as `$DIR`."""
    GIT = "git"
    """The control files of a Git repository."""
    SECRET = "secret"  # noqa: S105 - a kind of path
    """Credentials: keys, tokens, `.env` files, password stores."""
    AGENT_SETTINGS = "agent-settings"
    """Settings and hooks of coding agents."""
    CSTP = "cstp"
    """Rulebooks, tokens, journal and settings of CSTP."""
    BACKUP = "backup"
    """Backups, dumps and snapshots."""
    STARTUP = "startup"
    """Files that run at log-in or at boot, and schedules."""


class Unresolved(StrEnum):
    """Why the effects of a text cannot be determined."""

    VARIABLE_PROGRAM = "variable-program"
    """The program is the value of a variable or substitution."""
    EVALUATED = "evaluated"
    """A text that is known only at run time is evaluated."""
    DOWNLOADED = "downloaded"
    """Downloaded text is fed to an interpreter."""
    DECODED = "decoded"
    """Decoded or decrypted text is fed to an interpreter."""
    PIPED = "piped"
    """The output of another program is fed to an interpreter."""
    INTERACTIVE = "interactive"
    """An interactive shell, whose input is not seen."""
    FORK_BOMB = "fork-bomb"
    """A function that starts itself without end."""
    TOO_DEEP = "too-deep"
    """Nested deeper than is followed."""
    TOO_LARGE = "too-large"
    """Longer than is parsed, or more commands than are reported."""
    UNREADABLE = "unreadable"
    """SQL or code that the parser cannot read."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """The command or the file accesses of a tool, as the caller states them; empty for an action in words."""

    command: str = ""
    shell: Shell = Shell.BASH
    directory: str = ""
    """The absolute folder in which it runs; empty if unknown."""
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the fields that are not empty, by name."""
        return {} if self == NO_INVOCATION else {name: value for name, value in asdict(self).items() if value}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Invocation:
        if not document:
            return NO_INVOCATION
        lists = {name: tuple(document.get(name, ())) for name in ("reads", "writes")}
        shell = Shell(document.get("shell", Shell.BASH))
        return cls(document.get("command", ""), shell, document.get("directory", ""), **lists)


NO_INVOCATION: Final = Invocation()


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command: a program with its arguments, without the wrappers around it.

    `program` has no path and no `.exe`. `names` are its candidate sub-command paths, such as `git push origin main`.
    Names, operands and flags are in order; `-rf` is `-r` and `-f`, and `--flag=value` is both `--flag` and itself.
    """

    program: str
    text: str = ""
    """The command as resolved, at most MAX_WORD_CHARACTERS."""
    arguments: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    operands: tuple[str, ...] = ()
    names: tuple[tuple[str, ...], ...] = ()
    environment: tuple[str, ...] = ()
    """Assignments before the program, `NAME=value`."""
    directory: str = ""
    """The folder it runs in, as far as the text states it."""
    deletes: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    reads: frozenset[str] = frozenset()
    """The kinds of paths that it deletes, writes and reads, in the words of Place."""
    is_recursive: bool = False
    """Whether it deletes folders with their contents."""
    sql: frozenset[str] = frozenset()
    """The operations of its SQL, such as `drop table` and `delete all`."""
    unresolved: frozenset[str] = frozenset()
    """Why its effects are unknown, in the words of Unresolved."""
    is_privileged: bool = False
    is_remote: bool = False
    """Whether it runs on another machine or in a container."""
    is_dry_run: bool = False
    """Whether it only prints help or what it would do."""
    sends_out: bool = False
    """Whether it sends data to another machine."""


@dataclass(slots=True)
class Effects:
    """The effects of a command while they are collected."""

    deletes: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    reads: set[str] = field(default_factory=set)
    sql: set[str] = field(default_factory=set)
    unresolved: set[str] = field(default_factory=set)
    is_recursive: bool = False
    sends_out: bool = False
    is_code: bool = False
    """Whether they come from code, which may ignore flags such as `--help`."""

    def merge(self, more: Effects) -> None:
        self.deletes |= more.deletes
        self.writes |= more.writes
        self.reads |= more.reads
        self.sql |= more.sql
        self.unresolved |= more.unresolved
        self.is_recursive |= more.is_recursive
        self.sends_out |= more.sends_out
