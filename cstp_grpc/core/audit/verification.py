"""Verifies that the audit trail is whole: that nothing was edited, deleted, inserted or moved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final, Protocol

from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.core.audit.checkpoints import Checkpoint, CheckpointStatement, InvalidCheckpoint, UnchainedEntries
from cstp_grpc.core.audit.entry_hashing import EntryRow, hash_entry, hash_link, stored_content_hash
from cstp_grpc.core.audit.model import AuditEvent

MAX_FINDINGS: Final = 1000
"""How many findings are kept; more are counted only."""


class FindingKind(StrEnum):
    """A kind of fault of a trail."""

    ALTERED = "altered"
    """An entry does not match its hash."""
    UNLINKED = "unlinked"
    """An entry does not follow the one before: one of the two was replaced."""
    MISSING = "missing"
    """Entries are missing."""
    MOVED = "moved"
    """An entry is not in its place."""
    INSERTED = "inserted"
    """An entry was added by other means than a server."""
    UNSIGNED = "unsigned"
    """Entries are not those that a checkpoint signed."""
    CHECKPOINT = "checkpoint"
    """A checkpoint, or the record of a removed segment, is missing, false or not signed by a given key."""
    GUARDRAILS = "guardrails"
    """The table that finds entries by their guardrails does not agree with an entry."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a trail; `entry_id` is None if it is about no entry that is there."""

    kind: FindingKind
    message: str
    entry_id: int | None = None
    chain_id: int | None = None
    first_position: int | None = None
    last_position: int | None = None


@dataclass(frozen=True, slots=True)
class RemovedSegment:
    """The record of entries of a chain that were removed because their time was over."""

    chain_id: int
    first_position: int
    last_position: int
    last_hash: bytes
    fault: str | None = None
    """The fault of the record itself."""


class KeyRing(Protocol):
    """Verifies signatures."""

    def find_fault(self, key_id: str, statement: str, signature: bytes) -> str | None:
        """Return the fault of the signature of a statement; None if a trusted key made it."""


