"""The latest events of a session's streams, so that a host can resume after its connection broke."""

from __future__ import annotations

from collections import deque
from typing import Final

import mcp_types
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore

from cstp_grpc.common.lazy_dataclass import dataclass

MAX_EVENTS: Final = 256
"""Maximum number of events kept for a session. Chosen: far more than occur during a reconnection."""
MAX_BYTES: Final = 1024 * 1024
"""Maximum size in bytes of the events kept for a session; the latest event is always kept."""


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event of a stream; without a message it only marks the start of a stream."""

    number: int
    stream: str
    message: mcp_types.JSONRPCMessage | None
    size: int


class SessionEventStore(EventStore):
    """The latest events of one session. Ids are numbers, since no other session can ask for them here."""

    def __init__(self) -> None:
        self._events: deque[StoredEvent] = deque()
        self._bytes = 0
        self._newest = 0

    async def store_event(self, stream_id: str, message: mcp_types.JSONRPCMessage | None) -> str:
        self._newest += 1
        size = 0 if message is None else len(message.model_dump_json(by_alias=True, exclude_unset=True))
        self._events.append(StoredEvent(self._newest, stream_id, message, size))
        self._bytes += size
        while len(self._events) > 1 and (len(self._events) > MAX_EVENTS or self._bytes > MAX_BYTES):
            self._bytes -= self._events.popleft().size
        return str(self._newest)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        stream = next((event.stream for event in self._events if str(event.number) == last_event_id), None)
        if stream is None:
            return None
        last = int(last_event_id)
        # Copied: while sending waits, events may be stored and dropped.
        for event in [each for each in self._events if each.stream == stream and each.number > last]:
            if event.message is not None:
                await send_callback(EventMessage(event.message, str(event.number)))
        return stream
