"""Paths that stay inside, reads that are bounded and never block, and a cache that is never behind."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.errors import CstpError, InvalidArgument, Unavailable
from cstp_grpc.intent_layer.project_tree import (
    MAX_DEPTH,
    MAX_FILE_BYTES,
    SKIPPED_FOLDERS,
    ProjectTree,
    UnreadableFolder,
)
from tests.intent_layer.trees import write_tree
from tests.waiting import wait_until

PROJECT = {
    "CLAUDE.md": "# Shop\n\n## Purpose\n\nSells.\n",
    "src/AGENTS.md": "## Purpose\n\nThe code.\n",
    "src/api/AGENTS.md": "## Contracts\n\nAll endpoints need auth.\n",
    "src/api/handlers.ts": "x",
    "src/auth/AGENTS.md": "## Pitfalls\n\nTokens expire.\n",
    "tests/unit/a.py": "x",
}
NOBODY = 65534


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "project", PROJECT)


@pytest.fixture
def tree(root: Path) -> ProjectTree:
    return ProjectTree(root)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A folder outside the project, with a node that nobody in it may see."""
    return write_tree(tmp_path / "project-secret", {"AGENTS.md": "## Purpose\n\nsecret\n", "sub/AGENTS.md": "secret"})


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


def everything(tree: ProjectTree) -> str:
    return repr(list(tree.walk()))


def refusal(tree: ProjectTree, path: str) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        tree.locate(path, "paths[3]")
    assert [violation.field for violation in caught.value.violations] == ["paths[3]"]
    return caught.value


@pytest.mark.parametrize(
    ("written", "located"),
    [
        (".", "."),
        ("./", "."),
        ("src", "src"),
        ("src/", "src"),
        ("./src//api/./handlers.ts", "src/api/handlers.ts"),
        ("src/../tests", "tests"),
        ("src/api/../..", "."),
        ("src/new/deeper/file.ts", "src/new/deeper/file.ts"),
        ("src/api/handlers.ts/below", "src/api/handlers.ts/below"),
        ("src/ a b", "src/ a b"),
        ("~", "~"),
        ("...", "..."),
        ("src\\api", "src\\api"),
    ],
)
def test_a_path_is_normalised(tree: ProjectTree, written: str, located: str) -> None:
    assert tree.locate(written) == located


@pytest.mark.parametrize(
    "path",
    [
        "",
        "..",
        "../project",
        "src/../../project/src",
        "src/../..",
        "/",
        "/etc/passwd",
        "//src",
        "src\0",
        "\0",
        "src/\ud800",
        "\udcff",
        "a" * 256,
        "src/" + "é" * 128,
        "a/" * 2500 + "a",
        "a" * 5000,
    ],
)
def test_a_path_that_leaves_or_that_no_file_can_have_is_refused(tree: ProjectTree, path: str) -> None:
    refusal(tree, path)


def test_an_absolute_path_is_refused_even_inside(tree: ProjectTree, root: Path) -> None:
    refusal(tree, str(root / "src"))


def test_the_longest_names_and_paths_are_taken(tree: ProjectTree) -> None:
    assert tree.locate("a" * 255) == "a" * 255
    longest = "/".join(["a" * 255] * 15)
    assert tree.locate(longest) == longest
    assert tree.nearest_folder(longest) == "."


