"""What governs a path: its ancestors and nobody else, every line once, cut by worth."""

from __future__ import annotations

import itertools
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cstp_grpc.common.token_estimate import count_tokens
from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.modules.intent_layer.context_resolution import PROTOCOL_SECTIONS, resolve_context
from cstp_grpc.modules.intent_layer.model import (
    ROOT,
    ContextRequest,
    Learning,
    LearningState,
    LearningType,
    PendingReports,
    ResolvedContext,
    UnreadableReportFile,
)
from cstp_grpc.modules.intent_layer.node_document import parse_node, section_key
from cstp_grpc.modules.intent_layer.project_tree import ProjectTree
from tests.example_counts import examples
from tests.modules.intent_layer.trees import folder_paths, write_large_tree, write_tree

some = settings(max_examples=examples(150), deadline=None)

BLOCKS = [
    "text {}",
    "two {}\nlines {}",
    "- item {}\n  more {}",
    "- [ ] check {}",
    "```\n## fenced {}\n```",
    "~~~ text\nleft open {}",
    "````\n```\nleft open {}",
    "- ```\n  open in an item {}",
    "<!-- comment {} -->",
    "<!--\n\n## left open {}",
    "<div>\n## in HTML {}\n</div>",
    "    code {}",
    "> ## quoted {}",
    "### Sub {}",
    "| a {} | b |\n|---|---|",
    "underlined {}\n---",
    "# Title {}",
    "",
]
NAMES = [*PROTOCOL_SECTIONS, "CONTRACTS", "entry  points", "House Rules", "house rules", "Other"]
FOLDERS = ["a", "a/b", "a/b/c", "a/b/c/d", "a/x", "a/b/x", "b", "b/a", "ab", "a-b"]
TARGETS = [".", "file.py", *FOLDERS, *(f"{folder}/file.py" for folder in FOLDERS), "a/b/new/deep.py", "new/x"]
MARK = re.compile(r"§\d+§")

bodies = st.lists(st.sampled_from(BLOCKS), max_size=4).map("\n\n".join)
sections = st.lists(st.tuples(st.sampled_from(NAMES), bodies), max_size=5)
ends = st.sampled_from(["\n", "\r\n"])
files = st.tuples(bodies, sections, ends)
nodes = st.dictionaries(
    st.tuples(st.sampled_from([ROOT, *FOLDERS]), st.sampled_from(["CLAUDE.md", "AGENTS.md"])), files, max_size=8
)

Drawn = dict[tuple[str, str], tuple[str, list[tuple[str, str]], str]]
"""By folder and name of a node's file: its preamble, its sections and how its lines end."""


@contextmanager
def project(drawn: Drawn) -> Iterator[tuple[ProjectTree, Path]]:
    """A project with these nodes, each of whose lines has a mark of its own."""
    numbers = itertools.count()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_tree(root, {f"{path}/": "" for path in FOLDERS})
        for (path, name), (preamble, parts, end) in drawn.items():
            text = preamble + "".join(f"\n\n## {heading}\n\n{body}" for heading, body in parts)
            marked = re.sub(r"\{\}", lambda _: f"§{next(numbers)}§", text)
            (root / path / name).write_bytes(marked.replace("\n", end).encode())
        yield ProjectTree(root), root


def above(path: str) -> list[str]:
    """The folders from the root down to a path, itself included."""
    parts = [] if path == ROOT else path.split("/")
    return [ROOT, *("/".join(parts[:count]) for count in range(1, len(parts) + 1))]


def marks(text: str) -> list[str]:
    return MARK.findall(text)


def in_sections(root: Path, file: str) -> list[str]:
    document = parse_node((root / file).read_bytes().decode(), file)
    return marks("\n".join(f"{section.name}\n{section.text}" for section in document.sections()))


def parts_of(resolution: ResolvedContext) -> set[tuple[str, str]]:
    return {(part.file, section.name) for section in resolution.sections for part in section.parts}


