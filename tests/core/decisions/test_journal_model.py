"""The journal agrees with plain dicts, whatever is done in whatever order, on each kind of database."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cstp_grpc.contract.enums import Outcome, Visibility
from cstp_grpc.contract.errors import NotFound, PermissionDenied
from cstp_grpc.core.decisions.lifecycle import REQUIRED_FIELDS, UPDATABLE_FIELDS, decision_id_for_source
from cstp_grpc.core.decisions.model import (
    DecisionContent,
    DecisionFilter,
    ImportAction,
    ImportRecord,
    Links,
    SourceLinks,
)
from cstp_grpc.core.decisions.passages import decision_passages
from cstp_grpc.platform.storage.pagination import PageRequest
from tests.core.decisions.journal_model import JournalModel
from tests.core.decisions.journals import JournalKit, plain
from tests.core.decisions.strategies import any_text, contents
from tests.example_counts import examples

SOURCES = ("a", "b")
NOBODY = "dec-none"

few_sources = st.lists(st.sampled_from(SOURCES), unique=True, max_size=2).map(tuple)
source_links = st.builds(
    SourceLinks, supersedes=few_sources, superseded_by=few_sources, depends_on=few_sources, relates_to=few_sources
)
imports = st.lists(
    st.builds(
        ImportRecord,
        source=st.sampled_from(SOURCES),
        content=contents,
        links=source_links,
        restore_deleted=st.booleans(),
    ),
    min_size=1,
    max_size=4,
)


class Story:
    """Two agents at work, with a journal and with its model; what they do must have the same effect on both.

    Examples share a database; their agents and their project are their own.
    """

    def __init__(self, kit: JournalKit, data: st.DataObject) -> None:
        self.kit = kit
        self.data = data
        self.model = JournalModel()
        mark = uuid.uuid4().hex
        self.project = f"project-{mark}"
        self.agents = (f"alice-{mark}", f"bob-{mark}")
        self.told = len(kit.trail.entries)

    def draw_content(self, content: DecisionContent) -> DecisionContent:
        """The content in this example's project."""
        return replace(content, project=self.project)

    def draw_id(self) -> str:
        """A decision that may be there."""
        return self.data.draw(st.sampled_from([NOBODY, *self.model.known, *self.model.deleted]))

    def draw_agent(self) -> str:
        return self.data.draw(st.sampled_from(self.agents))

    def record(self) -> None:
        agent = self.draw_agent()
        content = self.draw_content(self.data.draw(contents))
        targets = st.lists(st.sampled_from([NOBODY, *self.model.known]), max_size=2).map(tuple)
        links = Links(self.data.draw(targets), self.data.draw(targets), self.data.draw(targets))
        recorded = self.kit.journal.record(content, links, agent, "request-1")
        self.model.record(recorded.id, agent, content, links, self.kit.clock.now)
        self.expect_events([("recorded", recorded.id)])

    def bring(self) -> None:
        self.import_all(self.draw_agent(), self.data.draw(imports))

    def revise(self) -> None:
        """Import a source again, if any was imported."""
        imported = [(item.agent, item.source) for item in self.model.known.values() if item.source]
        if imported:
            agent, source = self.data.draw(st.sampled_from(imported))
            record = ImportRecord(source, self.data.draw(contents), self.data.draw(source_links))
            self.import_all(agent, [record])

    def import_all(self, agent: str, records: Sequence[ImportRecord]) -> None:
        batch = [replace(item, content=self.draw_content(item.content)) for item in records]
        results = self.kit.journal.import_batch(batch, agent, "request-1")
        ids = {source: decision_id_for_source(agent, source) for source in SOURCES}
        before = {key: (item.effective(), item.visibility) for key, item in self.model.known.items()}
        actions = [self.model.import_one(agent, item, ids, self.kit.clock.now) for item in batch]
        assert [(result.source, result.action, result.decision_id) for result in results] == [
            (item.source, action, ids[item.source]) for item, action in zip(batch, actions, strict=True)
        ]
        for key in set(ids.values()) & before.keys() & self.model.known.keys():
            self.model.keep_former(key, *before[key], self.kit.clock.now)
        unchanged = (ImportAction.UNCHANGED, ImportAction.DELETED)
        changed = [result.decision_id for result in results if result.action not in unchanged]
        self.expect_events([("imported", key) for key in changed])

    def review(self) -> None:
        caller, key = self.draw_agent(), self.draw_id()
        outcome = self.data.draw(st.sampled_from(Outcome))
        notes = self.data.draw(st.none() | any_text)
        if not self.model.readable(key, caller):
            with pytest.raises(NotFound):
                self.kit.journal.review(key, outcome, notes, caller, "request-1")
            return self.expect_events([])
        answer = self.kit.journal.review(key, outcome, notes, caller, "request-1")
        self.model.review(key, outcome, notes, caller, self.kit.clock.now)
        assert answer == self.model.expected(key, caller)
        return self.expect_events([("reviewed", key)])

    def update(self) -> None:
        caller, key = self.draw_agent(), self.draw_id()
        content = self.draw_content(self.data.draw(contents))
        names = self.data.draw(st.lists(st.sampled_from(sorted(UPDATABLE_FIELDS)), unique=True))
        names = [name for name in names if name not in REQUIRED_FIELDS or getattr(content, name) is not None]
        arguments = (key, content, names, None, caller, "request-1")
        if not self.model.readable(key, caller):
            with pytest.raises(NotFound):
                self.kit.journal.update(*arguments)
            return self.expect_events([])
        if self.model.known[key].agent != caller:
            with pytest.raises(PermissionDenied):
                self.kit.journal.update(*arguments)
            return self.expect_events([])
        answer = self.kit.journal.update(*arguments)
        changed = self.model.update(key, {name: getattr(content, name) for name in names}, self.kit.clock.now)
        assert answer == (self.model.expected(key, caller), self.model.history(key, caller))
        return self.expect_events([("updated", key)] if changed else [])

    def delete(self) -> None:
        caller, key = self.draw_agent(), self.draw_id()
        if self.model.deleted.get(key) == caller:
            assert self.kit.journal.delete(key, caller, "request-1").id == key
            return self.expect_events([])
        if not self.model.readable(key, caller):
            with pytest.raises(NotFound):
                self.kit.journal.delete(key, caller, "request-1")
            return self.expect_events([])
        if self.model.known[key].agent != caller:
            with pytest.raises(PermissionDenied):
                self.kit.journal.delete(key, caller, "request-1")
            return self.expect_events([])
        deleted = self.kit.journal.delete(key, caller, "request-1")
        self.model.delete(key)
        assert (deleted.id, deleted.agent, deleted.deleted_at) == (key, caller, self.kit.clock.now)
        return self.expect_events([("deleted", key)])

    def set_visibility(self) -> None:
        caller, key = self.draw_agent(), self.draw_id()
        visibility = self.data.draw(st.sampled_from(Visibility))
        shares = visibility is Visibility.SHARED
        change = self.kit.journal.share if shares else self.kit.journal.unshare
        if not self.model.readable(key, caller):
            with pytest.raises(NotFound):
                change(key, caller, "request-1")
            return self.expect_events([])
        item = self.model.known[key]
        if item.agent != caller:
            with pytest.raises(PermissionDenied):
                change(key, caller, "request-1")
            return self.expect_events([])
        before, item.visibility = item.visibility, visibility
        assert change(key, caller, "request-1") == self.model.expected(key, caller)
        return self.expect_events([("shared" if shares else "unshared", key)] if before is not visibility else [])

    def expect_events(self, expected: Sequence[tuple[str, str]]) -> None:
        entries = self.kit.trail.entries[self.told :]
        self.told = len(self.kit.trail.entries)
        assert [(entry.event, entry.decision_id) for entry in entries] == [
            (f"decision_{kind}", key) for kind, key in expected
        ]

    def check(self) -> None:
        """Compare all that can be read."""
        for caller in self.agents:
            readable = [key for key in self.model.known if self.model.readable(key, caller)]
            for key in self.model.known:
                if key in readable:
                    expected = (self.model.expected(key, caller), self.model.history(key, caller))
                    assert self.kit.journal.get_with_history(key, caller) == expected
                else:
                    with pytest.raises(NotFound):
                        self.kit.journal.get(key, caller)
            for key in self.model.deleted:
                with pytest.raises(NotFound):
                    self.kit.journal.get(key, caller)
            page = self.kit.journal.page(caller, DecisionFilter(project=self.project), PageRequest(1000))
            assert {item.id for item in page.items} == {
                key for key in readable if self.model.known[key].content.project == self.project
            }
            self.check_due(caller)
        self.check_rows()

    def check_due(self, caller: str) -> None:
        """Compare what is due for review."""
        wanted = DecisionFilter(project=self.project)
        page = self.kit.journal.page(caller, wanted, PageRequest(1000), review_due=True)
        now = self.kit.clock.now
        own = [key for key, item in self.model.known.items() if item.agent == caller]
        assert {item.id: item.review_by for item in page.items} == {
            key: self.model.known[key].content.review_by for key in own if self.model.is_due(key, now)
        }

    def check_rows(self) -> None:
        """Compare what was heard with what is stored, and the vectors with the texts."""
        found = [*self.model.known, *self.model.deleted]
        rows = self.kit.store.index_rows_of(self.kit.embedder.model, found)
        assert not self.model.deleted.keys() & self.kit.heard.rows.keys()
        assert self.model.deleted.keys() <= self.kit.heard.erased.keys()
        assert {row.decision_id for row in rows} == set(self.model.known)
        for row in rows:
            assert plain(row) == plain(self.kit.heard.rows[row.decision_id])
            decision = self.kit.store.get(row.decision_id)
            assert decision is not None
            passages = decision_passages(decision)
            assert row.passages.vectors.tolist() == self.kit.embedder.embed(passages.texts).tolist()
            assert row.passages.has_lesson == passages.has_lesson


@settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_the_journal_does_what_the_model_does(kit: JournalKit, data: st.DataObject) -> None:
    story = Story(kit, data)
    acts = st.sampled_from(["record", "bring", "revise", "review", "set_visibility", "update", "delete"])
    for act in data.draw(st.lists(acts, min_size=3, max_size=10)):
        getattr(story, act)()
        story.check()
