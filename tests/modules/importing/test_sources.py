"""What identifies a file, and which files are found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cstp_grpc.modules.importing import ParsedRecord, SkippedRecord, find_record_files, read_records
from tests.modules.importing.folder import Folder, nygard


@pytest.fixture
def shop(folder: Folder) -> Folder:
    """A work tree with a record."""
    tree = Folder(folder.path / "shop")
    (tree.path / ".git").mkdir()
    tree.write("docs/adr/0001-sessions.md", nygard())
    return tree


def sources(*paths: Path) -> list[str]:
    return [result.record.source for result in read_records(paths) if isinstance(result, ParsedRecord)]


def test_a_file_has_the_same_source_whichever_way_it_is_reached(shop: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    (shop.path.parent / "link").symlink_to(shop.path / "docs")
    monkeypatch.chdir(shop.path / "docs")
    for path in (
        shop.path,
        shop.path / "docs" / "adr" / "0001-sessions.md",
        Path("adr"),
        Path("../docs/adr/0001-sessions.md"),
        Path(),
        shop.path.parent / "link" / "adr",
    ):
        assert sources(path) == ["shop/docs/adr/0001-sessions.md"]


def test_outside_of_a_work_tree_the_source_is_the_absolute_path(folder: Folder) -> None:
    path = folder.write("0001-sessions.md", nygard())
    assert sources(folder.path) == [os.path.realpath(path)]


def test_a_work_tree_that_is_linked_to_another_folder_has_its_own_name(folder: Folder) -> None:
    folder.write("checkout/.git", "gitdir: /elsewhere/.git/worktrees/checkout\n")
    folder.write("checkout/0001-sessions.md", nygard())
    assert sources(folder.path) == ["checkout/0001-sessions.md"]


def test_each_file_is_read_once(folder: Folder) -> None:
    path = folder.write("a/0001-sessions.md", nygard())
    (folder.path / "again.md").symlink_to(path)
    (folder.path / "a" / "loop").symlink_to(folder.path)
    assert len(list(read_records([folder.path, path, folder.path / "a"]))) == 1


def test_files_are_found_in_order_without_what_is_hidden(folder: Folder) -> None:
    for name in ("b.md", "a/z.md", "a/.hidden.md", ".hidden/x.md", "c.txt"):
        folder.write(name, "x")
    named = folder.write(".named.md", "x")
    assert [path.relative_to(folder.path).as_posix() for path in find_record_files([folder.path, named])] == [
        "a/z.md",
        "b.md",
        "c.txt",
        ".named.md",
    ]


def test_every_file_that_is_found_is_told_when_it_is_done(folder: Folder) -> None:
    for name in ("a.md", "b.yaml", "c.jsonl", "d.bin"):
        folder.write(name, "x")
    done: list[Path] = []
    results = list(read_records([folder.path, folder.path / "missing.md"], on_file=done.append))
    assert done == find_record_files([folder.path, folder.path / "missing.md"])
    assert [result.path for result in results] == done


def test_what_cannot_be_read_is_an_error_and_stops_nothing(folder: Folder) -> None:
    folder.write("0001-latin.md", nygard(title="Café").encode("latin-1"))
    folder.write("0002-wide.md", nygard().encode("utf-16"))
    folder.write("0003-binary.md", b"# A\n\0\n")
    folder.write("0004-huge.md", nygard() + "x" * 1024 * 1024)
    folder.write("0005-good.md", nygard(5))
    (folder.path / "0006-broken-link.md").symlink_to(folder.path / "nowhere.md")
    (folder.path / "0007-circle.md").symlink_to(folder.path / "0007-circle.md")
    os.mkfifo(folder.path / "0008-pipe.md")
    results = {result.path.name: result for result in folder.read()}
    reasons = {
        name: result.reason for name, result in results.items() if isinstance(result, SkippedRecord) and result.error
    }
    assert reasons == {
        "0001-latin.md": "it is not UTF-8 text: byte 0xe9 at offset 8",
        "0002-wide.md": "it is UTF-16, not UTF-8",
        "0003-binary.md": "it is not text: NUL at offset 4",
        "0004-huge.md": "it is larger than 1 MiB",
        "0006-broken-link.md": "it cannot be read: No such file or directory",
        "0007-circle.md": "it cannot be read: Too many levels of symbolic links",
        "0008-pipe.md": "it is not a regular file",
    }
    assert isinstance(results["0005-good.md"], ParsedRecord)


@pytest.mark.parametrize("name", ["missing.md", "x" * 300 + ".md", "nul\0.md"])
def test_a_path_that_is_not_there_is_an_error(folder: Folder, name: str) -> None:
    assert folder.skipped(name).error
    assert folder.skipped(name).reason.startswith("it cannot be read")


def test_a_name_that_is_not_utf_8_is_an_error(folder: Folder) -> None:
    path = folder.path / os.fsdecode(b"0001-caf\xe9.md")
    try:
        path.write_text(nygard())
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    skipped = folder.skipped()
    assert (skipped.reason, skipped.error) == ("its name is not UTF-8 text", True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may list any folder")
def test_a_folder_that_cannot_be_listed_is_an_error(folder: Folder) -> None:
    closed = folder.path / "closed"
    closed.mkdir(mode=0)
    skipped = folder.skipped()
    closed.chmod(0o700)
    assert (skipped.path, skipped.reason) == (closed, "the folder cannot be listed")


def test_an_empty_folder_gives_nothing(folder: Folder) -> None:
    assert folder.read() == []
    assert find_record_files([folder.path]) == []
