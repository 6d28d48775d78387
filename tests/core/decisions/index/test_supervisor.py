"""An index that keeps itself alive, fed and sound."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cstp_grpc.core.decisions.search import chroma_index, index_supervisor
from cstp_grpc.core.decisions.search.ann_index import IndexUnavailable
from cstp_grpc.core.decisions.search.chroma_index import ChromaHttpClient, ChromaIndex
from cstp_grpc.core.decisions.search.chroma_process import ChildChromaServer, ChromaServer
from tests.core.decisions.index.conftest import OpenJournal
from tests.core.decisions.index.indexed import IndexedJournal
from tests.waiting import wait_until

TITLES = [f"{verb} {thing}" for verb in ("drop", "use", "split", "merge") for thing in ("caches", "queues", "shards")]
PARROTS = "archive green parrots"


def pid_of(journal: IndexedJournal) -> int:
    pid = journal.chroma.pid
    assert pid is not None
    return pid


def url_of(journal: IndexedJournal) -> str:
    url = journal.chroma.url
    assert url is not None
    return url


def ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_it_takes_what_is_there_and_what_comes(journal: IndexedJournal) -> None:
    journal.record(*TITLES)
    journal.start()
    journal.wait_until_complete()
    journal.record(PARROTS)
    journal.wait_until_complete()
    assert journal.proposals(PARROTS, 1) == [PARROTS]
    assert journal.found(PARROTS) == [PARROTS]
    wait_until(lambda: journal.outbox.depth() == 0, "the outbox is empty")


def test_a_small_journal_needs_no_server(journal: IndexedJournal) -> None:
    journal.record(*TITLES)
    journal.start(start_size=len(TITLES) + 1)
    journal.wait_for("idle")
    wait_until(lambda: journal.outbox.depth() == 0, "the outbox is empty")
    assert journal.supervisor.is_healthy
    assert journal.chroma.pid is None
    assert journal.found(TITLES[0]) == [TITLES[0]]
    journal.record(PARROTS)
    journal.wait_until_complete()
    assert journal.proposals(PARROTS, 1) == [PARROTS]
    assert journal.proposals(TITLES[0], 1) == [TITLES[0]]


def test_before_it_is_ready_it_proposes_nothing_and_search_goes_on(journal: IndexedJournal) -> None:
    journal.record(PARROTS)
    assert journal.supervisor.state() == "starting"
    with pytest.raises(IndexUnavailable):
        journal.supervisor.propose(journal.embedder.embed(["parrots"])[0], 1)
    assert journal.found(PARROTS) == [PARROTS]


def test_it_goes_on_where_it_was_after_a_restart(journal: IndexedJournal, caplog: pytest.LogCaptureFixture) -> None:
    journal.record(*TITLES)
    journal.start()
    journal.wait_until_complete()
    journal.supervisor.stop()
    journal.record(PARROTS)
    caplog.clear()
    with caplog.at_level("INFO"):
        journal.start()
        journal.wait_until_complete()
    assert journal.proposals(PARROTS, 1) == [PARROTS]
    assert not [message for message in caplog.messages if "building" in message]


def test_a_killed_server_comes_back_and_search_never_stops(journal: IndexedJournal) -> None:
    journal.record(*TITLES, PARROTS)
    journal.start()
    journal.wait_until_complete()
    first = pid_of(journal)
    os.kill(first, signal.SIGKILL)
    assert journal.found(PARROTS) == [PARROTS]
    journal.record("breed voles")
    assert journal.found("breed voles") == ["breed voles"]

    wait_until(lambda: journal.chroma.pid not in (None, first), "another child is there")
    journal.wait_until_complete()
    for title in (PARROTS, "breed voles"):
        assert journal.proposals(title, 1) == [title]
    assert len(journal.proposals(PARROTS, 100)) == len(TITLES) + 2


@pytest.mark.slow
def test_a_hanging_server_is_replaced(journal: IndexedJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    journal.record(PARROTS)
    journal.start()
    journal.wait_until_complete()
    first = pid_of(journal)
    with monkeypatch.context() as hurried:
        hurried.setattr(chroma_index, "QUERY_SECONDS", 0.3)
        os.kill(first, signal.SIGSTOP)
        assert journal.found(PARROTS) == [PARROTS]
        # A request of the feeder that is in progress waits longer than a query.
        wait_until(lambda: ended(first), "the child is ended", chroma_index.FEED_SECONDS + 30)
    journal.wait_for("ready")
    assert journal.proposals(PARROTS, 1) == [PARROTS]


def segment(folder: Path, name: str) -> Path:
    (path,) = folder.glob(f"*/{name}")
    return path


def overwrite(path: Path) -> None:
    path.write_bytes(b"\xff" * path.stat().st_size)


BREAKAGES: dict[str, Callable[[Path], None]] = {
    "the database is garbage": lambda folder: overwrite(folder / "chroma.sqlite3"),
    "the database is cut off": lambda folder: os.truncate(folder / "chroma.sqlite3", 20_000),
    "the database is gone": lambda folder: (folder / "chroma.sqlite3").unlink(),
    "the vectors are garbage": lambda folder: overwrite(segment(folder, "data_level0.bin")),
    "the header is garbage": lambda folder: overwrite(segment(folder, "header.bin")),
    "the links are missing": lambda folder: segment(folder, "link_lists.bin").unlink(),
    "the identifiers are garbage": lambda folder: overwrite(segment(folder, "index_metadata.pickle")),
    "the vectors are gone without a word": lambda folder: shutil.rmtree(segment(folder, "header.bin").parent),
    "everything is gone": lambda folder: shutil.rmtree(folder),
}
QUICK_BREAKAGES = ("the database is garbage", "the links are missing")
"""One of what Chroma notices when it opens the folder, and one of what it notices when it searches."""

MANY = [f"{title} on {day}" for title in TITLES for day in range(100)]
"""Enough for Chroma to write its files, which it does every thousand."""


@pytest.fixture(scope="module")
def full_journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a journal and its index are kept once made."""
    return tmp_path_factory.mktemp("full")


