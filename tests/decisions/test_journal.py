"""The journal: what agents may do with decisions, on each kind of database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from sqlalchemy import text

from cstp_grpc.decisions.model import (
    Decision,
    DecisionContent,
    DecisionFilter,
    DecisionReview,
    ImportAction,
    ImportRecord,
    Links,
    Reason,
    SourceLinks,
)
from cstp_grpc.embedding.embedder import Vectors
from cstp_grpc.enums import DecisionStatus, Outcome, Visibility
from cstp_grpc.errors import Conflict, CstpError, InvalidArgument, NotFound, PermissionDenied, QueryFailed, Unavailable
from cstp_grpc.storage.database import Database, open_database
from cstp_grpc.storage.pagination import PageRequest
from cstp_grpc.storage.schema import metadata
from cstp_grpc.storage.writer import GroupCommitWriter
from tests.decisions.journals import JournalKit, plain

NOON = datetime(2027, 1, 1, 12, tzinfo=UTC)
WHOLE = DecisionContent(
    title="put jobs on a queue",
    context="the nightly run takes too long",
    notes="measure first",
    reasons=(Reason("analysis", "it scales", 0.5),),
    tags=("ops", "data"),
)


def record(kit: JournalKit, caller: str = "alice", key: str | None = None, **fields: Any) -> Decision:
    """Record a decision; `fields` are those of its content."""
    content = replace(WHOLE, **fields)
    return kit.journal.record(content, Links(), caller, "request-1", key)


def bring(kit: JournalKit, source: str, links: SourceLinks | None = None, caller: str = "alice", **fields: Any) -> str:
    """Import one decision and return its id."""
    content = replace(WHOLE, **fields)
    (result,) = kit.journal.import_batch([ImportRecord(source, content, links or SourceLinks())], caller, "request-1")
    return result.decision_id


def status(kit: JournalKit, decision_id: str) -> DecisionStatus:
    return kit.journal.get(decision_id, "alice").status


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
        assert len(kit.journal.list("alice", DecisionFilter(), PageRequest()).items) == 1

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
        assert status(kit, old.id) is DecisionStatus.SUPERSEDED
        assert status(kit, theirs.id) is DecisionStatus.DECIDED
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
        assert kit.journal.list("bob", DecisionFilter(), PageRequest()).items == ()
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
                item for item in kit.journal.list("bob", DecisionFilter(), PageRequest()).items if item.id == shared
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
        kit.journal.share(key, "alice", "request-2")
        assert [entry.event for entry in kit.trail.entries] == ["decision_recorded"]
        assert kit.outbox.depth() == 1


class TestReviewing:
    def test_a_review_sets_outcome_lesson_and_date(self, kit: JournalKit) -> None:
        key = record(kit).id
        reviewed = kit.journal.review(key, Outcome.PARTIAL, "start smaller", "alice", "request-2")
        assert (reviewed.status, reviewed.outcome) == (DecisionStatus.REVIEWED, Outcome.PARTIAL)
        assert (reviewed.notes, reviewed.reviewed_date) == ("start smaller", kit.clock.now)
        assert kit.journal.get(key, "alice") == reviewed
        assert kit.heard.rows[key].outcome is Outcome.PARTIAL

    def test_a_review_without_notes_keeps_the_lesson_and_an_empty_one_removes_it(self, kit: JournalKit) -> None:
        key = record(kit).id
        assert kit.journal.review(key, Outcome.SUCCESS, None, "alice", "request-2").notes == WHOLE.notes
        assert kit.journal.review(key, Outcome.SUCCESS, "", "alice", "request-2").notes is None

    def test_another_agent_reviews_what_it_may_read(self, kit: JournalKit) -> None:
        key = record(kit, visibility=Visibility.SHARED).id
        kit.journal.review(key, Outcome.FAILURE, "too slow", "bob", "request-2")
        assert kit.journal.get(key, "alice").notes == "too slow"
        entry = kit.trail.entries[-1]
        assert (entry.event, entry.requesting_agent) == ("decision_reviewed", "bob")
        assert (entry.request_id, entry.action) == ("request-2", WHOLE.title)

    def test_the_latest_review_counts_and_the_earlier_ones_stay(self, kit: JournalKit) -> None:
        key = record(kit, confidence=0.9, visibility=Visibility.SHARED).id
        first = kit.journal.review(key, Outcome.SUCCESS, None, "alice", "request-2")
        second = kit.journal.review(key, Outcome.FAILURE, "it broke in March", "bob", "request-3")
        seen, history = kit.journal.get_with_history(key, "bob")
        assert (seen.outcome, seen.notes) == (Outcome.FAILURE, "it broke in March")
        assert history.review_count == 2
        assert first.reviewed_date is not None
        assert second.reviewed_date is not None
        assert history.reviews == (
            DecisionReview("bob", Outcome.FAILURE, second.reviewed_date, "it broke in March", 0.9),
            DecisionReview("alice", Outcome.SUCCESS, first.reviewed_date, WHOLE.notes, 0.9),
        )

    def test_a_review_under_a_known_key_is_a_repetition(self, kit: JournalKit) -> None:
        key = record(kit, visibility=Visibility.SHARED).id
        first = kit.journal.review(key, Outcome.PARTIAL, "slow", "alice", "request-2", "key")
        count = len(kit.trail.entries)
        assert kit.journal.review(key, Outcome.PARTIAL, "slow", "alice", "request-3", "key") == first
        assert len(kit.trail.entries) == count
        for outcome, notes in ((Outcome.SUCCESS, "slow"), (Outcome.PARTIAL, "fast")):
            with pytest.raises(Conflict):
                kit.journal.review(key, outcome, notes, "alice", "request-4", "key")
        kit.journal.review(key, Outcome.SUCCESS, None, "bob", "request-5", "key")
        assert kit.journal.get_with_history(key, "alice")[1].review_count == 2

    def test_a_history_is_cut_to_the_latest_reviews(self, kit: JournalKit) -> None:
        key = record(kit).id
        for number in range(52):
            kit.journal.review(key, Outcome.SUCCESS, f"lesson {number}", "alice", "request-2")
        history = kit.journal.get_with_history(key, "alice")[1]
        assert [review.notes for review in history.reviews] == [f"lesson {number}" for number in range(51, 1, -1)]
        assert history.review_count == 52

    def test_a_decision_is_due_until_it_is_reviewed_after_its_date(self, kit: JournalKit) -> None:
        def due(caller: str = "alice") -> list[str]:
            page = kit.journal.list(caller, DecisionFilter(), PageRequest(), review_due=True)
            return [item.id for item in page.items]

        now = kit.clock.now
        soon = record(kit, review_by=now + timedelta(hours=1), visibility=Visibility.SHARED)
        record(kit, review_by=now + timedelta(days=1))
        assert due() == []
        assert kit.journal.review(soon.id, Outcome.SUCCESS, None, "alice", "request-2").review_by == soon.review_by
        kit.clock.now = now + timedelta(hours=2)
        assert (due(), due("bob")) == ([soon.id], [])
        assert kit.journal.get(soon.id, "bob").review_by is None
        kit.journal.review(soon.id, Outcome.SUCCESS, None, "bob", "request-3")
        assert due() == []

    def test_what_was_superseded_needs_no_review(self, kit: JournalKit) -> None:
        old = record(kit, review_by=kit.clock.now)
        kit.journal.record(WHOLE, Links(supersedes=(old.id,)), "alice", "request-2")
        assert kit.journal.list("alice", DecisionFilter(), PageRequest(), review_due=True).items == ()

    def test_a_superseded_decision_stays_superseded(self, kit: JournalKit) -> None:
        stated = record(kit, status=DecisionStatus.SUPERSEDED).id
        linked = record(kit).id
        kit.journal.record(WHOLE, Links(supersedes=(linked,)), "alice", "request-1")
        for key in (stated, linked):
            reviewed = kit.journal.review(key, Outcome.SUCCESS, None, "alice", "request-2")
            assert (reviewed.status, reviewed.outcome) == (DecisionStatus.SUPERSEDED, Outcome.SUCCESS)


def update(kit: JournalKit, key: str, *names: str, revision: int | None = None, **fields: Any) -> Decision:
    """Update a decision of alice's; `fields` are those of its content, which are set, and `names` others."""
    content = replace(DecisionContent(title=""), **fields)
    return kit.journal.update(key, content, [*fields, *names], revision, "alice", "request-2")[0]


