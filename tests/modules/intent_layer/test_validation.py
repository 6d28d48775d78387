"""What is wrong with nodes, and in which line; and what looks wrong and is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.modules.intent_layer.model import FindingSeverity, ValidationFinding
from cstp_grpc.modules.intent_layer.project_tree import MAX_FILE_BYTES, ProjectTree
from cstp_grpc.modules.intent_layer.validation import select_nodes
from cstp_grpc.modules.intent_layer.validation_rules import RULES
from tests.modules.intent_layer.trees import validate_nodes, write_large_tree, write_tree
from tests.named_case import named_case

PROJECT = Path(__file__).parents[3]
CONTRACTS = "## Contracts\n\n- Amounts are cents.\n"
WHOLE = f"## Purpose\n\nTakes orders.\n\n## Entry Points\n\n- Read the code.\n\n{CONTRACTS}"
ENTRY_POINTS = f"## Purpose\n\nTakes orders.\n\n{CONTRACTS}\n## Entry Points\n\n"
"""A node to which entry points can be added, from line 11."""
FIRST_LINE = 11


def found(root: Path, *paths: str) -> list[tuple[str, str, int]]:
    return [(finding.rule, finding.file, finding.line) for finding in validate_nodes(ProjectTree(root), paths)]


def entry_points(root: Path, text: str) -> list[int]:
    """The lines, counted from 1, of the entry points that are found missing in `src/AGENTS.md`."""
    write_tree(root, {"src/AGENTS.md": ENTRY_POINTS + text})
    findings = validate_nodes(ProjectTree(root))
    assert {finding.rule for finding in findings} <= {"missing-entry-point"}
    return [finding.line - FIRST_LINE + 1 for finding in findings]


def absolute(root: Path, text: str) -> list[int]:
    write_tree(root, {"CLAUDE.md": f"{text}\n\n{WHOLE}"})
    findings = validate_nodes(ProjectTree(root))
    assert {finding.rule for finding in findings} <= {"absolute-path"}
    return [finding.line for finding in findings]


def test_a_whole_node_has_no_findings(tmp_path: Path) -> None:
    assert found(write_tree(tmp_path, {"CLAUDE.md": WHOLE})) == []


def test_a_project_without_nodes_has_no_findings(tmp_path: Path) -> None:
    assert found(tmp_path) == []


def test_this_projects_own_nodes_have_no_errors() -> None:
    findings = validate_nodes(ProjectTree(PROJECT))
    assert [finding for finding in findings if finding.severity is FindingSeverity.ERROR] == []


def test_every_rule_has_its_own_name_in_lower_case_words() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    assert all(name.replace("-", "").isalnum() and name == name.lower() for name in names)


def test_each_required_section_is_missed_as_an_error(tmp_path: Path) -> None:
    findings = validate_nodes(ProjectTree(write_tree(tmp_path, {"AGENTS.md": "# Title\n\n```\n## Purpose\n```\n"})))
    assert [(finding.rule, finding.severity, finding.line) for finding in findings] == [
        ("missing-section", FindingSeverity.ERROR, 1)
    ] * 3
    assert [name for name in ("Contracts", "Entry Points", "Purpose") if name in str(findings)] == [
        "Contracts",
        "Entry Points",
        "Purpose",
    ]


@pytest.mark.parametrize("heading", ["## CONTRACTS", "##  entry   points ##"])
def test_required_sections_are_known_in_any_case_and_spacing(tmp_path: Path, heading: str) -> None:
    findings = validate_nodes(ProjectTree(write_tree(tmp_path, {"AGENTS.md": f"{heading}\n\nText.\n"})))
    assert len(findings) == 2


def test_sections_may_be_spread_over_both_files_of_a_folder(tmp_path: Path) -> None:
    write_tree(tmp_path, {"CLAUDE.md": WHOLE.replace(CONTRACTS, ""), "AGENTS.md": CONTRACTS})
    assert found(tmp_path) == [("different-files", "AGENTS.md", 1)]


@pytest.mark.parametrize("body", ["", "  \n\t\n", "<!-- Say it here. -->\n", "<!--\nSay it.\n\nHere.\n-->\n"])
def test_a_required_section_without_text_is_empty_where_its_heading_is(tmp_path: Path, body: str) -> None:
    write_tree(tmp_path, {"AGENTS.md": f"{WHOLE.replace(CONTRACTS, '')}## Contracts\n{body}\n## Pitfalls\n"})
    assert found(tmp_path) == [("empty-section", "AGENTS.md", 9)]


def test_a_section_with_code_only_is_not_empty(tmp_path: Path) -> None:
    write_tree(tmp_path, {"AGENTS.md": f"{WHOLE.replace(CONTRACTS, '')}## Contracts\n\n```\n<!-- code -->\n```\n"})
    assert found(tmp_path) == []


@pytest.mark.parametrize(
    ("tokens", "rule"), [(3_000, None), (3_001, "over-target"), (4_000, "over-target"), (4_001, "over-budget")]
)
def test_nodes_have_a_target_and_a_budget(tmp_path: Path, tokens: int, rule: str | None) -> None:
    write_tree(tmp_path, {"AGENTS.md": WHOLE.ljust(4 * tokens, "x")})
    assert found(tmp_path) == ([(rule, "AGENTS.md", 1)] if rule else [])


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (3_001, "it has 3001 tokens where 3000 are the target"),
        (4_001, "it has 4001 tokens where 4000 are the limit"),
    ],
)
def test_a_target_is_not_called_a_limit(tmp_path: Path, tokens: int, message: str) -> None:
    write_tree(tmp_path, {"AGENTS.md": WHOLE.ljust(4 * tokens, "x")})
    (finding,) = validate_nodes(ProjectTree(tmp_path))
    assert finding.message.startswith(f"{message}; ")


def test_the_files_of_a_node_share_its_budget(tmp_path: Path) -> None:
    write_tree(tmp_path, {"CLAUDE.md": WHOLE.ljust(8_002, "x"), "AGENTS.md": WHOLE.ljust(8_003, "x")})
    assert ("over-budget", "CLAUDE.md", 1) in found(tmp_path)


def test_a_second_section_of_a_name_is_a_duplicate(tmp_path: Path) -> None:
    write_tree(tmp_path, {"AGENTS.md": f"{WHOLE}\n## Pitfalls\n\na\n\n### b\n\n## PITFALLS\n\nc\n"})
    assert found(tmp_path) == [("duplicate-section", "AGENTS.md", 19)]


def test_claude_md_below_the_root_is_misplaced(tmp_path: Path) -> None:
    write_tree(tmp_path, {"CLAUDE.md": f"{WHOLE}\n## Downlinks\n\n- [src](src/CLAUDE.md)\n", "src/CLAUDE.md": WHOLE})
    assert found(tmp_path) == [("misplaced-claude-md", "src/CLAUDE.md", 1)]


@pytest.mark.parametrize("folder", ["", "src/"])
def test_a_link_beside_a_node_is_fine(tmp_path: Path, folder: str) -> None:
    write_tree(tmp_path, {f"{folder}AGENTS.md": WHOLE})
    (tmp_path / folder / "CLAUDE.md").symlink_to("AGENTS.md")
    assert found(tmp_path) == []


def test_bytes_that_are_no_utf_8_are_an_error_in_their_line(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_bytes(WHOLE.encode() + "é\r\n\r".encode() + b"\xe9t\xe9\n")
    assert found(tmp_path) == [("not-utf-8", "AGENTS.md", WHOLE.count("\n") + 3)]


def test_a_replacement_sign_is_utf_8(tmp_path: Path) -> None:
    assert found(write_tree(tmp_path, {"AGENTS.md": f"{WHOLE}\ufffd"})) == []


def test_files_that_cannot_be_read_are_errors_and_the_others_are_judged(tmp_path: Path) -> None:
    write_tree(tmp_path, {"large/AGENTS.md": "x" * (MAX_FILE_BYTES + 1), "fine/AGENTS.md": CONTRACTS, "out/": ""})
    (tmp_path / "out/AGENTS.md").symlink_to("/etc/hostname")
    (tmp_path / "large/pipe").mkdir()
    os.mkfifo(tmp_path / "large/pipe/AGENTS.md")
    findings = validate_nodes(ProjectTree(tmp_path))
    unreadable = [finding for finding in findings if finding.rule == "unreadable-file"]
    assert [finding.file for finding in unreadable] == ["large/AGENTS.md", "large/pipe/AGENTS.md", "out/AGENTS.md"]
    assert all(finding.severity is FindingSeverity.ERROR for finding in unreadable)
    assert f"{MAX_FILE_BYTES} bytes" in unreadable[0].message
    assert sorted(finding.rule for finding in findings if finding.file == "fine/AGENTS.md") == ["missing-section"] * 2


def test_a_node_whose_parent_cannot_be_read_is_not_missing_there(tmp_path: Path) -> None:
    write_tree(tmp_path, {"CLAUDE.md": WHOLE, "a/AGENTS.md": "x" * (MAX_FILE_BYTES + 1), "a/b/AGENTS.md": WHOLE})
    assert found(tmp_path, "a/b") == []


DOWNLINKS = f"{WHOLE}\n## Downlinks\n\n"
DOWNLINK_LINE = DOWNLINKS.count("\n") + 1


def test_a_node_may_be_named_in_many_ways(tmp_path: Path) -> None:
    for named in [
        "- [API](src/api/AGENTS.md): handlers",
        "- [API](src/api)",
        "- [API](./src/api/)",
        "- [API](src/api/AGENTS.md#purpose)",
        "- [API][api]\n\n[api]: src/api/AGENTS.md",
        "- `src/api/AGENTS.md`",
        "- `src/api/`",
        "- src/api/AGENTS.md: handlers",
        "| area | node |\n|---|---|\n| API | `src/api/AGENTS.md` |",
        "| area | node |\n|---|---|\n| API | src/api/ |",
        "- [API](/src/api/)",
    ]:
        with named_case(named):
            write_tree(tmp_path, {"CLAUDE.md": DOWNLINKS + named + "\n", "src/api/AGENTS.md": WHOLE})
            assert found(tmp_path) == []


@pytest.mark.parametrize(
    "downlinks", ["", "\n## Downlinks\n\n- [web](web/)\n", "\n## Downlinks\n<!-- `core/api/` -->\n"]
)
def test_a_node_that_its_parent_does_not_name_is_told_of(tmp_path: Path, downlinks: str) -> None:
    nodes = {"CLAUDE.md": f"{WHOLE}\n## Downlinks\n\n- `api/`\n- `web/`\n- `src/`\n"}
    nodes |= {"src/AGENTS.md": WHOLE + downlinks, "src/core/api/AGENTS.md": WHOLE, "src/web/AGENTS.md": WHOLE}
    nodes |= {"api/AGENTS.md": WHOLE, "web/AGENTS.md": WHOLE}
    write_tree(tmp_path, nodes)
    assert ("missing-downlink", "src/core/api/AGENTS.md", 1) in found(tmp_path)
    assert found(tmp_path, "src/core") == [("missing-downlink", "src/core/api/AGENTS.md", 1)]


def test_a_downlink_that_leads_nowhere_is_an_error_in_its_line(tmp_path: Path) -> None:
    for named in [
        "- [API](src/api/AGENTS.md)",
        "- [API](src/gone)",
        "- `src/gone/`",
        "- `gone/AGENTS.md`",
        "- [out](../other/AGENTS.md)",
        "- [API][api]\n\n[api]: src/gone/AGENTS.md",
        "- [API](sr%63/gone/)",
        "- [a](" + "a/" * 3000 + ")",
    ]:
        with named_case(named):
            write_tree(tmp_path, {"CLAUDE.md": f"{DOWNLINKS}Below:\n\n{named}\n", "src/": ""})
            [finding] = validate_nodes(ProjectTree(tmp_path))
            assert (finding.rule, finding.severity) == ("dead-downlink", FindingSeverity.ERROR)
            assert finding.line == DOWNLINK_LINE + 2
            assert len(finding.message) < 300


def test_a_downlink_to_a_folder_without_a_node_is_a_warning(tmp_path: Path) -> None:
    write_tree(tmp_path, {"CLAUDE.md": f"{DOWNLINKS}- [x](https://x.org)\n- [API](src/api)\n", "src/api/": ""})
    assert found(tmp_path) == [("downlink-without-node", "CLAUDE.md", DOWNLINK_LINE + 1)]


@pytest.mark.parametrize("named", ["[a](#purpose)", "[a](mailto:a@b.c)", "`make generate`", "`config.yaml`", "[a]()"])
def test_what_is_no_downlink_leads_nowhere_and_is_fine(tmp_path: Path, named: str) -> None:
    assert found(write_tree(tmp_path, {"CLAUDE.md": f"{DOWNLINKS}- {named}\n"})) == []


MISSING = [
    "`gone.py`",
    "`src/gone.py`",
    "`./gone.py`",
    "`../gone.py`",
    "`gone.py:42`",
    "`gone.py::test_it`",
    "`gone.ts#L10`",
    "`api/gone`",
    "`gone/`",
    "`../../outside.py`",
    "[Start](gone.py)",
    "[Start](gone.py 'title')",
    "[`here.py`](gone.py)",
    "[Start](<gone here.py>)",
    "`app/[id]/page.tsx`",
    "`here.py/gone.py`",
]
PRESENT = [
    "`here.py`",
    "`here.py:42`",
    "`api/`",
    "`api/here`",
    "`src/here.py`",
    "`../root.toml`",
    "`root.toml`",
    "[Start](here.py#L3)",
    "[Start](../root.toml?plain=1)",
    "[Start](/root.toml)",
    "[Start](with%20space.py)",
    "`linked/inner.py`",
    "[`gone.py`](here.py)",
]
NO_PATHS = [
    "`make generate`",
    "`cstp config docs > docs/configuration.md`",
    "`tests/cases/<rpc>/<name>.yaml`",
    "`proto/cstp/v1/*.proto`",
    "`src/**/x.ts`",
    "`{name}.py`",
    "`$HOME/x.py`",
    "`YYYY-MM-DD-title.md`",
    "`path/to/file.py`",
    "`src/.../x.py`",
    "`application/json`",
    "`GET/POST`",
    "`origin/main`",
    "`owner/repo`",
    "`/api/v1/orders.json`",
    "`--config=x/y.yaml`",
    "`-x/y.py`",
    "`@scope/package`",
    "`https://example.org/x.py`",
    "`example.org/x.html`",
    "`Node.js`",
    "`handlers.create()`",
    "`os.path`",
    "`package.module:function`",
    "`text/plain; charset=utf-8`",
    "`…/x.py`",
    "[site](https://example.org/x.py)",
    "[mail](mailto:a@example.org)",
    "[anchor](#contracts)",
    "[case](cases/<name>.yaml)",
    "![badge](https://example.org/x.svg)",
    "gone.py",
    "src/gone.py",
    "\\`gone.py`",
    "<!-- `gone.py` -->",
    "```\n`gone.py`\n```",
    "    `gone.py`",
    "``",
    "` `",
    "`.`",
    "`/`",
    "`//`",
    "[a](/)",
]


def around(root: Path) -> Path:
    write_tree(
        root, {"src/here.py": "", "src/api/here": "", "root.toml": "", "src/with space.py": "", "lib/inner.py": ""}
    )
    (root / "src/linked").symlink_to("../lib")
    return root


def test_entry_points_that_are_not_there_are_found_in_their_line(tmp_path: Path) -> None:
    root = around(tmp_path)
    for mention in MISSING:
        with named_case(mention):
            table = f"| task | file |\n|---|---|\n| Do\\|it | `here.py`, {mention} |\n"
            assert entry_points(root, f"{table}\nor\n\n1. a\n\n   - then\n     {mention}\n") == [3, 10]


def test_entry_points_are_looked_up_from_the_node_and_from_the_root(tmp_path: Path) -> None:
    root = around(tmp_path)
    for mention in PRESENT:
        with named_case(mention):
            assert entry_points(root, f"- Do it: {mention}\n") == []


def test_what_is_no_path_is_no_entry_point(tmp_path: Path) -> None:
    root = around(tmp_path)
    for mention in NO_PATHS:
        with named_case(mention):
            assert entry_points(root, f"Do it:\n\n{mention}\n") == []


def test_links_out_of_the_project_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/x.py").touch()
    project = tmp_path / "project"
    around(project)
    (project / "src/out").symlink_to(tmp_path / "outside")
    assert entry_points(project, "- `out/x.py`\n") == [1]


def test_lines_are_exact_also_with_other_line_ends_and_long_code(tmp_path: Path) -> None:
    text = (ENTRY_POINTS + "- a `make\n  all` and\n  [b\n  c](x.md) `gone.py`\n").replace("\n", "\r\n")
    write_tree(tmp_path, {"AGENTS.md": text})
    assert found(tmp_path) == [
        ("missing-entry-point", "AGENTS.md", FIRST_LINE + 2),
        ("missing-entry-point", "AGENTS.md", FIRST_LINE + 3),
    ]


def test_paths_of_one_machine_are_found_in_their_line(tmp_path: Path) -> None:
    for mention in [
        "`/home/ann/shop/src/app.py`",
        "`/Users/ann/shop`",
        "`C:\\shop\\app.py`",
        "`c:/shop/app.py`",
        "`\\\\server\\share\\app.py`",
        "`~/shop/app.py`",
        "`/opt/shop/app.py`",
        "`/var/lib/shop`",
        "`/app/main.py`",
        "`cd /home/ann/shop && make`",
        "`--root=/Users/ann/shop`",
        "[app](/home/ann/shop/app.py)",
        "[app](file:///shop/app.py)",
        "[app][a]\n\n[a]: /home/ann/app.py",
    ]:
        with named_case(mention):
            assert absolute(tmp_path, f"One\n\nTwo {mention}") == [3]


def test_paths_into_the_project_as_this_machine_has_it_are_absolute(tmp_path: Path) -> None:
    assert absolute(tmp_path, f"`ls {tmp_path.resolve()}/src`") == [1]


def test_routes_addresses_and_flags_are_not_absolute_paths(tmp_path: Path) -> None:
    for mention in [
        "`/api/v1`",
        "`/api/v1/orders.json`",
        "`GET /home`",
        "`/users/{id}`",
        "`/static/app.js`",
        "`/`",
        "`a / b`",
        "`~`",
        "`~/.config/shop.toml`",
        "`HEAD~/x`",
        "`x:/`",
        "`http://localhost/home/ann/x`",
        "`/x`",
        "`--flag`",
        "`\\n`",
        "`src/home/ann/x`",
        "[x](https://example.org/home/ann/x)",
        "[x](//example.org/home/ann/x)",
        "/home/ann/shop is text",
        "```\n/home/ann/shop\n```",
    ]:
        with named_case(mention):
            assert absolute(tmp_path, mention) == []


def test_paths_choose_what_is_judged(tmp_path: Path) -> None:
    bad = {"CLAUDE.md": "", "src/AGENTS.md": "", "src/api/AGENTS.md": "", "web/AGENTS.md": ""}
    tree = ProjectTree(write_tree(tmp_path, {**bad, "src/api/deep/x.py": "", "web/x.py": ""}))

    def folders(*paths: str) -> list[str]:
        return [each.folder for each in select_nodes(tree, paths)]

    assert folders() == [".", "src", "src/api", "web"]
    assert folders("src") == ["src", "src/api"]
    assert folders("src/AGENTS.md") == ["src"]
    assert folders("src/api/deep/x.py", "web/x.py", "web") == ["web", "src/api"]
    assert folders("src/api/deep/gone.py") == ["src/api"]
    assert folders("web/gone/AGENTS.md") == []
    assert folders(".") == [".", "src", "src/api", "web"]


def test_a_path_that_leaves_the_project_names_its_field(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument) as caught:
        validate_nodes(ProjectTree(tmp_path), ["src", "../x"])
    assert caught.value.violations[0].field == "paths[1]"


def test_findings_are_sorted_and_come_once(tmp_path: Path) -> None:
    write_tree(tmp_path, {"b/AGENTS.md": f"{CONTRACTS}\n{CONTRACTS}", "a/AGENTS.md": "## Purpose\n"})
    findings = validate_nodes(ProjectTree(tmp_path))
    assert len(findings) == len(set(findings)) == 6
    assert list(findings) == sorted(findings, key=lambda finding: (finding.file, finding.line, finding.rule))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        "`" * 200_000,
        ("[`" * 100 + "\n\n") * 1000,
        "> " * 20_000 + "`gone.py`",
        "[a](b" * 40_000,
        "\0`\x1b[31m/home/ann/\u202ex`",
        "| `a" * 50_000,
    ],
)
def test_hostile_text_is_judged_all_the_same(tmp_path: Path, text: str) -> None:
    write_tree(tmp_path, {"AGENTS.md": f"{ENTRY_POINTS}{text}\n"})
    findings = validate_nodes(ProjectTree(tmp_path))
    assert all(isinstance(finding, ValidationFinding) and finding.message.isprintable() for finding in findings)


@pytest.mark.slow
def test_all_nodes_of_a_large_project_are_judged(tmp_path: Path) -> None:
    nodes = write_large_tree(tmp_path)
    assert len({finding.file for finding in validate_nodes(ProjectTree(tmp_path))}) == len(nodes)


def test_text_before_the_first_section_counts_and_is_no_section_twice(tmp_path: Path) -> None:
    introduction = "# Shop\n\nNever edit by hand.\n\n"
    write_tree(tmp_path, {"AGENTS.md": f"{introduction}{WHOLE}\n## Introduction\n\nMore.\n"})
    assert found(tmp_path) == []
    write_tree(tmp_path, {"AGENTS.md": f"# Shop\n\n{'word ' * 4_000}\n\n{WHOLE}"})
    assert found(tmp_path) == [("over-budget", "AGENTS.md", 1)]
    write_tree(tmp_path, {"AGENTS.md": f"{introduction}See `/home/ada/notes.md`.\n\n{WHOLE}"})
    assert found(tmp_path) == [("absolute-path", "AGENTS.md", 5)]
