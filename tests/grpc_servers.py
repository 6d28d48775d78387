"""gRPC servers of the tests' own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc

from tests.waiting import SECONDS


@contextmanager
def grpc_server(
    add: Callable[[grpc.Server], object],
    *,
    threads: int = 4,
    address: str = "127.0.0.1:0",
    tls: Sequence[tuple[bytes, bytes]] = (),
    options: Sequence[tuple[str, int]] = (),
) -> Iterator[int]:
    """Run a server for the length of a block and yield its port; `add` gives it what it serves.

    `tls` is its key and its certificate; without them it is plain.
    """
    with ThreadPoolExecutor(threads) as pool:
        server = grpc.server(pool, options=options)
        add(server)
        if tls:
            port = server.add_secure_port(address, grpc.ssl_server_credentials(list(tls)))
        else:
            port = server.add_insecure_port(address)
        server.start()
        try:
            yield port
        finally:
            server.stop(0).wait(SECONDS)
