from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from a2a.client.card_resolver import parse_agent_card
from a2a.compat.v0_3 import conversions, types
from a2a.types import a2a_pb2
from a2a.utils.proto_utils import validate_proto_required_fields
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from google.protobuf import json_format

from bridge.a2a.agent_card import AdvertisedPorts, AgentCardBuilder, AgentCardEndpoint
from bridge.a2a.call_context import EXTENSION_URI
from bridge.http_request import PublicUrlResolver
from cstp_grpc.contract.json_codec import from_json, to_json
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.gen.cstp.v1 import access_pb2, options_pb2
from cstp_grpc.platform.config import ConfigError, ServerSettings, Settings, load_settings
from tests.named_case import named_case

ADDRESS = "https://agent.example.com"
PUBLIC = {method.name: method for method in contract_methods().values() if method.public}
CALLABLE = {name for name, method in PUBLIC.items() if not method.streaming and not method.secret_response}
"""What a message of A2A can call."""
EXAMPLES = [(name, example) for name, method in PUBLIC.items() if name in CALLABLE for example in method.examples]
CARD = "/.well-known/agent-card.json"
OLD_CARD = "/.well-known/agent.json"


def cards(a2a: dict[str, Any] | None = None, **agent: Any) -> AgentCardBuilder:
    settings = Settings(a2a=a2a or {}, agent=agent)  # type: ignore[arg-type]
    return AgentCardBuilder(settings, "1.2.3", contract_methods().values(), AdvertisedPorts(cstp=4711))


def access(*permissions: str) -> dict[str, Any]:
    """Return the answer of `cstp.getAccess` to an agent with these permissions."""
    return to_json(
        access_pb2.GetAccessResponse(
            requesting_agent="alice",
            agent="cstp",
            permissions=[options_pb2.Permission.Value(f"PERMISSION_{name.upper()}") for name in permissions],
            guardrails=access_pb2.GuardrailSet(version="abc", count=7),
            limits=access_pb2.Limits(per_method="600/minute", max_results=50),
        )
    )


def params(card: a2a_pb2.AgentCard) -> dict[str, Any]:
    found: dict[str, Any] = json_format.MessageToDict(card.capabilities.extensions[0].params)
    return found


def skill(card: a2a_pb2.AgentCard, name: str) -> a2a_pb2.AgentSkill:
    (found,) = [skill for skill in card.skills if skill.id == name]
    return found


def served(described: AgentCardBuilder, path: str, address: str = ADDRESS) -> tuple[str, bytes]:
    """Return the tag and the body of a card over HTTP."""

    async def fetch() -> tuple[str, bytes]:
        pages = AgentCardEndpoint(described, PublicUrlResolver(ServerSettings(public_url=address)))
        app = web.Application()
        app.router.add_get(CARD, pages.agent_card)
        app.router.add_get(OLD_CARD, pages.agent_json)
        async with TestClient(TestServer(app)) as client, client.get(path) as answer:
            assert answer.status == 200
            return answer.headers["ETag"], await answer.read()

    return asyncio.run(fetch())


def test_interfaces_are_listed_by_preference() -> None:
    card = cards({"public_grpc_target": "a2a.example.com:443"}).build_public(ADDRESS)
    found = [(one.protocol_binding, one.protocol_version, one.url) for one in card.supported_interfaces]
    assert found == [
        ("JSONRPC", "1.0", "https://agent.example.com/a2a/"),
        ("JSONRPC", "0.3", "https://agent.example.com/a2a/"),
        ("GRPC", "1.0", "a2a.example.com:443"),
        ("GRPC", "0.3", "a2a.example.com:443"),
        ("HTTP+JSON", "1.0", "https://agent.example.com/a2a/v1"),
    ]


def test_without_a_public_grpc_target_all_interfaces_have_the_origin_of_the_card() -> None:
    urls = {one.url for one in cards().build_public(ADDRESS).supported_interfaces}
    assert urls == {"https://agent.example.com/a2a/", "https://agent.example.com/a2a/v1"}
    old = types.AgentCard.model_validate(cards().build_v0_3(ADDRESS))
    assert {one.transport for one in old.additional_interfaces or ()} == {"JSONRPC"}


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("https://agent.example.com:8443", "agent.example.com"),
        ("https://agent.example.com/behind/a/path", "agent.example.com"),
        ("http://127.0.0.1:8100", "127.0.0.1"),
        ("http://[2001:db8::1]:8100", "[2001:db8::1]"),
        ("http://[::1]", "[::1]"),
    ],
)
def test_the_grpc_target_of_cstp_is_on_the_host_of_the_address(address: str, host: str) -> None:
    card = cards().build_public(address)
    assert params(card)["grpcTarget"] == f"{host}:4711"
    assert params(card)["endpoint"] == f"{address}/cstp"


