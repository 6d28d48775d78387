"""The agent cards: what A2A clients of either version are told of the agent before they talk to it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from a2a.types import a2a_pb2
from google.protobuf import json_format

from bridge.a2a.context import EXTENSION_URI, V0_3, V1_0
from bridge.a2a.media import JSON, SPOKEN
from bridge.a2a.messages import ANNOUNCE
from bridge.forwarded import PORT
from cstp_grpc.client.contract import Method
from cstp_grpc.config import Settings

if TYPE_CHECKING:
    from bridge.a2a.card_signing import CardSigner
    from cstp_grpc.card_keys import SigningKey

A2A_PATH: Final = "/a2a/"
REST_PATH: Final = "/a2a/v1"
CSTP_PATH: Final = "/cstp"

JSONRPC: Final = "JSONRPC"
GRPC: Final = "GRPC"
HTTP_JSON: Final = "HTTP+JSON"

CORE_SERVICE: Final = "cstp.v1.CstpService"
"""The service of the protocol's own methods, which are shown first."""
CSTP_VERSION: Final = "1.0"
FULL_V0_3: Final = "0.3.0"
ANY: Final = "any"
SCHEME: Final = "bearer"

EXTENSION_DESCRIPTION: Final = (
    "The methods of CSTP: announce intents, query past decisions, check guardrails before acting. Once activated, they "
    "can be called by their names on the A2A endpoint itself."
)
TOKEN_DESCRIPTION: Final = "The token by which the agent's operator knows the caller."  # noqa: S105 - words on the card
SIGNATURES: Final = "signatures"
"""The member of a card that holds its signatures."""
MAX_AGE: Final = 300
"""Seconds for which a card may be kept."""
ORDINARY: Final = frozenset({ANY, "query", "check", "announce", "record"})
"""The permissions of agents that are neither reviewers, nor guides or liaison agents, nor administrators."""
ERRORS: Final = " Errors: "
"""What precedes the errors in the descriptions of the contract."""
WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")


@dataclass(frozen=True, slots=True)
class Ports:
    """Where gRPC is listened for, as far as the settings leave it open."""

    cstp: int
    """The port of the gRPC server of CSTP."""
    a2a: int
    """The port of A2A over gRPC."""
    cstp_secure: bool = False
    """Whether the gRPC server of CSTP speaks TLS."""


class Cards:
    """Describes the agent as it is reached by an address such as `https://agent.example.com`.

    The cards with members of 0.3 need what `load_old_generation` imports.
    """

    def __init__(
        self,
        settings: Settings,
        version: str,
        methods: Iterable[Method],
        ports: Ports,
        signing_key: SigningKey | None = None,
    ) -> None:
        self._agent = settings.agent
        self._a2a = settings.a2a
        self._version = settings.agent.version or version
        self._ports = ports
        self._signer = None if signing_key is None else make_signer(signing_key)
        # A message of A2A cannot call what streams.
        callable_methods = [method for method in methods if method.public and not method.streaming]
        self._methods = sorted(callable_methods, key=lambda method: method.service != CORE_SERVICE)

    @property
    def signed_by(self) -> str:
        """What identifies the key that signs the cards; empty if they are not signed."""
        return self._signer.signed_by if self._signer else ""

    def public(self, address: str) -> a2a_pb2.AgentCard:
        """Return the card of A2A 1.0 that everyone may read, with the skills that any agent may use."""
        card = self._card(address, ORDINARY)
        if self._signer is not None:
            self._signer.sign_new(card)
        return card

    def _card(self, address: str, permissions: Set[str]) -> a2a_pb2.AgentCard:
        """Return the card with the skills that need one of these permissions."""
        methods = [method for method in self._methods if method.permission in permissions]
        card = a2a_pb2.AgentCard(
            name=self._agent.name,
            description=self._agent.description,
            version=self._version,
            documentation_url=self._agent.documentation_url,
            supported_interfaces=self._interfaces(address),
            capabilities=self._capabilities(address, methods),
            default_input_modes=SPOKEN,
            default_output_modes=SPOKEN,
            skills=map(skill, methods),
        )
        bearer = a2a_pb2.HTTPAuthSecurityScheme(description=TOKEN_DESCRIPTION, scheme="Bearer")
        card.security_schemes[SCHEME].http_auth_security_scheme.CopyFrom(bearer)
        card.security_requirements.add().schemes[SCHEME].SetInParent()
        if self._agent.provider is not None:
            card.provider.organization = self._agent.provider.organization
            card.provider.url = self._agent.provider.url
        return card

    def extended(self, address: str, access: Mapping[str, Any]) -> a2a_pb2.AgentCard:
        """Return the card for one caller: what it may do, and what holds for it.

        `access` is the JSON result of `cstp.getAccess`.
        """
        card = self._card(address, {ANY, *access["permissions"]})
        card.capabilities.extensions[0].params.update({"access": told(access)})
        if self._signer is not None:
            self._signer.sign_for_both(card)
        return card

    def v1_0(self, address: str) -> dict[str, Any]:
        """Return the card of A2A 1.0 as JSON."""
        return card_json(self.public(address))

    def merged(self, address: str) -> dict[str, Any]:
        """Return one card as JSON that clients of 1.0 and of 0.3 can both read.

        Clients of 0.3 name no version, and neither do some of 1.0. Each ignores the members of the other.
        """
        new, old = self.v1_0(address), self._card_v0_3(address)
        merged = merge_members(new, old)
        if self._signer is not None:
            merged[SIGNATURES] += self._signer.signatures_of_old(old)
        return merged

    def v0_3(self, address: str) -> dict[str, Any]:
        """Return the card of A2A 0.3 as JSON, which is that of the CSTP design, section 3.2, too."""
        card = self._card_v0_3(address)
        if self._signer is not None:
            card[SIGNATURES] = self._signer.signatures_of_old_for_both(card)
        return card

    def _card_v0_3(self, address: str) -> dict[str, Any]:
        """Return the card of 0.3 without signatures. Its `url` is the address alone, where A2A is spoken as well."""
        from a2a.compat.v0_3 import conversions, types

        card = conversions.to_compat_agent_card(self._card(address, ORDINARY))
        main = types.AgentInterface(url=address, transport=JSONRPC)
        others = [
            types.AgentInterface(url=f"{address}{A2A_PATH}", transport=JSONRPC),
            *(card.additional_interfaces or ()),
        ]
        card.url = address
        card.protocol_version = FULL_V0_3
        # A client of 0.3 finds all interfaces here, the main one included.
        card.additional_interfaces = [main, *others]
        found: dict[str, Any] = card.model_dump(mode="json", by_alias=True, exclude_none=True)
        names = [method.name for method in self._methods if method.service == CORE_SERVICE]
        found["capabilities"]["cstp"] = {"version": CSTP_VERSION, "methods": names}
        found["authentication"] = {"schemes": [SCHEME]}
        if self._agent.contact is not None:
            found["contact"] = self._agent.contact
        return found

    def _interfaces(self, address: str) -> Iterable[a2a_pb2.AgentInterface]:
        """Yield where A2A is spoken, the preferred interface first."""
        # The specification wants `host:port` for gRPC, and it is what the clients need: they give it to their gRPC
        # libraries as it stands, and those take no http:// or https:// for a target.
        grpc_target = self._a2a.public_grpc_target or target(address, self._ports.a2a)
        rows = (
            (f"{address}{A2A_PATH}", JSONRPC, V1_0),
            (f"{address}{A2A_PATH}", JSONRPC, V0_3),
            (grpc_target, GRPC, V1_0),
            (grpc_target, GRPC, V0_3),
            (f"{address}{REST_PATH}", HTTP_JSON, V1_0),
        )
        for url, binding, version in rows:
            yield a2a_pb2.AgentInterface(url=url, protocol_binding=binding, protocol_version=version)

    def _cstp_target(self, address: str) -> str:
        """Return where the gRPC server of CSTP is, with `grpcs://` before it where it speaks TLS."""
        found = self._a2a.public_cstp_target or target(address, self._ports.cstp)
        return f"grpcs://{found}" if self._ports.cstp_secure and "://" not in found else found

    def _capabilities(self, address: str, methods: Iterable[Method]) -> a2a_pb2.AgentCapabilities:
        """Return what the agent can do, our extension being the only one."""
        extension = a2a_pb2.AgentExtension(
            uri=EXTENSION_URI, description=EXTENSION_DESCRIPTION, required=self._a2a.require_extension
        )
        extension.params.update(
            {
                "endpoint": f"{address}{CSTP_PATH}",
                "grpcTarget": self._cstp_target(address),
                "methods": [method.name for method in methods],
            }
        )
        return a2a_pb2.AgentCapabilities(
            streaming=True, push_notifications=self._a2a.push.enabled, extended_agent_card=True, extensions=[extension]
        )


