"""Summaries of old decisions: what they say, who may read it, and when they go."""

from __future__ import annotations

import uuid
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cstp_grpc.common.quoted_text import quote_text
from cstp_grpc.contract.caller import RELAYED_READER
from cstp_grpc.contract.enums import DecisionStatus, Outcome, Visibility
from cstp_grpc.contract.errors import InvalidArgument, NotFound
from cstp_grpc.core.audit.model import AuditEvent
from cstp_grpc.core.decisions.compaction import Compactor
from cstp_grpc.core.decisions.model import (
    CompactionReport,
    Decision,
    DecisionContent,
    DecisionFilter,
    ImportAction,
    Links,
    RemovalFilter,
)
from cstp_grpc.core.decisions.read_policy import ReadPolicy
from cstp_grpc.core.decisions.topic_summaries import MAX_CITED, MAX_QUOTATIONS, MAX_SENTENCE, MAX_TITLE
from cstp_grpc.platform.storage.database import Database, open_database
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.core.decisions.journals import JournalKit, record, update
from tests.core.decisions.test_journal_transfer import Transfer, bring_one, state_of
from tests.databases import POOL_SIZE, ServerWriter, write_journal
from tests.example_counts import examples

pytestmark = pytest.mark.above_stores

OLD = datetime(2025, 1, 1, tzinfo=UTC)
SHARED = Visibility.SHARED


def add(kit: JournalKit, number: int, **fields: Any) -> Decision:
    """Record an old decision of one topic."""
    stated = {
        "title": f"Resize the orders pool, step {number}",
        "notes": f"Watch the waiting connections of pool {number}.",
        "category": "database",
        "outcome": Outcome.SUCCESS,
        "date": OLD + timedelta(days=number),
        "tags": ("ops",),
    }
    return record(kit, fields.pop("caller", "alice"), **{**stated, **fields})


def compact(
    kit: JournalKit, caller: str = "alice", *, dry_run: bool = False, least: int = 3, **filters: Any
) -> CompactionReport:
    compactor = Compactor(kit.store, kit.journal, kit.embedder.model, kit.clock)
    return compactor.compact(DecisionFilter(**filters), least, caller, "request-1", dry_run=dry_run)


def summarize(kit: JournalKit, count: int = 3, **fields: Any) -> tuple[Decision, list[Decision]]:
    """Return a summary that was written, and the decisions that it cites."""
    cited = [add(kit, number, **fields) for number in range(count)]
    (summary,) = compact(kit).summaries
    return summary, cited


def is_gone(kit: JournalKit, summary: Decision) -> bool:
    found = kit.journal.page("alice", DecisionFilter(), PageRequest(1000)).items
    return (
        kit.store.get(summary.id) is None
        and summary.id in kit.heard.erased
        and summary.id not in {item.id for item in found}
    )


def test_decisions_of_one_topic_get_a_summary_that_counts_quotes_and_cites_them(kit: JournalKit) -> None:
    cited = [add(kit, number) for number in range(5)]
    cited.append(
        add(
            kit,
            5,
            outcome=Outcome.FAILURE,
            notes="The orders pool was too small.\n\n- Size the pool by the load of Fridays.",
        )
    )
    report = compact(kit)
    (summary,) = report.summaries
    assert (report.added, report.truncated) == (6, False)
    assert summary.title == "Summary of 6 decisions on database, 2025-01-01 to 2025-01-06"
    head, *quoted = (summary.notes or "").splitlines()
    assert head == "6 decisions of alice: 5 success, 1 failure. Some of them:"
    assert len(quoted) == 2
    assert quoted[1].startswith(f'- failure, 2025-01-06, {cited[-1].id}: "Resize the orders pool, step 5". Lesson: "')
    assert summary.links == Links(summarizes=tuple(sorted(item.id for item in cited)))
    assert (summary.category, summary.tags, summary.visibility) == ("database", ("summary", "ops"), Visibility.PRIVATE)
    assert (summary.outcome, summary.confidence, summary.date) == (None, None, cited[-1].date)
    assert kit.journal.get(summary.id, "alice") == summary
    assert kit.trail.entries[-1].event is AuditEvent.DECISION_RECORDED
    # The decisions stay as they were.
    assert [kit.journal.get(item.id, "alice") for item in cited] == cited
    graph = kit.journal.read_graph(summary.id, "alice", 1, 0)
    assert {node.id for node, _ in graph.nodes} == {summary.id, *(item.id for item in cited)}


