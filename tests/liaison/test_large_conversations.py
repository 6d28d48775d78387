"""Answers about chat sessions whose contexts, messages and events are together larger than a message may be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.harness import TOKENS, GrpcCaller, running, settings

NUMBERS = [1] * 130_000
"""As JSON nearly as large as a context may be, and as a message five times as large."""


def listed(caller: GrpcCaller, method: str, name: str, **params: Any) -> list[dict[str, Any]]:
    """Return the items of all pages."""
    items: list[dict[str, Any]] = []
    token = ""
    while True:
        outcome = caller.call(f"liaison.{method}", {**params, "page_token": token})
        assert outcome.result is not None, outcome
        items += outcome.result[name]
        token = outcome.result["next_page_token"]
        if not token:
            return items


def test_sessions_with_large_contexts_are_all_listed_page_by_page(tmp_path: Path) -> None:
    with running(settings(tmp_path)) as app:
        caller = GrpcCaller(app.target)
        for number in range(4):
            params = {"user_id": f"u-{number}", "chat_session_id": f"s-{number}", "context": {"numbers": NUMBERS}}
            assert caller.call("liaison.openSession", params).reason is None
        found = [session["id"] for session in listed(caller, "listSessions", "chat_sessions")]
        caller.close()
    assert found == [f"s-{number}" for number in reversed(range(4))]


def test_messages_with_large_metadata_are_all_listed_page_by_page(tmp_path: Path) -> None:
    with running(settings(tmp_path)) as app:
        caller = GrpcCaller(app.target)
        caller.call("liaison.openSession", {"chat_session_id": "s-1"})
        for number in range(4):
            params = {"chat_session_id": "s-1", "role": "user", "content": f"No. {number}", "metadata": {"n": NUMBERS}}
            assert caller.call("liaison.appendMessage", params).reason is None
        found = [message["sequence"] for message in listed(caller, "listMessages", "messages", chat_session_id="s-1")]
        caller.close()
    assert found == list(range(1, 5))


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
