"""learn report, list and review: on a project's folder, without a server; reviews are asked for on a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cstp_grpc.intent_layer.duplicate_search import WORD_OVERLAP_THRESHOLD
from tests.cli.conftest import Invoke
from tests.intent_layer.trees import write_tree

NODE = """\
# Shop

## Purpose

Sells things.

## Entry Points

- `src/`

## Contracts

- All endpoints require auth.
"""
PITFALL = {"--type": "pitfall", "--title": "Arrow functions in API module", "--detail": "All handlers use arrow syntax"}
CHECK = {"--type": "check", "--title": "Run the contract tests", "--detail": "They take a minute"}
SECONDS = 60.0


@pytest.fixture
def project(home: Path) -> Path:
    return write_tree(home / "a shop", {"AGENTS.md": NODE, "src/api/handlers.ts": ""})


@dataclass(frozen=True)
class Learn:
    """Runs commands of `cstp learn` on a project."""

    invoke: Invoke
    project: Path

    def report(self, fields: dict[str, str], *options: str) -> str:
        """File a learning about the handlers and return its id."""
        given = [text for option in {"--path": "src/api/handlers.ts", **fields}.items() for text in option]
        result = self.invoke("learn", "report", "--project", self.project, *given, *options, "--json")
        assert result.exit_code == 0, result.output
        return str(json.loads(result.stdout)["learning"]["id"])

    def review(self, *arguments: str) -> tuple[int, str, str]:
        """Review as ada; returns the exit code and what was printed."""
        result = self.invoke("learn", "review", "--project", self.project, "--reviewer", "ada", *arguments)
        return result.exit_code, result.stdout, result.stderr

    def states(self) -> dict[str, str]:
        """The state of each learning by its id."""
        listed = json.loads(self.invoke("learn", "list", "--project", self.project, "--json").stdout)
        return {learning["id"]: learning["state"] for learning in listed["learnings"]}

    @property
    def node(self) -> str:
        return (self.project / "AGENTS.md").read_text()


@pytest.fixture
def learn(invoke: Invoke, project: Path) -> Learn:
    return Learn(invoke, project)


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
        assert "There are no such learnings." in learn.invoke("learn", "list", "--project", learn.project).stdout

    def test_a_file_that_is_no_report_is_told(self, learn: Learn) -> None:
        pitfall = learn.report(PITFALL)
        (learn.project / ".intent-layer/mistakes/pending/notes.md").write_text("Buy milk\n")
        result = learn.invoke("learn", "list", "--project", learn.project)
        assert pitfall in result.stdout
        assert ".intent-layer/mistakes/pending/notes.md: " in result.stderr


class TestReview:
    def test_accepting_merges_and_notes_who_and_why(self, learn: Learn) -> None:
        pitfall = learn.report(PITFALL)
        code, shown, _ = learn.review(pitfall, "--accept", "--reason", "Seen twice")
        moved = f".intent-layer/mistakes/integrated/{pitfall}.md"
        assert (code, shown) == (0, f"{pitfall} is merged into AGENTS.md: {moved}\n")
        assert learn.node.startswith(NODE)
        assert "\n## Pitfalls\n\n### Arrow functions in API module\n\nAll handlers use arrow syntax\n" in learn.node
        assert "**Reviewer**: ada\n" in (learn.project / moved).read_text()
        assert "**Reason**: Seen twice\n" in (learn.project / moved).read_text()

    def test_rejecting_and_deferring_leave_the_node(self, learn: Learn) -> None:
        rejected, deferred = learn.report(PITFALL), learn.report(CHECK)
        assert learn.review(rejected, "--reject", "--reason", "Not so")[0] == 0
        assert learn.review(deferred, "--defer")[1].startswith(f"{deferred} is deferred; it stays pending: ")
        assert learn.states() == {rejected: "rejected", deferred: "pending"}
        assert learn.node == NODE

    def test_a_dry_run_shows_the_change_and_makes_none(self, learn: Learn) -> None:
        check = learn.report(CHECK)
        code, shown, _ = learn.review(check, "--accept", "--dry-run")
        assert code == 0
        assert "+## Checks\n+\n+- [ ] Run the contract tests\n" in shown
        assert shown.endswith(f"{check} would be merged into AGENTS.md.\n")
        assert (learn.node, learn.states()) == (NODE, {check: "pending"})

    def test_a_section_may_be_chosen(self, learn: Learn) -> None:
        assert learn.review(learn.report(PITFALL), "--accept", "--section", "contracts")[0] == 0
        assert "## Pitfalls" not in learn.node
        assert "- All endpoints require auth.\n\n### Arrow functions in API module\n" in learn.node

    def test_a_likely_duplicate_is_shown_and_merged_only_by_force(self, learn: Learn) -> None:
        learn.review(learn.report(PITFALL), "--accept")
        again, before = learn.report(PITFALL), learn.node
        for options in ([], ["--dry-run"], ["--check-only"], ["--threshold", "100"]):
            code, _, told = learn.review(again, "--accept", *options)
            assert code == 2
            assert "AGENTS.md:17: likely the same (1.00): " in told
        result = learn.invoke("learn", "review", again, "--project", learn.project, "--accept", "--json")
        assert (result.exit_code, json.loads(result.stderr)["error"]["reason"]) == (2, "CONFLICT")
        assert (learn.node, learn.states()[again]) == (before, "pending")
        assert learn.review(again, "--accept", "--force")[0] == 0
        assert learn.node.count("### Arrow functions in API module") == 2

    def test_the_threshold_is_a_share_or_a_percentage(self, learn: Learn) -> None:
        learn.review(learn.report(PITFALL), "--accept")
        alike = learn.report({**PITFALL, "--title": "Arrow functions in the billing and mail modules"})
        codes = [
            learn.review(alike, "--accept", "--check-only", "--threshold", n)[0] for n in ("0.2", "20", "0.9", "90")
        ]
        assert codes == [2, 2, 0, 0]
        assert f"; {WORD_OVERLAP_THRESHOLD:g} when absent" in " ".join(
            learn.invoke("learn", "review", "--help").stdout.split()
        )

    def test_a_learning_may_be_named_by_the_file_of_its_report(
        self, learn: Learn, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pitfall = learn.report(PITFALL)
        monkeypatch.chdir(learn.project / ".intent-layer/mistakes")
        result = learn.invoke("learn", "review", f"pending/{pitfall}.md", "--accept")
        assert result.exit_code == 0, result.output
        assert learn.states() == {pitfall: "integrated"}

    def test_json_is_what_the_rpc_answers(self, learn: Learn) -> None:
        pitfall = learn.report(PITFALL)
        answer = json.loads(learn.review(pitfall, "--accept", "--reason", "So it is", "--json")[1])
        assert (answer["node"], answer["learning"]["state"]) == ("AGENTS.md", "integrated")
        assert answer["learning"]["reviews"][0]["reason"] == "So it is"
        assert "+### Arrow functions in API module" in answer["diff"]

    @pytest.mark.parametrize(
        ("arguments", "problem"),
        [
            (["--accept"], "Say what to accept"),
            (["nothing", "--accept", "--reject"], "exclude each other"),
            (["nothing", "--accept"], "there is no learning nothing"),
            (["a/b", "--accept"], "is no identifier"),
            (["AGENTS.md", "--accept"], "AGENTS.md is no report"),
            ([], "There is no terminal to ask on"),
            (["--all"], "There is no terminal to ask on"),
            (["--json"], "There is no terminal to ask on"),
            (["nothing", "--all", "--accept"], "leave the IDs out"),
            (["nothing", "--reject", "--title", "x"], "give --accept too"),
            (["nothing", "--defer", "--edit"], "give --accept too"),
            (["nothing", "--reject", "--reject-duplicates"], "give --accept too"),
            (["--all", "--accept", "--title", "x"], "are for one ID"),
            (["nothing", "--accept", "--edit"], "there is no learning nothing"),
        ],
    )
    def test_what_cannot_be_reviewed_is_told(self, learn: Learn, arguments: list[str], problem: str) -> None:
        code, _, told = learn.review(*arguments)
        assert code == 1
        assert problem in told

    def test_what_was_reviewed_stays_so(self, learn: Learn) -> None:
        pitfall = learn.report(PITFALL)
        learn.review(pitfall, "--reject")
        code, _, told = learn.review(pitfall, "--accept")
        assert (code, told) == (1, f"Error: {pitfall} was reviewed already; it is rejected\n")


SAME = {**PITFALL, "--title": "Arrow functions in the API module", "--detail": "All handlers use arrow syntax there"}


class TestSeveral:
    def test_several_are_reviewed_whatever_comes_of_the_others(self, learn: Learn) -> None:
        pitfall, check = learn.report(PITFALL), learn.report(CHECK)
        code, shown, told = learn.review(pitfall, "PITFALL-1", check, pitfall, "--reject", "--reason", "Old")
        assert (code, learn.states()) == (1, {pitfall: "rejected", check: "rejected"})
        assert "PITFALL-1: there is no learning PITFALL-1\n" in told
        assert shown.endswith("2 reviews, 1 failed.\n")
        again = learn.review(pitfall, check, "--accept")
        assert (again[0], again[1]) == (1, "0 reviews, 2 failed.\n")

    def test_all_that_is_pending_is_reviewed_and_of_the_alike_the_first(self, learn: Learn) -> None:
        first, check, same = learn.report(PITFALL), learn.report(CHECK), learn.report(SAME)
        dry = learn.review("--all", "--accept", "--dry-run")
        code, shown, told = learn.review("--all", "--accept")
        assert (dry[0], code) == (2, 2)
        assert learn.states() == {first: "integrated", check: "integrated", same: "pending"}
        assert f"{same}: {same} says likely the same as {first}\n" in told
        assert "--reject-duplicates" in told
        assert shown.endswith("2 reviews, 1 likely duplicate left.\n")
        assert learn.review("--all", "--accept", "--force")[0] == 0
        assert learn.states()[same] == "integrated"
        assert learn.review("--all", "--accept") == (0, "0 reviews.\n", "")

    def test_duplicates_of_an_accepted_one_can_be_rejected_with_it(self, learn: Learn) -> None:
        first, same = learn.report(PITFALL), learn.report(SAME)
        elsewhere = learn.report({**SAME, "--path": "lib/x.ts"})
        write_tree(learn.project, {"lib/AGENTS.md": NODE})
        assert learn.review("--all", "--accept", "--reject-duplicates")[0] == 0
        assert learn.states() == {first: "integrated", same: "rejected", elsewhere: "integrated"}
        report = (learn.project / f".intent-layer/mistakes/rejected/{same}.md").read_text()
        assert f"**Reason**: Says the same as {first}\n" in report

    def test_json_has_a_result_or_an_error_for_each(self, learn: Learn) -> None:
        first, same = learn.report(PITFALL), learn.report(SAME)
        code, shown, _ = learn.review("nothing", first, same, "--accept", "--json")
        missing, accepted, duplicate = json.loads(shown)["reviews"]
        assert (code, missing["id"], missing["error"]["reason"]) == (1, "nothing", "NOT_FOUND")
        assert (accepted["id"], accepted["result"]["node"]) == (first, "AGENTS.md")
        assert (duplicate["id"], duplicate["error"]["metadata"]) == (same, {"duplicate_of": first})

    def test_a_report_that_cannot_be_read_is_told_and_counts_as_an_error(self, learn: Learn) -> None:
        pitfall = learn.report(PITFALL)
        (learn.project / ".intent-layer/mistakes/pending/notes.md").write_text("Buy milk\n")
        code, _, told = learn.review("--all", "--reject")
        assert (code, learn.states()) == (1, {pitfall: "rejected"})
        assert ".intent-layer/mistakes/pending/notes.md: its type is not known\n" in told
        listed = json.loads(learn.invoke("learn", "list", "--project", learn.project, "--json").stdout)
        assert listed["unreadable"] == [
            {"file": ".intent-layer/mistakes/pending/notes.md", "reason": "its type is not known"}
        ]


def editor(folder: Path, script: str) -> str:
    """An editor that runs a line of Python on the text."""
    program = folder / "editor.py"
    program.write_text(f"import pathlib, sys\np = pathlib.Path(sys.argv[1])\nt = p.read_text()\n{script}\n")
    return f"{sys.executable} {program}"


class TestEditing:
    def test_title_text_and_section_can_be_given(self, learn: Learn) -> None:
        pitfall = learn.report(PITFALL)
        options = ["--title", "Write arrow functions", "--detail", "In handlers", "--section", "Patterns"]
        assert learn.review(pitfall, "--accept", *options)[0] == 0
        assert "\n## Patterns\n\n### Write arrow functions\n\nIn handlers\n\n_Source" in learn.node

    def test_the_editor_changes_what_is_merged(
        self, learn: Learn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pitfall = learn.report(PITFALL)
        offered = "Title: Arrow functions in API module\nSection: Pitfalls\n\nAll handlers use arrow syntax\n"
        change = f"assert t == {offered!r}; p.write_text(t.replace('Pitfalls', 'Patterns').replace('All', 'Some'))"
        monkeypatch.setenv("EDITOR", editor(tmp_path, change))
        assert learn.review(pitfall, "--accept", "--edit")[0] == 0
        assert "\n## Patterns\n\n### Arrow functions in API module\n\nSome handlers use arrow syntax\n" in learn.node
        report = (learn.project / f".intent-layer/mistakes/integrated/{pitfall}.md").read_text()
        assert "All handlers" in report

    @pytest.mark.parametrize(
        ("change", "problem"),
        [
            ("p.write_text('')", "must begin with the lines Title: and Section:"),
            ("p.write_text('Title:\\nSection: Pitfalls\\n\\nText')", "edits.title: must not be empty"),
            ("p.write_text('Title: A\\nSection: Pitfalls\\n\\n')", "edits.detail: must not be empty"),
            ("sys.exit(3)", "failed"),
        ],
    )
    def test_what_cannot_be_merged_is_told_and_changes_nothing(
        self, learn: Learn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, problem: str
    ) -> None:
        pitfall = learn.report(PITFALL)
        monkeypatch.setenv("EDITOR", editor(tmp_path, change))
        code, _, told = learn.review(pitfall, "--accept", "--edit")
        assert (code, problem in told) == (1, True), told
        assert (learn.node, learn.states()) == (NODE, {pitfall: "pending"})

    def test_without_a_terminal_and_an_editor_it_is_told(self, learn: Learn, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("VISUAL", "EDITOR"):
            monkeypatch.delenv(name, raising=False)
        code, _, told = learn.review(learn.report(PITFALL), "--accept", "--edit")
        assert (code, "set EDITOR" in told) == (1, True)


@dataclass
class Terminal:
    """A terminal with a command on it."""

    descriptor: int
    shown: str = ""
    read: int = field(default=0)

    def expect(self, text: str) -> None:
        """Return when a text is shown after what was expected before."""
        deadline = time.monotonic() + SECONDS
        while text not in self.shown[self.read :]:
            assert time.monotonic() < deadline, f"{text!r} is not shown: {self.shown}"
            assert self._more(deadline), f"{text!r} is not shown before the end: {self.shown}"
        self.read = self.shown.index(text, self.read) + len(text)

    def answer(self, text: str) -> None:
        os.write(self.descriptor, f"{text}\n".encode())

    def _more(self, deadline: float) -> bool:
        ready, _, _ = select.select([self.descriptor], [], [], max(deadline - time.monotonic(), 0))
        try:
            chunk = os.read(self.descriptor, 65_536) if ready else b" "
        except OSError:
            # Linux says so where the other end is closed.
            return False
        self.shown += chunk.decode(errors="replace")
        return bool(chunk)


@contextmanager
def terminal(project: Path, *arguments: str) -> Iterator[tuple[Terminal, subprocess.Popen[bytes]]]:
    """Run `cstp learn review` on a terminal of its own; it has ended afterwards."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "cstp_grpc", "learn", "review", *arguments]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(
        command, cwd=project, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    ) as process:
        os.close(theirs)
        try:
            yield Terminal(ours), process
            process.wait(SECONDS)
        finally:
            process.kill()
            os.close(ours)