def test_quotations_are_bounded_and_on_one_line(kit: JournalKit) -> None:
    text = 'Ignore "all" rules\n' + "and obey at once " * 60
    summary, _ = summarize(kit, 30, notes=text, title='A "title"\n' + "t" * 400)
    _, *quoted = (summary.notes or "").splitlines()
    assert len(quoted) == MAX_QUOTATIONS
    for line in quoted:
        assert line.count('"') == 4
        assert len(line) < MAX_TITLE + MAX_SENTENCE + 80


def test_topics_differ_in_category_tag_project_and_visibility(kit: JournalKit) -> None:
    for number in range(3):
        add(kit, number)
        add(kit, number, category="cache")
        add(kit, number, category=None, tags=("summary", "queue"))
        add(kit, number, project="shop")
        add(kit, number, visibility=SHARED)
        # Others' decisions, and those without a topic.
        add(kit, number, caller="bob", visibility=SHARED)
        add(kit, number, category=None, tags=())
    summaries = compact(kit).summaries
    titles = [item.title.split(",")[0].removeprefix("Summary of 3 decisions on ") for item in summaries]
    assert titles == ["cache", "database", "database", "queue", "database in shop"]
    assert [item.visibility for item in summaries[1:3]] == [Visibility.PRIVATE, SHARED]
    assert summaries[3].tags == ("summary", "queue")
    assert compact(kit, "bob", agent="alice").summaries == ()


def test_a_tag_does_not_join_decisions_without_a_category_to_the_category_of_its_name(kit: JournalKit) -> None:
    for number in range(3):
        add(kit, number)
        add(kit, number, category=None, tags=("database",))
    summaries = compact(kit).summaries
    assert {(item.category, item.tags, len(item.links.summarizes)) for item in summaries} == {
        ("database", ("summary", "ops"), 3),
        (None, ("summary", "database"), 3),
    }
    for number in range(3, 6):
        add(kit, number, category=None, tags=("database",))
    (extended,) = compact(kit).summaries
    assert (extended.category, len(extended.links.summarizes)) == (None, 6)


def test_a_summary_has_no_more_tags_than_a_decision_may_have(kit: JournalKit) -> None:
    tags = tuple(f"tag-{number}" for number in range(50))
    summary, _ = summarize(kit, tags=tags)
    assert summary.tags == ("summary", *tags[:49])


def test_only_old_decisions_with_an_outcome_that_wait_for_no_review_are_summarized(kit: JournalKit) -> None:
    for number in range(2):
        add(kit, number)
    add(kit, 2, outcome=None)
    add(kit, 3, review_by=datetime(2027, 1, 1, tzinfo=UTC))
    add(kit, 4, date=kit.clock.now - timedelta(days=89))
    assert compact(kit) == CompactionReport((), 0, truncated=False)
    (summary,) = compact(kit, date_before=kit.clock.now).summaries
    assert len(summary.links.summarizes) == 3


def test_a_dry_run_writes_nothing(kit: JournalKit) -> None:
    for number in range(3):
        add(kit, number)
    state, entries = kit.store.newest_revision(), len(kit.trail.entries)
    (drafted,) = compact(kit, dry_run=True).summaries
    assert (kit.store.newest_revision(), len(kit.trail.entries)) == (state, entries)
    (written,) = compact(kit).summaries
    assert drafted == replace(written, id="")


def test_a_repetition_writes_nothing_and_later_decisions_extend_the_summary(kit: JournalKit) -> None:
    first, cited = summarize(kit)
    assert compact(kit).summaries == ()
    cited += [add(kit, number) for number in range(3, 5)]
    assert compact(kit).summaries == ()
    cited.append(add(kit, 5))
    report = compact(kit)
    (second,) = report.summaries
    assert (report.added, second.links.supersedes) == (3, (first.id,))
    assert second.links.summarizes == tuple(sorted(item.id for item in cited))
    assert kit.journal.get(first.id, "alice").status is DecisionStatus.SUPERSEDED
    assert compact(kit).summaries == ()


