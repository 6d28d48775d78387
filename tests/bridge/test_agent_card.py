from __future__ import annotations

import asyncio
import gzip
import re
from typing import Any

import httpx
import pytest
from a2a.client.card_resolver import A2ACardResolver
from a2a.compat.v0_3 import types
from a2a.types import a2a_pb2
from a2a.utils.proto_utils import validate_proto_required_fields
from google.protobuf import json_format

from bridge.a2a.call_context import EXTENSION_URI
from cstp_grpc.common.version import VERSION
from cstp_grpc.platform.config import AgentSettings, ConfigError, ProviderSettings, ServerSettings
from tests.bridge.support import Client, bridging
from tests.named_case import named_case

CARD = "/.well-known/agent-card.json"
PATH = "/.well-known/agent.json"
BOTH = pytest.mark.parametrize("path", [CARD, PATH])


def without_port(url: str) -> str:
    return re.sub(r":\d+$", "", url)


def card_url(target: str, settings: dict[str, Any], headers: dict[str, str]) -> str:
    with bridging(target, ServerSettings(**settings)) as bridge:
        answer = bridge.request("GET", PATH, headers={"Host": "seen.example", **headers})
        assert answer.status == 200
        url: str = answer.json["url"]
        return url


def test_the_old_card_has_what_the_design_says(target: str) -> None:
    agent = AgentSettings(name="emerson-cognition", description="Décisions", contact="emerson@example.com")
    with bridging(target, ServerSettings(public_url="https://agent.example.com/"), agent) as bridge:
        answer = bridge.get(PATH)
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/json"
    card = answer.json
    assert card["capabilities"].pop("cstp") == {
        "version": "1.0",
        "methods": ["cstp.announceIntent", "cstp.queryDecisions", "cstp.checkGuardrails"],
    }
    design = {
        "name": "emerson-cognition",
        "description": "Décisions",
        "version": VERSION,
        "url": "https://agent.example.com",
        "authentication": {"schemes": ["bearer"]},
        "contact": "emerson@example.com",
    }
    assert {name: card[name] for name in design} == design


def test_the_old_card_is_one_of_a2a_0_3(target: str) -> None:
    provider = ProviderSettings(organization="Emerson", url="https://example.com")
    agent = AgentSettings(provider=provider, documentation_url="https://docs.example.com")
    with bridging(target, ServerSettings(public_url="https://agent.example.com"), agent) as bridge:
        content = bridge.get(PATH).json
    card = types.AgentCard.model_validate(content)
    assert (card.protocol_version, card.url, card.preferred_transport) == (
        "0.3.0",
        "https://agent.example.com",
        "JSONRPC",
    )
    assert [(found.transport, found.url) for found in card.additional_interfaces or ()] == [
        ("JSONRPC", "https://agent.example.com"),
        ("JSONRPC", "https://agent.example.com/a2a/"),
    ]
    assert (card.capabilities.streaming, card.capabilities.push_notifications) == (True, True)
    assert [found.uri for found in card.capabilities.extensions or ()] == [EXTENSION_URI]
    assert card.supports_authenticated_extended_card is True
    assert content["securitySchemes"]["bearer"]["type"] == "http"
    assert card.security == [{"bearer": []}]
    assert card.default_input_modes == card.default_output_modes == ["text/plain", "application/json"]
    assert {skill.id for skill in card.skills} >= {"cstp.announceIntent", "cstp.getAccess", "cstp.recordDecision"}
    assert (content["provider"], card.documentation_url) == (
        {"organization": "Emerson", "url": "https://example.com"},
        "https://docs.example.com",
    )


def test_the_card_has_all_that_a2a_1_0_requires_and_nothing_else(bridge: Client) -> None:
    answer = bridge.get(CARD, A2A_Version="1.0")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    # Parsing fails for members that 1.0 does not have.
    card = json_format.Parse(answer.body, a2a_pb2.AgentCard())
    validate_proto_required_fields(card)
    assert [interface.protocol_binding for interface in card.supported_interfaces][:1] == ["JSONRPC"]
    assert answer.json["capabilities"]["pushNotifications"] is True


def test_the_card_says_of_the_extension_that_it_is_not_required(bridge: Client) -> None:
    (extension,) = bridge.get(CARD).json["capabilities"]["extensions"]
    assert extension["required"] is False


@pytest.mark.parametrize("version", ["0.3", "0.3.0", " 0.3 "])
def test_who_asks_for_0_3_gets_its_card_at_either_path(bridge: Client, version: str) -> None:
    answer = bridge.get(CARD, A2A_Version=version)
    assert answer.body == bridge.get(PATH).body
    assert answer.headers["ETag"] == bridge.get(PATH).headers["ETag"]


