"""Wait for changes of rulebooks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from cstp_grpc.core.guardrails.extended_rulebooks import collect_rulebook_files
from cstp_grpc.core.guardrails.rulebook_files import RulebookFile

LOOK_SECONDS: Final = 0.3
"""Seconds between two looks at the files. Chosen: shorter than an author needs to look at the terminal."""


def wait_for_changes(path: Path) -> Iterator[Sequence[RulebookFile]]:
    """Yield the files of the rulebooks at a path at once, and again whenever they are others."""
    seen: Sequence[RulebookFile] | None = None
    while True:
        # By their content: editors replace files, and stamps are too coarse for two changes in a row.
        found = read_present_files(path)
        if found != seen:
            seen = found
            yield found
        else:
            time.sleep(LOOK_SECONDS)


def read_present_files(path: Path) -> Sequence[RulebookFile]:
    """Return the files of the rulebooks at a path, with what they extend; none where there is nothing to read."""
    try:
        return collect_rulebook_files(path, lambda _path, _error: None)
    except OSError:
        # The tests are run without, and say why they cannot be.
        return []
