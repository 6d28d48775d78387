"""Another project that depends on a client, as the client's README has one write it.

`python -m tests.clients` runs it for the languages that there are tools for.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.clients.__main__ import TOOLS
from tests.snippets import ROOT, read_snippets, reading

KEPT = {
    "HOME": os.environ["HOME"],
    "CARGO_TARGET_DIR": str(ROOT / "clients" / "rust" / "target"),
    # As clients/rust/Makefile builds them: with another profile every crate would be built again.
    "CARGO_PROFILE_DEV_DEBUG": "0",
}
"""Where tools keep what they fetch and build, and how they build it, so that they need not do it again."""


@pytest.mark.parametrize("language", TOOLS)
def test_another_project_depends_on_the_client(language: str, tmp_path: Path) -> None:
    snippets = read_snippets(f"clients/{language}/README.md")
    assert any(snippet.title for snippet in snippets)
    with reading(tmp_path, **KEPT) as reader:
        reader.try_document(snippets)
