"""The agents that may call a server or have called it, with their credentials and activity."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, TypeAlias

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.contract.caller import ANONYMOUS
from cstp_grpc.contract.enums import DEFAULT_TENANT, SERVER_AGENTS, Permission
from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.core.audit.sql_activity import AgentActivity, AgentCounts, SqlAgentActivity
from cstp_grpc.core.tokens.live_tokens import LiveTokens
from cstp_grpc.core.tokens.model import AgentToken
from cstp_grpc.core.tokens.sql_store import SqlTokenStore
from cstp_grpc.platform.config import AuthSettings
from cstp_grpc.platform.storage.pagination import Page, PageRequest, decode_page_token, encode_page_token

MAX_PAGE: Final = 200
DEFAULT_PERIOD: Final = timedelta(days=7)
MAX_PERIOD: Final = timedelta(days=366)


class CredentialKind(StrEnum):
    """How an agent proves its identity."""

    CONFIGURED_TOKEN = "configured_token"  # noqa: S105 - the name of a kind
    MANAGED_TOKEN = "managed_token"  # noqa: S105 - the name of a kind
    CERTIFICATE = "certificate"
    JWT = "jwt"


Permissions: TypeAlias = Mapping[CredentialKind, frozenset[Permission]]


@dataclass(frozen=True, slots=True)
class KnownAgent:
    """An agent; the fields are those of the contract's KnownAgent."""

    name: str
    credentials: frozenset[CredentialKind]
    permissions: frozenset[Permission]
    first_call_at: datetime | None
    last_call_at: datetime | None
    counts: AgentCounts


class KnownAgents:
    """Lists the agents of a tenant by name."""

    def __init__(
        self,
        auth: AuthSettings,
        live: LiveTokens,
        tokens: SqlTokenStore,
        activity: SqlAgentActivity,
        clock: Callable[[], datetime],
    ) -> None:
        self._auth = auth
        self._live = live
        self._tokens = tokens
        self._activity = activity
        self._clock = clock

    def page(
        self, tenant: str, agent: str | None, since: datetime | None, request: PageRequest
    ) -> tuple[Page[KnownAgent], datetime]:
        """Return agents of a tenant by name, and since when their entries are counted.

        Raises InvalidArgument if `since` is too long ago or the token is not of this listing, and QueryFailed.
        """
        now = self._clock()
        if since is not None and since < now - MAX_PERIOD:
            raise InvalidArgument.field("since", f"must be at most {MAX_PERIOD.days} days ago")
        start = now - DEFAULT_PERIOD if since is None else since
        listing = ("agents", tenant, agent, since)
        last = str(decode_page_token(request.token, listing, (str,))[0]) if request.token else ""
        tenants, tokens = self._tokens.read_agents(tenant)
        tenants = {**tenants, **self._auth.tenants}
        names = {*self._activity.list_agents(), *tenants}
        if not self._auth.enabled:
            names.add(ANONYMOUS)
        found = sorted(
            name
            for name in names - SERVER_AGENTS
            if tenants.get(name, DEFAULT_TENANT) == tenant and name > last and agent in (None, name)
        )
        limit = min(request.limit, MAX_PAGE)
        shown = found[:limit]
        activity = self._activity.read_activity(shown, start)
        credentials = self._collect_credentials([token for token in tokens if token.is_usable(now)])
        uses = self._find_uses(tokens)
        items = [describe_agent(name, credentials.get(name, {}), activity[name], uses.get(name)) for name in shown]
        items = [self._with_issuers(item) for item in items]
        return Page(tuple(items), encode_page_token(listing, (shown[-1],)) if len(found) > limit else ""), start

    def _collect_credentials(self, tokens: Sequence[AgentToken]) -> Mapping[str, Permissions]:
        """Return the permissions of the credentials that are accepted now, by agent and kind."""
        accepted = [
            *((CredentialKind.CONFIGURED_TOKEN, each.name, each.permissions) for each in self._auth.tokens),
            *((CredentialKind.CERTIFICATE, each.name, each.permissions) for each in self._auth.certificates),
            *((CredentialKind.MANAGED_TOKEN, each.identity.name, each.identity.permissions) for each in tokens),
        ]
        found: defaultdict[str, dict[CredentialKind, frozenset[Permission]]] = defaultdict(dict)
        for kind, name, permissions in accepted:
            found[name][kind] = found[name].get(kind, frozenset()) | permissions
        return found

    def _find_uses(self, tokens: Sequence[AgentToken]) -> Mapping[str, datetime]:
        """Return the last uses of managed tokens by agent, those that are not stored yet included."""
        found: dict[str, datetime] = {}
        for token in tokens:
            for used in filter(None, (token.last_used_at, self._live.last_use(token.id))):
                found[token.identity.name] = max(used, found.get(token.identity.name, used))
        return found

    def _with_issuers(self, agent: KnownAgent) -> KnownAgent:
        """Add the kind of JWTs to an agent that an issuer may name."""
        named = any(
            agent.name in issuer.configured_agents
            or (not agent.credentials and agent.name.startswith(issuer.agent_prefix))
            for issuer in self._auth.jwt
        )
        return replace(agent, credentials=agent.credentials | {CredentialKind.JWT}) if named else agent


def describe_agent(
    name: str, credentials: Permissions, activity: AgentActivity, used_at: datetime | None
) -> KnownAgent:
    calls: Sequence[datetime] = [at for at in (activity.last_at, used_at) if at is not None]
    return KnownAgent(
        name=name,
        credentials=frozenset(credentials),
        permissions=frozenset().union(*credentials.values()),
        first_call_at=activity.first_at,
        last_call_at=max(calls, default=None),
        counts=activity.counts,
    )