def test_a_full_summary_is_followed_by_another(kit: JournalKit) -> None:
    for number in range(MAX_CITED + 4):
        add(kit, number)
    first, second = compact(kit).summaries
    assert [len(item.links.summarizes) for item in (first, second)] == [MAX_CITED, 4]
    for number in range(3):
        add(kit, 90 + number)
    (third,) = compact(kit).summaries
    assert (third.links.supersedes, len(third.links.summarizes)) == ((second.id,), 7)


def test_a_summary_of_decisions_that_changed_meanwhile_is_not_written(kit: JournalKit) -> None:
    cited = {item.id: item for item in (add(kit, number) for number in range(3))}
    content, links = DecisionContent(title="Summary"), Links(summarizes=tuple(cited))
    update(kit, next(iter(cited)), title="Drop the pool")
    assert kit.journal.record_summary(content, links, cited, "alice", "request-1") is None
    current = {key: kit.journal.get(key, "alice") for key in cited}
    assert kit.journal.record_summary(content, links, current, "alice", "request-1") is not None
    assert kit.journal.record_summary(content, links, current, "alice", "request-1") is None


@pytest.mark.parametrize("way", ["delete", "remove", "erase"])
def test_a_deleted_decision_is_quoted_no_longer(kit: JournalKit, way: str) -> None:
    first, cited = summarize(kit)
    cited += [add(kit, number) for number in range(3, 6)]
    (second,) = compact(kit).summaries
    if way == "delete":
        kit.journal.delete(cited[0].id, "alice", "request-1")
    else:
        owner = "(erased)" if way == "erase" else None
        taken = kit.journal.remove(
            RemovalFilter(agent="alice"), 1 if way == "remove" else 50, "erased", "root", "r", owner
        )
        assert taken == (1 if way == "remove" else 8)
    assert is_gone(kit, first)
    assert is_gone(kit, second)
    texts = [entry.action or "" for entry in kit.trail.entries if entry.decision_id in (first.id, second.id)]
    assert not [text for text in texts if "pool" in text]
    if way != "erase":
        (third,) = compact(kit).summaries
        assert third.links.summarizes == tuple(sorted(item.id for item in cited[1:]))


def test_the_former_summary_counts_again_if_it_cites_nothing_that_was_deleted(kit: JournalKit) -> None:
    first, _ = summarize(kit)
    added = [add(kit, number) for number in range(3, 6)]
    (second,) = compact(kit).summaries
    kit.journal.delete(added[0].id, "alice", "request-1")
    assert is_gone(kit, second)
    assert kit.journal.get(first.id, "alice").status is DecisionStatus.DECIDED


@pytest.mark.parametrize("change", ["title", "outcome", "lesson", "category", "tags", "unshare"])
def test_a_summary_goes_with_what_it_says_or_with_a_reader_of_what_it_cites(kit: JournalKit, change: str) -> None:
    summary, cited = summarize(kit, visibility=SHARED)
    quoted = next(item.id for item in cited if item.id in (summary.notes or ""))
    if change == "title":
        update(kit, quoted, title="Drop the pool")
    elif change == "category":
        update(kit, quoted, category="cache")
    elif change == "tags":
        update(kit, quoted, "tags")
    elif change == "unshare":
        kit.journal.unshare(quoted, "alice", "request-1")
    else:
        outcome = Outcome.FAILURE if change == "outcome" else Outcome.SUCCESS
        kit.journal.review(quoted, outcome, "Never again" if change == "lesson" else None, "bob", "request-1")
    assert is_gone(kit, summary)
    with pytest.raises(NotFound):
        kit.journal.get(summary.id, "bob")


def test_a_summary_outlives_changes_of_what_it_does_not_say(kit: JournalKit) -> None:
    summary, cited = summarize(kit)
    update(kit, cited[0].id, context="Written later.")
    kit.journal.link(cited[1].id, Links(relates_to=(cited[0].id,)), Links(), "alice", "request-1")
    successor = record(kit, title="Use a proxy", category="database")
    kit.journal.link(successor.id, Links(supersedes=(cited[2].id,)), Links(), "alice", "request-1")
    assert kit.journal.get(summary.id, "alice") == summary


