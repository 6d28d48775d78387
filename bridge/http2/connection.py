"""A connection to an HTTP/2 server (RFC 9113), which carries many requests at a time."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable
from typing import Final, cast

from bridge.http2.header_blocks import Header, HeaderBlockError, decode_header_block

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEADER_BYTES: Final = 9
DATA, HEADERS, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 5, 6, 7, 8, 9
"""The types of frames (RFC 9113, section 6); those of any other are ignored."""
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY = 0x20
PRIORITY_BYTES: Final = 5
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = (
    1,
    2,
    3,
    4,
    5,
    6,
)
"""The settings (RFC 9113, section 6.5.2)."""
FIRST_WINDOW: Final = 65_535
"""Bytes that each side may send before the other says more (RFC 9113, section 6.9.2)."""
LARGEST_WINDOW: Final = 2**31 - 1
FRAME_BYTES: Final = 16_384
"""The largest content of a frame unless its receiver allows more; this client does not (RFC 9113, section 4.2)."""
LAST_STREAM: Final = 2**31 - 1
NO_ERROR, PROTOCOL_ERROR, REFUSED_STREAM, CANCEL = 0x0, 0x1, 0x7, 0x8
"""Error codes (RFC 9113, section 7)."""
CLOSE_SECONDS: Final = 1.0
"""How long a server may take to confirm the end of a TLS connection. Chosen: a few round trips."""


class RequestFailed(Exception):
    """A request got no response; `processed` tells whether the server may have done what it asks for."""

    def __init__(self, message: str, *, processed: bool) -> None:
        super().__init__(message)
        self.processed = processed


class StreamReset(RequestFailed):
    """The server ended a request with an error code of HTTP/2."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the server ended the stream with the error {code}", processed=code != REFUSED_STREAM)
        self.code = code


class ConnectionLost(RequestFailed):
    """The connection ended before the response was there."""


class Http2ProtocolError(Exception):
    """The server sent what HTTP/2 does not allow."""


class Http2Response:
    """The response to a request: the header blocks before and after its content."""

    __slots__ = ("chunks", "headers", "trailers")

    def __init__(self) -> None:
        self.headers: list[Header] | None = None
        self.trailers: list[Header] = []
        """Empty also if there was no content: the headers were the last then."""
        self.chunks: list[bytes] = []

    @property
    def content(self) -> bytes:
        """The content of the response."""
        return self.chunks[0] if len(self.chunks) == 1 else b"".join(self.chunks)


class Http2Stream:
    """A request whose response has not ended."""

    __slots__ = ("response", "result", "send_window")

    def __init__(self, result: asyncio.Future[Http2Response], send_window: int) -> None:
        self.response = Http2Response()
        self.result = result
        self.send_window = send_window
        """Bytes of content that the server takes of this request; a setting may make it negative."""

    def fail(self, error: RequestFailed) -> None:
        """Tell the caller that there will be no response."""
        if not self.result.done():
            self.result.set_exception(error)


