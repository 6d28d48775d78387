"""Parse the command of a tool call, and the files that a tool reads and writes."""

from __future__ import annotations

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