def test_the_card_names_where_the_inputs_of_guardrails_are_listed() -> None:
    named = params(cards().build_public(ADDRESS))["inputsMethod"]
    assert contract_methods()[named].rpc == "ListInputs"


@pytest.mark.parametrize(
    ("given", "grpc_target"),
    [
        ({}, "grpcs://agent.example.com:4711"),
        ({"public_cstp_target": "cstp.example.com:443"}, "grpcs://cstp.example.com:443"),
        ({"public_cstp_target": "grpcs://cstp.example.com:443"}, "grpcs://cstp.example.com:443"),
    ],
)
def test_a_server_that_speaks_tls_is_named_so(given: dict[str, str], grpc_target: str) -> None:
    settings = Settings(a2a=given)  # type: ignore[arg-type]
    described = AgentCardBuilder(
        settings, "1.2.3", contract_methods().values(), AdvertisedPorts(cstp=4711, cstp_secure=True)
    )
    card = described.build_public(ADDRESS)
    assert params(card)["grpcTarget"] == grpc_target


def test_a_proxy_may_speak_tls_for_the_server() -> None:
    card = cards({"public_cstp_target": "grpcs://cstp.example.com:443"}).build_public(ADDRESS)
    assert params(card)["grpcTarget"] == "grpcs://cstp.example.com:443"


def test_configured_targets_win() -> None:
    given = {"public_grpc_target": "a2a.example.com:443", "public_cstp_target": "[2001:db8::2]:444"}
    card = cards(given).build_public(ADDRESS)
    assert {one.url for one in card.supported_interfaces if one.protocol_binding == "GRPC"} == {"a2a.example.com:443"}
    assert params(card)["grpcTarget"] == "[2001:db8::2]:444"
    old = types.AgentCard.model_validate(cards(given).build_v0_3(ADDRESS))
    assert [one.url for one in old.additional_interfaces or () if one.transport == "GRPC"] == ["a2a.example.com:443"]


def test_the_card_has_all_required_members() -> None:
    provider = {"organization": "Emerson", "url": "https://example.com"}
    card = cards(name="emerson", provider=provider, documentation_url="https://docs.example.com").build_public(ADDRESS)
    validate_proto_required_fields(card)
    assert (card.name, card.version, card.provider.organization) == ("emerson", "1.2.3", "Emerson")
    assert card.documentation_url == "https://docs.example.com"
    assert card.security_schemes["bearer"].http_auth_security_scheme.scheme == "Bearer"
    assert list(card.default_input_modes) == list(card.default_output_modes) == ["text/plain", "application/json"]


def test_the_version_on_the_card_can_be_configured() -> None:
    described = cards(version="2026.11")
    assert (described.build_public(ADDRESS).version, described.build_v0_3(ADDRESS)["version"]) == ("2026.11", "2026.11")
    assert described.build_extended(ADDRESS, access()).version == "2026.11"


@pytest.mark.parametrize("member", ["name", "description", "version"])
def test_what_a_card_requires_cannot_be_configured_away(member: str) -> None:
    with pytest.raises(ConfigError, match=f"agent.{member}"):
        load_settings(None, agent={member: ""})


def test_the_card_says_nothing_of_what_is_not_configured() -> None:
    content = json_format.MessageToDict(cards().build_public(ADDRESS))
    assert not {"provider", "documentationUrl", "iconUrl", "signatures"} & content.keys()


def test_capabilities_are_stated_also_where_they_are_missing() -> None:
    capabilities = json_format.MessageToDict(cards().build_public(ADDRESS).capabilities)
    del capabilities["extensions"]
    assert capabilities == {"streaming": True, "pushNotifications": True, "extendedAgentCard": True}


@pytest.mark.parametrize("required", [False, True])
def test_the_extension_names_the_methods_of_the_skills(required: bool) -> None:
    card = cards({"require_extension": required}).build_public(ADDRESS)
    (extension,) = card.capabilities.extensions
    assert (extension.uri, extension.required) == (EXTENSION_URI, required)
    assert extension.description
    assert params(card)["methods"] == [one.id for one in card.skills]
    assert "cstp.saveTask" not in params(card)["methods"]


def test_strangers_are_told_what_any_agent_may_use() -> None:
    card = cards().build_public(ADDRESS)
    found = [one.id for one in card.skills]
    assert found[:3] == ["cstp.announceIntent", "cstp.queryDecisions", "cstp.checkGuardrails"]
    assert set(found) >= {"cstp.getAccess", "cstp.recordDecision", "intentLayer.resolveContext"}
    assert {PUBLIC[name].permission for name in found} == {"any", "query", "check", "announce", "record"}
    assert set(found) <= CALLABLE
    for one in card.skills:
        assert PUBLIC[one.id].description.startswith(one.description)
        assert "Errors:" not in one.description