@given(st.lists(st.sampled_from(["src", "api", "new", "..", ".", "", "in", "out", "loop", "AGENTS.md"]), max_size=8))
def test_what_is_located_stays_inside(parts: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = write_tree(Path(folder) / "project", PROJECT)
        outside = write_tree(Path(folder) / "outside", {"AGENTS.md": "secret"})
        (root / "in").symlink_to("src/api")
        (root / "src/out").symlink_to(outside)
        (root / "out").symlink_to("src/out")
        (root / "loop").symlink_to("loop")
        tree = ProjectTree(root)
        try:
            located = tree.locate("/".join(parts))
        except InvalidArgument:
            return
        assert (root / located).resolve() == root / located
        assert "secret" not in repr(tree.nodes_to_path(located))


def test_a_link_inside_is_followed(tree: ProjectTree, root: Path) -> None:
    (root / "link").symlink_to("src/api")
    (root / "absolute").symlink_to(root / "src")
    assert tree.locate("link/handlers.ts") == "src/api/handlers.ts"
    assert tree.locate("link/new.ts") == "src/api/new.ts"
    assert tree.locate("absolute/api") == "src/api"
    assert [node.path for node in tree.nodes_to_path(tree.locate("link"))] == [
        "CLAUDE.md",
        "src/AGENTS.md",
        "src/api/AGENTS.md",
    ]


@pytest.mark.parametrize("path", ["out", "out/sub", "out/new/file", "src/out", "out/../src/out", "deep/again"])
def test_a_link_that_leads_outside_is_refused(tree: ProjectTree, root: Path, secret: Path, path: str) -> None:
    (root / "out").symlink_to(secret)
    (root / "src/out").symlink_to("../../project-secret/sub")
    (root / "deep").symlink_to("out")
    assert "secret" not in refusal(tree, path).message


def test_a_link_to_nothing_outside_is_refused(tree: ProjectTree, root: Path) -> None:
    (root / "out").symlink_to("/nowhere/at/all")
    refusal(tree, "out")
    refusal(tree, "out/file")


def test_links_in_a_circle_are_refused(tree: ProjectTree, root: Path) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    refusal(tree, "a")
    refusal(tree, "a/file")
    (root / "src/self").symlink_to(".")
    assert tree.locate("src/self/self/api") == "src/api"


def test_a_link_to_a_name_that_is_not_utf8_is_refused(tree: ProjectTree, root: Path) -> None:
    name = os.fsdecode(b"\xff")
    (root / name).mkdir()
    (root / "link").symlink_to(name)
    refusal(tree, "link")


def test_a_root_that_is_a_link_is_followed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to(root)
    tree = ProjectTree(tmp_path / "current")
    assert tree.locate("src/api") == "src/api"
    assert len(tree.nodes_to_path("src/api")) == 3


def test_a_root_that_is_missing_is_unavailable(tmp_path: Path) -> None:
    tree = ProjectTree(tmp_path / "nowhere")
    for call in (lambda: tree.locate("src"), lambda: tree.nodes_to_path("src"), lambda: list(tree.nodes())):
        with pytest.raises(Unavailable):
            call()


def test_what_is_there_is_known(tree: ProjectTree) -> None:
    assert (tree.exists("."), tree.is_folder(".")) == (True, True)
    assert (tree.exists("src/api"), tree.is_folder("src/api")) == (True, True)
    assert (tree.exists("src/api/handlers.ts"), tree.is_folder("src/api/handlers.ts")) == (True, False)
    assert (tree.exists("src/new"), tree.is_folder("src/new")) == (False, False)
    assert (tree.exists("src/api/handlers.ts/x"), tree.is_folder("src/api/handlers.ts/x")) == (False, False)


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        (".", "."),
        ("src/api", "src/api"),
        ("src/api/handlers.ts", "src/api"),
        ("src/api/new/deeper/x", "src/api"),
        ("src/api/handlers.ts/x", "src/api"),
        ("new", "."),
    ],
)
def test_the_nearest_folder_is_found(tree: ProjectTree, path: str, folder: str) -> None:
    assert tree.nearest_folder(path) == folder


@pytest.mark.parametrize("path", ["..", "../project-secret", "src/../../project-secret", "/etc", "", "a\0b", "\ud800"])
def test_a_path_that_was_not_located_finds_nothing(tree: ProjectTree, secret: Path, path: str) -> None:
    assert not tree.exists(path)
    assert tree.node(path) is None
    assert tree.nodes_to_path(path) == ()
    assert tree.listing(path) is None
    assert tree.read(f"{path}/AGENTS.md") is None
    assert tree.document(f"{path}/AGENTS.md") is None


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
    with pytest.raises(InvalidArgument, match=r"tests/AGENTS\.md is no regular file"):
        tree.nodes_to_path("tests/unit")
    (root / "tests/unit/AGENTS.md").symlink_to("../AGENTS.md")
    with pytest.raises(InvalidArgument, match=r"tests/unit/AGENTS\.md is no regular file"):
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
    for name in SKIPPED_FOLDERS:
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