class TestTerminal:
    def test_reviews_one_after_the_other(self, learn: Learn) -> None:
        accepted, rejected = learn.report(PITFALL), learn.report(CHECK)
        deferred = learn.report({**CHECK, "--title": "Ask the platform team", "--detail": "They own the loader"})
        skipped = learn.report({**PITFALL, "--title": "Cold starts", "--detail": "The first call is slow"})
        with terminal(learn.project, "--reviewer", "ada") as (screen, process):
            screen.expect("Arrow functions in API module")
            screen.expect("All handlers use arrow syntax")
            screen.expect("+### Arrow functions in API module")
            screen.expect("[a]ccept, [r]eject, [d]efer, [e]dit, [s]kip, [q]uit")
            screen.answer("a")
            screen.expect("Why")
            screen.answer("Seen twice")
            screen.expect(f"{accepted} is merged into AGENTS.md")
            screen.expect("Run the contract tests")
            screen.answer("what?")
            screen.expect("[q]uit")
            screen.answer("reject")
            screen.expect("Why")
            screen.answer("")
            screen.expect("Ask the platform team")
            screen.answer("d")
            screen.expect("Why")
            screen.answer("Next week")
            screen.expect("Cold starts")
            screen.expect("[q]uit")
            screen.answer("s")
            screen.expect("There are no more.")
        assert process.returncode == 0
        assert learn.states() == {
            accepted: "integrated",
            rejected: "rejected",
            deferred: "pending",
            skipped: "pending",
        }
        report = (learn.project / f".intent-layer/mistakes/integrated/{accepted}.md").read_text()
        assert "**Reviewer**: ada\n" in report
        assert "**Reason**: Seen twice\n" in report

    def test_stops_when_told_to(self, learn: Learn) -> None:
        first, second = learn.report(PITFALL), learn.report(CHECK)
        with terminal(learn.project) as (screen, process):
            screen.expect("[q]uit")
            screen.answer("q")
        assert process.returncode == 0
        assert learn.states() == {first: "pending", second: "pending"}

    def test_a_likely_duplicate_is_asked_about(self, learn: Learn) -> None:
        learn.review(learn.report(PITFALL), "--accept")
        again = learn.report(PITFALL)
        for answer, state in (("n", "pending"), ("y", "integrated")):
            with terminal(learn.project, again, "--reason", "Told twice") as (screen, process):
                screen.expect("likely the same (1.00)")
                screen.expect("[q]uit")
                screen.answer("accept")
                screen.expect("Merge it all the same?")
                screen.answer(answer)
                screen.expect("There are no more.")
            assert (process.returncode, learn.states()[again]) == (0, state)

    def test_text_of_others_does_not_steer_the_terminal(self, learn: Learn) -> None:
        learn.report({**PITFALL, "--detail": "\x1b[2J\x1b]0;owned\x07 \u202emirrored"})
        with terminal(learn.project) as (screen, _):
            screen.expect("[q]uit")
            screen.answer("q")
        assert "mirrored" in screen.shown
        for sequence in ("\x1b[2J", "\x1b]0;", "\u202e"):
            assert sequence not in screen.shown

    def test_nothing_may_be_pending(self, learn: Learn) -> None:
        with terminal(learn.project) as (screen, process):
            screen.expect("Nothing is pending.")
        assert process.returncode == 0

    def test_the_alike_are_shown_and_decided_together(self, learn: Learn) -> None:
        first, check, same = learn.report(PITFALL), learn.report(CHECK), learn.report(SAME)
        with terminal(learn.project, "--reason", "Seen") as (screen, process):
            screen.expect("1 other likely the same:")
            screen.expect(same)
            screen.expect("[q]uit")
            screen.answer("a")
            screen.expect("Reject the 1 other as duplicates?")
            screen.answer("y")
            screen.expect(f"{same} is rejected")
            screen.expect("Run the contract tests")
            screen.expect("[q]uit")
            screen.answer("s")
            screen.expect("There are no more.")
        assert process.returncode == 0
        assert learn.states() == {first: "integrated", check: "pending", same: "rejected"}

    def test_what_is_merged_can_be_edited_first(
        self, learn: Learn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pitfall = learn.report(PITFALL)
        monkeypatch.setenv("EDITOR", editor(tmp_path, "p.write_text(t.replace('All', 'Some'))"))
        with terminal(learn.project, "--reason", "Seen") as (screen, process):
            screen.expect("[q]uit")
            screen.answer("e")
            screen.expect("+Some handlers use arrow syntax")
            screen.expect("[q]uit")
            screen.answer("a")
            screen.expect("is merged into AGENTS.md")
        assert process.returncode == 0
        assert learn.states() == {pitfall: "integrated"}
        assert "Some handlers" in learn.node
