"""The commands that check and document the configuration and migrate the database."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import click

from cstp_grpc.cli.command_decorators import config_option, current_state, startup_errors_as_failures, with_output
from cstp_grpc.cli.output import Output
from cstp_grpc.common.extras import require_extra
from cstp_grpc.platform.config import ENV_PREFIX, Settings

INTRODUCTION = """\
# Configuration

Every setting of a server and its bridge. `make docs` generates these pages from the models in
`cstp_grpc/platform/config/`; `cstp config docs` prints them.

`cstp serve --config FILE` reads one YAML file, or the one that `CSTP_CONFIG` names; without either the defaults below
hold. Keys are nested as the headings show: `grpc.port` is the key `port` of the mapping `grpc`. An unknown key is an
error, and `cstp config check` names everything that is wrong. `${NAME}` in a value is replaced by the environment
variable `NAME`; a missing one stops the start. Each setting can also be given by its environment variable, which wins
over the file; lists and mappings are written there as JSON. A variable of an unknown section, such as
`CSTP_STORAG__URL`, is an error.

A relative path in the file is relative to the folder of the file, that of a SQLite database too. One in the environment
or on the command line is relative to the working directory, as is the default of `data_dir`.

Without `permissions`, a token may query and check. The configuration in section 6.1 of the protocol's design needs two
more lines, the `permissions`, so that its tokens may announce intents and record decisions:

```yaml
server:
  host: "0.0.0.0"
  port: 8100
  cors_origins: ["*"]

auth:
  enabled: true
  tokens:
    - name: "emerson"
      token: "${CSTP_TOKEN_EMERSON}"
      permissions: [query, check, announce, record, review, admin]
    - name: "claude-ops"
      token: "${CSTP_TOKEN_CLAUDE}"
      permissions: [query, check, announce, record, review]

cstp:
  query:
    max_results: 50
    min_score: 0.3
  guardrails:
    config_path: "guardrails/default.yaml"
  intent:
    store_received: true
    auto_respond: true
```

It listens on all addresses without TLS, so that it also needs `--insecure`, or [TLS or a proxy](../deployment/tls.md).

