"""Reading the settings: one YAML file, overridden by the environment. Nothing else reads either.

`${NAME}` in a value of the file is replaced by the environment variable of that name. `CSTP_GRPC__PORT=50061` overrides
`grpc.port`; lists and mappings are written as JSON.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_settings import EnvSettingsSource, SettingsError

from cstp_grpc.config.environment import ENV_PREFIX
from cstp_grpc.config.file_paths import names_default_rulebook, resolve_paths
from cstp_grpc.config.sections import Settings
from cstp_grpc.config.suggestions import suggest_key
from cstp_grpc.config.yaml_file import expanded, parse_yaml, parse_yaml_text
from cstp_grpc.errors import ConfigError


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