class Http2Connection(asyncio.Protocol):
    """A connection of a client. For one event loop.

    `on_lost` is called once the connection is closed. Responses may have any length, and header blocks up to
    `max_header_bytes`.
    """

    def __init__(self, on_lost: Callable[[Http2Connection], object], max_header_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_lost = on_lost
        self._max_header_bytes = max_header_bytes
        self._transport: asyncio.Transport | None = None
        self._lost = asyncio.Event()
        self._streams: dict[int, Http2Stream] = {}
        self._next_stream = 1
        self._ended = False
        """Whether no further request can begin."""
        self._rest = b""
        """The beginning of a frame whose end has not arrived."""
        self._block: tuple[int, int, list[bytes]] | None = None
        """The stream, flags and parts of a header block that goes on in the next frame."""
        self._send_window = FIRST_WINDOW
        self._first_stream_window = FIRST_WINDOW
        self._frame_bytes = FRAME_BYTES
        self._max_streams = LAST_STREAM
        self._received = 0
        """Bytes of content since the server was last told that it may send more."""
        self._changes: list[asyncio.Future[None]] = []
        """Those who wait for more room for streams or content."""

    @property
    def is_usable(self) -> bool:
        """Whether a request can begin."""
        return not self._ended

    async def request(self, headers: bytes, content: bytes) -> Http2Response:
        """Send a request and return the response. Raises RequestFailed; if cancelled, the server is told.

        `headers` is a header block of at most FRAME_BYTES.
        """
        while len(self._streams) >= self._max_streams and not self._ended:
            await self._wait_for_change()
        if self._ended or self._transport is None:
            raise ConnectionLost("the connection takes no more requests", processed=False)
        number = self._next_stream
        self._next_stream += 2
        if self._next_stream > LAST_STREAM:
            # Numbers of streams are never used again (RFC 9113, section 5.1.1).
            self._ended = True
        stream = self._streams[number] = Http2Stream(self._loop.create_future(), self._first_stream_window)
        beginning = encode_frame(HEADERS, END_HEADERS, number, headers)
        try:
            if len(content) <= min(self._send_window, stream.send_window, self._frame_bytes):
                # Nearly all requests: one write, and so one packet.
                self._take_window(stream, len(content))
                self._transport.write(beginning + encode_frame(DATA, END_STREAM, number, content))
            else:
                self._transport.write(beginning)
                await self._send_in_parts(number, stream, content)
            return await stream.result
        finally:
            if self._streams.pop(number, None) is not None:
                # The caller was cancelled, since a stream that ends removes itself.
                self._write(encode_frame(RST_STREAM, 0, number, CANCEL.to_bytes(4)))
                self._note_change()
                self._close_when_idle()

    async def close(self) -> None:
        """Close the connection and wait until it is; requests without a response are cancelled."""
        for stream in self._streams.values():
            stream.result.cancel()
        if self._transport is not None:
            self._write(goaway_frame(NO_ERROR))
            self._transport.close()
        try:
            # With TLS, the server has to confirm it.
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._lost.wait()
        except TimeoutError:
            if self._transport is not None:
                self._transport.abort()
            await self._lost.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the preface and the settings."""
        self._transport = cast(asyncio.Transport, transport)
        settings = {
            # The blocks of the server then depend on nothing before them, see `header_blocks`.
            HEADER_TABLE_SIZE: 0,
            ENABLE_PUSH: 0,
            # As much as can be: the caller is waiting for all of it.
            INITIAL_WINDOW_SIZE: LARGEST_WINDOW,
            MAX_HEADER_LIST_SIZE: self._max_header_bytes,
        }
        content = b"".join(struct.pack(">HI", *each) for each in settings.items())
        self._transport.write(
            PREFACE + encode_frame(SETTINGS, 0, 0, content) + window_update_frame(LARGEST_WINDOW - FIRST_WINDOW)
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the requests without a response."""
        self._transport = None
        self._lost.set()
        self._on_lost(self)
        self._drop(ConnectionLost(f"the connection broke: {exc or 'the server closed it'}", processed=True))

    def data_received(self, data: bytes) -> None:
        """Read the frames that are complete."""
        if self._rest:
            data = self._rest + data
        at = 0
        try:
            while len(data) - at >= FRAME_HEADER_BYTES:
                end = at + FRAME_HEADER_BYTES + frame_length(data, at)
                if end > len(data):
                    break
                stream = int.from_bytes(data[at + 5 : at + FRAME_HEADER_BYTES]) & LAST_STREAM
                self._read_frame(data[at + 3], data[at + 4], stream, data[at + FRAME_HEADER_BYTES : end])
                at = end
        except (Http2ProtocolError, HeaderBlockError) as error:
            self._write(goaway_frame(PROTOCOL_ERROR))
            self._drop(ConnectionLost(f"the server does not speak HTTP/2: {error}", processed=True))
            if self._transport is not None:
                self._transport.abort()
            return
        self._rest = data[at:]

    def _read_frame(self, kind: int, flags: int, number: int, content: bytes) -> None:
        """Read a frame. Raises Http2ProtocolError and HeaderBlockError."""
        if (self._block is None) is (kind == CONTINUATION):
            raise Http2ProtocolError("the frames of a header block are not one after the other")
        if kind == DATA:
            self._read_data(flags, number, content)
        elif kind == HEADERS:
            content = remove_padding(flags, content)[PRIORITY_BYTES if flags & PRIORITY else 0 :]
            self._read_header_block(flags, number, [content])
        elif kind == CONTINUATION:
            assert self._block is not None, "it was just looked at"
            begun, first_flags, parts = self._block
            if begun != number:
                raise Http2ProtocolError("a header block goes on in another stream")
            self._read_header_block(first_flags | flags, number, [*parts, content])
        elif kind == RST_STREAM:
            self._fail_stream(number, StreamReset(read_number(content)))
        elif kind == WINDOW_UPDATE:
            self._widen(number, read_number(content) & LAST_STREAM)
        elif kind == SETTINGS:
            self._read_settings(flags, content)
        elif kind == PING:
            if not flags & ACK:
                self._write(encode_frame(PING, ACK, 0, content))
        elif kind == GOAWAY:
            self._read_goaway(read_number(content) & LAST_STREAM)
        elif kind == PUSH_PROMISE:
            raise Http2ProtocolError("a push, which was forbidden")

    def _read_data(self, flags: int, number: int, content: bytes) -> None:
        # Also content that nobody waits for any more, and padding, count.
        self._received += len(content)
        if self._received > LARGEST_WINDOW // 2:
            self._write(window_update_frame(self._received))
            self._received = 0
        stream = self._streams.get(number)
        if stream is None:
            return
        if stream.response.headers is None:
            raise Http2ProtocolError("content before its headers")
        stream.response.chunks.append(remove_padding(flags, content))
        if flags & END_STREAM:
            self._finish(number, stream)

    def _read_header_block(self, flags: int, number: int, parts: list[bytes]) -> None:
        """Read a header block if it is complete, else keep its parts."""
        if sum(map(len, parts)) > self._max_header_bytes:
            raise Http2ProtocolError("a header block that is too long")
        if not flags & END_HEADERS:
            self._block = (number, flags, parts)
            return
        self._block = None
        headers = decode_header_block(b"".join(parts))
        stream = self._streams.get(number)
        if stream is None:
            return
        if stream.response.headers is not None:
            stream.response.trailers = headers
        elif not is_informational(headers):
            stream.response.headers = headers
        if flags & END_STREAM:
            self._finish(number, stream)

    def _finish(self, number: int, stream: Http2Stream) -> None:
        """Give a caller its response."""
        del self._streams[number]
        if not stream.result.done():
            stream.result.set_result(stream.response)
        # One who is still sending content ends, and one who waits for a stream begins.
        self._note_change()
        self._close_when_idle()

    def _fail_stream(self, number: int, error: RequestFailed) -> None:
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream.fail(error)
        self._note_change()
        self._close_when_idle()

    def _read_settings(self, flags: int, content: bytes) -> None:
        if flags & ACK:
            return
        if len(content) % 6:
            raise Http2ProtocolError("settings of a wrong length")
        for key, value in struct.iter_unpack(">HI", content):
            if key == MAX_CONCURRENT_STREAMS:
                self._max_streams = value
            elif key == MAX_FRAME_SIZE:
                self._frame_bytes = max(value, FRAME_BYTES)
            elif key == INITIAL_WINDOW_SIZE:
                if value > LARGEST_WINDOW:
                    raise Http2ProtocolError("a window that is too large")
                # It changes the windows of open streams too (RFC 9113, section 6.9.2).
                for stream in self._streams.values():
                    stream.send_window += value - self._first_stream_window
                self._first_stream_window = value
        self._write(encode_frame(SETTINGS, ACK, 0, b""))
        self._note_change()

    def _read_goaway(self, last: int) -> None:
        """Begin no further request; those beyond `last` were not processed, and the others go on."""
        self._ended = True
        for number in [each for each in self._streams if each > last]:
            self._fail_stream(number, ConnectionLost("the server closes the connection", processed=False))
        self._close_when_idle()

    def _widen(self, number: int, bytes_more: int) -> None:
        """Note that the server takes more content, of one stream or of all."""
        if number == 0:
            self._send_window += bytes_more
        elif (stream := self._streams.get(number)) is not None:
            stream.send_window += bytes_more
        self._note_change()

    async def _send_in_parts(self, number: int, stream: Http2Stream, content: bytes) -> None:
        """Send the content of a request as fast as the server takes it, or until the response is there."""
        sent = 0
        while sent < len(content) and not stream.result.done():
            count = min(self._send_window, stream.send_window, self._frame_bytes, len(content) - sent)
            if count <= 0:
                await self._wait_for_change()
                continue
            self._take_window(stream, count)
            part = content[sent : sent + count]
            sent += count
            self._write(encode_frame(DATA, END_STREAM if sent == len(content) else 0, number, part))
        if sent < len(content) and not stream.result.exception():
            # The server has answered without reading the rest.
            self._write(encode_frame(RST_STREAM, 0, number, CANCEL.to_bytes(4)))

    def _take_window(self, stream: Http2Stream, count: int) -> None:
        self._send_window -= count
        stream.send_window -= count

    async def _wait_for_change(self) -> None:
        changed = self._loop.create_future()
        self._changes.append(changed)
        await changed

    def _note_change(self) -> None:
        """Wake those who wait for room, each of whom looks whether there is some now."""
        if not self._changes:
            return
        changes, self._changes = self._changes, []
        for each in changes:
            if not each.done():
                each.set_result(None)

    def _write(self, content: bytes) -> None:
        # What the server's windows do not allow is never written, so what the transport buffers has a bound.
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(content)

    def _close_when_idle(self) -> None:
        if self._ended and not self._streams and self._transport is not None:
            self._transport.close()

    def _drop(self, error: RequestFailed) -> None:
        """Fail all requests."""
        self._ended = True
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(error)
        self._note_change()


def encode_frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    """Return a frame."""
    return len(content).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + content


def frame_length(data: bytes, at: int) -> int:
    """Return the length of the content of the frame at a position. Raises Http2ProtocolError if it is too long."""
    length = int.from_bytes(data[at : at + 3])
    if length > FRAME_BYTES:
        raise Http2ProtocolError(f"a frame of {length} bytes")
    return length


def window_update_frame(bytes_more: int) -> bytes:
    """Return the frame that allows the server to send more content, over all streams together."""
    return encode_frame(WINDOW_UPDATE, 0, 0, bytes_more.to_bytes(4))


def goaway_frame(code: int) -> bytes:
    """Return the frame by which this side ends the connection; the server has begun no streams."""
    return encode_frame(GOAWAY, 0, 0, struct.pack(">II", 0, code))


def remove_padding(flags: int, content: bytes) -> bytes:
    """Return the content of a frame without its padding. Raises Http2ProtocolError."""
    if not flags & PADDED:
        return content
    if not content or content[0] >= len(content):
        raise Http2ProtocolError("a frame with more padding than content")
    return content[1 : len(content) - content[0]]


def read_number(content: bytes) -> int:
    """Return the number with which the content of a frame begins. Raises Http2ProtocolError."""
    if len(content) < 4:
        raise Http2ProtocolError("a frame that is too short")
    return int.from_bytes(content[:4])


def is_informational(headers: Iterable[Header]) -> bool:
    """Return whether headers are those of a response that another one follows (RFC 9110, section 15.2)."""
    return any(name == ":status" and value.startswith("1") for name, value in headers)