@dataclass(slots=True)
class VerificationReport:
    """The results of verifying a trail."""

    entries: int = 0
    chains: int = 0
    checkpoints: int = 0
    redacted: int = 0
    """Entries whose content has gone."""
    recorded_redactions: int = 0
    """Contents that were removed by servers, as the trail records."""
    removed: int = 0
    """Entries that were removed because their time was over."""
    still_unchained: int = 0
    """Entries without a hash whose removal has begun and not ended: nothing verifies them."""
    unchained: int = 0
    """Entries that are older than the chains."""
    unchained_are_signed: bool = False
    """Whether a checkpoint has signed those."""
    unsigned: int = 0
    """Entries after the last checkpoint: that they are all there cannot be known."""
    findings: list[Finding] = field(default_factory=list)
    further_findings: int = 0
    missing_signature: str | None = None
    """Why entries of evidence are not signed, if they are not."""

    @property
    def unproved(self) -> str | None:
        """The reason why nothing proves that the trail is whole yet; None if something does."""
        if not self.entries and not self.removed:
            return "it has no entries"
        if self.still_unchained:
            return "the removal of entries without hashes has not ended"
        if self.unchained and not self.unchained_are_signed:
            return "no checkpoint signs its entries without hashes"
        return self.missing_signature

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong, and the trail proves it."""
        return not self.findings and self.unproved is None

    def add(self, finding: Finding) -> None:
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(finding)
        else:
            self.further_findings += 1


@dataclass(slots=True)
class SignedPositions:
    """Signed entries by chain and position: the hash of the entry and the number of the checkpoint."""

    heads: dict[tuple[int, int], tuple[bytes, int]] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    """The last signed position of each chain."""
    unchained: UnchainedEntries | None = None

    def add(self, statement: CheckpointStatement) -> None:
        for head in statement.heads:
            self.heads.setdefault((head.chain_id, head.position), (head.entry_hash, statement.number))
            self.last[head.chain_id] = max(head.position, self.last.get(head.chain_id, 0))
        if self.unchained is None:
            self.unchained = statement.unchained


def verify_checkpoints(
    stored: Iterable[Checkpoint], exported: Sequence[Checkpoint], keys: KeyRing, report: VerificationReport
) -> SignedPositions:
    """Verify the checkpoints of a trail against the exported ones, and return the positions that they sign."""
    signed = SignedPositions()
    kept = index_exported(exported, report)
    previous: Checkpoint | None = None
    expected = 1
    for checkpoint in stored:
        report.checkpoints += 1
        try:
            statement = checkpoint.read()
        except InvalidCheckpoint as error:
            report.add(Finding(FindingKind.CHECKPOINT, f"checkpoint {expected}: {error}"))
            previous, expected = checkpoint, expected + 1
            continue
        name = f"checkpoint {statement.number}"
        if statement.number != expected:
            report.add(Finding(FindingKind.CHECKPOINT, f"{name} stands where checkpoint {expected} is expected"))
        if statement.previous != (None if previous is None else previous.hash):
            report.add(Finding(FindingKind.CHECKPOINT, f"{name} does not follow the one before"))
        if fault := keys.find_fault(statement.key_id, checkpoint.statement, checkpoint.signature):
            report.add(Finding(FindingKind.CHECKPOINT, f"{name}: {fault}"))
        known = kept.pop(statement.number, None)
        if known is not None and known.statement != checkpoint.statement:
            report.add(Finding(FindingKind.CHECKPOINT, f"{name} is not the one that was exported"))
            add_exported(known, keys, signed, report)
        signed.add(statement)
        previous, expected = checkpoint, statement.number + 1
    for number, checkpoint in sorted(kept.items()):
        report.add(Finding(FindingKind.CHECKPOINT, f"checkpoint {number} was exported and is missing"))
        add_exported(checkpoint, keys, signed, report)
    return signed


def index_exported(exported: Sequence[Checkpoint], report: VerificationReport) -> dict[int, Checkpoint]:
    """Return exported checkpoints by their numbers: the first of each, since a later one may be of a forged trail."""
    kept: dict[int, Checkpoint] = {}
    for checkpoint in exported:
        number = checkpoint.read().number
        if kept.setdefault(number, checkpoint).statement != checkpoint.statement:
            message = f"checkpoint {number} was exported twice, with different statements"
            report.add(Finding(FindingKind.CHECKPOINT, message))
    return kept


def add_exported(checkpoint: Checkpoint, keys: KeyRing, signed: SignedPositions, report: VerificationReport) -> None:
    statement = checkpoint.read()
    fault = keys.find_fault(statement.key_id, checkpoint.statement, checkpoint.signature)
    if fault is not None:
        report.add(Finding(FindingKind.CHECKPOINT, f"the exported checkpoint {statement.number}: {fault}"))
        return
    signed.add(statement)


@dataclass(slots=True)
class Gap:
    """Positions of a chain that were passed over, and are filled if their entries come later."""

    first: int
    last: int
    before_id: int | None
    after_id: int
    seen: set[int] = field(default_factory=set)


@dataclass(slots=True)
class ChainState:
    """How far a chain was verified."""

    position: int
    hash: bytes | None
    """The hash that the next entry must name as that of the one before; None if it is not known."""
    last_id: int | None = None
    gaps: list[Gap] = field(default_factory=list)


class ChainVerification:
    """Verifies the entries of a trail, which must be added in the order of their ids.

    `starts` has the hash that the first entry of each chain names as the hash before it.
    """

    def __init__(
        self,
        starts: Mapping[int, bytes],
        segments: Iterable[RemovedSegment],
        signed: SignedPositions,
        report: VerificationReport,
    ) -> None:
        self._signed = signed
        self._report = report
        self._states = {chain_id: ChainState(0, start) for chain_id, start in starts.items()}
        self._not_signed: Counter[int] = Counter()
        self._removed: dict[int, RemovedSegment] = {}
        """The last removed segment of each chain."""
        self._remains: dict[int, ChainState] = {}
        """How far entries were verified that are in removed segments, whose deletion goes on in batches."""
        for segment in segments:
            self._pass_removed(segment)
        report.chains = len(self._states)

    def add(self, row: EntryRow) -> None:
        """Verify the next entry."""
        report, chain_id, position = self._report, row["chain_id"], row["chain_position"]
        previous, entry_hash = (to_bytes(row[name]) for name in ("previous_hash", "entry_hash"))
        if row["content_hash"] is not None and (row["action"] is not None or row["judged"] is not None):
            self._find(row, FindingKind.ALTERED, "has a content again that was removed")
        if not has_its_hash(row):
            self._find(row, FindingKind.ALTERED, "does not match its hash")
        if not isinstance(chain_id, int) or not isinstance(position, int):
            report.entries += 1
            return
        removed = self._removed.get(chain_id)
        if removed is not None and position <= removed.last_position:
            state = self._remains.setdefault(chain_id, ChainState(position - 1, None))
            self._follow(state, row, position, previous, entry_hash)
            return
        report.entries += 1
        if row["content_hash"] is not None:
            report.redacted += 1
        if row["event"] == AuditEvent.CONTENT_REMOVED and isinstance(row["count"], int):
            report.recorded_redactions += row["count"]
        known = self._states.get(chain_id)
        if known is None:
            self._find(row, FindingKind.INSERTED, f"is in chain {chain_id}, which no server has begun")
            known = self._states[chain_id] = ChainState(position - 1, None)
        self._follow(known, row, position, previous, entry_hash)

    def finish(self) -> None:
        """Add the findings of the end: missing entries, also those after the last that exists."""
        for chain_id, state in self._states.items():
            for gap in state.gaps:
                self._finish_gap(chain_id, gap)
            last_signed = self._signed.last.get(chain_id, 0)
            if last_signed > state.position:
                self._find_missing(chain_id, state.position + 1, last_signed, state.last_id, None)
            elif state.position == 0:
                message = f"chain {chain_id} has no entries, and was begun with one"
                self._report.add(Finding(FindingKind.MISSING, message, None, chain_id, 1, 1))
        for chain_id in self._signed.last.keys() - self._states.keys():
            self._find_missing(chain_id, 1, self._signed.last[chain_id], None, None)
        for chain_id, state in self._remains.items():
            self._finish_remains(chain_id, state)
        report = self._report
        report.unsigned = self._not_signed.total()
        if report.redacted > report.recorded_redactions:
            message = (
                f"the contents of {report.redacted} entries are gone, and {report.recorded_redactions} were removed"
            )
            report.add(Finding(FindingKind.ALTERED, f"{message} by servers"))

    def _follow(self, state: ChainState, row: EntryRow, position: int, previous: bytes, entry_hash: bytes) -> None:
        """Verify the place of an entry in its chain."""
        chain_id: int = row["chain_id"]
        head = self._signed.heads.get((chain_id, position))
        if head is not None and head[0] != entry_hash:
            self._find(row, FindingKind.UNSIGNED, f"is not the one that checkpoint {head[1]} signed")
        if position > self._signed.last.get(chain_id, 0):
            self._not_signed[chain_id] += 1
        if position <= state.position:
            gap = next((gap for gap in state.gaps if gap.first <= position <= gap.last), None)
            if gap is None or position in gap.seen:
                self._find(row, FindingKind.INSERTED, f"has the place of another entry, {position} of its chain")
            else:
                gap.seen.add(position)
                self._find(row, FindingKind.MOVED, "comes after entries that follow it")
            return
        if position > state.position + 1:
            state.gaps.append(Gap(state.position + 1, position - 1, state.last_id, row["id"]))
        elif state.hash is not None and previous != state.hash:
            before = "the start of its chain" if state.last_id is None else f"entry {state.last_id}"
            self._find(row, FindingKind.UNLINKED, f"does not follow {before}: one of the two was replaced")
        state.position, state.hash, state.last_id = position, entry_hash, row["id"]

    def _finish_remains(self, chain_id: int, state: ChainState) -> None:
        """Expect that entries of removed segments lead to the following entries: the first ones are deleted first."""
        for gap in state.gaps:
            self._finish_gap(chain_id, gap)
        removed = self._removed[chain_id]
        if (state.position, state.hash) != (removed.last_position, removed.last_hash):
            message = f"entry {state.last_id} is in a removed segment of chain {chain_id}, and does not lead to its end"
            self._report.add(
                Finding(FindingKind.INSERTED, message, state.last_id, chain_id, state.position, state.position)
            )

    def _finish_gap(self, chain_id: int, gap: Gap) -> None:
        if gap.seen:
            message = f"entry {gap.after_id} comes before entries that it follows"
            self._report.add(Finding(FindingKind.MOVED, message, gap.after_id, chain_id))
        first = gap.first
        for position in (*sorted(gap.seen), gap.last + 1):
            if first < position:
                self._find_missing(chain_id, first, position - 1, gap.before_id, gap.after_id)
            first = position + 1

    def _find_missing(self, chain_id: int, first: int, last: int, before_id: int | None, after_id: int | None) -> None:
        which = f"entry {first}" if first == last else f"entries {first} to {last}"
        where = " and ".join(
            text
            for text in (
                None if before_id is None else f"after the one with id {before_id}",
                None if after_id is None else f"before the one with id {after_id}",
            )
            if text
        )
        message = f"{which} of chain {chain_id} {'is' if first == last else 'are'} missing{where and f', {where}'}"
        self._report.add(Finding(FindingKind.MISSING, message, None, chain_id, first, last))

    def _pass_removed(self, segment: RemovedSegment) -> None:
        """Go on behind a segment that was removed."""
        report, chain_id = self._report, segment.chain_id
        name = f"the removed segment of chain {chain_id} from {segment.first_position}"
        if segment.fault is not None:
            report.add(Finding(FindingKind.CHECKPOINT, f"{name}: {segment.fault}", None, chain_id))
            return
        state = self._states.setdefault(chain_id, ChainState(0, None))
        if segment.first_position != state.position + 1:
            self._find_missing(chain_id, state.position + 1, segment.first_position - 1, None, None)
        head = self._signed.heads.get((chain_id, segment.last_position))
        if head is None:
            report.add(Finding(FindingKind.CHECKPOINT, f"{name} ends where no checkpoint signs it", None, chain_id))
        elif head[0] != segment.last_hash:
            report.add(Finding(FindingKind.CHECKPOINT, f"{name} ends otherwise than checkpoint {head[1]} signed"))
        report.removed += segment.last_position - segment.first_position + 1
        state.position, state.hash = segment.last_position, segment.last_hash
        self._removed[chain_id] = segment

    def _find(self, row: EntryRow, kind: FindingKind, problem: str) -> None:
        position = row["chain_position"]
        message = f"entry {row['id']} {problem}"
        self._report.add(Finding(kind, message, row["id"], row["chain_id"], position, position))


def check_entry_id(row: EntryRow, report: VerificationReport) -> None:
    if row["id"] <= 0:
        message = f"entry {row['id']} has an id that no server gives: it was inserted by other means"
        report.add(Finding(FindingKind.INSERTED, message, row["id"], row["chain_id"]))


def has_its_hash(row: EntryRow) -> bool:
    place = row["chain_id"], row["chain_position"], to_bytes(row["previous_hash"])
    try:
        return hash_link(*place, hash_entry(row, stored_content_hash(row))) == to_bytes(row["entry_hash"])
    except (TypeError, ValueError, AttributeError):
        # Somebody has stored a value of a type that no server writes.
        return False


def to_bytes(value: object) -> bytes:
    """Return the stored hash, or b"" if it is malformed."""
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else b""


class UnchainedVerification:
    """Verifies the entries without a chain: those that the first checkpoint signed, and that there are no others.

    `removed` are the records of those that were removed, in the order of their ids.
    """

    def __init__(
        self,
        digest: DigestOfEntries,
        signed: UnchainedEntries | None,
        removed: Iterable[RemovedSegment],
        report: VerificationReport,
    ) -> None:
        self._digest = digest
        self._signed = signed
        self._report = report
        self._removed_through = 0
        report.unchained_are_signed = signed is not None
        for segment in removed:
            self._pass_removed(segment)

    def add(self, row: EntryRow, *, follows_chained: bool) -> None:
        """Verify the next entry without a chain; `follows_chained` if an entry with a chain has a smaller id."""
        report, signed = self._report, self._signed
        report.entries += 1
        report.unchained += 1
        if row["content_hash"] is not None:
            report.redacted += 1
        if row["id"] <= 0:
            return
        if row["id"] <= self._removed_through:
            message = f"entry {row['id']} has no hash and was removed: it was inserted again by other means"
            report.add(Finding(FindingKind.INSERTED, message, row["id"]))
        elif follows_chained or (signed is not None and row["id"] > signed.last_id):
            message = (
                f"entry {row['id']} has no hash: it was inserted by other means, or by a server of an older version"
            )
            report.add(Finding(FindingKind.INSERTED, message, row["id"]))
        else:
            self._add_to_digest(row)

    def finish(self) -> None:
        """Add whether the entries are those that were signed."""
        report, signed, found = self._report, self._signed, self._digest.result()
        if signed is None:
            return
        if not self._removed_through:
            if signed.hash != found.hash:
                message = (
                    f"the {found.count} entries without a chain up to id {signed.last_id} are not the {signed.count} "
                    "that the first checkpoint signed"
                )
                report.add(Finding(FindingKind.UNSIGNED, message))
            return
        report.still_unchained = found.count
        report.removed += signed.count - found.count
        if self._removed_through < signed.last_id != found.last_id:
            message = f"entries without a chain up to id {signed.last_id} are missing, and no record says removed"
            report.add(Finding(FindingKind.MISSING, message))

    def _add_to_digest(self, row: EntryRow) -> None:
        try:
            self._digest.add(row)
        except (TypeError, ValueError, AttributeError):
            message = f"entry {row['id']} contains values that no server writes"
            self._report.add(Finding(FindingKind.ALTERED, message, row["id"]))

    def _pass_removed(self, segment: RemovedSegment) -> None:
        """Expect no entries of a segment, which is a part of those that a checkpoint signed."""
        signed, fault = self._signed, segment.fault
        if fault is None and (
            signed is None
            or segment.last_hash != signed.hash
            or segment.first_position != self._removed_through + 1
            or segment.last_position > signed.last_id
        ):
            fault = "it is not what the first checkpoint signed"
        if fault is None:
            self._removed_through = segment.last_position
            return
        message = f"the removed segment of entries without a chain: {fault}"
        self._report.add(Finding(FindingKind.CHECKPOINT, message))


class DigestOfEntries(Protocol):
    """Hashes entries in their order."""

    def add(self, row: EntryRow) -> None:
        """Add the next entry."""

    def result(self) -> UnchainedEntries:
        """Return the hash of the added entries."""
