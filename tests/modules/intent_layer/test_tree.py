"""Paths that stay inside, reads that are bounded and never block, and a cache that is never behind."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cstp_grpc.contract.errors import InvalidArgument, Unavailable
from cstp_grpc.modules.intent_layer.project_files import NAMES_WITHOUT_GIT
from cstp_grpc.modules.intent_layer.project_tree import (
    MAX_DEPTH,
    MAX_FILE_BYTES,
    ProjectTree,
    UnreadableFolder,
)
from tests.modules.intent_layer.sample_project import PROJECT, everything
from tests.modules.intent_layer.trees import write_tree

NOBODY = 65534


@contextmanager
def unprivileged() -> Iterator[None]:
    """Have no more rights than anyone else: the superuser may read everything."""
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_the_chain_holds_ancestors_only(tree: ProjectTree) -> None:
    expected = ["CLAUDE.md", "src/AGENTS.md", "src/api/AGENTS.md"]
    for path in ("src/api", "src/api/handlers.ts", "src/api/new/x.ts", "src/api/AGENTS.md"):
        assert [node.path for node in tree.nodes_to_path(path)] == expected
    assert [node.path for node in tree.nodes_to_path("tests/unit/a.py")] == ["CLAUDE.md"]


def test_a_node_has_its_sections(tree: ProjectTree) -> None:
    node = tree.node("src/api")
    assert node
    assert (node.folder, node.path) == ("src/api", "src/api/AGENTS.md")
    section = node.sections[0]
    expected = ("Contracts", "All endpoints need auth.", "src/api/AGENTS.md", 1)
    assert (section.name, section.text, section.file, section.line) == expected
    assert node.files[0].text == PROJECT["src/api/AGENTS.md"]
    assert node.tokens == 10
    assert tree.node("tests") is None
    assert tree.node("nowhere") is None


def test_a_copy_counts_once(tree: ProjectTree, root: Path) -> None:
    for folder, expected in ((".", "CLAUDE.md"), ("src", "src/AGENTS.md")):
        text = (root / folder / "CLAUDE.md" if folder == "." else root / folder / "AGENTS.md").read_text()
        write_tree(root / folder, {"CLAUDE.md": text, "AGENTS.md": text})
        node = tree.node(folder)
        assert node
        assert [file.path for file in node.files] == [expected]


def test_a_link_beside_counts_once_and_gives_way_to_the_file(tree: ProjectTree, root: Path) -> None:
    (root / "AGENTS.md").symlink_to("CLAUDE.md")
    (root / "src/CLAUDE.md").symlink_to("AGENTS.md")
    (root / "src/api/AGENTS.md").rename(root / "src/api/CLAUDE.md")
    (root / "src/api/AGENTS.md").symlink_to("CLAUDE.md")
    assert [[file.path for file in node.files] for node in tree.nodes_to_path("src/api")] == [
        ["CLAUDE.md"],
        ["src/AGENTS.md"],
        ["src/api/CLAUDE.md"],
    ]


def test_two_different_files_are_both_read(tree: ProjectTree, root: Path) -> None:
    (root / "src/CLAUDE.md").write_text("## Checks\n\n- [ ] Ask.\n")
    node = tree.node("src")
    assert node
    assert [file.path for file in node.files] == ["src/CLAUDE.md", "src/AGENTS.md"]
    assert [section.name for section in node.sections] == ["Checks", "Purpose"]


@pytest.mark.parametrize("target", [".git/config", "../.git/config", ".Git/config", "src/.hg/hgrc"])
def test_a_node_that_is_a_link_into_version_control_is_refused(root: Path, target: str) -> None:
    folder = "src" if target.startswith("..") else "."
    write_tree(root, {f"{folder}/{target}": "[remote]\n\turl = https://secret@example\n"})
    (root / folder / "AGENTS.md").unlink(missing_ok=True)
    (root / folder / "AGENTS.md").symlink_to(target)
    with pytest.raises(InvalidArgument, match="version control"):
        ProjectTree(root).node(folder)


def test_a_node_may_be_a_link_within_the_project(tree: ProjectTree, root: Path) -> None:
    (root / "tests/AGENTS.md").symlink_to("../src/AGENTS.md")
    (root / "tests/unit/AGENTS.md").symlink_to(root / "src/api/AGENTS.md")
    assert [node.path for node in tree.nodes_to_path("tests/unit")] == [
        "CLAUDE.md",
        "tests/AGENTS.md",
        "tests/unit/AGENTS.md",
    ]


@pytest.mark.parametrize("target", ["nowhere.md", "AGENTS.md", "../src"])
def test_a_link_that_leads_to_no_file_is_no_node(tree: ProjectTree, root: Path, target: str) -> None:
    (root / "tests/AGENTS.md").symlink_to(target)
    assert tree.node("tests") is None


@pytest.mark.parametrize("relative", [True, False])
def test_a_node_that_is_a_link_out_of_the_project_is_refused(
    tree: ProjectTree, root: Path, secret: Path, relative: bool
) -> None:
    (root / "tests/AGENTS.md").symlink_to("../../project-secret/AGENTS.md" if relative else secret / "AGENTS.md")
    with pytest.raises(InvalidArgument, match=r"tests/AGENTS\.md leads out"):
        tree.nodes_to_path("tests/unit")
    assert len(tree.nodes_to_path("src/api")) == 3
    assert "secret'" not in everything(tree)


def test_a_link_that_comes_after_the_path_was_located_leads_nowhere(
    tree: ProjectTree, root: Path, secret: Path
) -> None:
    located = tree.locate("src/api/handlers.ts")
    (root / "src").rename(root / "was-src")
    (root / "src").symlink_to(secret)
    assert [node.path for node in tree.nodes_to_path(located)] == ["CLAUDE.md"]
    assert tree.node("src") is None
    assert tree.read("src/AGENTS.md") is None
    assert not tree.exists(located)


def test_a_read_follows_no_link(tree: ProjectTree, root: Path, secret: Path) -> None:
    (root / "file").symlink_to(secret / "AGENTS.md")
    assert tree.read("file") is None
    assert tree.read("src") is None
    assert tree.read("nowhere") is None
    assert tree.read("src/api/handlers.ts") == b"x"


def test_a_read_is_bounded(tree: ProjectTree) -> None:
    assert tree.read("src/api/handlers.ts", limit=1) == b"x"
    with pytest.raises(InvalidArgument, match=r"src/api/handlers\.ts is larger than 0 bytes"):
        tree.read("src/api/handlers.ts", limit=0)


def test_a_huge_node_is_refused_whole(tree: ProjectTree, root: Path) -> None:
    (root / "src/AGENTS.md").write_bytes(b"x" * MAX_FILE_BYTES)
    assert tree.node("src")
    with (root / "src/AGENTS.md").open("ab") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(InvalidArgument, match=r"src/AGENTS\.md is larger"):
        tree.nodes_to_path("src/api")
    os.truncate(root / "src/AGENTS.md", 1 << 40)
    with pytest.raises(InvalidArgument, match=r"src/AGENTS\.md is larger"):
        tree.node("src")


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def make_device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("no right to make devices")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", [make_fifo, make_socket, make_device])
def test_what_is_no_regular_file_never_blocks(
    make: Callable[[Path], None], tree: ProjectTree, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root / "tests")
    make(Path("AGENTS.md"))
    with pytest.raises(InvalidArgument, match=r"tests/AGENTS\.md is not a regular file"):
        tree.nodes_to_path("tests/unit")
    (root / "tests/unit/AGENTS.md").symlink_to("../AGENTS.md")
    with pytest.raises(InvalidArgument, match=r"tests/unit/AGENTS\.md is not a regular file"):
        tree.node("tests/unit")
    assert tree.read("tests/AGENTS.md") is None
    assert [found.folder for found in tree.walk() if isinstance(found, UnreadableFolder)] == ["tests", "tests/unit"]


def test_a_folder_named_like_a_node_is_none(tree: ProjectTree, root: Path) -> None:
    (root / "tests/AGENTS.md").mkdir()
    assert tree.node("tests") is None
    assert [node.path for node in tree.nodes_to_path("tests/AGENTS.md/x")] == ["CLAUDE.md"]


@pytest.fixture
def open_root() -> Iterator[Path]:
    """A project that everyone may enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield write_tree(Path(folder), PROJECT)


