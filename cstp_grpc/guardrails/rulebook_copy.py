"""A copy of the rulebooks that were loaded last, for a worker that starts while their files are invalid."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from cstp_grpc.guardrails.rulebook_files import RulebookFile

logger = logging.getLogger(__name__)


class RulebookCopy:
    """A file with the rulebooks that one of several server processes loaded last.

    They are the same rulebooks, so whichever process has written it last, it holds a valid set.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, files: Sequence[RulebookFile]) -> None:
        """Replace the copy; if that fails, the log says so, and the former one stays."""
        # What was loaded is UTF-8.
        content = json.dumps([[str(file.path), file.content.decode()] for file in files])
        # Renamed when it is whole: a process that is killed here leaves the former copy.
        unfinished = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            unfinished.write_text(content, encoding="utf-8")
            unfinished.replace(self._path)
        except OSError as error:
            logger.warning("the rulebooks cannot be copied to %s: %s", self._path, error.strerror)

    def read(self) -> Sequence[RulebookFile] | None:
        """Return the rulebooks, or None if none were loaded yet."""
        try:
            content = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        return [RulebookFile(Path(path), text.encode()) for path, text in json.loads(content)]

    def remove(self) -> None:
        """Remove the copy, which is that of an earlier run."""
        self._path.unlink(missing_ok=True)
