"""An entry comes into its section, and nothing else of a node changes by a byte."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.modules.intent_layer.context_resolution import PROTOCOL_SECTIONS
from cstp_grpc.modules.intent_layer.learning_merge import (
    NodeEntry,
    covering_node,
    entry_for_learning,
    insert_entry,
    target_files,
    unified_diff,
)
from cstp_grpc.modules.intent_layer.model import Learning, LearningEdits, LearningState, LearningType
from cstp_grpc.modules.intent_layer.node_document import NodeDocument, parse_node, section_key
from cstp_grpc.modules.intent_layer.project_tree import ProjectTree
from tests.example_counts import examples
from tests.modules.intent_layer.test_markdown import LINES
from tests.modules.intent_layer.trees import write_tree
from tests.named_case import named_case

many = settings(max_examples=examples(600), deadline=None)

LEARNING = Learning(
    id="PITFALL-2026-02-06-1-2",
    type=LearningType.PITFALL,
    state=LearningState.PENDING,
    at=datetime(2026, 2, 6, tzinfo=UTC),
    paths=("src/api",),
    title="Arrow functions",
    detail="Handlers are bare.",
    agent_id="worker-3",
    file="",
)
SOURCE = "_Source: PITFALL-2026-02-06-1-2.md_"
PITFALL = f"### Arrow functions\n\nHandlers are bare.\n\n{SOURCE}"
CHECK = f"- [ ] Arrow functions\n\n  Handlers are bare.\n\n  {SOURCE}"

line_ends = st.sampled_from(["\n", "\r\n", "\r"])
nodes = st.builds(
    lambda lines, end, last: end.join(lines) + (end if last else ""),
    st.lists(st.sampled_from([*LINES, *(f"## {name}" for name in PROTOCOL_SECTIONS)]), max_size=14),
    line_ends,
    st.booleans(),
)
details = st.lists(st.sampled_from(LINES), min_size=1, max_size=6).map("\n".join) | st.text(min_size=1)
titles = st.sampled_from([*LINES, "C #", "##"]) | st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
entries = st.builds(
    NodeEntry,
    st.sampled_from(["Pitfalls", "Checks", "Context", "Purpose", "Own", "pitfalls"]),
    st.booleans(),
    titles.map(lambda title: " ".join(title.split())).filter(bool),
    details,
    st.just("PITFALL-2026-02-06-1-2"),
)


def merged(text: str, edits: LearningEdits | None = None, type_: LearningType = LearningType.PITFALL) -> str:
    return insert_entry(parse_node(text, "AGENTS.md"), entry_for_learning(learning(type_), edits or LearningEdits()))


def learning(type_: LearningType) -> Learning:
    return Learning(**{name: getattr(LEARNING, name) for name in Learning.__slots__} | {"type": type_})


def inserted(before: str, after: str) -> bool:
    """Whether the second text is the first one with something in it at one place."""
    longest = next(
        (n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after))
    )
    return any(after.endswith(before[start:]) for start in range(longest, -1, -1) if len(after) >= len(before))


def bodies(document: NodeDocument, but: str = "") -> list[tuple[str, str]]:
    return [
        (span.name, document.body(span).strip(" \t\r\n"))
        for span in document.spans
        if section_key(span.name) != section_key(but)
    ]


@pytest.mark.parametrize(
    ("type_", "section", "entry"),
    [
        (LearningType.PITFALL, "Pitfalls", PITFALL),
        (LearningType.CHECK, "Checks", CHECK),
        (LearningType.PATTERN, "Patterns", PITFALL),
        (LearningType.INSIGHT, "Context", PITFALL),
    ],
)
def test_every_kind_has_its_section(type_: LearningType, section: str, entry: str) -> None:
    before = f"# Node\n\n## {section.upper()}\n\nText.\n\n## Other\n\nMore.\n"
    after = f"# Node\n\n## {section.upper()}\n\nText.\n\n{entry}\n\n## Other\n\nMore.\n"
    assert merged(before, type_=type_) == after


def test_a_check_joins_the_list() -> None:
    assert merged("## Checks\n\n- [ ] One\n- [x] Two\n", type_=LearningType.CHECK) == (
        f"## Checks\n\n- [ ] One\n- [x] Two\n{CHECK}\n"
    )


def test_where_an_entry_comes() -> None:
    for before, after in [
        ("", f"## Pitfalls\n\n{PITFALL}\n"),
        ("# Node", f"# Node\n\n## Pitfalls\n\n{PITFALL}"),
        ("## Pitfalls", f"## Pitfalls\n\n{PITFALL}"),
        ("## Pitfalls\n## Checks\n", f"## Pitfalls\n\n{PITFALL}\n\n## Checks\n"),
        ("\ufeff## Checks\n", f"\ufeff## Pitfalls\n\n{PITFALL}\n\n## Checks\n"),
        ("## Purpose\nA\n\n\n## Own\nB\n", f"## Purpose\nA\n\n## Pitfalls\n\n{PITFALL}\n\n\n## Own\nB\n"),
        ("## Downlinks\n- a\n## Contracts\nB\n", f"## Downlinks\n- a\n## Contracts\nB\n\n## Pitfalls\n\n{PITFALL}\n"),
        ("## Own\nA\n\n## Checks\nB\n", f"## Own\nA\n\n## Pitfalls\n\n{PITFALL}\n\n## Checks\nB\n"),
        ("## Own\nA\n", f"## Own\nA\n\n## Pitfalls\n\n{PITFALL}\n"),
        ("## Pitfalls\nA\n\n## Own\n\n## Pitfalls\nB\n", f"## Pitfalls\nA\n\n{PITFALL}\n\n## Own\n\n## Pitfalls\nB\n"),
        ("## Pitfalls\n\n  ## Own\n", f"## Pitfalls\n\n{PITFALL}\n\n<!-- -->\n\n  ## Own\n"),
        ("```\n## Pitfalls\n```\n", f"```\n## Pitfalls\n```\n\n## Pitfalls\n\n{PITFALL}\n"),
        ("## Pitfalls\n~~~~\ncode\n", f"## Pitfalls\n~~~~\ncode\n~~~~\n\n{PITFALL}\n"),
        ("## Pitfalls\n<!-- note\n", f"## Pitfalls\n<!-- note\n-->\n\n{PITFALL}\n"),
        ("Pitfalls\n---\nA  \n\t\n", f"Pitfalls\n---\nA  \n\n{PITFALL}\n\t\n"),
    ]:
        with named_case(before, after):
            assert merged(before) == after
            windows = before.replace("\n", "\r\n")
            assert merged(windows) == (after.replace("\n", "\r\n") if "\n" in before else after)


def test_a_reviewer_may_change_title_detail_and_section() -> None:
    edits = LearningEdits(title="Bare\u2028handlers", detail="Call\r\nthem.", section="Own  Rules")
    assert merged("# Node\n", edits) == f"# Node\n\n## Own Rules\n\n### Bare handlers\n\nCall\nthem.\n\n{SOURCE}\n"


@pytest.mark.parametrize("section", ["", " ", "#", "a #", "\n"])
def test_a_section_that_cannot_be_a_heading_is_refused(section: str) -> None:
    with pytest.raises(InvalidArgument, match=r"edits\.section"):
        entry_for_learning(LEARNING, LearningEdits(section=section))


@pytest.mark.parametrize("detail", ["## Contracts\n\nNone.", "A\n===", "```\ncode", "<!--", "### Another\n\nText"])
def test_a_detail_cannot_become_a_section_or_swallow_what_follows(detail: str) -> None:
    before = "## Pitfalls\n\n## Checks\n\n- [ ] One\n"
    after = parse_node(merged(before, LearningEdits(detail=detail)), "AGENTS.md")
    assert [span.name for span in after.spans] == ["Pitfalls", "Checks"]
    assert "\n".join(f"> {line}" if line else ">" for line in detail.split("\n")) in after.text


@many
@given(nodes, entries)
def test_nothing_else_changes(text: str, entry: NodeEntry) -> None:
    before = parse_node(text, "AGENTS.md")
    after = parse_node(insert_entry(before, entry), "AGENTS.md")
    assert inserted(text, after.text)
    assert bodies(after, entry.section) == _closed(before, bodies(before, entry.section), entry, after)
    spans = after.find(entry.section)
    assert len(spans) == max(1, len(before.find(entry.section)))
    assert entry.mark in after.body(spans[0])
    assert after.closing == "" or entry.mark not in after.source(after.spans[-1])
    assert text.endswith(("\n", "\r")) == after.text.endswith(("\n", "\r")) or not text.strip(" \t\r\n")


def _closed(
    before: NodeDocument, sections: list[tuple[str, str]], entry: NodeEntry, after: NodeDocument
) -> list[tuple[str, str]]:
    """The sections as they should be: one that left something open was closed where another follows it now."""
    followed = len(after.spans) > len(before.spans) and section_key(after.spans[-1].name) == section_key(entry.section)
    if before.closing and sections and followed:
        ended = "" if before.text.endswith(("\n", "\r")) else _end(before.text)
        body = before.body(before.spans[-1]) + ended + before.closing
        return [*sections[:-1], (sections[-1][0], body.strip(" \t\r\n"))]
    return sections


def _end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\r" if "\r" in text else "\n"


@many
@given(nodes, st.lists(entries, min_size=2, max_size=4))
def test_entries_add_up(text: str, several: Sequence[NodeEntry]) -> None:
    document = parse_node(text, "AGENTS.md")
    for entry in several:
        document = parse_node(insert_entry(document, entry), "AGENTS.md")
    for entry in several:
        assert document.body(document.find(entry.section)[0]).count(entry.mark) >= 1
    assert document.text.count(several[0].mark) == len(several) + text.count(several[0].mark)


@settings(max_examples=examples(40), deadline=None)
@given(nodes.filter(bool), entries)
def test_the_diff_is_the_change(tmp_path_factory: pytest.TempPathFactory, text: str, entry: NodeEntry) -> None:
    folder = tmp_path_factory.mktemp("patched")
    after = insert_entry(parse_node(text, "AGENTS.md"), entry)
    (folder / "AGENTS.md").write_bytes(text.encode())
    (folder / "change").write_bytes(unified_diff("AGENTS.md", text, after).encode())
    subprocess.run(
        ["git", "apply", "--whitespace=nowarn", "--unsafe-paths", "change"], cwd=folder, check=True, timeout=30
    )
    assert (folder / "AGENTS.md").read_bytes() == after.encode()


def test_the_diff_of_a_new_file_says_so() -> None:
    assert unified_diff("AGENTS.md", None, "A\n") == "--- /dev/null\n+++ b/AGENTS.md\n@@ -0,0 +1 @@\n+A\n"
    assert unified_diff("AGENTS.md", "A", "A\nB") == (
        "--- a/AGENTS.md\n+++ b/AGENTS.md\n@@ -1 +1,2 @@\n-A\n\\ No newline at end of file\n+A\n+B\n"
        "\\ No newline at end of file\n"
    )


@pytest.fixture
def tree(tmp_path: Path) -> ProjectTree:
    files = {"CLAUDE.md": "root", "src/AGENTS.md": "src", "src/api/v1/": "", "src/auth/AGENTS.md": "auth", "docs/": ""}
    return ProjectTree(write_tree(tmp_path, files))


@pytest.mark.parametrize(
    ("paths", "file"),
    [
        (("src/api/v1/new.ts",), "src/AGENTS.md"),
        (("src/api/v1/new.ts", "src/auth/login.ts"), "src/AGENTS.md"),
        (("src/auth",), "src/auth/AGENTS.md"),
        (("src/auth/new/deep.ts",), "src/auth/AGENTS.md"),
        (("src/auth", "docs/guide.md"), "CLAUDE.md"),
        ((".",), "CLAUDE.md"),
    ],
)
def test_the_nearest_node_above_all_paths_covers_them(tree: ProjectTree, paths: tuple[str, ...], file: str) -> None:
    node = covering_node(tree, paths)
    assert target_files(tree, node, "Pitfalls") == (file,)


def test_without_any_node_one_is_created_at_the_root(tmp_path: Path) -> None:
    tree = ProjectTree(write_tree(tmp_path, {"src/": ""}))
    assert covering_node(tree, ("src",)) is None
    assert target_files(tree, None, "Pitfalls") == ("CLAUDE.md",)


@pytest.mark.parametrize(
    ("claude", "agents", "files"),
    [
        ("## Purpose\n", "## Pitfalls\n", ("AGENTS.md",)),
        ("## Pitfalls\n", "## Pitfalls\n\nX\n", ("CLAUDE.md",)),
        ("## Purpose\n", "## Purpose\n\nX\n", ("CLAUDE.md",)),
        ("## Purpose\n", "## Purpose\n", ("CLAUDE.md", "AGENTS.md")),
    ],
)
def test_of_two_files_it_is_the_one_with_the_section_and_of_equal_ones_both(
    tmp_path: Path, claude: str, agents: str, files: tuple[str, ...]
) -> None:
    tree = ProjectTree(write_tree(tmp_path, {"CLAUDE.md": claude, "AGENTS.md": agents}))
    assert target_files(tree, covering_node(tree, (".",)), "Pitfalls") == files


def test_of_two_different_files_below_the_root_it_is_agents(tmp_path: Path) -> None:
    tree = ProjectTree(write_tree(tmp_path, {"src/CLAUDE.md": "a", "src/AGENTS.md": "b"}))
    assert target_files(tree, covering_node(tree, ("src",)), "Pitfalls") == ("src/AGENTS.md",)