def everything() -> a2a_pb2.AgentCard:
    """Return the card of a caller who may do everything."""
    return cards().build_extended(ADDRESS, access("announce", "query", "check", "record", "review", "admin"))


def test_skills_are_named_and_tagged_for_readers() -> None:
    card = everything()
    assert {name: skill(card, name).name for name in ("cstp.announceIntent", "cstp.listAuditEntries")} == {
        "cstp.announceIntent": "Announce intent",
        "cstp.listAuditEntries": "List audit entries",
    }
    assert list(skill(card, "cstp.queryDecisions").tags) == ["cstp", "query"]
    assert list(skill(card, "cstp.shareDecision").tags) == ["cstp", "journal", "record"]
    assert list(skill(card, "cstp.getAccess").tags) == ["cstp", "access"]


def test_an_intent_may_be_announced_in_plain_text() -> None:
    card = cards().build_public(ADDRESS)
    announcing = skill(card, "cstp.announceIntent")
    text, data = announcing.examples
    assert json.loads(data)["params"]["intent"] == text
    assert list(announcing.input_modes) == ["text/plain", "application/json"]
    assert list(skill(card, "cstp.queryDecisions").input_modes) == ["application/json"]


def test_examples_are_calls_that_the_contract_takes() -> None:
    for name, example in EXAMPLES:
        with named_case(name, example):
            card = cards().build_extended(ADDRESS, access(PUBLIC[name].permission))
            found = [json.loads(text) for text in skill(card, name).examples if text.startswith("{")]
            assert {"method": name, "params": json.loads(example)} in found
            from_json(json.loads(example), PUBLIC[name].request)


@pytest.mark.parametrize("granted", [(), ("query",), ("query", "check"), ("announce", "record", "review", "admin")])
def test_the_extended_card_has_the_skills_that_the_caller_may_use(granted: tuple[str, ...]) -> None:
    card = cards().build_extended(ADDRESS, access(*granted))
    validate_proto_required_fields(card)
    expected = {name for name in CALLABLE if PUBLIC[name].permission in ("any", *granted)}
    assert {one.id for one in card.skills} == expected
    assert params(card)["methods"] == [one.id for one in card.skills]
    assert "cstp.getAccess" in expected


def test_the_extended_card_tells_callers_what_holds_for_them() -> None:
    public, extended = cards().build_public(ADDRESS), cards().build_extended(ADDRESS, access("query", "check"))
    told = params(extended)
    assert told.pop("access") == {
        "agent": "alice",
        "permissions": ["query", "check"],
        "guardrails": {"version": "abc", "count": 7},
        "limits": access()["limits"],
    }
    others = params(public)
    assert (told.pop("methods"), others.pop("methods")) != ([], [])
    assert told == others
    assert "access" not in others
    assert extended.supported_interfaces == public.supported_interfaces


@pytest.mark.parametrize("contact", [None, "emerson@example.com"])
def test_the_old_card_fits_0_3(contact: str | None) -> None:
    content = cards({"require_extension": True}, contact=contact).build_v0_3(ADDRESS)
    card = types.AgentCard.model_validate(content)
    assert (card.protocol_version, card.url, card.preferred_transport) == ("0.3.0", ADDRESS, "JSONRPC")
    assert [one.required for one in card.capabilities.extensions or ()] == [True]
    assert [skill.id for skill in card.skills] == [skill.id for skill in cards().build_public(ADDRESS).skills]
    assert content.get("contact") == contact


def test_the_sdk_converts_both_cards() -> None:
    card = parse_agent_card(cards({"public_grpc_target": "a2a.example.com:443"}).build_v0_3(ADDRESS))
    assert {(one.protocol_binding, one.protocol_version) for one in card.supported_interfaces} == {
        ("JSONRPC", "0.3.0"),
        ("GRPC", "0.3.0"),
    }
    content = json_format.MessageToDict(cards().build_public(ADDRESS))
    assert parse_agent_card(content) == cards().build_public(ADDRESS)
    extended = conversions.to_compat_agent_card(cards().build_extended(ADDRESS, access("query")))
    assert extended.supports_authenticated_extended_card is True


def test_the_tag_follows_the_settings() -> None:
    for path in [CARD, OLD_CARD]:
        for other in [
            cards(description="Another"),
            cards({"require_extension": True}),
            cards({"public_grpc_target": "a2a.example.com:443"}),
            cards(documentation_url="https://docs.example.com"),
        ]:
            with named_case(path, other):
                assert served(cards(), path) == served(cards(), path)
                assert served(cards(), path)[0] != served(other, path)[0]


@pytest.mark.parametrize("path", [CARD, OLD_CARD])
def test_the_order_of_members_is_the_same_in_every_process(path: str) -> None:
    _, body = served(cards(), path)
    assert json.dumps(json.loads(body), ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode() == body