def copy_full_journal(full_journal: Path, open_journal: OpenJournal, folder: Path) -> None:
    """Put a journal with its whole index into a folder. The first test that needs them makes them."""
    kept = full_journal / "journal.db"
    if not kept.exists():
        journal = open_journal("full")
        journal.record(*MANY)
        journal.start()
        journal.wait_until_complete()
        journal.supervisor.stop()
        journal.folder.rename(full_journal / "index")
        with closing(sqlite3.connect(folder / "full.db")) as made, closing(sqlite3.connect(kept)) as copy:
            made.backup(copy)
    shutil.copy(kept, folder)
    shutil.copytree(full_journal / "index", folder / "index")


@pytest.mark.parametrize(
    "breakage", [pytest.param(name, marks=() if name in QUICK_BREAKAGES else pytest.mark.slow) for name in BREAKAGES]
)
def test_a_broken_folder_is_built_anew(
    open_journal: OpenJournal, tmp_path: Path, full_journal: Path, breakage: str
) -> None:
    copy_full_journal(full_journal, open_journal, tmp_path)
    journal = open_journal("journal")

    BREAKAGES[breakage](journal.folder)
    journal.start()
    assert journal.found(MANY[0], limit=1) == [MANY[0]]
    journal.wait_until_complete()
    assert journal.proposals(MANY[777], 1) == [MANY[777]]
    with closing(journal.open_index(url_of(journal))) as index:
        assert index.count() == len(MANY)
    assert not (tmp_path / "index.old").exists()


def test_an_index_of_another_journal_is_built_anew(open_journal: OpenJournal) -> None:
    before = open_journal("before")
    before.record(*TITLES)
    before.start()
    before.wait_until_complete()
    before.supervisor.stop()

    after = open_journal("after")
    after.record(*(f"breed {animal}" for animal in ("parrots", "newts", "voles")))
    after.start()
    after.wait_until_complete()
    assert sorted(after.proposals("queues", 100)) == ["breed newts", "breed parrots", "breed voles"]


def test_an_index_of_another_model_is_built_anew(journal: IndexedJournal) -> None:
    url = journal.chroma.start(threading.Event())
    with closing(ChromaIndex.open(url, "another model", 3)) as other:
        other.upsert(["dec-0"], [np.ones(3, np.float32)], 0)
    journal.chroma.stop()

    journal.record(PARROTS)
    journal.start()
    journal.wait_until_complete()
    with closing(journal.open_index(url_of(journal))) as index:
        assert (index.other_collections(), index.count()) == ([], 1)


