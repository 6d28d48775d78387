"""Proofs of the audit trail over gRPC: verification, exports, evidence, and watching it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from cstp_grpc.client import CstpClient
from cstp_grpc.contract.errors import InvalidArgument, PermissionDenied, RateLimited
from cstp_grpc.core.audit.checkpoint_keys import TrustedKeys, parse_public_keys
from cstp_grpc.core.audit.evidence import EvidenceFaults, verify_evidence
from cstp_grpc.core.audit.messages import ProofMessages
from cstp_grpc.core.audit.proofs import AuditProofs
from cstp_grpc.gen.cstp.v1 import audit_pb2
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.server.app import App
from tests.harness import TOKENS, running, settings

ACTIONS = [{"description": f"Deploy number {number}"} for number in range(5)]


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    """A server that signs no checkpoint by itself during a test."""
    with running(settings(tmp_path / "data")) as app:
        yield app


@pytest.fixture
def client(app: App) -> Iterator[CstpClient]:
    with CstpClient(app.target, TOKENS["alice"]) as client:
        client.batch_check_guardrails(ACTIONS)
        yield client


def join_text(parts: Any) -> str:
    return "".join(part.text for part in parts)


def test_fresh_evidence_is_proved_at_once(client: CstpClient) -> None:
    *parts, last = client.get_evidence(after=None, before=None, decision_id="dec-0", resume=False)
    assert (last.report.unproved, last.report.after_last_checkpoint) == ("no entries are about it", 0)
    made = client.record_decision("Use a queue")

    *parts, last = client.get_evidence(decision_id=made.id, resume=False)

    document = json.loads(join_text(parts))
    keys = TrustedKeys.of(parse_public_keys(client.get_public_key().public_key.encode()))
    assert verify_evidence(document, keys) == EvidenceFaults()
    assert [entry["event"] for entry in document["entries"]] == ["decision_recorded"]
    assert [each["title"] for each in document["decisions"]] == ["Use a queue"]
    assert (document["verification"]["whole"], last.report.entries) == (True, 6)


def test_the_trail_is_verified_with_given_checkpoints_and_keys(client: CstpClient) -> None:
    list(client.get_evidence(decision_id="dec-0", resume=False))
    (checkpoint,) = client.list_checkpoints()
    key = client.get_public_key().public_key

    (answer,) = client.verify_audit(public_keys=[key], checkpoints=[checkpoint], resume=False)

    assert (answer.report.whole, answer.report.entries, answer.report.checkpoints) == (True, 5, 1)
    forged = audit_pb2.AuditCheckpoint(statement=checkpoint.statement.replace('"position":5', '"position":6'))
    *findings, answer = client.verify_audit(checkpoints=[forged], resume=False)
    assert [each.finding.kind for each in findings] == 2 * [audit_pb2.AUDIT_FINDING_KIND_CHECKPOINT]
    assert (answer.report.whole, answer.report.finding_count) == (False, 2)
    (failed,) = client.list_audit_entries(event="verification_failed")
    assert (failed.requesting_agent, failed.count, failed.action) == ("alice", 2, findings[0].finding.message)


@pytest.mark.parametrize(
    "fields", [{"public_keys": ["nothing"]}, {"checkpoints": [audit_pb2.AuditCheckpoint(statement="{}")]}]
)
def test_malformed_keys_and_checkpoints_are_refused(client: CstpClient, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(fields))):
        list(client.verify_audit(**fields, resume=False))


def test_keys_are_read_with_the_trail_and_not_before(database: Database) -> None:
    read: list[Sequence[str]] = []

    def read_keys(texts: Sequence[str]) -> TrustedKeys:
        read.append(texts)
        return TrustedKeys.of([])

    proofs = AuditProofs(database, lambda *_: {}, lambda: "", None)
    parts = ProofMessages(proofs, read_keys, lambda: ("", "")).verify(audit_pb2.VerifyAuditRequest())
    before = len(read)
    list(parts)

    assert (before, len(read)) == (0, 1)


def test_the_trail_is_exported_in_each_format(client: CstpClient) -> None:
    lines = join_text(client.export_audit(resume=False)).splitlines()
    table = list(csv.DictReader(io.StringIO(join_text(client.export_audit(format="csv", resume=False)))))
    events = join_text(client.export_audit(format="cloudevents", resume=False)).splitlines()

    assert [json.loads(line)["action"] for line in lines] == [each["description"] for each in ACTIONS]
    assert [row["entry_hash"] for row in table] == [json.loads(line)["entry_hash"] for line in lines]
    assert [json.loads(event)["data"] for event in events] == [json.loads(line) for line in lines]
    assert [part.entries for part in client.export_audit(format="csv", resume=False)] == [5]


def test_long_reads_are_bounded(client: CstpClient) -> None:
    for _ in range(9):
        client.batch_check_guardrails([{"description": f"{'x' * 3000} {number}"} for number in range(100)])
    # Each holds its place: the server sends no more than the client reads.
    kept = [client.export_audit(resume=False) for _ in range(2)]
    for each in kept:
        next(each)
    with pytest.raises(RateLimited, match="long reads"):
        next(client.export_audit(resume=False))
    for each in kept:
        each.close()


def test_entries_are_watched_as_they_come_and_from_a_token_on(app: App, client: CstpClient) -> None:
    watch = client.watch_audit(conditions={"words": ["rename"]})
    begun = next(watch)
    assert not begun.HasField("entry")
    client.check_guardrails("Rename a variable")
    client.check_guardrails("Deploy it")
    client.check_guardrails("Rename a file")

    found = list(islice(watch, 2))
    watch.close()

    assert [each.entry.action for each in found] == ["Rename a variable", "Rename a file"]
    resumed = client.watch_audit(after=found[0].resume_token)
    assert [each.entry.action for each in islice(resumed, 1, 3)] == ["Deploy it", "Rename a file"]
    resumed.close()


@pytest.mark.parametrize("method", ["verify_audit", "export_audit", "watch_audit"])
def test_others_may_not_read_the_trail(app: App, method: str) -> None:
    with CstpClient(app.target, TOKENS["reader"]) as reader, pytest.raises(PermissionDenied, match="admin"):
        next(getattr(reader, method)(resume=False))
