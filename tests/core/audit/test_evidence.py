"""Evidence proves by itself that its entries stand in the trail, and exported entries have the protocol's form."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cstp_grpc.common.unicode_text import INVISIBLE
from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.core.audit import sql_evidence
from cstp_grpc.core.audit.checkpoint_keys import SigningKeyFile, TrustedKeys
from cstp_grpc.core.audit.entry_documents import (
    CSV_COLUMNS,
    document_to_cloud_event,
    document_to_csv,
    document_to_row,
    entry_to_document,
)
from cstp_grpc.core.audit.entry_hashing import stored_content_hash
from cstp_grpc.core.audit.evidence import EVIDENCE, EvidenceFaults, verify_evidence
from cstp_grpc.core.audit.model import AuditEvent
from cstp_grpc.core.audit.sql_evidence import EvidenceScope, SqlEvidenceReader
from cstp_grpc.core.audit.sql_trail import SqlAuditTrail
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.core.audit.kit import NOON, TRUSTED, add_checkpoint, make_entry
from tests.databases import ServerWriter
from tests.named_case import named_case

ENTRIES = 9


@pytest.fixture
def trail(database: Database, writer: GroupCommitWriter) -> SqlAuditTrail:
    """A trail of nine entries, a second apart."""
    trail = SqlAuditTrail(database, writer)
    trail.submit(*map(make_entry, range(ENTRIES))).result()
    return trail


def evidence(database: Database, scope: EvidenceScope) -> dict[str, Any]:
    """Return the document of evidence as somebody reads it from a file."""
    rows, proofs = SqlEvidenceReader(database).read_evidence(scope)
    document = {
        "type": EVIDENCE,
        "entries": [entry_to_document(row) for row in rows],
        "proofs": [proof.encode() for proof in proofs],
    }
    parsed: dict[str, Any] = json.loads(json.dumps(document))
    return parsed


MIDDLE = EvidenceScope(after=NOON + timedelta(seconds=2), before=NOON + timedelta(seconds=4))


@pytest.mark.contract("SqlEvidenceReader.read_evidence")
def test_a_period_is_proved_up_to_the_next_checkpoint(
    database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail
) -> None:
    add_checkpoint(database, writer)
    document = evidence(database, MIDDLE)
    assert [entry["request_id"] for entry in document["entries"]] == ["request-2", "request-3", "request-4"]
    (proof,) = document["proofs"]
    assert (proof["first_position"], len(proof["entries"])) == (3, ENTRIES - 2)
    assert verify_evidence(document, TRUSTED) == EvidenceFaults()


def test_what_no_checkpoint_signs_is_not_proved(database: Database, trail: SqlAuditTrail) -> None:
    faults = verify_evidence(evidence(database, MIDDLE), TRUSTED)
    assert (faults.wrong, [each[-26:] for each in faults.unproved]) == ([], ["no checkpoint signs it yet"])


def test_nothing_is_proved_about_a_subject_without_entries(
    database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail
) -> None:
    add_checkpoint(database, writer)
    faults = verify_evidence(evidence(database, EvidenceScope(decision_id="dec-9")), TRUSTED)
    assert faults == EvidenceFaults([], ["it has no entries"])


def test_a_proof_is_not_longer_than_allowed(
    database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_evidence, "MAX_PROOF", ENTRIES - 3)
    add_checkpoint(database, writer)
    with pytest.raises(InvalidArgument, match="take a shorter or later period"):
        evidence(database, MIDDLE)
    evidence(database, EvidenceScope(after=NOON + timedelta(seconds=3)))


def content_hash_of(document: dict[str, Any]) -> str:
    content_hash = stored_content_hash(document_to_row(document))
    assert content_hash is not None
    return content_hash.hex()


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "another verdict": lambda document: document["entries"][1].update(allowed=True),
    "another content": lambda document: document["entries"][1].update(action="Something else"),
    "another content beside the hash of the true one": lambda document: document["entries"][1].update(
        action="Something else", content_hash=content_hash_of(document["entries"][1])
    ),
    "a text in the place of the verdict": lambda document: document["entries"][0].update(allowed="no"),
    "a text in the place of a number": lambda document: document["entries"][0].update(evaluated="5"),
    "no violation": lambda document: document["entries"][1].update(violations=[]),
    "another place": lambda document: document["entries"][1].update(chain_position=100),
    "an entry twice": lambda document: document["entries"][1].update(document["entries"][0] | {"chain_position": 4}),
    "a hash on the way": lambda document: document["proofs"][0]["entries"].reverse(),
    "another checkpoint": lambda document: document["proofs"][0]["checkpoint"]["statement"].update(number=9),
    "no proof": lambda document: document["proofs"].clear(),
    "no form": lambda document: document.pop("proofs"),
    "another form": lambda document: document.update(type="something"),
    "no entry": lambda document: document["entries"].append(17),
}


@pytest.mark.parametrize("database_kind", ["sqlite"])
@pytest.mark.parametrize("what", CHANGES)
def test_changed_evidence_is_found(
    database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail, what: str
) -> None:
    add_checkpoint(database, writer)
    document = evidence(database, MIDDLE)
    changed = copy.deepcopy(document)
    CHANGES[what](changed)
    assert verify_evidence(changed, TRUSTED).wrong
    others = TrustedKeys.of([SigningKeyFile(Ed25519PrivateKey.generate()).public_key])
    assert verify_evidence(document, others).wrong


def test_evidence_for_a_decision_has_what_led_to_it_and_what_came_of_it(
    database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail
) -> None:
    announced = replace(make_entry(20), event=AuditEvent.INTENT_ANNOUNCED, correlation_id="deploy-7")
    other = replace(announced, requesting_agent="another", request_id="other")
    recorded = replace(
        make_entry(21), event=AuditEvent.DECISION_RECORDED, correlation_id="deploy-7", decision_id="dec-1"
    )
    reviewed = replace(make_entry(22), event=AuditEvent.DECISION_REVIEWED, decision_id="dec-1")
    with_writer = SqlAuditTrail(database, second := ServerWriter(database))
    for each, through in ((announced, trail), (other, trail), (recorded, with_writer), (reviewed, trail)):
        through.record(each)
    second.close()
    add_checkpoint(database, writer)
    document = evidence(database, EvidenceScope(decision_id="dec-1"))
    assert [entry["event"] for entry in document["entries"]] == [
        "intent_announced",
        "decision_recorded",
        "decision_reviewed",
    ]
    assert verify_evidence(document, TRUSTED) == EvidenceFaults()


@pytest.mark.contract("SqlEvidenceReader.iter_period")
def test_an_exported_entry_has_the_form_of_the_audit_log(database: Database, trail: SqlAuditTrail) -> None:
    rows = list(SqlEvidenceReader(database).iter_period(NOON, NOON))
    document = entry_to_document(rows[0])
    said = {
        "timestamp": "2026-02-04T12:00:00Z",
        "event": "guardrail_check",
        "requesting_agent": "emerson",
        "action": "Deploy the service for the 0th time",
        "allowed": False,
        "violations": ["no-production-without-review"],
        "evaluated": 5,
    }
    assert {name: document[name] for name in said} == said
    assert document_to_row(document) == {name: rows[0][name] for name in CSV_COLUMNS}
    assert entry_to_document({**rows[0], "violations": None})["violations"] == []


def test_an_entry_is_a_row_of_csv_that_no_spreadsheet_evaluates() -> None:
    document = {"timestamp": "2026-02-04T12:00:00Z", "action": "=1+1", "allowed": False, "violations": ["a", "b"]}
    fields = dict(zip(CSV_COLUMNS, document_to_csv(document), strict=True))
    assert (fields["action"], fields["allowed"], fields["violations"]) == ("'=1+1", "false", '["a", "b"]')
    assert fields["error"] == ""


def test_a_field_of_csv_is_one_line_that_steers_nothing() -> None:
    for action, field in [
        ("tidy up", "tidy up"),
        (" =1+1", "' =1+1"),
        ("\n=1+1", "'\\n=1+1"),
        ("\u3000=1+1", "'\u3000=1+1"),
        ("\uff1d1+1", "'\uff1d1+1"),
        ("\uff20SUM(1)", "'\uff20SUM(1)"),
        ("\u22121+1", "'\u22121+1"),
        ("\u200b=1+1", "\\u200b=1+1"),
        ("a\x1b[2Jb", "a\\u001b[2Jb"),
        ("ok\r\n2026-02-04T12:00:00Z,forged", "ok\\r\\n2026-02-04T12:00:00Z,forged"),
        ("a\u2028b\u202ec\td", "a\\u2028b\\u202ec\\td"),
    ]:
        with named_case(action, field):
            fields = dict(zip(CSV_COLUMNS, document_to_csv({"action": action, "violations": [action]}), strict=True))
            assert fields["action"] == field
            assert not INVISIBLE.search(fields["violations"])
            assert json.loads(fields["violations"]) == [action]


def test_an_entry_is_a_cloud_event() -> None:
    document = {"id": 7, "event": "guardrail_check", "timestamp": "2026-02-04T12:00:00Z", "request_id": "r"}
    assert document_to_cloud_event(document, "/cstp/journals/x") == {
        "specversion": "1.0",
        "id": "7",
        "source": "/cstp/journals/x",
        "type": "org.cstp.audit.guardrail_check",
        "time": "2026-02-04T12:00:00Z",
        "datacontenttype": "application/json",
        "subject": "r",
        "data": document,
    }