class TestUpdating:
    def test_only_named_fields_change_and_the_former_content_is_kept(self, kit: JournalKit) -> None:
        before = record(kit, category="process", confidence=0.5)
        after = update(kit, before.id, "category", title="put mail on a queue", tags=("mail",))
        assert after == replace(before, title="put mail on a queue", tags=("mail",), category=None)
        shown, history = kit.journal.get_with_history(before.id, "alice")
        assert (shown, history.revision) == (after, 2)
        (former,) = history.former
        assert (former.revision, former.replaced_at, former.content.title) == (1, kit.clock.now, before.title)
        assert (former.content.category, former.content.tags) == ("process", before.tags)
        event = kit.trail.entries[-1]
        assert (event.event, event.action) == ("decision_updated", "put mail on a queue")

    def test_searches_find_the_new_text(self, kit: JournalKit) -> None:
        key = record(kit).id
        update(kit, key, title="drop the cache", context="it is stale")
        expected = kit.embedder.embed(["drop the cache\nit is stale"])[0]
        np.testing.assert_array_equal(kit.heard.rows[key].vector, expected)

    def test_other_fields_leave_the_vector_alone(self, kit: JournalKit) -> None:
        key = record(kit).id
        count = len(kit.embedder.texts)
        update(kit, key, category="process")
        assert len(kit.embedder.texts) == count
        assert kit.heard.rows[key].category == "process"

    def test_an_update_that_changes_nothing_makes_no_revision(self, kit: JournalKit) -> None:
        key = record(kit).id
        update(kit, key, category="process")
        count, depth = len(kit.trail.entries), kit.outbox.depth()
        update(kit, key, category="process", revision=1)
        assert (len(kit.trail.entries), kit.outbox.depth()) == (count, depth)

    def test_a_revision_that_is_not_the_expected_one_is_a_conflict(self, kit: JournalKit) -> None:
        key = record(kit).id
        update(kit, key, category="process", revision=1)
        with pytest.raises(Conflict, match="is 2, not 1"):
            update(kit, key, category="architecture", revision=1)
        assert update(kit, key, category="architecture", revision=2).category == "architecture"

    def test_required_and_unknown_fields_are_refused(self, kit: JournalKit) -> None:
        key = record(kit).id
        for name in ("title", "date", "status", "visibility", "outcome", "nonsense"):
            with pytest.raises(InvalidArgument):
                update(kit, key, name)
        assert kit.journal.get_with_history(key, "alice")[1].revision == 1

    def test_a_review_counts_more_than_an_updated_status(self, kit: JournalKit) -> None:
        proposed = record(kit, status=DecisionStatus.PROPOSED).id
        assert update(kit, proposed, status=DecisionStatus.DECIDED).status is DecisionStatus.DECIDED
        kit.journal.review(proposed, Outcome.SUCCESS, None, "alice", "request-3")
        assert update(kit, proposed, status=DecisionStatus.PROPOSED).status is DecisionStatus.REVIEWED

    def test_others_see_the_new_content_and_no_former_one(self, kit: JournalKit) -> None:
        key = record(kit, visibility=Visibility.SHARED).id
        update(kit, key, title="put mail on a queue")
        shown, history = kit.journal.get_with_history(key, "bob")
        assert (shown.title, history.revision, history.former) == ("put mail on a queue", 2, ())
        with pytest.raises(PermissionDenied):
            kit.journal.update(key, DecisionContent("mine"), ["title"], None, "bob", "request-2")

    def test_large_former_contents_are_left_out(self, kit: JournalKit) -> None:
        key = record(kit, context="c" * 200_000).id
        for number in range(4):
            update(kit, key, title=f"title {number}")
        history = kit.journal.get_with_history(key, "alice")[1]
        assert ([former.revision for former in history.former], history.revision) == ([4, 3], 5)

    def test_an_import_keeps_the_former_content_and_wins_only_if_its_source_changed(self, kit: JournalKit) -> None:
        key = bring(kit, "a")
        update(kit, key, title="my own words")
        bring(kit, "a")
        assert kit.journal.get(key, "alice").title == "my own words"
        bring(kit, "a", title="from the source")
        shown, history = kit.journal.get_with_history(key, "alice")
        assert (shown.title, history.revision) == ("from the source", 3)
        assert [former.content.title for former in history.former] == ["my own words", WHOLE.title]