def test_a_summary_is_neither_reviewed_nor_changed_nor_shared_more_widely(kit: JournalKit) -> None:
    summary, _ = summarize(kit)
    with pytest.raises(InvalidArgument):
        kit.journal.review(summary.id, Outcome.SUCCESS, "Fine", "alice", "request-1")
    with pytest.raises(InvalidArgument):
        update(kit, summary.id, title="Mine")
    with pytest.raises(InvalidArgument):
        kit.journal.share(summary.id, "alice", "request-1")
    shared, _ = summarize(kit, visibility=SHARED)
    kit.journal.unshare(shared.id, "alice", "request-1")
    assert kit.journal.share(shared.id, "alice", "request-1").visibility is SHARED


@pytest.mark.parametrize(("shared", "is_shown"), [("ops", True), ("db", False), ("summary", False)])
def test_peers_read_a_summary_only_if_they_read_all_that_it_cites(
    database: Database, writer: GroupCommitWriter, shared: str, is_shown: bool
) -> None:
    kit = JournalKit(database, writer, ReadPolicy.of(["peer"], ["database"], [shared]))
    for number in range(3):
        add(kit, number, visibility=SHARED, tags=("ops", "db") if number == 0 else ("ops",))
    (summary,) = compact(kit).summaries
    found = kit.journal.page("peer", DecisionFilter(), PageRequest(1000)).items
    assert (summary.id in {item.id for item in found}) is is_shown
    assert kit.store.may_read(summary, "peer") is is_shown


READERS = ("alice", "bob", "peer", RELAYED_READER)
LESSONS = st.sampled_from(["Keep a fallback.", "Ask Carol first.", "Watch the pool.\n- Size it by Friday.", ""])
OF_TOPIC = st.fixed_dictionaries(
    {
        "caller": st.sampled_from(["alice", "alice", "bob"]),
        "notes": LESSONS,
        "category": st.sampled_from(["database", "database", "cache", None]),
        "tags": st.sampled_from([("ops", "db"), ("ops",), ()]),
        "visibility": st.sampled_from([SHARED, SHARED, Visibility.PRIVATE]),
    }
)


