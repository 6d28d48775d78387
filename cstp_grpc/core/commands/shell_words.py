"""Parse shell text within a bound of time, and evaluate its words: quotes, variables, braces and substitutions."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Final

from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.core.commands.model import UNKNOWN

if TYPE_CHECKING:
    from tree_sitter import Node, Parser, Tree

MAX_PARSE_SECONDS: Final = 0.1
"""CPU time of one parse. Chosen: three times that of a valid text of the maximum length."""

MAX_PIPES: Final = 2_000
"""Maximum number of stages of a pipeline. Chosen: an unfinished one of that length takes 0.2 s, and four times as long
one with twice as many, in a step of the parser that cannot be stopped."""


def parse_bounded(parser: Parser, source: bytes) -> Tree | None:
    """Return the syntax tree of a text, or None if it takes too long."""
    # An upper bound of the stages of the longest pipeline, which may go on behind a line break.
    joined = re.sub(rb"\|&?\s+", b"|", source)
    if max(part.count(b"|") for part in re.split(rb"[;\n]", joined)) > MAX_PIPES:
        return None
    end = time.thread_time() + MAX_PARSE_SECONDS
    try:
        return parser.parse(
            lambda offset, _: source[offset:], progress_callback=lambda _offset, _error: time.thread_time() > end
        )
    except ValueError:
        # As the parser reports that it was stopped.
        return None
    finally:
        # One that was stopped would go on with the former text.
        parser.reset()


MAX_ALTERNATIVES: Final = 20
"""Maximum number of values of a word, which variables of loops and braces multiply."""
MAX_VALUE_CHARACTERS: Final = 8192
"""Length to which a value is cut, so that `b=$a$a` cannot double without end."""
MAX_WORD_DEPTH: Final = 20
"""Maximum nesting of quotes and substitutions within a word."""
KNOWN_VARIABLES: Final = {
    "HOME": "~", "USERPROFILE": "~", "TMPDIR": "/tmp", "TMP": "/tmp", "TEMP": "/tmp", "PWD": ".", "RUNNER_TEMP": "/tmp",
    "IFS": " ", "XDG_CACHE_HOME": "~/.cache", "CI_PROJECT_DIR": ".", "GITHUB_WORKSPACE": ".", "XDG_RUNTIME_DIR": "/tmp",
}  # fmt: skip
"""Variables that have the same meaning wherever a command runs."""
USUAL_PROGRAMS: Final = {
    "CC": "cc", "CXX": "c++", "PYTHON": "python", "PYTHON3": "python", "PIP": "pip", "NODE": "node", "NPM": "npm",
    "MAKE": "make", "GO": "go", "CARGO": "cargo", "EDITOR": "editor", "VISUAL": "editor", "PAGER": "less",
    "BROWSER": "browser", "JAVA": "java", "RUBY": "ruby", "KUBECTL": "kubectl", "DOCKER": "docker", "GIT": "git",
    "CMAKE": "cmake", "LD": "ld", "AR": "ar", "SED": "sed", "GREP": "grep", "AWK": "awk",
}  # fmt: skip
"""Variables that name a program by custom."""


@dataclass(slots=True)
class Flow:
    """The input that one command passes to another: its text, if known, or its origin."""

    literal: str | None = None
    source: str = ""
    """`downloaded`, `decoded` or `piped`; empty if nothing comes."""
    is_secret: bool = False
    paths: list[str] = field(default_factory=list)
    """The paths that it lists, as `find` does."""


RunNode = Callable[["Node", int], Flow]


class WordReader:
    """Evaluates words; `variables` holds the values that the text itself assigns, `source` the text."""

    def __init__(self, run_substitution: RunNode) -> None:
        self.variables: dict[str, list[str]] = {}
        self.flows: list[Flow] = []
        """The input that the substitutions of the current command pass to it."""
        self._run_substitution = run_substitution
        self.source = b""

    def text_of(self, node: Node) -> str:
        return self.source[node.start_byte : node.end_byte].decode(errors="replace")

    def read(self, node: Node, depth: int = 0) -> list[str]:
        """Return the values that a word can have; usually one."""
        if depth > MAX_WORD_DEPTH:
            return [UNKNOWN]
        kind = node.type
        if kind == "word" or kind == "number":
            return expand_braces(unescape_word(self.text_of(node)))
        if kind == "raw_string":
            return [self.text_of(node)[1:-1]]
        if kind == "ansi_c_string":
            return [decode_ansi(self.text_of(node)[2:-1])]
        if kind == "string":
            return self._interpolate(node, node.start_byte + 1, node.end_byte - 1, depth)
        if kind in ("concatenation", "translated_string"):
            return self._concatenate(node, depth)
        if kind in ("simple_expansion", "expansion"):
            return self._expand(node, depth)
        if kind in ("command_substitution", "process_substitution"):
            return self._substitute(node, depth)
        if kind == "arithmetic_expansion":
            return ["0"]
        if kind in ("command_name", "array"):
            return [value for child in node.named_children for value in self.read(child, depth + 1)] or [
                self.text_of(node)
            ]
        return [self.text_of(node)]

    def read_heredoc(self, body: Node, is_quoted: bool, depth: int = 0) -> str:
        """Return the text of a here-document; unresolved expansions stay as UNKNOWN."""
        if is_quoted:
            return self.text_of(body)
        return self._interpolate(body, body.start_byte, body.end_byte, depth)[0]

    def _interpolate(self, node: Node, start: int, end: int, depth: int) -> list[str]:
        pieces: list[list[str]] = []
        position = start
        for child in node.named_children:
            if child.type in ("string_content", "heredoc_content"):
                continue
            pieces.append([self._quoted(position, child.start_byte)])
            pieces.append(self.read(child, depth + 1))
            position = child.end_byte
        pieces.append([self._quoted(position, max(position, end))])
        return join_pieces(pieces)

    def _quoted(self, start: int, end: int) -> str:
        return re.sub(r"\\([\"\\$`\n])", r"\1", self.source[start:end].decode(errors="replace"))

    def _concatenate(self, node: Node, depth: int) -> list[str]:
        children = node.children
        if any(child.type == "word" and self.text_of(child) in ("{", "}") for child in children):
            parts = [
                self.text_of(child) if child.type == "word" else self.read(child, depth + 1)[0] for child in children
            ]
            return expand_braces("".join(parts))
        return join_pieces([self.read(child, depth + 1) for child in children if child.is_named])

    def _expand(self, node: Node, depth: int) -> list[str]:
        """Return the values of a variable, or UNKNOWN with its name."""
        named = [
            child
            for child in node.named_children
            if child.type in ("variable_name", "special_variable_name", "subscript")
        ]
        name = self.text_of(named[0]).partition("[")[0] if named else self.text_of(node).strip("${}")
        if values := self.variables.get(name):
            return values
        operator = next(
            (self.text_of(child) for child in node.children if child.type in (":-", "-", ":=", "=", ":+", ":?")), ""
        )
        if operator in (":-", "-", ":=", "="):
            default = [child for child in node.named_children if child not in named]
            if default:
                return join_pieces([self.read(child, depth + 1) for child in default])
        return [KNOWN_VARIABLES.get(name, f"{UNKNOWN}{name}")]

    def _substitute(self, node: Node, depth: int) -> list[str]:
        """Run a substitution, and return its output if that is known."""
        flow = self._run_substitution(node, depth)
        self.flows.append(flow)
        if flow.literal is not None:
            return [flow.literal.rstrip("\n")[:MAX_VALUE_CHARACTERS]]
        if flow.paths:
            return flow.paths[:MAX_ALTERNATIVES]
        return [UNKNOWN]


def join_pieces(pieces: Sequence[list[str]]) -> list[str]:
    found: list[str] = []
    for parts in product(*pieces):
        found.append("".join(parts)[:MAX_VALUE_CHARACTERS])
        if len(found) == MAX_ALTERNATIVES:
            break
    return found or [""]


def unescape_word(text: str) -> str:
    """Return an unquoted word without its backslashes."""
    if "\\" not in text:
        return text
    # A path of Windows, which a shell of Windows would keep.
    if re.match(r"[A-Za-z]:\\\w", text):
        return text
    return re.sub(r"\\(\n|.)", lambda match: "" if match[1] == "\n" else match[1], text, flags=re.DOTALL)


ANSI_ESCAPES: Final = dict(zip("ntrabfveE", "\n\t\r\a\b\f\v\x1b\x1b", strict=True))


def decode_ansi(text: str) -> str:
    """Return the text of `$'…'`."""

    def decode(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] == "x":
            return chr(int(code[1:], 16))
        if code[0] in "uU":
            number = int(code[1:], 16)
            return chr(number) if number < 0x110000 else UNKNOWN
        if code[0].isdigit():
            return chr(int(code, 8) & 0xFF)
        return ANSI_ESCAPES.get(code, code)

    return re.sub(
        r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|[0-7]{1,3}|.)", decode, text, flags=re.DOTALL
    )


def expand_braces(text: str) -> list[str]:
    """Return the words of a brace expansion such as `{a,b}/c`; one level deep, without sequences."""
    match = re.search(r"(?<!\$)\{([^{}]*,[^{}]*)\}", text)
    if match is None:
        return [text]
    before, after = text[: match.start()], text[match.end() :]
    return [before + part + after for part in match[1].split(",")][:MAX_ALTERNATIVES]


def split_loosely(text: str) -> Iterator[list[str]]:
    """Yield the words of each command in a text that has no valid syntax, at separators outside of quotes."""
    # `{rm,-rf,src}` is a command in braces.
    text = re.sub(r"(?<![^\s;&|(])\{([^\s{};]+,[^\s{};]*)\}", lambda match: match[1].replace(",", " "), text)
    for piece in re.split(r"[;&|\n(){}`]+", text)[:200]:
        words = [re.sub(r"['\"]", "", word) for word in re.findall(r"(?:'[^']*'?|\"[^\"]*\"?|[^\s'\"])+", piece)]
        if words:
            yield words
