"""The paths in a configuration file, which are relative to the folder of the file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel

from cstp_grpc.config.annotations import alternatives
from cstp_grpc.config.section import SqliteFile

SQLITE: Final = "sqlite:///"
DEFAULT_RULEBOOK: Final = Path("guardrails", "default.yaml")
"""The rulebook that comes with the package, by the name under which a configuration may name it."""


def resolve_paths(content: Mapping[str, Any], model: type[BaseModel], folder: Path) -> dict[str, Any]:
    """Return the content of a configuration file with its relative paths below the file's folder."""
    return {
        key: resolve_value(value, model.model_fields[key].rebuild_annotation(), folder)
        if key in model.model_fields
        else value
        for key, value in content.items()
    }


def resolve_value(value: Any, annotation: Any, folder: Path) -> Any:
    """Return the value of a setting with its relative paths below a folder; a value of a wrong type stays as it is."""
    for kind in alternatives(annotation):
        if kind is Path and isinstance(value, str) and value:
            return str(folder / value)
        if kind is SqliteFile and isinstance(value, str):
            return resolve_sqlite_url(value, folder)
        if isinstance(kind, type) and issubclass(kind, BaseModel) and isinstance(value, Mapping):
            return resolve_paths(value, kind, folder)
        if get_origin(kind) is list and isinstance(value, list):
            return [resolve_value(item, get_args(kind)[0], folder) for item in value]
        if get_origin(kind) is dict and isinstance(value, Mapping):
            return {key: resolve_value(item, get_args(kind)[1], folder) for key, item in value.items()}
    return value


def resolve_sqlite_url(url: str, folder: Path) -> str:
    """Return a database URL with the relative path of a SQLite file below a folder."""
    path = url.removeprefix(SQLITE)
    if path == url or not path or path.startswith((":", "file:")):
        return url
    return f"{SQLITE}{folder / path}"


def names_default_rulebook(written: object, folder: Path) -> bool:
    """Whether a configuration names the rulebook that comes with the package, having no rulebooks beside it.

    A folder of rulebooks that lacks the one that is named is a mistake, which must not weaken the rules in silence.
    """
    if not isinstance(written, str) or Path(written) != DEFAULT_RULEBOOK:
        return False
    return not os.path.lexists(folder / DEFAULT_RULEBOOK.parent)
