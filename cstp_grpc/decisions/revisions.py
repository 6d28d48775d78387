"""Revisions of the journal as callers carry them from one call to another."""

from __future__ import annotations

import re
from typing import Final, Protocol

from cstp_grpc.errors import InvalidArgument

TOKEN = re.compile(r"(\d{1,18})-([0-9a-f]+)", re.ASCII)

FIELD = "minJournalRevision"
"""The field of requests that carries a token."""


class Mirror(Protocol):
    """What is searched of the journal."""

    def catch_up(self, revision: int) -> None:
        """Return when it has what the journal had at a revision. Raises QueryFailed and Unavailable."""


class RevisionTokens:
    """Writes revisions as texts that name their database, and reads them; for callers they have no other meaning."""

    def __init__(self, identity: str) -> None:
        """Prepare for the journal of this identity."""
        self._identity = identity

    def write(self, revision: int) -> str:
        """Return the token of a revision."""
        return f"{revision}-{self._identity}"

    def read(self, token: str) -> int:
        """Return the revision of a token. Raises InvalidArgument if it is none of this journal."""
        match = TOKEN.fullmatch(token)
        if match is None:
            raise InvalidArgument.field(FIELD, "must be the journalRevision of an answer")
        if match[2] != self._identity:
            raise InvalidArgument.field(FIELD, "must be the journalRevision of an answer of this agent")
        return int(match[1])


class RequiredRevisions(Protocol):
    """Has searches find what the journal had at the revisions that callers require."""

    def require(self, token: str) -> None:
        """Return when what is searched is of the token's revision or a later one.

        Raises InvalidArgument if the token is none of this journal, Unavailable if the journal has not come that far,
        and QueryFailed.
        """


class MirroredRevisions:
    """Brings a mirror of the journal up to the revisions that callers require; fulfils `RequiredRevisions`."""

    def __init__(self, tokens: RevisionTokens, mirror: Mirror) -> None:
        self._tokens = tokens
        self._mirror = mirror

    def require(self, token: str) -> None:
        """Return when the mirror has what the journal had at a revision; raises as `RequiredRevisions` says."""
        self._mirror.catch_up(self._tokens.read(token))


class NoRevisions:
    """Refuses every token; for searches that nobody carries revisions to."""

    def require(self, token: str) -> None:
        """Raise InvalidArgument."""
        raise InvalidArgument.field(FIELD, f"names no revision of this journal: {token}")


NO_REVISIONS: Final = NoRevisions()
