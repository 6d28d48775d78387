"""A SQLite database that is damaged, or that is none."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import make_url, text

from cstp_grpc.contract.errors import QueryFailed, Unavailable
from cstp_grpc.platform.storage.database import Database, open_database
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.databases import POOL_SIZE

pytestmark = pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)

PAGE = 4096


def damage_pages(path: Path) -> None:
    """Overwrite all pages but those of the schema's beginning."""
    content = path.read_bytes()
    path.write_bytes(content[:PAGE] + b"\xa5" * (len(content) - PAGE))


def overwrite(path: Path) -> None:
    path.write_bytes(b"this is a text and no database\n" * 1000)


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (damage_pages, "the database is damaged and must be restored from a copy"),
        (overwrite, "the file of the database is not a SQLite database"),
    ],
)
def test_damage_is_told_in_a_sentence_to_who_writes_and_who_reads(
    database_url: str, damage: Callable[[Path], None], what: str, caplog: pytest.LogCaptureFixture
) -> None:
    damage(Path(str(make_url(database_url).database)))
    database = open_database(database_url, POOL_SIZE)
    with closing(GroupCommitWriter(database, timeout=20.0)) as writer:
        with pytest.raises(Unavailable) as unwritten:
            writer.run(lambda unit_of_work: unit_of_work.execute(text("DELETE FROM intents")))
        assert unwritten.value.message == f"the record could not be stored: {what}"
        with pytest.raises(QueryFailed) as unread, database.read_snapshot() as unit_of_work:
            unit_of_work.execute(text("SELECT count(*) FROM intents"))
        assert unread.value.message == what
    database.close()
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
    assert "intents" not in caplog.text


def test_other_errors_of_statements_are_no_damage(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    with (
        pytest.raises(QueryFailed, match=r"^the journal cannot be read now; try again$"),
        database.read_snapshot() as unit_of_work,
    ):
        unit_of_work.execute(text("SELECT nonsense FROM intents"))
    assert "nonsense" in caplog.text
