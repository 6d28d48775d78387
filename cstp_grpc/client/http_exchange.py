"""One request and one response of HTTP/1.1 on a connection, by h11."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import socket
    import ssl

    import h11

MAX_HEAD_BYTES: Final = 100 * 1024
"""Maximum size of a response's head, and of the trailers of a chunked body."""
READ_BYTES: Final = 65_536
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


def encode_request(
    http: h11.Connection, method: str, target: str, headers: Mapping[str, str], body: bytes | None
) -> bytes:
    """Return the bytes of a request. Raises HttpProtocolError if HTTP cannot express it."""
    import h11

    fields = headers if body is None else {**headers, "content-length": str(len(body))}
    try:
        # Spaces around a value are no part of it.
        encoded = [(name.encode("latin-1"), value.strip(" ").encode("latin-1")) for name, value in fields.items()]
        sent = [h11.Request(method=method, target=target, headers=encoded), h11.EndOfMessage()]
        if body:
            sent.insert(1, h11.Data(body))
        return b"".join(http.send(event) or b"" for event in sent)
    except (h11.LocalProtocolError, UnicodeError):
        # Without the cause, which may quote a token.
        raise HttpProtocolError("the path or a header has characters that HTTP cannot express") from None


class HttpExchange:
    """Sends a request and reads its response: the head when it is made, then the pieces of the body.

    Raises HttpProtocolError, and the errors of the connection.
    """

    def __init__(
        self, stream: DeadlineStream, method: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> None:
        # Not loaded before it is needed: many processes only handle the errors of this module.
        import h11

        self._stream = stream
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._has_received = False
        stream.write(encode_request(self._http, method, target, headers, body))
        while isinstance(event := self._next_event(), h11.InformationalResponse):
            pass
        assert isinstance(event, h11.Response), "h11 raises an error for anything else"
        self.status: int = event.status_code
        self.headers = {name.decode("ascii"): value.decode("latin-1") for name, value in event.headers}

    def pieces(self) -> Iterator[bytes]:
        """Yield the body as it arrives."""
        import h11

        while isinstance(event := self._next_event(), h11.Data):
            yield bytes(event.data)

    def _next_event(self) -> h11.Event:
        import h11

        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(self._receive())
        except h11.RemoteProtocolError as error:
            raise HttpProtocolError(str(error)) from None
        assert not isinstance(event, type), "h11 pauses for no request that was sent whole"
        return event

    def _receive(self) -> bytes:
        data = self._stream.read()
        if not self._has_received:
            # Before anything is received it is no error of the protocol: the server is not reachable.
            if not data:
                raise ConnectionResetError("the server closed the connection without a response")
            if data[3:9] == HTTP2_SETTINGS:
                raise HttpProtocolError(SPEAKS_GRPC)
            self._has_received = True
        return data
