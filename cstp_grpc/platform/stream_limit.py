"""A bound on the streams of one kind that each caller has open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from cstp_grpc.contract.errors import RateLimited


class StreamLimit:
    """Bounds the open streams of each caller; `what` names them, `setting` is the bound's. For one event loop.

    A stream that is not read, or that waits for an event that may never come, uses memory and counts until its
    connection ends.
    """

    def __init__(self, what: str, per_caller: int, setting: str) -> None:
        self._what = what
        self._per_caller = per_caller
        self._setting = setting
        self._open: Counter[Hashable] = Counter()

    @contextmanager
    def hold(self, caller: Hashable) -> Iterator[None]:
        """Count a stream of a caller for the length of a block. Raises RateLimited if it has too many."""
        if self._open[caller] >= self._per_caller:
            # Without a retry time, as nobody knows when a stream ends; so clients raise it instead of retrying.
            raise RateLimited(
                f"No more {self._what} may be open: the limit of a caller is {self._per_caller} ({self._setting}); "
                "end one first",
                metadata={"limit": str(self._per_caller)},
            )
        self._open[caller] += 1
        try:
            yield
        finally:
            self._open[caller] -= 1
            if not self._open[caller]:
                # Otherwise it would keep an entry for each caller there ever was.
                del self._open[caller]
