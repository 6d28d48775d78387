"""Decisions that one journal exports and another imports with their identity, on each kind of database."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cstp_grpc.contract import json_codec
from cstp_grpc.contract.enums import DecisionStatus, Outcome, Visibility
from cstp_grpc.contract.errors import NotFound
from cstp_grpc.core.audit.model import AuditEvent
from cstp_grpc.core.decisions import messages
from cstp_grpc.core.decisions.lifecycle import MAX_AHEAD
from cstp_grpc.core.decisions.model import (
    DecisionFilter,
    DecisionIdentity,
    DecisionProvenance,
    ImportAction,
    ImportRecord,
    Links,
    LinkType,
    RemovalFilter,
    SourceLinks,
)
from cstp_grpc.modules import importing
from cstp_grpc.platform.storage.database import open_database
from tests.core.decisions.journals import WHOLE, JournalKit, record
from tests.core.decisions.strategies import any_text, contents
from tests.databases import POOL_SIZE, ServerWriter, write_journal
from tests.example_counts import examples

ACTIONS = ["record", "bring", "review", "update", "link", "share", "delete"]

pytestmark = pytest.mark.above_stores


@pytest.fixture
def other(tmp_path: Path) -> Iterator[JournalKit]:
    """The journal of another server, whose clock is half a second ahead."""
    path = tmp_path / "other.db"
    write_journal(path)
    with closing(open_database(f"sqlite:///{path}", POOL_SIZE)) as database, closing(ServerWriter(database)) as writer:
        kit = JournalKit(database, writer)
        kit.clock.now += timedelta(seconds=0.5)
        yield kit


class Transfer:
    """Exports of an agent, as files and as the records that are read from them."""

    def __init__(self, folder: Path, agent: str = "alice") -> None:
        self.path = folder / f"{uuid.uuid4().hex}.jsonl"
        self.agent = agent

    def read(self, kit: JournalKit) -> list[ImportRecord]:
        """Export decisions and deletions, write them to a file as `cstp export` does, and read it."""
        lines, token = [], ""
        while True:
            page = kit.journal.export_page(self.agent, DecisionFilter(agent=self.agent), token)
            for item, provenance in page.items:
                assert provenance is not None
                lines.append(messages.DECISION.encode(item, provenance=messages.PROVENANCE.encode(provenance)))
            if not (token := page.next_token):
                break
        lines += map(messages.exported_deletion, kit.journal.export_deleted(self.agent, ""))
        if not lines:
            return []
        self.path.write_text("".join(json.dumps(json_codec.to_json(line)) + "\n" for line in lines))
        found = list(importing.read_records([self.path]))
        assert not [item for item in found if isinstance(item, importing.SkippedRecord)]
        encoded = [messages.IMPORT.encode(item.record) for item in found if isinstance(item, importing.ParsedRecord)]
        return [messages.IMPORT.decode(message) for message in encoded]

    def copy(self, origin: JournalKit, target: JournalKit) -> list[ImportAction]:
        """Import the export of one journal into another, and return the action on each record."""
        results = target.journal.import_batch(self.read(origin), self.agent, "request-1")
        return [result.action for result in results]

    def state(self, kit: JournalKit) -> dict[str, ImportRecord]:
        """What a journal exports, by id; the sources of files differ."""
        return {
            item.identity.id: replace(
                item, source="", links=SourceLinks(), identity=replace(item.identity, source=None)
            )
            for item in self.read(kit)
            if item.identity is not None
        }


@pytest.fixture
def transfer(tmp_path: Path) -> Transfer:
    return Transfer(tmp_path)


def state_of(kit: JournalKit, key: str, transfer: Transfer) -> ImportRecord:
    """The record that a journal exports of a decision."""
    (found,) = [item for item in transfer.read(kit) if item.identity is not None and item.identity.id == key]
    return found


def bring_one(kit: JournalKit, item: ImportRecord, caller: str = "alice", *, restore: bool = False) -> ImportAction:
    (result,) = kit.journal.import_batch([replace(item, restore_deleted=restore)], caller, "request-1")
    return result.action


class Actor:
    """An agent that changes its decisions in one of two journals."""

    def __init__(self, kit: JournalKit, agent: str, data: st.DataObject) -> None:
        self.kit, self.agent, self.data = kit, agent, data

    def act(self, name: str) -> None:
        page = self.kit.journal.export_page(self.agent, DecisionFilter(agent=self.agent), "")
        own = sorted(item.id for item, _ in page.items)
        journal, content = self.kit.journal, self.data.draw(contents)
        caller = (self.agent, "request-1")
        if name == "bring":
            sources = st.lists(st.sampled_from("ab"), unique=True, max_size=2).map(tuple)
            links = SourceLinks(superseded_by=self.data.draw(sources), relates_to=self.data.draw(sources))
            journal.import_batch([ImportRecord(self.data.draw(st.sampled_from("ab")), content, links)], *caller)
            return
        if name == "record" or not own:
            targets = self.data.draw(st.lists(st.sampled_from(own), max_size=2).map(tuple)) if own else ()
            journal.record(content, Links(supersedes=targets[:1], relates_to=targets), *caller)
            return
        key = self.data.draw(st.sampled_from(own))
        if name == "review":
            journal.review(key, self.data.draw(st.sampled_from(Outcome)), self.data.draw(st.none() | any_text), *caller)
        elif name == "update":
            journal.update(key, content, ["title", "tags", "context"], None, *caller)
        elif name == "link":
            added = Links(relates_to=tuple(set(self.data.draw(st.lists(st.sampled_from(own)))) - {key}))
            removed = Links(supersedes=tuple(own)) if self.data.draw(st.booleans()) else Links()
            journal.link(key, added, removed, *caller)
        elif name == "share":
            share = journal.share if self.data.draw(st.booleans()) else journal.unshare
            share(key, *caller)
        else:
            journal.delete(key, *caller)


slow = settings(
    max_examples=examples(100, least=8),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@slow
@given(data=st.data())
def test_another_journal_gets_the_same_decisions_and_a_second_import_changes_nothing(
    kit: JournalKit, other: JournalKit, tmp_path: Path, data: st.DataObject
) -> None:
    agent = f"alice-{uuid.uuid4().hex}"
    transfer = Transfer(tmp_path, agent)
    for _ in range(data.draw(st.integers(1, 2))):
        for name in data.draw(st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=8)):
            Actor(kit, agent, data).act(name)
        transfer.copy(kit, other)
        assert transfer.state(other) == transfer.state(kit)
        audited = len(other.trail.entries)
        actions = transfer.copy(kit, other)
        assert set(actions) <= {ImportAction.UNCHANGED}
        assert len(other.trail.entries) == audited
        assert set(transfer.copy(other, kit)) <= {ImportAction.UNCHANGED}


@slow
@given(data=st.data())
def test_two_journals_agree_on_what_neither_deleted(
    kit: JournalKit, other: JournalKit, tmp_path: Path, data: st.DataObject
) -> None:
    agent = f"alice-{uuid.uuid4().hex}"
    transfer = Transfer(tmp_path, agent)
    for _ in range(2):
        for name in data.draw(st.lists(st.sampled_from(ACTIONS), min_size=2, max_size=8)):
            Actor(data.draw(st.sampled_from([kit, other])), agent, data).act(name)
        for origin, target in ((kit, other), (other, kit), (kit, other)):
            transfer.copy(origin, target)
    first, second = transfer.state(kit), transfer.state(other)
    assert first.keys() == second.keys()
    kept = {key for key in first if not (is_deletion(first[key]) or is_deletion(second[key]))}
    for key in kept:
        assert comparable(first[key], kept) == comparable(second[key], kept)


def is_deletion(item: ImportRecord) -> bool:
    return item.identity is not None and item.identity.is_deleted


def comparable(item: ImportRecord, kept: set[str]) -> ImportRecord:
    """A state without what each journal has of its own: when it got it, and what follows from a deletion in one."""
    identity = item.identity
    assert identity is not None
    provenance = identity.provenance
    links = Links(*(tuple(key for key in getattr(provenance.links, kind) if key in kept) for kind in LinkType))
    superseded_by = tuple(key for key in provenance.superseded_by if key in kept)
    provenance = replace(provenance, recorded_date=None, reviews=(), links=links, superseded_by=superseded_by)
    # The status follows from links; what the decision states is in its provenance.
    content = replace(item.content, status=None)
    return replace(item, content=content, identity=replace(identity, provenance=provenance))


class TestMerging:
    def test_the_later_state_wins_and_the_former_content_stays(
        self, kit: JournalKit, other: JournalKit, transfer: Transfer
    ) -> None:
        key = record(kit, title="first").id
        transfer.copy(kit, other)
        other.journal.update(key, replace(WHOLE, title="there"), ["title"], None, "alice", "request-1")
        older = state_of(kit, key, transfer)
        assert bring_one(other, older) is ImportAction.OUTDATED
        assert other.journal.get(key, "alice").title == "there"
        kit.clock.now += timedelta(minutes=1)
        kit.journal.update(key, replace(WHOLE, title="here"), ["title"], None, "alice", "request-1")
        assert transfer.copy(kit, other) == [ImportAction.UPDATED]
        decision, history = other.journal.get_with_history(key, "alice")
        assert decision.title == "here"
        assert [item.content.title for item in history.former] == ["there", "first"]

    def test_a_change_is_later_than_the_state_that_it_changes_whatever_the_clock(
        self, kit: JournalKit, other: JournalKit, transfer: Transfer
    ) -> None:
        kit.clock.now += timedelta(hours=5)
        key = record(kit).id
        transfer.copy(kit, other)
        other.journal.update(key, replace(WHOLE, title="there"), ["title"], None, "alice", "request-1")
        assert transfer.copy(kit, other) == [ImportAction.OUTDATED]
        other.journal.import_batch([ImportRecord("a", WHOLE)], "alice", "request-1")
        other.journal.delete(key, "alice", "request-1")
        assert transfer.copy(other, kit)[-1] is ImportAction.ERASED

    def test_a_state_of_the_same_instant_that_differs_is_reported(
        self, kit: JournalKit, other: JournalKit, transfer: Transfer
    ) -> None:
        key = record(kit).id
        transfer.copy(kit, other)
        item = state_of(kit, key, transfer)
        assert bring_one(other, replace(item, content=replace(item.content, title="x"))) is ImportAction.OUTDATED
        assert other.journal.get(key, "alice").title == WHOLE.title

    def test_a_date_far_ahead_counts_as_one_of_tomorrow(
        self, kit: JournalKit, other: JournalKit, transfer: Transfer
    ) -> None:
        key = record(kit).id
        item = state_of(kit, key, transfer)
        assert item.identity is not None
        ahead = replace(item.identity.provenance, changed_date=datetime(9000, 1, 1, tzinfo=UTC))
        bring_one(other, replace(item, identity=replace(item.identity, provenance=ahead)))
        stored = state_of(other, key, transfer)
        assert stored.identity is not None
        assert stored.identity.provenance.changed_date <= other.clock.now + MAX_AHEAD

    def test_links_belong_to_the_decision_that_declares_them(
        self, kit: JournalKit, other: JournalKit, transfer: Transfer
    ) -> None:
        batch = [ImportRecord("new", WHOLE), ImportRecord("old", WHOLE, SourceLinks(superseded_by=("new", "later")))]
        new, old = kit.journal.import_batch(batch, "alice", "request-1")
        transfer.copy(kit, other)
        assert other.journal.get(new.decision_id, "alice").links.supersedes == (old.decision_id,)
        assert other.journal.get(old.decision_id, "alice").status is DecisionStatus.SUPERSEDED
        kit.journal.import_batch([replace(batch[1], links=SourceLinks())], "alice", "request-1")
        assert sorted(transfer.copy(kit, other)) == [ImportAction.UNCHANGED, ImportAction.UPDATED]
        assert other.journal.get(new.decision_id, "alice").links == Links()
        assert other.journal.get(old.decision_id, "alice").status is DecisionStatus.DECIDED

    def test_a_removed_link_is_a_change_of_the_decision_that_declared_it(
        self, kit: JournalKit, other: JournalKit, transfer: Transfer
    ) -> None:
        batch = [ImportRecord("new", WHOLE), ImportRecord("old", WHOLE, SourceLinks(superseded_by=("new",)))]
        new, old = kit.journal.import_batch(batch, "alice", "request-1")
        transfer.copy(kit, other)
        kit.journal.link(new.decision_id, Links(), Links(supersedes=(old.decision_id,)), "alice", "request-1")
        assert transfer.copy(kit, other) == [ImportAction.UPDATED] * 2
        assert other.journal.get(old.decision_id, "alice").status is DecisionStatus.DECIDED

    def test_a_link_to_a_decision_that_was_deleted_before_is_kept(
        self, kit: JournalKit, other: JournalKit, transfer: Transfer
    ) -> None:
        (gone,) = kit.journal.import_batch([ImportRecord("a", WHOLE)], "alice", "request-1")
        transfer.copy(kit, other)
        kit.journal.delete(gone.decision_id, "alice", "request-1")
        late = ImportRecord("b", WHOLE, SourceLinks(relates_to=("a",)))
        (kept,) = kit.journal.import_batch([late], "alice", "request-1")
        transfer.copy(kit, other)
        assert other.journal.get(kept.decision_id, "alice").links.relates_to == (gone.decision_id,)

    def test_reviews_come_with_their_reviewers(self, kit: JournalKit, other: JournalKit, transfer: Transfer) -> None:
        key = record(kit, visibility=Visibility.SHARED).id
        kit.journal.review(key, Outcome.FAILURE, "slow", "bob", "request-1")
        kit.journal.review(key, Outcome.SUCCESS, "", "alice", "request-1")
        transfer.copy(kit, other)
        transfer.copy(kit, other)
        decision, history = other.journal.get_with_history(key, "alice")
        assert (replace(decision, source=None), history) == kit.journal.get_with_history(key, "alice")

    def test_the_trail_says_where_a_state_comes_from(
        self, kit: JournalKit, other: JournalKit, transfer: Transfer
    ) -> None:
        kept, gone = record(kit).id, record(kit).id
        transfer.copy(kit, other)
        kit.journal.delete(gone, "alice", "request-1")
        transfer.copy(kit, other)
        imported = next(entry for entry in other.trail.entries if entry.decision_id == kept)
        deleted = other.trail.entries[-1]
        changed = kit.clock.now.date().isoformat()
        assert imported.event is AuditEvent.DECISION_IMPORTED
        assert f"(from {transfer.path}#{kept}, as of {changed}" in (imported.action or "")
        assert (deleted.event, deleted.decision_id) == (AuditEvent.DECISION_DELETED, gone)
        assert f"deleted in another journal (from {transfer.path}#{gone}, as of {changed}" in (deleted.action or "")
        assert WHOLE.title not in (deleted.action or "")


class TestDeletions:
    def test_a_deletion_deletes_the_decision_and_blocks_it(
        self, kit: JournalKit, other: JournalKit, transfer: Transfer
    ) -> None:
        key = record(kit).id
        item = state_of(kit, key, transfer)
        transfer.copy(kit, other)
        kit.journal.delete(key, "alice", "request-1")
        assert transfer.copy(kit, other) == [ImportAction.ERASED]
        assert (key in other.heard.rows, key in other.heard.erased) == (False, True)
        with pytest.raises(NotFound):
            other.journal.get(key, "alice")
        assert bring_one(other, item) is ImportAction.DELETED

    def test_a_deletion_blocks_a_decision_that_never_was_there(
        self, kit: JournalKit, other: JournalKit, transfer: Transfer
    ) -> None:
        key = record(kit).id
        item = state_of(kit, key, transfer)
        kit.journal.delete(key, "alice", "request-1")
        assert transfer.copy(kit, other) == [ImportAction.ERASED]
        assert transfer.copy(kit, other) == [ImportAction.UNCHANGED]
        assert bring_one(other, item) is ImportAction.DELETED

    def test_a_decision_that_was_changed_after_its_deletion_stays_and_is_reported(
        self, kit: JournalKit, other: JournalKit, transfer: Transfer
    ) -> None:
        key = record(kit).id
        transfer.copy(kit, other)
        kit.journal.delete(key, "alice", "request-1")
        other.clock.now += timedelta(minutes=1)
        other.journal.update(key, replace(WHOLE, title="needed"), ["title"], None, "alice", "request-1")
        assert transfer.copy(kit, other) == [ImportAction.OUTDATED]
        assert other.journal.get(key, "alice").title == "needed"
        assert transfer.copy(other, kit) == [ImportAction.DELETED]

    def test_a_restored_decision_survives_the_same_deletion(
        self, kit: JournalKit, other: JournalKit, transfer: Transfer
    ) -> None:
        key = record(kit).id
        item = state_of(kit, key, transfer)
        transfer.copy(kit, other)
        kit.journal.delete(key, "alice", "request-1")
        transfer.copy(kit, other)
        assert bring_one(other, item, restore=True) is ImportAction.IMPORTED
        assert transfer.copy(kit, other) == [ImportAction.OUTDATED]
        assert bring_one(other, item) is ImportAction.UNCHANGED
        assert other.journal.get(key, "alice").title == WHOLE.title

    @pytest.mark.parametrize("restore", [False, True])
    def test_a_decision_and_its_deletion_in_one_import_leave_the_deletion(
        self, kit: JournalKit, other: JournalKit, transfer: Transfer, restore: bool
    ) -> None:
        key = record(kit).id
        item = replace(state_of(kit, key, transfer), restore_deleted=restore)
        kit.journal.delete(key, "alice", "request-1")
        gone = state_of(kit, key, transfer)
        results = other.journal.import_batch([item, gone, item], "alice", "request-1")
        assert [result.action for result in results] == [
            ImportAction.IMPORTED,
            ImportAction.ERASED,
            ImportAction.DELETED,
        ]
        assert [item.id for item in other.journal.export_deleted("alice", "")] == [key]
        assert transfer.copy(kit, other) == [ImportAction.UNCHANGED]


class TestOwners:
    def test_the_id_of_another_agent_is_refused(self, kit: JournalKit, transfer: Transfer) -> None:
        key = record(kit, visibility=Visibility.SHARED).id
        item = state_of(kit, key, transfer)
        assert item.identity is not None
        later = replace(item.identity.provenance, changed_date=kit.clock.now + timedelta(hours=1))
        for identity in (
            replace(item.identity, provenance=later),
            DecisionIdentity(key, DecisionProvenance(later.changed_date), is_deleted=True),
        ):
            stolen = replace(item, content=replace(item.content, title="mine"), identity=identity)
            assert bring_one(kit, stolen, "bob", restore=True) is ImportAction.REFUSED
        assert kit.journal.get(key, "alice").title == WHOLE.title

    @pytest.mark.parametrize("erased", [False, True])
    def test_an_id_that_another_agent_or_an_erasure_deleted_is_not_restored(
        self, kit: JournalKit, transfer: Transfer, erased: bool
    ) -> None:
        key = record(kit).id
        item = state_of(kit, key, transfer)
        if erased:
            kit.journal.remove(RemovalFilter(agent="alice"), 10, "erased", "admin", "request-1", "erased-agent")
        else:
            kit.journal.delete(key, "alice", "request-1")
        caller = "alice" if erased else "bob"
        assert bring_one(kit, item, caller, restore=True) is ImportAction.DELETED
        with pytest.raises(NotFound):
            kit.journal.get(key, caller)
        assert not kit.journal.export_deleted(caller, "")

    def test_an_agent_whose_source_id_was_taken_changes_nothing_of_the_other(
        self, kit: JournalKit, transfer: Transfer
    ) -> None:
        (own,) = kit.journal.import_batch([ImportRecord("a", WHOLE)], "alice", "request-1")
        item = state_of(kit, own.decision_id, transfer)
        kit.journal.remove(RemovalFilter(agent="alice"), 10, "expired", "admin", "request-1")
        kit.writer.run(lambda unit_of_work: kit.history.remove_deleted(unit_of_work, [own.decision_id]))
        assert bring_one(kit, item, "bob") is ImportAction.IMPORTED
        assert bring_one(kit, ImportRecord("a", WHOLE)) is ImportAction.REFUSED
        assert kit.journal.get(own.decision_id, "bob").agent == "bob"
