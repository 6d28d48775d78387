"""A bound on the exports that each agent has open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from cstp_grpc.errors import RateLimited


class ExportLimit:
    """Bounds the open exports of each agent; `setting` names where the bound is set. For one event loop.

    An export whose caller does not read holds decisions in memory for as long as its connection lasts.
    """

    def __init__(self, per_agent: int, setting: str) -> None:
        self._per_agent = per_agent
        self._setting = setting
        self._open: Counter[str] = Counter()

    @contextmanager
    def hold(self, agent: str) -> Iterator[None]:
        """Count an export of an agent for the length of a block. Raises RateLimited if it has too many."""
        if self._open[agent] >= self._per_agent:
            # Without a retry time, as nobody knows when an export ends; so clients raise it instead of retrying.
            raise RateLimited(
                f"{agent} may have no more exports open: the limit of an agent is {self._per_agent} "
                f"({self._setting}); end one first",
                metadata={"limit": str(self._per_agent)},
            )
        self._open[agent] += 1
        try:
            yield
        finally:
            self._open[agent] -= 1
            if not self._open[agent]:
                # Otherwise it would keep an entry for each agent that ever exported.
                del self._open[agent]
