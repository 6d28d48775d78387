"""Chat sessions and their routing on the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cstp_grpc.client import CstpClient
from tests.cli.conftest import Invoke, Server
from tests.harness import TOKENS, running, settings

BOUND = 60.0
"""Seconds after which something that should have happened has not."""
RULES = """
apiVersion: cstp.guardrails/v1
metadata: {name: handing-over, version: "1", owner: platform}
inputs:
  routing_reason: {type: string, default: "", description: why a session is handed over}
guardrails:
  - id: only-with-reason
    name: Reason Required
    description: Who takes a session over must know why.
    when: has(action.category) && action.category == "liaison" && context.routing_reason == ""
    severity: block
    message: A routing needs a reason
"""


@pytest.fixture
def server(tmp_path: Path, invoke: Invoke) -> Iterator[Server]:
    """A server whose local liaison agents are served by alice; that of content is there."""
    with running(settings(tmp_path / "data")) as app:
        server = Server(app, invoke)
        server.ok("liaison", "heartbeat", "content")
        yield server


@pytest.fixture
def opened(server: Server) -> Server:
    """The server with a session."""
    server.ok("liaison", "open", "--user", "ada", "--session", "s-1", "--context", "shared_intent=migrate the reports")
    return server


@pytest.fixture
def routed(opened: Server) -> Server:
    """The server with a session that is with the agent of content."""
    opened.ok("liaison", "say", "How do I move my reports?", "--session", "s-1")
    opened.ok("liaison", "route", "content", "--session", "s-1", "--reason", "The user wants to upload files")
    return opened


def squeezed(text: str) -> list[str]:
    """Return lines whose spaces do not matter."""
    return [" ".join(line.split()) for line in text.splitlines()]


def test_a_session_is_opened_once(server: Server) -> None:
    arguments = ("liaison", "open", "--user", "ada", "--context", "shared_intent=migrate", "--context", "pages=3")
    answer = server.json(*arguments)
    assert answer["created"] is True
    assert answer["chat_session"]["context"] == {"shared_intent": "migrate", "pages": 3}
    shown = server.ok(*arguments)
    assert shown == f"{answer['chat_session']['id']} of ada is open already, with guide.\n"


def test_opening_says_what_comes_next(server: Server) -> None:
    assert server.ok("liaison", "open", "--session", "s-1").splitlines() == [
        "s-1 of alice is open, with guide.",
        "  say  cstp liaison say TEXT --session s-1",
    ]


def test_an_integer_that_would_be_rounded_is_refused_by_its_path(server: Server) -> None:
    result = server("liaison", "open", "--session", "s-1", "--context", "order=9007199254740993")
    assert result.exit_code == 1
    assert "context.order: is an integer that a double would round" in " ".join(result.stderr.split())
    assert not server.json("liaison", "list")["chat_sessions"]


def test_another_session_of_a_user_is_refused_with_the_way_out(opened: Server) -> None:
    result = opened("liaison", "open", "--user", "ada", "--session", "s-2")
    assert result.exit_code == 1
    assert "Continue with --session s-1, or end it with `cstp liaison close --session s-1`." in result.stderr


def test_what_is_said_is_shown_in_its_order(opened: Server) -> None:
    assert opened.ok("liaison", "say", "How do I move my reports?", "--session", "s-1") == "Message 1 of s-1.\n"
    said = opened.json(
        *("liaison", "say", "Upload them.", "--session", "s-1", "--role", "assistant"),
        *("--metadata", "model=small", "--message-id", "m-2"),
    )
    assert said["message"]["metadata"] == {"model": "small"}
    assert said["message"]["message_id"] == "m-2"
    lines = squeezed(opened.ok("liaison", "show", "--session", "s-1"))
    assert lines[0] == "s-1 of ada, active, with guide"
    assert 'context {"shared_intent": "migrate the reports"}' in lines
    first = next(number for number, line in enumerate(lines) if line.endswith("user How do I move my reports?"))
    assert lines[first + 1].endswith("guide Upload them.")
    assert lines[first + 2] == '{"model": "small"}'
    assert not any("routing" in line and "epoch" not in line for line in lines)


def test_without_a_session_it_is_the_active_one_of_the_user(opened: Server) -> None:
    assert opened.ok("liaison", "say", "Hello", "--user", "ada") == "Message 1 of s-1.\n"
    assert opened.json("liaison", "show", "--user", "ada")["chat_session"]["id"] == "s-1"
    assert opened.json("liaison", "route", "content", "--user", "ada")["chat_session"]["id"] == "s-1"
    assert opened.json("liaison", "claim", "--user", "ada")["chat_session"]["claimed_by"] == "alice"
    assert opened.ok("liaison", "return", "--user", "ada") == "s-1 is with the guide.\n"
    assert opened.ok("liaison", "close", "--user", "ada") == "s-1 is closed.\n"
    result = opened("liaison", "say", "Hello", "--user", "ada")
    assert result.exit_code == 1
    assert "Open one with `cstp liaison open`" in result.stderr


def test_a_routing_hands_over_the_session_and_its_conversation(routed: Server) -> None:
    shown = routed.json("liaison", "show", "--session", "s-1")
    assert shown["chat_session"]["active_agent"] == "liaison_content"
    assert [message["content"] for message in shown["messages"]] == ["How do I move my reports?"]
    assert shown["routing"]["data"]["routing_decision"]["reason"] == "The user wants to upload files"
    (said,) = shown["share"]["shared_context"]["conversation_history"]
    assert said["content"] == "How do I move my reports?"
    lines = squeezed(routed.ok("liaison", "show", "--session", "s-1"))
    assert "Last routing" in lines
    for line in ("from guide", "to liaison_content", "reason The user wants to upload files", "delivery delivered"):
        assert line in lines


def test_the_same_routing_again_shows_the_first_answer(routed: Server) -> None:
    again = ("liaison", "route", "content", "--session", "s-1", "--reason", "The user wants to upload files")
    assert routed.json(*again) == routed.json(*again)
    lines = squeezed(routed.ok(*again))
    assert lines[0] == "s-1 is with liaison_content."
    assert "shared conversation_history, shared_intent" in lines
    assert len(routed.json("liaison", "show", "--session", "s-1")["messages"]) == 1


@pytest.mark.parametrize(
    ("options", "shared"),
    [
        (("--context", "files=3", "--context", "intent=move"), {"files": 3, "intent": "move"}),
        (("--context-json", '{"files": 3}', "--context", "intent=move"), {"files": 3, "intent": "move"}),
        (("--context-json", "{}"), {}),
    ],
)
def test_a_routing_can_share_something_else(opened: Server, options: tuple[str, ...], shared: dict[str, Any]) -> None:
    answer = opened.json("liaison", "route", "content", "--session", "s-1", *options)
    payload = answer["artifacts"]["liaison_agent_activation"]["semantic_payload"]
    assert payload["shared_context"] == shared


@pytest.mark.parametrize(
    ("arguments", "reason", "hint"),
    [
        (("insights", "--session", "s-1"), "LIAISON_AGENT_UNAVAILABLE", "cstp liaison heartbeat insights"),
        (("content", "--session", "s-2"), "SESSION_NOT_FOUND", "cstp liaison list"),
        (("finance", "--session", "s-1"), "INVALID_PILLAR", None),
        (("", "--session", "s-1"), "MISSING_PARAMETER", None),
    ],
)
def test_a_routing_that_fails_says_what_to_do_next(
    opened: Server, arguments: tuple[str, ...], reason: str, hint: str | None
) -> None:
    result = opened("liaison", "route", *arguments, "--json")
    assert result.exit_code == 1
    error = json.loads(result.stderr)["error"]
    assert error["reason"] == reason
    assert (hint in error["hint"]) if hint else ("hint" not in error)


def test_a_session_of_another_agent_must_be_given_back_first(routed: Server) -> None:
    routed.ok("liaison", "heartbeat", "insights")
    result = routed("liaison", "route", "insights", "--session", "s-1")
    assert result.exit_code == 1
    assert "Give it back first: `cstp liaison return --session s-1`." in result.stderr


def test_what_the_guide_has_cannot_be_given_back(opened: Server) -> None:
    result = opened("liaison", "claim", "--session", "s-1")
    assert result.exit_code == 1
    assert result.stderr == "Error: The chat session s-1 is with guide, which claims none\n"


@pytest.fixture
def guarded(tmp_path: Path, invoke: Invoke) -> Iterator[Server]:
    """A server whose guardrails want a reason."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    with running(settings(tmp_path / "data", cstp={"guardrails": {"config_path": str(rules)}})) as app:
        server = Server(app, invoke)
        server.ok("liaison", "heartbeat", "content")
        server.ok("liaison", "open", "--session", "s-1")
        yield server


