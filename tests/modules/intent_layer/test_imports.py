"""What nodes import comes once, where it is imported, and from nowhere else than the project."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from cstp_grpc.modules.intent_layer.context_resolution import resolve_context
from cstp_grpc.modules.intent_layer.model import ContextRequest, NodeFile
from cstp_grpc.modules.intent_layer.node_document import parse_node
from cstp_grpc.modules.intent_layer.node_imports import (
    MAX_CHARACTERS,
    MAX_FILES,
    ImportFollower,
    ParsedFile,
    find_imports,
)
from cstp_grpc.modules.intent_layer.project_tree import ProjectTree
from tests.example_counts import examples
from tests.modules.intent_layer.test_markdown import LINES
from tests.modules.intent_layer.trees import validate_nodes, write_tree

WHOLE = "## Purpose\n\nSells.\n\n## Entry Points\n\nNone.\n\n## Contracts\n\nIn cents.\n"
lines = st.lists(st.sampled_from([*LINES, "@a.md", "- @b/c.md", "  @d.txt", "see @e.md", "`@f.md`", "@g"]), max_size=16)


def said(root: Path, path: str = ".") -> dict[str, list[tuple[str, str]]]:
    sections = resolve_context(ProjectTree(root), ContextRequest(path)).sections
    return {section.name: [(part.file, part.text) for part in section.parts] for section in sections}


def broken(root: Path) -> list[tuple[str, int, str]]:
    found = [each for each in validate_nodes(ProjectTree(root)) if each.rule == "dead-import"]
    return [(each.file, each.line, each.message.split("”")[1].split(";")[0].strip()) for each in found]


@settings(max_examples=examples(600), deadline=None)
@given(lines)
@example(["\x0c", "@a.md"])
@example(["@a.md", "", "\x0c"])
def test_imports_are_lines_of_paragraphs_and_lists_that_hold_nothing_else(drawn: list[str]) -> None:
    text = "\n".join(["", *drawn])
    found = find_imports(text)
    shown = [token for token in MarkdownIt("commonmark").parse(text) if token.type == "inline"]
    plain = [line.strip() for token in shown for line in token.content.split("\n")]
    for each in found:
        assert (
            text.replace("\0", "\ufffd").split("\n")[each.line - 1].strip().removeprefix("- ").endswith(f"@{each.path}")
        )
        assert f"@{each.path}" in plain
    assert {each.path for each in found} <= {"a.md", "b/c.md", "d.txt"}


def test_lines_in_code_html_and_quotations_import_nothing() -> None:
    text = (
        "---\nname: x\n---\n@a.md\n\n```\n@no.md\n```\n\n    @no.md\n\n> @no.md\n\n<!--\n@no.md\n-->\n\n`@no.md`\n"
        "- @b.md\n\n# @no.md\n\nSee:\n@c.md\n@no.json\n@d.MD \n"
    )
    assert [(each.line, each.path) for each in find_imports(text)] == [
        (4, "a.md"),
        (19, "b.md"),
        (24, "c.md"),
        (26, "d.MD"),
    ]


def test_what_is_imported_belongs_where_it_is_imported(tmp_path: Path) -> None:
    files = {
        "CLAUDE.md": "# Shop\n\nFirst.\n\n@docs/start.md\n\n## Contracts\n\nIn cents.\n@docs/contracts.md\nLast.\n",
        "docs/start.md": "# Start\n\nNever edit by hand.\n",
        "docs/contracts.md": "Of the docs.\n\n- @more.md\n\n## Pitfalls\n\nThe clock.\n",
        "docs/more.md": "More.\n\n@contracts.md\n@../CLAUDE.md\n",
    }
    write_tree(tmp_path, files)
    assert said(tmp_path) == {
        "Introduction": [("CLAUDE.md", "First."), ("docs/start.md", "Never edit by hand.")],
        "Contracts": [
            ("CLAUDE.md", "In cents.\nLast."),
            ("docs/contracts.md", "Of the docs."),
            ("docs/more.md", "More."),
        ],
        "Pitfalls": [("docs/contracts.md", "The clock.")],
    }
    assert broken(tmp_path) == []
    resolution = resolve_context(ProjectTree(tmp_path), ContextRequest("."))
    assert resolution.markdown.startswith("# Context for .\n\n- `CLAUDE.md`\n- `docs/start.md`\n")
    assert resolution.nodes[0].tokens == sum(file.tokens for file in resolution.nodes[0].all_files)


def test_what_several_nodes_import_comes_once(tmp_path: Path) -> None:
    files = {
        "CLAUDE.md": "@style.md\n@src/AGENTS.md\n",
        "src/AGENTS.md": "@../style.md\n@../CLAUDE.md\n\n## Contracts\n\nOwn.\n",
        "style.md": "Short.\n",
    }
    write_tree(tmp_path, files)
    assert said(tmp_path, "src") == {"Introduction": [("style.md", "Short.")], "Contracts": [("src/AGENTS.md", "Own.")]}
    assert said(tmp_path) == said(tmp_path, "src")


@pytest.mark.parametrize("folder", ["", "src/"])
@pytest.mark.parametrize("claude", ["@AGENTS.md", "@./AGENTS.md\n", "# Shop\n\n<!-- see -->\n\n- @AGENTS.md\n", None])
def test_a_file_that_only_leads_to_the_other_is_one_node_with_it(
    tmp_path: Path, folder: str, claude: str | None
) -> None:
    write_tree(tmp_path, {f"{folder}AGENTS.md": WHOLE})
    if claude is None:
        (tmp_path / folder / "CLAUDE.md").symlink_to("AGENTS.md")
    else:
        (tmp_path / folder / "CLAUDE.md").write_text(claude)
    (node,) = ProjectTree(tmp_path).nodes()
    assert [file.path for file in node.all_files] == [f"{folder}AGENTS.md"]
    assert validate_nodes(ProjectTree(tmp_path)) == ()


def test_a_file_that_says_more_than_the_other_that_it_imports_is_read_beside_it(tmp_path: Path) -> None:
    write_tree(tmp_path, {"AGENTS.md": WHOLE, "CLAUDE.md": "@AGENTS.md\n\n## Pitfalls\n\nThe clock.\n"})
    (node,) = ProjectTree(tmp_path).nodes()
    assert [file.path for file in node.all_files] == ["CLAUDE.md", "AGENTS.md"]
    assert validate_nodes(ProjectTree(tmp_path)) == ()
    write_tree(tmp_path, {"CLAUDE.md": "@AGENTS.md\n", "AGENTS.md": "@CLAUDE.md\n"})
    assert len(list(ProjectTree(tmp_path).nodes())) == 1


def test_nothing_is_imported_from_outside(tmp_path: Path) -> None:
    (tmp_path / "secret.md").write_text("Secret")
    written = ["../secret.md", "/etc/secret.md", "~/secret.md", "away.md", "away/secret.md", ".git/secret.md"]
    written += [".intent-layer/mistakes/pending/PITFALL-1.md", "gone.md", "folder.md"]
    files = dict.fromkeys(written[5:7], "Secret") | {"folder.md/": ""}
    root = write_tree(
        tmp_path / "shop", {**files, "AGENTS.md": WHOLE + "\n" + "\n".join(f"@{path}" for path in written)}
    )
    (root / "away.md").symlink_to(tmp_path / "secret.md")
    (root / "away").symlink_to(tmp_path)
    assert [line for _, line, _ in broken(root)] == list(range(13, 22))
    assert [reason for _, _, reason in broken(root)] == [
        "must not leave the project",
        "is not in the project",
        "is not in the project",
        "leads out of the project by a link",
        "leads out of the project by a link",
        "is in a folder that is not imported from",
        "is in a folder that is not imported from",
        "is not there",
        "is not there",
    ]
    assert "Secret" not in resolve_context(ProjectTree(root), ContextRequest(".")).markdown


def test_imports_are_bounded(tmp_path: Path) -> None:
    chain = {f"{number}.md": f"Level {number}.\n@{number + 1}.md\n" for number in range(1, 8)}
    write_tree(tmp_path / "deep", {"AGENTS.md": "@1.md\n", **chain})
    assert [part[1] for part in said(tmp_path / "deep")["Introduction"]][-1].startswith("Level 5.")
    assert broken(tmp_path / "deep") == [("5.md", 2, "is imported by more than 5 files in turn")]
    many = {f"{number}.md": "x" for number in range(40)}
    write_tree(tmp_path / "many", {"AGENTS.md": "".join(f"@{name}\n" for name in many), **many})
    assert len(broken(tmp_path / "many")) == 40 - MAX_FILES
    large = {f"{number}.md": "x" * 200_000 for number in range(4)}
    write_tree(tmp_path / "large", {"AGENTS.md": "".join(f"@{name}\n" for name in large), **large})
    assert sum(len(text) for _, text in said(tmp_path / "large")["Introduction"]) <= MAX_CHARACTERS
    assert [line for _, line, _ in broken(tmp_path / "large")] == [3, 4]
    write_tree(tmp_path / "huge", {"AGENTS.md": "@a.md\n", "a.md": "x" * 300_000})
    assert [reason for *_, reason in broken(tmp_path / "huge")] == ["is larger than 262144 bytes"]


def test_what_is_no_text_is_not_imported(tmp_path: Path) -> None:
    write_tree(tmp_path, {"AGENTS.md": "@a.md\n@b.md\n", "a.md": "PK\x03\x04\0\0", "b.md": "Text"})
    assert said(tmp_path)["Introduction"] == [("AGENTS.md", "@a.md"), ("b.md", "Text")]
    assert broken(tmp_path) == [("AGENTS.md", 1, "is no text")]


def test_nothing_more_is_read_once_there_is_too_much() -> None:
    asked: list[str] = []

    def read(path: str) -> ParsedFile:
        asked.append(path)
        return parsed(path, "x" * (MAX_CHARACTERS // 2))

    node = parsed("AGENTS.md", "".join(f"@{number}.md\n" for number in range(9)))
    follower = ImportFollower(str, read, frozenset({"AGENTS.md"}))
    follower.follow(node)
    assert asked == ["0.md", "1.md", "2.md"]
    assert len(follower.imported) == 2
    assert [each.line for each in follower.broken] == list(range(3, 10))


def parsed(path: str, text: str) -> ParsedFile:
    document = parse_node(text, path)
    return ParsedFile(document, NodeFile(path, text, document.sections(), 1), find_imports(text))


def test_a_change_of_an_imported_file_is_seen(tmp_path: Path) -> None:
    tree = ProjectTree(write_tree(tmp_path, {"AGENTS.md": "@a.md\n", "a.md": "One\n"}))
    assert tree.node(".").sections[0].text == "One"  # type: ignore[union-attr]
    write_tree(tmp_path, {"a.md": "Another\n"})
    assert tree.node(".").sections[0].text == "Another"  # type: ignore[union-attr]


def test_imports_count_for_the_budget_and_the_sections(tmp_path: Path) -> None:
    write_tree(tmp_path, {"AGENTS.md": "# Shop\n\n@docs/whole.md\n", "docs/whole.md": WHOLE})
    assert validate_nodes(ProjectTree(tmp_path)) == ()
    write_tree(tmp_path, {"docs/whole.md": WHOLE + "word " * 4_000})
    assert [each.rule for each in validate_nodes(ProjectTree(tmp_path))] == ["over-budget"]
