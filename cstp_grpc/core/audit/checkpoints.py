"""Signed checkpoints of the audit trail: their statements and their files."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from cstp_grpc.common.canonical_json import encode_canonical_json
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.core.audit.entry_hashing import format_instant

CHECKPOINT: Final = "cstp-audit-checkpoint"
"""The `type` of the statement of a checkpoint, so that no signature is taken for one of something else."""
KEY_FILE: Final = "audit-signing-key.pem"
"""The file of the key that a server makes for itself, within its data folder."""


class InvalidCheckpoint(ValueError):
    """The text is not a valid checkpoint; the message is the reason."""


@dataclass(frozen=True, slots=True)
class SignedHead:
    """The entry of a chain up to which a checkpoint signs it."""

    chain_id: int
    position: int
    entry_hash: bytes


@dataclass(frozen=True, slots=True)
class UnchainedEntries:
    """The entries that are older than the chains: how many, up to which id, and a hash over the hashes of all."""

    count: int
    last_id: int
    hash: bytes


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A signed statement of how far the chains of a trail have come.

    `statement` is canonical JSON; each one has the hash of the one before, so that the newest signs all of them.
    """

    statement: str
    signature: bytes

    @property
    def hash(self) -> str:
        """The SHA-256 of the statement, in hex, which the next checkpoint states as `previous`."""
        return hashlib.sha256(self.statement.encode()).hexdigest()

    def read(self) -> CheckpointStatement:
        """Parse the statement. Raises InvalidCheckpoint."""
        try:
            members = json.loads(self.statement)
            if members["type"] != CHECKPOINT:
                raise InvalidCheckpoint("it is a statement of another kind")
            unchained = members.get("unchained")
            return CheckpointStatement(
                number=int(members["number"]),
                signed_at=datetime.fromisoformat(members["signed_at"]),
                key_id=str(members["key"]),
                previous=members["previous"],
                heads=tuple(
                    SignedHead(int(head["chain"]), int(head["position"]), bytes.fromhex(head["entry_hash"]))
                    for head in members["chains"]
                ),
                unchained=None
                if unchained is None
                else UnchainedEntries(
                    int(unchained["count"]), int(unchained["last_id"]), bytes.fromhex(unchained["hash"])
                ),
            )
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            if isinstance(error, InvalidCheckpoint):
                raise
            raise InvalidCheckpoint("its statement is not that of a checkpoint") from error


@dataclass(frozen=True, slots=True)
class CheckpointStatement:
    """A checkpoint: its number, the chains that have grown since the previous checkpoint, and the hash of that one."""

    number: int
    signed_at: datetime
    key_id: str
    previous: str | None
    heads: tuple[SignedHead, ...]
    unchained: UnchainedEntries | None = None

    def encode(self) -> str:
        return encode_canonical_json(self.to_members())

    def to_members(self) -> dict[str, object]:
        """Return the statement as a JSON object."""
        members: dict[str, object] = {
            "type": CHECKPOINT,
            "number": self.number,
            "signed_at": format_instant(self.signed_at),
            "key": self.key_id,
            "previous": self.previous,
            "chains": [
                {"chain": head.chain_id, "position": head.position, "entry_hash": head.entry_hash.hex()}
                for head in self.heads
            ],
        }
        if self.unchained is not None:
            known = self.unchained
            members["unchained"] = {"count": known.count, "last_id": known.last_id, "hash": known.hash.hex()}
        return members


def encode_checkpoint(checkpoint: Checkpoint) -> str:
    """Return a checkpoint as a line of a file."""
    signature = base64.b64encode(checkpoint.signature).decode()
    return json.dumps({"statement": json.loads(checkpoint.statement), "signature": signature}, ensure_ascii=False)


def parse_checkpoint(members: Mapping[str, Any]) -> Checkpoint:
    """Parse a checkpoint from its JSON object. Raises KeyError, TypeError and ValueError."""
    statement = encode_canonical_json(members["statement"])
    checkpoint = Checkpoint(statement, base64.b64decode(members["signature"], validate=True))
    checkpoint.read()
    return checkpoint


def parse_checkpoints(lines: Iterable[str]) -> Iterator[Checkpoint]:
    """Parse the lines of a file of checkpoints. Raises InvalidCheckpoint, which names the line."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            checkpoint = parse_checkpoint(json.loads(line))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise InvalidCheckpoint(f"line {number} is not a checkpoint") from error
        yield checkpoint