@pytest.mark.parametrize("version", ["1.0.2", " 1.0 "])
def test_who_asks_for_1_0_gets_its_card(bridge: Client, version: str) -> None:
    assert bridge.get(CARD, A2A_Version=version).body == bridge.get(CARD, A2A_Version="1.0").body


@pytest.mark.parametrize("version", ["", "0.2", "2.0", "x"])
def test_everyone_else_gets_one_card_that_both_generations_read(bridge: Client, version: str) -> None:
    answer = bridge.get(CARD, A2A_Version=version)
    assert answer.body == bridge.get(CARD).body
    old, new = bridge.get(CARD, A2A_Version="0.3").json, bridge.get(CARD, A2A_Version="1.0").json
    merged = answer.json
    assert set(merged) == set(old) | set(new)
    assert json_format.ParseDict(merged, a2a_pb2.AgentCard(), ignore_unknown_fields=True) == json_format.ParseDict(
        new, a2a_pb2.AgentCard()
    )
    assert types.AgentCard.model_validate(merged) == types.AgentCard.model_validate(old)
    assert merged["capabilities"]["cstp"] == old["capabilities"]["cstp"]


def test_caches_are_told_that_the_version_decides(bridge: Client) -> None:
    cards = [bridge.get(CARD), bridge.get(CARD, A2A_Version="0.3"), bridge.get(CARD, A2A_Version="1.0")]
    assert len({answer.headers["ETag"] for answer in cards}) == 3
    cards.append(bridge.get(CARD, If_None_Match=cards[0].headers["ETag"]))
    assert [answer.status for answer in cards] == [200, 200, 200, 304]
    assert all("A2A-Version" in ",".join(answer.headers.get_all("Vary") or ()) for answer in cards)
    assert bridge.get(CARD, A2A_Version="0.3", If_None_Match=cards[0].headers["ETag"]).status == 200
    assert bridge.get(PATH, A2A_Version="1.0").body == bridge.get(PATH).body


@BOTH
def test_the_python_client_reads_either_card(bridge: Client, path: str) -> None:
    async def resolve() -> a2a_pb2.AgentCard:
        async with httpx.AsyncClient() as client:
            return await A2ACardResolver(client, f"http://{bridge.host}:{bridge.port}", path).get_agent_card()

    card = asyncio.run(resolve())
    assert card.name == "cstp"
    assert card.capabilities.streaming
    assert card.capabilities.extended_agent_card
    version = "1.0" if path == CARD else "0.3.0"
    assert (card.supported_interfaces[0].protocol_binding, card.supported_interfaces[0].protocol_version) == (
        "JSONRPC",
        version,
    )
    assert card.security_schemes["bearer"].http_auth_security_scheme.scheme == "Bearer"
    assert [list(found.schemes) for found in card.security_requirements] == [["bearer"]]


@pytest.mark.parametrize(
    ("host", "hosts"),
    [("agent.example.com", "agent.example.com"), ("[2001:db8::1]:8443", "[2001:db8::1]")],
)
def test_every_address_of_the_card_follows_the_proxy(target: str, host: str, hosts: str) -> None:
    with bridging(target, ServerSettings(trusted_proxies=["127.0.0.1"])) as bridge:
        forwarded = f'for=203.0.113.9;proto=https;host="{host}"'
        answer = bridge.get(CARD, Forwarded=forwarded, A2A_Version="1.0")
    card = json_format.Parse(answer.body, a2a_pb2.AgentCard())
    assert [interface.url for interface in card.supported_interfaces] == [
        f"https://{host}/a2a/",
        f"https://{host}/a2a/",
        f"https://{host}/a2a/v1",
    ]
    params = answer.json["capabilities"]["extensions"][0]["params"]
    assert (params["endpoint"], without_port(params["grpcTarget"])) == (f"https://{host}/cstp", hosts)


def test_the_contact_is_left_out_where_there_is_none(bridge: Client) -> None:
    assert "contact" not in bridge.get(PATH).json


@BOTH
def test_the_card_needs_no_token_and_may_be_kept(target: str, path: str) -> None:
    with bridging(target, ServerSettings(public_url="https://agent.example.com")) as bridge:
        answer = bridge.get(path)
        assert answer.headers["Cache-Control"] == "public, max-age=300"
        tag = answer.headers["ETag"]
        # One tag for what differs in nothing but its encoding must be a weak one.
        assert tag.startswith("W/")
        for known in (tag, tag.removeprefix("W/"), f'"x", {tag}', "*"):
            again = bridge.get(path, If_None_Match=known)
            assert (again.status, again.body, again.headers["ETag"]) == (304, b"", tag)
            assert again.headers["Cache-Control"] == "public, max-age=300"
            assert again.headers.get_all("Vary") == answer.headers.get_all("Vary")
        assert bridge.get(path, If_None_Match='"x"').status == 200


