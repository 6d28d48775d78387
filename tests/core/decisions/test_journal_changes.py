"""The journal: reviewing, updating and deleting decisions, on each kind of database."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from cstp_grpc.contract.enums import DecisionStatus, Outcome, Visibility
from cstp_grpc.contract.errors import Conflict, InvalidArgument, NotFound, PermissionDenied
from cstp_grpc.core.decisions.model import (
    DecisionContent,
    DecisionFilter,
    DecisionReview,
    ImportAction,
    ImportRecord,
    Links,
    RemovalFilter,
    SourceLinks,
)
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.storage.unit_of_work import metadata
from tests.core.decisions.journals import WHOLE, JournalKit, bring, decision_status, record, update

pytestmark = pytest.mark.above_stores

NOON = datetime(2027, 1, 1, 12, tzinfo=UTC)


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
            page = kit.journal.page(caller, DecisionFilter(), PageRequest(), review_due=True)
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
        assert kit.journal.page("alice", DecisionFilter(), PageRequest(), review_due=True).items == ()

    def test_a_superseded_decision_stays_superseded(self, kit: JournalKit) -> None:
        stated = record(kit, status=DecisionStatus.SUPERSEDED).id
        linked = record(kit).id
        kit.journal.record(WHOLE, Links(supersedes=(linked,)), "alice", "request-1")
        for key in (stated, linked):
            reviewed = kit.journal.review(key, Outcome.SUCCESS, None, "alice", "request-2")
            assert (reviewed.status, reviewed.outcome) == (DecisionStatus.SUPERSEDED, Outcome.SUCCESS)


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
        count, newest = len(kit.trail.entries), kit.store.newest_revision()
        update(kit, key, category="process", revision=1)
        assert (len(kit.trail.entries), kit.store.newest_revision()) == (count, newest)

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
        assert kit.journal.page("alice", DecisionFilter(), PageRequest()).items == ()
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
        assert decision_status(kit, old.id) is DecisionStatus.DECIDED
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
        assert decision_status(kit, old) is DecisionStatus.DECIDED


class TestRemoving:
    @pytest.mark.contract("SqlDecisionStore.find_removable")
    def test_what_did_not_change_for_long_goes_whoever_it_belongs_to(self, kit: JournalKit) -> None:
        old, nodes = record(kit), record(kit, "intent-layer")
        since = kit.clock()
        kept = record(kit)
        conditions = RemovalFilter(except_agent="intent-layer", unchanged_since=since)
        assert kit.journal.remove(conditions, 10, "expired", "cstp", "") == 1
        assert kit.journal.remove(conditions, 10, "expired", "cstp", "") == 0
        with pytest.raises(NotFound):
            kit.journal.get(old.id, "alice")
        assert kit.journal.get(kept.id, "alice").id == kept.id
        assert kit.journal.get(nodes.id, "intent-layer").id == nodes.id
        assert kit.heard.erased.keys() == {old.id}

    def test_a_review_keeps_a_decision_longer(self, kit: JournalKit) -> None:
        key, since = record(kit).id, kit.clock()
        kit.journal.review(key, Outcome.SUCCESS, None, "alice", "request-2")
        assert kit.journal.remove(RemovalFilter(unchanged_since=since), 10, "expired", "cstp", "") == 0

    def test_nothing_of_the_content_is_left_of_it_nor_said_in_the_trail(
        self, kit: JournalKit, database: Database
    ) -> None:
        key = record(kit, title="a very private thing").id
        kit.journal.review(key, Outcome.FAILURE, "a very private lesson", "alice", "request-2")
        kit.trail.entries.clear()
        assert kit.journal.remove(RemovalFilter(agent="alice"), 10, "erased", "admin", "request-3", "(erased)") == 1
        (entry,) = kit.trail.entries
        assert (entry.event, entry.action, entry.decision_id) == ("decision_deleted", "erased", key)
        with database.engine.connect() as connection:
            for table in metadata.sorted_tables:
                rows = repr(connection.execute(table.select()).all())
                assert "private" not in rows, table.name
                assert "alice" not in rows, table.name

    def test_no_more_than_a_batch_goes_at_a_time(self, kit: JournalKit) -> None:
        for _ in range(3):
            record(kit)
        removed = [kit.journal.remove(RemovalFilter(agent="alice"), 2, "erased", "admin", "") for _ in range(3)]
        assert removed == [2, 1, 0]
