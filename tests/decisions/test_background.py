"""What searches leave out of a decision, on every database."""

from __future__ import annotations

import pytest

from cstp_grpc.decisions.model import DecisionContent, Links
from cstp_grpc.decisions.read_policy import ReadPolicy
from cstp_grpc.decisions.sql_background import SqlBackgroundReader
from cstp_grpc.enums import Visibility
from cstp_grpc.storage.database import Database
from cstp_grpc.storage.writer import GroupCommitWriter
from tests.decisions.journals import JournalKit


class Kit:
    """A journal, and the reader of what searches leave out."""

    def __init__(self, database: Database, writer: GroupCommitWriter) -> None:
        self.journal = JournalKit(database, writer, ReadPolicy.of(["peer"], ["public"], [])).journal
        self._database, self._writer = database, writer

    def record(self, title: str, agent: str = "ada", *, shared: bool = True, supersedes: tuple[str, ...] = ()) -> str:
        visibility = Visibility.SHARED if shared else Visibility.PRIVATE
        content = DecisionContent(title, context=f"Why: {title}", visibility=visibility)
        return self.journal.record(content, Links(supersedes=supersedes), agent, "r-1", None).id

    def read(self, ids: list[str], caller: str) -> dict[str, tuple[str | None, str | None]]:
        """Return context and title of the successor by id."""
        policy = ReadPolicy.of(["peer"], ["public"], [])
        store = JournalKit(self._database, self._writer, policy).store
        found = SqlBackgroundReader(self._database, store).read(ids, caller)
        return {key: (each.context, each.successor.title if each.successor else None) for key, each in found.items()}


@pytest.fixture
def kit(database: Database, writer: GroupCommitWriter) -> Kit:
    return Kit(database, writer)


@pytest.mark.contract("SqlBackgroundReader.read")
def test_contexts_are_read_by_their_agents_only(kit: Kit) -> None:
    old = kit.record("Use memcached")
    assert kit.read([old], "ada") == {old: ("Why: Use memcached", None)}
    assert kit.read([old], "bob") == {old: (None, None)}
    assert kit.read(["dec-unknown"], "ada") == {"dec-unknown": (None, None)}


def test_the_latest_successor_that_an_agent_may_read_is_told(kit: Kit) -> None:
    old = kit.record("Use memcached")
    kit.record("Use Redis", supersedes=(old,))
    kit.record("Use Valkey", shared=False, supersedes=(old,))
    assert kit.read([old], "ada")[old][1] == "Use Valkey"
    assert kit.read([old], "bob")[old][1] == "Use Redis"
    assert kit.read([old], "peer")[old][1] is None


def test_nobody_is_told_of_what_another_agent_says_to_supersede_a_decision(kit: Kit) -> None:
    old = kit.record("Use memcached")
    kit.record("Use nothing", agent="bob", supersedes=(old,))
    assert kit.read([old], "ada")[old][1] is None
