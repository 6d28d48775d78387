"""Compiled expressions of packaged rules, kept in the folder of Python's bytecode and for as long as it.

Compiling takes half of the time in which rules are loaded. A user who may write to that folder may change this package
too, so nothing else is trusted. Without the right to write there, expressions are compiled at each start.
"""

from __future__ import annotations

import hashlib
import importlib.util
import marshal
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

KEPT_FILE: Final = Path(importlib.util.cache_from_source(__file__)).with_name("rules.compiled")
DIGEST_BYTES: Final = hashlib.sha256().digest_size
MAX_KEPT: Final = 2_000
"""Expressions that are kept. Chosen: more than all packaged rules have."""


class CompiledExpressions:
    """Serialized expressions by the hash of their text and environment, of one version of the code in a folder."""

    def __init__(self, engine: Path, path: Path = KEPT_FILE) -> None:
        """Read the file; `engine` is that of the library that compiles."""
        self._new: dict[bytes, bytes] | None = {}
        self._known: dict[bytes, bytes] = {}
        self._version = b""
        self._path = path
        with suppress(OSError, ValueError, EOFError, TypeError):
            files = [engine, *sorted(Path(__file__).parent.glob("*.py"))]
            found = [(file.name, status.st_size, status.st_mtime_ns) for file in files if (status := file.stat())]
            self._version = hashlib.sha256(repr(found).encode()).digest()
            digest, content = (read := path.read_bytes())[:DIGEST_BYTES], read[DIGEST_BYTES:]
            if digest == self._digest(content):
                # Security: like a file of bytecode, as the module's docstring says.
                self._known = marshal.loads(content)  # noqa: S302

    def find(self, key: bytes) -> bytes | None:
        return self._known.get(key)

    def add(self, key: bytes, serialized: bytes) -> None:
        """Remember an expression that was compiled, until `finish`."""
        if self._new is not None:
            self._new[key] = serialized

    def finish(self, *, keep: bool) -> None:
        """Write the expressions that were added, if `keep`, and take no more."""
        new, self._new = self._new, None
        if not new or not keep or sys.dont_write_bytecode or len(self._known) + len(new) > MAX_KEPT:
            return
        content = marshal.dumps(self._known | new)
        unfinished = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        with suppress(OSError):
            unfinished.write_bytes(self._digest(content) + content)
            unfinished.replace(self._path)
            return
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)

    def _digest(self, content: bytes) -> bytes:
        return hashlib.sha256(self._version + content).digest()
