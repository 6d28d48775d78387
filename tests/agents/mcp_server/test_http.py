"""Streamable HTTP: who is let in and as whom, what is bounded, and how a broken stream goes on."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import mcp_types
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.streamable_http import EventMessage

from cstp_grpc.agents.mcp_server.client_pool import TOKEN_SECONDS, ClientPool
from cstp_grpc.agents.mcp_server.event_store import MAX_EVENTS, SessionEventStore
from cstp_grpc.agents.mcp_server.http_transport import MAX_BODY_BYTES, HttpOptions
from cstp_grpc.client import AsyncCstpClient, CstpClient
from cstp_grpc.server.app import App
from tests.agents.mcp_server.hosts import (
    LEGACY,
    MODES,
    SECONDS,
    Host,
    authorized_client,
    serving_http,
    stdio_parameters,
    text_of,
)
from tests.agents.mcp_server.test_command import INITIALIZE
from tests.agents.mcp_server.test_resources import read_text
from tests.harness import TOKENS
from tests.waiting import wait_until

ACCEPT = {"Accept": "application/json, text/event-stream"}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
CHECK = {
    "jsonrpc": "2.0",
    "id": 7,
    "method": "tools/call",
    "params": {"name": "check_action", "arguments": {"description": "Deploy"}, "_meta": {"progressToken": 1}},
}


def post(url: str, body: Any = INITIALIZE, token: str | None = TOKENS["alice"], **headers: str) -> httpx2.Response:
    """Post one message, with headers whose names are written with underscores."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    authorization = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx2.post(url, json=body, headers={**ACCEPT, **authorization, **named}, timeout=SECONDS)


def events_of(text: str) -> list[tuple[str, dict[str, Any] | None]]:
    """Return the id and the message of each event of a stream."""
    found = []
    for block in text.replace("\r\n", "\n").strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and not line.startswith(":"))
        if "id" in fields:
            found.append((fields["id"], json.loads(fields["data"]) if fields.get("data") else None))
    return found


def open_session(url: str, token: str = TOKENS["alice"]) -> dict[str, str]:
    """Open a session and return the headers of its further requests."""
    answer = post(url, token=token)
    assert answer.status_code == 200
    headers = {"mcp_session_id": answer.headers["mcp-session-id"], "mcp_protocol_version": "2025-11-25"}
    assert post(url, INITIALIZED, token, **headers).status_code == 202
    return headers


@pytest.mark.parametrize("token", [None, "unknown-token", "no token"])
def test_without_a_token_that_the_server_knows_nobody_is_let_in(mcp_url: str, token: str | None) -> None:
    refused = post(mcp_url, "this is not even looked at", token)
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"].startswith("Bearer ")


def test_a_revoked_token_lists_no_tools_within_a_second(cstp_server: App, mcp_url: str) -> None:
    with CstpClient(cstp_server.target, TOKENS["alice"]) as client:
        made = client.create_token("revoked-over-mcp", "short-lived", ["query"])
        headers = open_session(mcp_url, made.secret)
        listing = {"jsonrpc": "2.0", "id": 7, "method": "tools/list"}
        assert post(mcp_url, listing, made.secret, **headers).status_code == 200
        client.revoke_token(made.token.id)
    # Revocations reach servers within half a second, and a server of MCP asks one again as soon.
    assert TOKEN_SECONDS <= 0.5
    wait_until(lambda: post(mcp_url, listing, made.secret, **headers).status_code == 401, "it is refused", 10.0)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "http://localhost:3000"}, 200),
        ({"host": "evil.example"}, 421),
        ({"content_type": "text/plain"}, 400),
    ],
)
def test_pages_of_other_sites_are_refused(mcp_url: str, headers: dict[str, str], status: int) -> None:
    assert post(mcp_url, **headers).status_code == status


def test_the_names_by_which_others_call_it_are_let_in(cstp_server: App) -> None:
    assert "10.0.0.5:*" in HttpOptions(host="10.0.0.5").security_settings().allowed_hosts
    assert "[fd00::5]:*" in HttpOptions(host="fd00::5").security_settings().allowed_hosts
    with serving_http(cstp_server.target, HttpOptions(allowed_hosts=["mcp.example"])) as url:
        assert post(url, host="mcp.example").status_code == 200
        assert post(url, host="other.example").status_code == 421