BLOCKED = [
    ("route", "content", "--session", "s-1"),
    ("share", "content", "--context", "files=3"),
]


@pytest.mark.parametrize("arguments", BLOCKED)
def test_what_guardrails_block_exits_with_3_and_shows_them(guarded: Server, arguments: tuple[str, ...]) -> None:
    result = guarded("liaison", *arguments)
    assert result.exit_code == 3
    assert squeezed(result.stdout) == [
        "Blocked; nothing has changed",
        "blocks only-with-reason: A routing needs a reason",
    ]
    assert guarded.json("liaison", "show", "--session", "s-1")["chat_session"]["active_agent"] == "guide"


@pytest.mark.parametrize("arguments", BLOCKED)
def test_what_guardrails_block_as_json_names_them(guarded: Server, arguments: tuple[str, ...]) -> None:
    result = guarded("liaison", *arguments, "--json")
    assert (result.exit_code, result.stdout) == (3, "")
    (violation,) = json.loads(result.stderr)["error"]["violations"]
    assert violation["guardrailId"] == "only-with-reason"


def test_a_session_is_deleted_for_good(routed: Server) -> None:
    assert routed.ok("liaison", "delete", "--session", "s-1", "--yes") == "s-1 is deleted.\n"
    assert routed.ok("liaison", "delete", "--session", "s-1", "--yes") == "There is no session s-1.\n"
    assert routed.json("liaison", "list", "--user", "ada")["chat_sessions"] == []
    # The event says no user, so that nothing is left of whose session it was.
    line = routed.ok("liaison", "watch", "--after", 0, "--type", "session_deleted", "--limit", 1)
    assert line.rstrip().endswith("session_deleted  s-1, liaison_content")


