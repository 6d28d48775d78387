"""Read PowerShell text as a list of simple commands."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final

from cstp_grpc.core.commands.model import MAX_COMMAND_CHARACTERS, UNKNOWN, Command, Effects, Unresolved
from cstp_grpc.core.commands.options import program_name
from cstp_grpc.core.commands.shell_words import KNOWN_VARIABLES, Flow, parse_bounded

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

    from cstp_grpc.core.commands.command_collector import CommandCollector

MAX_TREE_DEPTH: Final = 60
CMDLETS: Final = {
    "remove-item": "del", "ri": "del", "rm": "del", "rmdir": "del", "erase": "del", "rd": "del",
    "get-content": "cat", "gc": "cat",
    "type": "cat", "copy-item": "cp", "cpi": "cp", "copy": "cp", "move-item": "mv", "mi": "mv", "move": "mv",
    "clear-content": "truncate",
    "set-content": "tee", "add-content": "tee", "out-file": "tee", "sc": "tee", "new-item": "touch",
    "set-location": "cd", "sl": "cd",
    "write-output": "echo", "write-host": "echo", "invoke-webrequest": "curl", "iwr": "curl", "irm": "curl",
    "invoke-restmethod": "curl",
    "spps": "stop-process",
    "wget": "curl", "select-string": "grep", "sls": "grep", "start-process": "start", "saps": "start",
}  # fmt: skip
"""The programs that cmdlets and their aliases correspond to."""
NESTED_BLOCKS: Final = frozenset(
    "script_block script_block_expression sub_expression parenthesized_expression statement_block".split()
)
EVALUATORS: Final = frozenset({"iex", "invoke-expression"})


@cache
def powershell_parser() -> Parser:
    import tree_sitter_powershell
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_powershell.language()))


class PowerShellReader:
    """Hands the commands of a PowerShell text to a reader."""

    def __init__(self, reader: CommandCollector) -> None:
        self._reader = reader
        self._source = b""

    def read(self, text: str) -> None:
        if len(text) > MAX_COMMAND_CHARACTERS:
            self._reader.note(Unresolved.TOO_LARGE)
            return
        self._source = text.encode(errors="replace")
        tree = parse_bounded(powershell_parser(), self._source)
        if tree is None:
            self._reader.note(Unresolved.TOO_LARGE)
            return
        self._visit(tree.root_node, 0)

    def _text(self, node: Node) -> str:
        return self._source[node.start_byte : node.end_byte].decode(errors="replace")

    def _visit(self, node: Node, depth: int) -> None:
        """Read the commands below a node, in order."""
        if depth > MAX_TREE_DEPTH:
            self._reader.note(Unresolved.TOO_DEEP)
            return
        if node.type in ("pipeline", "pipeline_chain"):
            self._run_pipeline(node, depth)
            return
        if node.type == "command":
            self._run_command(node, None, depth)
            return
        if node.type in ("invokation_expression", "invocation_expression", "member_access"):
            self._note_method(self._text(node))
        for child in node.named_children:
            self._visit(child, depth + 1)

    def _run_pipeline(self, node: Node, depth: int) -> None:
        stdin: Flow | None = None
        for child in node.named_children:
            if child.type == "command":
                stdin = self._run_command(child, stdin, depth)
            else:
                self._visit(child, depth + 1)
                stdin = Flow(source="piped") if child.type != "pipeline_chain_tail" else stdin

    def _run_command(self, node: Node, stdin: Flow | None, depth: int) -> Flow:
        words = [self._word(piece) for piece in split_words(self._text(node))]
        for child in node.named_children:
            self._visit_nested(child, depth + 1)
        if words[:1] in (["&"], ["."]):
            words = words[1:]
            if words and words[0].startswith("("):
                return self._evaluate(["", *words], stdin)
        if not words:
            return Flow()
        name = program_name(words[0]).lower()
        if name in EVALUATORS:
            return self._evaluate(words, stdin)
        if name == "start-process" and len(words) > 1:
            words = [
                word
                for word in words[1:]
                if not word.lower().startswith(("-filepath", "-argumentlist", "-verb", "-wait"))
            ]
            return self._reader.run(words, (), None, Effects())
        words = [CMDLETS.get(name, name if "-" in name else words[0]), *map(spell_parameter, words[1:])]
        if (
            stdin is not None
            and re.match(r"remove-item|ri$|rm|del|stop-process|spps$", name)
            and not re.search(r" [^-]", " ".join(words))
        ):
            words.append(UNKNOWN)
        return self._reader.run(words, (), stdin, Effects())

    def _visit_nested(self, node: Node, depth: int) -> None:
        if depth > MAX_TREE_DEPTH:
            self._reader.note(Unresolved.TOO_DEEP)
        elif node.type in NESTED_BLOCKS:
            self._visit(node, depth)
        else:
            for child in node.named_children:
                self._visit_nested(child, depth + 1)

    def _evaluate(self, words: list[str], stdin: Flow | None) -> Flow:
        text = " ".join(words[1:])
        if text and UNKNOWN not in text and not text.startswith("("):
            PowerShellReader(self._reader).read(text)
            return Flow(source="piped")
        fetched = re.search(r"(?i)\b(?:iwr|irm|curl|wget|invoke-webrequest|invoke-restmethod|downloadstring)\b", text)
        is_downloaded = bool(fetched) or (stdin is not None and stdin.source == "downloaded")
        self._reader.note(Unresolved.DOWNLOADED if is_downloaded else Unresolved.EVALUATED, " ".join(words))
        return Flow(source="piped")

    def _note_method(self, text: str) -> None:
        removed = re.search(r"(?i)\[(?:System\.)?IO\.(?:File|Directory)\]::Delete\(\s*['\"]([^'\"]+)", text)
        if removed:
            kinds = set(self._reader.scene.kinds(removed[1]))
            is_folder = "directory" in text.lower()
            self._reader.add(Command("del", text=text), Effects(deletes=kinds, is_recursive=is_folder))

    def _word(self, piece: str) -> str:
        """Return a word without its quotes; variables that are not known stay as UNKNOWN."""
        if piece[:1] == "'":
            return piece.strip("'")
        text = piece.strip('"').replace("`", "")

        def value(match: re.Match[str]) -> str:
            name = (match[1] or match[2]).upper().removeprefix("ENV:")
            return KNOWN_VARIABLES.get(name, f"{UNKNOWN}{name}")

        return re.sub(r"\$\{?(?:([A-Za-z_]\w*(?::\w+)?)\}?|(\w+))", value, text)


def split_words(text: str) -> list[str]:
    """Return the words of a command as they are written, with quotes and brackets kept together."""
    return re.findall(r"(?:\"(?:[^\"`]|`.)*\"|'[^']*'|\([^()]*\)|\{[^{}]*\}|[^\s\"'(){}]+|[(){}])+", text)


def spell_parameter(word: str) -> str:
    if re.fullmatch(r"-[A-Za-z]\w*(?::.*)?", word):
        return word.partition(":")[0].lower()
    return word
