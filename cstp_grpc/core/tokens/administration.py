"""Making, listing, rotating and revoking tokens of agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Final

from cstp_grpc.common.confusable_names import NameIndex, find_name_fault
from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.common.unicode_text import replace_unstorable
from cstp_grpc.contract.caller import Caller
from cstp_grpc.contract.enums import SERVER_AGENTS, Permission
from cstp_grpc.contract.errors import Conflict, InvalidArgument, NotFound, PermissionDenied
from cstp_grpc.core.audit.model import AuditEntry, AuditEvent, AuditSink, truncate_action
from cstp_grpc.core.tokens import model
from cstp_grpc.core.tokens.live_tokens import LiveTokens
from cstp_grpc.core.tokens.sql_store import SqlTokenStore
from cstp_grpc.platform.storage.pagination import Page, PageRequest
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter

MAX_USABLE: Final = 20
"""Tokens of one agent that are accepted at a time. Chosen: more than instances that are rotated one after the other."""
REPEAT_WINDOW: Final = timedelta(minutes=10)
"""How long a repeated request gives its token another secret. Chosen: longer than clients and people go on trying."""
DEFAULT_KEEP: Final = timedelta(hours=1)
"""How long a rotated token is still accepted if the request says nothing."""


@dataclass(frozen=True, slots=True)
class TokenLifetimes:
    """Default and maximum lifetime of tokens."""

    default: timedelta
    maximum: timedelta


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token that was just made, with its secret, which is kept nowhere."""

    token: model.AgentToken
    secret: str


