"""The agent cards for A2A 1.0 and 0.3: content, security schemes, versions, signatures, and the HTTP endpoint."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Final

from a2a.types import a2a_pb2
from aiohttp import hdrs, web
from google.protobuf import json_format

from bridge.a2a.call_context import EXTENSION_URI, V0_3, V1_0, VERSION_FORM, VERSION_HEADER, load_sdk_v0_3
from bridge.a2a.message_parsing import ANNOUNCE_METHOD, APPLICATION_JSON, MEDIA_TYPES
from bridge.http_request import PublicUrlResolver
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.enums import Permission
from cstp_grpc.contract.methods import RpcMethod
from cstp_grpc.platform.config import Settings
from cstp_grpc.platform.config.identity import JwtIssuerSettings
from cstp_grpc.platform.config.trusted_networks import PORT_SUFFIX

if TYPE_CHECKING:
    from bridge.a2a.card_signing import CardSigner
    from cstp_grpc.contract.card_keys import SigningKey


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
ANY_PERMISSION: Final = "any"

EXTENSION_DESCRIPTION: Final = (
    "The methods of CSTP: announce intents, query past decisions, check guardrails before acting. Once activated, they "
    "can be called by their names on the A2A endpoint itself."
)
INPUTS_METHOD: Final = "cstp.listInputs"
"""The method that lists what guardrails read from the context of actions."""
SIGNATURES: Final = "signatures"
"""The member of a card that holds its signatures."""
CARD_MAX_AGE: Final = 300
"""Seconds for which a card may be cached. Chosen: a changed configuration is seen within five minutes."""
ORDINARY_PERMISSIONS: Final = frozenset({ANY_PERMISSION, "query", "check", "announce", "record"})
"""The permissions of agents that are neither reviewers, nor guides or liaison agents, nor administrators."""
ERRORS_HEADING: Final = " Errors: "
"""The text before the errors in the descriptions of the contract."""
WORD_FORM: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")
"""The words of an rpc's name: `AnnounceIntent` has the title `Announce intent`."""


@dataclass(frozen=True, slots=True)
class AdvertisedPorts:
    """The gRPC port that the cards advertise if the settings name no public target."""

    cstp: int
    """The port of the gRPC server of CSTP."""
    cstp_secure: bool = False
    """True if the gRPC server of CSTP speaks TLS."""