def test_an_origin_that_is_allowed_is_let_in(cstp_server: App) -> None:
    with serving_http(cstp_server.target, HttpOptions(allowed_origins=["https://ide.example"])) as url:
        assert post(url, origin="https://ide.example").status_code == 200


def test_a_body_that_is_too_large_is_refused(mcp_url: str) -> None:
    assert post(mcp_url, "x" * MAX_BODY_BYTES).status_code == 413


def test_a_session_beyond_the_limit_is_refused_until_another_ends(cstp_server: App) -> None:
    with serving_http(cstp_server.target, HttpOptions(max_sessions=1)) as url:
        headers = open_session(url)
        assert post(url).status_code == 503
        ended = {name.replace("_", "-"): value for name, value in headers.items()}
        authorization = {"Authorization": f"Bearer {TOKENS['alice']}"}
        assert httpx2.delete(url, headers={**authorization, **ended}, timeout=SECONDS).status_code == 200
        open_session(url)


def test_one_agent_does_not_take_all_sessions(cstp_server: App) -> None:
    with serving_http(cstp_server.target, HttpOptions(max_sessions=3, max_agent_sessions=2)) as url:
        open_session(url)
        open_session(url)
        assert post(url).status_code == 503
        open_session(url, TOKENS["bob"])


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "\xff"}}',
        b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "\\ud800"}}',
        b'{"jsonrpc": "2.0", "id": %s, "method": "ping"}' % (b"9" * 5000),
        b"",
    ],
    ids=["deep", "bytes", "surrogate", "number", "empty"],
)
@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
def test_a_body_that_is_no_message_is_refused(mcp_url: str, body: bytes, version: str) -> None:
    named = {"Content-Type": "application/json", "MCP-Protocol-Version": version, "Mcp-Method": "tools/call"}
    headers = {**ACCEPT, "Authorization": f"Bearer {TOKENS['alice']}", **named}
    assert httpx2.post(mcp_url, content=body, headers=headers, timeout=SECONDS).status_code == 400


def test_a_session_is_that_of_the_agent_that_opened_it(mcp_url: str) -> None:
    headers = open_session(mcp_url)
    assert post(mcp_url, CHECK, **headers).status_code == 200
    assert post(mcp_url, CHECK, TOKENS["bob"], **headers).status_code == 404


@pytest.mark.parametrize("mode", MODES)
def test_each_caller_acts_as_itself_at_the_same_time(cstp_server: App, mcp_url: str, mode: str) -> None:
    async def record(agent: str) -> list[str]:
        async with (
            authorized_client(TOKENS[agent]) as http,
            Client(streamable_http_client(mcp_url, http_client=http), mode=mode) as client,
        ):
            results = await asyncio.gather(
                *(client.call_tool("record_decision", {"title": f"Of {agent}"}) for _ in range(5))
            )
            uris = [f"cstp://decisions/{result.structured_content['id']}" for result in results]
            return [json.loads(await read_text(client, uri))["agent"] for uri in uris]

    async def both() -> tuple[list[str], list[str]]:
        alice, bob = await asyncio.gather(record("alice"), record("bob"))
        return alice, bob

    assert asyncio.run(both()) == (["alice"] * 5, ["bob"] * 5)


def test_where_the_server_cannot_be_asked_the_token_is_not_called_wrong(unused_target: str) -> None:
    with serving_http(unused_target) as url:
        answer = post(url)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    # Nobody is known yet: where the server is stays in the log.
    assert unused_target not in answer.text


def test_a_stream_that_broke_off_goes_on_behind_the_last_event(mcp_url: str) -> None:
    headers = open_session(mcp_url)
    events = events_of(post(mcp_url, CHECK, **headers).text)
    assert events[0][1] is None, "the first event only says where the stream begins"
    resumed = take_up_stream(mcp_url, headers, events[0][0], len(events) - 1)
    assert resumed == events[1:]
    assert resumed[-1][1] is not None
    assert resumed[-1][1]["id"] == CHECK["id"]


def test_nothing_is_heard_of_the_streams_of_another_session(mcp_url: str) -> None:
    own, other = open_session(mcp_url), open_session(mcp_url, TOKENS["bob"])
    events = events_of(post(mcp_url, CHECK, **own).text)
    post(mcp_url, {**CHECK, "params": {"name": "none"}}, TOKENS["bob"], **other)
    resumed = take_up_stream(mcp_url, other, events[0][0], 1, TOKENS["bob"])
    assert resumed[0] not in events


