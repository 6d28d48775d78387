"""What nodes say is found in the journal, and only while they say it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from cstp_grpc.contract.enums import Visibility
from cstp_grpc.contract.errors import NotFound, Unavailable
from cstp_grpc.core.decisions.model import Decision, DecisionFilter
from cstp_grpc.core.decisions.read_policy import SHARE_WITH_ALL
from cstp_grpc.core.decisions.search.decision_search import DecisionSearch
from cstp_grpc.core.decisions.search.row_source import MatrixSource
from cstp_grpc.core.decisions.search.vector_matrix import VectorMatrix
from cstp_grpc.modules.intent_layer.journal_sync import NodeJournalSync, NodeJournalSyncWorker
from cstp_grpc.modules.intent_layer.project_tree import ProjectTree
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.core.decisions.journals import JournalKit
from tests.modules.intent_layer.trees import write_tree
from tests.waiting import wait_until

pytestmark = pytest.mark.above_stores

AGENT = "intent-layer"
API = """\
## Purpose

The HTTP interface.

## Pitfalls

Everything is asynchronous here.

- Handlers are **arrow functions**.
  The loader calls them without a receiver.

### Requests without a body

They arrive as null.

_Source: PITFALL-2026-02-06-a1b2c3d4e5f60718-4567.md_

## Checks

- [ ] Run the contract tests

## Downlinks

