"""learn review: one learning, several at once, edited, and asked for on a terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cstp_grpc.modules.intent_layer.duplicate_search import WORD_OVERLAP_THRESHOLD
from tests.cli.learning.learning_project import CHECK, NODE, PITFALL, SAME, SECONDS, Learn, editor
from tests.modules.intent_layer.trees import write_tree


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
        assert f"[default: {WORD_OVERLAP_THRESHOLD:g}]" in " ".join(
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
            (["--accept"], "Name the learning to accept"),
            (["nothing", "--accept", "--reject"], "exclude each other"),
            (["nothing", "--accept"], "there is no learning nothing"),
            (["a/b", "--accept"], "is not the identifier"),
            (["AGENTS.md", "--accept"], "AGENTS.md is not a report"),
            ([], "No terminal to prompt on"),
            (["--all"], "No terminal to prompt on"),
            (["--json"], "No terminal to prompt on"),
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
