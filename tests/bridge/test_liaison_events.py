"""The events of liaison routing for browsers: a whole server, read as an EventSource reads."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from tests.harness import TIMEOUT, TOKENS, JsonRpcCaller, bridging, running, settings
from tests.waiting import wait_until

PATH = "/liaison/events"


@dataclass
class Stream:
    """An open stream, or the answer that refused it."""

    status: int
    headers: http.client.HTTPMessage
    _response: http.client.HTTPResponse
    last_id: str = ""

    def next(self) -> dict[str, Any] | None:
        """Return the next event; None at the end. Keeps the last identifier as a browser does."""
        data: list[str] = []
        while line := self._response.readline():
            name, _, value = line.decode().rstrip("\r\n").partition(": ")
            if name == "id":
                self.last_id = value
            elif name == "data":
                data.append(value)
            elif not name and data:
                event: dict[str, Any] = json.loads("\n".join(data))
                assert str(event["sequence"]) == self.last_id
                return event
        return None

    def begin(self) -> str:
        """Return the identifier that comes before any event."""
        name, _, value = self._response.readline().decode().strip().partition(": ")
        assert name == "id"
        self.last_id = value
        return value

    def body(self) -> Any:
        """Return the JSON of an answer that is no stream."""
        return json.loads(self._response.read())


@dataclass
class Browser:
    """Calls a bridge."""

    url: str
    rpc: JsonRpcCaller = field(init=False)

    def __post_init__(self) -> None:
        self.rpc = JsonRpcCaller(self.url)

    @contextmanager
    def open(
        self, agent: str | None = "alice", headers: Mapping[str, str] | None = None, /, **query: Any
    ) -> Iterator[Stream]:
        """Ask for the events and yield what comes back."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=TIMEOUT)
        try:
            sent = {"Authorization": f"Bearer {TOKENS[agent]}"} if agent else {}
            connection.request("GET", f"{PATH}?{urlencode(query, doseq=True)}", headers={**sent, **(headers or {})})
            response = connection.getresponse()
            yield Stream(response.status, response.headers, response)
            response.close()
        finally:
            connection.close()

    def call(self, method: str, agent: str = "alice", **params: Any) -> dict[str, Any]:
        """Return the result of a liaison method."""
        outcome = self.rpc.call(f"liaison.{method}", params, TOKENS[agent])
        assert outcome.result is not None, outcome
        return outcome.result

    def open_session(self, session: str = "s-1", agent: str = "alice") -> None:
        """Make the event session_opened happen."""
        self.call("openSession", agent, chat_session_id=session, user_id=f"user of {session}")

    def say(self, text: str, session: str = "s-1") -> None:
        """Make the event message_appended happen."""
        self.call("appendMessage", chat_session_id=session, role="user", content=text)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with serving(tmp_path) as found:
        yield found


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A server where nothing has happened."""
    with serving(tmp_path_factory.mktemp("idle")) as found:
        yield found


@contextmanager
def serving(data: Path, **overrides: Any) -> Iterator[Browser]:
    """Serve for the length of a block."""
    wanted = settings(data, **overrides)
    with running(wanted) as app, bridging(wanted, app.target) as url:
        yield Browser(url)


def test_events_come_as_they_happen_and_as_they_are_listed(browser: Browser) -> None:
    with browser.open(after=0) as stream:
        assert stream.status == 200
        assert stream.headers["Content-Type"] == "text/event-stream"
        assert stream.headers["Cache-Control"] == "no-store"
        browser.open_session()
        first = stream.next()
        browser.say("Hello\u2028there")
        second = stream.next()
    assert [first, second] == browser.call("listEvents")["events"]


def test_a_browser_that_connects_again_misses_nothing(tmp_path: Path) -> None:
    with serving(tmp_path) as browser:
        with browser.open() as stream:
            assert stream.begin() == "0"
            browser.open_session()
            assert stream.next() is not None
            seen = stream.last_id
        browser.say("Said while nobody listened")
    # The server has restarted meanwhile, and the address is the first one, with its `after`.
    with serving(tmp_path) as browser, browser.open("alice", {"Last-Event-ID": seen}, after=0) as stream:
        event = stream.next()
        assert event is not None
        assert (event["sequence"], event["type"]) == (2, "message_appended")


def test_a_stream_without_a_beginning_tells_where_it_began(browser: Browser) -> None:
    browser.open_session()
    with browser.open() as stream:
        cut_off_at = stream.begin()
    browser.say("Said before any event came")
    with browser.open("alice", {"Last-Event-ID": cut_off_at}) as stream:
        event = stream.next()
        assert event is not None
        assert event["sequence"] == 2


def test_a_reader_chooses_session_agent_and_types(browser: Browser) -> None:
    browser.open_session("s-1")
    browser.open_session("s-2")
    browser.say("Hello", "s-2")
    browser.call("closeSession", chat_session_id="s-2")
    wanted = {"chat_session_id": "s-2", "agent": "guide", "types": "message_appended,session_closed"}
    with browser.open(after=0, **wanted) as stream:
        found = [stream.next(), stream.next()]
    assert [event["type"] for event in found if event] == ["message_appended", "session_closed"]
    with browser.open(after=0, types=["session_closed", "message_appended"]) as stream:
        assert stream.next() == found[0]


def test_a_tenant_hears_of_its_own_sessions_only(browser: Browser) -> None:
    with browser.open("carol", after=0) as stream:
        browser.open_session("s-1", "alice")
        browser.open_session("s-2", "carol")
        event = stream.next()
        assert event is not None
        assert (event["chat_session_id"], event["sequence"]) == ("s-2", 1)


@pytest.mark.parametrize(
    ("agent", "query", "status", "reason"),
    [
        (None, {}, 401, "AUTHENTICATION_REQUIRED"),
        (None, {"after": "0"}, 401, "AUTHENTICATION_REQUIRED"),
        # Strangers are not told what is wrong with their requests.
        (None, {"after": "x"}, 401, "AUTHENTICATION_REQUIRED"),
        (None, {"nonsense": "1"}, 401, "AUTHENTICATION_REQUIRED"),
        ("reader", {}, 403, "PERMISSION_DENIED"),
        ("reader", {"after": "0"}, 403, "PERMISSION_DENIED"),
    ],
)
def test_the_permission_is_that_of_watching(
    idle: Browser, agent: str | None, query: dict[str, Any], status: int, reason: str
) -> None:
    with idle.open(agent, **query) as stream:
        assert stream.status == status
        assert stream.headers.get("WWW-Authenticate") == ('Bearer realm="cstp"' if status == 401 else None)
        assert stream.body()["error"]["details"][0]["reason"] == reason


@pytest.mark.parametrize(
    ("query", "headers", "field"),
    [
        ({"after": "x"}, {}, "after"),
        ({"after": "-1"}, {}, "after"),
        ({"after": "99999999999"}, {}, "after"),
        ({"after": ["1", "2"]}, {}, "after"),
        ({"agent": ["a", "b"]}, {}, "agent"),
        ({"agent": "a" * 201}, {}, "agent"),
        ({"nonsense": "1"}, {}, "nonsense"),
        ({}, {"Last-Event-ID": "one"}, "Last-Event-ID"),
        # One event more than there ever were: whoever goes on there would miss those that come.
        ({"after": "1"}, {}, "after"),
        ({"after": "0"}, {"Last-Event-ID": "1"}, "after"),
    ],
)
def test_a_parameter_that_cannot_be_used_is_named(
    idle: Browser, query: dict[str, Any], headers: dict[str, str], field: str
) -> None:
    with idle.open("alice", headers, **query) as stream:
        assert stream.status == 400
        assert field in stream.body()["error"]["message"]


def test_a_stream_beyond_the_limit_is_refused_and_a_reader_that_leaves_makes_room(tmp_path: Path) -> None:
    with serving(tmp_path, liaison={"pillars": {"content": {"agent": "alice"}}, "watchers_per_agent": 1}) as browser:
        with browser.open(after=0) as first:
            assert first.status == 200
            with browser.open(after=0) as second:
                assert second.status == 429
                assert "1" in second.body()["error"]["message"]
        browser.open_session()

        def is_let_in() -> bool:
            # What is sent to the reader who left shows that nobody reads it.
            browser.say("Is anybody there?")
            with browser.open(after=0) as again:
                return again.status == 200

        wait_until(is_let_in, "the place of the reader who left is free")


def test_a_bridge_that_stops_ends_its_streams(tmp_path: Path) -> None:
    wanted = settings(tmp_path)
    with running(wanted) as app:
        with bridging(wanted, app.target) as url:
            opened = Browser(url).open(after=0)
            stream = opened.__enter__()
            stream.begin()
        assert stream.next() is None
        opened.__exit__(None, None, None)


def test_pages_of_configured_origins_may_read(tmp_path: Path) -> None:
    with serving(tmp_path, server={"cors_origins": ["https://chat.example"]}) as browser:
        with browser.open("alice", {"Origin": "https://chat.example"}, after=0) as stream:
            assert stream.headers["Access-Control-Allow-Origin"] == "https://chat.example"
        connection = http.client.HTTPConnection(urlsplit(browser.url).netloc, timeout=TIMEOUT)
        connection.request("OPTIONS", PATH, headers={"Origin": "https://chat.example"})
        preflight = connection.getresponse()
        assert "Last-Event-ID" in preflight.headers["Access-Control-Allow-Headers"]
        connection.close()