@some
@given(nodes, st.sampled_from(TARGETS), st.booleans())
def test_only_ancestors_are_read_root_first_and_each_line_once(drawn: Drawn, target: str, compact: bool) -> None:
    with project(drawn) as (tree, root):
        resolution = resolve_context(tree, ContextRequest(target, compact=compact))
        governing = [folder for folder in above(target) if any(path == folder for path, _ in drawn)]
        assert [node.folder for node in resolution.nodes] == governing
        expected = [mark for node in resolution.nodes for file in node.files for mark in in_sections(root, file.path)]
        assert sorted(marks(resolution.markdown)) == sorted(expected)
        assert resolution.tokens == count_tokens(resolution.markdown)
        for section in resolution.sections:
            origins = [file.path for node in resolution.nodes for file in node.files]
            ranks = [origins.index(part.file) for part in section.parts]
            assert ranks == sorted(set(ranks))


@some
@given(nodes, st.sampled_from(TARGETS), st.booleans())
def test_the_markdown_reads_as_the_sections(drawn: Drawn, target: str, compact: bool) -> None:
    with project(drawn) as (tree, _):
        resolution = resolve_context(tree, ContextRequest(target, compact=compact))
        read = parse_node(resolution.markdown, "context.md")
        assert [span.name for span in read.spans] == [section.name for section in resolution.sections]
        for span, section in zip(read.spans, resolution.sections, strict=True):
            for part in section.parts:
                assert part.text in read.body(span)


@some
@given(nodes, st.sampled_from(TARGETS), st.sets(st.sampled_from([*NAMES, "pitFALLS", "unheard of"]), min_size=1))
def test_a_filter_takes_a_part_of_the_whole(drawn: Drawn, target: str, names: set[str]) -> None:
    with project(drawn) as (tree, _):
        whole = resolve_context(tree, ContextRequest(target))
        some_of_it = resolve_context(tree, ContextRequest(target, sections=tuple(names)))
        keys = list(dict.fromkeys(section_key(name) for name in names))
        by_key = {section_key(section.name): section for section in whole.sections}
        assert some_of_it.sections == tuple(by_key[key] for key in keys if key in by_key)
        assert some_of_it.nodes == whole.nodes
        assert set(some_of_it.markdown.split("\n")) <= set(whole.markdown.split("\n"))


@some
@given(nodes, st.sampled_from(TARGETS), st.integers(0, 200), st.booleans())
def test_a_budget_holds_and_all_that_it_cost_is_named(drawn: Drawn, target: str, budget: int, compact: bool) -> None:
    with project(drawn) as (tree, _):
        whole = resolve_context(tree, ContextRequest(target, compact=compact))
        cut = resolve_context(tree, ContextRequest(target, compact=compact, max_tokens=budget))
        assert count_tokens(cut.markdown) == cut.tokens <= budget
        lost = {(left.file, left.section) for left in cut.left_out}
        assert len(lost) == len(cut.left_out)
        assert parts_of(cut) | lost == parts_of(whole)
        assert not parts_of(cut) & lost
        assert cut.nodes == whole.nodes
        if whole.tokens <= budget:
            assert cut == whole
        own = whole.nodes[-1].files if whole.nodes else ()
        best = {
            (file.path, section.name)
            for section in whole.sections
            for file in own
            if section_key(section.name) in ("contracts", "checks", "pitfalls")
        }
        assert not lost & best or parts_of(cut) <= best


SHOP = {
    "CLAUDE.md": "# Shop\n\n## Purpose\n\nSells.\n\n## Contracts\n\n- Never commit .env\n\n## Glossary\n\n- SKU\n",
    "src/AGENTS.md": "## contracts\n\n- All endpoints require auth\n\n## Entry Points\n\n- `main.ts`\n",
    "src/api/AGENTS.md": "## Pitfalls\n\n### Arrow functions\n\nIn all handlers.\n\n## Contracts\n\n- JSON only\n",
    "src/auth/AGENTS.md": "## Pitfalls\n\nsibling\n",
    "tests/AGENTS.md": "## Pitfalls\n\nuncle\n",
    "src/api/handlers.ts": "x",
}