class AgentCardBuilder:
    """Builds the agent cards for a public URL such as `https://agent.example.com`.

    The cards with members of 0.3 need the modules that `load_sdk_v0_3` imports.
    """

    def __init__(
        self,
        settings: Settings,
        version: str,
        methods: Iterable[RpcMethod],
        ports: AdvertisedPorts,
        signing_key: SigningKey | None = None,
    ) -> None:
        self._settings = settings
        self._agent = settings.agent
        self._a2a = settings.a2a
        self._version = settings.agent.version or version
        self._ports = ports
        self._signer = None if signing_key is None else build_signer(signing_key)
        # An A2A message cannot call streaming methods.
        # Nor methods whose answers contain secrets, since tasks store answers.
        callable_methods = [
            method for method in methods if method.public and not method.streaming and not method.secret_response
        ]
        # False sorts before True, and the sort is stable: the methods of the protocol come first, all others in
        # contract order.
        self._methods = sorted(callable_methods, key=lambda method: method.service != CORE_SERVICE)

    @property
    def signed_by(self) -> str:
        """The id of the key that signs the cards; empty if they are not signed."""
        return self._signer.signed_by if self._signer else ""

    def build_public(self, address: str) -> a2a_pb2.AgentCard:
        """Return the public card of A2A 1.0, with the skills that any agent may use."""
        card = self._build_card(address, ORDINARY_PERMISSIONS)
        if self._signer is not None:
            self._signer.sign_v1_0(card)
        return card

    def _build_card(self, address: str, permissions: Set[str], *, in_full: bool = False) -> a2a_pb2.AgentCard:
        """Return the card with the skills that need one of these permissions, described briefly or in full."""
        methods = [method for method in self._methods if not permissions.isdisjoint(method.permissions)]
        card = a2a_pb2.AgentCard(
            name=self._agent.name,
            description=self._agent.description,
            version=self._version,
            documentation_url=self._agent.documentation_url,
            supported_interfaces=self._interfaces(address),
            capabilities=self._capabilities(address, methods),
            default_input_modes=MEDIA_TYPES,
            default_output_modes=MEDIA_TYPES,
            skills=[build_skill(method, in_full=in_full) for method in methods],
        )
        declare_security(card, self._settings)
        if self._agent.provider is not None:
            card.provider.organization = self._agent.provider.organization
            card.provider.url = self._agent.provider.url
        return card

    def build_extended(self, address: str, access: Mapping[str, Any]) -> a2a_pb2.AgentCard:
        """Return the card for one caller, with its permissions and limits.

        `access` is the JSON result of `cstp.getAccess`.
        """
        # Only the methods that this caller may call: the public card shows the same skills to every reader.
        card = self._build_card(address, {ANY_PERMISSION, *access["permissions"]}, in_full=True)
        # Before the card is signed, as everything that changes it must be.
        card.capabilities.extensions[0].params.update({"access": access_summary(access)})
        if self._signer is not None:
            self._signer.sign_for_both(card)
        return card

    def build_v1_0(self, address: str) -> dict[str, Any]:
        return card_to_json(self.build_public(address))

    def build_merged(self, address: str) -> dict[str, Any]:
        """Return one card as JSON that clients of 1.0 and of 0.3 can both read.

        Clients of 0.3 and some of 1.0 name no version. Each ignores the members of the other.
        """
        new, old = self.build_v1_0(address), self._build_card_v0_3(address)
        merged = merge_members(new, old)
        if self._signer is not None:
            # Added, not merged: a client of either version drops what it does not know and finds its signature among
            # them.
            merged[SIGNATURES] += self._signer.signatures_v0_3(old)
        return merged

    def build_v0_3(self, address: str) -> dict[str, Any]:
        """Return the card of A2A 0.3 as JSON, which is also that of the CSTP design, section 3.2."""
        card = self._build_card_v0_3(address)
        if self._signer is not None:
            card[SIGNATURES] = self._signer.signatures_v0_3_for_both(card)
        return card

    def _build_card_v0_3(self, address: str) -> dict[str, Any]:
        """Return the card of 0.3 without signatures. Its `url` is the plain address, where A2A is served too."""
        from a2a.compat.v0_3 import conversions, types

        card = conversions.to_compat_agent_card(self._build_card(address, ORDINARY_PERMISSIONS))
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
        # Members of the CSTP design that the type of A2A 0.3 does not have, and would drop.
        found["capabilities"]["cstp"] = {"version": CSTP_VERSION, "methods": names}
        found["authentication"] = {"schemes": [name for name, _ in build_schemes(self._settings)]}
        if self._agent.contact is not None:
            found["contact"] = self._agent.contact
        return found

    def _interfaces(self, address: str) -> Iterable[a2a_pb2.AgentInterface]:
        """Yield the addresses of the A2A interfaces, the preferred one first."""
        rows = [
            (f"{address}{A2A_PATH}", JSONRPC, V1_0),
            (f"{address}{A2A_PATH}", JSONRPC, V0_3),
            (f"{address}{REST_PATH}", HTTP_JSON, V1_0),
        ]
        # Only if configured: some clients, such as google-adk, refuse a card with an interface of another origin.
        if grpc_target := self._a2a.public_grpc_target:
            # `host:port`, as the specification says: clients pass it to their gRPC libraries unchanged, which accept no
            # http:// or https://.
            rows[2:2] = [(grpc_target, GRPC, V1_0), (grpc_target, GRPC, V0_3)]
        for url, binding, version in rows:
            yield a2a_pb2.AgentInterface(url=url, protocol_binding=binding, protocol_version=version)

    def _cstp_target(self, address: str) -> str:
        """Return the target of the CSTP gRPC server, with `grpcs://` if it uses TLS."""
        host = PORT_SUFFIX.sub("", address.partition("://")[2].partition("/")[0])
        found = self._a2a.public_cstp_target or f"{host}:{self._ports.cstp}"
        return f"grpcs://{found}" if self._ports.cstp_secure and "://" not in found else found

    def _capabilities(self, address: str, methods: Iterable[RpcMethod]) -> a2a_pb2.AgentCapabilities:
        extension = a2a_pb2.AgentExtension(
            uri=EXTENSION_URI, description=EXTENSION_DESCRIPTION, required=self._a2a.require_extension
        )
        extension.params.update(
            {
                "endpoint": f"{address}{CSTP_PATH}",
                "grpcTarget": self._cstp_target(address),
                "methods": [method.name for method in methods],
                # Otherwise an agent has to guess the names of the inputs of guardrails.
                "inputsMethod": INPUTS_METHOD,
            }
        )
        return a2a_pb2.AgentCapabilities(
            streaming=True, push_notifications=self._a2a.push.enabled, extended_agent_card=True, extensions=[extension]
        )


