"""The patches of the tool `apply_patch`, which several agents have: the files that they touch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

FILE_LINE: Final = re.compile(r"^[^\S\n]*\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+)$", re.MULTILINE)
"""A line with a file, by the grammar of the tool, whose parser ignores space around such lines
(codex-rs/apply-patch/src/parser.rs in openai/codex)."""


def find_patched_files(patch: str, folder: str) -> list[str]:
    """Return the files that a patch adds, changes, deletes or moves, once each; relative ones from a folder."""
    return list(dict.fromkeys(str(Path(folder, path.rstrip())) for path in FILE_LINE.findall(patch)))
