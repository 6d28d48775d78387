"""No message is lost and no session is handed over twice when the server is killed, whatever it was doing."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import grpc
import pytest

from cstp_grpc.gen.liaison.v1 import liaison_pb2, liaison_pb2_grpc
from tests.killing import killed_at_work
from tests.test_kill import METADATA, Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

KILLS = 10
GUIDES = 4
MESSAGES = 3
TIMEOUT = 30
GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


@dataclass
class Conversation:
    """What a guide tried with one session, and what it was told is done."""

    session_id: str
    opened: bool = False
    said: int = 0
    """How many messages were acknowledged."""
    answer: bytes | None = None
    """The answer of the routing, if it came."""


@dataclass
class Conversations:
    """All sessions of all guides."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    found: list[Conversation] = field(default_factory=list)

    def begin(self) -> Conversation:
        conversation = Conversation(uuid.uuid4().hex)
        with self.lock:
            self.found.append(conversation)
        return conversation


class Guide:
    """Opens sessions, says something in them and hands them over."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._stub = liaison_pb2_grpc.LiaisonServiceStub(channel)

    def heartbeat(self) -> None:
        self._stub.Heartbeat(
            liaison_pb2.HeartbeatRequest(target_pillar="content"), metadata=(METADATA,), timeout=TIMEOUT
        )

    def open(self, conversation: Conversation) -> None:
        session_id = conversation.session_id
        wanted = liaison_pb2.OpenSessionRequest(user_id=session_id, chat_session_id=session_id)
        self._stub.OpenSession(wanted, metadata=(METADATA,), timeout=TIMEOUT)
        conversation.opened = True

    def say(self, conversation: Conversation, number: int) -> None:
        message = liaison_pb2.AppendMessageRequest(
            chat_session_id=conversation.session_id,
            role=liaison_pb2.MESSAGE_ROLE_USER,
            content=f"message {number}",
            message_id=f"m-{number}",
        )
        self._stub.AppendMessage(message, metadata=(METADATA,), timeout=TIMEOUT)
        conversation.said = number

    def route(self, conversation: Conversation) -> bytes:
        wanted = liaison_pb2.RouteToLiaisonAgentRequest(
            target_pillar="content", chat_session_id=conversation.session_id
        )
        answer = self._stub.RouteToLiaisonAgent(wanted, metadata=(METADATA,), timeout=TIMEOUT)
        return answer.SerializeToString(deterministic=True)

    def finish(self, conversation: Conversation) -> None:
        """Do whatever of a conversation is not done, and prove what was done before."""
        if not conversation.opened:
            self.open(conversation)
        for number in range(conversation.said + 1, MESSAGES + 1):
            self.say(conversation, number)
        answer = self.route(conversation)
        assert conversation.answer in (None, answer)
        conversation.answer = answer

    def verify(self, conversation: Conversation) -> None:
        listed = self._stub.ListMessages(
            liaison_pb2.ListMessagesRequest(chat_session_id=conversation.session_id),
            metadata=(METADATA,),
            timeout=TIMEOUT,
        )
        wanted = [f"message {number}" for number in range(1, MESSAGES + 1)]
        assert [message.content for message in listed.messages] == wanted
        events = self._stub.ListEvents(
            liaison_pb2.ListEventsRequest(chat_session_id=conversation.session_id),
            metadata=(METADATA,),
            timeout=TIMEOUT,
        ).events
        types = [event.type for event in events]
        assert types == ["session_opened", *["message_appended"] * MESSAGES, "liaison_agent_activated"]


def converse(channel: grpc.Channel, conversations: Conversations) -> None:
    """Hold conversations until the server is gone."""
    guide = Guide(channel)
    try:
        while True:
            guide.finish(conversations.begin())
    except grpc.RpcError as error:
        if error.code() not in GONE:  # type: ignore[attr-defined]
            raise


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server that does not outlive a test that fails."""
    made = Server(tmp_path)
    yield made
    made.kill()


def test_conversations_survive(server: Server) -> None:
    conversations = Conversations()
    for _ in range(KILLS):
        with server.start() as channel:
            guide = Guide(channel)
            guide.heartbeat()
            for conversation in conversations.found[-2 * GUIDES :]:
                guide.finish(conversation)
            killed_at_work(partial(converse, channel, conversations), GUIDES, server.kill)
    with server.start() as channel:
        guide = Guide(channel)
        guide.heartbeat()
        for conversation in conversations.found:
            guide.finish(conversation)
            guide.verify(conversation)
    assert server.stop() == 0
    assert len(conversations.found) > KILLS