@BOTH
def test_an_address_that_the_caller_named_is_for_its_own_cache_alone(bridge: Client, path: str) -> None:
    for headers in ({}, {"Host": "evil.example"}):
        answer = bridge.get(path, **headers)
        assert answer.headers["Cache-Control"] == "private, max-age=300"
        again = bridge.get(path, If_None_Match=answer.headers["ETag"], **headers)
        assert (again.status, again.headers["Cache-Control"]) == (304, "private, max-age=300")


def test_the_card_is_compressed_when_asked(bridge: Client) -> None:
    for path in [CARD, PATH]:
        for asked in ["gzip", "br, GZIP;q=0.5", "deflate, gzip", "x-gzip", "gzip ; q=1.0", "*"]:
            with named_case(path, asked):
                plain, answer = bridge.get(path, Accept_Encoding="identity"), bridge.get(path, Accept_Encoding=asked)
                assert answer.headers["Content-Encoding"] == "gzip"
                assert gzip.decompress(answer.body) == plain.body
                assert int(answer.headers["Content-Length"]) == len(answer.body) < len(plain.body) / 2
                assert answer.headers["ETag"] == plain.headers["ETag"]
                for found in (plain, answer):
                    assert "Accept-Encoding" in ",".join(found.headers.get_all("Vary") or ())


def test_the_card_is_not_compressed_otherwise(bridge: Client) -> None:
    for path in [CARD, PATH]:
        for asked in [None, "", "identity", "br", "gzip;q=0", "gzip;q=0.000, *", "*;q=0", "gzip;q=x"]:
            with named_case(path, asked):
                answer = bridge.request("GET", path, headers={} if asked is None else {"Accept-Encoding": asked})
                assert "Content-Encoding" not in answer.headers
                assert answer.json["name"] == "cstp"


def test_strangers_get_a_short_card(bridge: Client) -> None:
    plain = bridge.get(CARD)
    assert len(plain.body) < 12_500
    assert len(bridge.get(CARD, Accept_Encoding="gzip").body) < 3_300
    # One sentence each says what a skill does; the rest is in the extended card.
    described = {skill["id"]: skill["description"] for skill in plain.json["skills"]}
    assert described["cstp.closeIntent"] == "Closes an intent of the caller: it is done, failed or given up."
    assert all(text.endswith(".") and ". " not in text for text in described.values())


@BOTH
def test_the_head_of_the_card_has_no_body(bridge: Client, path: str) -> None:
    answer = bridge.request("HEAD", path)
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["ETag"] == bridge.get(path).headers["ETag"]


@BOTH
def test_the_card_cannot_be_posted(bridge: Client, path: str) -> None:
    answer = bridge.request("POST", path, b"{}")
    assert answer.status == 405
    assert answer.headers["Allow"] == "GET,HEAD"


@BOTH
def test_the_tag_follows_the_address(bridge: Client, path: str) -> None:
    here, there = bridge.get(path, Host="here.example"), bridge.get(path, Host="there.example")
    assert here.headers["ETag"] != there.headers["ETag"]


@pytest.mark.parametrize(
    "host", ["seen.example", "seen.example:8443", "127.0.0.1:8100", "[::1]:8100", "a_b-c.example."]
)
def test_the_address_is_the_one_that_was_called(bridge: Client, host: str) -> None:
    assert bridge.get(PATH, Host=host).json["url"] == f"http://{host}"


def test_a_host_that_is_none_is_refused(bridge: Client) -> None:
    for path in [CARD, PATH]:
        for host in ["", "a/b", "a b", "user@host", "a:b", "[::1", "x" * 300, 'a"b', "a\\b", "é"]:
            with named_case(path, host):
                assert bridge.get(path, Host=host).status == 400


FORWARDED = {"Forwarded": "for=203.0.113.9;proto=https;host=agent.example.com"}
X_FORWARDED = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "agent.example.com"}


@pytest.mark.parametrize("headers", [FORWARDED, X_FORWARDED])
@pytest.mark.parametrize("proxies", [["127.0.0.1"], ["127.0.0.0/8"], ["10.0.0.0/8", "::1", "127.0.0.1/32"]])
def test_trusted_proxies_are_believed(target: str, headers: dict[str, str], proxies: list[str]) -> None:
    assert card_url(target, {"trusted_proxies": proxies}, headers) == "https://agent.example.com"


@pytest.mark.parametrize("headers", [FORWARDED, X_FORWARDED])
@pytest.mark.parametrize("proxies", [[], ["10.0.0.0/8"], ["fc00::/7"]])
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
    with pytest.raises(ConfigError, match=key), bridging("127.0.0.1:1", ServerSettings(**settings)):
        pytest.fail("it started")
