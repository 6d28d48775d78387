"""Checkpoints are signed in the background, with a key that is made once."""

from __future__ import annotations

import stat
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

from cstp_grpc.contract.errors import ConfigError, InvalidArgument
from cstp_grpc.core.audit.checkpoint_keys import SigningKeyFile
from cstp_grpc.core.audit.checkpointer import Checkpointer
from cstp_grpc.core.audit.sql_chain import AuditChain
from cstp_grpc.core.audit.sql_checkpoints import SqlCheckpointStore
from cstp_grpc.core.audit.sql_trail import SqlAuditTrail
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.core.audit.kit import KEY, add_checkpoint, make_entry, verify
from tests.paging import walk
from tests.waiting import wait_until

NEVER = 3600.0


def make_checkpointer(database: Database, writer: GroupCommitWriter) -> Checkpointer:
    return Checkpointer(SqlCheckpointStore(database), writer, lambda: KEY, lambda: datetime.now(UTC), NEVER)


def test_a_checkpoint_is_signed_after_so_many_entries(database: Database, writer: GroupCommitWriter) -> None:
    checkpointer = make_checkpointer(database, writer)
    chain = AuditChain(database.dialect, due_after=3, on_due=checkpointer.wake)
    trail = SqlAuditTrail(database, writer, chain=chain)
    checkpointer.start()
    trail.submit(*map(make_entry, range(3))).result()
    wait_until(lambda: verify(database).checkpoints == 1, "a checkpoint")
    trail.record(make_entry(3))
    assert verify(database).unsigned == 1
    checkpointer.stop()
    report = verify(database)
    assert (report.findings, report.checkpoints, report.unsigned) == ([], 2, 0)


@pytest.mark.contract("SqlCheckpointStore.has_unsigned", "SqlCheckpointStore.page")
def test_without_entries_no_key_is_asked_for(database: Database, writer: GroupCommitWriter) -> None:
    def refuse() -> SigningKeyFile:
        raise AssertionError

    store = SqlCheckpointStore(database)
    Checkpointer(store, writer, refuse, lambda: datetime.now(UTC), NEVER).sign()
    assert store.page(PageRequest()).items == ()


@pytest.mark.contract("SqlCheckpointStore.add", "SqlCheckpointStore.last_time", "SqlCheckpointStore.digest_unchained")
def test_several_servers_sign_one_after_the_other(database: Database, writer: GroupCommitWriter) -> None:
    trail = SqlAuditTrail(database, writer)
    checkpointers = [make_checkpointer(database, writer) for _ in range(3)]
    for number in range(4):
        trail.record(make_entry(number))
        threads = [threading.Thread(target=checkpointer.sign) for checkpointer in checkpointers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    report = verify(database)
    assert (report.findings, report.checkpoints, report.unsigned) == ([], 4, 0)


def test_a_key_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    keys: list[str] = []
    threads = [
        threading.Thread(target=lambda: keys.append(SigningKeyFile.load_or_create(path).key_id)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(keys) == {SigningKeyFile.load(path).key_id}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", [None, b"nothing", "ec"])
def test_what_is_no_key_is_refused(tmp_path: Path, content: bytes | str | None) -> None:
    path = tmp_path / "key.pem"
    if content == "ec":
        content = generate_private_key(SECP256R1()).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    if isinstance(content, bytes):
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"audit\.signing_key_file"):
        SigningKeyFile.load(path)


@pytest.mark.contract("SqlCheckpointStore.page", "SqlCheckpointStore.count_entries")
def test_checkpoints_are_listed_the_latest_first(database: Database, writer: GroupCommitWriter) -> None:
    trail, store = SqlAuditTrail(database, writer), SqlCheckpointStore(database)
    assert store.count_entries() == 0
    for number in range(5):
        trail.record(make_entry(number))
        add_checkpoint(database, writer)

    found = walk(store.page, [2])

    assert [each.read().number for each in found] == [5, 4, 3, 2, 1]
    assert store.count_entries() == 5
    with pytest.raises(InvalidArgument, match="page_token"):
        store.page(PageRequest(2, "nonsense"))