@pytest.fixture
def tree(tmp_path: Path) -> ProjectTree:
    return ProjectTree(write_tree(tmp_path, SHOP))


def learning(*paths: str, **changes: object) -> Learning:
    made = Learning(
        id="PITFALL-2026-02-06-a1b2c3d4e5f60718-4567",
        type=LearningType.PITFALL,
        state=LearningState.PENDING,
        at=datetime(2026, 2, 6, tzinfo=UTC),
        paths=paths,
        title="Arrow functions in API module",
        detail="All handlers use arrow syntax",
        agent_id="swarm-worker-3",
        file=".intent-layer/mistakes/pending/PITFALL-2026-02-06-a1b2c3d4e5f60718-4567.md",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["src/api", "src/api/", "src/api/handlers.ts", "src/api/new/deep.ts", "src/x/../api"])
def test_the_protocols_example_of_loading(tree: ProjectTree, path: str) -> None:
    resolution = resolve_context(tree, ContextRequest(path))
    assert [node.path for node in resolution.nodes] == ["CLAUDE.md", "src/AGENTS.md", "src/api/AGENTS.md"]
    assert "sibling" not in resolution.markdown
    assert "uncle" not in resolution.markdown


def test_a_child_supplements_its_parents(tree: ProjectTree) -> None:
    contracts = resolve_context(tree, ContextRequest("src/api")).sections[2]
    assert contracts.name == "Contracts"
    assert [(part.file, part.text, part.line) for part in contracts.parts] == [
        ("CLAUDE.md", "- Never commit .env", 7),
        ("src/AGENTS.md", "- All endpoints require auth", 1),
        ("src/api/AGENTS.md", "- JSON only", 7),
    ]


def test_sections_come_in_the_order_of_the_protocol_then_as_met(tree: ProjectTree) -> None:
    (tree.root / "src/api/AGENTS.md").write_text(
        "## Zeal\n\nz\n\n## Downlinks\n\nd\n\n## Checks\n\nc\n\n## Apathy\n\na\n"
    )
    assert [section.name for section in resolve_context(tree, ContextRequest("src/api")).sections] == [
        "Purpose",
        "Entry Points",
        "Contracts",
        "Checks",
        "Downlinks",
        "Glossary",
        "Zeal",
        "Apathy",
    ]


def test_duplicates_in_a_file_are_merged(tree: ProjectTree) -> None:
    (tree.root / "src/AGENTS.md").write_text("## Checks\n\na\n\n## Other\n\n## CHECKS\n\nb\n")
    resolution = resolve_context(tree, ContextRequest("src", sections=("checks",)))
    assert [(part.text, part.line) for part in resolution.sections[0].parts] == [("a\n\nb", 1)]


def test_two_files_in_a_folder_each_have_their_part(tree: ProjectTree) -> None:
    (tree.root / "AGENTS.md").write_text("## Contracts\n\n- Second\n")
    resolution = resolve_context(tree, ContextRequest("src", sections=("Contracts",)))
    files = ["CLAUDE.md", "AGENTS.md", "src/AGENTS.md"]
    assert [part.file for part in resolution.sections[0].parts] == files


def test_an_underlined_text_is_not_lost(tree: ProjectTree) -> None:
    (tree.root / "src/AGENTS.md").write_text("Meant as a text\n---\n\n## Contracts\n\n- c\n")
    assert "## Meant as a text\n" in resolve_context(tree, ContextRequest("src")).markdown


def test_nothing_covers_a_project_without_nodes(tmp_path: Path) -> None:
    write_tree(tmp_path, {"src/a.py": "x"})
    resolution = resolve_context(ProjectTree(tmp_path), ContextRequest("src/a.py"))
    assert resolution == ResolvedContext("src/a.py", (), (), "", 0)


