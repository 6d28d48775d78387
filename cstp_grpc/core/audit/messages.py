"""Conversion between proofs of the audit trail and messages of the contract."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

from google.protobuf.message import Message

from cstp_grpc.contract import json_codec, proto_values
from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.contract.message_mapping import MessageMapper
from cstp_grpc.core.audit.checkpoints import Checkpoint, InvalidCheckpoint
from cstp_grpc.core.audit.proofs import (
    AuditExportFormat,
    AuditProgress,
    AuditProofs,
    DocumentPart,
    ProofPart,
    TrustBasis,
)
from cstp_grpc.core.audit.sql_evidence import EvidenceScope
from cstp_grpc.core.audit.verification import Finding, KeyRing, VerificationReport
from cstp_grpc.gen.cstp.v1 import audit_pb2
from cstp_grpc.platform.storage.pagination import PageRequest

FORMAT = proto_values.EnumMapping(audit_pb2.AuditExportFormat, AuditExportFormat)
PROGRESS = MessageMapper(AuditProgress, audit_pb2.AuditProgress)
FINDING = MessageMapper(
    Finding,
    audit_pb2.AuditFinding,
    {"entry_id": lambda finding: None if finding.entry_id is None else str(finding.entry_id)},
)
REPORT = MessageMapper(
    VerificationReport,
    audit_pb2.AuditReport,
    {
        "after_last_checkpoint": "unsigned",
        "without_hashes": "unchained",
        "without_hashes_are_signed": "unchained_are_signed",
        "without_hashes_still_there": "still_unchained",
    },
    given=("whole", "provable", "unproved", "finding_count"),
)
EXPORT_PART = MessageMapper(DocumentPart, audit_pb2.ExportAuditResponse)
SCOPE = MessageMapper(EvidenceScope, audit_pb2.GetEvidenceRequest)
ResponseT = TypeVar("ResponseT", bound=Message)
KeyReader: TypeAlias = Callable[[Sequence[str]], KeyRing]
"""Returns the keys in PEM texts, or without any those of this server. Raises InvalidArgument."""


class ProofMessages:
    """Answers the requests for proofs: those that take long in parts, by generators that block.

    `read_keys` reads the keys of a request, and `read_public_key` returns the id and the PEM of the key that signs.
    All methods raise QueryFailed, and InvalidArgument for malformed keys and checkpoints.
    """

    def __init__(
        self, proofs: AuditProofs, read_keys: KeyReader, read_public_key: Callable[[], tuple[str, str]]
    ) -> None:
        self._proofs = proofs
        self._read_keys = read_keys
        self._read_public_key = read_public_key

    def verify(self, request: audit_pb2.VerifyAuditRequest) -> Generator[audit_pb2.VerifyAuditResponse, None, None]:
        # A generator, so that the thread reads the keys and checkpoints.
        yield from encode_parts(audit_pb2.VerifyAuditResponse, self._proofs.verify(self._basis(request)))

    def export(self, request: audit_pb2.ExportAuditRequest) -> Generator[audit_pb2.ExportAuditResponse, None, None]:
        after, before = (proto_values.datetime_field(request, name) for name in ("after", "before"))
        form = FORMAT.word(request.format) or AuditExportFormat.JSONL
        return (EXPORT_PART.encode(part) for part in self._proofs.export(form, after, before))

    def give_evidence(
        self, request: audit_pb2.GetEvidenceRequest
    ) -> Generator[audit_pb2.GetEvidenceResponse, None, None]:
        parts = self._proofs.give_evidence(SCOPE.decode(request), lambda: self._basis(request), report_document)
        return encode_parts(audit_pb2.GetEvidenceResponse, parts)

    def page_checkpoints(self, request: audit_pb2.ListCheckpointsRequest) -> audit_pb2.ListCheckpointsResponse:
        page = self._proofs.page_checkpoints(PageRequest(request.page_size, request.page_token))
        return audit_pb2.ListCheckpointsResponse(
            checkpoints=map(checkpoint_message, page.items), next_page_token=page.next_token
        )

    def public_key(self, _: audit_pb2.GetPublicKeyRequest) -> audit_pb2.GetPublicKeyResponse:
        key_id, public_key = self._read_public_key()
        return audit_pb2.GetPublicKeyResponse(key_id=key_id, public_key=public_key)

    def _basis(self, request: audit_pb2.VerifyAuditRequest | audit_pb2.GetEvidenceRequest) -> TrustBasis:
        exported = list(parse_checkpoints(request.checkpoints))
        return TrustBasis(self._read_keys(request.public_keys), exported)


def encode_parts(response: type[ResponseT], parts: Iterable[ProofPart]) -> Generator[ResponseT, None, None]:
    """Yield a response for each part of a proof."""
    for part in parts:
        match part:
            case AuditProgress():
                yield response(progress=PROGRESS.encode(part))
            case DocumentPart():
                yield response(text=part.text)
            case Finding():
                yield response(finding=FINDING.encode(part))
            case VerificationReport():
                yield response(report=report_message(part))


def report_message(report: VerificationReport) -> audit_pb2.AuditReport:
    count = len(report.findings) + report.further_findings
    reason = report.unproved
    return REPORT.encode(report, whole=report.is_whole, provable=reason is None, unproved=reason, finding_count=count)


def report_document(report: VerificationReport) -> dict[str, Any]:
    """Return a report with its findings as a JSON object."""
    return add_findings(report_message(report), map(FINDING.encode, report.findings))


def add_findings(report: audit_pb2.AuditReport, findings: Iterable[audit_pb2.AuditFinding]) -> dict[str, Any]:
    """Return a report with findings as a JSON object."""
    found = [json_codec.to_json(each) for each in findings]
    further = report.finding_count - len(found)
    return {**json_codec.to_json(report), "findings": found, "furtherFindings": further}


def checkpoint_message(checkpoint: Checkpoint) -> audit_pb2.AuditCheckpoint:
    message = audit_pb2.AuditCheckpoint(statement=checkpoint.statement, signature=checkpoint.signature)
    try:
        statement = checkpoint.read()
    except InvalidCheckpoint:
        # Somebody has written it; a verification reports that.
        return message
    message.number = statement.number
    proto_values.write_timestamp(message.signed_at, statement.signed_at)
    return message


def parse_checkpoints(messages: Iterable[audit_pb2.AuditCheckpoint]) -> Generator[Checkpoint, None, None]:
    """Parse the checkpoints of a request. Raises InvalidArgument."""
    for message in messages:
        checkpoint = Checkpoint(message.statement, message.signature)
        try:
            checkpoint.read()
        except InvalidCheckpoint as error:
            raise InvalidArgument.field("checkpoints", str(error)) from error
        yield checkpoint
