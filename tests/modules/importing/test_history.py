"""Dates from a file's first commit."""

from __future__ import annotations

import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cstp_grpc.modules.importing import DateOrigin, ParsedRecord, read_records
from cstp_grpc.modules.importing.record_files import FileDates, SourceNames
from tests.modules.importing.folder import Folder, git, nygard

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

UNDATED = nygard(date="")
FIRST = datetime(2019, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def tree(folder: Folder) -> Folder:
    """A repository whose first commit has an undated record."""
    git(folder.path, "init")
    folder.write("adr/0001-ä b.md", UNDATED)
    folder.write("code.py", "pass\n")
    git(folder.path, "add", ".")
    git(folder.path, "commit", "-m", "first", date="2019-01-02T04:04:05+01:00")
    return folder


def dates(folder: Folder) -> dict[str, tuple[datetime | None, DateOrigin]]:
    return {
        found.path.name: (found.record.content.date, found.date_from)
        for found in read_records([folder.path])
        if isinstance(found, ParsedRecord)
    }


def test_a_file_has_the_date_of_its_first_commit(tree: Folder) -> None:
    tree.write("adr/0001-ä b.md", UNDATED + "\nMore.\n")
    git(tree.path, "commit", "-am", "change")
    assert dates(tree) == {"0001-ä b.md": (FIRST, DateOrigin.FIRST_COMMIT)}


def test_renames_are_followed(tree: Folder) -> None:
    (tree.path / "docs").mkdir()
    git(tree.path, "mv", "adr/0001-ä b.md", "docs/0001-c.md")
    git(tree.path, "commit", "-m", "move")
    git(tree.path, "mv", "docs/0001-c.md", "docs/0002-d.md")
    git(tree.path, "commit", "-m", "move again")
    assert dates(tree) == {"0002-d.md": (FIRST, DateOrigin.FIRST_COMMIT)}


def test_a_file_that_is_not_committed_has_its_modification_time(tree: Folder) -> None:
    tree.write("0002-new.md", UNDATED.replace("# 1.", "# 2."))
    assert dates(tree)["0002-new.md"][1] is DateOrigin.MODIFIED


def test_entries_of_a_data_file_without_dates_share_its_first_commit(tree: Folder) -> None:
    tree.write("list.jsonl", '{"title": "A"}\n{"title": "B", "date": "2021-01-01"}\n')
    git(tree.path, "add", ".")
    git(tree.path, "commit", "-m", "list")
    origins = [found.date_from for found in tree.read("list.jsonl") if isinstance(found, ParsedRecord)]
    assert origins == [DateOrigin.FIRST_COMMIT, DateOrigin.FIELD]


def test_where_a_shallow_clone_is_cut_nothing_counts_as_first(tree: Folder, tmp_path: Path) -> None:
    tree.write("0002-new.md", UNDATED.replace("# 1.", "# 2."))
    git(tree.path, "add", ".")
    git(tree.path, "commit", "-m", "second")
    git(tmp_path, "clone", "--depth", "1", tree.path.as_uri(), "clone")
    assert {origin for _, origin in dates(Folder(tmp_path / "clone")).values()} == {DateOrigin.MODIFIED}


def test_git_runs_once_for_a_work_tree(tree: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2, 6):
        tree.write(f"{number:04}-x.md", UNDATED.replace("# 1.", f"# {number}."))
    calls: list[object] = []
    run = subprocess.run

    def counting(command: list[str], **options: object) -> object:
        calls.append(command)
        return run(command, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "run", counting)
    assert len(dates(tree)) == 5
    assert len(calls) == 1


def test_without_git_the_modification_time_is_taken_and_that_is_said(
    tree: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tree.path))
    parsed = tree.parsed("adr/0001-ä b.md")
    assert parsed.date_from is DateOrigin.MODIFIED
    assert "its first commit is not known: git is not installed" in parsed.notes


def test_a_repository_that_git_cannot_read_is_said(folder: Folder) -> None:
    folder.write(".git", "gitdir: nowhere\n")
    folder.write("0001-a.md", UNDATED)
    parsed = folder.parsed("0001-a.md")
    assert parsed.date_from is DateOrigin.MODIFIED
    assert any(note.startswith("its first commit is not known: git says: fatal:") for note in parsed.notes)


def test_a_repository_cannot_make_git_run_programs(tree: Folder, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    for key in ("core.fsmonitor", "core.pager", "gpg.program", "diff.external", "core.sshCommand"):
        git(tree.path, "config", key, f"touch {trap}; false")
    git(tree.path, "config", "log.showSignature", "true")
    assert dates(tree)["0001-ä b.md"][1] is DateOrigin.FIRST_COMMIT
    assert not trap.exists()


def test_a_history_that_takes_too_long_is_given_up(tree: Folder) -> None:
    dated = FileDates(SourceNames(), timeout=1e-6).date_of(tree.path / "adr" / "0001-ä b.md")
    assert dated.origin is DateOrigin.MODIFIED
    assert dated.remark == "its first commit is not known: git took longer than 1e-06 s"
