"""The vector matrix in a file of the data folder, so that a server that starts reads only later changes.

The journal stays authoritative: a file that is damaged, of another journal, or that lacks a decision is not used. It is
deleted when a decision is deleted, before the deletion is answered, and written again later.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from cstp_grpc.common.lazy_dataclass import fields
from cstp_grpc.contract.enums import DecisionStatus, Outcome, Stakes
from cstp_grpc.core.decisions.search import matrix_snapshot
from cstp_grpc.core.decisions.search.array_file import (
    Array,
    SavedArray,
    UnusableFile,
    open_array_file,
    write_array_file,
)
from cstp_grpc.core.decisions.search.row_vectors import LocalVectors
from cstp_grpc.core.decisions.search.vector_matrix import VectorMatrix
from cstp_grpc.core.decisions.search.word_index import Postings, Segment, WordIndex
from cstp_grpc.core.decisions.sql_store import SqlDecisionStore

logger = logging.getLogger(__name__)

MIN_SAVED_ROWS: Final = 2000
"""Decisions from which the matrix is saved; fewer are loaded in 0.2 s."""
CHANGED_SHARE: Final = 0.05
"""The share of decisions that change before the matrix is saved again. Chosen: loading them takes a third of a second
for 100 000."""
SPARE_BYTES_OF_PASSAGE: Final = 10_000
"""Free space that saving needs for each passage, four times what it takes: it must not fill the journal's disk."""

COLUMNS: Final = [field.name for field in fields(matrix_snapshot.MatrixColumns)]
TAGS: Final = [field.name for field in fields(matrix_snapshot.TagColumns)]
LAYOUT: Final = [1, COLUMNS, *map(list, (Stakes, DecisionStatus, Outcome))]
"""The version of the arrays, the columns, and the members whose bits are in them."""


class JournalPosition(NamedTuple):
    """The revisions up to which changes and deletions were read."""

    changed: int = -1
    erased: int = -1


