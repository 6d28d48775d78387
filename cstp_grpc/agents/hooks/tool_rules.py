"""The table that maps tool calls to questions for the server: the kind, the description, the paths and the inputs.

The first rule whose pattern matches the name of a tool applies; a tool without a rule is checked by its name and
arguments. Patterns of names are shell patterns.
"""

from __future__ import annotations

import json
import os.path
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NamedTuple

from cstp_grpc.contract.errors import ConfigError

CHECK: Final = "check"
"""Ask only for the verdict."""
ANNOUNCE: Final = "announce"
"""Announce the call as an intent: the answer also has the contracts of the paths and similar decisions."""
NOTHING: Final = "nothing"
"""Ask nothing, and let the agent go on."""

MAX_NAMED_PATHS: Final = 100
"""Maximum number of files in a request, by the contract."""
PLACEHOLDER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""A name in braces in a description: an argument of the tool, or one of the two names below."""
TOOL_NAME: Final = "tool"
ALL_ARGUMENTS: Final = "arguments"
FULL_DESCRIPTION: Final = "Call {tool} with {arguments}"
"""The default description of calls."""

OWN_MCP_TOOLS: Final = (
    "look_before_acting",
    "check_action",
    "find_decisions",
    "record_decision",
    "review_decision",
    "record_thought",
    "session_context",
    "code_context",
    "report_learning",
)
"""The tools of `cstp mcp`, which ask the server themselves."""


def own_mcp_rules(name_format: str) -> list[dict[str, Any]]:
    """Return the rules that skip the tools of `cstp mcp`, in the format of a file; `{}` stands for a tool's name.

    Each tool is named: another server may have the same name, and its tools are checked.
    """
    return unasked_rules(*map(name_format.format, OWN_MCP_TOOLS))


POWERSHELL: Final = {"shell": "powershell"}
"""The member of rules for tools whose commands are PowerShell."""


def command_rules(*tools: str, **extra: str) -> list[dict[str, Any]]:
    """Return the rules of tools that run the shell command in their argument `command`, in the format of a file."""
    stated = {"ask": CHECK, "description": "{command}", "command": "command", **extra}
    return [{"tool": tool, **stated} for tool in tools]


def reading_rules(description: str, reads: Sequence[str], *tools: str) -> list[dict[str, Any]]:
    return [{"tool": tool, "ask": CHECK, "description": description, "reads": list(reads)} for tool in tools]


def editing_rules(description: str, path: str, *tools: str) -> list[dict[str, Any]]:
    """Return the rules of tools that change the file or files in one of their arguments."""
    return [{"tool": tool, "ask": ANNOUNCE, "description": description, "paths": [path]} for tool in tools]


def unasked_rules(*tools: str) -> list[dict[str, Any]]:
    return [{"tool": tool, "ask": NOTHING} for tool in tools]


def other_rules(pattern: str) -> list[dict[str, Any]]:
    """Return the rule of tools that are checked by their names and arguments, such as those of MCP servers."""
    return [{"tool": pattern, "ask": CHECK, "description": FULL_DESCRIPTION}]


class InputRule(NamedTuple):
    """Inputs of the guardrails that a tool call sets if an argument matches a regular expression."""

    argument: str
    pattern: re.Pattern[str]
    values: Mapping[str, Any]


class ToolRule(NamedTuple):
    """The question to ask about the calls of some tools."""

    tool: str
    """A pattern of names, in which `*` stands for any characters."""
    ask: str = CHECK
    description: str = FULL_DESCRIPTION
    paths: Sequence[str] = ()
    """The arguments with files or folders, or lists of them."""
    category: str | None = None
    stakes: str | None = None
    inputs: Sequence[InputRule] = ()
    command: str | None = None
    """The argument with a command for a shell."""
    shell: str | None = None
    """The language of the command: bash or powershell."""
    reads: Sequence[str] = ()
    """The arguments with files that the tool reads, or lists of them; `paths` are the files that it writes."""
    directory: str | None = None
    """The argument with the folder in which the command runs: absolute, or relative to that of the event."""


class ToolQuestion(NamedTuple):
    """The question to ask about one tool call."""

    ask: str
    description: str
    paths: Sequence[str] = ()
    category: str | None = None
    stakes: str | None = None
    inputs: Mapping[str, Any] = {}
    invocation: Mapping[str, Any] = {}
    """The command, its shell and folder, and the files that the tool reads and writes, by their field names."""


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
        """Return the question about a call; paths in the project's folder become relative, others are left out."""
        rule = next((each for each in self._rules if fnmatchcase(tool, each.tool)), ToolRule(tool))
        inputs: dict[str, Any] = {}
        for each in rule.inputs:
            if each.pattern.search(argument_text(arguments.get(each.argument, ""))):
                inputs |= each.values
        inside = {name: paths for name in rule.paths if (paths := paths_in_project(arguments.get(name), folder))}
        words = fill_description(rule.description, tool, {**arguments, **spell_paths(inside, arguments)})
        announced = tuple(path for found in inside.values() for path in found)
        invocation = describe_invocation(rule, arguments, folder)
        return ToolQuestion(rule.ask, words, announced, rule.category, rule.stakes, inputs, invocation)


