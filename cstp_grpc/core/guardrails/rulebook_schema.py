"""The keys of rulebooks that the parser accepts, and their JSON Schema for editors.

The parser takes the keys of each map from here, and the schema is made of the same declarations. Only the parser checks
rules that depend on more than one place, such as expressions and references by id.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, TypeAlias

from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.contract.enums import Enforcement, Outcome, Permission, Severity, Shell, Stakes
from cstp_grpc.core.guardrails.cel_engine import MAX_EXPRESSION_CHARACTERS
from cstp_grpc.core.guardrails.cel_variables import RESERVED_NAMES
from cstp_grpc.core.guardrails.inputs import InputType
from cstp_grpc.core.guardrails.yaml_document import IDENTIFIER_PATTERN, MAX_TEXT_CHARACTERS

JsonSchema: TypeAlias = Mapping[str, Any]

SCHEMA_DIALECT: Final = "http://json-schema.org/draft-07/schema#"
"""The newest dialect that both the YAML language server (its README: "7 and below") and JetBrains' editors read."""
API_VERSION: Final = "cstp.guardrails/v1"
INPUT_NAME_PATTERN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
"""An identifier of CEL (language definition, section Syntax), with a bound on its length."""
PARAMETER_TYPES: Final = tuple(kind for kind in InputType if kind is not InputType.MAP)
MAX_CATEGORY_CHARACTERS: Final = 100
"""As long as the category of an action may be."""
MAX_ANNOUNCED_CONTEXT: Final = 20_000
"""As long as the context of an announcement may be."""


KeyFormat: TypeAlias = tuple[str, JsonSchema]
"""The format of a key: the description that editors show, and the JSON Schema of its value."""


@dataclass(frozen=True, slots=True)
class MapFormat:
    """A map with known keys; `conditions` are further keywords of its JSON Schema, about keys that go together."""

    required: Mapping[str, KeyFormat]
    optional: Mapping[str, KeyFormat] = field(default_factory=dict)
    conditions: JsonSchema = field(default_factory=dict)

    @property
    def keys(self) -> tuple[Collection[str], Collection[str]]:
        """The required and the optional keys."""
        return self.required, self.optional

    @property
    def schema(self) -> JsonSchema:
        keys = {key: {"description": text, **value} for key, (text, value) in self.required.items()}
        # Null counts as absent.
        keys |= {key: {"description": text, **accept_null(value)} for key, (text, value) in self.optional.items()}
        required = {"required": list(self.required)} if self.required else {}
        return {"type": "object", "properties": keys, **required, "additionalProperties": False, **self.conditions}


def accept_null(schema: JsonSchema) -> JsonSchema:
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    return {**schema, "type": [schema["type"], "null"]} if "type" in schema else schema


def text_of(max_length: int = MAX_TEXT_CHARACTERS) -> JsonSchema:
    """Return the schema of a text that is not blank."""
    return {"type": "string", "pattern": r"\S", "maxLength": max_length}


def word_of(words: type[StrEnum] | Iterable[StrEnum]) -> JsonSchema:
    return {"enum": [word.value for word in words]}


def list_of(items: JsonSchema, **keywords: Any) -> JsonSchema:
    return {"type": "array", "items": items, **keywords}


def one_or_more(item: JsonSchema) -> JsonSchema:
    return {"anyOf": [item, list_of(item, minItems=1)]}


def map_of(names: re.Pattern[str], values: JsonSchema, reserved: Iterable[str] = ()) -> JsonSchema:
    """Return the schema of a map whose keys are chosen by its author."""
    keys: dict[str, Any] = {"pattern": f"^{names.pattern}$"}
    if words := sorted(reserved):
        keys["not"] = {"enum": words}
    return {"type": "object", "propertyNames": keys, "additionalProperties": values}


ANYTHING: Final[JsonSchema] = {}
TEXT: Final = text_of()
# Not blank, like every text that selects something.
NAME: Final[JsonSchema] = {"type": "string", "pattern": r"\S"}
IDENTIFIER: Final[JsonSchema] = {"type": "string", "pattern": f"^{IDENTIFIER_PATTERN.pattern}$"}
FLAG: Final[JsonSchema] = {"type": "boolean"}
TEXTS: Final = list_of({"type": "string"})

