"""The journal: importing decisions, on each kind of database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from cstp_grpc.contract.enums import DecisionStatus, Outcome, Visibility
from cstp_grpc.contract.errors import QueryFailed
from cstp_grpc.core.decisions.model import (
    DecisionFilter,
    ImportAction,
    ImportRecord,
    Links,
    SourceLinks,
)
from cstp_grpc.platform.embedding.embedder import Vectors
from cstp_grpc.platform.storage.pagination import PageRequest
from tests.core.decisions.journals import WHOLE, JournalKit, bring, decision_status, plain, record

pytestmark = pytest.mark.above_stores


class TestImporting:
    def test_the_same_source_and_content_change_nothing(self, kit: JournalKit) -> None:
        batch = [ImportRecord("a", WHOLE, SourceLinks(relates_to=("b", "c"))), ImportRecord("b", WHOLE)]
        first = kit.journal.import_batch(batch, "alice", "request-1")
        before = [kit.journal.get(result.decision_id, "alice") for result in first]
        texts, newest = list(kit.embedder.texts), kit.store.newest_revision()
        batch[0] = replace(batch[0], links=SourceLinks(relates_to=("c", "b", "c")))
        second = kit.journal.import_batch(batch, "alice", "request-2")
        assert [result.action for result in first] == [ImportAction.IMPORTED] * 2
        assert [result.action for result in second] == [ImportAction.UNCHANGED] * 2
        assert [result.decision_id for result in first] == [result.decision_id for result in second]
        assert [kit.journal.get(result.decision_id, "alice") for result in first] == before
        assert (kit.embedder.texts, kit.store.newest_revision()) == (texts, newest)
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
        assert decision_status(kit, ids["old"]) is DecisionStatus.SUPERSEDED
        assert decision_status(kit, ids["new"]) is DecisionStatus.DECIDED
        assert kit.journal.get(ids["new"], "alice").links.supersedes == (ids["old"],)
        assert kit.heard.rows[ids["old"]].status is DecisionStatus.SUPERSEDED

    def test_a_link_that_the_source_no_longer_states_is_gone_with_its_effect(self, kit: JournalKit) -> None:
        old = bring(kit, "old")
        new = bring(kit, "new", SourceLinks(supersedes=("old",)))
        bring(kit, "new")
        assert decision_status(kit, old) is DecisionStatus.DECIDED
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
        assert kit.journal.page("alice", DecisionFilter(), PageRequest()).items == ()
