"""One request and one response of HTTP/1.1 on a connection (RFC 9112), by the standard library alone.

Commands wait for their imports, and the parsers of httpcore and of `http.client` take longer than a call.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import socket
    import ssl

MAX_HEAD_BYTES: Final = 100 * 1024
"""Maximum size of a response's head, and of the trailers of a chunked body."""
MAX_CHUNK_LINE: Final = 4096
"""Maximum length of the line with a chunk's size and its extensions."""
READ_BYTES: Final = 65_536

NAME: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
VISIBLE: Final = frozenset(map(chr, range(0x21, 0x7F)))
VALUE: Final = VISIBLE | {" ", "\t"} | frozenset(map(chr, range(0x80, 0x100)))
"""The characters of the value of a header."""
STATUS_LINE: Final = re.compile(r"HTTP/1\.\d ([1-9]\d\d)(?: [\t -~\x80-\xff]*)?")
HEADER_LINE: Final = re.compile(rf"({NAME}):[ \t]*([\t -~\x80-\xff]*?)[ \t]*")
CHUNK_LINE: Final = rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n]*)?\r?\n"
LENGTH: Final = re.compile(r"[0-9]{1,18}")
FRAMING: Final = frozenset({"content-length", "transfer-encoding"})
"""The headers that state where the body ends."""
LINE_END: Final = re.compile(rb"\n")
HEAD_END: Final = re.compile(rb"\n\r?\n")
WITHOUT_BODY: Final = frozenset({101, 204, 304})
"""The statuses of responses that have no body."""
HTTP2_SETTINGS: Final = b"\x04\x00\x00\x00\x00\x00"
"""The bytes after the length in the SETTINGS frame with which each server of HTTP/2 begins (RFC 9113, section 3.4)."""

SPEAKS_GRPC: Final = "it speaks gRPC and not HTTP; the address of a gRPC server is grpc://HOST:PORT"


class HttpProtocolError(Exception):
    """A response is not HTTP, or a request cannot be expressed in HTTP."""