def test_a_node_that_may_not_be_read_is_unavailable(open_root: Path) -> None:
    tree = ProjectTree(open_root)
    (open_root / "src/api/AGENTS.md").chmod(0)
    with unprivileged():
        assert len(tree.nodes_to_path("src/auth")) == 3
        with pytest.raises(Unavailable, match=r"src/api/AGENTS\.md cannot be read"):
            tree.nodes_to_path("src/api")
        assert [type(found) for found in tree.walk()].count(UnreadableFolder) == 1
        assert [node.path for node in tree.nodes()] == ["CLAUDE.md", "src/AGENTS.md", "src/auth/AGENTS.md"]


def test_a_folder_that_may_not_be_entered_is_unavailable(open_root: Path) -> None:
    tree = ProjectTree(open_root)
    (open_root / "src").chmod(0)
    try:
        with unprivileged():
            with pytest.raises(Unavailable):
                tree.nodes_to_path("src/api")
            assert [node.path for node in tree.nodes()] == ["CLAUDE.md"]
            assert [found.folder for found in tree.walk() if isinstance(found, UnreadableFolder)] == ["src"]
    finally:
        (open_root / "src").chmod(0o755)


def test_a_folder_that_may_not_be_listed_is_passed_through(open_root: Path) -> None:
    tree = ProjectTree(open_root)
    (open_root / "src").chmod(0o711)
    with unprivileged():
        assert len(tree.nodes_to_path("src/api")) == 3
        with pytest.raises(Unavailable):
            tree.listing("src")


