"""Batches of tokenised texts, and the threads that work on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

BATCH_TOKENS = 256
"""Tokens of a batch, padding included; a longer text is a batch of its own. Measured on real records: with 2048 tokens
the intermediate arrays of a transformer leave the processor's caches, and a text takes a third more CPU time.
"""


def batch_by_length(lengths: Sequence[int], max_tokens: int = BATCH_TOKENS) -> Iterator[list[int]]:
    """Yield the positions of texts in batches of similar length, the longest texts first."""
    batch: list[int] = []
    longest = 0
    # The longest first, so that threads which share the batches end at nearly the same time.
    for index in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        # All texts of a batch are padded to its first.
        if batch and (len(batch) + 1) * longest > max_tokens:
            yield batch
            batch = []
        longest = longest if batch else lengths[index]
        batch.append(index)
    if batch:
        yield batch


@dataclass(frozen=True, slots=True)
class EmbeddingThreads:
    """Threads of an embedder: for one batch of texts, and for how many batches at once."""

    per_batch: int = 1
    batches: int = 1


ONE_THREAD = EmbeddingThreads()


class BatchThreads:
    """Runs work on batches with several threads, which all calls share; a single batch runs on the caller's thread."""

    def __init__(self, threads: int) -> None:
        # Its threads start with the first work that needs them, so that a server without imports has none.
        self._pool = ThreadPoolExecutor(threads, "embedding") if threads > 1 else None

    def run(self, work: Callable[[list[int]], None], batches: Sequence[list[int]]) -> None:
        """Call `work` with each batch. Raises what `work` raises for the first batch that fails."""
        if self._pool is None or len(batches) < 2:
            for batch in batches:
                work(batch)
        else:
            # Exhausted, since `map` raises the error of a batch only when its result is taken.
            for _ in self._pool.map(work, batches):
                pass