def test_all_sessions_of_a_user_are_deleted(opened: Server) -> None:
    opened.ok("liaison", "open", "--user", "bob", "--session", "s-2")
    assert opened.json("liaison", "delete", "--user", "ada", "--yes") == {"deleted": 1}
    assert [session["id"] for session in opened.json("liaison", "list")["chat_sessions"]] == ["s-2"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "Name either --session ID or --user ID."),
        (("--session", "s-1", "--user", "ada", "--yes"), "Name either --session ID or --user ID."),
        (("--session", "s-1"), "Pass --yes"),
        (("--user", "ada", "--json"), "Pass --yes"),
    ],
)
def test_nothing_is_deleted_unless_it_is_clear_what_and_that_it_is_wanted(
    opened: Server, arguments: tuple[str, ...], problem: str
) -> None:
    result = opened("liaison", "delete", *arguments)
    assert result.exit_code == 2
    assert problem in result.stderr
    assert opened.json("liaison", "show", "--session", "s-1")["chat_session"]["id"] == "s-1"


def test_a_permission_that_is_missing_is_an_error_and_no_block(server: Server) -> None:
    result = server("liaison", "route", "content", agent="reader")
    assert result.exit_code == 1
    assert "Add `route` to the permissions of this token" in result.stderr


def test_a_session_is_listed_by_user_agent_and_state(routed: Server) -> None:
    routed.ok("liaison", "open", "--user", "grace", "--session", "s-2")
    routed.ok("liaison", "close", "--session", "s-2")
    listed = ("liaison", "list")

    def ids(*arguments: str) -> list[str]:
        return [session["id"] for session in routed.json(*listed, *arguments)["chat_sessions"]]

    assert ids() == ["s-2", "s-1"]
    assert ids("--limit", "1") == ["s-2"]
    assert ids("--user", "ada") == ids("--with", "liaison_content") == ids("--status", "active") == ["s-1"]
    assert ids("--status", "closed") == ["s-2"]
    (first, details) = squeezed(routed.ok(*listed, "--user", "ada"))
    assert first.endswith("active s-1 of ada")
    assert details == "liaison_content, 1 messages"
    assert routed.ok(*listed, "--user", "nobody") == "No matching sessions.\n"