class TestDeleting:
    def test_nothing_of_a_deleted_decision_is_left_but_its_id(self, kit: JournalKit, database: Database) -> None:
        key = record(kit, title="secret title", context="secret", tags=("secret",), key="key", review_by=NOON).id
        update(kit, key, category="secret")
        kit.journal.review(key, Outcome.SUCCESS, "secret", "alice", "request-3")
        deleted = kit.journal.delete(key, "alice", "request-4")
        assert (deleted.id, deleted.agent, deleted.deleted_at) == (key, "alice", kit.clock.now)
        with pytest.raises(NotFound):
            kit.journal.get(key, "alice")
        assert kit.journal.list("alice", DecisionFilter(), PageRequest()).items == ()
        assert key not in kit.heard.rows
        assert kit.store.get_readable([key], "alice", DecisionFilter()) == {}
        with database.engine.connect() as connection:
            for table in metadata.sorted_tables:
                assert "secret" not in str(connection.execute(table.select()).all()), table.name
        assert (kit.trail.entries[-1].event, kit.trail.entries[-1].decision_id) == ("decision_deleted", key)

    def test_deleting_again_changes_nothing(self, kit: JournalKit) -> None:
        key = record(kit).id
        first = kit.journal.delete(key, "alice", "request-2")
        count = len(kit.trail.entries)
        assert kit.journal.delete(key, "alice", "request-3") == first
        assert len(kit.trail.entries) == count

    def test_only_the_owner_deletes(self, kit: JournalKit) -> None:
        private, shared = record(kit).id, record(kit, visibility=Visibility.SHARED).id
        for key, error in ((private, NotFound), (shared, PermissionDenied), ("dec-none", NotFound)):
            with pytest.raises(error):
                kit.journal.delete(key, "bob", "request-2")
        kit.journal.delete(shared, "alice", "request-3")
        with pytest.raises(NotFound):
            kit.journal.delete(shared, "bob", "request-4")

    def test_links_to_it_are_gone_and_what_it_superseded_counts_again(self, kit: JournalKit) -> None:
        old = record(kit)
        new = kit.journal.record(WHOLE, Links(supersedes=(old.id,)), "alice", "request-1")
        third = kit.journal.record(WHOLE, Links(depends_on=(new.id, old.id)), "alice", "request-1")
        kit.journal.delete(new.id, "alice", "request-2")
        assert status(kit, old.id) is DecisionStatus.DECIDED
        assert kit.heard.rows[old.id].status is DecisionStatus.DECIDED
        assert kit.journal.get(third.id, "alice").links == Links(depends_on=(old.id,))

    def test_recording_it_again_under_its_key_is_a_conflict(self, kit: JournalKit) -> None:
        key = record(kit, key="key").id
        kit.journal.delete(key, "alice", "request-2")
        with pytest.raises(Conflict):
            record(kit, key="key")
        assert record(kit, "bob", key="key").agent == "bob"

    def test_an_import_does_not_bring_it_back_unless_told_to(self, kit: JournalKit) -> None:
        key = bring(kit, "a")
        kit.journal.delete(key, "alice", "request-2")
        again = ImportRecord("a", replace(WHOLE, title="changed"))
        (result,) = kit.journal.import_batch([again], "alice", "request-3")
        assert (result.action, result.decision_id) == (ImportAction.DELETED, key)
        with pytest.raises(NotFound):
            kit.journal.get(key, "alice")
        (result,) = kit.journal.import_batch([replace(again, restore_deleted=True)], "alice", "request-4")
        assert result.action is ImportAction.IMPORTED
        shown, history = kit.journal.get_with_history(key, "alice")
        assert (shown.title, history.revision, history.review_count) == ("changed", 1, 0)
        assert kit.heard.rows[key].revision > kit.heard.erased[key]

    @pytest.mark.parametrize("order", [["old", "new", "other"], ["new", "other", "old"]])
    def test_an_import_that_brings_it_back_brings_back_the_links_of_unchanged_records(
        self, kit: JournalKit, order: list[str]
    ) -> None:
        """Also those of records in other batches, before or after."""
        records = {
            "old": ImportRecord("old", WHOLE, restore_deleted=True),
            "new": ImportRecord("new", WHOLE, SourceLinks(supersedes=("old",)), restore_deleted=True),
            "other": ImportRecord("other", WHOLE, SourceLinks(relates_to=("old", "new")), restore_deleted=True),
        }
        ids = {}
        for name in order:
            (result,) = kit.journal.import_batch([records[name]], "alice", "request-1")
            ids[name] = result.decision_id

        def linked() -> dict[str, tuple[Links, DecisionStatus]]:
            found = {name: kit.journal.get(key, "alice") for name, key in ids.items()}
            return {name: (item.links, item.status) for name, item in found.items()}

        before = linked()
        assert before["old"] == (Links(), DecisionStatus.SUPERSEDED)
        foreign = kit.journal.record(WHOLE, Links(), "bob", "request-2").id
        kit.journal.share(ids["old"], "alice", "request-2")
        kit.journal.link(foreign, Links(depends_on=(ids["old"],)), Links(), "bob", "request-2")

        kit.journal.delete(ids["old"], "alice", "request-3")
        assert kit.journal.get(ids["new"], "alice").links == Links()
        for name in order:
            kit.journal.import_batch([records[name]], "alice", "request-4")

        assert linked() == before
        assert kit.heard.rows[ids["old"]].status is DecisionStatus.SUPERSEDED
        # Another agent's link is gone for good, as everything that was said of what was deleted.
        assert kit.journal.get(foreign, "bob").links == Links()

    def test_links_that_a_record_no_longer_has_do_not_come_back(self, kit: JournalKit) -> None:
        bring(kit, "old")
        new = ImportRecord("new", WHOLE, SourceLinks(supersedes=("old",)))
        (result,) = kit.journal.import_batch([new], "alice", "request-1")
        old = kit.journal.get(result.decision_id, "alice").links.supersedes[0]
        kit.journal.delete(old, "alice", "request-2")
        kit.journal.import_batch([replace(new, links=SourceLinks())], "alice", "request-3")
        kit.journal.import_batch([ImportRecord("old", WHOLE, restore_deleted=True)], "alice", "request-4")
        assert kit.journal.get(result.decision_id, "alice").links == Links()
        assert status(kit, old) is DecisionStatus.DECIDED


