"""How callers may authenticate, as the agent cards declare it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from a2a.types import a2a_pb2

from cstp_grpc.contract.enums import Permission
from cstp_grpc.platform.config import Settings
from cstp_grpc.platform.config.identity import JwtIssuerSettings

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


def scheme_names(settings: Settings) -> list[str]:
    return [name for name, _ in build_schemes(settings)]


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
