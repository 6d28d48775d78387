"""The cards declare by which means callers may authenticate."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from a2a.utils.proto_utils import validate_proto_required_fields

from bridge.a2a.agent_card import AdvertisedPorts, AgentCardBuilder
from bridge.a2a.call_context import load_sdk_v0_3
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.platform.config import Settings

ADDRESS = "https://agent.example.com"
ISSUER = {
    "issuer": "https://issuer.example.com/",
    "audience": ["cstp"],
    "jwks_url": "https://issuer.example.com/keys",
    "discovery_url": "https://issuer.example.com/.well-known/openid-configuration",
    "token_url": "https://issuer.example.com/token",
}
TLS = {"certificate": "c.pem", "key": "k.pem", "client_ca": "ca.pem"}
CERTIFICATES = [{"name": "deployer", "uri": "spiffe://example.com/deployer"}]


def builder(**sections: Any) -> AgentCardBuilder:
    return AgentCardBuilder(Settings(**sections), "1.2.3", contract_methods().values(), AdvertisedPorts(4711))


@pytest.mark.parametrize(
    ("sections", "required"),
    [
        ({}, [["bearer"]]),
        ({"auth": {"jwt": [ISSUER]}}, [["bearer"], ["oauth2"], ["openIdConnect"]]),
        ({"server": {"tls": TLS}}, [["bearer", "mutualTLS"]]),
        ({"server": {"tls": TLS}, "auth": {"certificates": CERTIFICATES}}, [["bearer", "mutualTLS"], ["mutualTLS"]]),
        (
            {"server": {"tls": {**TLS, "client_certificates": "optional"}}, "auth": {"certificates": CERTIFICATES}},
            [["bearer"], ["mutualTLS"]],
        ),
    ],
)
def test_a_card_says_which_schemes_are_enough(sections: dict[str, Any], required: list[list[str]]) -> None:
    card = builder(**sections).build_public(ADDRESS)
    validate_proto_required_fields(card)
    assert sorted(sorted(each.schemes) for each in card.security_requirements) == required
    assert set(card.security_schemes) == {name for names in required for name in names}


def test_a_card_says_where_agents_get_tokens() -> None:
    first = {**ISSUER, "agent_prefix": "one/"}
    scopes = {"permissions": {"ops": ["query", "check"]}}
    second = {**ISSUER, "issuer": "https://two.example.com/", "agent_prefix": "two/", **scopes}
    schemes = builder(auth={"jwt": [first, second]}).build_public(ADDRESS).security_schemes
    connect = schemes["openIdConnect"].open_id_connect_security_scheme
    assert connect.open_id_connect_url == ISSUER["discovery_url"]
    flow = schemes["oauth2"].oauth2_security_scheme.flows.client_credentials
    assert flow.token_url == ISSUER["token_url"]
    assert flow.scopes["cstp:query"] == "query"
    assert dict(schemes["oauth2-2"].oauth2_security_scheme.flows.client_credentials.scopes) == {"ops": "check, query"}


def test_clients_of_0_3_are_told_the_same() -> None:

    asyncio.run(load_sdk_v0_3())
    card = builder(auth={"jwt": [ISSUER], "certificates": CERTIFICATES}, server={"tls": TLS}).build_v0_3(ADDRESS)
    assert {name: scheme["type"] for name, scheme in card["securitySchemes"].items()} == {
        "bearer": "http",
        "openIdConnect": "openIdConnect",
        "oauth2": "oauth2",
        "mutualTLS": "mutualTLS",
    }
    assert set(card["authentication"]["schemes"]) == set(card["securitySchemes"])
