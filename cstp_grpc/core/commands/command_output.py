"""Find the output of a program, or the source of its output."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from cstp_grpc.core.commands.command_collector import CommandCollector
from cstp_grpc.core.commands.effects import find_patterns, find_roots
from cstp_grpc.core.commands.model import UNKNOWN, Effects, Place
from cstp_grpc.core.commands.options import program_name
from cstp_grpc.core.commands.shell_words import Flow, decode_ansi
from cstp_grpc.core.commands.wrappers import value_of

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
    if program in ("pwd",):
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
    return program in ("xxd", "uudecode", "zcat", "gunzip", "bzcat", "xzcat", "uncompress", "rev", "tr", "rot13") and (
        program not in ("xxd",) or "-r" in words or any(re.match(r"-\w*r", word) for word in words)
    )
