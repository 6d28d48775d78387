"""Answers about chat sessions whose contexts, messages and events are together larger than a message may be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from cstp_grpc.contract.json_codec import from_json
from cstp_grpc.gen.liaison.v1 import liaison_pb2, liaison_pb2_grpc
from tests.harness import TIMEOUT, TOKENS, GrpcCaller, running, settings

NUMBERS = [1] * 130_000
"""As JSON nearly as large as a context may be, and as a message five times as large."""
COUNT = 3
"""How many of them are more than a message may hold."""
MAX_MESSAGE_BYTES = 4 << 20
"""What clients of gRPC receive at most."""
ALICE = (("authorization", f"Bearer {TOKENS['alice']}"),)


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[liaison_pb2_grpc.LiaisonServiceStub]:
    with running(settings(tmp_path)) as app, grpc.insecure_channel(app.target) as channel:
        yield liaison_pb2_grpc.LiaisonServiceStub(channel)


@pytest.mark.slow
def test_sessions_with_large_contexts_are_all_listed_page_by_page(stub: liaison_pb2_grpc.LiaisonServiceStub) -> None:
    opening = from_json({"context": {"numbers": NUMBERS}}, liaison_pb2.OpenSessionRequest)
    assert COUNT * opening.ByteSize() > MAX_MESSAGE_BYTES
    for number in range(COUNT):
        opening.user_id, opening.chat_session_id = f"u-{number}", f"s-{number}"
        stub.OpenSession(opening, metadata=ALICE, timeout=TIMEOUT)
    found: list[str] = []
    request = liaison_pb2.ListSessionsRequest()
    while not found or request.page_token:
        page = stub.ListSessions(request, metadata=ALICE, timeout=TIMEOUT)
        found += [session.id for session in page.chat_sessions]
        request.page_token = page.next_page_token
    assert found == [f"s-{number}" for number in reversed(range(COUNT))]


@pytest.mark.slow
def test_messages_with_large_metadata_are_all_listed_page_by_page(stub: liaison_pb2_grpc.LiaisonServiceStub) -> None:
    stub.OpenSession(liaison_pb2.OpenSessionRequest(chat_session_id="s-1"), metadata=ALICE, timeout=TIMEOUT)
    params = {"chat_session_id": "s-1", "role": "user", "content": "Hello", "metadata": {"n": NUMBERS}}
    appending = from_json(params, liaison_pb2.AppendMessageRequest)
    assert COUNT * appending.ByteSize() > MAX_MESSAGE_BYTES
    for _ in range(COUNT):
        stub.AppendMessage(appending, metadata=ALICE, timeout=TIMEOUT)
    found: list[int] = []
    request = liaison_pb2.ListMessagesRequest(chat_session_id="s-1")
    while not found or request.page_token:
        page = stub.ListMessages(request, metadata=ALICE, timeout=TIMEOUT)
        found += [message.sequence for message in page.messages]
        request.page_token = page.next_page_token
    assert found == list(range(1, COUNT + 1))


def test_events_with_large_data_are_all_listed(tmp_path: Path) -> None:
    with running(settings(tmp_path)) as app:
        caller = GrpcCaller(app.target)
        caller.call("liaison.openSession", {"chat_session_id": "s-1"})
        for number in range(18):
            changes = {"k" * 250_000: None if number % 2 else 1}
            params = {"chat_session_id": "s-1", "context": changes}
            assert caller.call("liaison.updateContext", params).reason is None
        found, more = 0, True
        after = 0
        while more:
            outcome = caller.call("liaison.listEvents", {"after": after, "page_size": 100})
            assert outcome.result is not None, outcome
            events, more = outcome.result["events"], outcome.result["more"]
            found, after = found + len(events), events[-1]["sequence"]
        caller.close()
    assert found == 19


@pytest.mark.slow
def test_what_a_session_may_keep_can_be_answered(tmp_path: Path) -> None:
    """With the largest limit that the settings allow."""
    with running(settings(tmp_path, liaison={"max_context_bytes": 327_680})) as app:
        caller = GrpcCaller(app.target)
        caller.call("liaison.heartbeat", {"target_pillar": "content"})
        caller.call("liaison.openSession", {"chat_session_id": "s-1"})
        largest = [1] * ((327_680 - len('{"n":[]}')) // 2)
        assert (
            caller.call("liaison.updateContext", {"chat_session_id": "s-1", "context": {"n": largest}}).reason is None
        )
        for method in ("getSession", "listSessions"):
            assert caller.call(f"liaison.{method}", {}, TOKENS["alice"]).reason is None
        params = {"target_pillar": "content", "chat_session_id": "s-1", "context_to_share": {"n": largest}}
        assert caller.call("liaison.routeToLiaisonAgent", params).reason is None
        assert caller.call("liaison.claimSession", {"chat_session_id": "s-1"}).reason is None
        caller.close()


def test_a_share_again_names_the_request_that_shared_it(tmp_path: Path) -> None:
    params = {"source_agent": "guide", "target_agent": "liaison_content", "shared_context": {}}
    with running(settings(tmp_path)) as app:
        caller = GrpcCaller(app.target)
        caller.call("liaison.heartbeat", {"target_pillar": "content"})
        first, again = (caller.call("liaison.shareContextToAgent", params).result for _ in range(2))
        caller.close()
    assert first == again
