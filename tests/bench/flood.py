"""Offer searches at a rate, whatever is answered, until this process is ended: `python -m tests.bench.flood PORT RATE`.

Every second it writes how many were offered, answered and refused so far, as JSON.
"""

from __future__ import annotations

import json
import selectors
import sys
import time
from contextlib import ExitStack
from typing import Any

from tests.bench.clients import OTHER_TOKEN, Parameters, cstp_method
from tests.bench.connections import GrpcConnection

CONNECTIONS = 4
MOST_OPEN = 4_000
"""Calls in flight beyond which none is added; callers beyond these would have given up."""
TEXTS = 20_000
"""Texts that are searched by, more than a server keeps the vectors of."""
TICK = 0.005
"""The most seconds between two bursts."""


class Flood:
    """Searches of new texts, over several connections, at a rate."""

    def __init__(self, port: int, rate: float) -> None:
        params = Parameters()
        method = cstp_method(port, "cstp.queryDecisions", params.query_uncached, OTHER_TOKEN)
        self._requests = [method.request() for _ in range(TEXTS)]
        metadata = (*method.metadata, ("grpc-timeout", "60S"))
        self.connections = [
            GrpcConnection(port, method.path, metadata, refusals_allowed=True) for _ in range(CONNECTIONS)
        ]
        self._pause = 1 / rate
        self._due = time.perf_counter()
        self.offered = self.answered = 0

    @property
    def refused(self) -> int:
        """How many were refused."""
        return sum(each.refused for each in self.connections)

    def offer(self) -> float:
        """Send what is due, and return the seconds until more is."""
        now = time.perf_counter()
        finished = self.answered + self.refused
        while self._due <= now and self.offered - finished < MOST_OPEN:
            connection = self.connections[self.offered % CONNECTIONS]
            connection.send(self._requests[self.offered % TEXTS])
            self.offered += 1
            self._due += self._pause
        # What could not be offered for a second is given up.
        self._due = max(self._due, now - 1)
        return min(max(self._due - time.perf_counter(), 0.0), TICK)


def main() -> None:
    flood = Flood(int(sys.argv[1]), float(sys.argv[2]))
    with ExitStack() as opened, selectors.DefaultSelector() as selector:
        for connection in flood.connections:
            opened.callback(connection.close)
            connection.wait_for_settings()
            selector.register(connection, selectors.EVENT_READ)
        began = reported = time.perf_counter()
        while True:
            for key, _ in selector.select(flood.offer()):
                ready: Any = key.fileobj
                flood.answered += len(ready.receive())
            now = time.perf_counter()
            if now - reported >= 1:
                counts = {"offered": flood.offered, "answered": flood.answered, "refused": flood.refused}
                print(json.dumps({**counts, "seconds": now - began}), flush=True)
                reported = now


if __name__ == "__main__":
    main()
