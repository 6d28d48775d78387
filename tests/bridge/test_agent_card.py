from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bridge.app import create_app
from bridge.channel import connect
from cstp_grpc.config import AgentSettings, ConfigError, ServerSettings
from tests.bridge.support import Client, bridging

PATH = "/.well-known/agent.json"


def card_url(target: str, settings: dict[str, Any], headers: dict[str, str]) -> str:
    with bridging(target, ServerSettings(**settings)) as bridge:
        answer = bridge.request("GET", PATH, headers={"Host": "seen.example", **headers})
        assert answer.status == 200
        url: str = answer.json["url"]
        return url


def test_the_card_is_that_of_the_design(target: str) -> None:
    agent = AgentSettings(name="emerson-cognition", description="Décisions", contact="emerson@example.com")
    with bridging(target, ServerSettings(public_url="https://agent.example.com/"), agent) as bridge:
        answer = bridge.get(PATH)
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.json == {
        "name": "emerson-cognition",
        "description": "Décisions",
        "version": "1.2.3",
        "url": "https://agent.example.com",
        "capabilities": {
            "cstp": {
                "version": "1.0",
                "methods": ["cstp.announceIntent", "cstp.queryDecisions", "cstp.checkGuardrails"],
            }
        },
        "authentication": {"schemes": ["bearer"]},
        "contact": "emerson@example.com",
    }


def test_the_contact_is_left_out_where_there_is_none(bridge: Client) -> None:
    assert "contact" not in bridge.get(PATH).json


def test_the_card_needs_no_token_and_may_be_kept(bridge: Client) -> None:
    answer = bridge.get(PATH)
    assert answer.headers["Cache-Control"] == "public, max-age=300"
    tag = answer.headers["ETag"]
    for known in (tag, f"W/{tag}", f'"x", {tag}', "*"):
        again = bridge.get(PATH, If_None_Match=known)
        assert (again.status, again.body, again.headers["ETag"]) == (304, b"", tag)
        assert again.headers["Cache-Control"] == "public, max-age=300"
    assert bridge.get(PATH, If_None_Match='"x"').status == 200


def test_the_head_of_the_card_has_no_body(bridge: Client) -> None:
    answer = bridge.request("HEAD", PATH)
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["ETag"] == bridge.get(PATH).headers["ETag"]


def test_the_card_cannot_be_posted(bridge: Client) -> None:
    answer = bridge.request("POST", PATH, b"{}")
    assert answer.status == 405
    assert answer.headers["Allow"] == "GET,HEAD"


def test_the_tag_follows_the_content(bridge: Client) -> None:
    here, there = bridge.get(PATH, Host="here.example"), bridge.get(PATH, Host="there.example")
    assert here.headers["ETag"] != there.headers["ETag"]


@pytest.mark.parametrize(
    "host", ["seen.example", "seen.example:8443", "127.0.0.1:8100", "[::1]:8100", "a_b-c.example."]
)
def test_the_address_is_the_one_that_was_called(bridge: Client, host: str) -> None:
    assert bridge.get(PATH, Host=host).json["url"] == f"http://{host}"


@pytest.mark.parametrize("host", ["", "a/b", "a b", "user@host", "a:b", "[::1", "x" * 300, 'a"b', "a\\b", "é"])
def test_a_host_that_is_none_is_refused(bridge: Client, host: str) -> None:
    assert bridge.get(PATH, Host=host).status == 400


FORWARDED = {"Forwarded": "for=203.0.113.9;proto=https;host=agent.example.com"}
X_FORWARDED = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "agent.example.com"}


@pytest.mark.parametrize("headers", [FORWARDED, X_FORWARDED])
@pytest.mark.parametrize("proxies", [["127.0.0.1"], ["127.0.0.0/8"], ["10.0.0.0/8", "::1", "127.0.0.1/32"]])
def test_trusted_proxies_are_believed(target: str, headers: dict[str, str], proxies: list[str]) -> None:
    assert card_url(target, {"trusted_proxies": proxies}, headers) == "https://agent.example.com"


@pytest.mark.parametrize("headers", [FORWARDED, X_FORWARDED])
@pytest.mark.parametrize("proxies", [[], ["10.0.0.0/8"], ["::/0"]])
def test_others_are_not_believed(target: str, headers: dict[str, str], proxies: list[str]) -> None:
    assert card_url(target, {"trusted_proxies": proxies}, headers) == "http://seen.example"


def test_the_configured_address_wins(target: str) -> None:
    settings = {"public_url": "https://public.example/agent", "trusted_proxies": ["127.0.0.1"]}
    assert card_url(target, settings, FORWARDED) == "https://public.example/agent"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        # What a caller wrote comes before what the proxy adds.
        (
            {"Forwarded": "host=evil.example;proto=http, for=203.0.113.9;host=a.example;proto=https"},
            "https://a.example",
        ),
        # The nearest proxy was called by another trusted one, which was called by a stranger.
        (
            {"Forwarded": "host=evil.example, for=203.0.113.9;host=a.example, for=127.0.0.2;host=inner"},
            "http://a.example",
        ),
        ({"Forwarded": 'host=evil.example, for="[2001:db8::1]:47";host=a.example;proto=https'}, "https://a.example"),
        (
            {"Forwarded": 'host=evil.example, for=203.0.113.9;proto=https, for="127.0.0.2:80", for=127.0.0.3'},
            "https://seen.example",
        ),
        ({"Forwarded": "host=evil.example, for=unknown;proto=https"}, "https://seen.example"),
        ({"X-Forwarded-Host": "evil.example, a.example", "X-Forwarded-Proto": "http,https"}, "https://a.example"),
        ({"X-Forwarded-Proto": "HTTPS"}, "https://seen.example"),
        ({"X-Forwarded-Host": "a.example"}, "http://a.example"),
        ({"X-Forwarded-Host": "b.example", "Forwarded": "for=203.0.113.9;host=a.example"}, "http://a.example"),
    ],
)
def test_the_outermost_trusted_proxy_decides(target: str, headers: dict[str, str], expected: str) -> None:
    assert card_url(target, {"trusted_proxies": ["127.0.0.0/8"]}, headers) == expected


@pytest.mark.parametrize("headers", [{"X-Forwarded-Host": "a/b"}, {"X-Forwarded-Proto": "javascript"}])
def test_a_proxy_that_names_no_address_is_refused(target: str, headers: dict[str, str]) -> None:
    with bridging(target, ServerSettings(trusted_proxies=["127.0.0.1"])) as bridge:
        assert bridge.request("GET", PATH, headers=headers).status == 400


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"trusted_proxies": ["proxy.example"]}, "server.trusted_proxies"),
        ({"trusted_proxies": ["10.0.0.0/40"]}, "server.trusted_proxies"),
        ({"public_url": "agent.example.com"}, "server.public_url"),
        ({"public_url": "ftp://agent.example.com"}, "server.public_url"),
        ({"public_url": "https://agent.example.com/?x"}, "server.public_url"),
    ],
)
def test_settings_that_are_no_addresses_stop_the_start(settings: dict[str, Any], key: str) -> None:
    async def create() -> None:
        async with connect("127.0.0.1:1") as channel:
            create_app(ServerSettings(**settings), AgentSettings(), "1", channel)

    with pytest.raises(ConfigError, match=key):
        asyncio.run(create())