def test_a_path_that_leaves_is_refused(tree: ProjectTree) -> None:
    with pytest.raises(InvalidArgument, match="path: "):
        resolve_context(tree, ContextRequest("../elsewhere"))


def test_a_budget_drops_the_farthest_and_least_first(tree: ProjectTree) -> None:
    write_tree(
        tree.root,
        {
            "CLAUDE.md": "## Glossary\n\ng\n\n## Patterns\n\np\n\n## Boundaries\n\nrb\n\n## Pitfalls\n\nrp\n",
            "src/AGENTS.md": "## Purpose\n\np\n\n## Entry Points\n\ne\n\n## Contracts\n\nsc\n",
            "src/api/AGENTS.md": "## Checks\n\nc\n\n## Boundaries\n\nb\n\n## Pitfalls\n\np\n\n## Contracts\n\nc\n",
        },
    )
    dropped: list[str] = []
    whole = resolve_context(tree, ContextRequest("src/api"))
    for budget in range(whole.tokens, -1, -1):
        for left in resolve_context(tree, ContextRequest("src/api", max_tokens=budget)).left_out:
            if f"{left.section} {left.file}" not in dropped:
                dropped.append(f"{left.section} {left.file}")
    assert dropped == [
        "Patterns CLAUDE.md",
        "Entry Points src/AGENTS.md",
        "Purpose src/AGENTS.md",
        "Glossary CLAUDE.md",
        "Boundaries CLAUDE.md",
        "Pitfalls CLAUDE.md",
        "Contracts src/AGENTS.md",
        "Boundaries src/api/AGENTS.md",
        "Checks src/api/AGENTS.md",
        "Pitfalls src/api/AGENTS.md",
        "Contracts src/api/AGENTS.md",
    ]


def test_a_part_that_alone_is_too_large_is_left_out_and_named(tree: ProjectTree) -> None:
    (tree.root / "src/api/AGENTS.md").write_text(f"## Pitfalls\n\n{'x' * 4000}\n")
    resolution = resolve_context(tree, ContextRequest("src/api", sections=("Pitfalls",), max_tokens=500))
    assert [(left.file, left.section, left.tokens) for left in resolution.left_out] == [
        ("src/api/AGENTS.md", "Pitfalls", 1000)
    ]
    assert resolution.sections == ()
    assert "x" * 100 not in resolution.markdown


def test_what_is_pending_is_shown_where_it_is_asked_for(tree: ProjectTree) -> None:
    filed = learning("src/api")
    resolution = resolve_context(tree, ContextRequest("src/api", with_pending=True), PendingReports((filed,)))
    assert resolution.pending == (filed,)
    assert "Arrow functions in API module" in resolution.markdown
    assert resolve_context(tree, ContextRequest("src/api"), PendingReports((filed,))).pending == ()


def test_a_budget_drops_what_is_pending_first(tree: ProjectTree) -> None:
    filed = [learning("src/api", file=f"pending/{number}.md") for number in range(3)]
    whole = resolve_context(tree, ContextRequest("src/api", with_pending=True), PendingReports(tuple(filed)))
    cut = resolve_context(
        tree, ContextRequest("src/api", with_pending=True, max_tokens=whole.tokens - 1), PendingReports(tuple(filed))
    )
    assert [left.file for left in cut.left_out] == ["pending/2.md"]
    assert cut.pending == tuple(filed[:2])
    assert cut.sections == whole.sections


def test_the_large_project_is_what_it_says(tmp_path: Path) -> None:
    with_nodes = write_large_tree(tmp_path, folders=200, nodes=40)
    tree = ProjectTree(tmp_path)
    assert sorted(node.folder for node in tree.nodes()) == sorted(with_nodes)
    assert len(folder_paths(200)) == len(set(folder_paths(200))) == 200
    resolution = resolve_context(tree, ContextRequest(f"{with_nodes[-1]}/code.py"))
    assert [section.name for section in resolution.sections] == ["Introduction", *PROTOCOL_SECTIONS]


