"""The journal: what agents may record and read, on each kind of database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from sqlalchemy import text

from cstp_grpc.contract.enums import DecisionStatus, Outcome, Visibility
from cstp_grpc.contract.errors import Conflict, CstpError, NotFound, PermissionDenied, QueryFailed, Unavailable
from cstp_grpc.core.decisions.model import (
    DecisionFilter,
    Links,
    Reason,
    SourceLinks,
)
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.pagination import PageRequest
from tests.core.decisions.journals import WHOLE, JournalKit, bring, decision_status, plain, record

pytestmark = pytest.mark.above_stores


class TestRecording:
    def test_the_owner_reads_what_was_recorded(self, kit: JournalKit) -> None:
        recorded = record(kit, date=None)
        assert kit.journal.get(recorded.id, "alice") == recorded
        assert (recorded.agent, recorded.visibility) == ("alice", Visibility.PRIVATE)
        assert recorded.date == kit.clock.now
        assert (recorded.context, recorded.reasons) == (WHOLE.context, WHOLE.reasons)

    @pytest.mark.parametrize(
        ("stated", "outcome", "expected"),
        [
            (None, None, DecisionStatus.DECIDED),
            (None, Outcome.FAILURE, DecisionStatus.REVIEWED),
            (DecisionStatus.PROPOSED, None, DecisionStatus.PROPOSED),
            (DecisionStatus.SUPERSEDED, Outcome.SUCCESS, DecisionStatus.SUPERSEDED),
        ],
    )
    def test_the_status_follows_from_the_content(
        self, kit: JournalKit, stated: DecisionStatus | None, outcome: Outcome | None, expected: DecisionStatus
    ) -> None:
        recorded = record(kit, status=stated, outcome=outcome)
        assert recorded.status is expected
        assert recorded.reviewed_date is None

    def test_the_same_key_and_content_give_the_same_decision(self, kit: JournalKit) -> None:
        first = record(kit, key="key")
        kit.journal.review(first.id, Outcome.SUCCESS, None, "alice", "request-2")
        again = record(kit, key="key")
        assert again == kit.journal.get(first.id, "alice")
        assert [entry.event for entry in kit.trail.entries] == ["decision_recorded", "decision_reviewed"]
        assert len(kit.journal.page("alice", DecisionFilter(), PageRequest()).items) == 1

    def test_the_same_key_with_another_content_is_a_conflict(self, kit: JournalKit) -> None:
        first = record(kit, key="key")
        with pytest.raises(Conflict):
            record(kit, key="key", visibility=Visibility.SHARED)
        with pytest.raises(Conflict):
            kit.journal.record(WHOLE, Links(relates_to=(first.id,)), "alice", "request-1", "key")

    def test_keys_of_different_agents_do_not_meet(self, kit: JournalKit) -> None:
        assert record(kit, "alice", key="key").id != record(kit, "bob", key="key").id

    def test_without_a_key_each_recording_is_another_decision(self, kit: JournalKit) -> None:
        assert record(kit).id != record(kit).id

    def test_what_no_database_keeps_is_replaced(self, kit: JournalKit) -> None:
        recorded = record(kit, title="a\0b", context="\ud800", notes="", tags=("x", "x"), project="")
        assert (recorded.title, recorded.context) == ("a\ufffdb", "\ufffd")
        assert (recorded.notes, recorded.tags, recorded.project) == (None, ("x",), None)
        assert kit.journal.get(recorded.id, "alice") == recorded

    def test_those_that_it_supersedes_become_superseded(self, kit: JournalKit) -> None:
        old, theirs = record(kit), record(kit, "bob", visibility=Visibility.SHARED)
        links = Links(supersedes=(old.id, theirs.id, "dec-none"))
        new = kit.journal.record(WHOLE, links, "alice", "request-1")
        assert kit.journal.get(new.id, "alice").links.supersedes == tuple(sorted(links.supersedes))
        assert decision_status(kit, old.id) is DecisionStatus.SUPERSEDED
        assert decision_status(kit, theirs.id) is DecisionStatus.DECIDED
        assert kit.heard.rows[old.id].status is DecisionStatus.SUPERSEDED


class TestPrivacy:
    def test_a_private_decision_of_another_is_as_one_that_is_not_there(self, kit: JournalKit) -> None:
        hidden = record(kit).id

        def messages(decision_id: str) -> Iterator[tuple[type[CstpError], str]]:
            calls: list[Callable[[], object]] = [
                lambda: kit.journal.get(decision_id, "bob"),
                lambda: kit.journal.review(decision_id, Outcome.SUCCESS, "n", "bob", "request-2"),
                lambda: kit.journal.share(decision_id, "bob", "request-2"),
                lambda: kit.journal.unshare(decision_id, "bob", "request-2"),
            ]
            for call in calls:
                with pytest.raises(CstpError) as raised:
                    call()
                yield type(raised.value), raised.value.message.replace(decision_id, "ID")

        assert list(messages(hidden)) == list(messages("dec-none"))
        assert {kind for kind, _ in messages(hidden)} == {NotFound}
        assert kit.journal.page("bob", DecisionFilter(), PageRequest()).items == ()
        assert [entry.event for entry in kit.trail.entries] == ["decision_recorded"]

    def test_a_shared_decision_shows_others_nothing_private(self, kit: JournalKit) -> None:
        key = bring(kit, "docs/0001.md", SourceLinks(relates_to=("docs/0002.md",)), visibility=Visibility.SHARED)
        own = kit.journal.get(key, "alice")
        seen = kit.journal.get(key, "bob")
        assert (seen.context, seen.source) == (None, None)
        assert seen.reasons == (Reason("analysis", "", 0.5),)
        assert replace(seen, context=own.context, source=own.source, reasons=own.reasons, links=own.links) == own
        reviewed = kit.journal.review(key, Outcome.SUCCESS, None, "bob", "request-2")
        assert (reviewed.context, reviewed.source, reviewed.reasons) == (None, None, seen.reasons)

    def test_links_to_what_others_may_not_read_are_not_shown_to_them(self, kit: JournalKit) -> None:
        links = SourceLinks(relates_to=("docs/0002.md", "docs/missing.md"))
        shared = bring(kit, "docs/0001.md", links, visibility=Visibility.SHARED)
        target = bring(kit, "docs/0002.md")
        assert len(kit.journal.get(shared, "alice").links.relates_to) == 2

        def seen_by_bob() -> set[tuple[str, ...]]:
            (listed,) = (
                item for item in kit.journal.page("bob", DecisionFilter(), PageRequest()).items if item.id == shared
            )
            reviewed = kit.journal.review(shared, Outcome.SUCCESS, None, "bob", "request-2")
            got = kit.journal.get(shared, "bob")
            return {item.links.relates_to for item in (listed, reviewed, got)}

        assert seen_by_bob() == {()}
        kit.journal.share(target, "alice", "request-3")
        assert seen_by_bob() == {(target,)}

    def test_sharing_is_the_owners_alone(self, kit: JournalKit) -> None:
        key = record(kit, visibility=Visibility.SHARED).id
        for change in (kit.journal.share, kit.journal.unshare):
            with pytest.raises(PermissionDenied):
                change(key, "bob", "request-2")
        assert kit.journal.get(key, "bob").visibility is Visibility.SHARED

    def test_sharing_and_taking_it_back(self, kit: JournalKit) -> None:
        key = record(kit).id
        assert kit.journal.share(key, "alice", "request-2").visibility is Visibility.SHARED
        assert kit.journal.get(key, "bob").id == key
        assert kit.heard.rows[key].visibility is Visibility.SHARED
        assert kit.journal.unshare(key, "alice", "request-3").context == WHOLE.context
        assert kit.heard.rows[key].visibility is Visibility.PRIVATE
        with pytest.raises(NotFound):
            kit.journal.get(key, "bob")

    def test_sharing_what_is_shared_changes_nothing(self, kit: JournalKit) -> None:
        key = record(kit, visibility=Visibility.SHARED).id
        newest = kit.store.newest_revision()
        kit.journal.share(key, "alice", "request-2")
        assert [entry.event for entry in kit.trail.entries] == ["decision_recorded"]
        assert kit.store.newest_revision() == newest


class TestTheRest:
    def test_what_is_heard_is_what_is_stored(self, kit: JournalKit) -> None:
        key = record(kit, visibility=Visibility.SHARED).id
        kit.journal.review(key, Outcome.SUCCESS, None, "bob", "request-2")
        (row,) = kit.store.index_rows_of(kit.embedder.model, [key])
        assert plain(kit.heard.rows[key]) == plain(row)
        assert row.revision == kit.store.newest_revision()

    def test_a_change_that_the_trail_does_not_take_is_not_made(
        self, kit: JournalKit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(connection: object, event: object) -> None:
            raise Unavailable("no trail today")

        key = record(kit).id
        before, newest = kit.journal.get(key, "alice"), kit.store.newest_revision()
        monkeypatch.setattr(kit.trail, "append", refuse)
        writes: list[Callable[[], object]] = [
            lambda: record(kit),
            lambda: bring(kit, "a"),
            lambda: kit.journal.review(key, Outcome.SUCCESS, None, "alice", "request-2"),
            lambda: kit.journal.share(key, "alice", "request-2"),
        ]
        for write in writes:
            with pytest.raises(Unavailable):
                write()
        assert kit.journal.page("alice", DecisionFilter(), PageRequest()).items == (
            replace(before, context=None, reasons=(Reason("analysis", "", 0.5),)),
        )
        assert kit.store.newest_revision() == newest
        assert kit.heard.rows[key].visibility is Visibility.PRIVATE

    def test_an_answer_that_got_lost_is_heard_at_the_next_attempt(self, kit: JournalKit) -> None:
        first = record(kit, key="key")
        kit.heard.rows.clear()
        record(kit, key="key")
        assert set(kit.heard.rows) == {first.id}

    def test_a_database_that_does_not_answer(self, kit: JournalKit, database: Database) -> None:
        with database.engine.connect() as connection:
            connection.execute(text("ALTER TABLE decisions RENAME TO hidden_decisions"))
            connection.commit()
        with pytest.raises(QueryFailed):
            kit.journal.get("dec-none", "alice")
        # It reads the lesson before it writes.
        with pytest.raises(QueryFailed):
            kit.journal.review("dec-none", Outcome.SUCCESS, None, "alice", "request-2")
        writes: list[Callable[[], object]] = [
            lambda: record(kit),
            lambda: kit.journal.share("dec-none", "alice", "request-2"),
        ]
        for write in writes:
            with pytest.raises(Unavailable) as raised:
                write()
            assert "hidden" not in raised.value.message
            assert "decisions" not in raised.value.message
        assert kit.heard.rows == {}