def test_a_change_shows_at_once(tree: ProjectTree, root: Path) -> None:
    file = root / "src/AGENTS.md"
    for number in range(50):
        file.write_text(f"## Purpose\n\n{number:04}\n")
        node = tree.node("src")
        assert node
        assert node.sections[0].text == f"{number:04}"


def test_a_change_shows_even_where_size_and_time_stay(tree: ProjectTree, root: Path) -> None:
    file = root / "src/AGENTS.md"
    for text in ("old", "new"):
        file.write_text(f"## Purpose\n\n{text}\n")
        os.utime(file, ns=(1, 1))
        node = tree.node("src")
        assert node
        assert node.sections[0].text == text


def test_a_node_comes_and_goes(tree: ProjectTree, root: Path) -> None:
    assert len(tree.nodes_to_path("src/api")) == 3
    (root / "src/AGENTS.md").unlink()
    assert len(tree.nodes_to_path("src/api")) == 2
    (root / "src/AGENTS.md").write_text("back")
    assert len(tree.nodes_to_path("src/api")) == 3


def in_an_hour() -> int:
    return time.time_ns() + 3_600_000_000_000


def test_a_node_is_read_once_when_it_has_settled(root: Path) -> None:
    tree = ProjectTree(root, clock=in_an_hour)
    (root / "AGENTS.md").symlink_to("CLAUDE.md")
    first = tree.nodes_to_path("src/api")
    assert all(
        before.files[0] is after.files[0] for before, after in zip(first, tree.nodes_to_path("src/api"), strict=True)
    )
    assert tree.document("src/AGENTS.md") is tree.document("src/AGENTS.md")
    (root / "src/AGENTS.md").write_text("## Purpose\n\nChanged.\n")
    assert tree.nodes_to_path("src/api")[1].sections[0].text == "Changed."


def test_a_node_that_has_just_changed_is_read_again(root: Path) -> None:
    tree = ProjectTree(root, clock=lambda: (root / "src/AGENTS.md").stat().st_ctime_ns)
    assert tree.document("src/AGENTS.md") is not tree.document("src/AGENTS.md")


@pytest.mark.parametrize("characters", [1, 2100, 5000])
def test_a_small_cache_only_costs_time(root: Path, characters: int) -> None:
    tree = ProjectTree(root, cached_characters=characters, clock=in_an_hour)
    for _ in range(2):
        assert list(tree.nodes()) == list(ProjectTree(root).nodes())


def test_a_reader_never_sees_half_a_replaced_node(tree: ProjectTree, root: Path) -> None:
    file = root / "src/AGENTS.md"
    contents = ["## Purpose\n\n" + letter * 20_000 for letter in "ab"]
    file.write_text(contents[0])
    finished = threading.Event()

    def read() -> set[str]:
        seen = set()
        while not finished.is_set():
            node = tree.node("src")
            if node:
                seen.add(node.files[0].text)
        return seen

    # Written beforehand, so that the node is replaced faster than it can be read.
    replacements = [root / f"{number}.new" for number in range(2_000)]
    for number, new in enumerate(replacements):
        new.write_text(contents[number % 2])
    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read) for _ in range(3)]
        try:
            for new in replacements:
                new.replace(file)
        finally:
            finished.set()
        seen = [reader.result(timeout=30) for reader in readers]
    assert set().union(*seen) <= set(contents)


def test_folders_that_vanish_and_become_links_never_lead_outside(tree: ProjectTree, root: Path, secret: Path) -> None:
    finished = threading.Event()
    seen: list[str] = []
    errors: list[CstpError] = []

    def read() -> None:
        while not finished.is_set():
            try:
                seen.append(repr(tree.nodes_to_path("src/api")) + everything(tree) + repr(tree.read("src/AGENTS.md")))
                tree.locate("src/api")
            except CstpError as error:
                errors.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(200):
            (root / "src").rename(root / "away")
            (root / "src").symlink_to(secret)
            (root / "src").unlink()
            (root / "away").rename(root / "src")
        wait_until(lambda: bool(seen), "everything is read once")
    finally:
        finished.set()
    for reader in readers:
        reader.join(timeout=30)
    assert not [text for text in seen if "secret" in text]
    assert all(isinstance(error, InvalidArgument) for error in errors)
