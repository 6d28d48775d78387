"""Nodes to begin with: what is seen in a folder, and that nothing is ever overwritten."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cstp_grpc.common.token_estimate import count_tokens
from cstp_grpc.contract.errors import Conflict, InvalidArgument, NotFound, Unavailable
from cstp_grpc.modules.intent_layer.context_resolution import PROTOCOL_SECTIONS, REQUIRED_SECTIONS
from cstp_grpc.modules.intent_layer.model import FindingSeverity, NodeSkeleton
from cstp_grpc.modules.intent_layer.node_document import parse_node, section_key
from cstp_grpc.modules.intent_layer.node_skeleton import create_node, node_skeleton
from cstp_grpc.modules.intent_layer.project_tree import ProjectTree
from cstp_grpc.modules.intent_layer.validation_rules import TARGET_TOKENS
from tests.example_counts import examples
from tests.modules.intent_layer.trees import validate_nodes, write_tree
from tests.named_case import named_case


def section(made: NodeSkeleton, name: str) -> str:
    document = parse_node(made.content, made.file)
    return "\n".join(each.text.rpartition("<!--")[0].strip() for each in document.sections() if each.name == name)


def made_of(root: Path, files: dict[str, str], folder: str = ".") -> NodeSkeleton:
    return node_skeleton(ProjectTree(write_tree(root, files)), folder)


def test_an_empty_folder_gets_the_required_sections_and_comments(tmp_path: Path) -> None:
    made = made_of(tmp_path, {"src/": ""}, "src")
    names = [each.name for each in parse_node(made.content, made.file).sections()]
    assert made.file == "src/AGENTS.md"
    assert names == ["Purpose", "Entry Points", "Contracts", "Pitfalls", "Checks", "Boundaries"]
    assert made.content.startswith("# src\n\n<!-- ")
    assert made.content.count("<!--") == made.content.count("-->") == 7
    assert not (tmp_path / "src/AGENTS.md").exists()


def test_what_a_readme_says_first_becomes_the_purpose(tmp_path: Path) -> None:
    readme = (
        "# The *shop*\n\n[![build](https://x.org/b.svg)](https://x.org)\n\n"
        "Takes orders,\n`charge()`s and [ships](docs/a.md) <b>them</b>.\n\n## Install\n\n## Use\n\nMore.\n"
    )
    made = made_of(tmp_path, {"README.md": readme})
    assert made.file == "CLAUDE.md"
    assert made.content.startswith("# The shop\n")
    assert section(made, "Purpose") == (
        "Takes orders, `charge()`s and ships them.\n\nIts README is about: Install, Use."
    )


def test_words_stay_words(tmp_path: Path) -> None:
    for text in ["\\# a", "\\- a", "\\+ a", "1\\. a", "12\\) a", "\\> a", "\\[a\\]: b", "\\<!-- a", "\\`a"]:
        with named_case(text):
            assert section(made_of(tmp_path, {"README.md": f"{text}\n"}), "Purpose") == text


def test_the_documentation_of_a_package_is_its_purpose_without_a_readme(tmp_path: Path) -> None:
    made = made_of(tmp_path, {"shop/__init__.py": '"""Takes *orders*\nand ships.\n\nMore."""\n'}, "shop")
    assert section(made, "Purpose") == "Takes \\*orders\\* and ships."


def test_a_long_paragraph_is_cut(tmp_path: Path) -> None:
    made = made_of(tmp_path, {"README.md": "word " * 10_000})
    assert section(made, "Purpose").endswith("word …")
    assert count_tokens(made.content) < 600


def test_entry_points_are_files_scripts_and_targets(tmp_path: Path) -> None:
    files = {
        "pyproject.toml": '[project]\nscripts = {shop = "shop.cli:main", lost = "gone:main"}\n',
        "src/shop/cli.py": "",
        "package.json": '{"main": "./lib/index.js", "bin": {"buy": "bin/buy.js", "no": "x"}, "scripts": {"a:b": 1}}',
        "lib/index.js": "",
        "bin/buy.js": "",
        "__main__.py": "",
        "main.go": "",
        "src/index.ts": "",
        "Makefile": ".PHONY: all\nVAR := 1\nall: test ## Everything\n\ntest:\n\tpytest\n%.o: %.c\n",
    }
    made = made_of(tmp_path, files)
    rows = section(made, "Entry Points").splitlines()
    assert rows[:2] == ["| task | file |", "|---|---|"]
    assert rows[2:] == [
        "| Run `shop` | `src/shop/cli.py` |",
        "| Run `lost` | `pyproject.toml` |",
        "| Run `buy` | `bin/buy.js` |",
        "| See what is exported | `lib/index.js` |",
        "| Follow a run of the package | `__main__.py` |",
        "| Follow a run of the program | `main.go` |",
        "| See what is exported | `src/index.ts` |",
        "| Run `npm run a:b` | `package.json` |",
        "| Run `make all`, `make test` | `Makefile` |",
    ]
    assert section(made, "Checks") == "- [ ] `make test` passes."


def test_a_tests_folder_is_a_check(tmp_path: Path) -> None:
    assert section(made_of(tmp_path, {"tests/test_x.py": ""}), "Checks") == "- [ ] The tests in `tests/` pass."


def test_exports_of_python_and_of_scripts_are_the_public_api(tmp_path: Path) -> None:
    files = {
        "a.py": "__all__ = ['one', \"two\", '']\ndef three(): ...\n",
        "b.py": "import os\nclass Four: ...\nasync def five(): ...\ndef _six(): ...\nX = '\\d'\n",
        "broken.py": "def (:\n",
        "test_a.py": "def test_x(): ...\n",
        "c.ts": "export const x = 1\nexport default class Y {}\nexport { p, q as r, type S }\nexport type T = 1\n",
        "c.test.ts": "export const z = 1\n",
        "d.d.ts": "export const z = 1\n",
    }
    assert section(made_of(tmp_path, files), "Public API").splitlines() == [
        "- `a.py`: `one`, `two`",
        "- `b.py`: `Four`, `five`",
        "- `c.ts`: `x`, `Y`, `T`, `p`, `r`, `S`",
    ]


def test_what_a_package_declares_stands_for_its_modules(tmp_path: Path) -> None:
    files = {"__init__.py": "from .a import x\n__all__: list[str] = ['x']\n", "a.py": "def x(): ...\n"}
    assert section(made_of(tmp_path, files), "Public API") == "- `__init__.py`: `x`"


def test_the_next_nodes_below_are_downlinks(tmp_path: Path) -> None:
    nodes = ["a/AGENTS.md", "a/b/AGENTS.md", "c d/e/[f]/CLAUDE.md", "node_modules/x/AGENTS.md", "g/100%25/AGENTS.md"]
    tree = ProjectTree(write_tree(tmp_path, dict.fromkeys(nodes, "")))
    made = create_node(tree, ".")
    assert section(made, "Downlinks").splitlines() == [
        "- [a](a/AGENTS.md)",
        "- [g/100%25](g/100%2525/AGENTS.md)",
        "- [c d/e/\\[f\\]](c%20d/e/%5Bf%5D/CLAUDE.md)",
    ]
    rules = {
        finding.rule for finding in validate_nodes(tree) if finding.file in ("CLAUDE.md", nodes[0], nodes[2], nodes[4])
    }
    assert rules == {"empty-section", "missing-section", "misplaced-claude-md"}


def test_a_created_node_is_what_was_shown_and_has_no_errors(tmp_path: Path) -> None:
    tree = ProjectTree(write_tree(tmp_path, {"src/main.py": "", "src/README.md": "Ships.\n"}))
    shown = node_skeleton(tree, "src")
    assert create_node(tree, "./src/") == shown
    assert (tmp_path / "src/AGENTS.md").read_text() == shown.content
    assert sorted(os.listdir(tmp_path / "src")) == ["AGENTS.md", "README.md", "main.py"]  # noqa: PTH208
    assert [(finding.rule, finding.severity) for finding in validate_nodes(tree)] == [
        ("empty-section", FindingSeverity.WARNING)
    ]


@pytest.mark.parametrize("name", ["AGENTS.md", "CLAUDE.md"])
@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_nothing_is_overwritten(tmp_path: Path, name: str, kind: str) -> None:
    target = tmp_path / "src" / name
    target.parent.mkdir()
    if kind == "file":
        target.write_text("mine")
    elif kind == "link":
        target.symlink_to("nowhere")
    else:
        target.mkdir()
    for make in (node_skeleton, create_node):
        with pytest.raises(Conflict, match=name):
            make(ProjectTree(tmp_path), "src")
    assert os.listdir(target.parent) == [name]  # noqa: PTH208
    assert kind != "file" or target.read_text() == "mine"


def test_of_many_at_once_one_wins(tmp_path: Path) -> None:
    def attempt(_: int) -> bool:
        try:
            create_node(ProjectTree(tmp_path), ".")
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(attempt, range(64)))
    assert won.count(True) == 1
    assert os.listdir(tmp_path) == ["CLAUDE.md"]  # noqa: PTH208


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("gone", NotFound),
        ("file.py", InvalidArgument),
        ("../x", InvalidArgument),
        ("out", InvalidArgument),
        (".git", InvalidArgument),
        ("src/node_modules/x", InvalidArgument),
    ],
)
def test_no_node_is_made_where_none_may_be(tmp_path: Path, path: str, error: type[Exception]) -> None:
    write_tree(tmp_path, {"file.py": "", ".git/": "", "src/node_modules/x/": ""})
    (tmp_path / "out").symlink_to("/tmp")
    for make in (node_skeleton, create_node):
        with pytest.raises(error):
            make(ProjectTree(tmp_path), path)


def test_a_project_that_is_gone_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        node_skeleton(ProjectTree(tmp_path / "gone"), ".")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("package.json", b"[" * 100_000),
        ("package.json", b'{"scripts": [], "bin": 3, "main": {}}'),
        ("package.json", b'{"main": "../../etc/passwd", "bin": "/etc/passwd"}'),
        ("pyproject.toml", b"a = " + b"[" * 50_000),
        ("pyproject.toml", b"project = 3\n"),
        ("a.py", b"x = " + b"(" * 100_000),
        ("a.py", b"x = " + b"-" * 100_000 + b"1"),
        ("a.py", b"a" + b".b" * 100_000),
        ("a.py", b"\0\xff"),
        ("a.py", b"__all__ = 3\n__all__ += f()\n(__all__, b) = 1, 2"),
        ("README.md", b"[" * 100_000),
        ("README.md", b"\xff\xfe\0## x"),
        ("README.md", b"a <!-- ## Contracts\n## Contracts\n- [ ] x\n"),
        ("README.md", b"\\## Contracts\n\n## -->\n\n## <!--\n"),
        ("README.md", b"1\\. a\n"),
        ("README.md", b"`` ` `` ``a`b`` \\` `\n"),
        ("README.md", b"&lt;!-- open &#35;&#35; x\n"),
        ("README.md", b"\\- a\n"),
        ("Makefile", b"a" * 300_000 + b":\n"),
        ("index.ts", b"export {" + b"a," * 100_000),
        ("README.md", b"~~~~ \\~~~\n"),
        ("README.md", b"\\[a]: /home/ann/x\n"),
    ],
)
def test_hostile_files_give_no_errors(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    tree = ProjectTree(tmp_path)
    made = create_node(tree, ".")
    document = parse_node(made.content, made.file)
    names = [each.name for each in document.sections()]
    assert names[:3] == list(REQUIRED_SECTIONS)
    assert set(names) <= set(PROTOCOL_SECTIONS)
    assert not document.closing
    assert "passwd" not in made.content
    assert [finding for finding in validate_nodes(tree) if finding.severity is FindingSeverity.ERROR] == []


def test_a_pipe_or_a_link_out_of_the_project_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "README.md")
    (tmp_path / "Makefile").symlink_to("/etc/passwd")
    (tmp_path / "main.py").symlink_to("/etc/passwd")
    assert "root" not in node_skeleton(ProjectTree(tmp_path), ".").content


def test_a_full_folder_gives_a_node_within_its_target(tmp_path: Path) -> None:
    long = "n" * 60
    files = {f"{long}{number}/AGENTS.md": "" for number in range(300)}
    files |= {f"{long}{number}.py": "".join(f"def {long}{each}(): ...\n" for each in range(50)) for number in range(60)}
    files |= {
        "Makefile": "".join(f"{long}{number}:\n" for number in range(200)),
        "README.md": f"# {long * 9}\n\n{long} " * 50,
    }
    made = made_of(tmp_path, files)
    assert count_tokens(made.content) <= TARGET_TOKENS


names = st.one_of(
    st.sampled_from(["src", "main.py", "index.ts", "__init__.py", "README.md", "Makefile", "package.json", "tests"]),
    st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
        lambda name: name not in (".", "..", "CLAUDE.md", "AGENTS.md")
    ),
)
MARKDOWN = [
    "# a",
    "## Contracts",
    "- x",
    "`code`",
    "<!--",
    "-->",
    "```",
    "~~~",
    "> q",
    "===",
    "---",
    "[a](b.md)",
    "\\# x",
]
CODE = ["__all__ = ['a']", "def f(): ...", "a: b", "export const x = 1", '{"main": "main.py"}', "| a | b |", ""]
lines = st.sampled_from([*MARKDOWN, *CODE])
contents = st.one_of(st.lists(lines, max_size=8).map("\n".join), st.text(st.characters(exclude_categories=["Cs"])))
trees = st.dictionaries(st.lists(names, min_size=1, max_size=3).map("/".join), contents, max_size=8)


def written(root: Path, files: dict[str, str]) -> None:
    """Write those files whose paths do not get in the way of one another."""
    for path, text in files.items():
        try:
            write_tree(root, {path: text})
        except OSError:
            continue


@settings(max_examples=examples(200), deadline=None)
@given(trees, st.sets(st.integers(0, 7)))
def test_skeletons_of_any_tree_have_no_errors_and_name_each_other(files: dict[str, str], chosen: set[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        written(root, files)
        tree = ProjectTree(root)
        found = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir())
        picked = [each for number, each in enumerate(found) if number in chosen]
        made = []
        for each in [*reversed(picked), "."]:
            try:
                made.append(create_node(tree, each))
            except InvalidArgument:
                continue
        findings = validate_nodes(tree)
        assert {finding.severity for finding in findings} <= {FindingSeverity.WARNING}
        assert {finding.rule for finding in findings} <= {"empty-section", "absolute-path"}
        for node in made:
            keys = [section_key(section.name) for section in parse_node(node.content, node.file).sections()]
            assert keys[:3] == [section_key(name) for name in REQUIRED_SECTIONS]
            assert len(set(keys)) == len(keys)
