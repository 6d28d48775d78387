"""Reading the settings: one YAML file, overridden by the environment. Nothing else reads either.

`${NAME}` in a value of the file is replaced by the environment variable of that name. `CSTP_GRPC__PORT=50061` overrides
`grpc.port`; lists and mappings are written as JSON.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_settings import EnvSettingsSource, SettingsError

from cstp_grpc.config.file_paths import names_default_rulebook, resolve_paths
from cstp_grpc.config.sections import Settings
from cstp_grpc.config.suggestions import suggest_key
from cstp_grpc.errors import ConfigError

ENV_PREFIX = "CSTP_"
BOOLEAN = "tag:yaml.org,2002:bool"
"""The tag of truth values in YAML."""
REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def load(path: Path | None, **overrides: Any) -> Settings:
    """Return the settings of a file (None: defaults), the environment and `overrides`, the later winning.

    Raises ConfigError.
    """
    content = expanded(parse_yaml(path), str(path)) if path else {}
    return settings_of(content, path, overrides)


def judge(text: str, path: Path, assumed: Mapping[str, str]) -> Settings:
    """Return the settings that a file would make if it held a text, and if variables had values they do not have.

    Raises ConfigError.
    """
    content = expanded(parse_yaml_text(text, path), str(path), {**assumed, **os.environ})
    return settings_of(content, path, {})


def build_settings(**values: Any) -> Settings:
    """Return settings that neither a file nor the environment has a part in. Raises ConfigError."""
    try:
        return Settings(**values)
    except ValidationError as error:
        raise ConfigError(describe(error, None)) from error


def settings_of(content: dict[str, Any], path: Path | None, overrides: Mapping[str, Any]) -> Settings:
    """Return the settings of a file's content, the environment and `overrides`. Raises ConfigError."""
    if path:
        content = with_file_paths(content, path.parent)
    from_environment = EnvSettingsSource(Settings, env_prefix=ENV_PREFIX, env_nested_delimiter="__")
    try:
        return Settings(**merge(merge(content, from_environment()), overrides))
    except SettingsError as error:
        raise ConfigError(f"the environment: {error}") from error
    except ValidationError as error:
        raise ConfigError(describe(error, path)) from error


