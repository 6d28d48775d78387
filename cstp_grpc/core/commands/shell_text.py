"""Read shell text as a list of simple commands, through pipelines, substitutions, functions, loops and wrappers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final

from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.core.commands import model
from cstp_grpc.core.commands.command_collector import ShellTexts
from cstp_grpc.core.commands.command_reader import CommandReader
from cstp_grpc.core.commands.shell_words import Flow, WordReader, parse_bounded, split_loosely

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

MAX_TREE_DEPTH: Final = 60
"""Maximum depth of syntax nodes that is followed. Chosen: far deeper than people write, and safe for the stack."""
NO_FLOW: Final = Flow()
EMPTYING: Final = re.compile(r"(?:(?::|true|cat\s+/dev/null)\s*)?>(?!>)")
"""A redirection to a file of nothing, so that the file is emptied."""


@cache
def bash_parser() -> Parser:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


@dataclass(slots=True)
class Redirected:
    """The redirections of a statement, without its input and effects."""

    outputs: list[tuple[str, bool]] = field(default_factory=list)
    """The files to which the statement writes its output, and whether it appends."""
    arguments: list[str] = field(default_factory=list)
    """The words behind a redirection in the middle of a command, as in `rm 2>/dev/null -rf src`."""
    following: list[Node] = field(default_factory=list)
    """The rest of the line behind `<<EOF`: another command, or the next stage of the pipeline."""


class ShellReader(ShellTexts):
    """Collects the commands of shell texts; `project` and `directory` are folders, or empty."""

    def __init__(self, project: str, directory: str) -> None:
        self.words = WordReader(self._run_substitution)
        self.commands = CommandReader(self, project, directory)
        self._functions: dict[str, tuple[bytes, Node]] = {}
        self._aliases: dict[str, str] = {}
        self._calls: list[str] = []
        self._tree_depth = 0
        self._nesting = 0
        self._characters = 0

    def read(self, text: str, stdin: Flow | None = None) -> Flow:
        """Read a text and return its output. A text nested deeper than MAX_NESTING is reported as too deep."""
        self._characters += len(text)
        if len(text) > model.MAX_COMMAND_CHARACTERS or self._characters > model.MAX_READ_CHARACTERS:
            self.commands.note(model.Unresolved.TOO_LARGE)
            return NO_FLOW
        if self._nesting >= model.MAX_NESTING:
            self.commands.note(model.Unresolved.TOO_DEEP)
            return NO_FLOW
        source = text.encode(errors="replace")
        tree = parse_bounded(bash_parser(), source)
        if tree is None:
            self.commands.note(model.Unresolved.TOO_LARGE)
            return NO_FLOW
        self._nesting += 1
        before, self.words.source = self.words.source, source
        try:
            flow = self._run(tree.root_node, stdin)
            if tree.root_node.has_error:
                for words in split_loosely(text):
                    self.commands.run(words, (), None, model.Effects())
            return flow
        finally:
            self.words.source = before
            self._nesting -= 1

    def call_function(self, words: Sequence[str], stdin: Flow | None) -> Flow | None:
        name = words[0]
        if name in self._aliases and name not in self._calls:
            return self._enter(
                name, lambda: self.read(" ".join([self._aliases[name], *map(quote_word, words[1:])]), stdin)
            )
        if name not in self._functions:
            return None
        if name in self._calls:
            self.commands.note(model.Unresolved.FORK_BOMB)
            return NO_FLOW
        source, body = self._functions[name]
        outer = {key: self.words.variables.get(key) for key in ("@", "*", *map(str, range(1, 10)))}
        self.words.variables.update({str(number): [word] for number, word in enumerate(words[1:10], 1)})
        self.words.variables.update({"@": list(words[1:]), "*": list(words[1:])})
        before, self.words.source = self.words.source, source
        try:
            return self._enter(name, lambda: self._run(body, stdin))
        finally:
            self.words.source = before
            self.words.variables.update({key: value or [] for key, value in outer.items()})

    def define_alias(self, name: str, text: str) -> None:
        self._aliases[name] = text

    def _enter(self, name: str, run: Callable[[], Flow]) -> Flow:
        """Run the body of a function or alias, which may not call itself."""
        self._calls.append(name)
        try:
            return run()
        finally:
            self._calls.pop()

    def _run_substitution(self, node: Node, _: int) -> Flow:
        flows, self.words.flows = self.words.flows, []
        directory = self.commands.directory
        try:
            return self._run_children(node, None)
        finally:
            self.words.flows = flows
            self.commands.directory = directory

    def _run(self, node: Node, stdin: Flow | None) -> Flow:
        if self._tree_depth > MAX_TREE_DEPTH:
            self.commands.note(model.Unresolved.TOO_DEEP)
            return NO_FLOW
        self._tree_depth += 1
        try:
            return self._run_kind(node, stdin)
        finally:
            self._tree_depth -= 1

    def _run_kind(self, node: Node, stdin: Flow | None) -> Flow:
        kind = node.type
        if kind == "command":
            return self._run_command(node, stdin, model.Effects())
        if kind == "pipeline":
            for child in node.named_children:
                stdin = self._run(child, stdin)
            return stdin or NO_FLOW
        if kind == "redirected_statement":
            return self._run_redirected(node, stdin)
        if kind in ("variable_assignment", "variable_assignments", "declaration_command"):
            children = [node] if kind == "variable_assignment" else node.named_children
            assigned = tuple(text for child in children for text in self._assign(child))
            if kind == "declaration_command":
                self.commands.add(
                    model.Command("export", self.words.text_of(node), environment=assigned), model.Effects()
                )
            return NO_FLOW
        if kind == "function_definition":
            body = node.child_by_field_name("body")
            name = node.child_by_field_name("name")
            if body is not None and name is not None:
                self._functions[self.words.text_of(name)] = (self.words.source, body)
            return NO_FLOW
        if kind in ("for_statement", "select_statement"):
            return self._run_loop(node, stdin)
        if kind == "subshell":
            directory = self.commands.directory
            flow = self._run_children(node, stdin)
            self.commands.directory = directory
            return flow
        if kind in ("test_command", "comment", "heredoc_body", "heredoc_end", "variable_name", "unset_command"):
            return self._run_nested_substitutions(node)
        return self._run_children(node, stdin)

    def _run_children(self, node: Node, stdin: Flow | None) -> Flow:
        flow = NO_FLOW
        for child in node.named_children:
            flow = merge_flows(flow, self._run(child, stdin))
        return flow

    def _run_nested_substitutions(self, node: Node) -> Flow:
        """Run the substitutions in a node that is not a command, such as a test."""
        for child in node.named_children:
            if child.type in ("command_substitution", "process_substitution"):
                self._run_substitution(child, 0)
            elif child.child_count and node.type != "comment":
                self._run(child, None) if child.type == "command" else self._run_nested_substitutions(child)
        return NO_FLOW

    def _assign(self, node: Node) -> list[str]:
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if node.type != "variable_assignment" or name is None:
            return []
        values = self.words.read(value) if value is not None else [""]
        key = self.words.text_of(name)
        self.words.variables[key.partition("[")[0]] = values
        return [f"{key}={each}" for each in values[:1]]

    def _run_loop(self, node: Node, stdin: Flow | None) -> Flow:
        variable, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        values = [value for child in node.children_by_field_name("value") for value in self.words.read(child)]
        # The output of a substitution is split into words.
        values = [word for value in values for word in (value.split() or [value])]
        if variable is not None:
            self.words.variables[self.words.text_of(variable)] = values or [model.UNKNOWN]
        return NO_FLOW if body is None else self._run(body, stdin)

    def _run_redirected(self, node: Node, stdin: Flow | None) -> Flow:
        """Run a statement whose input or output is redirected."""
        effects = model.Effects()
        redirected = Redirected()
        for redirect in node.children_by_field_name("redirect"):
            stdin = self._redirect(redirect, effects, stdin, redirected)
        body = node.child_by_field_name("body")
        if body is None:
            self.commands.add(model.Command("", text=self.words.text_of(node)), effects)
            flow = NO_FLOW
        elif body.type == "command":
            flow = self._run_command(body, stdin, effects, redirected.arguments)
        else:
            flow = self._run(body, stdin)
            self.commands.add(model.Command("", text=self.words.text_of(node)), effects)
        for path, is_appended in redirected.outputs:
            self.commands.save_output(path, flow, is_appended)
            if EMPTYING.match(self.words.text_of(node)):
                emptied = model.Effects(deletes=set(self.commands.scene.kinds(path)))
                self.commands.add(model.Command("truncate", self.words.text_of(node), names=(("truncate",),)), emptied)
        for each in redirected.following:
            flow = self._run(each, flow)
        return flow

    def _redirect(self, node: Node, effects: model.Effects, stdin: Flow | None, redirected: Redirected) -> Flow | None:
        """Collect the effects of a redirection, and return the input that it makes."""
        if node.type == "heredoc_redirect":
            start = next((child for child in node.children if child.type == "heredoc_start"), None)
            is_quoted = start is not None and bool(re.search(r"['\"\\]", self.words.text_of(start)))
            text, arguments = "", node.children_by_field_name("argument")
            for child in node.named_children:
                if child.type == "heredoc_body":
                    text = self.words.read_heredoc(child, is_quoted)
                elif child.type == "file_redirect":
                    self._redirect(child, effects, stdin, redirected)
                elif child in arguments:
                    redirected.arguments += self._split_unquoted(child)
                elif child.type not in ("heredoc_start", "heredoc_end"):
                    redirected.following.append(child)
            return Flow(literal=text)
        if node.type == "herestring_redirect":
            return Flow(literal=" ".join(value for child in node.named_children for value in self.words.read(child)))
        operator = next((self.words.text_of(child) for child in node.children if not child.is_named), "")
        destinations = node.children_by_field_name("destination")
        for each in destinations[1:]:
            # The parser takes the number of `> file 0>&1` for a word.
            if node.next_sibling is None or node.next_sibling.start_byte != each.end_byte:
                redirected.arguments += self._split_unquoted(each)
        for destination in destinations[:1]:
            for path in self.words.read(destination):
                if operator.startswith("<") and operator != "<>":
                    effects.reads |= self.commands.scene.kinds(path)
                    is_secret = "secret" in self.commands.scene.kinds(path)
                    stdin = Flow(self.commands.read_written(path), "file", is_secret)
                elif not re.fullmatch(r"\d+|-", path) and path not in (
                    "/dev/null",
                    "/dev/stderr",
                    "/dev/stdout",
                    "/dev/tty",
                ):
                    if path.startswith(("/dev/tcp/", "/dev/udp/")):
                        effects.sends_out = True
                    else:
                        effects.writes |= self.commands.scene.kinds(path)
                        if node.child_by_field_name("descriptor") is None:
                            redirected.outputs.append((path, operator == ">>"))
        return stdin

    def _run_command(
        self, node: Node, stdin: Flow | None, effects: model.Effects, arguments: Sequence[str] = ()
    ) -> Flow:
        """Run a simple command; `arguments` stand behind its redirections."""
        words: list[str] = []
        assignments: list[str] = []
        redirected = Redirected()
        self.words.flows = []
        for child in node.children:
            if child.type == "variable_assignment":
                assignments += self._assign(child)
            elif child.type in ("file_redirect", "heredoc_redirect", "herestring_redirect"):
                stdin = self._redirect(child, effects, stdin, redirected)
            elif child.type == "subshell":
                self._run(child, stdin)
            elif child.is_named and child.type != "comment":
                words += self._split_unquoted(child)
        return self.commands.run([*words, *redirected.arguments, *arguments], assignments, stdin, effects)

    def _split_unquoted(self, node: Node) -> list[str]:
        values = self.words.read(node)
        inner = node.named_children[0] if node.type == "command_name" and node.named_children else node
        is_split = inner.type in ("simple_expansion", "expansion", "command_substitution")
        if is_split or (inner.type == "concatenation" and "IFS" in self.words.text_of(inner)):
            return [word for value in values for word in value.split()]
        return values


def quote_word(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def merge_flows(first: Flow, second: Flow) -> Flow:
    if first is NO_FLOW:
        return second
    if second is NO_FLOW:
        return first
    literal = None
    if first.literal is not None and second.literal is not None:
        literal = first.literal + second.literal
    source = max((first.source, second.source), key=FLOW_ORDER.index)
    return Flow(literal, source, first.is_secret or second.is_secret, first.paths + second.paths)


FLOW_ORDER: Final = ("", "file", "settings", "piped", "decoded", "downloaded")
"""Sources of text, the most dubious last."""
