"""The table by which tool calls become questions: what is asked, in which words, about which paths, with which inputs.

The first rule whose pattern matches the name of a tool counts; a tool without a rule is checked by its name and
arguments. Patterns of names are those of the shell.
"""

from __future__ import annotations

import json
import os.path
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from cstp_grpc.errors import ConfigError

CHECK: Final = "check"
"""Ask for the verdict alone."""
ANNOUNCE: Final = "announce"
"""Announce it as an intent: the answer has what governs the paths and similar decisions, too."""
NOTHING: Final = "nothing"
"""Ask nothing, and let the agent go on."""

PLACEHOLDER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""A name in braces in a description: an argument of the tool, or one of the two names below."""
TOOL_NAME: Final = "tool"
ALL_ARGUMENTS: Final = "arguments"

MAIN_BRANCHES: Final = r"(?:main|master|trunk|develop|production|release\S*)"
FORCED_PUSH: Final = (
    rf"\bgit\b[^|;&\n]*\bpush\b(?=[^|;&\n]*\s(?:--force|-f)(?![\w-]))(?=[^|;&\n]*[\s:/+]{MAIN_BRANCHES}(?![\w/.-]))"
)
"""`git push` with `--force` or `-f` and the name of a branch that others usually build on, in one command. Other names
are left to rules about the words of the command."""

DEFAULT_TOOLS: Final[Mapping[str, Any]] = {
    "tools": [
        {
            "tool": "Bash",
            "ask": CHECK,
            "description": "{command}",
            "inputs": [{"argument": "command", "matches": FORCED_PUSH, "set": {"forcePush": True}}],
        },
        {"tool": "PowerShell", "ask": CHECK, "description": "{command}"},
        {"tool": "Edit", "ask": ANNOUNCE, "description": "Edit {file_path}", "paths": ["file_path"]},
        {"tool": "MultiEdit", "ask": ANNOUNCE, "description": "Edit {file_path}", "paths": ["file_path"]},
        {"tool": "Write", "ask": ANNOUNCE, "description": "Write {file_path}", "paths": ["file_path"]},
        {"tool": "NotebookEdit", "ask": ANNOUNCE, "description": "Edit {notebook_path}", "paths": ["notebook_path"]},
        {"tool": "mcp__cstp__*", "ask": NOTHING},
        {"tool": "mcp__*", "ask": CHECK, "description": "Call {tool} with {arguments}"},
    ]
}
"""The table if none is given, in the form of a file."""


@dataclass(frozen=True, slots=True)
class InputRule:
    """Inputs of the guardrails that a tool call sets if an argument matches a regular expression."""

    argument: str
    pattern: re.Pattern[str]
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolRule:
    """What is asked about the calls of some tools."""

    tool: str
    """A pattern of names, in which `*` stands for any characters."""
    ask: str = CHECK
    description: str = "Call {tool} with {arguments}"
    paths: Sequence[str] = ()
    """The arguments that are files or folders."""
    category: str | None = None
    stakes: str | None = None
    inputs: Sequence[InputRule] = ()


@dataclass(frozen=True, slots=True)
class ToolQuestion:
    """What is to be asked about one tool call."""

    ask: str
    description: str
    paths: Sequence[str] = ()
    category: str | None = None
    stakes: str | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)


class ToolRules:
    """The table, in the order in which its rules are tried."""

    def __init__(self, rules: Sequence[ToolRule]) -> None:
        self._rules = rules

    @classmethod
    def parse(cls, content: Mapping[str, Any], where: str = "") -> ToolRules:
        """Return the table in the content of a file. Raises ConfigError with one line for each mistake."""
        if problems := list(find_table_problems(content)):
            raise ConfigError("\n".join(where + problem for problem in problems))
        return cls([parse_rule(entry) for entry in content["tools"]])

    def question_about(self, tool: str, arguments: Mapping[str, Any], folder: str) -> ToolQuestion:
        """Return what to ask about a call; paths in the project's folder are relative to it, others are left out."""
        rule = next((each for each in self._rules if fnmatchcase(tool, each.tool)), ToolRule(tool))
        inputs: dict[str, Any] = {}
        for each in rule.inputs:
            if each.pattern.search(argument_text(arguments.get(each.argument, ""))):
                inputs |= each.values
        named = {name: value for name in rule.paths if isinstance(value := arguments.get(name), str) and value}
        inside = {name: path for name, value in named.items() if (path := path_in_project(value, folder))}
        paths = tuple(inside.values())
        words = fill_description(rule.description, tool, {**arguments, **inside})
        return ToolQuestion(rule.ask, words, paths, rule.category, rule.stakes, inputs)