class MatrixFile:
    """The file of the matrix of one journal and model. Safe for many threads; one process at a time may save.

    Vectors that are read through it stay on disk until the process ends, even if the file is deleted.
    """

    def __init__(self, path: Path, store: SqlDecisionStore, model: str, matrix: VectorMatrix) -> None:
        self._path = path
        self._unfinished = path.with_name(f"{path.name}.new")
        self._store = store
        self._model = model
        self._matrix = matrix
        matrix.on_forget = self.discard
        # Guards the deletion and the replacement of the file, and `_discarded`.
        self._lock = threading.Lock()
        self._discarded = 0
        self._saved_revision = -1

    def discard(self) -> None:
        """Delete the file, because it may contain what was erased. Raises OSError."""
        with self._lock:
            self._discarded += 1
            self._path.unlink(missing_ok=True)
            self._unfinished.unlink(missing_ok=True)

    def restore(self) -> JournalPosition:
        """Fill the matrix from the file and return how far it goes; if it cannot be used, from the beginning.

        Raises QueryFailed.
        """
        # A process that was killed while it saved leaves it.
        self._unfinished.unlink(missing_ok=True)
        try:
            content, arrays = self._open()
        except FileNotFoundError:
            return JournalPosition()
        except (OSError, UnusableFile) as error:
            logger.warning("all decisions are loaded from the journal: %s", error)
            self.discard()
            return JournalPosition()
        self._matrix.adopt(read_snapshot(content, arrays), matrix_snapshot.StringInterner(content["texts"]))
        position = JournalPosition(*content["position"])
        self._saved_revision = position.changed
        return position

    def save_if_due(self, position: JournalPosition) -> None:
        """Save the matrix, which contains the journal up to a position, if much has changed since. Raises OSError."""
        # Before the snapshot, which then lacks what was erased before.
        discarded = self._discarded
        snapshot, interner = self._matrix.published()
        changes = position.changed - self._saved_revision
        is_kept = self._path.exists() and changes <= CHANGED_SHARE * snapshot.size
        if is_kept or snapshot.size < MIN_SAVED_ROWS:
            return
        content, arrays = describe_snapshot(snapshot, interner)
        content |= {"origin": self._origin(), "position": position}
        if shutil.disk_usage(self._path.parent).free < SPARE_BYTES_OF_PASSAGE * snapshot.passage_count:
            logger.warning("the matrix is not saved, because the disk of %s is nearly full", self._path)
            return
        try:
            write_array_file(self._unfinished, content, arrays)
            with self._lock:
                # It need not be on disk before: a file that a power failure tears is not used.
                if self._discarded == discarded:
                    self._unfinished.replace(self._path)
                    self._saved_revision = position.changed
        finally:
            self._unfinished.unlink(missing_ok=True)

    def _origin(self) -> list[object]:
        return [LAYOUT, self._store.identity(), self._model]

    def _open(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return the content of the file and its arrays. Raises OSError, UnusableFile and QueryFailed."""
        content, arrays = open_array_file(self._path)
        if content["origin"] != self._origin():
            raise UnusableFile(f"{self._path}: is of another journal, model or version")
        count, total, changed = self._store.unchanged_until(*content["position"])
        unchanged = np.array([decision_id not in changed for decision_id in content["ids"]], np.bool_)
        revisions = arrays["revisions"][: len(unchanged)][unchanged]
        if (count, total) != (len(revisions), int(revisions.sum())):
            # Above all if decisions got vectors without a change, or the journal is an earlier copy.
            raise UnusableFile(f"{self._path}: differs from the journal")
        return content, arrays


def describe_snapshot(
    snapshot: matrix_snapshot.MatrixSnapshot, interner: matrix_snapshot.StringInterner
) -> tuple[dict[str, Any], dict[str, SavedArray]]:
    """Return the rows of a snapshot that are not dead: their JSON values, and their arrays by name."""
    live = matrix_snapshot.LiveRows.of(snapshot)
    rows, passages, entries = live.capacities()
    columns = {name: getattr(live.columns, name) for name in COLUMNS}
    by_row = {**columns, "starts": live.starts, "has_lesson": live.has_lesson}
    arrays = {name: SavedArray([array], rows) for name, array in by_row.items()}
    arrays |= {name: SavedArray([getattr(live.tags, name)], entries) for name in TAGS}
    vectors = snapshot.passages.vectors
    assert isinstance(vectors, LocalVectors), "vectors that processes share are not saved"
    arrays |= {name: SavedArray(parts, passages) for name, parts in vectors.save(live.passages)}
    for segment in live.words.segments:
        words = {"keys": segment.keys, "key_starts": segment.starts, **segment.postings._asdict()}
        arrays |= {f"word_{name}": SavedArray([array], len(array)) for name, array in words.items()}
    interned = live.columns.agents, live.columns.categories, live.columns.projects, live.tags.tags
    texts = interner.texts({number for each in interned for number in np.unique(each).tolist()})
    counts = {"passages": len(live.passages), "entries": len(live.tags.rows)}
    return {"ids": live.ids, "texts": texts, **counts}, arrays


def read_snapshot(content: Mapping[str, Any], arrays: Mapping[str, Array]) -> matrix_snapshot.MatrixSnapshot:
    """Return the snapshot of which `describe_snapshot` returned the values and arrays."""
    words = {name.removeprefix("word_"): array for name, array in arrays.items() if name.startswith("word_")}
    segments = [Segment(words.pop("keys"), words.pop("key_starts"), Postings(**words))] if words else []
    vectors = LocalVectors.restored(arrays, content["passages"])
    return matrix_snapshot.MatrixSnapshot(
        matrix_snapshot.MatrixColumns(*(arrays[name] for name in COLUMNS)),
        matrix_snapshot.PassageRows(vectors, len(arrays["vectors"]), arrays["starts"], arrays["has_lesson"]),
        WordIndex(tuple(segments)),
        matrix_snapshot.TagColumns(*(arrays[name] for name in TAGS)),
        content["ids"],
        len(content["ids"]),
        content["passages"],
        content["entries"],
        0,
        np.ones(len(arrays["starts"]), np.bool_),
    )
