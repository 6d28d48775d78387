"""Programs that are read in a way of their own: `cd`, `eval`, `source`, `su`, `ssh` and the shells of Windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from cstp_grpc.core.commands.command_collector import SOURCE_REASONS, CommandCollector
from cstp_grpc.core.commands.model import UNKNOWN, Command, Effects, Unresolved
from cstp_grpc.core.commands.options import program_name
from cstp_grpc.core.commands.places import resolve_path
from cstp_grpc.core.commands.shell_words import Flow
from cstp_grpc.core.commands.wrappers import unwrap_once, value_of


def run_cd(reader: CommandCollector, words: Sequence[str], _: Flow | None, __: Effects) -> Flow:
    target = next((word for word in words[1:] if word == "-" or not word.startswith("-")), "~")
    reader.directory = "" if target == "-" else resolve_path(target, reader.directory)
    return Flow(literal="")


def run_alias(reader: CommandCollector, words: Sequence[str], _: Flow | None, __: Effects) -> Flow:
    for word in words[1:]:
        name, equals, text = word.partition("=")
        if equals:
            reader.shell.define_alias(name, text)
    return Flow(literal="")


def run_eval(reader: CommandCollector, words: Sequence[str], stdin: Flow | None, effects: Effects) -> Flow:
    text = " ".join(words[1:])
    unknown = [flow for flow in reader.shell.words.flows if flow.literal is None]
    if UNKNOWN in text.lstrip()[:1]:
        if unknown and all(flow.source == "settings" for flow in unknown):
            return Flow()
        effects.unresolved.add(reader.substituted_reason() or Unresolved.EVALUATED)
        reader.add(Command("eval", text=" ".join(words)), effects)
        return Flow(source="piped")
    return reader.shell.read(text, stdin)


def run_source(reader: CommandCollector, words: Sequence[str], _: Flow | None, effects: Effects) -> Flow | None:
    """Read a sourced text if it is known, or note where it comes from, unless it is a file."""
    if words[1:] and (text := reader.read_written(words[1])) is not None:
        return reader.shell.read(text)
    if words[1:2] == [UNKNOWN]:
        unknown = [flow for flow in reader.shell.words.flows if flow.literal is None]
        if unknown and all(flow.source == "settings" for flow in unknown):
            return Flow()
        effects.unresolved.add(reader.substituted_reason() or Unresolved.EVALUATED)
    # Loading variables from a file, such as `.env`, shows them to nobody.
    reader.add(Command("source", text=" ".join(words), arguments=tuple(words[1:])), effects)
    return Flow()


def run_trap(reader: CommandCollector, words: Sequence[str], _: Flow | None, __: Effects) -> Flow:
    operands = [word for word in words[1:] if not word.startswith("-")]
    if len(operands) > 1:
        reader.shell.read(operands[0])
    return Flow(literal="")


def run_cmd(reader: CommandCollector, words: Sequence[str], stdin: Flow | None, _: Effects) -> Flow | None:
    lower = [word.lower() for word in words]
    for flag in ("/c", "/k"):
        if flag in lower:
            return reader.shell.read(" ".join(words[lower.index(flag) + 1 :]), stdin)
    return None


def run_powershell(reader: CommandCollector, words: Sequence[str], stdin: Flow | None, effects: Effects) -> Flow | None:
    from cstp_grpc.core.commands.powershell_text import PowerShellReader

    lower = [word.lower() for word in words]
    for position, word in enumerate(lower):
        if len(word) > 1 and "-encodedcommand".startswith(word) and word.startswith("-e"):
            effects.unresolved.add(Unresolved.DECODED)
            return None
        if len(word) > 1 and "-command".startswith(word):
            PowerShellReader(reader).read(" ".join(words[position + 1 :]))
            return Flow(source="piped")
    if stdin is not None and stdin.literal is not None:
        PowerShellReader(reader).read(stdin.literal)
        return Flow(source="piped")
    return None


def run_privileged_shell(
    reader: CommandCollector, words: Sequence[str], _: Flow | None, effects: Effects
) -> Flow | None:
    """Record a shell of another user, which is interactive without a command."""
    is_shell = words[0] == "su" and value_of(words, "-c", "--command") is None
    is_login = (
        program_name(words[0]) == "sudo"
        and any(word in ("-i", "-s", "--login", "--shell") for word in words[1:])
        and all(word.startswith("-") or words[place] in ("-u", "--user") for place, word in enumerate(words[1:]))
    )
    if is_shell or is_login:
        effects.unresolved.add(Unresolved.INTERACTIVE)
        reader.add(Command(program_name(words[0]), text=" ".join(words), arguments=tuple(words[1:])), effects)
        return Flow()
    return None


def run_remote_shell(
    reader: CommandCollector, words: Sequence[str], stdin: Flow | None, effects: Effects
) -> Flow | None:
    """Record `ssh HOST` without a command: an interactive shell, or text that the host runs."""
    if unwrap_once(words) is not None:
        return None
    # Hosts of repositories offer no shell to `git`.
    if any(flag in words for flag in ("-N", "-V", "-G", "-Q", "-O")) or not any(
        not word.startswith(("-", "git@")) for word in words[1:]
    ):
        return None
    if stdin is not None and stdin.literal is not None:
        remote, reader.is_remote = reader.is_remote, True
        try:
            return reader.shell.read(stdin.literal)
        finally:
            reader.is_remote = remote
    effects.unresolved.add(
        Unresolved.INTERACTIVE if stdin is None else SOURCE_REASONS.get(stdin.source, Unresolved.PIPED)
    )
    return None


RunSpecial = Callable[[CommandCollector, Sequence[str], Flow | None, Effects], Flow | None]
SPECIAL: Final[dict[str, RunSpecial]] = {
    "cd": run_cd, "pushd": run_cd, "chdir": run_cd, "alias": run_alias, "eval": run_eval, "source": run_source,
    ".": run_source,
    "trap": run_trap, "cmd": run_cmd, "powershell": run_powershell, "pwsh": run_powershell,
    "su": run_privileged_shell, "sudo": run_privileged_shell, "ssh": run_remote_shell, "mosh": run_remote_shell,
}  # fmt: skip
"""Programs that are read in a way of their own; one that returns None is read like any other."""
