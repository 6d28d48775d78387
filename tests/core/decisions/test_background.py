"""What searches leave out of a decision, on every database."""

from __future__ import annotations

import pytest

from cstp_grpc.contract.enums import Visibility
from cstp_grpc.core.decisions.model import DecisionContent, Links
from cstp_grpc.core.decisions.read_policy import SHARE_WITH_ALL, ReadPolicy
from cstp_grpc.core.decisions.sql_background import SqlBackgroundReader
from cstp_grpc.core.decisions.sql_store import SqlDecisionStore
from cstp_grpc.core.decisions.store import MAX_BACKGROUND, NeededBackground
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.core.decisions.journals import JournalKit

pytestmark = pytest.mark.above_stores


class Kit:
    """A journal, and the reader of what searches leave out."""

    def __init__(self, database: Database, writer: GroupCommitWriter) -> None:
        self.journal = JournalKit(database, writer, ReadPolicy.of(["peer"], ["public"], [])).journal
        self._database, self._writer = database, writer

    def record(self, title: str, agent: str = "ada", *, shared: bool = True, supersedes: tuple[str, ...] = ()) -> str:
        visibility = Visibility.SHARED if shared else Visibility.PRIVATE
        content = DecisionContent(title, context=f"Why: {title}", visibility=visibility)
        return self.journal.record(content, Links(supersedes=supersedes), agent, "r-1", None).id

    def read(self, decision_id: str, caller: str) -> tuple[str | None, str | None]:
        """Return context and title of the successor."""
        store = JournalKit(self._database, self._writer, ReadPolicy.of(["peer"], ["public"], [])).store
        reader = SqlBackgroundReader(self._database, store)
        found = reader.read(NeededBackground((decision_id,), (decision_id,)), caller)
        successor = found.successors.get(decision_id)
        return found.contexts.get(decision_id), successor.title if successor else None


@pytest.fixture
def kit(database: Database, writer: GroupCommitWriter) -> Kit:
    return Kit(database, writer)


@pytest.mark.contract("SqlBackgroundReader.read")
def test_contexts_are_read_by_their_agents_only(kit: Kit) -> None:
    old = kit.record("Use memcached")
    assert kit.read(old, "ada") == ("Why: Use memcached", None)
    assert kit.read(old, "bob") == (None, None)
    assert kit.read("dec-unknown", "ada") == (None, None)


def test_the_latest_successor_that_an_agent_may_read_is_told(kit: Kit) -> None:
    old = kit.record("Use memcached")
    kit.record("Use Redis", supersedes=(old,))
    kit.record("Use Valkey", shared=False, supersedes=(old,))
    assert kit.read(old, "ada")[1] == "Use Valkey"
    assert kit.read(old, "bob")[1] == "Use Redis"
    assert kit.read(old, "peer")[1] is None


def test_nobody_is_told_of_what_another_agent_says_to_supersede_a_decision(kit: Kit) -> None:
    old = kit.record("Use memcached")
    kit.record("Use nothing", agent="bob", supersedes=(old,))
    assert kit.read(old, "ada")[1] is None


def test_several_decisions_are_read_at_once(kit: Kit, database: Database) -> None:
    ids = [kit.record(f"Use queue {number}") for number in range(MAX_BACKGROUND)]
    kit.record("Use none", supersedes=(ids[0], ids[-1]))
    reader = SqlBackgroundReader(database, SqlDecisionStore(database, SHARE_WITH_ALL))
    found = reader.read(NeededBackground(tuple(ids), tuple(ids)), "ada")
    assert found.contexts == {key: f"Why: Use queue {number}" for number, key in enumerate(ids)}
    assert {old: new.title for old, new in found.successors.items()} == {ids[0]: "Use none", ids[-1]: "Use none"}