def make_signer(key: SigningKey) -> CardSigner:
    """Return what signs cards with a key."""
    from bridge.a2a.card_signing import CardSigner

    return CardSigner(key)


def card_json(card: a2a_pb2.AgentCard) -> dict[str, Any]:
    """Return a card as JSON that says of each extension whether it is required, also if it is not."""
    found: dict[str, Any] = json_format.MessageToDict(card)
    for extension, said in zip(card.capabilities.extensions, found["capabilities"]["extensions"], strict=True):
        said["required"] = extension.required
    return found


def merge_members(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object with the members of both at every depth; what both have otherwise is taken from the first."""
    merged = {**second, **first}
    for name in first.keys() & second.keys():
        if isinstance(first[name], dict) and isinstance(second[name], dict):
            merged[name] = merge_members(first[name], second[name])
    return merged


def skill(method: Method) -> a2a_pb2.AgentSkill:
    """Return a method as a skill."""
    return a2a_pb2.AgentSkill(
        id=method.name,
        name=words(method.rpc),
        description=method.description.partition(ERRORS)[0],
        tags=tags(method),
        examples=examples(method),
        input_modes=SPOKEN if method.name == ANNOUNCE else (JSON,),
    )


def words(rpc: str) -> str:
    """Return `AnnounceIntent` as `Announce intent`."""
    return " ".join(WORD.findall(rpc)).capitalize()


def tags(method: Method) -> list[str]:
    """Return the words under which a method is found: of the protocol, its service and its permission."""
    service = method.service.rpartition(".")[2].removesuffix("Service").lower()
    permission = () if method.permission == ANY else (method.permission,)
    return list(dict.fromkeys(["cstp", service, *permission]))


def examples(method: Method) -> Iterable[str]:
    """Yield what can be sent: for an intent its plain text, and the content of a data part."""
    for example in method.examples:
        params = json.loads(example)
        if method.name == ANNOUNCE:
            yield params["intent"]
        yield json.dumps({"method": method.name, "params": params}, ensure_ascii=False)


def told(access: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the extended card tells of the result of `cstp.getAccess`; `agent` is the caller there."""
    names = {"agent": "requestingAgent", "permissions": "permissions", "guardrails": "guardrails", "limits": "limits"}
    return {name: access[given] for name, given in names.items() if given in access}


def target(address: str, port: int) -> str:
    """Return the `host:port` of another server on the host of an address, whose brackets stay if it has any."""
    host = address.partition("://")[2].partition("/")[0]
    return f"{PORT.sub('', host)}:{port}"
