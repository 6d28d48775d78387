"""The settings described as a Markdown document, made from their models."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from cstp_grpc.config import ENV_PREFIX, Settings

INTRODUCTION = """\
# Configuration

Made from the models in `cstp_grpc/config/` by `cstp config docs > docs/configuration.md`.

`cstp serve --config FILE` reads one YAML file, or the one that `CSTP_CONFIG` names; without either the defaults below
hold. Keys are nested as the headings say: `grpc.port` is the key `port` of the mapping `grpc`. An unknown key is an
error, and `cstp config check` names everything that is wrong. `${NAME}` in a value is replaced by the environment
variable `NAME`; a missing one stops the start. Each setting can also be given in the environment, under the name in the
last column, which wins over the file; lists and mappings are written there as JSON.

A relative path in the file is relative to the folder of the file, that of a SQLite database too. One in the environment
or on the command line is relative to the working directory, as is the default of `data_dir`.

```yaml
auth:
  tokens:
    - {name: emerson, token: "${CSTP_TOKEN_EMERSON}", permissions: [query, check, announce, record, review]}
cstp:
  guardrails: {config_path: guardrails/production.yaml}
```

The commands that call a server read four more variables: `CSTP_CONFIG` (the configuration file), `CSTP_AGENTS_FILE`
(where agents are named: [the agents file](clients.md#the-agents-file)) and, for a server that no agents file describes,
`CSTP_TOKEN` (the bearer token) and `CSTP_CA_FILE` (a PEM file of the authorities that certify it).
"""
HEADINGS = ("key", "type", "default", "meaning", "environment")

Schema = Mapping[str, Any]


def document() -> str:
    """Return the whole document."""
    schema = Settings.model_json_schema()
    sections = "\n".join(section("", schema, schema["$defs"]))
    return f"{INTRODUCTION}\n{sections}"


def section(path: str, schema: Schema, definitions: Schema) -> Iterator[str]:
    """Yield the lines of a section and of those within it."""
    inner: list[tuple[str, Schema]] = []
    rows = []
    for name, described in schema["properties"].items():
        key = f"{path}.{name}" if path else name
        target = referenced(described, definitions) or optional(described, definitions)
        if target is None:
            rows.append(row(key, described))
        else:
            inner.append((key, target))
        items = referenced(described.get("items", {}), definitions)
        if items is not None and "properties" in items:
            inner.append((f"{key}[]", items))
        named = [referenced(values, definitions) for values in described.get("patternProperties", {}).values()]
        inner += [(f"{key}.NAME", values) for values in named if values is not None]
    yield f"## {path or 'The top'}\n"
    yield f"{one_line(schema['description'])}\n"
    if rows:
        yield f"| {' | '.join(HEADINGS)} |"
        yield f"|{'---|' * len(HEADINGS)}"
        yield from rows
        yield ""
    for key, nested in inner:
        yield from section(key, nested, definitions)


def referenced(described: Schema, definitions: Schema) -> Schema | None:
    """Return the group of settings that a schema refers to; None for a plain value."""
    target = definitions.get(described.get("$ref", "").removeprefix("#/$defs/"))
    return target if target and "properties" in target else None


def optional(described: Schema, definitions: Schema) -> Schema | None:
    """Return the group of settings that may be absent as a whole, with its meaning; None for anything else."""
    groups = [referenced(option, definitions) for option in described.get("anyOf", ())]
    group = next((found for found in groups if found is not None), None)
    return None if group is None else {**group, "description": described["description"]}


def row(key: str, described: Schema) -> str:
    """Return the line of one setting."""
    cells = (
        f"`{key}`",
        kind(described),
        default(described),
        one_line(described.get("description", "")),
        "" if "[]" in key or ".NAME." in key else f"`{ENV_PREFIX}{key.replace('.', '__').upper()}`",
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def kind(described: Schema) -> str:
    """Return in words what a setting takes."""
    if "anyOf" in described:
        return " or ".join(kind(option) for option in described["anyOf"] if option.get("type") != "null")
    if "const" in described:
        return f"`{described['const']}`"
    if "enum" in described:
        return ", ".join(f"`{value}`" for value in described["enum"])
    match described.get("type"):
        case "integer":
            return f"whole number{bounds(described)}"
        case "number":
            return f"number{bounds(described)}"
        case "boolean":
            return "true or false"
        case "array":
            return "list"
        case "object":
            return "mapping"
    return {"path": "path", "password": "secret"}.get(described.get("format", ""), "text")


def bounds(described: Schema) -> str:
    """Return the range of a number in words."""
    if "exclusiveMinimum" in described:
        above = f" above {described['exclusiveMinimum']:g}"
        return f"{above}, {described['maximum']:g} or less" if "maximum" in described else above
    if "minimum" not in described:
        return ""
    least = f", {described['minimum']:g}"
    return f"{least} to {described['maximum']:g}" if "maximum" in described else f"{least} or more"


def default(described: Schema) -> str:
    """Return what holds where a setting is absent."""
    if "default" not in described:
        return "must be given" if "items" not in described else "see below"
    value = described["default"]
    if described.get("uniqueItems"):
        value = sorted(value)
    return "" if value is None else f"`{value if isinstance(value, str) else json.dumps(value)}`"


def one_line(text: str) -> str:
    """Return a text on one line."""
    return " ".join(text.split())