def describe_invocation(rule: ToolRule, arguments: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Return the fields of an action for the command and files of a call; may be empty."""
    stated: dict[str, Any] = {}
    if rule.command is not None and (command := argument_text(arguments.get(rule.command, ""))):
        stated["command"] = command
        if rule.shell is not None:
            stated["shell"] = rule.shell
    for field_name, names in (("reads", rule.reads), ("writes", rule.paths)):
        if paths := [path for name in names for path in list_paths(arguments.get(name))]:
            stated[field_name] = paths[:MAX_NAMED_PATHS]
    named = [] if rule.directory is None else list_paths(arguments.get(rule.directory))
    directory = os.path.normpath(Path(folder, *named)) if named else folder
    return {**stated, "directory": directory} if stated and directory else stated


def list_paths(value: Any) -> list[str]:
    return [path for path in (value if isinstance(value, list) else [value]) if isinstance(path, str) and path]


def fill_description(template: str, tool: str, arguments: Mapping[str, Any]) -> str:
    """Return a description with each name in braces replaced; missing arguments are left out.

    If all are missing, the template does not fit the call, and the call is described in full.
    """
    known = {**arguments, TOOL_NAME: tool, ALL_ARGUMENTS: dict(arguments)}
    names = PLACEHOLDER.findall(template)
    if names and not any(known.get(name) for name in names):
        template = FULL_DESCRIPTION
    return PLACEHOLDER.sub(lambda match: argument_text(known.get(match[1], "")), template).strip()


def paths_in_project(value: Any, folder: str) -> list[str]:
    """Return the paths, of a path or a list of paths, that are in a project's folder, relative to it."""
    return [found for path in list_paths(value) if (found := path_in_project(path, folder))]


def spell_paths(inside: Mapping[str, Sequence[str]], arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the path arguments as texts: relative to the project, unless some of them are elsewhere."""
    spelled: dict[str, str] = {}
    for name, paths in inside.items():
        listed = arguments[name] if isinstance(arguments[name], list) else [arguments[name]]
        spelled[name] = ", ".join(paths if len(paths) == len(listed) else map(argument_text, listed))
    return spelled


def path_in_project(path: str, folder: str) -> str | None:
    """Return a path relative to a project's folder, or None if it is elsewhere."""
    place = Path(folder) / path
    # First by the names alone, then with links resolved: the agent may spell one of the two differently.
    for root, inner in ((folder, str(place)), (os.path.realpath(folder), os.path.realpath(place))):
        relative = os.path.relpath(inner, root)
        if relative != os.pardir and not relative.startswith(os.pardir + os.sep):
            return relative
    return None


def argument_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


RULE_KEYS: Final[Mapping[str, type]] = {
    "tool": str,
    "ask": str,
    "description": str,
    "paths": list,
    "category": str,
    "stakes": str,
    "inputs": list,
    "command": str,
    "shell": str,
    "reads": list,
    "directory": str,
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
    if rule.get("shell", "bash") not in ("bash", "powershell"):
        yield f"{where}.shell: must be bash or powershell"
    for key in ("paths", "reads"):
        if not all(isinstance(name, str) for name in rule.get(key, ())):
            yield f"{where}.{key}: must be names of arguments"
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
    inputs = [InputRule(each["argument"], re.compile(each["matches"]), each["set"]) for each in entry.get("inputs", ())]
    return ToolRule(**{**entry, "inputs": inputs})
