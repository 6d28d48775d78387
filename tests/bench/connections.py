"""Connections for load generation: HTTP/2 with gRPC framing, and HTTP/1.1, written so that the client costs little.

A general client in Python needs as much CPU for a call as the server does, so the rate that it reaches is its own.
These send requests whose bytes were made before, and read answers only as far as it takes to tell that they are some.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from time import perf_counter
from typing import Protocol

TIMEOUT = 60.0
"""Seconds to wait for any answer."""

RECEIVE_BYTES = 262_144

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
ACK = END_STREAM = 0x1
END_HEADERS = 0x4
FRAME_HEADER = 9
FIRST_WINDOW = 65_535
"""Bytes that RFC 9113 lets each side send before the other grants more."""
LARGEST_WINDOW = 2**31 - 1
EMPTY_MESSAGE = bytes(5)
"""A message of gRPC without content: it is not compressed, and no bytes long."""
STATIC_ENTRIES = 61
"""Entries of HPACK's static table (RFC 7541, appendix A), after which those of the connection are numbered."""


class Refused(Exception):
    """An answer was a failure, or the connection ended."""


class Connection(Protocol):
    """One connection that calls are made over."""

    def fileno(self) -> int:
        """Return the socket's descriptor, for select."""

    def send(self, request: bytes) -> None:
        """Begin a call."""

    def receive(self) -> Sequence[float]:
        """Wait for bytes, and return the seconds that each call took which they complete. Raises Refused."""

    def close(self) -> None:
        """Close the connection."""


class GrpcConnection:
    """Unary calls of one gRPC method over HTTP/2; requests are serialized messages."""

    def __init__(
        self, port: int, path: str, metadata: Sequence[tuple[str, str]], *, refusals_allowed: bool = False
    ) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), TIMEOUT)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._path = path
        self._refusals_allowed = refusals_allowed
        self.refused = 0
        """Calls that failed, which are counted only if refusals are allowed."""
        self._first, self._block = header_blocks(port, path, metadata)
        self._next_stream = 1
        self._window = FIRST_WINDOW
        self._started: dict[int, float] = {}
        self._answered: set[int] = set()
        self._rest = b""
        self._settings_wanted = True
        # SETTINGS_ENABLE_PUSH = 0, SETTINGS_INITIAL_WINDOW_SIZE = all that may be: answers are never waited with.
        settings = struct.pack(">HIHI", 2, 0, 4, LARGEST_WINDOW)
        more = struct.pack(">I", LARGEST_WINDOW - FIRST_WINDOW)
        self._socket.sendall(PREFACE + frame(SETTINGS, 0, 0, settings) + frame(WINDOW_UPDATE, 0, 0, more))

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    @property
    def local_port(self) -> int:
        """The port of this end."""
        port: int = self._socket.getsockname()[1]
        return port

    def wait_for_settings(self) -> None:
        """Wait until the server has begun to speak, which it does once a process has taken the connection."""
        while self._settings_wanted:
            self.receive()

    def send(self, request: bytes) -> None:
        stream = self._next_stream
        self._next_stream += 2
        message = b"\0" + len(request).to_bytes(4, "big") + request
        self._window -= len(message)
        if self._window < 0:
            raise Refused(f"{self._path}: the server's window is exhausted; send fewer or smaller requests at once")
        block, self._first = self._first or self._block, b""
        frames = frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, END_STREAM, stream, message)
        self._started[stream] = perf_counter()
        self._socket.sendall(frames)

    def receive(self) -> Sequence[float]:
        data = self._socket.recv(RECEIVE_BYTES)
        now = perf_counter()
        if not data:
            raise Refused(f"{self._path}: the server closed the connection")
        data = self._rest + data
        at, done = 0, []
        while len(data) - at >= FRAME_HEADER:
            end = at + FRAME_HEADER + (data[at] << 16 | data[at + 1] << 8 | data[at + 2])
            if end > len(data):
                break
            kind, flags = data[at + 3], data[at + 4]
            stream = int.from_bytes(data[at + 5 : at + FRAME_HEADER], "big")
            if kind == DATA:
                self._answered.add(stream)
            elif kind == HEADERS and flags & END_STREAM:
                # A failure has no message; a unary answer has one always, if an empty one.
                if stream not in self._answered:
                    if not self._refusals_allowed:
                        raise Refused(f"{self._path}: a call failed")
                    self.refused += 1
                    del self._started[stream]
                    at = end
                    continue
                self._answered.remove(stream)
                done.append(now - self._started.pop(stream))
            elif kind != HEADERS:
                self._control(kind, flags, stream, data[at + FRAME_HEADER : end])
            at = end
        self._rest = data[at:]
        return done

    def _control(self, kind: int, flags: int, stream: int, content: bytes) -> None:
        """Follow a frame that belongs to no answer."""
        if kind in (SETTINGS, PING) and not flags & ACK:
            self._settings_wanted &= kind != SETTINGS
            self._socket.sendall(frame(kind, ACK, 0, content if kind == PING else b""))
        elif kind == WINDOW_UPDATE and stream == 0:
            self._window += int.from_bytes(content, "big")
        elif kind == RST_STREAM and self._refusals_allowed:
            # After a refusal the rest of the request is not read, and its stream is reset.
            self._answered.discard(stream)
            self.refused += self._started.pop(stream, None) is not None
        elif kind in (RST_STREAM, GOAWAY):
            raise Refused(f"{self._path}: the server ended the {'stream' if kind == RST_STREAM else 'connection'}")


def frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    """Return an HTTP/2 frame."""
    return len(content).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + content


GREETING = PREFACE + frame(SETTINGS, 0, 0, b"")
"""How a client begins to speak HTTP/2."""


def beginning_of_call(port: int, path: str, metadata: Sequence[tuple[str, str]] = (), *, ended: bool = False) -> bytes:
    """Return the bytes with which a connection and its first call begin; `ended` half-closes the call at once."""
    first, _ = header_blocks(port, path, metadata)
    return GREETING + frame(HEADERS, END_HEADERS | (END_STREAM if ended else 0), 1, first)


def header_blocks(port: int, path: str, metadata: Sequence[tuple[str, str]]) -> tuple[bytes, bytes]:
    """Return the HPACK block of the first call, which adds every field to the server's table, and that of all others,
    which refers to the table as usual clients do."""
    fields = [
        (":path", path),
        (":authority", f"127.0.0.1:{port}"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        *metadata,
    ]
    # 3 and 6 in the static table: `:method: POST` and `:scheme: http`.
    fixed = bytes((0x83, 0x86))
    first = b"".join(b"\x40" + hpack_text(name) + hpack_text(value) for name, value in fields)
    later = bytes(0x80 | (STATIC_ENTRIES + number) for number in range(len(fields), 0, -1))
    return fixed + first, fixed + later


def hpack_text(text: str) -> bytes:
    """Return a text as HPACK writes it, without Huffman's code."""
    encoded = text.encode()
    if len(encoded) >= 0x7F:
        raise ValueError(f"only texts below 127 bytes are supported: {text}")
    return bytes((len(encoded),)) + encoded


class HttpConnection:
    """POST requests over HTTP/1.1, one after the other; requests are bodies."""

    def __init__(self, port: int, path: str, headers: Sequence[tuple[str, str]]) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), TIMEOUT)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._path = path
        lines = [f"POST {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", *(f"{name}: {value}" for name, value in headers)]
        self._head = "\r\n".join([*lines, "Content-Length: "]).encode()
        self._rest = b""
        self._started = 0.0

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def send(self, request: bytes) -> None:
        content = b"%b%d\r\n\r\n%b" % (self._head, len(request), request)
        self._started = perf_counter()
        self._socket.sendall(content)

    def receive(self) -> Sequence[float]:
        data = self._socket.recv(RECEIVE_BYTES)
        now = perf_counter()
        if not data:
            raise Refused(f"{self._path}: the bridge closed the connection")
        data = self._rest = self._rest + data
        head, separator, body = data.partition(b"\r\n\r\n")
        if not separator or len(body) < content_length(head):
            return ()
        self._rest = b""
        # JSON-RPC tells failures in the body, with status 200.
        if not head.startswith(b"HTTP/1.1 200") or b'"error"' in body:
            raise Refused(f"{self._path}: {body.decode()}")
        return (now - self._started,)


def content_length(head: bytes) -> int:
    """Return the length that the head of an HTTP answer tells."""
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    raise Refused("an answer without Content-Length")
