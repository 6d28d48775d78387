"""The base class of all groups of settings, and types that they share."""

from __future__ import annotations

import ast
import inspect
import textwrap
from itertools import pairwise
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

URL = r"^https?://[^\s/]+\S*$"
URL_PREFIX = r"^https?://[^\s/@?#]+(/[^\s?#]*)?$"
"""Pattern of the entries of URL allow-lists."""


class SqliteFile:
    """Marks a database URL that may name a SQLite file, whose path is resolved like other paths."""


AgentName = Annotated[str, Field(min_length=1, max_length=200)]


def add_setting_descriptions(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Add the docstrings of settings as descriptions to a JSON schema.

    Pydantic can do this itself (use_attribute_docstrings), but then parses the source of every class at every start.
    """
    # From base to subclass, so that the description of an overridden setting wins.
    for described in reversed(model.__mro__):
        if not issubclass(described, BaseModel) or not described.__module__.startswith(__package__ or ""):
            continue
        # Python keeps no docstrings of attributes: they are in the source alone.
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(described))).body
        assert isinstance(body, ast.ClassDef)
        for setting, comment in pairwise(body.body):
            if isinstance(setting, ast.AnnAssign) and isinstance(comment, ast.Expr):
                assert isinstance(setting.target, ast.Name)
                assert isinstance(comment.value, ast.Constant)
                schema["properties"][setting.target.id]["description"] = inspect.cleandoc(str(comment.value.value))


class SettingsSection(BaseModel):
    """A group of settings; unknown keys are errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, json_schema_extra=add_setting_descriptions, allow_inf_nan=False
    )
