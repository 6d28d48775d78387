"""Loading the settings: one YAML file, overridden by the environment. Nothing else reads either.

`${NAME}` in a value of the file is replaced by the environment variable of that name. `CSTP_GRPC__PORT=50061` overrides
`grpc.port`; lists and mappings are written as JSON. Relative paths in the file are relative to its folder.
"""

from __future__ import annotations

import difflib
import os
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError

from cstp_grpc.contract.errors import ConfigError
from cstp_grpc.platform.config.environment import ENV_PREFIX
from cstp_grpc.platform.config.settings import Settings
from cstp_grpc.platform.config.settings_section import SqliteFile
from cstp_grpc.platform.config.yaml_file import expand_references, parse_yaml, parse_yaml_text


def allowed_types(annotation: Any) -> Iterator[Any]:
    """Yield the types that an annotation allows, including marker types of Annotated."""
    origin = get_origin(annotation)
    if origin is Annotated:
        kind, *marks = get_args(annotation)
        yield from (mark for mark in marks if isinstance(mark, type))
        yield from allowed_types(kind)
    elif origin in (Union, types.UnionType):
        for each in get_args(annotation):
            yield from allowed_types(each)
    else:
        yield annotation


REPLACED_SECTIONS: Final = {"index": "search.engine"}
"""Former sections, and the settings that replace them."""


def describe_unknown_key(model: type[BaseModel], location: Sequence[int | str], variable: str = "") -> str:
    """Return the error for an unknown key; `variable` is that of the environment, with `{}` for the section."""
    if model is Settings and len(location) == 1 and location[0] in REPLACED_SECTIONS:
        return f"is replaced by `{REPLACED_SECTIONS[str(location[0])]}`"
    meant = suggest_key(model, location)
    if meant is None:
        return "is not a known setting"
    return f"is not a known setting; did you mean {variable.replace('{}', meant.upper()) or f'`{meant}`'}?"


def suggest_key(model: type[BaseModel], location: Sequence[int | str]) -> str | None:
    kinds: list[Any] = [model]
    for part in location[:-1]:
        # All alternatives of a union are followed: which of them the file meant is not known.
        kinds = [inner for kind in kinds for inner in child_types(kind, part)]
    keys = [key for kind in kinds if is_settings_model(kind) for key in kind.model_fields]
    return next(iter(difflib.get_close_matches(str(location[-1]), keys, n=1)), None)


def child_types(kind: Any, part: int | str) -> Iterator[Any]:
    """Yield the types of a value under a key or an index."""
    if is_settings_model(kind) and part in kind.model_fields:
        yield from allowed_types(kind.model_fields[part].rebuild_annotation())
    elif get_origin(kind) in (list, tuple, dict):
        for each in get_args(kind):
            yield from allowed_types(each)


def is_settings_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


SQLITE_PREFIX: Final = "sqlite:///"
DEFAULT_RULEBOOK: Final = Path("guardrails", "default.yaml")
"""The path by which a configuration may name the packaged rulebook."""


def resolve_paths(content: Mapping[str, Any], model: type[BaseModel], folder: Path) -> dict[str, Any]:
    """Return the content of a configuration file with relative paths joined to a folder."""
    return {
        key: resolve_value_paths(value, model.model_fields[key].rebuild_annotation(), folder)
        if key in model.model_fields
        else value
        for key, value in content.items()
    }


def resolve_value_paths(value: Any, annotation: Any, folder: Path) -> Any:
    """Return a setting's value with relative paths joined to a folder; values of a wrong type are unchanged."""
    for kind in allowed_types(annotation):
        # The types decide and not the names of keys, so that a new setting of type Path is resolved without an edit
        # here.
        if kind is Path and isinstance(value, str) and value:
            return str(folder / value)
        if kind is SqliteFile and isinstance(value, str):
            return resolve_sqlite_url(value, folder)
        if isinstance(kind, type) and issubclass(kind, BaseModel) and isinstance(value, Mapping):
            return resolve_paths(value, kind, folder)
        if get_origin(kind) is list and isinstance(value, list):
            return [resolve_value_paths(item, get_args(kind)[0], folder) for item in value]
        if get_origin(kind) is dict and isinstance(value, Mapping):
            return {key: resolve_value_paths(item, get_args(kind)[1], folder) for key, item in value.items()}
    return value


def resolve_sqlite_url(url: str, folder: Path) -> str:
    """Return a database URL with the relative path of a SQLite file joined to a folder."""
    path = url.removeprefix(SQLITE_PREFIX)
    # Other databases, and SQLite in memory (`:memory:`, `file:`), have no file of ours.
    if path == url or not path or path.startswith((":", "file:")):
        return url
    return f"{SQLITE_PREFIX}{folder / path}"