- [v1](v1/AGENTS.md)
"""


@pytest.fixture
def kit(database: Database, writer: GroupCommitWriter) -> JournalKit:
    return JournalKit(database, writer)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "shop"
    root.mkdir()
    write_tree(root, {"src/api/AGENTS.md": API})
    return root


def mirror_of(root: Path, kit: JournalKit, project: str = "shop") -> NodeJournalSync:
    return NodeJournalSync(project, ProjectTree(root), kit.journal)


def seen(kit: JournalKit, caller: str = "alice", project: str = "shop") -> dict[str, Decision]:
    """What an agent finds of a project, by title."""
    page = kit.journal.page(caller, DecisionFilter(project=project), PageRequest(1000))
    return {decision.title: decision for decision in page.items}


def test_every_entry_is_a_shared_decision(root: Path, kit: JournalKit) -> None:
    assert mirror_of(root, kit).refresh() == 5
    found = seen(kit)
    assert {title: decision.category for title, decision in found.items()} == {
        "Purpose of src/api": "purpose",
        "Everything is asynchronous here.": "pitfall",
        "Handlers are **arrow functions**.": "pitfall",
        "Requests without a body": "pitfall",
        "Run the contract tests": "check",
    }
    assert {decision.agent for decision in found.values()} == {AGENT}
    assert found["Requests without a body"].notes == "See Pitfalls in src/api/AGENTS.md"
    whole = kit.journal.get(found["Requests without a body"].id, AGENT)
    assert whole.context == "### Requests without a body\n\nThey arrive as null."
    assert whole.source == "intent-layer:shop:src/api/AGENTS.md#pitfalls/requests-without-a-body"
    assert whole.tags == (AGENT,)


def test_nothing_is_written_where_nothing_changed(root: Path, kit: JournalKit) -> None:
    mirror_of(root, kit).refresh()
    told = list(kit.trail.entries)
    later = mirror_of(root, kit)
    assert (later.refresh(), later.refresh()) == (0, 0)
    assert kit.trail.entries == told


def test_what_changes_is_the_same_decision(root: Path, kit: JournalKit) -> None:
    mirror = mirror_of(root, kit)
    mirror.refresh()
    before = seen(kit)["Requests without a body"].id
    write_tree(root, {"src/api/AGENTS.md": API.replace("as null", "as undefined")})
    assert mirror.refresh() == 1
    after = kit.journal.get(before, AGENT)
    assert after.context == "### Requests without a body\n\nThey arrive as undefined."


def test_what_vanishes_is_found_by_nobody_until_it_is_said_again(root: Path, kit: JournalKit) -> None:
    mirror = mirror_of(root, kit)
    mirror.refresh()
    known = seen(kit)
    (root / "src/api/AGENTS.md").unlink()
    assert mirror.refresh() == 5
    assert seen(kit) == {}
    with pytest.raises(NotFound):
        kit.journal.get(known["Requests without a body"].id, "alice")
    assert {entry.event for entry in kit.trail.entries} == {"decision_imported", "decision_unshared"}
    write_tree(root, {"src/api/AGENTS.md": API})
    # Also where the process is another one, which knows only what the journal has.
    assert mirror_of(root, kit).refresh() == 5
    assert {title: decision.id for title, decision in seen(kit).items()} == {
        title: decision.id for title, decision in known.items()
    }


def test_what_cannot_be_read_now_stays(root: Path, kit: JournalKit) -> None:
    mirror = mirror_of(root, kit)
    mirror.refresh()
    (root / "src/api/AGENTS.md").unlink()
    (root / "src/api/AGENTS.md").symlink_to("/etc/hostname")
    assert mirror.refresh() == 0
    assert len(seen(kit)) == 5


def test_a_project_that_cannot_be_read_loses_nothing(root: Path, kit: JournalKit) -> None:
    mirror = mirror_of(root, kit)
    mirror.refresh()
    root.rename(root.with_name("elsewhere"))
    with pytest.raises(Unavailable):
        mirror.refresh()
    assert len(seen(kit)) == 5


def test_projects_do_not_mix(root: Path, kit: JournalKit, tmp_path: Path) -> None:
    other = tmp_path / "mail"
    other.mkdir()
    write_tree(other, {"src/api/AGENTS.md": API})
    for mirror in (mirror_of(root, kit), mirror_of(other, kit, "mail")):
        assert mirror.refresh() == 5
    (other / "src/api/AGENTS.md").unlink()
    assert mirror_of(other, kit, "mail").refresh() == 5
    assert (len(seen(kit)), len(seen(kit, project="mail"))) == (5, 0)


def test_entries_of_the_same_name_are_all_there(root: Path, kit: JournalKit) -> None:
    text = "## Pitfalls\n\n- The same\n- The same\n\n## Pitfalls\n\n- The same\n"
    write_tree(root, {"src/api/AGENTS.md": text})
    assert mirror_of(root, kit).refresh() == 3


def test_a_section_that_says_nothing_is_not_found(root: Path, kit: JournalKit) -> None:
    text = "## Pitfalls\n\n<!-- What has surprised somebody. -->\n\n## Contracts\n\n## Checks\n\n- [ ] Look around\n"
    write_tree(root, {"src/api/AGENTS.md": text})
    mirror_of(root, kit).refresh()
    assert set(seen(kit)) == {"Look around"}


def test_a_section_without_entries_is_found_whole(root: Path, kit: JournalKit) -> None:
    write_tree(root, {"src/api/AGENTS.md": "## Contracts\n\n| rule | why |\n|---|---|\n| cents | no rounding |\n"})
    mirror_of(root, kit).refresh()
    assert set(seen(kit)) == {"Contracts of src/api"}


def test_no_more_are_taken_over_than_were_allowed(
    root: Path, kit: JournalKit, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        mirror = NodeJournalSync("shop", ProjectTree(root), kit.journal, max_records=2)
        assert (mirror.refresh(), mirror.refresh()) == (2, 0)
    assert caplog.text.count("the first 2 entries of the project shop") == 1


def test_a_stop_is_obeyed_and_the_rest_comes_later(root: Path, kit: JournalKit) -> None:
    write_tree(root, {f"src/part{number}/AGENTS.md": API for number in range(20)})
    asked: list[bool] = []

    def stopping() -> bool:
        asked.append(True)
        return len(asked) > 1

    mirror = mirror_of(root, kit)
    taken = mirror.refresh(stopping)
    assert 0 < taken < 105
    assert mirror.refresh() == 105 - taken


def test_a_search_finds_what_was_accepted(root: Path, database: Database, writer: GroupCommitWriter) -> None:
    kit = JournalKit(database, writer)
    mirror_of(root, kit).refresh()
    matrix = VectorMatrix(kit.embedder.dimensions, SHARE_WITH_ALL)
    matrix.apply(list(kit.heard.rows.values()))
    search = DecisionSearch(kit.store, MatrixSource(matrix), kit.embedder)
    matches = search.search("requests with no body", DecisionFilter(category="pitfall"), "alice", 1, 0.1)
    assert [match.decision.title for match in matches] == ["Requests without a body"]


class Failing:
    """A mirror that fails until it is told not to, and counts."""

    def __init__(self, errors: Sequence[Exception]) -> None:
        self.errors = list(errors)
        self.refreshed = 0

    def refresh(self, stopping: object = None) -> int:
        self.refreshed += 1
        if self.errors:
            raise self.errors.pop(0)
        return 0


@pytest.mark.parametrize("error", [Unavailable("not now"), RuntimeError("unforeseen")])
def test_a_failure_is_logged_once_and_tried_again(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    failing, sound = Failing([error, error]), Failing([])
    refresher = NodeJournalSyncWorker([failing, sound], 0.001)  # type: ignore[list-item]
    with caplog.at_level(logging.WARNING):
        refresher.start()
        wait_until(lambda: failing.refreshed > 3, "it goes on")
        refresher.stop()
    assert sound.refreshed >= 3
    assert len([record for record in caplog.records if "searches do not see" in record.message]) == 1


def test_it_refreshes_at_once_and_when_it_is_woken(root: Path, kit: JournalKit) -> None:
    refresher = NodeJournalSyncWorker([mirror_of(root, kit)], 3600)
    refresher.start()
    try:
        wait_until(lambda: len(seen(kit)) == 5, "the nodes are read at the start")
        write_tree(root, {"src/AGENTS.md": "## Checks\n\n- [ ] Sleep well\n"})
        refresher.wake()
        wait_until(lambda: "Sleep well" in seen(kit), "the new node is read")
    finally:
        refresher.stop()


def test_it_rests_until_it_is_woken(root: Path) -> None:
    mirror = Failing([])
    refresher = NodeJournalSyncWorker([mirror], 3600)  # type: ignore[list-item]
    refresher.start()
    wait_until(lambda: mirror.refreshed == 1, "it refreshes at the start")
    refresher.wake()
    wait_until(lambda: mirror.refreshed > 1, "it is woken")
    refresher.stop()
    assert mirror.refreshed == 2


def test_however_much_the_journal_has_it_is_known_to_the_next_process(root: Path, kit: JournalKit) -> None:
    items = "".join(f"- Pitfall number {number}\n" for number in range(31))
    write_tree(root, {"src/api/AGENTS.md": f"## Pitfalls\n\n{items}"})
    assert mirror_of(root, kit).refresh() == 31
    (root / "src/api/AGENTS.md").unlink()
    assert NodeJournalSync("shop", ProjectTree(root), kit.journal, page_size=10).refresh() == 31
    assert seen(kit) == {}


def test_sharing_is_what_makes_them_found(root: Path, kit: JournalKit) -> None:
    mirror_of(root, kit).refresh()
    assert {decision.visibility for decision in seen(kit).values()} == {Visibility.SHARED}
