"""context resolve, list, validate, place and init: on a project's folder, without a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke
from tests.modules.intent_layer.repositories import needs_git, new_repository
from tests.modules.intent_layer.trees import write_tree
from tests.named_case import named_case

ROOT = """\
# Shop

## Purpose

Sells things.

## Entry Points

- `src/api/handlers.ts`

## Contracts

- All endpoints require auth.

## Downlinks

- [api](src/api/AGENTS.md)
"""
API = """\
# API

## Purpose

Endpoints.

## Entry Points

- `handlers.ts`

## Contracts

- Handlers are arrow functions.

## Pitfalls

- The loader calls handlers without a receiver.
"""


@pytest.fixture
def project(home: Path) -> Path:
    """A project with two nodes, around no current folder."""
    files = {"AGENTS.md": ROOT, "src/api/AGENTS.md": API, "src/api/handlers.ts": "", "src/auth/": ""}
    return write_tree(home / "a shop", files)


@pytest.fixture
def inside(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project as a git work tree, with the current folder in it."""
    new_repository(project)
    monkeypatch.chdir(project / "src" / "api")
    return project


class TestSeverities:
    def test_rules_are_as_severe_as_the_project_and_the_option_say(self, invoke: Invoke, project: Path) -> None:
        write_tree(
            project, {"src/api/AGENTS.md": "Text.\n", ".intent-layer/config.yaml": "rules: {missing-section: off}\n"}
        )
        arguments = ["context", "validate", "--project", project]
        assert invoke(*arguments).stdout == "2 nodes checked, nothing found.\n"
        result = invoke(*arguments, "--rule", "missing-section=warning")
        assert (result.exit_code, result.stdout.count(": warning missing-section: ")) == (0, 3)
        assert invoke(*arguments, "--rule", "missing-section=error").exit_code == 1
        for wrong in ("missing-section", "missing-section=loud", "no-such=off"):
            assert invoke(*arguments, "--rule", wrong).exit_code == 1


class TestResolve:
    def test_prints_what_governs_a_path_root_first(self, invoke: Invoke, project: Path) -> None:
        result = invoke("context", "resolve", "src/api/handlers.ts", "--project", project)
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout.startswith("# Context for src/api/handlers.ts\n\n- `AGENTS.md`\n- `src/api/AGENTS.md`\n")
        assert result.stdout.index("require auth") < result.stdout.index("arrow functions")

    def test_text_before_the_first_section_is_printed(self, invoke: Invoke, project: Path) -> None:
        write_tree(project, {"src/api/AGENTS.md": API.replace("# API\n", "# API\n\nNever edit by hand.\n")})
        arguments = ["src/api", "--project", project, "--sections", "introduction"]
        shown = invoke("context", "resolve", *arguments)
        assert "## Introduction\n\n<!-- from src/api/AGENTS.md -->\nNever edit by hand.\n" in shown.stdout
        (section,) = json.loads(invoke("context", "resolve", *arguments, "--json").stdout)["sections"]
        assert section == {
            "name": "Introduction",
            "parts": [{"file": "src/api/AGENTS.md", "text": "Never edit by hand.", "line": 3}],
        }
        assert "Introduction, Purpose" in invoke("context", "list", "--project", project).stdout

    def test_sections_are_chosen_in_any_case_and_compact_leaves_the_origins_out(
        self, invoke: Invoke, project: Path
    ) -> None:
        options = ["--sections", "pitfalls, CONTRACTS", "--compact"]
        result = invoke("context", "resolve", "src/api", "--project", project, *options)
        assert result.stdout == (
            "## Pitfalls\n\n- The loader calls handlers without a receiver.\n\n"
            "## Contracts\n\n- All endpoints require auth.\n\n"
            "- Handlers are arrow functions.\n"
        )

    def test_json_is_what_the_rpc_answers(self, invoke: Invoke, project: Path) -> None:
        answer = json.loads(invoke("context", "resolve", "src/new.ts", "--project", project, "--json").stdout)
        assert answer["covered"] is True
        assert [node["file"] for node in answer["nodes"]] == ["AGENTS.md"]
        assert answer["sections"][0]["parts"] == [{"file": "AGENTS.md", "text": "Sells things.", "line": 3}]

    def test_nothing_covers_the_path(self, invoke: Invoke, home: Path) -> None:
        empty = write_tree(home / "empty", {"src/": ""})
        result = invoke("context", "resolve", "src", "--project", empty)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "cstp context init" in result.stderr
        result = invoke("context", "resolve", "src", "--project", empty, "--json")
        assert (result.exit_code, json.loads(result.stdout)["covered"]) == (2, False)

    def test_a_budget_names_what_it_left_out(self, invoke: Invoke, project: Path) -> None:
        result = invoke("context", "resolve", "src/api/x.ts", "--project", project, "--max-tokens", 75, "--json")
        answer = json.loads(result.stdout)
        assert answer["tokens"] <= 75
        assert {"file": "AGENTS.md", "section": "Downlinks", "tokens": 7} in answer["leftOut"]
        assert "The loader calls" in answer["markdown"]
        shown = invoke("context", "resolve", "src/api/x.ts", "--project", project, "--max-tokens", 75)
        assert shown.stdout == answer["markdown"]
        assert shown.stderr.startswith("Left out to keep within 75 tokens: Downlinks (AGENTS.md), ")

    def test_pending_learnings_are_shown_as_such(self, invoke: Invoke, project: Path) -> None:
        learning = ["--type", "pitfall", "--title", "Cold start", "--detail", "The first call is slow"]
        invoke("learn", "report", "--project", project, "--path", "src/api/handlers.ts", *learning)
        arguments = ["context", "resolve", "src/api/handlers.ts", "--project", project]
        assert "## Pending Learnings\n\n### PITFALL: Cold start" in invoke(*arguments, "--with-pending").stdout
        assert "Cold start" not in invoke(*arguments).stdout


