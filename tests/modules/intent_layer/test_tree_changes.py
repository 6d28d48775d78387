"""What is read of a project while it changes: a cache that is never behind, and no half of a file."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cstp_grpc.contract.errors import CstpError, InvalidArgument
from cstp_grpc.modules.intent_layer.project_tree import (
    ProjectTree,
)
from tests.modules.intent_layer.sample_project import everything
from tests.waiting import wait_until


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
