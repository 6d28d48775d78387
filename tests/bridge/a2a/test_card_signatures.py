"""Signed agent cards, verified by the official clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from a2a.client import A2ACardResolver
from a2a.client.card_resolver import parse_agent_card
from a2a.compat.v0_3 import a2a_v0_3_pb2
from a2a.compat.v0_3.proto_utils import FromProto
from a2a.types import a2a_pb2
from a2a.utils.signing import (
    InvalidSignaturesError,
    NoSignatureError,
    ProtectedHeader,
    create_agent_card_signer,
    create_signature_verifier,
)
from google.protobuf import json_format
from jwt.utils import base64url_decode

from bridge.a2a.agent_card import AdvertisedPorts, AgentCardBuilder, card_to_json, encode_card
from cstp_grpc.contract.card_keys import SigningKey, read_public_keys
from cstp_grpc.contract.card_signatures import verify_card
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.platform.config import ConfigError, Settings, load_settings
from tests.bridge.a2a.bindings import BINDINGS, Binding, OldGrpc, connected
from tests.bridge.a2a.sdks import INSTALL_SECONDS, SESSION_SECONDS, plain_http, run_command, run_python_v0_3
from tests.harness import Peers, peering, running, settings
from tests.signing_keys import make_key, private_pem, public_pem, write_keys

CARD = "/.well-known/agent-card.json"
OLD_CARD = "/.well-known/agent.json"
PUBLIC_URL = "https://agent.example.com"
ALGORITHMS = ("ES256", "ES384", "ES512", "RS256", "EdDSA")

pytestmark = pytest.mark.timeout(2 * (INSTALL_SECONDS + SESSION_SECONDS))


@dataclass(frozen=True)
class Signing:
    """A bridge that signs its cards, and the public key."""

    peers: Peers
    public_key: str


@pytest.fixture(scope="module")
def signing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signing]:
    folder = tmp_path_factory.mktemp("cstp")
    private, public = write_keys(folder)
    wanted = settings(
        folder,
        agent={"description": "Décisions – gardées", "card_signing": {"key_file": private, "key_id": "card-1"}},
        server={"public_url": PUBLIC_URL},
    )
    with running(wanted) as app, peering(wanted, app.target) as peers:
        yield Signing(peers, public.read_text())


def verify(card: a2a_pb2.AgentCard, key: str, algorithm: str = "ES256") -> None:
    """Verify a card with the official Python client."""
    create_signature_verifier(lambda kid, jku: key, [algorithm])(card)


def described(algorithm: str = "ES256", **agent: Any) -> tuple[AgentCardBuilder, str]:
    """Return cards that a new key signs, and the public key."""
    key = make_key(algorithm)
    wanted = load_settings(
        None,
        agent={"card_signing": {"key": private_pem(key)}, **agent},
        server={"public_url": PUBLIC_URL},
    )
    signing_key = SigningKey.load(wanted.agent.card_signing, "agent.card_signing")
    return AgentCardBuilder(
        wanted, "1.2.3", contract_methods().values(), AdvertisedPorts(4711), signing_key
    ), public_pem(key)


@pytest.mark.parametrize("version", [None, "1.0", "0.3"])
@pytest.mark.parametrize("path", [CARD, OLD_CARD])
def test_the_python_client_verifies_every_card(signing: Signing, path: str, version: str | None) -> None:
    verifier = create_signature_verifier(lambda kid, jku: signing.public_key, ["ES256"])

    async def resolve() -> a2a_pb2.AgentCard:
        headers = {"A2A-Version": version} if version else {}
        async with plain_http(headers=headers) as http:
            resolver = A2ACardResolver(http, signing.peers.url, path)
            return await resolver.get_agent_card(signature_verifier=verifier)

    card = asyncio.run(resolve())
    header = json.loads(base64url_decode(card.signatures[0].protected))
    assert header == {"alg": "ES256", "typ": "JOSE", "kid": "card-1"}
    card.description = "Forged"
    with pytest.raises(InvalidSignaturesError):
        verifier(card)


def test_the_python_client_of_0_3_verifies_every_card(python_sdk_v0_3: Path, signing: Signing) -> None:
    other = public_pem(make_key())
    cards = [(signing.peers.url + path, key) for path in (CARD, OLD_CARD) for key in (signing.public_key, other)]
    said = run_python_v0_3(python_sdk_v0_3, "verify.py", "ES256", json.dumps(cards))
    assert said.splitlines() == ["verified", "No valid signature found"] * 2


def test_the_javascript_client_verifies_every_card(js_sdk: Path, signing: Signing) -> None:
    cases = [{}, {"version": "1.0"}, {"description": "Forged"}]
    given = {"CARD_URL": signing.peers.url + CARD, "CARD_KEY": signing.public_key, "CARD_CASES": json.dumps(cases)}
    done = run_command(("node", "verify.mjs"), js_sdk, SESSION_SECONDS, **given)
    said = ["verified", "verified", "No valid signatures found on agent card."]
    assert done.stdout.splitlines() == said, done.stderr


@pytest.mark.parametrize("kind", BINDINGS)
def test_the_extended_card_is_signed_over_every_binding(signing: Signing, kind: type[Binding]) -> None:
    with connected(kind, signing.peers) as binding:
        content = binding.call("GetExtendedAgentCard", {}).result
    assert "cstp.listAuditEntries" in {skill["id"] for skill in content["skills"]}
    if kind.version == "1.0":
        verify(parse_agent_card(content), signing.public_key)
        return
    if kind is OldGrpc:
        card = json_format.ParseDict(content, a2a_v0_3_pb2.AgentCard())
        content = FromProto.agent_card(card).model_dump(mode="json", by_alias=True)
    keys = read_public_keys(signing.public_key.encode())
    assert verify_card(content, keys) is not None
    assert verify_card({**content, "description": "Forged"}, keys) is None


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_keys_of_every_kind_sign(algorithm: str) -> None:
    cards, key = described(algorithm)
    for content in (cards.build_merged(PUBLIC_URL), cards.build_v1_0(PUBLIC_URL), cards.build_v0_3(PUBLIC_URL)):
        found = verify_card(content, read_public_keys(key.encode()))
        assert found is not None
        assert found[0]["name"] == "cstp"
        verify(parse_agent_card(content), key, algorithm)


def test_a_key_is_known_by_its_thumbprint_unless_it_has_a_name() -> None:
    cards, key = described()
    [public] = read_public_keys(key.encode())
    header = json.loads(base64url_decode(cards.build_public(PUBLIC_URL).signatures[0].protected))
    assert header["kid"] == public.thumbprint
    assert len(public.thumbprint) == 43


def test_the_tag_follows_the_key_and_not_the_signature() -> None:
    (cards, _), (others, _) = described(), described()
    first, again, other = (encode_card(one.build_merged(PUBLIC_URL), one.signed_by) for one in (cards, cards, others))
    assert first.body != again.body
    assert first.tag == again.tag != other.tag


def test_cards_are_not_signed_without_a_key() -> None:
    card = AgentCardBuilder(Settings(), "1.2.3", contract_methods().values(), AdvertisedPorts(4711)).build_public(
        PUBLIC_URL
    )
    with pytest.raises(NoSignatureError):
        verify(card, public_pem(make_key()))


def test_cards_that_the_python_client_signs_are_verified() -> None:
    key = make_key()
    card = AgentCardBuilder(Settings(), "1.2.3", contract_methods().values(), AdvertisedPorts(4711)).build_public(
        PUBLIC_URL
    )
    header: ProtectedHeader = {"kid": "k", "alg": "ES256", "jku": None, "typ": "JOSE"}
    signed = create_agent_card_signer(private_pem(key), header)(card)
    content = card_to_json(signed)
    found = verify_card(content, read_public_keys(public_pem(key).encode()))
    assert found is not None
    # What no signature covers is not passed on.
    forged = verify_card({**content, "url": "https://evil.example"}, read_public_keys(public_pem(key).encode()))
    assert forged is not None
    assert "url" not in forged[0]


@pytest.mark.parametrize(
    ("card_signing", "said"),
    [
        ({"key_file": "/no/such.key"}, "agent.card_signing.key_file: /no/such.key cannot be read"),
        ({"key": "not a key"}, "agent.card_signing.key: it is not a private key in PEM"),
        ({"key": public_pem(make_key())}, "agent.card_signing.key: it is not a private key in PEM"),
    ],
)
def test_a_key_that_cannot_be_used_stops_the_start(tmp_path: Path, card_signing: dict[str, str], said: str) -> None:
    wanted = settings(tmp_path, agent={"card_signing": card_signing}, server={"public_url": PUBLIC_URL})
    with pytest.raises(ConfigError, match=said), peering(wanted, "127.0.0.1:1"):
        pytest.fail("it started")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"agent": {"card_signing": {"key": "x"}}}, "agent.card_signing needs server.public_url"),
        ({"agent": {"card_signing": {}}, "server": {"public_url": PUBLIC_URL}}, "either key_file or key"),
        (
            {"agent": {"card_signing": {"key": "x", "key_file": "y"}}, "server": {"public_url": PUBLIC_URL}},
            "either key_file or key",
        ),
    ],
)
def test_settings_that_cannot_sign_are_refused(overrides: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_settings(None, **overrides)
