"""A trail of some entries, its checkpoints and those who tamper with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import Connection, text

from cstp_grpc.core.audit.checkpoint_keys import SigningKeyFile, TrustedKeys
from cstp_grpc.core.audit.checkpoints import Checkpoint
from cstp_grpc.core.audit.model import AuditEntry, AuditEvent, JudgedAction
from cstp_grpc.core.audit.sql_checkpoints import SqlCheckpointStore
from cstp_grpc.core.audit.sql_verification import iter_verification
from cstp_grpc.core.audit.verification import VerificationReport
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.writer import GroupCommitWriter

NOON = datetime(2026, 2, 4, 12, tzinfo=UTC)
KEY = SigningKeyFile(Ed25519PrivateKey.from_private_bytes(b"the key of these tests, 32 bytes"))
TRUSTED = TrustedKeys.of([KEY.public_key])


def make_entry(number: int) -> AuditEntry:
    """Return one of some entries that differ in what they have."""
    return AuditEntry(
        timestamp=NOON + timedelta(seconds=number),
        event=AuditEvent.GUARDRAIL_CHECK,
        requesting_agent="emerson",
        request_id=f"request-{number}",
        action=None if number % 5 == 4 else f"Deploy the service for the {number}th time",
        allowed=number % 3 != 0,
        violations=("no-production-without-review",) if number % 3 == 0 else (),
        evaluated=5,
        correlation_id=f"task-{number}" if number % 4 == 0 else None,
        judged=JudgedAction(category="process", confidence=0.5) if number % 2 else None,
    )


def add_checkpoint(
    database: Database, writer: GroupCommitWriter, key: SigningKeyFile = KEY, *, unchained: bool = False
) -> Checkpoint | None:
    """Sign what was added, as a server does."""
    store = SqlCheckpointStore(database)
    digest = store.digest_unchained() if unchained else None
    return writer.run(lambda unit_of_work: store.add(unit_of_work, key, NOON, digest), alone=True)


def verify(database: Database, exported: Sequence[Checkpoint] = (), keys: TrustedKeys = TRUSTED) -> VerificationReport:
    """Verify the trail with the keys that sign its checkpoints."""
    report = VerificationReport()
    for _ in iter_verification(database, exported, keys, report):
        pass
    return report


@contextmanager
def tampering(database: Database) -> Iterator[Connection]:
    """Open a transaction of somebody who may do anything in the database, and commit it."""
    with database.open_write_connection() as connection, connection.begin():
        if database.is_sqlite:
            triggers = connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'trigger'")).scalars().all()
            for trigger in triggers:
                connection.execute(text(f"DROP TRIGGER {trigger}"))
        else:
            connection.execute(text("SET LOCAL session_replication_role = replica"))
        yield connection