class TestImporting:
    def test_the_same_source_and_content_change_nothing(self, kit: JournalKit) -> None:
        batch = [ImportRecord("a", WHOLE, SourceLinks(relates_to=("b", "c"))), ImportRecord("b", WHOLE)]
        first = kit.journal.import_batch(batch, "alice", "request-1")
        before = [kit.journal.get(result.decision_id, "alice") for result in first]
        texts, depth = list(kit.embedder.texts), kit.outbox.depth()
        batch[0] = replace(batch[0], links=SourceLinks(relates_to=("c", "b", "c")))
        second = kit.journal.import_batch(batch, "alice", "request-2")
        assert [result.action for result in first] == [ImportAction.IMPORTED] * 2
        assert [result.action for result in second] == [ImportAction.UNCHANGED] * 2
        assert [result.decision_id for result in first] == [result.decision_id for result in second]
        assert [kit.journal.get(result.decision_id, "alice") for result in first] == before
        assert (kit.embedder.texts, kit.outbox.depth()) == (texts, depth)
        assert len(kit.trail.entries) == 2

    def test_a_source_is_another_decision_for_another_agent(self, kit: JournalKit) -> None:
        assert bring(kit, "a", caller="alice") != bring(kit, "a", caller="bob")

    def test_changed_content_updates_the_decision(self, kit: JournalKit) -> None:
        key = bring(kit, "a", date=datetime(2025, 5, 1, tzinfo=UTC))
        assert bring(kit, "a", title="new title", tags=("api",), context=None) == key
        after = kit.journal.get(key, "alice")
        assert (after.title, after.tags, after.context) == ("new title", ("api",), None)
        assert (after.date, after.source) == (datetime(2025, 5, 1, tzinfo=UTC), "a")
        np.testing.assert_array_equal(kit.heard.rows[key].vector, kit.embedder.embed(["new title"])[0])

    def test_a_vector_is_kept_while_its_text_is_the_same(self, kit: JournalKit) -> None:
        key = bring(kit, "a", context="c" * 5000)
        vectors = kit.heard.rows[key].passages.vectors
        count = len(kit.embedder.texts)
        bring(kit, "a", context="c" * 5000, category="process")
        assert len(kit.embedder.texts) == count
        assert kit.heard.rows[key].category == "process"
        np.testing.assert_array_equal(kit.heard.rows[key].passages.vectors, vectors)

    def test_a_review_gives_a_decision_the_vector_and_the_words_of_its_lesson(self, kit: JournalKit) -> None:
        key = record(kit, notes=None).id
        before = kit.heard.rows[key]
        kit.journal.review(key, Outcome.FAILURE, "clock skew", "alice", "request-2")
        after = kit.heard.rows[key]
        assert (before.passages.has_lesson, after.passages.has_lesson) == (False, True)
        lesson = kit.embedder.embed([f"{WHOLE.title}\nfailure: clock skew"])[0]
        np.testing.assert_array_equal(after.passages.vectors, [*before.passages.vectors, lesson])
        assert set(before.terms["hash"]) < set(after.terms["hash"])
        kit.journal.review(key, Outcome.FAILURE, "", "alice", "request-3")
        np.testing.assert_array_equal(kit.heard.rows[key].passages.vectors, before.passages.vectors)

    def test_what_older_rules_made_is_made_anew_and_nothing_else_changes(self, kit: JournalKit) -> None:
        decision = record(kit)
        before = kit.heard.rows[decision.id]
        entries = len(kit.trail.entries)
        kit.journal.refresh_passages([decision])
        after = kit.heard.rows[decision.id]
        assert after.revision > before.revision
        assert plain(replace(after, revision=before.revision)) == plain(before)
        assert kit.journal.get(decision.id, "alice") == decision
        assert len(kit.trail.entries) == entries

    def test_a_vector_is_that_of_the_text_where_another_import_came_between(
        self, kit: JournalKit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        key = bring(kit, "a")
        embed = kit.embedder.embed

        def interrupted(texts: Sequence[str]) -> Vectors:
            monkeypatch.undo()
            bring(kit, "a", title="another title")
            return embed(texts)

        monkeypatch.setattr(kit.embedder, "embed", interrupted)
        batch = [ImportRecord("a", replace(WHOLE, category="process")), ImportRecord("b", replace(WHOLE, title="b"))]
        kit.journal.import_batch(batch, "alice", "request-2")
        assert kit.journal.get(key, "alice").title == WHOLE.title
        np.testing.assert_array_equal(kit.heard.rows[key].vector, embed([f"{WHOLE.title}\n{WHOLE.context}"])[0])

    def test_a_source_twice_in_a_batch_is_updated_by_the_later(self, kit: JournalKit) -> None:
        other = replace(WHOLE, title="later", visibility=Visibility.SHARED)
        batch = [ImportRecord("a", WHOLE), ImportRecord("a", other), ImportRecord("a", other)]
        results = kit.journal.import_batch(batch, "alice", "request-1")
        assert [result.action for result in results] == [
            ImportAction.IMPORTED,
            ImportAction.UPDATED,
            ImportAction.UNCHANGED,
        ]
        decision = kit.journal.get(results[0].decision_id, "alice")
        assert (decision.title, decision.visibility) == ("later", Visibility.PRIVATE)
        assert {result.decision_id for result in results} == {decision.id}

    def test_the_visibility_of_the_first_import_counts_until_the_owner_changes_it(self, kit: JournalKit) -> None:
        private, shared = bring(kit, "a"), bring(kit, "b", visibility=Visibility.SHARED)
        kit.journal.share(private, "alice", "request-2")
        kit.journal.unshare(shared, "alice", "request-2")
        bring(kit, "a", title="new title")
        bring(kit, "b", title="new title", visibility=Visibility.SHARED)
        assert kit.journal.get(private, "alice").visibility is Visibility.SHARED
        assert kit.journal.get(shared, "alice").visibility is Visibility.PRIVATE

    def test_a_review_outlasts_an_update_that_states_no_outcome(self, kit: JournalKit) -> None:
        key = bring(kit, "a")
        kit.journal.review(key, Outcome.FAILURE, "too slow", "alice", "request-2")
        at = kit.clock.now
        bring(kit, "a", title="new title", notes="from the source")
        after = kit.journal.get(key, "alice")
        assert (after.title, after.status) == ("new title", DecisionStatus.REVIEWED)
        assert (after.outcome, after.notes, after.reviewed_date) == (Outcome.FAILURE, "too slow", at)

    def test_an_outcome_of_the_source_replaces_a_review(self, kit: JournalKit) -> None:
        key = bring(kit, "a")
        kit.journal.review(key, Outcome.FAILURE, "too slow", "alice", "request-2")
        bring(kit, "a", outcome=Outcome.SUCCESS, notes="from the source")
        after = kit.journal.get(key, "alice")
        assert (after.outcome, after.notes, after.reviewed_date) == (Outcome.SUCCESS, "from the source", None)

    @pytest.mark.parametrize("order", [("old", "new"), ("new", "old")])
    @pytest.mark.parametrize("told_by", ["old", "new"])
    @pytest.mark.parametrize("together", [True, False])
    def test_a_superseding_link_counts_in_whatever_order_the_two_come(
        self, kit: JournalKit, order: tuple[str, str], told_by: str, together: bool
    ) -> None:
        links = {
            "old": SourceLinks(superseded_by=("new",)) if told_by == "old" else SourceLinks(),
            "new": SourceLinks(supersedes=("old",)) if told_by == "new" else SourceLinks(),
        }
        batch = [ImportRecord(source, WHOLE, links[source]) for source in order]
        batches = [batch] if together else [[item] for item in batch]
        results = [item for part in batches for item in kit.journal.import_batch(part, "alice", "request-1")]
        ids = {result.source: result.decision_id for result in results}
        assert status(kit, ids["old"]) is DecisionStatus.SUPERSEDED
        assert status(kit, ids["new"]) is DecisionStatus.DECIDED
        assert kit.journal.get(ids["new"], "alice").links.supersedes == (ids["old"],)
        assert kit.heard.rows[ids["old"]].status is DecisionStatus.SUPERSEDED

    def test_a_link_that_the_source_no_longer_states_is_gone_with_its_effect(self, kit: JournalKit) -> None:
        old = bring(kit, "old")
        new = bring(kit, "new", SourceLinks(supersedes=("old",)))
        bring(kit, "new")
        assert status(kit, old) is DecisionStatus.DECIDED
        assert kit.journal.get(new, "alice").links == Links()
        assert kit.heard.rows[old].status is DecisionStatus.DECIDED

    def test_a_decision_does_not_supersede_itself(self, kit: JournalKit) -> None:
        key = bring(kit, "a", SourceLinks(supersedes=("a",), superseded_by=("a",), relates_to=("a",)))
        decision = kit.journal.get(key, "alice")
        assert (decision.status, decision.links) == (DecisionStatus.DECIDED, Links())

    def test_an_empty_batch_is_nothing(self, kit: JournalKit) -> None:
        assert list(kit.journal.import_batch([], "alice", "request-1")) == []
        assert kit.trail.entries == []

    def test_a_batch_whose_texts_cannot_be_embedded_leaves_no_trace(
        self, kit: JournalKit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(texts: object) -> object:
            raise QueryFailed("no vectors today")

        monkeypatch.setattr(kit.embedder, "embed", refuse)
        with pytest.raises(QueryFailed):
            bring(kit, "a")
        with pytest.raises(QueryFailed):
            record(kit)
        assert kit.journal.list("alice", DecisionFilter(), PageRequest()).items == ()


class TestTogether:
    """Several callers, and several servers on one database."""

    @pytest.fixture
    def servers(self, database_url: str) -> Iterator[list[JournalKit]]:
        """Two journals, each with connections and a writer of its own."""
        with ExitStack() as opened:
            kits = []
            for _ in range(2):
                database = open_database(database_url, 4)
                opened.callback(database.close)
                writer = GroupCommitWriter(database, timeout=30.0)
                opened.callback(writer.close)
                kits.append(JournalKit(database, writer))
            yield kits

    def test_calls_with_one_key_at_once_give_one_decision(self, servers: list[JournalKit]) -> None:
        for attempt in range(5):
            barrier = threading.Barrier(8)

            def call(number: int, key: str = f"key-{attempt}", barrier: threading.Barrier = barrier) -> Decision:
                barrier.wait(10)
                return record(servers[number % 2], key=key)

            with ThreadPoolExecutor(8) as pool:
                answers = list(pool.map(call, range(8)))
            assert len({answer.id for answer in answers}) == 1
        listed = servers[0].journal.list("alice", DecisionFilter(), PageRequest()).items
        assert len(listed) == 5
        recorded = [entry for kit in servers for entry in kit.trail.entries]
        assert sorted(str(entry.decision_id) for entry in recorded) == sorted(item.id for item in listed)
        for kit in servers:
            assert set(kit.heard.rows) == {item.id for item in listed}

    def test_of_calls_with_one_key_and_other_contents_one_wins(self, servers: list[JournalKit]) -> None:
        barrier = threading.Barrier(6)

        def call(number: int) -> Decision | Conflict:
            barrier.wait(10)
            try:
                return record(servers[number % 2], key="key", title=f"title {number}")
            except Conflict as conflict:
                return conflict

        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(call, range(6)))
        assert sum(isinstance(answer, Decision) for answer in answers) == 1
        assert len(servers[0].journal.list("alice", DecisionFilter(), PageRequest()).items) == 1

    def test_imports_of_one_source_at_once_end_as_one_decision(self, servers: list[JournalKit]) -> None:
        barrier = threading.Barrier(6)

        def call(number: int) -> list[ImportAction]:
            barrier.wait(10)
            order = [f"s{index}" for index in range(10)]
            batch = [ImportRecord(source, WHOLE) for source in (order if number % 2 else order[::-1])]
            results = servers[number % 2].journal.import_batch(batch, "alice", "request-1")
            return [result.action for result in results]

        with ThreadPoolExecutor(6) as pool:
            actions = [action for answer in pool.map(call, range(6)) for action in answer]
        assert actions.count(ImportAction.IMPORTED) == 10
        assert actions.count(ImportAction.UNCHANGED) == 50
        assert len(servers[0].journal.list("alice", DecisionFilter(), PageRequest()).items) == 10

    def test_changes_of_one_decision_at_once_all_count(self, servers: list[JournalKit]) -> None:
        key = bring(servers[0], "a")
        barrier = threading.Barrier(6)

        def call(number: int) -> None:
            barrier.wait(10)
            kit = servers[number % 2]
            if number < 2:
                kit.journal.review(key, Outcome.SUCCESS, "lesson", "alice", "request-2")
            elif number < 4:
                kit.journal.share(key, "alice", "request-2")
            else:
                bring(kit, "a", title="new title")

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(call, range(6)))
        after = servers[0].journal.get(key, "alice")
        assert (after.outcome, after.notes) == (Outcome.SUCCESS, "lesson")
        assert (after.title, after.visibility) == ("new title", Visibility.SHARED)
        (row,) = servers[0].store.index_rows_of(servers[0].embedder.model, [key])
        np.testing.assert_array_equal(row.vector, servers[0].embedder.embed([f"new title\n{WHOLE.context}"])[0])


class TestTheRest:
    @pytest.mark.contract("SqlChangeLog.peek")
    def test_what_is_heard_is_what_is_stored(self, kit: JournalKit) -> None:
        key = record(kit, visibility=Visibility.SHARED).id
        kit.journal.review(key, Outcome.SUCCESS, None, "bob", "request-2")
        (row,) = kit.store.index_rows_of(kit.embedder.model, [key])
        assert plain(kit.heard.rows[key]) == plain(row)
        assert row.revision == max(entry.seq for entry in kit.outbox.peek(10))

    @pytest.mark.contract("SqlChangeLog.depth")
    def test_a_change_that_the_trail_does_not_take_is_not_made(
        self, kit: JournalKit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(connection: object, event: object) -> None:
            raise Unavailable("no trail today")

        key = record(kit).id
        before = kit.journal.get(key, "alice")
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
        assert kit.journal.list("alice", DecisionFilter(), PageRequest()).items == (
            replace(before, context=None, reasons=(Reason("analysis", "", 0.5),)),
        )
        assert kit.outbox.depth() == 1
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