def test_a_context_is_shared_without_a_session(server: Server) -> None:
    arguments = ("liaison", "share", "content", "--context", "shared_intent=migrate", "--conversation", "c-1")
    share = server.json(*arguments)["share"]
    assert (share["source_agent"], share["target_agent"]) == ("guide", "liaison_content")
    assert (share["conversation_id"], share["shared_context"]) == ("c-1", {"shared_intent": "migrate"})
    assert share["share_id"] in server.ok(*arguments)
    other = server.json("liaison", "share", "liaison_content", "--context-json", "{}", "--key", "k-1", "--from", "bob")
    assert (other["share"]["share_id"], other["share"]["source_agent"]) == ("k-1", "bob")


def test_sharing_nothing_is_a_usage_error(server: Server) -> None:
    result = server("liaison", "share", "content")
    assert result.exit_code == 2
    assert "--context" in result.stderr


def test_a_claim_shows_what_came_with_the_session(routed: Server) -> None:
    lines = squeezed(routed.ok("liaison", "claim", "--session", "s-1", "--claimant", "content-1"))
    assert lines[0].startswith("s-1 is with content-1 until ")
    assert lines[1:3] == ["claim 1", "reason The user wants to upload files"]
    assert lines[3] == 'context {"shared_intent": "migrate the reports"}'
    assert lines[4:6] == ["Conversation", "user How do I move my reports?"]
    result = routed("liaison", "claim", "--session", "s-1", "--claimant", "content-2")
    assert result.exit_code == 1
    assert "--claimant" in result.stderr
    assert "claimed by content-1" in routed.ok("liaison", "list")
    assert any(
        line.startswith("claimed by content-1") for line in squeezed(routed.ok("liaison", "show", "--user", "ada"))
    )


def test_what_is_done_by_a_claim_takes_its_number(routed: Server) -> None:
    routed.ok("liaison", "claim", "--session", "s-1", "--claimant", "content-1")
    said = ("liaison", "say", "Upload them.", "--session", "s-1", "--role", "assistant")
    late = routed(*said, "--claim-number", 2)
    assert late.exit_code == 1
    assert "claim 2 is not the current one" in late.stderr
    routed.ok(*said, "--claim-number", 1)
    assert routed("liaison", "return", "--session", "s-1", "--claim-number", 2).exit_code == 1
    assert routed.ok("liaison", "return", "--session", "s-1", "--claim-number", 1) == "s-1 is with the guide.\n"


def test_the_agents_are_listed_with_whether_they_are_there(routed: Server) -> None:
    shown = squeezed(routed.ok("liaison", "agents"))
    assert shown[0].startswith("present local liaison_content")
    assert "1 session" in " ".join(shown[:3])
    assert any(line.startswith("absent local liaison_insights") for line in shown)
    (agent,) = routed.json("liaison", "agents", "content")["liaison_agents"]
    assert (agent["present"], agent["served_by"], agent["chat_sessions"]) == (True, "alice", 1)
    routed.ok("liaison", "heartbeat", "content", "--leaving")
    assert squeezed(routed.ok("liaison", "agents", "content"))[0].startswith("absent local liaison_content")


def test_only_the_agent_of_a_pillar_may_speak_for_it(routed: Server) -> None:
    result = routed("liaison", "heartbeat", "content", agent="bob")
    assert result.exit_code == 1
    assert "liaison.pillars.content.agent" in result.stderr


def test_an_agent_that_leaves_is_not_there(server: Server) -> None:
    assert server.ok("liaison", "heartbeat", "content").startswith("liaison_content is present until 20")
    assert server.ok("liaison", "heartbeat", "content", "--leaving") == "liaison_content is no longer present.\n"
    server.ok("liaison", "open")
    result = server("liaison", "route", "content")
    assert result.exit_code == 1
    assert "cstp liaison heartbeat content" in result.stderr


def test_a_watch_prints_what_happened_line_by_line(routed: Server) -> None:
    shown = routed.ok("liaison", "watch", "--after", 1, "--limit", 3).splitlines()
    assert [line.split()[3] for line in shown] == ["session_opened", "message_appended", "liaison_agent_activated"]
    assert shown[1].endswith("s-1 of ada, guide, user")
    assert shown[2].endswith("s-1 of ada, liaison_content, The user wants to upload files")


