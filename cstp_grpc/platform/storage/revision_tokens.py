"""Tokens for revisions of the journal, and waiting until searches have reached one."""

from __future__ import annotations

import re
from collections.abc import Callable

from cstp_grpc.contract.errors import InvalidArgument

# At most 18 digits: any such number fits into the 64 bits of a database's integer.
TOKEN_PATTERN = re.compile(r"(\d{1,18})-([0-9a-f]+)", re.ASCII)

REVISION_FIELD = "minJournalRevision"
"""The field of requests that carries a token."""


RevisionGate = Callable[[str], None]
"""Makes a search wait until it covers the revision of a token.

Raises InvalidArgument if the token is not one of this journal, Unavailable if the journal has not reached the revision,
and QueryFailed.
"""


class RevisionTokens:
    """Encodes and decodes journal revisions as tokens, opaque to callers, that name their database."""

    def __init__(self, identity: str) -> None:
        self._identity = identity

    def write(self, revision: int) -> str:
        return f"{revision}-{self._identity}"

    def read(self, token: str, field: str = REVISION_FIELD, name: str = "journalRevision") -> int:
        """Return the revision of the token in a field. Raises InvalidArgument if it is not one of this journal.

        `name` is the field of answers that has such tokens.
        """
        match = TOKEN_PATTERN.fullmatch(token)
        if match is None:
            raise InvalidArgument.field(field, f"must be the {name} of an answer")
        # Numbers of another database mean nothing here; after a restore from a backup the identity is the same, and the
        # caller gets Unavailable until the journal has reached the revision again.
        if match[2] != self._identity:
            raise InvalidArgument.field(field, f"must be the {name} of an answer of this agent")
        return int(match[1])


def future_token_error(field: str) -> InvalidArgument:
    # A watch from there would wait until the journal reaches the number again, and miss everything until then.
    problem = "is newer than the journal, as after a restore; leave it out to watch from now on"
    return InvalidArgument.field(field, problem)


def reject_revision(token: str) -> None:
    """Reject any token, for searches without revision tokens. Raises InvalidArgument."""
    raise InvalidArgument.field(REVISION_FIELD, f"names no revision of this journal: {token}")
