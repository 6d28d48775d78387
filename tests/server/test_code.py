"""What announcements are told about their code."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from cstp_grpc.contract.errors import InvalidArgument, NotFound
from cstp_grpc.core.guardrails.model import CodeFacts
from cstp_grpc.core.intents.model import CodeContext, CodeNote
from cstp_grpc.modules.intent_layer.code_context_reader import ProjectCodeReader
from cstp_grpc.modules.intent_layer.learning_store import LearningStore, ProjectSources
from cstp_grpc.modules.intent_layer.model import LearningType, NewLearning
from cstp_grpc.modules.intent_layer.project_tree import MAX_FILE_BYTES, ProjectTree
from tests.modules.intent_layer.trees import write_tree

NOW = datetime(2026, 2, 4, 21, tzinfo=UTC)
SHOP = {
    "CLAUDE.md": "# Shop\n\n## Contracts\nPrices are in cents.\n\n"
    "## Boundaries\n### Never\n- Edit a released migration\n### Always\n- Write the test first\n\n"
    "## Checks\n- [ ] Run all tests\n",
    "src/AGENTS.md": "## Pitfalls\n- The clock is in UTC\n\n## Boundaries\n- **Ask first** change the schema\n",
    "src/api/AGENTS.md": "## Checks\n- [ ] Run the contract tests\n- [ ] Run all tests\n\n"
    "## Contracts\nHandlers are pure.\n",
    "src/api/handlers.ts": "",
    "src/auth/AGENTS.md": "## Pitfalls\n### Tokens are long\nMuch longer.\n",
    "docs/AGENTS.md": "## Pitfalls\n- Links break\n",
}


def sources(root: Path) -> ProjectSources:
    tree = ProjectTree(root)
    return ProjectSources(tree, LearningStore(tree, lambda: NOW))


@pytest.fixture
def shop(tmp_path: Path) -> ProjectSources:
    return sources(write_tree(tmp_path / "shop", SHOP))


@pytest.fixture
def code(shop: ProjectSources) -> ProjectCodeReader:
    return ProjectCodeReader({"shop": shop})


def look(code: ProjectCodeReader, *paths: str) -> CodeContext:
    found = code.read_context("shop", paths)
    assert found is not None
    return found


def test_a_path_is_governed_from_the_root_down_and_by_nothing_beside_it(code: ProjectCodeReader) -> None:
    found = look(code, "src/api/handlers.ts")

    assert (found.project, found.paths, bool(found.nodes)) == ("shop", ("src/api/handlers.ts",), True)
    assert found.nodes == ("CLAUDE.md", "src/AGENTS.md", "src/api/AGENTS.md")
    assert found.contracts == (
        CodeNote("CLAUDE.md", "Prices are in cents.", 3),
        CodeNote("src/api/AGENTS.md", "Handlers are pure.", 5),
    )
    assert found.pitfalls == (CodeNote("src/AGENTS.md", "- The clock is in UTC", 1),)
    assert [(note.file, note.line) for note in found.checks] == [("CLAUDE.md", 12), ("src/api/AGENTS.md", 1)]
    assert [note.file for note in found.boundaries] == ["CLAUDE.md", "src/AGENTS.md"]
    assert found.check_items == ("Run the contract tests", "Run all tests")
    assert found.rules == CodeFacts(
        paths=("src/api/handlers.ts",),
        never=("Edit a released migration",),
        ask_first=("change the schema",),
        always=("Write the test first",),
        checks=("Run the contract tests", "Run all tests"),
        pitfalls=("The clock is in UTC",),
    )
    assert (found.pending, found.missing) == ((), ())


def test_sections_with_other_headings_come_too_those_of_the_protocol_last(tmp_path: Path) -> None:
    text = (
        "# Shop\n\nNever by hand.\n\n## Purpose\nSells.\n\n## Invariants\n- Orders stay\n\n## Empty\n\n## Checks\nc\n"
    )
    code = ProjectCodeReader({"shop": sources(write_tree(tmp_path / "shop", {"AGENTS.md": text}))})
    found = look(code, "src")
    assert found.others == (
        CodeNote("AGENTS.md", "- Orders stay", 8, "Invariants"),
        CodeNote("AGENTS.md", "Sells.", 5, "Purpose"),
    )
    assert [note.text for note in (*found.introduction, *found.checks)] == ["Never by hand.", "c"]


def test_what_several_paths_have_in_common_is_told_once(code: ProjectCodeReader) -> None:
    found = look(code, "src/auth/login.ts", "src/api", "src/api/handlers.ts", "./src/../src/api/")

    assert found.nodes == ("CLAUDE.md", "src/AGENTS.md", "src/api/AGENTS.md", "src/auth/AGENTS.md")
    assert [note.file for note in found.contracts] == ["CLAUDE.md", "src/api/AGENTS.md"]
    assert found.rules.pitfalls == ("The clock is in UTC", "Tokens are long")


def test_what_does_not_exist_yet_is_governed_by_what_is_above(code: ProjectCodeReader) -> None:
    assert look(code, "src/new/deep/file.ts").nodes == ("CLAUDE.md", "src/AGENTS.md")


def test_a_project_without_nodes_covers_nothing(tmp_path: Path) -> None:
    found = ProjectCodeReader({"bare": sources(tmp_path)}).read_context("bare", ["src"])

    assert found == CodeContext("bare", ("src",), rules=CodeFacts(paths=("src",)))
    assert not found.nodes


def test_nothing_is_told_without_paths(code: ProjectCodeReader) -> None:
    assert code.read_context(None, []) is None
    assert code.read_context("shop", []) is None


def test_the_only_project_need_not_be_named(code: ProjectCodeReader) -> None:
    assert code.read_context(None, ["src"]) == look(code, "src")


@pytest.mark.parametrize("count", [0, 2])
def test_a_project_must_be_named_where_there_is_not_just_one(shop: ProjectSources, count: int) -> None:
    code = ProjectCodeReader({f"shop{number}": shop for number in range(count)})

    with pytest.raises(InvalidArgument) as raised:
        code.read_context(None, ["src"])
    assert [violation.field for violation in raised.value.violations] == ["project"]


@pytest.mark.parametrize("paths", [(), ("src",), ("../outside",)])
def test_an_unknown_project_is_not_found(code: ProjectCodeReader, paths: tuple[str, ...]) -> None:
    with pytest.raises(NotFound, match="there is no project other"):
        code.read_context("other", paths)


@pytest.mark.parametrize("path", ["..", "src/../../etc", "/etc/passwd", "a\0b", "a" * 300, "\ud800", "out/file"])
def test_a_path_that_leaves_the_project_is_named(shop: ProjectSources, code: ProjectCodeReader, path: str) -> None:
    (shop.tree.root / "out").symlink_to("/")

    with pytest.raises(InvalidArgument) as raised:
        look(code, "src", path)
    assert [violation.field for violation in raised.value.violations] == ["paths[1]"]


def test_what_changes_is_told_anew(shop: ProjectSources, code: ProjectCodeReader) -> None:
    look(code, "src/api")
    write_tree(shop.tree.root, {"src/api/AGENTS.md": "## Checks\n- [ ] Ask the owner\n"})

    assert look(code, "src/api").check_items == ("Ask the owner", "Run all tests")


def test_a_node_that_cannot_be_read_is_missing_and_the_others_are_told(
    shop: ProjectSources, code: ProjectCodeReader
) -> None:
    (shop.tree.root / "src" / "AGENTS.md").write_bytes(b"x" * (MAX_FILE_BYTES + 1))

    found = look(code, "src/api", "src/auth")

    assert found.nodes == ("CLAUDE.md", "src/api/AGENTS.md", "src/auth/AGENTS.md")
    assert found.missing == (f"src/AGENTS.md is larger than {MAX_FILE_BYTES} bytes",)
    assert found.rules.unreadable == found.missing[0]
    assert look(code, "docs").rules.unreadable is None


def test_a_section_that_is_too_long_to_be_read_item_by_item_is_told_as_missing(tmp_path: Path) -> None:
    checks = "- [ ] Look twice\n" * 5000
    code = ProjectCodeReader({"shop": sources(write_tree(tmp_path / "shop", {"AGENTS.md": f"## Checks\n{checks}"}))})

    found = look(code, "src")

    assert [note.text for note in found.checks] == [checks.strip()]
    assert found.missing == ("Checks of AGENTS.md has more than 65536 characters",)
    assert (found.rules.checks, found.rules.unreadable) == ((), found.missing[0])


def test_a_node_that_is_a_link_out_of_the_project_is_missing(shop: ProjectSources, code: ProjectCodeReader) -> None:
    (shop.tree.root / "src" / "new").mkdir()
    (shop.tree.root / "src" / "new" / "AGENTS.md").symlink_to("/etc/hostname")

    assert look(code, "src/new").missing == ("src/new/AGENTS.md leads out of the project by a link",)


def test_a_project_that_is_gone_is_missing(shop: ProjectSources, code: ProjectCodeReader) -> None:
    shop.tree.root.rename(shop.tree.root.with_name("moved"))

    found = look(code, "src/api", "docs")

    assert (found.nodes, found.missing) == ((), ("the project's folder cannot be read",))
    assert found.rules.unreadable


def test_what_is_too_much_for_an_answer_is_left_out_farthest_first_and_rules_read_it_all(tmp_path: Path) -> None:
    filler = "word " * 50_000
    folders = ["a/" * depth for depth in range(8)]
    nodes = {
        f"{folder}AGENTS.md": f"## Contracts\n{filler}\n\n## Checks\n- [ ] Check {number}\n"
        for number, folder in enumerate(folders)
    }
    code = ProjectCodeReader({"shop": sources(write_tree(tmp_path / "shop", nodes))})

    found = look(code, folders[-1])

    assert len(found.nodes) == 8
    assert [note.file for note in found.contracts] == [f"{folder}AGENTS.md" for folder in folders[4:]]
    assert found.rules.checks == tuple(f"Check {number}" for number in reversed(range(8)))
    assert found.rules.unreadable is None
    assert found.missing == ("8 sections are too large together with the others; announce fewer paths at once",)


def report(shop: ProjectSources, title: str, *paths: str) -> str:
    new = NewLearning(LearningType.PITFALL, paths, title, "In full", "worker-1")
    return shop.learnings.file(new).id


def test_pending_learnings_about_the_paths_come_along_once(shop: ProjectSources, code: ProjectCodeReader) -> None:
    own = report(shop, "Arrow functions", "src/api/handlers.ts", "src/api/other.ts")
    above = report(shop, "Look at the clock", "src")
    report(shop, "Tokens", "src/auth")

    found = look(code, "src/api/handlers.ts", "src/api")

    assert {learning.id for learning in found.pending} == {own, above}
    told = next(learning for learning in found.pending if learning.id == own)
    assert (told.type, told.title) == ("pitfall", "Arrow functions")
    assert told.paths == ("src/api/handlers.ts", "src/api/other.ts")


def test_learnings_that_cannot_be_read_are_missing_and_no_matter_for_rules(
    shop: ProjectSources, code: ProjectCodeReader, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (shop.tree.root / ".intent-layer").symlink_to(tmp_path / "elsewhere")

    found = look(code, "src")

    assert found.nodes == ("CLAUDE.md", "src/AGENTS.md")
    assert len(found.missing) == 1
    assert found.rules.unreadable is None