def test_a_watch_as_json_prints_an_event_a_line(routed: Server) -> None:
    shown = routed.ok("liaison", "watch", "--after", 1, "--limit", 3, "--json").splitlines()
    events = [json.loads(line) for line in shown]
    assert [event["type"] for event in events] == ["session_opened", "message_appended", "liaison_agent_activated"]
    later = routed.ok("liaison", "watch", "--after", events[0]["sequence"], "--limit", 2, "--json").splitlines()
    assert later == shown[1:]


def test_a_watch_can_be_narrowed(routed: Server) -> None:
    routed.ok("liaison", "open", "--user", "grace", "--session", "s-2")

    def first(*arguments: str) -> tuple[str, str]:
        event = json.loads(routed.ok("liaison", "watch", "--after", 1, "--limit", 1, "--json", *arguments))
        return event["type"], event["chat_session_id"]

    assert first("--session", "s-2") == ("session_opened", "s-2")
    assert first("--with", "liaison_content") == ("liaison_agent_activated", "s-1")
    assert first("--type", "message_appended") == ("message_appended", "s-1")


def test_what_cannot_be_watched_is_told_at_once(server: Server, invoke: Invoke, free_port: int) -> None:
    assert server("liaison", "watch", agent="reader").exit_code == 1
    result = invoke("liaison", "watch", "--agent", f"grpc://127.0.0.1:{free_port}", "--token", "x")
    assert result.exit_code == 1
    assert "No server answers" in result.stderr


@dataclass
class Watching:
    """A watch that runs as a process."""

    popen: subprocess.Popen[str]

    def line(self) -> str:
        """Return the next line that it prints."""
        assert self.popen.stdout is not None
        return self.popen.stdout.readline()

    def interrupt(self) -> tuple[int, str]:
        """Interrupt it, and return its exit code and what it printed on standard error."""
        self.popen.send_signal(signal.SIGINT)
        assert self.popen.stderr is not None
        return self.popen.wait(BOUND), self.popen.stderr.read()


@contextmanager
def watching(url: str, *arguments: str) -> Iterator[Watching]:
    """Run a watch for the length of a block."""
    command = [sys.executable, "-m", "cstp_grpc", "liaison", "watch", "--agent", url, *arguments]
    environment = {**os.environ, "CSTP_TOKEN": TOKENS["alice"]}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as popen:
        # A line that never comes is an empty one in the end.
        deadline = threading.Timer(BOUND, popen.kill)
        deadline.start()
        try:
            yield Watching(popen)
        finally:
            deadline.cancel()
            popen.kill()


def test_a_watch_prints_events_as_they_happen_until_it_is_interrupted(routed: Server) -> None:
    with watching(routed.url, "--after", "1", "--json") as watch:
        assert [json.loads(watch.line())["type"] for _ in range(3)][-1] == "liaison_agent_activated"
        routed.ok("liaison", "return", "--session", "s-1")
        assert json.loads(watch.line())["type"] == "returned_to_guide"
        assert watch.interrupt() == (0, "")


def test_a_watch_goes_on_when_the_server_is_back(tmp_path: Path, invoke: Invoke, free_port: int) -> None:
    wanted = settings(tmp_path / "data", grpc={"port": free_port})
    with ExitStack() as rest:
        with running(wanted) as app:
            server = Server(app, invoke)
            server.ok("liaison", "open", "--session", "s-1")
            watch = rest.enter_context(watching(server.url, "--after", "0"))
            assert "session_opened" in watch.line()
        with running(wanted):
            server.ok("liaison", "close", "--session", "s-1")
            assert "session_closed" in watch.line()
            code, told = watch.interrupt()
    assert code == 0
    assert "trying again until Ctrl-C" in told
    assert len(told.splitlines()) == len(set(told.splitlines()))


def test_what_others_said_cannot_steer_the_terminal(opened: Server) -> None:
    with CstpClient(opened.url, TOKENS["alice"]) as client:
        client.liaison.append_message("s-1", "\x1b[2JAll clear", role="user", metadata={"x": "\x1b[2J"})
        client.liaison.route_to_liaison_agent("content", chat_session_id="s-1", routing_reason="so\x1b[2J\nthere")
    for shown in (
        opened.ok("liaison", "show", "--session", "s-1"),
        opened.ok("liaison", "claim", "--session", "s-1"),
        opened.ok("liaison", "watch", "--after", 0, "--limit", 3),
    ):
        assert "\x1b" not in shown
    assert len(opened.ok("liaison", "watch", "--after", 0, "--limit", 3).splitlines()) == 3
