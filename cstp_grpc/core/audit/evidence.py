"""Evidence: entries of the audit trail for others, with the proof that they stand in it as they are given."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.core.audit.checkpoints import Checkpoint, parse_checkpoint
from cstp_grpc.core.audit.entry_documents import document_to_row
from cstp_grpc.core.audit.entry_hashing import hash_entry, hash_link, stored_content_hash
from cstp_grpc.core.audit.verification import KeyRing

EVIDENCE: Final = "cstp-audit-evidence"
"""The `type` of a document of evidence."""


@dataclass(frozen=True, slots=True)
class ChainProof:
    """The way of a chain from its first entry of the evidence to the next checkpoint.

    `entries` has the hash without its place of each entry on the way, also of those that are not given; `previous` is
    the hash of the entry before the first of them. Without `checkpoint` nothing is proved yet.
    """

    chain_id: int
    first_position: int
    previous: bytes
    entries: Sequence[bytes]
    checkpoint: Checkpoint | None

    def encode(self) -> dict[str, Any]:
        """Return the proof as a JSON object."""
        document: dict[str, Any] = {
            "chain": self.chain_id,
            "first_position": self.first_position,
            "previous": self.previous.hex(),
            "entries": [entry.hex() for entry in self.entries],
        }
        if self.checkpoint is not None:
            document["checkpoint"] = {
                "statement": self.checkpoint.read().to_members(),
                "signature": base64.b64encode(self.checkpoint.signature).decode(),
            }
        return document

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> ChainProof:
        """Parse a proof. Raises KeyError, TypeError and ValueError."""
        checkpoint = document.get("checkpoint")
        return cls(
            int(document["chain"]),
            int(document["first_position"]),
            bytes.fromhex(document["previous"]),
            [bytes.fromhex(entry) for entry in document["entries"]],
            None if checkpoint is None else parse_checkpoint(checkpoint),
        )


@dataclass(slots=True)
class EvidenceFaults:
    """The faults of a document, and the parts that nothing proves yet; without either, all its entries are proved."""

    wrong: list[str] = field(default_factory=list)
    unproved: list[str] = field(default_factory=list)


def verify_evidence(document: Mapping[str, Any], keys: KeyRing) -> EvidenceFaults:
    if document.get("type") != EVIDENCE:
        return EvidenceFaults(["it is not a document of evidence"])
    faults = EvidenceFaults()
    proved: dict[tuple[int, int], tuple[bytes, bytes]] = {}
    try:
        for proof in map(ChainProof.parse, document["proofs"]):
            faults.wrong += walk_proof(proof, keys, proved)
            if proof.checkpoint is None:
                faults.unproved.append(f"chain {proof.chain_id}: no checkpoint signs it yet")
        if not document["entries"]:
            faults.unproved.append("it has no entries")
        for entry in document["entries"]:
            faults.wrong += find_faults_of_entry(entry, proved)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        faults.wrong.append(f"it is not in the form of evidence: {type(error).__name__}")
    return faults


def walk_proof(proof: ChainProof, keys: KeyRing, proved: dict[tuple[int, int], tuple[bytes, bytes]]) -> Iterator[str]:
    """Add the hashes of a chain that a checkpoint proves, by chain and position; yield the faults."""
    previous, position = proof.previous, proof.first_position
    for entry in proof.entries:
        previous = hash_link(proof.chain_id, position, previous, entry)
        proved[proof.chain_id, position] = entry, previous
        position += 1
    name = f"chain {proof.chain_id}"
    if proof.checkpoint is None:
        return
    statement = proof.checkpoint.read()
    fault = keys.find_fault(statement.key_id, proof.checkpoint.statement, proof.checkpoint.signature)
    if fault is not None:
        yield f"checkpoint {statement.number}: {fault}"
    if (proof.chain_id, position - 1, previous) not in [
        (head.chain_id, head.position, head.entry_hash) for head in statement.heads
    ]:
        yield f"{name} does not lead to the hash that checkpoint {statement.number} signs"


def find_faults_of_entry(
    document: Mapping[str, Any], proved: Mapping[tuple[int, int], tuple[bytes, bytes]]
) -> Iterator[str]:
    row = document_to_row(document)
    name = f"entry {row['id']}"
    if row["content_hash"] is not None and (row["action"] is not None or row["judged"] is not None):
        # Only the hash is proved, and not the content.
        yield f"{name} has a content and the hash of a removed content"
    if row["chain_id"] is None:
        yield f"{name} is of before entries had hashes, and not proved"
        return
    known = proved.get((row["chain_id"], row["chain_position"]))
    if known is None:
        yield f"{name} is not in the proved part of its chain"
    elif known != (hash_entry(row, stored_content_hash(row)), row["entry_hash"]):
        yield f"{name} does not match its hash"