def test_bytes_that_are_no_utf8_are_replaced_and_told(tree: ProjectTree, root: Path) -> None:
    (root / "src/AGENTS.md").write_bytes(b"## Purpose\n\n\xff\xfe caf\xe9\n")
    node = tree.node("src")
    assert node
    assert not node.files[0].decoded
    assert node.sections[0].text == "\ufffd\ufffd caf\ufffd"
    (root / "src/AGENTS.md").write_text("## Purpose\n\n\ufffd\n", encoding="utf-8")
    node = tree.node("src")
    assert node
    assert node.files[0].decoded


def test_names_that_are_no_utf8_are_passed_over(tree: ProjectTree, root: Path) -> None:
    write_tree(root, {f"src/{os.fsdecode(bytes([0xFF, 0xFE]))}/AGENTS.md": "hidden"})
    before = [node.path for node in tree.nodes()]
    assert before == ["CLAUDE.md", "src/AGENTS.md", "src/api/AGENTS.md", "src/auth/AGENTS.md"]
    listing = tree.listing("src")
    assert listing
    assert (listing.folders, listing.files) == (("api", "auth"), ("AGENTS.md",))


def test_nodes_come_parents_first_and_in_order(tree: ProjectTree, root: Path) -> None:
    write_tree(root, {"src-b/AGENTS.md": "b", "a/b/AGENTS.md": "c", "a/AGENTS.md": "d", "Z/AGENTS.md": "e"})
    assert [node.folder for node in tree.nodes()] == [
        ".",
        "Z",
        "a",
        "a/b",
        "src",
        "src/api",
        "src/auth",
        "src-b",
    ]


def test_a_walk_follows_no_link_and_passes_some_folders_over(tree: ProjectTree, root: Path, secret: Path) -> None:
    before = [node.folder for node in tree.nodes()]
    (root / "out").symlink_to(secret)
    (root / "up").symlink_to(".")
    (root / "src/again").symlink_to("api")
    for name in NAMES_WITHOUT_GIT:
        write_tree(root, {f"{name}/AGENTS.md": "x", f"src/{name}/sub/AGENTS.md": "x"})
    assert [node.folder for node in tree.nodes()] == before


def test_a_walk_ends_somewhere(tree: ProjectTree, root: Path) -> None:
    deepest = "/".join(["d"] * (MAX_DEPTH + 50))
    write_tree(root, {f"{deepest}/AGENTS.md": "x", f"{'/'.join(['d'] * MAX_DEPTH)}/AGENTS.md": "x"})
    assert max(node.folder.count("/") + 1 for node in tree.nodes()) == MAX_DEPTH
    assert tree.nodes_to_path(deepest)[-1].folder == deepest


def test_nothing_stays_open(tree: ProjectTree) -> None:
    def descriptors() -> int:
        return len(list(Path("/dev/fd").iterdir()))

    list(tree.nodes())
    before = descriptors()
    for _ in range(20):
        walk = tree.walk()
        next(walk)
        next(walk)
        del walk
        tree.nodes_to_path("src/api/x")
        tree.node("nowhere/x")
        with pytest.raises(InvalidArgument):
            tree.read("src/AGENTS.md", limit=0)
    assert descriptors() == before
