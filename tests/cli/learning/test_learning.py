"""learn report, list and review: on a project's folder, without a server; reviews are asked for on a terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke
from tests.cli.learning.learning_project import CHECK, PITFALL, Learn


class TestReport:
    def test_says_where_the_report_is(self, invoke: Invoke, project: Path) -> None:
        fields = [text for option in PITFALL.items() for text in option]
        result = invoke("learn", "report", "--project", project, "--path", "src/api/handlers.ts", *fields)
        assert result.exit_code == 0
        assert result.stdout.startswith("Learning report created: pitfall: Arrow functions in API module\n")
        (file,) = re.findall(r"  report  (.*)", result.stdout)
        content = Path(file).read_text()
        assert "**Directory**: src/api\n" in content
        assert "**Agent**: unknown\n" in content
        assert "\n- src/api/handlers.ts\n" in content

    def test_json_is_what_the_rpc_answers(self, invoke: Invoke, project: Path) -> None:
        options = ["--path", "src/api/", "--path", "src/auth/x.ts", "--agent-id", "worker-3", "--operation", "A build"]
        fields = [text for option in PITFALL.items() for text in option]
        arguments = ["--project", project, *options, *fields, "--evidence", "The log"]
        learning = json.loads(invoke("learn", "report", *arguments, "--json").stdout)["learning"]
        assert learning["paths"] == ["src/api", "src/auth/x.ts"]
        assert (learning["agentId"], learning["operation"], learning["evidence"]) == ("worker-3", "A build", "The log")
        assert (learning["type"], learning["state"]) == ("pitfall", "pending")

    def test_the_detail_is_read_from_standard_input(self, invoke: Invoke, project: Path) -> None:
        arguments = ["--project", project, "--path", ".", "--type", "insight", "--title", "Why", "--detail", "-"]
        result = invoke("learn", "report", *arguments, "--json", input="One line\n\n## Two: „ü“\n")
        assert json.loads(result.stdout)["learning"]["detail"] == "One line\n\n## Two: „ü“"

    @pytest.mark.parametrize(
        ("field", "value", "problem"),
        [
            ("--title", " ", "title: must not be empty or blank"),
            ("--title", "two\nlines", "title: must be one line"),
            ("--detail", "x" * 20_001, "detail: must have at most 20000 characters"),
            ("--path", "../x", "Error: path: ../x is not in the project"),
            ("--path", "", "Error: path: must not be empty"),
            ("--path", "away/x", "Error: path: leads out of the project by a link"),
        ],
    )
    def test_what_cannot_be_filed_is_told(
        self, invoke: Invoke, project: Path, field: str, value: str, problem: str
    ) -> None:
        (project / "away").symlink_to(project.parent)
        given = [text for option in {"--path": "src", **PITFALL, field: value}.items() for text in option]
        result = invoke("learn", "report", "--project", project, *given)
        assert result.exit_code == 1
        assert problem in result.stderr
        assert not (project / ".intent-layer").exists()

    def test_of_several_paths_the_one_that_cannot_be_is_named(self, invoke: Invoke, project: Path) -> None:
        (project / "away").symlink_to(project.parent)
        given = [text for option in PITFALL.items() for text in option]
        result = invoke("learn", "report", "--project", project, "--path", "src", "--path", "away/x", *given)
        assert (result.exit_code, result.stderr) == (1, "Error: paths[1]: leads out of the project by a link\n")

    def test_a_detail_that_is_too_long_or_no_text_is_refused_from_standard_input_too(
        self, invoke: Invoke, project: Path
    ) -> None:
        arguments = ["--project", project, "--path", ".", "--type", "insight", "--title", "Why", "--detail", "-"]
        for given, problem in ((b"x" * 100_000, "at most 20000"), (b"caf\xe9", "must be UTF-8"), (b"", "empty")):
            result = invoke("learn", "report", *arguments, input=given)
            assert result.exit_code == 1
            assert problem in result.stderr


class TestList:
    def test_the_latest_comes_first(self, learn: Learn) -> None:
        first, second = learn.report(PITFALL), learn.report(CHECK, "--path", "src/auth")
        shown = learn.invoke("learn", "list", "--project", learn.project).stdout
        assert shown.startswith("pending check: Run the contract tests\n")
        assert shown.index(second) < shown.index(first)

    def test_conditions_choose(self, learn: Learn) -> None:
        pitfall, check = learn.report(PITFALL), learn.report({**CHECK, "--path": "src/auth/x.ts"})
        learn.review(check, "--reject")

        def listed(*options: str) -> list[str]:
            result = learn.invoke("learn", "list", "--project", learn.project, *options, "--json")
            return [each["id"] for each in json.loads(result.stdout)["learnings"]]

        assert listed("--state", "pending") == [pitfall]
        assert listed("--state", "rejected", "--state", "integrated") == [check]
        assert listed("--type", "check") == [check]
        assert listed("--path", "src/api") == [pitfall]
        assert len(listed("--path", "src")) == 2

    def test_there_may_be_none(self, learn: Learn) -> None:
        assert "No matching learnings." in learn.invoke("learn", "list", "--project", learn.project).stdout

    def test_a_file_that_is_no_report_is_told(self, learn: Learn) -> None:
        pitfall = learn.report(PITFALL)
        (learn.project / ".intent-layer/mistakes/pending/notes.md").write_text("Buy milk\n")
        result = learn.invoke("learn", "list", "--project", learn.project)
        assert pitfall in result.stdout
        assert ".intent-layer/mistakes/pending/notes.md: " in result.stderr
