"""A stand-in for a Redis that checks a password, for machines without one."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def redis_with_password(password: str) -> Iterator[int]:
    """Serve for the length of a block and yield the port. A right password is answered with OK, PING with PONG."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while command := self.read_command():
                self.wfile.write(self.answer(*command))

        def read_command(self) -> list[bytes]:
            # A command is `*N`, then N texts as `$LENGTH` and the text (https://redis.io/docs/latest/develop/reference/protocol-spec).
            parts = int(self.rfile.readline()[1:] or 0)
            found = []
            for _ in range(parts):
                length = int(self.rfile.readline()[1:])
                found.append(self.rfile.read(length + 2)[:-2])
            return found

        def answer(self, name: bytes, *arguments: bytes) -> bytes:
            command = name.upper()
            # Newer clients authenticate with HELLO, whose answer is a map.
            if command in (b"AUTH", b"HELLO") and arguments[-1] != password.encode():
                return b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"
            return {b"HELLO": b"%1\r\n+proto\r\n:3\r\n", b"PING": b"+PONG\r\n"}.get(command, b"+OK\r\n")

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
