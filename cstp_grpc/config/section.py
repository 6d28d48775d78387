"""What all groups of settings have in common."""

from __future__ import annotations

import ast
import inspect
import textwrap
from itertools import pairwise
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

URL = r"^https?://[^\s/]+\S*$"
URL_PREFIX = r"^https?://[^\s/@?#]+(/[^\s?#]*)?$"
"""What the addresses on a list may begin with."""


class SqliteFile:
    """Marks the URL of a database that may be a SQLite file, which is found as other paths are."""


AgentName = Annotated[str, Field(min_length=1, max_length=200)]


def describe_settings(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Add to the schema of a group of settings what the docstrings in its class say of each.

    Pydantic can do so itself, but reads the source of every class at every start for it.
    """
    for described in reversed(model.__mro__):
        if not issubclass(described, BaseModel) or not described.__module__.startswith(__package__ or ""):
            continue
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(described))).body
        assert isinstance(body, ast.ClassDef)
        for setting, comment in pairwise(body.body):
            if isinstance(setting, ast.AnnAssign) and isinstance(comment, ast.Expr):
                assert isinstance(setting.target, ast.Name)
                assert isinstance(comment.value, ast.Constant)
                schema["properties"][setting.target.id]["description"] = inspect.cleandoc(str(comment.value.value))


class Section(BaseModel):
    """A group of settings; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=describe_settings, allow_inf_nan=False)
