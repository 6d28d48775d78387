"""Proofs of the audit trail: its verification, exports and evidence, in parts as they are made."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, TypeAlias

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.common.unicode_text import escape_invisible
from cstp_grpc.core.audit import entry_documents
from cstp_grpc.core.audit.checkpoints import Checkpoint
from cstp_grpc.core.audit.entry_hashing import EntryRow, format_instant
from cstp_grpc.core.audit.evidence import EVIDENCE
from cstp_grpc.core.audit.sql_checkpoints import SqlCheckpointStore
from cstp_grpc.core.audit.sql_evidence import EvidenceScope, SqlEvidenceReader
from cstp_grpc.core.audit.sql_verification import iter_verification
from cstp_grpc.core.audit.verification import Finding, KeyRing, VerificationReport
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.pagination import Page, PageRequest

PART_CHARACTERS: Final = 65_536
"""Characters after which a part of a document is sent."""
NOT_SIGNED: Final = "no checkpoint signs its last entries yet"
NO_ENTRIES: Final = "no entries are about it"


class AuditExportFormat(StrEnum):
    """The format of an export."""

    JSONL = "jsonl"
    CSV = "csv"
    CLOUDEVENTS = "cloudevents"


@dataclass(frozen=True, slots=True)
class AuditProgress:
    """How many entries were read, of about how many."""

    entries: int
    total: int


@dataclass(frozen=True, slots=True)
class DocumentPart:
    """A part of a document; `entries` is the number of entries up to its end."""

    text: str
    entries: int = 0


@dataclass(frozen=True, slots=True)
class TrustBasis:
    """The keys that may have signed checkpoints, and the checkpoints that were stored elsewhere."""

    keys: KeyRing
    exported: Sequence[Checkpoint] = ()


ProofPart: TypeAlias = AuditProgress | DocumentPart | Finding | VerificationReport
SubjectReader: TypeAlias = Callable[[Sequence[str], Sequence[str]], Mapping[str, Any]]
"""Returns the members of evidence about decisions and intents, by their ids and correlation ids."""
ReportEncoder: TypeAlias = Callable[[VerificationReport], Mapping[str, Any]]
"""Returns a report as a JSON object."""


class AuditProofs:
    """Proves the trail in a database to callers. All generators raise QueryFailed.

    `sign` makes a checkpoint, if entries were added since the last one; None where no checkpoint can be made.
    `on_findings` is called with a report that has findings.
    """

    def __init__(
        self,
        database: Database,
        read_subjects: SubjectReader,
        identify_journal: Callable[[], str],
        sign: Callable[[], object] | None,
        on_findings: Callable[[VerificationReport], object] = lambda _: None,
    ) -> None:
        self._database = database
        self._checkpoints = SqlCheckpointStore(database)
        self._evidence = SqlEvidenceReader(database)
        self._read_subjects = read_subjects
        self._identify_journal = identify_journal
        self._sign = sign
        self._on_findings = on_findings

    def page_checkpoints(self, request: PageRequest) -> Page[Checkpoint]:
        """Return checkpoints, latest first. Raises InvalidArgument for a token of another listing."""
        return self._checkpoints.page(request)

    def verify(self, basis: TrustBasis) -> Generator[ProofPart, None, None]:
        """Yield the progress of a verification of the whole trail, the findings, and the report."""
        report = VerificationReport()
        yield from self._verify_into(report, basis)
        yield from report.findings
        yield report

    def export(
        self, form: AuditExportFormat, after: datetime | None, before: datetime | None
    ) -> Generator[ProofPart, None, None]:
        """Yield the entries of a period as a document, in whole lines."""
        lines = self._iter_lines(form, self._evidence.iter_period(after, before))
        yield from gather_parts(lines, first=-1 if form is AuditExportFormat.CSV else 0)

    def give_evidence(
        self, scope: EvidenceScope, read_basis: Callable[[], TrustBasis], encode_report: ReportEncoder
    ) -> Generator[ProofPart, None, None]:
        """Yield the progress of a verification, a document of evidence, and the report.

        Raises InvalidArgument if too many entries are about the subject.
        """
        if self._sign is not None:
            self._sign()
        # The first checkpoint makes the key.
        basis = read_basis()
        rows, proofs = self._evidence.read_evidence(scope)
        report = VerificationReport()
        yield from self._verify_into(report, basis)
        if not rows:
            report.missing_signature = NO_ENTRIES
        elif report.unproved is None and any(proof.checkpoint is None for proof in proofs):
            report.missing_signature = NOT_SIGNED
        document = {
            **self._describe_entries(scope, rows),
            "proofs": [proof.encode() for proof in proofs],
            "verification": encode_report(report),
        }
        encoder = json.JSONEncoder(ensure_ascii=False, indent=2)
        # The same JSON: characters that could steer a terminal are in its strings alone.
        yield from gather_parts([*map(escape_invisible, encoder.iterencode(document)), "\n"])
        yield report

    def _verify_into(self, report: VerificationReport, basis: TrustBasis) -> Iterator[AuditProgress]:
        total = self._checkpoints.count_entries()
        for count in iter_verification(self._database, basis.exported, basis.keys, report):
            yield AuditProgress(count, max(total, count))
        if report.findings:
            self._on_findings(report)

    def _describe_entries(self, scope: EvidenceScope, rows: Sequence[EntryRow]) -> dict[str, Any]:
        entries = [entry_documents.entry_to_document(row) for row in rows]
        instants = {"after": scope.after, "before": scope.before}
        about = {name: format_instant(value) for name, value in instants.items() if value is not None}

        def distinct(member: str) -> list[str]:
            return sorted({entry[member] for entry in entries if member in entry})

        return {
            "type": EVIDENCE,
            "made_at": format_instant(datetime.now(UTC)),
            "about": about if scope.decision_id is None else {"decision": scope.decision_id},
            "rule_set_versions": distinct("rule_set_version"),
            "entries": entries,
            **self._read_subjects(distinct("decision_id"), distinct("correlation_id")),
        }

    def _iter_lines(self, form: AuditExportFormat, rows: Iterator[EntryRow]) -> Iterator[str]:
        documents = map(entry_documents.entry_to_document, rows)
        if form is AuditExportFormat.CSV:
            yield csv_line(entry_documents.CSV_COLUMNS)
            yield from (csv_line(entry_documents.document_to_csv(document)) for document in documents)
            return
        source = f"/cstp/journals/{self._identify_journal()}" if form is AuditExportFormat.CLOUDEVENTS else ""
        for document in documents:
            event = entry_documents.document_to_cloud_event(document, source) if source else document
            yield f"{escape_invisible(json.dumps(event, ensure_ascii=False))}\n"


def gather_parts(texts: Iterable[str], first: int = 0) -> Iterator[DocumentPart]:
    """Yield texts together as parts of a document, with the number of texts from `first` on."""
    gathered, size, count = [], 0, first
    for text in texts:
        gathered.append(text)
        size, count = size + len(text), count + 1
        if size >= PART_CHARACTERS:
            yield DocumentPart("".join(gathered), count)
            gathered, size = [], 0
    if gathered:
        yield DocumentPart("".join(gathered), count)


def csv_line(fields: Sequence[str]) -> str:
    line = io.StringIO()
    csv.writer(line).writerow(fields)
    return line.getvalue()
