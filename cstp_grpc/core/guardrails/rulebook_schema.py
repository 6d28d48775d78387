"""The keys of rulebooks that the parser accepts, and their JSON Schema for editors.

The parser takes the keys of each map from here, and the schema is made of the same declarations. Only the parser checks
rules that depend on more than one place, such as expressions and references by id.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeAlias

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
PARAMETER_TYPES: Final = (
    InputType.BOOL,
    InputType.NUMBER,
    InputType.STRING,
    InputType.LIST,
    InputType.TIMESTAMP,
    InputType.DURATION,
)
MAX_CATEGORY_CHARACTERS: Final = 100
"""As long as the category of an action may be."""
MAX_ANNOUNCED_CONTEXT: Final = 20_000
"""As long as the context of an announcement may be."""


@dataclass(frozen=True, slots=True)
class KeyFormat:
    """The format of the value of a key: a description and a JSON Schema."""

    description: str
    value: JsonSchema


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
        keys = {key: describe_schema(each.value, each.description) for key, each in self.required.items()}
        # Null counts as absent.
        keys |= {key: describe_schema(accept_null(each.value), each.description) for key, each in self.optional.items()}
        required = {"required": list(self.required)} if self.required else {}
        return {"type": "object", "properties": keys, **required, "additionalProperties": False, **self.conditions}


def describe_schema(schema: JsonSchema, description: str) -> JsonSchema:
    """Return a schema with the description that editors show."""
    return {"description": description, **schema}


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
        "name": KeyFormat("The name of the rulebook, part of the version that verdicts name.", IDENTIFIER),
        "version": KeyFormat("Its version, in quotes if it looks like a number.", IDENTIFIER),
    },
    {"owner": KeyFormat("The owner of its guardrails.", TEXT)},
)
INPUT: Final = MapFormat(
    {"type": KeyFormat("The type of the value.", word_of(InputType))},
    {
        "default": KeyFormat("The value if the action does not state the input.", ANYTHING),
        "description": KeyFormat("The meaning of the input, for agents that state it.", TEXT),
        "required": KeyFormat("Whether guardrails that read it cannot be evaluated without it.", FLAG),
        "values": KeyFormat(
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
    {"type": KeyFormat("The type of the value.", word_of(PARAMETER_TYPES))},
    {
        "default": KeyFormat("The value if no rulebook that extends this one gives another.", ANYTHING),
        "description": KeyFormat("The effect of the parameter.", TEXT),
    },
)
EXTENSION: Final = MapFormat(
    {"rulebook": KeyFormat("A file of the folder, or the name of a packaged rulebook.", TEXT)},
    {"with": KeyFormat("The values of its parameters.", {"type": "object"})},
)
MATCH: Final = MapFormat(
    {},
    {
        "stakes": KeyFormat("Any of these stakes.", one_or_more(word_of(Stakes))),
        "category": KeyFormat("Any of these categories.", one_or_more(NAME)),
        "agent": KeyFormat("Any of these agents, as named by their tokens.", one_or_more(NAME)),
        "project": KeyFormat("Any of these projects.", one_or_more(NAME)),
    },
    {"minProperties": 1},
)
SCOPE: Final = MapFormat(
    {},
    {
        "agents": KeyFormat("The agents that it applies to, as named by their tokens.", one_or_more(NAME)),
        "projects": KeyFormat("The projects that it applies to; actions without a project match.", one_or_more(NAME)),
    },
    {"minProperties": 1},
)
GUARDRAIL: Final = MapFormat(
    {
        "id": KeyFormat("Its identifier, unique in all rulebooks.", IDENTIFIER),
        "name": KeyFormat("Its name for people.", TEXT),
        "severity": KeyFormat("Whether it blocks, needs approval or warns.", word_of(Severity)),
        "message": KeyFormat("The problem, for the agent; may contain ${expressions}.", TEXT),
    },
    {
        "when": KeyFormat("A CEL expression; the guardrail fires if it is true.", text_of(MAX_EXPRESSION_CHARACTERS)),
        "match": KeyFormat("Values that the action must have.", MATCH.schema),
        "scope": KeyFormat("The agents and projects that it applies to.", SCOPE.schema),
        "enforcement": KeyFormat("Whether it is enforced, a dry run, or disabled.", word_of(Enforcement)),
        "expires": KeyFormat("When it ends: a date, or an instant such as 2026-03-01T12:00:00Z.", TEXT),
        "owner": KeyFormat("Its owner. [default: the owner of the rulebook]", TEXT),
        "tags": KeyFormat("Labels for managing guardrails.", list_of(IDENTIFIER)),
        "approvers": KeyFormat("The agents that may approve. [default: all with the permission]", one_or_more(NAME)),
        "suggestion": KeyFormat("How to satisfy it; may contain ${expressions}.", TEXT),
        "description": KeyFormat("Its purpose, for people.", TEXT),
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
        "never": KeyFormat("Forbidden actions.", TEXTS),
        "ask_first": KeyFormat("Actions to ask a person about first.", TEXTS),
        "always": KeyFormat("Actions to do always.", TEXTS),
    },
)
CODE: Final = MapFormat(
    {},
    {
        "paths": KeyFormat("The paths that the action names.", TEXTS),
        "boundaries": KeyFormat("The items of the sections called Boundaries.", CODE_BOUNDARIES.schema),
        "checks": KeyFormat("The open items of the sections called Checks.", TEXTS),
        "pitfalls": KeyFormat("The headings in the sections called Pitfalls.", TEXTS),
        "unreadable": KeyFormat("Why the nodes of the paths cannot be read.", TEXT),
    },
)
PAST_OUTCOME: Final = MapFormat(
    {
        "outcome": KeyFormat("The outcome.", word_of(Outcome)),
        "ago": KeyFormat("How long ago, such as 90m, 24h or 7d.", TEXT),
    },
    {
        "agent": KeyFormat("Its agent. [default: that of the action]", TEXT),
        "category": KeyFormat("Its category. [default: that of the action]", TEXT),
        "project": KeyFormat("Its project. [default: that of the action]", TEXT),
    },
)
TEST_ACTION: Final = MapFormat(
    {},
    {
        "description": KeyFormat("The action in words. [default: the command or the files]", TEXT),
        "command": KeyFormat("The command that is about to run.", TEXT),
        "shell": KeyFormat("The language of the command. [default: bash]", word_of(Shell)),
        "directory": KeyFormat("The absolute folder in which it runs.", TEXT),
        "reads": KeyFormat("The files that a tool reads.", TEXTS),
        "writes": KeyFormat("The files that a tool writes.", TEXTS),
        "category": KeyFormat("The kind of decision.", TEXT),
        "stakes": KeyFormat("Stakes of the action. [default: medium]", word_of(Stakes)),
        "confidence": KeyFormat("How sure the agent is.", {"type": "number", "minimum": 0, "maximum": 1}),
        "context": KeyFormat("The inputs of the guardrails.", {"type": "object"}),
        "code": KeyFormat("The rules of the project for the code.", CODE.schema),
        "related_intents": KeyFormat("Ages of related intents of other agents, such as 10m.", TEXTS),
        "project": KeyFormat("The project that it is about.", TEXT),
        "agent": KeyFormat("The agent that acts.", TEXT),
        "permissions": KeyFormat("The permissions of the agent.", list_of(word_of(Permission))),
        "now": KeyFormat("The instant of the check, such as 2026-03-01T12:00:00Z.", TEXT),
        "announced_context": KeyFormat("The context of the announcement.", text_of(MAX_ANNOUNCED_CONTEXT)),
        "history": KeyFormat("Past outcomes.", list_of(PAST_OUTCOME.schema)),
    },
    {"anyOf": [{"required": [key]} for key in ("description", "command", "reads", "writes")]},
)
TEST: Final = MapFormat(
    {
        "name": KeyFormat("The name of the test.", TEXT),
        "action": KeyFormat("The action to check.", TEST_ACTION.schema),
        "expect": KeyFormat("Exactly the guardrails that fire, by id.", TEXTS),
    },
    {
        "expect_errors": KeyFormat("Exactly the guardrails that cannot be evaluated.", TEXTS),
        "expect_allowed": KeyFormat("Whether the action is allowed.", FLAG),
        "expect_approval": KeyFormat("Whether an approval is required.", FLAG),
    },
)
RULEBOOK: Final = MapFormat(
    {
        "apiVersion": KeyFormat("The version of this format.", {"enum": [API_VERSION]}),
        "metadata": KeyFormat("Name, version and owner of the rulebook.", METADATA.schema),
        "guardrails": KeyFormat("The guardrails, in the order of answers.", list_of(GUARDRAIL.schema)),
    },
    {
        "inputs": KeyFormat(
            "Values that guardrails read from the context of actions, by name.",
            map_of(INPUT_NAME_PATTERN, INPUT.schema, RESERVED_NAMES),
        ),
        "categories": KeyFormat(
            "The categories of actions; a misspelled one is reported.", list_of(text_of(MAX_CATEGORY_CHARACTERS))
        ),
        "parameters": KeyFormat(
            "Values that rulebooks which extend this one may set, by name.",
            map_of(INPUT_NAME_PATTERN, PARAMETER.schema),
        ),
        "extends": KeyFormat(
            "Rulebooks whose guardrails come before these.", list_of({"anyOf": [TEXT, EXTENSION.schema]})
        ),
        "tests": KeyFormat("Actions with their expected results.", list_of(TEST.schema)),
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
