"""Authentication of inbound calls by their metadata, and the permissions of their methods."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.call_scope import HOP_METADATA_KEY
from cstp_grpc.contract.caller import ANONYMOUS, RELAYED_READER, Caller, current_caller
from cstp_grpc.contract.enums import DEFAULT_TENANT, Permission
from cstp_grpc.contract.errors import AuthenticationRequired, RateLimited
from cstp_grpc.contract.methods import RpcMethod, missing_permission_error, required_permissions
from cstp_grpc.core.tokens.live_tokens import LiveTokens
from cstp_grpc.core.tokens.model import TokenIdentity, token_digest
from cstp_grpc.platform.config import TokenSettings
from cstp_grpc.server.identity.call_origin import CallOrigins
from cstp_grpc.server.identity.wrong_tokens import GUESSABLE_CHARACTERS, WrongTokenThrottle
from cstp_grpc.server.interceptors.admission import InboundCall

if TYPE_CHECKING:
    # Only for their types: without such callers their libraries are not loaded.
    from cstp_grpc.server.identity.client_certificates import ClientCertificates
    from cstp_grpc.server.identity.jwt_tokens import JwtVerifier

AUTHORIZATION_HEADER: Final = "authorization"
TOKEN_HINT: Final = "send `authorization: Bearer TOKEN` with a token that this server accepts"  # noqa: S105

ANONYMOUS_IDENTITY = TokenIdentity(ANONYMOUS, frozenset(Permission), DEFAULT_TENANT)
"""The identity of all callers if authentication is disabled."""


class GuessingGuard:
    """Refuses guessable tokens from addresses that have sent too many wrong ones."""

    def __init__(self, throttle: WrongTokenThrottle, origins: CallOrigins) -> None:
        self._throttle = throttle
        self._origins = origins

    @property
    def is_blocking(self) -> bool:
        return self._throttle.is_blocking

    def require_unblocked(self, call: InboundCall) -> str:
        """Return the address of a call. Raises RateLimited if the address has to wait."""
        address = self._origins.find_address(call)
        wait = self._throttle.find_wait(address)
        if wait is not None:
            raise RateLimited(f"Too many wrong tokens; try again in {wait:.1f} s", retry_after=wait)
        return address

    def count_wrong_token(self, call: InboundCall) -> None:
        """Count a wrong token. Raises RateLimited without counting if the address has to wait."""
        self._throttle.count(self.require_unblocked(call))


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials beyond the tokens of the settings; each None unless it is configured."""

    live: LiveTokens | None = None
    """The tokens that are created while servers run."""
    jwt: JwtVerifier | None = None
    """The JWTs of issuers."""
    certificates: ClientCertificates | None = None
    """Client certificates, of callers without a token."""
    guard: GuessingGuard | None = None
    """Slows down attempts to guess tokens."""


class Authenticator:
    """Identifies callers by their bearer tokens and checks their permissions.

    Tokens are stored and compared as SHA-256 digests, so that neither memory nor timing discloses them. `tokens` None
    admits everyone; `credentials` are the other ways to identify callers. Raises ValueError for a method without a
    permission in the contract.
    """

    def __init__(
        self,
        tokens: Iterable[TokenSettings] | None,
        methods: Iterable[RpcMethod],
        credentials: Credentials | None = None,
    ) -> None:
        tokens = None if tokens is None else list(tokens)
        self._required = required_permissions(methods)
        credentials = credentials or Credentials()
        self._live, self._jwt = credentials.live, credentials.jwt
        self._certificates, self._guard = credentials.certificates, credentials.guard
        self._guessable = frozenset(
            token_digest(token.token.get_secret_value())
            for token in tokens or ()
            if len(token.token.get_secret_value()) < GUESSABLE_CHARACTERS
        )
        self._agents = (
            None
            if tokens is None
            else {
                token_digest(token.token.get_secret_value()): TokenIdentity(token.name, token.permissions, token.tenant)
                for token in tokens
            }
        )

    def __call__(self, call: InboundCall) -> None:
        """Set the current caller for the rest of the call's task.

        Raises AuthenticationRequired, also for a repeated header even if none is needed, and PermissionDenied.
        """
        if AUTHORIZATION_HEADER in call.repeated_keys:
            # Security: a proxy may check one of the values and the server use another, so none is used.
            raise AuthenticationRequired(f"`authorization` was sent more than once; {TOKEN_HINT}, once")
        agent = self._identify(call)
        call.agent = agent.name
        needed = self._required[call.method.name]
        if needed and agent.permissions.isdisjoint(needed):
            raise missing_permission_error(call.method.name, agent.name, *needed)
        reader = RELAYED_READER if HOP_METADATA_KEY in call.metadata else agent.name
        # For the rest of this task: gRPC runs each call in a task of its own, so that calls cannot see each other's.
        current_caller.set(Caller(agent.name, reader, agent.permissions, call.request_id, agent.tenant))

    def _identify(self, call: InboundCall) -> TokenIdentity:
        if self._agents is None:
            return ANONYMOUS_IDENTITY
        header = call.metadata.get(AUTHORIZATION_HEADER)
        if not isinstance(header, str):
            if header is None and self._certificates is not None:
                return self._identify_by_certificate(call, self._certificates)
            raise AuthenticationRequired(f"No bearer token was sent; {TOKEN_HINT}")
        scheme, _, token = header.partition(" ")
        # A look-up by digest takes the same path for every wrong token; its timing depends on the digest only, from
        # which nothing about a valid token can be learned.
        digest = token_digest(token.strip())
        is_bearer = scheme.lower() == "bearer"
        known = self._agents.get(digest) if is_bearer else None
        guard = self._guard
        if known is not None:
            if digest in self._guessable and guard is not None and guard.is_blocking:
                # Like a wrong token, so that an address that tries many tokens learns nothing about this one.
                guard.require_unblocked(call)
            return known
        if is_bearer:
            known = self._find_live(call, digest) or self._find_jwt(call, token.strip(), digest)
        if known is None:
            if guard is not None:
                guard.count_wrong_token(call)
            raise AuthenticationRequired(f"The bearer token is not accepted; {TOKEN_HINT}")
        return known

    def _find_live(self, call: InboundCall, digest: bytes) -> TokenIdentity | None:
        """Return the identity of a token that was made while servers run, or None. Raises Unavailable."""
        if self._live is None:
            return None
        token = self._live.find(digest)
        if token is None:
            return None
        call.is_still_valid = partial(self._live.is_accepted, digest, token.id)
        return token.identity

    def _find_jwt(self, call: InboundCall, token: str, digest: bytes) -> TokenIdentity | None:
        """Return the identity of a JWT of a known issuer, or None. Raises Unavailable."""
        if self._jwt is None:
            return None
        verified = self._jwt.find(token, digest)
        if verified is None:
            return None
        call.is_still_valid = self._jwt.still_valid(verified)
        return verified.identity

    def _identify_by_certificate(self, call: InboundCall, certificates: ClientCertificates) -> TokenIdentity:
        """Return the identity of a caller without a token. Raises AuthenticationRequired."""
        known = certificates.find(call)
        if known is None or known.identity is None:
            raise AuthenticationRequired(
                f"Neither a bearer token nor a known client certificate was sent; {TOKEN_HINT}"
            )
        call.is_still_valid = certificates.still_valid(known)
        return known.identity