class TestProject:
    @needs_git
    def test_is_the_work_tree_around_the_current_folder(self, invoke: Invoke, inside: Path) -> None:
        assert "# Context for src/api/handlers.ts\n" in invoke("context", "resolve", "handlers.ts").stdout
        assert "# Context for src/auth\n" in invoke("context", "resolve", "../auth").stdout
        assert "# Context for .\n" in invoke("context", "resolve", "../..").stdout

    def test_is_the_current_folder_where_there_is_no_work_tree(
        self, invoke: Invoke, project: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(project / "src" / "api")
        assert "- `AGENTS.md`\n\n" in invoke("context", "resolve", "handlers.ts").stdout

    def test_absolute_paths_are_taken_where_they_lie_in_the_project(
        self, invoke: Invoke, project: Path, home: Path
    ) -> None:
        (home / "link").symlink_to(project)
        for path in (project / "src/api", home / "link/src/api"):
            for root in (project, home / "link"):
                assert "# Context for src/api\n" in invoke("context", "resolve", path, "--project", root).stdout

    @pytest.mark.parametrize("path", ["../x", "/", "/etc/passwd", "src/../../x"])
    def test_a_path_outside_is_an_error(self, invoke: Invoke, project: Path, path: str) -> None:
        result = invoke("context", "resolve", path, "--project", project)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr == f"Error: path: {path} is not in the project {project}\n"

    @pytest.mark.parametrize("path", ["", "x\0y", "x" * 256, "y/" * 2049])
    def test_a_path_that_cannot_be_is_an_error(self, invoke: Invoke, project: Path, path: str) -> None:
        result = invoke("context", "resolve", path, "--project", project)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith("Error: path: must ")

    def test_a_link_out_of_the_project_is_an_error(self, invoke: Invoke, project: Path) -> None:
        (project / "out").symlink_to("/etc")
        result = invoke("context", "resolve", "out/passwd", "--project", project, "--json")
        assert result.exit_code == 1
        assert json.loads(result.stderr)["error"]["violations"] == [
            {"field": "path", "description": "leads out of the project by a link"}
        ]


def test_wrong_usage_is_an_error_and_not_what_2_means_in_the_protocol(invoke: Invoke) -> None:
    for arguments in [
        ["context", "--nonsense"],
        ["context", "nonsense"],
        ["context", "resolve"],
        ["context", "resolve", "x", "--nonsense"],
        ["context", "resolve", "x", "--max-tokens", "few"],
        ["context", "resolve", "x", "--project", "nowhere"],
        ["context", "validate", "x", "--staged"],
        ["learn", "report", "--path", "x"],
        ["learn", "review", "--accept"],
    ]:
        with named_case(arguments):
            result = invoke(*arguments)
            assert result.exit_code == 1
            assert "Usage: " in result.stderr
            assert "Error: " in result.stderr


@pytest.mark.parametrize(
    "command",
    [f"context {name}" for name in ("resolve", "list", "validate", "place", "init")]
    + [f"learn {name}" for name in ("report", "list", "review")],
)
def test_every_command_shows_examples(invoke: Invoke, command: str) -> None:
    result = invoke(*command.split(), "--help")
    assert result.exit_code == 0
    assert f"  cstp {command}" in result.stdout


class TestList:
    def test_nodes_come_with_their_sizes_and_sections(self, invoke: Invoke, project: Path) -> None:
        lines = invoke("context", "list", "--project", project).stdout.splitlines()
        assert [line.split()[0] for line in lines] == ["file", "AGENTS.md", "src/api/AGENTS.md"]
        assert "Purpose, Entry Points, Contracts, Pitfalls" in lines[2]
        answer = json.loads(invoke("context", "list", "--project", project, "--json").stdout)
        assert [node.get("parent") for node in answer["nodes"]] == [None, "AGENTS.md"]

    def test_what_cannot_be_read_is_told(self, invoke: Invoke, project: Path) -> None:
        (project / "src/auth/AGENTS.md").write_bytes(b" " * 1_048_577)
        result = invoke("context", "list", "--project", project)
        assert result.exit_code == 0
        assert "src/auth: path: src/auth/AGENTS.md is larger than" in result.stderr

    def test_there_may_be_none(self, invoke: Invoke, home: Path) -> None:
        assert "There are no nodes" in invoke("context", "list", "--project", home).stdout


class TestValidate:
    def test_nothing_is_found(self, invoke: Invoke, project: Path) -> None:
        result = invoke("context", "validate", "--project", project, "--strict")
        assert (result.exit_code, result.stdout) == (0, "2 nodes checked, nothing found.\n")

    def test_findings_are_lines_as_compilers_print_them(self, invoke: Invoke, project: Path) -> None:
        (project / "src/api/handlers.ts").unlink()
        (project / "src/api/AGENTS.md").write_text(API.replace("## Contracts", "## Rules"))
        result = invoke("context", "validate", "--project", project)
        assert result.exit_code == 1
        *findings, summary = result.stdout.splitlines()
        assert [line.split(": ")[:2] for line in findings] == [
            ["AGENTS.md:9", "warning missing-entry-point"],
            ["src/api/AGENTS.md:1", "error missing-section"],
            ["src/api/AGENTS.md:9", "warning missing-entry-point"],
        ]
        assert summary == "2 nodes checked: 1 error, 2 warnings."

    def test_warnings_fail_only_where_that_is_wanted(self, invoke: Invoke, project: Path) -> None:
        (project / "src/api/handlers.ts").unlink()
        arguments = ["context", "validate", "--project", project]
        assert (invoke(*arguments).exit_code, invoke(*arguments, "--strict").exit_code) == (0, 1)
        answer = json.loads(invoke(*arguments, "--json").stdout)
        assert (answer["valid"], answer["nodes"], len(answer["findings"])) == (True, 2, 2)
        assert answer["findings"][0]["severity"] == "warning"

    @needs_git
    def test_paths_choose_nodes(self, invoke: Invoke, inside: Path) -> None:
        assert invoke("context", "validate", "handlers.ts").stdout.startswith("1 node checked")
        assert invoke("context", "validate", "../..").stdout.startswith("2 nodes checked")

    def test_a_path_that_is_not_there_is_an_error(self, invoke: Invoke, project: Path) -> None:
        result = invoke("context", "validate", "src/api", "src/apy", "--project", project)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "paths[1]: there is no src/apy" in result.stderr

    @needs_git
    def test_the_age_of_nodes_is_told_unless_it_is_not_wanted(self, invoke: Invoke, project: Path) -> None:
        repository = new_repository(project)
        repository.commit()
        repository.commit("src/api/handlers.ts")
        arguments = ["context", "validate", "--project", project, "--strict"]
        assert "src/api/AGENTS.md:1: warning stale: " in invoke(*arguments).stdout
        assert invoke(*arguments, "--without-history").exit_code == 0

    def test_no_colours_in_a_pipe(self, invoke: Invoke, project: Path) -> None:
        (project / "src/api/handlers.ts").unlink()
        assert "\x1b" not in invoke("context", "validate", "--project", project).stdout


@needs_git
class TestPlace:
    def test_a_fact_belongs_at_the_lowest_common_ancestor(self, invoke: Invoke, inside: Path) -> None:
        result = invoke("context", "place", "handlers.ts", "other.ts")
        assert (result.stdout, result.stderr) == ("src/api/AGENTS.md\n", "")
        result = invoke("context", "place", "*.ts", "../auth/x.ts")
        assert result.stdout == "src/AGENTS.md\n"
        assert "AGENTS.md covers the folder now" in result.stderr
        answer = json.loads(invoke("context", "place", "handlers.ts", "../auth/", "--json").stdout)
        assert answer == {"folder": "src", "file": "src/AGENTS.md", "exists": False, "covering": "AGENTS.md"}


@needs_git
class TestInit:
    def test_a_dry_run_writes_nothing(self, invoke: Invoke, project: Path) -> None:
        result = invoke("context", "init", "src", "--project", project, "--dry-run")
        assert "\n## Entry Points\n" in result.stdout
        assert not (project / "src/AGENTS.md").exists()

    def test_what_was_shown_is_written(self, invoke: Invoke, inside: Path) -> None:
        shown = invoke("context", "init", "..", "--dry-run").stdout
        result = invoke("context", "init", "..")
        assert "Wrote src/AGENTS.md" in result.stdout
        assert (inside / "src/AGENTS.md").read_text() == shown

    def test_a_node_is_never_overwritten(self, invoke: Invoke, inside: Path) -> None:
        result = invoke("context", "init")
        assert (result.exit_code, result.stderr) == (1, "Error: there is src/api/AGENTS.md already\n")
        assert (inside / "src/api/AGENTS.md").read_text() == API
