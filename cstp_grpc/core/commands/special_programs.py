"""Programs that are read in a way of their own, such as `cd`, `eval` and `ssh`, and the output of all programs."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from cstp_grpc.core.commands.command_collector import SOURCE_REASONS, CommandCollector
from cstp_grpc.core.commands.effects import find_patterns, find_roots
from cstp_grpc.core.commands.model import UNKNOWN, Command, Effects, Place, Unresolved
from cstp_grpc.core.commands.options import program_name
from cstp_grpc.core.commands.places import resolve_path
from cstp_grpc.core.commands.shell_words import Flow, decode_ansi
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
    if UNKNOWN in text.lstrip()[:1]:
        if loads_settings(reader):
            return Flow()
        effects.unresolved.add(reader.substituted_reason() or Unresolved.EVALUATED)
        reader.add(Command("eval", text=" ".join(words)), effects)
        return Flow(source="piped")
    return reader.shell.read(text, stdin)


def loads_settings(reader: CommandCollector) -> bool:
    """Return whether the substitutions of a command print settings for a shell."""
    unknown = [flow.source for flow in reader.shell.words.flows if flow.literal is None]
    return set(unknown) == {"settings"}


def run_source(reader: CommandCollector, words: Sequence[str], _: Flow | None, effects: Effects) -> Flow | None:
    """Read a sourced text if it is known, or note where it comes from, unless it is a file."""
    if words[1:] and (text := reader.read_written(words[1])) is not None:
        return reader.shell.read(text)
    if words[1:2] == [UNKNOWN]:
        if loads_settings(reader):
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

DOWNLOADERS: Final = frozenset(
    "curl wget fetch aria2c http https lynx w3m iwr invoke-webrequest irm invoke-restmethod".split()
)
SHELL_HOOKS: Final = re.compile(
    r"(?:^|\s)(?:init|completions?|shellenv|hook|env|activate|shell\.\w+|path|-s|docker-env|agent|prompt)(?:\s|$)"
)
"""Sub-commands that print settings for a shell, which are evaluated by custom."""
SETTING_PROGRAMS: Final = frozenset(
    "ssh-agent dircolors register-python-argcomplete lesspipe keychain thefuck resize".split()
)
PASSING: Final = frozenset(
    "cat tee head tail grep sed awk sort uniq cut tr jq base64 xxd gzip zip tar openssl gpg od hexdump rev nl"
    " fold".split()
)
"""Filters: their output comes from their input."""


def find_output(
    reader: CommandCollector,
    program: str,
    words: Sequence[str],
    operands: Sequence[str],
    stdin: Flow | None,
    effects: Effects,
) -> Flow:
    """Return the output of a program, or its source."""
    is_secret = Place.SECRET in effects.reads or (program in PASSING and stdin is not None and stdin.is_secret)
    if program in ("echo", "printf"):
        text = " ".join(word for word in words[1:] if not re.fullmatch(r"-[neE]+", word))
        is_known = UNKNOWN not in text
        text = decode_ansi(text) if program == "printf" or "-e" in words else text
        return Flow(text if is_known else None, "" if is_known else "piped", is_secret)
    if program == "cat" and len(operands) == 1 and (written := reader.read_written(operands[0])) is not None:
        return Flow(written, "file", is_secret)
    if program == "cat" and not operands and stdin is not None:
        return replace(stdin, is_secret=is_secret)
    if program == "yes":
        return Flow(" ".join(words[1:]) or "y")
    if program == "mktemp":
        return Flow("/tmp/x")
    if program == "pwd":
        return Flow(reader.directory or ".")
    if program in ("which", "command", "type", "whereis") and operands:
        return Flow(f"/usr/bin/{operands[-1]}")
    if program in ("pgrep", "pidof"):
        return Flow(None, "piped", is_secret, list(operands))
    if program in ("env", "printenv") and not operands:
        return Flow(None, "piped", is_secret=True)
    if program in ("find", "gfind"):
        return Flow(None, "piped", is_secret, list_found(words))
    if program == "git" and operands[:1] in (("ls-files",), ("rev-parse",)):
        return Flow(
            "." if "rev-parse" in operands and "--show-toplevel" in words else None, "piped", paths=[f"./{UNKNOWN}"]
        )
    if program in DOWNLOADERS:
        to_file = (
            any(re.match(r"-[a-zA-Z]*[oO]$|--output$|--output-document", word) for word in words) and "-" not in words
        )
        return Flow(None, "" if to_file and "wget" not in program else "downloaded", is_secret)
    if is_decoder(program, words):
        return Flow(None, "decoded", is_secret)
    if program in SETTING_PROGRAMS or SHELL_HOOKS.search(" ".join(words[1:4])):
        return Flow(None, "settings", is_secret)
    if stdin is not None and program in PASSING and stdin.source in ("downloaded", "decoded"):
        return Flow(None, stdin.source, is_secret)
    return Flow(None, "piped", is_secret)


def list_found(words: Sequence[str]) -> list[str]:
    """Return the paths that `find` finds: where it starts, with its name patterns."""
    roots, patterns = find_roots(words[1:]), find_patterns(words[1:])
    if "-empty" in words:
        return ["./empty/build"]
    if not patterns:
        return roots
    return [posixpath.join(root, pattern) for root in roots for pattern in patterns]


def list_downloads(words: Sequence[str]) -> list[str]:
    """Return the files that `curl` or `wget` writes; wget names them after the address without being asked."""
    if named := value_of(words, "-o", "--output", "-O", "--output-document", "-outfile"):
        return [named if "://" not in named else posixpath.basename(named)]
    if program_name(words[0]) == "wget" or "--remote-name" in words:
        return [posixpath.basename(word) for word in words[1:] if "://" in word]
    return []


def is_decoder(program: str, words: Sequence[str]) -> bool:
    if program in ("base64", "base32", "gbase64"):
        return any(word in ("-d", "-D", "--decode", "-di") for word in words)
    if program in ("openssl", "gpg", "age"):
        return any(word in ("-d", "--decrypt", "-decrypt") for word in words)
    if program == "xxd":
        return any(re.match(r"-\w*r", word) for word in words)
    return program in ("uudecode", "zcat", "gunzip", "bzcat", "xzcat", "uncompress", "rev", "tr", "rot13")
