"""The wal-index: what the processes that use a SQLite database share about its write-ahead log.

Its format and that of the log are described at https://sqlite.org/walformat.html.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

HEADER: Final = struct.Struct("=12xBxHI12x8s8x")
"""The header: whether it is initialized, the page size, the last frame, the salts of the log."""
CHECKPOINT_INFO: Final = struct.Struct("=96xI28xI4x")
"""What follows the two copies of the header: how many frames a checkpoint put into the database, or set out to."""
INDEX_BYTES: Final = CHECKPOINT_INFO.size
LARGEST_PAGE: Final = 65_536

LOG_HEADER_BYTES: Final = 32
LOG_SALTS: Final = slice(16, 24)
FRAME_HEADER_BYTES: Final = 24
FRAME_SALTS: Final = slice(8, 16)


@dataclass(frozen=True, slots=True)
class WalIndex:
    """What the shared memory of all processes says of the write-ahead log."""

    page_size: int
    last_frame: int
    salts: bytes
    backfilled: int
    backfilling: int

    @property
    def size(self) -> int:
        """How many bytes the log has at least."""
        return self.offset_after(self.last_frame) if self.last_frame else 0

    def offset_after(self, frames: int) -> int:
        """Return where the frame after the first `frames` begins."""
        return LOG_HEADER_BYTES + frames * (FRAME_HEADER_BYTES + self.page_size)

    def same_database(self, other: WalIndex) -> bool:
        """Whether no checkpoint changed the database between two readings."""
        return (
            self.salts == other.salts and self.backfilled == self.backfilling == other.backfilled == other.backfilling
        )


def read_index(content: bytes) -> WalIndex | None:
    """Return the wal-index, or None if it is being written."""
    header = content[: HEADER.size]
    if header != content[HEADER.size : 2 * HEADER.size]:
        return None
    initialized, page_size, last_frame, salts = HEADER.unpack(header)
    if not initialized:
        return None
    backfilled, backfilling = CHECKPOINT_INFO.unpack(content)
    # The largest page size does not fit into 16 bits, and is written as 1.
    return WalIndex(LARGEST_PAGE if page_size == 1 else page_size, last_frame, salts, backfilled, backfilling)