def names_default_rulebook(written: object, folder: Path) -> bool:
    """Return whether a configuration names the packaged rulebook and has no folder of rulebooks next to it.

    If the folder exists but lacks the named rulebook, that is an error, which must not weaken the rules silently.
    """
    # lexists below: a dangling link is a mistake to report as well, not a missing folder.
    if not isinstance(written, str) or Path(written) != DEFAULT_RULEBOOK:
        return False
    return not os.path.lexists(folder / DEFAULT_RULEBOOK.parent)


def load_settings(path: Path | None, **overrides: Any) -> Settings:
    """Load the settings from a file (None: defaults), the environment and `overrides`; later sources win.

    Raises ConfigError.
    """
    content = expand_references(parse_yaml(path), str(path)) if path else {}
    return build_settings_from_content(content, path, overrides)


def validate_text(text: str, path: Path, assumed: Mapping[str, str]) -> Settings:
    """Return the settings for a file with this text, with `assumed` values for unset environment variables.

    Raises ConfigError.
    """
    content = expand_references(parse_yaml_text(text, path), str(path), {**assumed, **os.environ})
    return build_settings_from_content(content, path, {})


def build_settings(**values: Any) -> Settings:
    """Build settings from values only, without file and environment. Raises ConfigError."""
    try:
        return Settings(**values)
    except ValidationError as error:
        raise ConfigError(describe_validation_error(error, None)) from error


def build_settings_from_content(content: dict[str, Any], path: Path | None, overrides: Mapping[str, Any]) -> Settings:
    """Build settings from a file's content, the environment and `overrides`. Raises ConfigError."""
    if path:
        content = resolve_file_paths(content, path.parent)
    try:
        # The environment overrides the file, and `overrides` both. Validation sees the merged values, so that a section
        # may be written half here and half there.
        return Settings(**deep_merge(deep_merge(content, read_environment()), overrides))
    except ValidationError as error:
        raise ConfigError(describe_validation_error(error, path)) from error


def read_environment() -> dict[str, Any]:
    """Return the settings in the environment. Raises ConfigError."""
    if not any(name.upper().startswith(ENV_PREFIX) for name in os.environ):
        return {}
    check_variable_names(os.environ)
    # Not loaded before it is needed: it takes longer than all else that is done to read settings.
    from pydantic_settings import EnvSettingsSource, SettingsError

    # It reads the fields of any model, whatever its type says.
    source = EnvSettingsSource(cast(Any, Settings), env_prefix=ENV_PREFIX, env_nested_delimiter="__")
    try:
        return source()
    except SettingsError as error:
        raise ConfigError(f"the environment: {error}") from error


def check_variable_names(names: Iterable[str]) -> None:
    """Raise ConfigError for a variable of an unknown section; one without `__` may belong to something else."""
    for name in names:
        prefix, _, path = name.upper().partition("_")
        section, nested, key = path.partition("__")
        if f"{prefix}_" == ENV_PREFIX and nested and section.lower() not in Settings.model_fields:
            problem = describe_unknown_key(Settings, (section.lower(),), f"{ENV_PREFIX}{{}}__{key}")
            raise ConfigError(f"the environment: {name} {problem}")


def resolve_file_paths(content: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a file's content with relative paths joined to the file's folder."""
    match content:
        case {"cstp": {"guardrails": {"config_path": written}}} if names_default_rulebook(written, folder):
            content = deep_merge(content, {"cstp": {"guardrails": {"config_path": None}}})
    return resolve_paths(content, Settings, folder)


def deep_merge(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` updated with `over`, merging nested mappings."""
    merged = dict(base)
    for key, value in over.items():
        present = merged.get(key)
        # Lists are replaced as a whole: there is no telling which items would correspond.
        merged[key] = deep_merge(present, value) if isinstance(present, dict) and isinstance(value, Mapping) else value
    return merged


def describe_validation_error(error: ValidationError, path: Path | None, model: type[BaseModel] = Settings) -> str:
    """Return one line for each invalid key; values are left out because they may be secret."""
    where = f"{path}: " if path else ""
    lines = []
    for item in error.errors(include_input=False, include_url=False):
        key = ".".join(str(part) for part in item["loc"])
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            message = describe_unknown_key(model, item["loc"])
        elif item["type"] == "too_short" and item["ctx"]["field_type"] == "Value":
            # Its own message calls the characters of a SecretStr items.
            message = f"must have at least {item['ctx']['min_length']} characters"
        lines.append(f"{where}{key}: {message}" if key else f"{where}{message}")
    return "\n".join(lines)