def build_signer(key: SigningKey) -> CardSigner:
    from bridge.a2a.card_signing import CardSigner

    return CardSigner(key)


def card_to_json(card: a2a_pb2.AgentCard) -> dict[str, Any]:
    """Return a card as JSON in which every extension states whether it is required, even if it is not."""
    found: dict[str, Any] = json_format.MessageToDict(card)
    for extension, content in zip(card.capabilities.extensions, found["capabilities"]["extensions"], strict=True):
        # Protobuf's printer leaves out false, and clients would have to guess that an absent member means it.
        content["required"] = extension.required
    return found


def merge_members(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two objects recursively; for other values that both have, the first wins."""
    # The order of the operands is the precedence: members of `first` overwrite those of `second`.
    merged = {**second, **first}
    for name in first.keys() & second.keys():
        if isinstance(first[name], dict) and isinstance(second[name], dict):
            merged[name] = merge_members(first[name], second[name])
    return merged


def build_skill(method: RpcMethod, *, in_full: bool) -> a2a_pb2.AgentSkill:
    """Return the skill for a method.

    Unless `in_full`, the skill has the first sentence of its description, and examples if it is one of the protocol's
    own methods: every stranger that looks for agents reads the public card, and callers find the rest in the extended
    one.
    """
    description = method.description.partition(ERRORS_HEADING)[0]
    service = method.service.rpartition(".")[2].removesuffix("Service").lower()
    permissions = () if method.permission == ANY_PERMISSION else method.permissions
    return a2a_pb2.AgentSkill(
        id=method.name,
        name=" ".join(WORD_FORM.findall(method.rpc)).capitalize(),
        description=description if in_full else f"{description.partition('. ')[0].removesuffix('.')}.",
        tags=list(dict.fromkeys(["cstp", service, *permissions])),
        examples=skill_examples(method) if in_full or method.service == CORE_SERVICE else (),
        input_modes=MEDIA_TYPES if method.name == ANNOUNCE_METHOD else (APPLICATION_JSON,),
    )


def skill_examples(method: RpcMethod) -> Iterable[str]:
    """Yield example messages: for an intent its plain text, then the content of a data part."""
    for example in method.examples:
        params = json.loads(example)
        if method.name == ANNOUNCE_METHOD:
            yield params["intent"]
        yield json.dumps({"method": method.name, "params": params}, ensure_ascii=False, separators=(",", ":"))


def access_summary(access: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of the result of `cstp.getAccess` that the extended card shows."""
    names = {"agent": "requestingAgent", "permissions": "permissions", "guardrails": "guardrails", "limits": "limits"}
    return {name: access[member] for name, member in names.items() if member in access}


BEARER_SCHEME: Final = "bearer"
OPENID_SCHEME: Final = "openIdConnect"
OAUTH2_SCHEME: Final = "oauth2"
MTLS_SCHEME: Final = "mutualTLS"

TOKEN_DESCRIPTION: Final = "The token by which the agent's operator knows the caller."  # noqa: S105 - words on the card
ISSUER_DESCRIPTION: Final = "A JWT of the issuer, sent as a bearer token; the audience is {audience}."
CERTIFICATE_DESCRIPTION: Final = "A client certificate of an authority that the agent's operator trusts."


def declare_security(card: a2a_pb2.AgentCard, settings: Settings) -> None:
    """Add the security schemes to a card, and the combinations of schemes that are sufficient."""
    for name, scheme in build_schemes(settings):
        card.security_schemes[name].CopyFrom(scheme)
    for names in required_schemes(settings, [name for name in card.security_schemes if name != MTLS_SCHEME]):
        requirement = card.security_requirements.add()
        for name in names:
            # An empty list of scopes, which must be present: its key names the scheme.
            requirement.schemes[name].SetInParent()


def build_schemes(settings: Settings) -> Iterator[tuple[str, a2a_pb2.SecurityScheme]]:
    """Yield the schemes that the settings turn on, by their names."""
    bearer = a2a_pb2.HTTPAuthSecurityScheme(description=TOKEN_DESCRIPTION, scheme="Bearer")
    yield BEARER_SCHEME, a2a_pb2.SecurityScheme(http_auth_security_scheme=bearer)
    for number, issuer in enumerate(settings.auth.jwt):
        # Names must differ; most have one issuer.
        ending = f"-{number + 1}" if number else ""
        description = ISSUER_DESCRIPTION.format(audience=" or ".join(issuer.audience))
        if issuer.discovery_url is not None:
            connect = a2a_pb2.OpenIdConnectSecurityScheme(
                description=description, open_id_connect_url=issuer.discovery_url
            )
            yield f"{OPENID_SCHEME}{ending}", a2a_pb2.SecurityScheme(open_id_connect_security_scheme=connect)
        if issuer.token_url is not None:
            flow = a2a_pb2.ClientCredentialsOAuthFlow(token_url=issuer.token_url, scopes=describe_scopes(issuer))
            flows = a2a_pb2.OAuthFlows(client_credentials=flow)
            oauth2 = a2a_pb2.OAuth2SecurityScheme(description=description, flows=flows)
            yield f"{OAUTH2_SCHEME}{ending}", a2a_pb2.SecurityScheme(oauth2_security_scheme=oauth2)
    tls = settings.server.tls
    if tls is not None and tls.client_ca is not None:
        mtls = a2a_pb2.MutualTlsSecurityScheme(description=CERTIFICATE_DESCRIPTION)
        yield MTLS_SCHEME, a2a_pb2.SecurityScheme(mtls_security_scheme=mtls)


def required_schemes(settings: Settings, tokens: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the sets of schemes that are sufficient; `tokens` are the schemes for tokens."""
    tls = settings.server.tls
    asks = tls is not None and tls.client_ca is not None
    always = [MTLS_SCHEME] if tls is not None and asks and tls.client_certificates == "required" else []
    for name in tokens:
        yield [name, *always]
    if asks and settings.auth.certificates:
        yield [MTLS_SCHEME]


def describe_scopes(issuer: JwtIssuerSettings) -> dict[str, str]:
    if issuer.permissions:
        return {value: ", ".join(sorted(permitted)) for value, permitted in issuer.permissions.items()}
    return {f"cstp:{permission}": str(permission) for permission in Permission}


PUBLIC_CACHE_CONTROL: Final = f"public, max-age={CARD_MAX_AGE}"
PRIVATE_CACHE_CONTROL: Final = f"private, max-age={CARD_MAX_AGE}"
"""Without a configured URL, a card names the host of the request. Security: a shared cache must not show it to others,
or a caller could plant a host of its own."""
GZIP_CODINGS: Final = frozenset({"gzip", "x-gzip"})
QUALITY_FORM: Final = re.compile(r"q=(0(?:\.\d{0,3})?|1(?:\.0{0,3})?)", re.IGNORECASE)
MAX_CACHED_CARDS: Final = 32
"""Cached cards for each version, one per URL. Chosen: bounded, since strangers choose the host of a request."""


@dataclass(frozen=True, slots=True)
class CachedCard:
    """An encoded agent card."""

    body: bytes
    tag: str
    """The opaque part of its ETag, which is weak: the page may be compressed or not."""


class AgentCardEndpoint:
    """Answers requests for the agent cards, which need no token."""

    def __init__(self, cards: AgentCardBuilder, address: PublicUrlResolver) -> None:
        # Caches of this instance, one for each form of the card; a decorated method would share one and keep `self`
        # alive.
        keep = functools.lru_cache(maxsize=MAX_CACHED_CARDS)
        self._address = address
        self._v0_3: Callable[[str], CachedCard] = keep(lambda url: encode_card(cards.build_v0_3(url), cards.signed_by))
        v1_0: Callable[[str], CachedCard] = keep(lambda url: encode_card(cards.build_v1_0(url), cards.signed_by))
        self._by_version: Mapping[str, Callable[[str], CachedCard]] = {V1_0: v1_0, V0_3: self._v0_3}
        self._merged: Callable[[str], CachedCard] = keep(
            lambda url: encode_card(cards.build_merged(url), cards.signed_by)
        )

    async def agent_card(self, request: web.Request) -> web.Response:
        """Answer with the card of the requested A2A version, or with one that clients of both can read."""
        match = VERSION_FORM.fullmatch(request.headers.get(VERSION_HEADER, "").strip())
        version = match[1] if match else ""
        # Every other card has members of 0.3, the merged one too.
        if version != V1_0:
            await load_sdk_v0_3()
        build = self._by_version.get(version, self._merged)
        return self._respond(request, build, VERSION_HEADER, hdrs.ACCEPT_ENCODING)

    async def agent_json(self, request: web.Request) -> web.Response:
        """Answer with the card of the CSTP design, which is also that of A2A 0.3."""
        await load_sdk_v0_3()
        return self._respond(request, self._v0_3, hdrs.ACCEPT_ENCODING)

    def _respond(self, request: web.Request, build: Callable[[str], CachedCard], *vary: str) -> web.Response:
        """Answer with a card, or with 304 if the caller has the current one."""
        found = build(self._address.resolve(request))
        headers = {
            hdrs.ETAG: f'W/"{found.tag}"',
            hdrs.CACHE_CONTROL: PUBLIC_CACHE_CONTROL if self._address.is_configured else PRIVATE_CACHE_CONTROL,
            hdrs.VARY: ", ".join(vary),
        }
        # RFC 9110, section 13.1.2: If-None-Match compares weakly, so that the opaque parts alone count.
        if any(known.value in (found.tag, "*") for known in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        response = web.Response(body=found.body, content_type="application/json", headers=headers)
        if accepts_gzip(request.headers.getall(hdrs.ACCEPT_ENCODING, [])):
            response.enable_compression(web.ContentCoding.gzip)
        return response


def accepts_gzip(values: Iterable[str]) -> bool:
    """Return whether the values of an Accept-Encoding header allow gzip."""
    weights = {}
    for element in ",".join(values).split(","):
        coding, _, parameter = element.partition(";")
        weights[coding.strip().lower()] = parse_quality(parameter.strip())
    named = [weight for coding, weight in weights.items() if coding in GZIP_CODINGS]
    # RFC 9110, section 12.5.3: `*` stands for the codings that are not named; a named one with q=0 is refused.
    return max(named, default=weights.get("*", 0.0)) > 0


def parse_quality(parameter: str) -> float:
    """Return the weight that a parameter such as `q=0.5` gives to a coding; 0 if it is malformed."""
    if not parameter:
        return 1.0
    match = QUALITY_FORM.fullmatch(parameter)
    return float(match[1]) if match else 0.0


def encode_card(card: Mapping[str, Any], signed_by: str) -> CachedCard:
    # Without the signatures: all processes of the bridge must give the same tag, and ECDSA signatures of the same
    # content by the same key differ.
    unsigned = encode_card_json({name: value for name, value in card.items() if name != SIGNATURES})
    tag = hashlib.sha256(unsigned + signed_by.encode()).hexdigest()[:32]
    return CachedCard(encode_card_json(card), tag)


def encode_card_json(card: Mapping[str, Any]) -> bytes:
    """Encode a card as JSON with sorted members, because protobuf maps have no order."""
    return json.dumps(card, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode("utf-8")