def test_a_second_supervisor_leaves_a_used_folder_alone(journal: IndexedJournal, open_journal: OpenJournal) -> None:
    journal.record(*TITLES)
    journal.start()
    journal.wait_until_complete()
    second = open_journal("second")
    second.record(PARROTS)
    second.start()
    second.wait_for("unavailable")
    assert second.supervisor.state() == f"unavailable: {journal.folder}: is in use by another process"
    assert second.found(PARROTS) == [PARROTS]
    journal.supervisor.stop()
    second.wait_until_complete()
    assert second.proposals(PARROTS, 1) == [PARROTS]


def test_stopping_ends_the_child(journal: IndexedJournal) -> None:
    journal.start()
    journal.wait_for("ready")
    pid = pid_of(journal)
    journal.supervisor.stop()
    assert ended(pid)


@pytest.mark.slow
def test_stopping_does_not_wait_for_a_child_that_hangs(
    journal: IndexedJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.record(PARROTS)
    journal.start()
    journal.wait_until_complete()
    pid = pid_of(journal)
    monkeypatch.setattr(index_supervisor, "STOP_SECONDS", 0.2)
    # Longer than the test may take: a request that the child holds must not be waited for.
    monkeypatch.setattr(chroma_index, "FEED_SECONDS", 600.0)
    fed, call = threading.Event(), ChromaHttpClient.call

    def note_feeding(http: ChromaHttpClient, method: str, path: str, body: object, timeout: float) -> Any:
        if path.endswith(("/get", "/upsert")):
            fed.set()
        return call(http, method, path, body, timeout)

    monkeypatch.setattr(ChromaHttpClient, "call", note_feeding)
    os.kill(pid, signal.SIGSTOP)
    journal.record("count red parrots")
    assert fed.wait(20)
    journal.supervisor.stop()
    assert ended(pid)


def test_a_supervisor_that_was_never_started_can_be_stopped(journal: IndexedJournal) -> None:
    journal.supervisor.stop()


def test_a_server_by_url_is_fed_and_what_else_is_in_it_left_alone(journal: IndexedJournal, tmp_path: Path) -> None:
    chroma = ChildChromaServer(tmp_path / "elsewhere")
    try:
        url = chroma.start(threading.Event())
        ChromaIndex.open(url, "another model", 3).close()
        journal.server = ChromaServer(url)
        journal.record(*TITLES)
        journal.start()
        journal.wait_until_complete()
        with closing(journal.open_index(url)) as index:
            assert (index.count(), len(index.other_collections())) == (len(TITLES), 1)
            index.reset()
        # Somebody has removed our collection; a search notices, and all is built anew.
        assert journal.found(TITLES[0]) == [TITLES[0]]
        wait_until(lambda: index_count(journal, url) == len(TITLES), "the collection is full again")
    finally:
        journal.stop()
        chroma.stop()


def index_count(journal: IndexedJournal, url: str) -> int:
    with closing(journal.open_index(url)) as index:
        return index.count()


def test_a_url_where_nothing_answers_is_tried_again(journal: IndexedJournal, tmp_path: Path) -> None:
    chroma = ChildChromaServer(tmp_path / "elsewhere")
    url = chroma.start(threading.Event())
    chroma.stop()
    journal.server = ChromaServer(url)
    journal.start()
    journal.wait_for("unavailable: the Chroma server does not answer")


@pytest.mark.slow
def test_many_kills_while_it_is_fed_lose_nothing(journal: IndexedJournal) -> None:
    generator = np.random.default_rng(3)
    journal.start()
    recorded: list[str] = []
    for kill in range(7):
        titles = [f"kill{kill} row{number}" for number in range(300)]
        journal.record(*titles)
        recorded += titles
        wait_until(lambda: journal.chroma.url is not None, "a child is there")
        threading.Event().wait(generator.uniform(0, 0.3))
        pid = journal.chroma.pid
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        assert journal.found(titles[0]) == [titles[0]]
    journal.wait_until_complete()
    with closing(journal.open_index(url_of(journal))) as index:
        assert index.count() == len(recorded)
    missing = [title for title in recorded[::50] if title not in journal.proposals(title, 5)]
    assert len(missing) <= 1