def fill_description(template: str, tool: str, arguments: Mapping[str, Any]) -> str:
    """Return a description with each name in braces replaced; an argument that is missing is left out."""
    known = {**arguments, TOOL_NAME: tool, ALL_ARGUMENTS: dict(arguments)}
    return PLACEHOLDER.sub(lambda match: argument_text(known.get(match[1], "")), template).strip()


def path_in_project(path: str, folder: str) -> str | None:
    """Return a path relative to a project's folder, or None if it is elsewhere."""
    place = Path(folder) / path
    # First by the names alone, then behind links: the agent may spell one of the two differently.
    for root, inner in ((folder, str(place)), (os.path.realpath(folder), os.path.realpath(place))):
        relative = os.path.relpath(inner, root)
        if relative != os.pardir and not relative.startswith(os.pardir + os.sep):
            return relative
    return None


def argument_text(value: Any) -> str:
    """Return an argument as text: a string as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


RULE_KEYS: Final[Mapping[str, type]] = {
    "tool": str,
    "ask": str,
    "description": str,
    "paths": list,
    "category": str,
    "stakes": str,
    "inputs": list,
}
INPUT_KEYS: Final[Mapping[str, type]] = {"argument": str, "matches": str, "set": dict}
KIND_NAMES: Final[Mapping[type, str]] = {str: "a text that is not empty", list: "a list", dict: "a mapping"}


def find_table_problems(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line for each mistake in the content of a file."""
    for key in content.keys() - {"tools"}:
        yield f"{key}: is not a known key; there is: tools"
    rules = content.get("tools")
    if not isinstance(rules, list):
        yield "tools: must be a list"
        return
    for number, rule in enumerate(rules):
        yield from find_rule_problems(rule, f"tools.{number}")


def find_rule_problems(rule: Any, where: str) -> Iterator[str]:
    """Yield one line for each mistake in a rule."""
    wrong = list(find_key_problems(rule, where, RULE_KEYS, ("tool",)))
    yield from wrong
    if wrong:
        return
    if rule.get("ask", CHECK) not in (CHECK, ANNOUNCE, NOTHING):
        yield f"{where}.ask: must be {CHECK}, {ANNOUNCE} or {NOTHING}"
    if rule.get("stakes", "low") not in ("low", "medium", "high", "critical"):
        yield f"{where}.stakes: must be low, medium, high or critical"
    if not all(isinstance(name, str) for name in rule.get("paths", ())):
        yield f"{where}.paths: must be names of arguments"
    for number, entry in enumerate(rule.get("inputs", ())):
        place = f"{where}.inputs.{number}"
        mistakes = list(find_key_problems(entry, place, INPUT_KEYS, tuple(INPUT_KEYS)))
        yield from mistakes
        if not mistakes:
            try:
                re.compile(entry["matches"])
            except re.error as error:
                yield f"{place}.matches: is not a regular expression: {error}"


def find_key_problems(entry: Any, where: str, kinds: Mapping[str, type], required: tuple[str, ...]) -> Iterator[str]:
    """Yield one line for each key of a mapping that is missing, unknown or of another type."""
    if not isinstance(entry, Mapping):
        yield f"{where}: must be a mapping"
        return
    yield from (f"{where}.{key}: must be given" for key in required if key not in entry)
    for key, value in entry.items():
        if key not in kinds:
            yield f"{where}.{key}: is not a known key; there are: {', '.join(kinds)}"
        elif not isinstance(value, kinds[key]) or value == "":
            yield f"{where}.{key}: must be {KIND_NAMES[kinds[key]]}"


def parse_rule(entry: Mapping[str, Any]) -> ToolRule:
    """Return the rule in a valid entry."""
    inputs = [InputRule(each["argument"], re.compile(each["matches"]), each["set"]) for each in entry.get("inputs", ())]
    return ToolRule(**{**entry, "inputs": inputs})