METADATA: Final = MapFormat(
    {
        "name": ("The name of the rulebook, part of the version that verdicts name.", IDENTIFIER),
        "version": ("Its version, in quotes if it looks like a number.", IDENTIFIER),
    },
    {"owner": ("The owner of its guardrails.", TEXT)},
)
INPUT: Final = MapFormat(
    {"type": ("The type of the value.", word_of(InputType))},
    {
        "default": ("The value if the action does not state the input.", ANYTHING),
        "description": ("The meaning of the input, for agents that state it.", TEXT),
        "required": ("Whether guardrails that read it cannot be evaluated without it.", FLAG),
        "values": (
            "The accepted texts for the value, or for each item of a list.",
            list_of({"type": "string"}, minItems=1, uniqueItems=True),
        ),
    },
    {
        "allOf": [
            {
                "if": {"required": ["required"], "properties": {"required": {"const": True}}},
                "then": {"properties": {"default": {"type": "null"}}},
            },
            {
                "if": {"properties": {"type": {"enum": [InputType.STRING.value, InputType.LIST.value]}}},
                "else": {"properties": {"values": {"type": "null"}}},
            },
        ]
    },
)
PARAMETER: Final = MapFormat(
    {"type": ("The type of the value.", word_of(PARAMETER_TYPES))},
    {
        "default": ("The value if no rulebook that extends this one gives another.", ANYTHING),
        "description": ("The effect of the parameter.", TEXT),
    },
)
EXTENSION: Final = MapFormat(
    {"rulebook": ("A file of the folder, or the name of a packaged rulebook.", TEXT)},
    {"with": ("The values of its parameters.", {"type": "object"})},
)
MATCH: Final = MapFormat(
    {},
    {
        "stakes": ("Any of these stakes.", one_or_more(word_of(Stakes))),
        "category": ("Any of these categories.", one_or_more(NAME)),
        "agent": ("Any of these agents, as named by their tokens.", one_or_more(NAME)),
        "project": ("Any of these projects.", one_or_more(NAME)),
    },
    {"minProperties": 1},
)
SCOPE: Final = MapFormat(
    {},
    {
        "agents": ("The agents that it applies to, as named by their tokens.", one_or_more(NAME)),
        "projects": ("The projects that it applies to; actions without a project match.", one_or_more(NAME)),
    },
    {"minProperties": 1},
)
GUARDRAIL: Final = MapFormat(
    {
        "id": ("Its identifier, unique in all rulebooks.", IDENTIFIER),
        "name": ("Its name for people.", TEXT),
        "severity": ("Whether it blocks, needs approval or warns.", word_of(Severity)),
        "message": ("The problem, for the agent; may contain ${expressions}.", TEXT),
    },
    {
        "when": ("A CEL expression; the guardrail fires if it is true.", text_of(MAX_EXPRESSION_CHARACTERS)),
        "match": ("Values that the action must have.", MATCH.schema),
        "scope": ("The agents and projects that it applies to.", SCOPE.schema),
        "enforcement": ("Whether it is enforced, a dry run, or disabled.", word_of(Enforcement)),
        "expires": ("When it ends: a date, or an instant such as 2026-03-01T12:00:00Z.", TEXT),
        "owner": ("Its owner. [default: the owner of the rulebook]", TEXT),
        "tags": ("Labels for managing guardrails.", list_of(IDENTIFIER)),
        "approvers": ("The agents that may approve. [default: all with the permission]", one_or_more(NAME)),
        "suggestion": ("How to satisfy it; may contain ${expressions}.", TEXT),
        "description": ("Its purpose, for people.", TEXT),
    },
    {
        "anyOf": [
            {"required": ["when"], "properties": {"when": {"type": "string"}}},
            {"required": ["match"], "properties": {"match": {"type": "object"}}},
        ],
        "if": {"required": ["severity"], "properties": {"severity": {"enum": [Severity.BLOCK, Severity.WARN]}}},
        "then": {"properties": {"approvers": {"type": "null"}}},
    },
)
CODE_BOUNDARIES: Final = MapFormat(
    {},
    {
        "never": ("Forbidden actions.", TEXTS),
        "ask_first": ("Actions to ask a person about first.", TEXTS),
        "always": ("Actions to do always.", TEXTS),
    },
)
CODE: Final = MapFormat(
    {},
    {
        "paths": ("The paths that the action names.", TEXTS),
        "boundaries": ("The items of the sections called Boundaries.", CODE_BOUNDARIES.schema),
        "checks": ("The open items of the sections called Checks.", TEXTS),
        "pitfalls": ("The headings in the sections called Pitfalls.", TEXTS),
        "unreadable": ("Why the nodes of the paths cannot be read.", TEXT),
    },
)
PAST_OUTCOME: Final = MapFormat(
    {"outcome": ("The outcome.", word_of(Outcome)), "ago": ("How long ago, such as 90m, 24h or 7d.", TEXT)},
    {
        "agent": ("Its agent. [default: that of the action]", TEXT),
        "category": ("Its category. [default: that of the action]", TEXT),
        "project": ("Its project. [default: that of the action]", TEXT),
    },
)
TEST_ACTION: Final = MapFormat(
    {},
    {
        "description": ("The action in words. [default: the command or the files]", TEXT),
        "command": ("The command that is about to run.", TEXT),
        "shell": ("The language of the command. [default: bash]", word_of(Shell)),
        "directory": ("The absolute folder in which it runs.", TEXT),
        "reads": ("The files that a tool reads.", TEXTS),
        "writes": ("The files that a tool writes.", TEXTS),
        "category": ("The kind of decision.", TEXT),
        "stakes": ("Stakes of the action. [default: medium]", word_of(Stakes)),
        "confidence": ("How sure the agent is.", {"type": "number", "minimum": 0, "maximum": 1}),
        "context": ("The inputs of the guardrails.", {"type": "object"}),
        "code": ("The rules of the project for the code.", CODE.schema),
        "related_intents": ("Ages of related intents of other agents, such as 10m.", TEXTS),
        "project": ("The project that it is about.", TEXT),
        "agent": ("The agent that acts.", TEXT),
        "permissions": ("The permissions of the agent.", list_of(word_of(Permission))),
        "now": ("The instant of the check, such as 2026-03-01T12:00:00Z.", TEXT),
        "announced_context": ("The context of the announcement.", text_of(MAX_ANNOUNCED_CONTEXT)),
        "history": ("Past outcomes.", list_of(PAST_OUTCOME.schema)),
    },
    {"anyOf": [{"required": [key]} for key in ("description", "command", "reads", "writes")]},
)
TEST: Final = MapFormat(
    {
        "name": ("The name of the test.", TEXT),
        "action": ("The action to check.", TEST_ACTION.schema),
        "expect": ("Exactly the guardrails that fire, by id.", TEXTS),
    },
    {
        "expect_errors": ("Exactly the guardrails that cannot be evaluated.", TEXTS),
        "expect_allowed": ("Whether the action is allowed.", FLAG),
        "expect_approval": ("Whether an approval is required.", FLAG),
    },
)
RULEBOOK: Final = MapFormat(
    {
        "apiVersion": ("The version of this format.", {"enum": [API_VERSION]}),
        "metadata": ("Name, version and owner of the rulebook.", METADATA.schema),
        "guardrails": ("The guardrails, in the order of answers.", list_of(GUARDRAIL.schema)),
    },
    {
        "inputs": (
            "Values that guardrails read from the context of actions, by name.",
            map_of(INPUT_NAME_PATTERN, INPUT.schema, RESERVED_NAMES),
        ),
        "categories": (
            "The categories of actions; a misspelled one is reported.",
            list_of(text_of(MAX_CATEGORY_CHARACTERS)),
        ),
        "parameters": (
            "Values that rulebooks which extend this one may set, by name.",
            map_of(INPUT_NAME_PATTERN, PARAMETER.schema),
        ),
        "extends": ("Rulebooks whose guardrails come before these.", list_of({"anyOf": [TEXT, EXTENSION.schema]})),
        "tests": ("Actions with their expected results.", list_of(TEST.schema)),
    },
    {
        "anyOf": [
            {"properties": {"guardrails": {"type": "array", "minItems": 1}}},
            {"required": ["extends"], "properties": {"extends": {"type": "array", "minItems": 1}}},
        ]
    },
)


def build_rulebook_schema() -> JsonSchema:
    return {
        "$schema": SCHEMA_DIALECT,
        "title": "CSTP rulebook",
        "description": "A rulebook of CSTP: guardrails, the inputs that they read, and their tests.",
        **RULEBOOK.schema,
    }