def test_an_introduction_comes_first_and_goes_with_the_boundaries(tmp_path: Path) -> None:
    text = "# Shop\n\nNever edit by hand.\n\n## Patterns\n\n{}\n\n## Contracts\n\nIn cents.\n"
    tree = ProjectTree(write_tree(tmp_path, {"AGENTS.md": text.format("One way. " * 40)}))
    assert [section.name for section in resolve_context(tree, ContextRequest(".")).sections] == [
        "Introduction",
        "Contracts",
        "Patterns",
    ]
    cut = resolve_context(tree, ContextRequest(".", max_tokens=60))
    assert [section.name for section in cut.sections] == ["Introduction", "Contracts"]
    assert [left.section for left in cut.left_out] == ["Patterns"]


def test_headings_of_level_3_can_be_asked_for_and_the_order_is_that_asked_for(tmp_path: Path) -> None:
    files = {
        "CLAUDE.md": "### Style\n\nShort.\n\n## Contracts\n\nCents.\n\n### Clock\n\nIn UTC.\n\n#### Why\n\nOnce.\n",
        "src/AGENTS.md": "## Pitfalls\n\n### The clock\n\nIt jumps.\n\n### CLOCK\n\nMonotonic.\n",
    }
    tree = ProjectTree(write_tree(tmp_path, files))

    def asked(*names: str) -> list[tuple[str, list[tuple[str, str, int]]]]:
        sections = resolve_context(tree, ContextRequest("src", names)).sections
        return [(each.name, [(part.file, part.text, part.line) for part in each.parts]) for each in sections]

    clock = [("CLAUDE.md", "In UTC.\n\n#### Why\n\nOnce.", 9), ("src/AGENTS.md", "Monotonic.", 7)]
    assert asked("clock", "style") == [("Clock", clock), ("Style", [("CLAUDE.md", "Short.", 1)])]
    assert [name for name, _ in asked("Pitfalls", "Contracts", "Introduction")] == [
        "Pitfalls",
        "Contracts",
        "Introduction",
    ]
    assert [(name, len(parts)) for name, parts in asked("Pitfalls", "Clock")] == [("Pitfalls", 1), ("Clock", 1)]
    assert asked("why", "no such") == []


def test_compact_has_no_title(tmp_path: Path) -> None:
    tree = ProjectTree(write_tree(tmp_path, {"AGENTS.md": "# Shop\n\n## Contracts\n\nIn cents.\n"}))
    assert resolve_context(tree, ContextRequest(".", compact=True)).markdown == "## Contracts\n\nIn cents.\n"
    assert resolve_context(tree, ContextRequest(".", ("Pitfalls",), compact=True)).markdown == ""


def test_pending_reports_that_cannot_be_read_are_listed_and_go_first(tmp_path: Path) -> None:
    tree = ProjectTree(write_tree(tmp_path, {"AGENTS.md": "## Contracts\n\nIn cents.\n"}))
    broken = tuple(UnreadableReportFile(f".intent-layer/mistakes/pending/{n}`.md", "it is odd") for n in range(25))
    request = ContextRequest(".", compact=True, with_pending=True)
    resolution = resolve_context(tree, request, PendingReports((), broken))
    assert resolution.unreadable == broken
    assert (
        "## Pending Learnings\n\nReports that cannot be read:\n\n- `.intent-layer/mistakes/pending/0'.md`: it is odd\n"
        in (resolution.markdown)
    )
    assert resolution.markdown.endswith("/19'.md`: it is odd\n- 5 more\n")
    cut = resolve_context(tree, replace(request, max_tokens=50), PendingReports((), broken))
    assert (cut.markdown, cut.left_out) == ("## Contracts\n\nIn cents.\n", ())
    assert resolve_context(tree, ContextRequest("."), PendingReports((), broken)).unreadable == ()