class TokenAdministration:
    """Makes and ends tokens for callers, which can grant only their own permissions, in their own tenant.

    `configured_tenants` has the tenants of agents in the settings; `refresh` makes this server accept new tokens.
    """

    def __init__(
        self,
        store: SqlTokenStore,
        sink: AuditSink,
        writer: GroupCommitWriter,
        live: LiveTokens,
        refresh: Callable[[], None],
        clock: Callable[[], datetime],
        lifetimes: TokenLifetimes,
        configured_tenants: Mapping[str, str],
    ) -> None:
        self._store = store
        self._sink = sink
        self._writer = writer
        self._live = live
        self._refresh = refresh
        self._clock = clock
        self._lifetimes = lifetimes
        self._configured_tenants = configured_tenants

    def create(
        self,
        caller: Caller,
        request_id: str,
        agent: str,
        permissions: frozenset[Permission],
        expires_at: datetime | None,
        note: str | None,
    ) -> NewToken:
        """Make a token for an agent, or give the one of the same request another secret.

        Raises PermissionDenied, Conflict, InvalidArgument and Unavailable.
        """
        if agent in SERVER_AGENTS or not model.is_name(agent):
            raise InvalidArgument.field("agent", "is a name that no token may have")
        at = self._clock()
        token = model.AgentToken(
            id=model.make_token_id(),
            identity=model.TokenIdentity(agent, permissions, caller.tenant),
            created_by=caller.agent,
            created_at=at,
            expires_at=self._end_of_token(at, expires_at, self._lifetimes.default),
            request_id=request_id,
            note=None if note is None else replace_unstorable(note),
        )
        return self._make(caller, AuditEvent.TOKEN_CREATED, lambda _: token)

    def rotate(
        self, caller: Caller, request_id: str, token_id: str, keep: timedelta | None, expires_at: datetime | None
    ) -> NewToken:
        """Make a token that replaces another one, which ends after `keep`.

        Raises NotFound, PermissionDenied, Conflict, InvalidArgument and Unavailable.
        """

        def take_place(unit_of_work: UnitOfWork) -> model.AgentToken:
            former = self._load_own(unit_of_work, token_id, caller)
            at = self._clock()
            lifetime = min(former.expires_at - former.created_at, self._lifetimes.maximum)
            return replace(
                former,
                id=model.make_token_id(),
                created_by=caller.agent,
                created_at=at,
                expires_at=self._end_of_token(at, expires_at, lifetime),
                request_id=request_id,
                rotated_from=token_id,
                last_used_at=None,
                revoked_at=None,
                revoked_by=None,
            )

        return self._make(caller, AuditEvent.TOKEN_ROTATED, take_place, DEFAULT_KEEP if keep is None else keep)

    def revoke(self, caller: Caller, token_id: str) -> model.AgentToken:
        """End a token at once, and return it. Raises NotFound and Unavailable."""

        def job(unit_of_work: UnitOfWork) -> model.AgentToken:
            self._store.hold(unit_of_work)
            found = self._load_own(unit_of_work, token_id, caller)
            if found.revoked_at is not None:
                return found
            at = self._clock()
            revoked = replace(found, revoked_at=at, revoked_by=caller.agent)
            self._store.end(unit_of_work, revoked)
            self._sink.append(unit_of_work, token_entry(revoked, AuditEvent.TOKEN_REVOKED, at, caller))
            return revoked

        revoked = self._writer.run(job)
        self._refresh()
        return self._with_last_use(revoked)

    def page(
        self, caller: Caller, agent: str | None, request: PageRequest, *, with_ended: bool, id_prefix: str | None = None
    ) -> Page[model.AgentToken]:
        """Return the tokens of the caller's tenant, the newest first. Raises InvalidArgument and QueryFailed."""
        conditions = model.TokenFilter(caller.tenant, agent, None if with_ended else self._clock(), id_prefix)
        page = self._store.page(conditions, request)
        return replace(page, items=tuple(self._with_last_use(token) for token in page.items))

    def _make(
        self,
        caller: Caller,
        event: AuditEvent,
        build: Callable[[UnitOfWork], model.AgentToken],
        keep: timedelta | None = None,
    ) -> NewToken:
        """Store a token and end the one that it rotates after `keep`, or repeat an earlier request."""
        secret = model.make_secret()
        digest = model.token_digest(secret)

        def job(unit_of_work: UnitOfWork) -> model.AgentToken:
            self._store.hold(unit_of_work)
            token = build(unit_of_work)
            at = self._clock()
            require_grantable(token.identity.permissions, caller)
            earlier = self._store.find_request(unit_of_work, caller.agent, token.request_id)
            if earlier is not None:
                self._require_repeatable(earlier, token, at)
                self._store.replace_digest(unit_of_work, earlier.id, digest)
                token = earlier
            else:
                if token.rotated_from is None:
                    self._require_clear_name(unit_of_work, token.identity.name)
                self._require_room(unit_of_work, token, at)
                self._store.add(unit_of_work, token, digest)
                if keep is not None:
                    self._end_former(unit_of_work, token, at + keep)
            self._sink.append(unit_of_work, token_entry(token, event, at, caller))
            return token

        token = self._writer.run(job)
        # Before the answer: the receiver of the secret may use it here at once.
        self._refresh()
        return NewToken(token, secret)

    def _end_former(self, unit_of_work: UnitOfWork, token: model.AgentToken, at: datetime) -> None:
        """End the token that another one takes the place of, at an instant and not after its own end."""
        assert token.rotated_from is not None, "it is a rotation"
        former = self._store.load(unit_of_work, token.rotated_from)
        assert former is not None, "it was loaded in this transaction"
        self._store.end(unit_of_work, replace(former, expires_at=min(former.expires_at, at)))

    def _require_clear_name(self, unit_of_work: UnitOfWork, agent: str) -> None:
        """Raise InvalidArgument or Conflict if people would take the name of a new agent for another one."""
        known = {*self._store.list_agents(unit_of_work), *self._configured_tenants}
        if agent in known:
            return
        if fault := find_name_fault(agent):
            raise InvalidArgument.field("agent", fault)
        if NameIndex(known | SERVER_AGENTS).find_lookalike(agent):
            # Not which one: it may be of another tenant.
            raise Conflict(
                f"agent: {agent} looks like the name of another agent; choose another name", metadata={"agent": agent}
            )

    def _require_room(self, unit_of_work: UnitOfWork, token: model.AgentToken, at: datetime) -> None:
        """Raise Conflict if the token's agent belongs to another tenant or has too many tokens, or the former ended."""
        identity = token.identity
        tenants = set(self._store.find_tenants(unit_of_work, identity.name))
        if configured := self._configured_tenants.get(identity.name):
            tenants.add(configured)
        if tenants - {identity.tenant}:
            raise Conflict(f"{identity.name} is an agent of another tenant", metadata={"agent": identity.name})
        if token.rotated_from is not None:
            former = self._store.load(unit_of_work, token.rotated_from)
            if former is None or not former.is_usable(at):
                raise Conflict(
                    f"the token {token.rotated_from} has ended; create another one", metadata={"agent": identity.name}
                )
        if self._store.count_usable(unit_of_work, identity.name, at) >= MAX_USABLE:
            raise Conflict(
                f"{identity.name} has {MAX_USABLE} tokens that can be used; revoke one first",
                metadata={"agent": identity.name},
            )

    def _require_repeatable(self, earlier: model.AgentToken, token: model.AgentToken, at: datetime) -> None:
        """Raise Conflict unless a request that was made earlier may give its token another secret."""
        same = (earlier.identity, earlier.note, earlier.rotated_from) == (
            token.identity,
            token.note,
            token.rotated_from,
        )
        if not same:
            raise Conflict("the request id was used for another token")
        used = earlier.last_used_at is not None or self._live.last_use(earlier.id) is not None
        if used or not earlier.is_usable(at) or at > earlier.created_at + REPEAT_WINDOW:
            raise Conflict(f"this request made the token {earlier.id}, whose secret cannot be had again; rotate it")

    def _load_own(self, unit_of_work: UnitOfWork, token_id: str, caller: Caller) -> model.AgentToken:
        """Return a token of the caller's tenant. Raises NotFound."""
        found = self._store.load(unit_of_work, token_id)
        if found is None or found.identity.tenant != caller.tenant:
            raise NotFound(f"there is no token {replace_unstorable(token_id)}")
        return found

    def _end_of_token(self, at: datetime, wanted: datetime | None, lifetime: timedelta) -> datetime:
        """Return when a token ends. Raises InvalidArgument for an instant that is over or too far ahead."""
        if wanted is None:
            return at + lifetime
        if not at < wanted <= at + self._lifetimes.maximum:
            raise InvalidArgument.field(
                "expires_at", f"must be in the future, and within {self._lifetimes.maximum.days} days"
            )
        return wanted

    def _with_last_use(self, token: model.AgentToken) -> model.AgentToken:
        """Return a token with its last use here, which may not be stored yet."""
        used = [at for at in (token.last_used_at, self._live.last_use(token.id)) if at is not None]
        return replace(token, last_used_at=max(used)) if used else token


def require_grantable(permissions: frozenset[Permission], caller: Caller) -> None:
    """Raise PermissionDenied if a caller lacks one of the permissions that it wants to grant."""
    if missing := sorted(permissions - caller.permissions):
        raise PermissionDenied(
            f"you cannot grant permissions that your own token lacks: {', '.join(missing)}",
            metadata={"permission": missing[0]},
        )


def token_entry(token: model.AgentToken, event: AuditEvent, at: datetime, caller: Caller) -> AuditEntry:
    """Return the audit entry of an event of a token, with everything about it but its secret."""
    identity = token.identity
    end = token.expires_at.isoformat(timespec="seconds")
    what = f"{token.id} of {identity.name}: {', '.join(sorted(identity.permissions))}; until {end}"
    if token.rotated_from is not None:
        what = f"{what}; in place of {token.rotated_from}"
    return AuditEntry(
        timestamp=at,
        event=event,
        requesting_agent=caller.agent,
        request_id=caller.request_id,
        action=truncate_action(what),
    )
