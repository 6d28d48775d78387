"""A folder of records to read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.modules.importing.folder import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """An empty folder outside of any work tree."""
    return Folder(tmp_path / "records")