The commands that call a server read four more variables: `CSTP_CONFIG` (the configuration file), `CSTP_AGENTS_FILE`
(where agents are named: [the agents file](../clients.md#the-agents-file)) and, for a server that no agents file
describes, `CSTP_TOKEN` (the bearer token) and `CSTP_CA_FILE` (a PEM file of the authorities that certify it).
"""
REQUIRED = "required"
LINE_LENGTH = 118

Schema = Mapping[str, Any]


def config_markdown() -> str:
    schema = Settings.model_json_schema()
    sections = "\n".join(iter_section_lines("", schema, schema["$defs"]))
    return f"{INTRODUCTION}\n{sections}"


def iter_section_lines(path: str, schema: Schema, definitions: Schema) -> Iterator[str]:
    """Yield the lines of a section and of its subsections."""
    inner: list[tuple[str, Schema]] = []
    settings: list[str] = []
    for name, described in schema["properties"].items():
        key = f"{path}.{name}" if path else name
        target = resolve_reference(described, definitions) or optional_group(described, definitions)
        if target is None:
            settings += setting_lines(key, described)
        else:
            inner.append((key, target))
        items = resolve_reference(described.get("items", {}), definitions)
        if items is not None and "properties" in items:
            inner.append((f"{key}[]", items))
        named = [resolve_reference(values, definitions) for values in described.get("patternProperties", {}).values()]
        inner += [(f"{key}.NAME", values) for values in named if values is not None]
    yield f"## {path or 'The top'}\n"
    yield f"{wrap_text(schema['description'])}\n"
    yield from settings
    for key, nested in inner:
        yield from iter_section_lines(key, nested, definitions)


def resolve_reference(described: Schema, definitions: Schema) -> Schema | None:
    target = definitions.get(described.get("$ref", "").removeprefix("#/$defs/"))
    return target if target and "properties" in target else None


def optional_group(described: Schema, definitions: Schema) -> Schema | None:
    """Return an optional group of settings with its description, or None for anything else."""
    groups = [resolve_reference(option, definitions) for option in described.get("anyOf", ())]
    group = next((found for found in groups if found is not None), None)
    return None if group is None else {**group, "description": described["description"]}


def setting_lines(key: str, described: Schema) -> Iterator[str]:
    """Yield the heading of a setting, its meaning, and its type, default and environment variable."""
    facts = [f"Type: {describe_type(described)}."]
    if default := describe_default(described):
        facts.append("Required." if default == REQUIRED else f"Default: {default}.")
    # Members of lists and mappings have no variable of their own: those are given as a whole, in JSON.
    if "[]" not in key and ".NAME." not in key:
        facts.append(f"Environment: `{ENV_PREFIX}{key.replace('.', '__').upper()}`.")
    yield f"### `{key}`\n"
    if meaning := described.get("description"):
        yield f"{wrap_text(meaning)}\n"
    yield f"{wrap_text(' '.join(facts))}\n"


def describe_type(described: Schema) -> str:
    if "anyOf" in described:
        return " or ".join(describe_type(option) for option in described["anyOf"] if option.get("type") != "null")
    if "const" in described:
        return f"`{described['const']}`"
    if "enum" in described:
        return ", ".join(f"`{value}`" for value in described["enum"])
    match described.get("type"):
        case "integer":
            return f"whole number{describe_range(described)}"
        case "number":
            return f"number{describe_range(described)}"
        case "boolean":
            return "true or false"
        case "array":
            return "list"
        case "object":
            return "mapping"
    return {"path": "path", "password": "secret"}.get(described.get("format", ""), "text")


def describe_range(described: Schema) -> str:
    if "exclusiveMinimum" in described:
        above = f" above {described['exclusiveMinimum']:g}"
        return f"{above}, {described['maximum']:g} or less" if "maximum" in described else above
    if "minimum" not in described:
        return ""
    least = f", {described['minimum']:g}"
    return f"{least} to {described['maximum']:g}" if "maximum" in described else f"{least} or more"


def describe_default(described: Schema) -> str:
    if "default" not in described:
        return REQUIRED if "items" not in described else "see below"
    value = described["default"]
    if described.get("uniqueItems"):
        # A set has no order, and the document must not differ from run to run.
        value = sorted(value)
    return "" if value is None else f"`{value if isinstance(value, str) else json.dumps(value)}`"


def wrap_text(text: str) -> str:
    """Return a paragraph in lines of the length that our Markdown has."""
    return textwrap.fill(" ".join(text.split()), LINE_LENGTH, break_long_words=False, break_on_hyphens=False)


@click.group()
def config_group() -> None:
    """Check and document the configuration."""


@config_group.command()
@click.option("--insecure", is_flag=True, help="Check it for `cstp serve --insecure`.")
@config_option
@with_output
def check_command(out: Output, insecure: bool) -> None:
    """Check the configuration and its rulebooks. Names everything that is wrong with them.

    Rejects what `cstp serve` rejects. Only an empty auth.tokens is a warning, since `cstp serve --dev` makes a token.

    \b
    Examples:
      cstp config check --config cstp.yaml
      CSTP_GRPC__PORT=50061 cstp config check
    """
    require_extra("server")
    # Imported here: it loads the server, which `cstp config docs` and a client do without.
    from cstp_grpc.cli.settings_check import check_settings, find_warnings
    from cstp_grpc.platform.config.exposure import allow_plain_listeners

    settings = current_state().settings()
    if insecure:
        settings = allow_plain_listeners(settings)
    rules = check_settings(settings)
    agents = sorted({token.name for token in settings.auth.tokens})
    facts = {
        "configuration": str(current_state().config_path or "defaults and environment"),
        "dataDir": str(settings.data_dir),
        "storage": settings.storage_url.partition(":")[0],
        "grpc": f"{settings.grpc.host}:{settings.grpc.port}",
        "bridge": f"{settings.server.host}:{settings.server.port}",
        "a2a": f"{settings.a2a.grpc_host}:{settings.a2a.grpc_port}" if settings.a2a.enabled else "left out",
        "embedding": settings.embedding.provider,
        "search": settings.search.engine,
        "ruleSet": rules.version,
        "rulebook": settings.cstp.guardrails.source,
        "agents": ", ".join(agents) if settings.auth.enabled else "anyone",
    }
    warnings = list(find_warnings(settings))
    if out.json_wanted:
        out.document({**facts, "warnings": warnings})
        return
    for name, value in facts.items():
        out.line(f"{name:14} {value}")
    for warning in warnings:
        out.note(f"Warning: {warning}")


@config_group.command()
def docs_command() -> None:
    """Print docs/configuration as one Markdown document.

    \b
    Example:
      cstp config docs > configuration.md
    """
    click.echo(config_markdown(), nl=False)


@click.command()
@config_option
@with_output
def migrate_command(out: Output) -> None:
    """Migrate the database to this version. A server does so, too, when it starts.

    \b
    Example:
      cstp migrate --config cstp.yaml
    """
    require_extra("server")
    from cstp_grpc.platform.storage.database import open_database
    from cstp_grpc.platform.storage.migration import current_revision, migrate_database, newest_revision

    settings = current_state().settings()
    settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with startup_errors_as_failures():
        database = open_database(settings.storage_url, 1)
        before = current_revision(database)
        migrate_database(database)
        database.close()
    if out.json_wanted:
        out.document({"before": before, "after": newest_revision()})
    out.line(f"The database is at {newest_revision()}; it was at {before or 'nothing'}.")