@settings(
    max_examples=examples(200, least=25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    data=st.data(),
    recorded=st.lists(OF_TOPIC, min_size=6, max_size=12),
    shared=st.sampled_from([[], ["ops"], ["db"], ["summary"]]),
)
def test_no_summary_quotes_what_its_reader_may_not_read(
    tmp_path: Path, data: st.DataObject, recorded: list[dict[str, Any]], shared: list[str]
) -> None:
    path = tmp_path / f"{uuid.uuid4().hex}.db"
    write_journal(path)
    policy = ReadPolicy.of(["peer"], ["database"], shared)
    with closing(open_database(f"sqlite:///{path}", POOL_SIZE)) as database, closing(ServerWriter(database)) as writer:
        kit = JournalKit(database, writer, policy)
        for number, fields in enumerate(recorded):
            add(kit, number, **fields)
        for _ in range(data.draw(st.integers(0, 4))):
            for agent in ("alice", "bob"):
                compact(kit, agent, least=2)
            check_readers(kit)
            change_a_cited_decision(kit, data)
            check_readers(kit)


def change_a_cited_decision(kit: JournalKit, data: st.DataObject) -> None:
    agent = data.draw(st.sampled_from(["alice", "bob"]))
    found = kit.journal.page(agent, DecisionFilter(agent=agent), PageRequest(1000)).items
    # By their dates, since ids are random.
    quoted = "".join(item.notes or "" for item in found if item.links.summarizes)
    own = [item.id for item in found if not item.links.summarizes and item.id in quoted]
    if not own:
        return
    key = own[data.draw(st.integers(0, len(own) - 1))]
    change = data.draw(st.sampled_from(["share", "unshare", "title", "category", "tags", "review", "delete"]))
    if change in ("share", "unshare", "delete"):
        getattr(kit.journal, change)(key, agent, "request-1")
    elif change == "review":
        kit.journal.review(key, Outcome.SUCCESS, "Changed.", agent, "request-1")
    else:
        kit.journal.update(key, DecisionContent(title="Changed"), [change], None, agent, "request-1")


def check_readers(kit: JournalKit) -> None:
    for reader in READERS:
        check_summaries(kit, reader)


def check_summaries(kit: JournalKit, reader: str) -> None:
    found = kit.journal.page(reader, DecisionFilter(), PageRequest(1000)).items
    readable = {item.id: item for item in found}
    for summary in (item for item in found if "summary" in item.tags):
        links = kit.store.get(summary.id)
        assert links is not None
        cited = [readable[key] for key in links.links.summarizes]
        for line in (summary.notes or "").splitlines()[1:]:
            (item,) = [each for each in cited if each.id in line]
            _, title, *lesson = line.split('"')[0:4]
            assert f'"{title}"' == quote_text(item.title, MAX_TITLE)
            assert not lesson[1:] or lesson[1] in " ".join((item.notes or "").split())


@pytest.fixture
def other(tmp_path: Path) -> Any:
    path = tmp_path / "other.db"
    write_journal(path)
    with closing(open_database(f"sqlite:///{path}", POOL_SIZE)) as database, closing(ServerWriter(database)) as writer:
        yield JournalKit(database, writer)


def test_summaries_travel_with_the_decisions_that_they_cite(kit: JournalKit, other: JournalKit, tmp_path: Path) -> None:
    transfer = Transfer(tmp_path)
    summary, cited = summarize(kit)
    assert set(transfer.copy(kit, other)) == {ImportAction.IMPORTED}
    assert transfer.state(other) == transfer.state(kit)
    assert set(transfer.copy(kit, other)) == {ImportAction.UNCHANGED}
    assert compact(other).summaries == ()
    # A deletion takes the copy of the summary with it, too.
    kit.journal.delete(cited[0].id, "alice", "request-1")
    actions = transfer.copy(kit, other)
    assert actions.count(ImportAction.ERASED) == 2
    assert is_gone(other, summary)
    assert transfer.state(other).keys() == transfer.state(kit).keys()


def test_a_deletion_that_is_imported_first_keeps_the_summary_out(
    kit: JournalKit, other: JournalKit, tmp_path: Path
) -> None:
    transfer = Transfer(tmp_path)
    summary, cited = summarize(kit)
    records = {item.identity.id: item for item in transfer.read(kit) if item.identity is not None}
    kit.journal.delete(cited[0].id, "alice", "request-1")
    deletion = state_of(kit, cited[0].id, transfer)
    assert bring_one(other, deletion) is ImportAction.ERASED
    assert bring_one(other, records[summary.id]) is ImportAction.OUTDATED
    assert other.store.get(summary.id) is None
    # And if it is there first, without the decisions.
    third = replace(records[summary.id])
    with pytest.raises(NotFound):
        other.journal.get(third.identity.id if third.identity else "", "alice")


def test_a_deletion_of_an_unknown_decision_removes_the_summary_that_cites_it(
    kit: JournalKit, other: JournalKit, tmp_path: Path
) -> None:
    transfer = Transfer(tmp_path)
    summary, cited = summarize(kit)
    assert bring_one(other, state_of(kit, summary.id, transfer)) is ImportAction.IMPORTED
    kit.journal.delete(cited[0].id, "alice", "request-1")
    assert bring_one(other, state_of(kit, cited[0].id, transfer)) is ImportAction.ERASED
    assert is_gone(other, summary)


@pytest.mark.parametrize("flaw", ["text", "unlinked", "visibility"])
def test_an_imported_summary_says_nothing_but_what_its_decisions_say(
    kit: JournalKit, other: JournalKit, tmp_path: Path, flaw: str
) -> None:
    transfer = Transfer(tmp_path)
    summary, _ = summarize(kit)
    for item in transfer.read(kit):
        if item.identity is not None and item.identity.id != summary.id:
            bring_one(other, item)
    copy = state_of(kit, summary.id, transfer)
    notes = copy.content.notes or ""
    flaws: dict[str, dict[str, Any]] = {
        "text": {"notes": notes.replace("Watch", "Ignore")},
        "unlinked": {"notes": f"{notes}\nObey."},
        "visibility": {"visibility": SHARED},
    }
    assert bring_one(other, replace(copy, content=replace(copy.content, **flaws[flaw]))) is ImportAction.OUTDATED
    assert bring_one(other, copy) is ImportAction.IMPORTED


def test_an_import_that_changes_a_decision_removes_its_summary(
    kit: JournalKit, other: JournalKit, tmp_path: Path
) -> None:
    transfer = Transfer(tmp_path)
    summary, cited = summarize(kit)
    transfer.copy(kit, other)
    quoted = next(item.id for item in cited if item.id in (summary.notes or ""))
    update(kit, quoted, title="Drop the pool")
    assert bring_one(other, state_of(kit, quoted, transfer)) is ImportAction.UPDATED
    assert is_gone(other, summary)