def take_up_stream(
    url: str, headers: dict[str, str], last: str, count: int, token: str = TOKENS["alice"]
) -> list[tuple[str, dict[str, Any] | None]]:
    """Ask for the events behind one, and return the first ones."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    asked = {"Accept": "text/event-stream", "Authorization": f"Bearer {token}", "Last-Event-ID": last, **named}
    with httpx2.stream("GET", url, headers=asked, timeout=SECONDS) as answer:
        assert answer.status_code == 200
        text = ""
        for part in answer.iter_text():
            text += part
            if len(found := events_of(text)) >= count:
                return found[:count]
    raise AssertionError(f"the stream ended after {text}")


@contextmanager
def running_command(app: App, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the command with --http and yield its process and the URL that it prints."""
    parameters = stdio_parameters(app.target, CSTP_TOKEN="")
    command = [parameters.command, *parameters.args, "--http", "--port", "0", *options]
    with subprocess.Popen(command, env=parameters.env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().split()[4]
        finally:
            process.kill()


def test_the_command_serves_until_it_is_told_to_stop_although_a_host_listens(cstp_server: App) -> None:
    with running_command(cstp_server) as (process, url):
        assert text_of(Host(cstp_server.target, url, LEGACY).call("check_action", {"description": "x"}))
        headers = {name.replace("_", "-"): value for name, value in open_session(url).items()}
        asked = {"Accept": "text/event-stream", "Authorization": f"Bearer {TOKENS['alice']}", **headers}
        with httpx2.stream("GET", url, headers=asked, timeout=SECONDS) as answer:
            assert answer.status_code == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(SECONDS) == 0


def test_a_port_that_is_taken_is_said(cstp_server: App, mcp_url: str) -> None:
    parameters = stdio_parameters(cstp_server.target)
    port = mcp_url.split(":")[2].partition("/")[0]
    command = [parameters.command, *parameters.args, "--http", "--port", port]
    ended = subprocess.run(command, env=parameters.env, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in ended.stderr


class CountedClient(AsyncCstpClient):
    """A client that knows whether it was closed."""

    closed = False

    async def close(self) -> None:
        self.closed = True
        await super().close()


def test_clients_that_nobody_uses_are_closed_beyond_the_limit() -> None:
    opened: dict[str, CountedClient] = {}

    def open_client(token: str) -> CountedClient:
        return opened.setdefault(token, CountedClient("127.0.0.1:1", token))

    async def use() -> None:
        pool = ClientPool(open_client, most=2)
        async with pool.lease_by_token("used"):
            for token in ("a", "b", "c"):
                async with pool.lease_by_token(token) as leased:
                    assert leased is opened[token]
            assert {token for token, client in opened.items() if client.closed} == {"a", "b"}
        await pool.close()
        assert all(client.closed for client in opened.values())

    asyncio.run(use())


@given(st.lists(st.tuples(st.sampled_from(["1", "2"]), st.integers(0, 3)), max_size=2 * MAX_EVENTS), st.data())
def test_what_is_replayed_is_what_came_after_on_the_same_stream(
    stored: list[tuple[str, int]], data: st.DataObject
) -> None:
    async def use() -> None:
        store = SessionEventStore()
        kept = []
        for stream, number in stored:
            message = mcp_types.JSONRPCNotification(jsonrpc="2.0", method=f"m{number}")
            kept.append((await store.store_event(stream, message), stream, message))
        replayed: list[EventMessage] = []

        async def take(event: EventMessage) -> None:
            replayed.append(event)

        assert await store.replay_events_after("none", take) is None
        if not kept:
            return
        at = data.draw(st.integers(max(0, len(kept) - MAX_EVENTS), len(kept) - 1))
        last, stream, _ = kept[at]
        assert await store.replay_events_after(last, take) == stream
        after = [(identifier, message) for identifier, own, message in kept[at + 1 :] if own == stream]
        assert [(event.event_id, event.message) for event in replayed] == after
        if len(kept) > MAX_EVENTS:
            assert await store.replay_events_after(kept[0][0], take) is None

    asyncio.run(use())
