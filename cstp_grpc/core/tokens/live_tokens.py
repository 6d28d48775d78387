"""The tokens that this server accepts, in memory, and how they follow the database."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Final

from cstp_grpc.contract.errors import QueryFailed, Unavailable
from cstp_grpc.core.tokens.model import AgentToken
from cstp_grpc.core.tokens.sql_store import SqlTokenStore
from cstp_grpc.platform.storage.background_work import PeriodicTask
from cstp_grpc.platform.storage.writer import GroupCommitWriter

logger = logging.getLogger(__name__)

REFRESH_SECONDS: Final = 0.5
"""How often a server that shares its database asks for changed tokens. Chosen: a revocation is to hold within a second,
whether a notification of it came or not."""
STALE_SECONDS: Final = 10.0
"""How long tokens are accepted without the database saying that they still are. Chosen: longer than a database takes to
restart, and short for a token that was revoked meanwhile."""
USES_SECONDS: Final = 60.0
"""How often the uses of tokens are stored."""
USES_BATCH: Final = 200
"""Uses in one transaction, so that calls do not wait long for it."""


class LiveTokens:
    """The tokens that are accepted, by the digests of their secrets. Safe for many threads."""

    def __init__(self, clock: Callable[[], datetime], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._monotonic = monotonic
        # Replaced as a whole and never changed, so that readers need no lock.
        self._tokens: Mapping[bytes, AgentToken] = {}
        self._trusted_until: float = 0.0
        # Swapped as a whole by `take_uses`; a use that is noted in between may be lost, which costs a minute.
        self._uses: dict[str, datetime] = {}

    def find(self, digest: bytes) -> AgentToken | None:
        """Return the token with this digest, and note its use; None if no token that is accepted has it.

        Raises Unavailable if the database has not confirmed the token for STALE_SECONDS.
        """
        token = self._tokens.get(digest)
        if token is None:
            return None
        at = self._clock()
        if not token.is_usable(at):
            return None
        if self._monotonic() > self._trusted_until:
            # Fail closed: it may have been revoked on another server.
            raise Unavailable("the tokens of agents cannot be read now")
        self._uses[token.id] = at
        return token

    def is_accepted(self, digest: bytes, token_id: str) -> bool:
        """Return whether a token that was found is still accepted, without noting a use."""
        token = self._tokens.get(digest)
        return token is not None and token.id == token_id and token.is_usable(self._clock())

    def has_agent(self, agent: str) -> bool:
        at = self._clock()
        return any(token.identity.name == agent and token.is_usable(at) for token in self._tokens.values())

    def replace_tokens(self, tokens: Mapping[bytes, AgentToken]) -> None:
        self._tokens = tokens

    def trust_for(self, seconds: float) -> None:
        """Record that the tokens are those of the database, which counts for some seconds."""
        self._trusted_until = self._monotonic() + seconds

    def last_use(self, token_id: str) -> datetime | None:
        """Return when a token was used here since uses were taken; None if it was not."""
        return self._uses.get(token_id)

    def take_uses(self) -> Mapping[str, datetime]:
        """Return when tokens were used last, by their ids, since the last call."""
        uses, self._uses = self._uses, {}
        return uses

    def put_back(self, uses: Mapping[str, datetime]) -> None:
        """Add uses again that were taken and could not be stored."""
        for token_id, at in uses.items():
            self._uses.setdefault(token_id, at)


class TokenFollower:
    """Keeps the live tokens as the database has them, and stores their uses from time to time.

    `shared` is whether other processes may change them: then it asks regularly. A process that has its database alone
    knows of every change.
    """

    def __init__(
        self,
        store: SqlTokenStore,
        writer: GroupCommitWriter,
        live: LiveTokens,
        clock: Callable[[], datetime],
        *,
        shared: bool,
        resident: bool = True,
    ) -> None:
        self._store = store
        self._writer = writer
        self._live = live
        self._clock = clock
        self._shared = shared
        self._resident = resident
        self._change = -1
        # Held while the tokens are read and replaced, so that an earlier read never replaces a later one.
        self._lock = threading.Lock()
        complaint = "changed tokens cannot be read; none will be accepted soon"
        self._refreshing = PeriodicTask("tokens", self.refresh, REFRESH_SECONDS, logger, complaint)
        complaint = "uses of tokens are not stored"
        self._storing = PeriodicTask("token-uses", self.store_uses, USES_SECONDS, logger, complaint, delay=USES_SECONDS)

    def start(self) -> None:
        """Read the tokens and start to follow them. Raises QueryFailed."""
        self.refresh()
        if self._shared:
            self._refreshing.start()
        self._storing.start()

    def stop(self) -> None:
        self._refreshing.stop()
        self._storing.stop()
        try:
            self.store_uses()
        except (QueryFailed, Unavailable):
            logger.warning("the last uses of %d tokens are not stored", len(self._live.take_uses()))

    def refresh(self) -> None:
        """Read the changes since the last time. Raises QueryFailed."""
        if not self._resident:
            # Nobody calls with a token in a process without a server.
            return
        with self._lock:
            found = self._store.usable_since(self._change, self._clock())
            if found is not None:
                self._change, tokens = found
                self._live.replace_tokens(dict(tokens))
            self._live.trust_for(STALE_SECONDS if self._shared else float("inf"))

    def store_uses(self) -> None:
        """Store when tokens were used last. Raises Unavailable."""
        left = dict(self._live.take_uses())
        try:
            while left:
                batch = dict(list(left.items())[:USES_BATCH])
                self._writer.run(partial(self._store.note_uses, uses=batch))
                for token_id in batch:
                    del left[token_id]
        finally:
            self._live.put_back(left)