class DeadlineStream:
    """A connection with one deadline for all reads and writes."""

    def __init__(self, raw: socket.socket, deadline: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._raw = raw
        self._deadline = deadline
        self._clock = clock

    def start_tls(self, tls: ssl.SSLContext, host: str) -> None:
        """Encrypt the following bytes. Raises TimeoutError after the deadline, and other OSErrors."""
        self._apply_deadline()
        # By the name and not by the address that was dialled: the name is what the certificate must be for.
        self._raw = tls.wrap_socket(self._raw, server_hostname=host)

    def read(self) -> bytes:
        """Return the available bytes, at least one unless at the end. Raises TimeoutError after the deadline."""
        self._apply_deadline()
        return self._raw.recv(READ_BYTES)

    def write(self, content: bytes) -> None:
        """Send bytes. Raises TimeoutError after the deadline."""
        self._apply_deadline()
        # The response is read after a failure, too: the server may have sent it before it closed.
        with suppress(BrokenPipeError, ConnectionResetError):
            self._raw.sendall(content)

    def close(self) -> None:
        self._raw.close()

    def _apply_deadline(self) -> None:
        left = self._deadline - self._clock()
        if left <= 0:
            raise TimeoutError("timed out")
        self._raw.settimeout(left)


def encode_request(method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
    """Return the bytes of a request. Raises HttpProtocolError if HTTP cannot express it."""
    if not VISIBLE.issuperset(target):
        raise HttpProtocolError("the path has characters that must be escaped")
    lines = [f"{method} {target} HTTP/1.1"]
    for name, value in (headers if body is None else {**headers, "content-length": str(len(body))}).items():
        # Spaces around a value are no part of it.
        if not re.fullmatch(NAME, name) or not VALUE.issuperset(value):
            raise HttpProtocolError(f"the header {name} has characters that HTTP cannot express")
        lines.append(f"{name}: {value.strip(' ')}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


class ResponseReader:
    """Reads a response from a connection: the head when it is made, then the pieces of the body.

    Raises HttpProtocolError, and the errors of the connection.
    """

    def __init__(self, stream: DeadlineStream, method: str) -> None:
        self._stream = stream
        self._received = bytearray()
        self.status = 0
        self.headers: Mapping[str, str] = {}
        while self.status < 200 and self.status not in WITHOUT_BODY:
            self.status, self.headers = self._read_head()
        self._bodiless = method == "HEAD" or self.status in WITHOUT_BODY

    def pieces(self) -> Iterator[bytes]:
        """Yield the body as it arrives."""
        coding, length = self.headers.get("transfer-encoding"), self.headers.get("content-length")
        if self._bodiless:
            return
        if coding is not None:
            if coding.lower() != "chunked":
                raise HttpProtocolError(f"the transfer encoding {coding} is not supported")
            yield from self._chunks()
        elif length is not None:
            yield from self._counted(int(length))
        else:
            yield bytes(self._received)
            while piece := self._stream.read():
                yield piece

    def _read_head(self) -> tuple[int, Mapping[str, str]]:
        """Read a status line and headers, whose names are returned in lower case."""
        head = self._read_until(HEAD_END, MAX_HEAD_BYTES).decode("latin-1")
        # A header may be folded into several lines, as HTTP/1.0 had it.
        first, *lines = re.split(r"\r?\n", re.sub(r"\r?\n[ \t]+", " ", head.rstrip("\r\n")))
        status = STATUS_LINE.fullmatch(first)
        if status is None:
            raise HttpProtocolError("the response is not HTTP/1.1")
        headers: dict[str, str] = {}
        for line in lines:
            found = HEADER_LINE.fullmatch(line)
            if found is None:
                raise HttpProtocolError("the response has an invalid header")
            name, value = found[1].lower(), found[2]
            if name == "content-length" and not LENGTH.fullmatch(value):
                raise HttpProtocolError("the response has an invalid Content-Length")
            if name in FRAMING and headers.get(name, value) != value:
                raise HttpProtocolError(f"the response has several headers {name}")
            headers[name] = value
        return int(status[1]), headers

    def _read_until(self, end: re.Pattern[bytes], limit: int) -> bytes:
        """Return the bytes through a match of `end`."""
        begin = 0
        while (found := end.search(self._received, begin)) is None:
            if len(self._received) > limit:
                raise HttpProtocolError(f"more than {limit} bytes were sent before the body")
            begin = max(len(self._received) - 2, 0)
            self._receive()
        return self._take(found.end())

    def _counted(self, length: int) -> Iterator[bytes]:
        while length:
            if not self._received:
                self._receive()
            piece = self._take(length)
            length -= len(piece)
            yield piece

    def _chunks(self) -> Iterator[bytes]:
        while size := self._chunk_size():
            yield from self._counted(size)
            if self._read_until(LINE_END, 2).strip():
                raise HttpProtocolError("a chunk is longer than its size")
        # The trailers, which are ignored, end with an empty line.
        while self._read_until(LINE_END, MAX_HEAD_BYTES).strip():
            pass

    def _chunk_size(self) -> int:
        found = re.fullmatch(CHUNK_LINE, self._read_until(LINE_END, MAX_CHUNK_LINE))
        if found is None:
            raise HttpProtocolError("a chunk has no size")
        return int(found[1], 16)

    def _receive(self) -> None:
        data = self._stream.read()
        if not data:
            # Before anything is received it is no error of the protocol: the server is not reachable.
            if not (self._received or self.status):
                raise ConnectionResetError("the server closed the connection without a response")
            raise HttpProtocolError("the server closed the connection before the end of the response")
        if not (self._received or self.status) and data[3:9] == HTTP2_SETTINGS:
            raise HttpProtocolError(SPEAKS_GRPC)
        self._received += data

    def _take(self, count: int) -> bytes:
        taken = bytes(self._received[:count])
        del self._received[:count]
        return taken
