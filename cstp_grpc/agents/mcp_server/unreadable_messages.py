"""Answers to input of a host that is not a message of the protocol."""

from __future__ import annotations

import json
from types import TracebackType
from typing import Any, Final, Self

import anyio
import mcp_types
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

WHY: Final = (
    "The message cannot be read. It must be JSON-RPC 2.0 in JSON, without halves of surrogate pairs in its texts."
)


class WrappedStream:
    """A wrapper that closes the wrapped stream with itself."""

    def __init__(self, wrapped: ReadStream[Any] | WriteStream[Any]) -> None:
        self._wrapped = wrapped

    async def aclose(self) -> None:
        await self._wrapped.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class ReadableMessages(WrappedStream):
    """The messages of a host; unreadable ones are answered here and left out.

    The SDK does not answer them, and the host would wait in vain. An example is a model's text cut within an emoji.
    """

    def __init__(self, received: ReadStream[SessionMessage | Exception], sent: WriteStream[SessionMessage]) -> None:
        super().__init__(received)
        self._received = received
        self._sent = sent

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message. Raises anyio.EndOfStream."""
        while isinstance(item := await self._received.receive(), Exception):
            if (answer := answer_unreadable(item)) is not None:
                await self._sent.send(SessionMessage(answer))
        return item

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


def answer_unreadable(error: Exception) -> mcp_types.JSONRPCError | None:
    """Return the answer to an unreadable message, or None if it was not a request."""
    text = unparsed_text(error)
    if text is None:
        failed = mcp_types.ErrorData(code=mcp_types.INVALID_REQUEST, message=WHY)
        return mcp_types.JSONRPCError(jsonrpc="2.0", id=None, error=failed)
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        message = None
    # This parser can read the message: answers and notifications get no answer.
    if isinstance(message, dict) and not message.keys() >= {"id", "method"}:
        return None
    number = message["id"] if isinstance(message, dict) else None
    failed = mcp_types.ErrorData(code=mcp_types.PARSE_ERROR, message=WHY)
    return mcp_types.JSONRPCError(jsonrpc="2.0", id=number if is_request_id(number) else None, error=failed)


def unparsed_text(error: Exception) -> str | None:
    """Return the text that the SDK could not parse as JSON, or None if it was JSON but not a message."""
    details = error.errors(include_url=False)[0] if isinstance(error, ValidationError) else None
    return str(details["input"]) if details is not None and details["type"] == "json_invalid" else None


def is_request_id(value: object) -> bool:
    return type(value) is int or (isinstance(value, str) and value.isprintable())
