"""What all groups of settings have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

URL = r"^https?://[^\s/]+\S*$"
URL_PREFIX = r"^https?://[^\s/@?#]+(/[^\s?#]*)?$"
"""What the addresses on a list may begin with."""


class SqliteFile:
    """Marks the URL of a database that may be a SQLite file, which is found as other paths are."""


AgentName = Annotated[str, Field(min_length=1, max_length=200)]


class Section(BaseModel):
    """A group of settings; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)