def with_file_paths(content: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a file's content with its relative paths below the file's folder."""
    match content:
        case {"cstp": {"guardrails": {"config_path": written}}} if names_default_rulebook(written, folder):
            content = merge(content, {"cstp": {"guardrails": {"config_path": None}}})
    return resolve_paths(content, Settings, folder)


@dataclass(frozen=True, slots=True)
class CommandEnvironment:
    """What the environment tells the commands that call servers."""

    config: Path | None
    """CSTP_CONFIG: the configuration file where none is named."""
    agents_file: Path | None
    """CSTP_AGENTS_FILE: the agents file where none is named."""
    token: str | None
    """CSTP_TOKEN: the bearer token for a server that no agents file describes."""
    ca_file: Path | None
    """CSTP_CA_FILE: a PEM file of the authorities that certify such a server."""


def silence_grpc() -> None:
    """Keep gRPC from writing a log of its own to standard error, unless GRPC_VERBOSITY asks for it.

    gRPC reads the variable when it is imported.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def forbid_telemetry() -> None:
    """Keep ONNX Runtime from reporting to its makers, which it prepares to do as soon as it is imported."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def command_environment() -> CommandEnvironment:
    """Return what the environment tells the commands that call servers."""
    config, agents_file, ca_file = (os.environ.get(ENV_PREFIX + name) for name in ("CONFIG", "AGENTS_FILE", "CA_FILE"))
    return CommandEnvironment(
        config=Path(config) if config else None,
        agents_file=Path(agents_file) if agents_file else None,
        token=os.environ.get(f"{ENV_PREFIX}TOKEN") or None,
        ca_file=Path(ca_file) if ca_file else None,
    )


def inherited_environment(names: Iterable[str]) -> dict[str, str]:
    """Return those variables of the environment that are set, for programs that this one starts."""
    return {name: os.environ[name] for name in names if name in os.environ}


def environment_without_settings() -> dict[str, str]:
    """Return the environment without our settings, for programs that this one starts and configures by itself."""
    return {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}


def expand_text(text: str, where: str) -> str:
    """Return a text with every `${NAME}` replaced from the environment.

    Raises ConfigError, which says `where` the text is from and what is not set.
    """
    return str(expanded(text, where))


def expanded(value: Any, where: str, environment: Mapping[str, str] = os.environ) -> Any:
    """Return `value` with every `${NAME}` in its texts replaced. Raises ConfigError as `expand_text` does."""
    missing: set[str] = set()
    replaced = expand(value, environment, missing)
    if missing:
        raise ConfigError(f"{where}: not set in the environment: {', '.join(sorted(missing))}")
    return replaced


class ConfigLoader(yaml.SafeLoader):
    """Reads YAML and refuses a mapping with a repeated key, whose last value would win without a word.

    As in YAML 1.2, `on`, `off`, `yes` and `no` are texts, so that they need no quotes where words are expected;
    settings that are true or false take these texts for what they say.
    """

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        """Return the mapping that comes next in the file. Raises ConfigError."""
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line, name = key.start_mark.line + 1, str(key.value)
            if name in lines:
                raise ConfigError(f"line {line}: the key `{name}` is given twice; the first is on line {lines[name]}")
            lines[name] = line
        return node


ConfigLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != BOOLEAN or first in "tTfF"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def parse_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file as it is written. Raises ConfigError, also for a key that is given twice."""
    return parse_yaml_text(read_text(path), path)


def read_text(path: Path) -> str:
    """Return what is in a file, with its line ends as they are. Raises ConfigError."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not YAML: it holds characters that YAML does not allow") from None


def parse_yaml_text(text: str, path: Path) -> dict[str, Any]:
    """Return the mapping that a YAML file would hold with a text; see `parse_yaml`. Raises ConfigError."""
    try:
        content = ConfigLoader(text).get_single_data()
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except yaml.MarkedYAMLError as error:
        # Only where and what: the line itself may hold a token.
        line = f" at line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{path}: is not YAML{line}: {error.problem}") from None
    except yaml.YAMLError:
        raise ConfigError(f"{path}: is not YAML: it holds characters that YAML does not allow") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: must be a mapping")
    return content


def expand(value: Any, environment: Mapping[str, str], missing: set[str]) -> Any:
    """Return `value` with every `${NAME}` in its texts replaced, noting the names that are not set."""
    if isinstance(value, dict):
        return {key: expand(item, environment, missing) for key, item in value.items()}
    if isinstance(value, list):
        return [expand(item, environment, missing) for item in value]
    if not isinstance(value, str):
        return value
    missing.update(name for name in REFERENCE.findall(value) if not environment.get(name))
    return REFERENCE.sub(lambda match: environment.get(match[1], ""), value)


def merge(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the values of `over`, mapping by mapping."""
    merged = dict(base)
    for key, value in over.items():
        present = merged.get(key)
        merged[key] = merge(present, value) if isinstance(present, dict) and isinstance(value, Mapping) else value
    return merged


def describe(error: ValidationError, path: Path | None, model: type[BaseModel] = Settings) -> str:
    """Return one line for each key that is wrong; values are left out, because they may be secret."""
    where = f"{path}: " if path else ""
    lines = []
    for item in error.errors(include_input=False, include_url=False):
        key = ".".join(str(part) for part in item["loc"])
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            meant = suggest_key(model, item["loc"])
            message = f"is not a known setting{f'; did you mean `{meant}`?' if meant else ''}"
        elif item["type"] == "too_short" and item["ctx"]["field_type"] == "Value":
            # Pydantic calls the characters of a secret its items.
            message = f"must have at least {item['ctx']['min_length']} characters"
        lines.append(f"{where}{key}: {message}" if key else f"{where}{message}")
    return "\n".join(lines)
