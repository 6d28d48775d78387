"""What comes of asking one peer, and what its failures mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import Message

from cstp_grpc import errors
from cstp_grpc.client.words import MAX_CHARACTERS, one_line
from cstp_grpc.errors import CstpError
from cstp_grpc.vocabulary import PeerStatus

Metadata = Sequence[tuple[str, str]]
"""What a peer is told besides the request: gRPC metadata, or HTTP headers."""

MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""The largest answer that is read of a peer."""
FAILING: Final = (errors.Unavailable, errors.QueryFailed, errors.InternalError, errors.LiaisonAgentUnavailable)
"""What agents say that fail, in contrast to those that refuse."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of asking a peer: an answer where the status is ANSWERED.

    Else the error adds, where there is something to add, why; its message is one line in words fit for callers. `cause`
    is what the library below says, for the log alone.
    """

    status: PeerStatus
    answer: Message | None = None
    error: CstpError | None = None
    cause: str = ""


TIMED_OUT: Final = Result(PeerStatus.TIMED_OUT)
SKIPPED: Final = Result(PeerStatus.SKIPPED)


def answered(answer: Message) -> Result:
    """Return the result of a peer that answered."""
    return Result(PeerStatus.ANSWERED, answer)


def not_understood(why: str, cause: str = "") -> Result:
    """Return the result of a peer whose answer is none."""
    return Result(PeerStatus.NOT_UNDERSTOOD, error=errors.InternalError(why), cause=cause)


def not_there(cause: str) -> Result:
    """Return the result of a peer at whose address nobody answers."""
    return Result(PeerStatus.UNREACHABLE, cause=cause)


def unreachable(why: str) -> Result:
    """Return the result of a peer that was not asked or does not work."""
    return Result(PeerStatus.UNREACHABLE, error=errors.Unavailable(why))


def of_error(error: CstpError) -> Result:
    """Return the result of a peer that answered an error."""
    if isinstance(error, errors.DeadlineExceeded):
        return TIMED_OUT
    status = PeerStatus.UNREACHABLE if isinstance(error, FAILING) else PeerStatus.REFUSED
    return Result(status, error=type(error)(one_line(error.message[: 2 * MAX_CHARACTERS])[:MAX_CHARACTERS]))
