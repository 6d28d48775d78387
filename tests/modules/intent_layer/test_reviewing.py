"""A review happens as a whole or not at all, whenever it is killed and whoever else reviews or edits."""

from __future__ import annotations

import fcntl
import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest

from cstp_grpc.contract.errors import Conflict, InvalidArgument, NotFound, Unavailable
from cstp_grpc.modules.intent_layer.learning_review import LikelyDuplicate, Reviewer
from cstp_grpc.modules.intent_layer.learning_store import MAX_REPORT_BYTES
from cstp_grpc.modules.intent_layer.model import (
    LearningEdits,
    LearningReview,
    LearningState,
    LearningType,
    ReviewRequest,
    ReviewVerdict,
)
from cstp_grpc.modules.intent_layer.project_tree import MAX_FILE_BYTES, ProjectTree
from tests.modules.intent_layer.filed_reports import (
    ACCEPT,
    DEFER,
    FILES,
    INTEGRATED,
    MISTAKES,
    NODE,
    NOW,
    PENDING,
    REJECT,
    REJECTED,
    ROOT_NODE,
    filed,
    learnings_of,
    review,
    snapshot,
)
from tests.modules.intent_layer.killing import AT
from tests.modules.intent_layer.trees import write_tree


def test_a_review_that_would_make_the_report_unreadable_is_refused(project: Path) -> None:
    learning = filed(project)
    with (project / learning.file).open("a") as report:
        report.write("x" * (MAX_REPORT_BYTES - 4000))
    before = snapshot(project)
    for verdict in ReviewVerdict:
        with pytest.raises(Conflict, match="no room"):
            review(project, learning, verdict, reason="\x85" * 1000 + ".")
    assert snapshot(project) == before
    assert review(project, learning, REJECT, reason="Too long").learning.state is REJECTED


def test_accepting_merges_into_the_covering_node_and_moves_the_report(project: Path) -> None:
    learning = filed(project)
    report = (project / learning.file).read_text()
    outcome = review(project, learning)
    entry = f"### Arrow functions\r\n\r\nHandlers are bare.\r\n\r\n_Source: {learning.id}.md_"
    expected = NODE.replace("file.\r\n", f"file.\r\n\r\n{entry}\r\n")
    assert (project / "src/api/AGENTS.md").read_bytes() == expected.encode()
    assert outcome.node == "src/api/AGENTS.md"
    assert "+### Arrow functions\r\n" in outcome.diff
    assert outcome.duplicates == ()
    assert outcome.learning.state is INTEGRATED
    assert outcome.learning.file == f"{MISTAKES}/integrated/{learning.id}.md"
    assert outcome.learning.reviews == (LearningReview(ACCEPT, "alice", "Seen twice", AT),)
    noted = report.replace("- [ ] Added", "- [x] Added") + (
        "\n**Review**: accept\n**Reviewer**: alice\n**Reviewed**: 2026-02-07T00:00:00Z\n**Reason**: Seen twice\n"
    )
    assert snapshot(project) == {
        **{path: text.encode() for path, text in FILES.items()},
        "src/api/AGENTS.md": expected.encode(),
        outcome.learning.file: noted.encode(),
    }


@pytest.mark.parametrize(("verdict", "state"), [(REJECT, REJECTED), (DEFER, PENDING)])
def test_other_verdicts_touch_no_node(project: Path, verdict: ReviewVerdict, state: LearningState) -> None:
    learning = filed(project)
    outcome = review(project, learning, verdict, reason="")
    assert (outcome.node, outcome.diff) == (None, "")
    assert outcome.learning.state is state
    assert outcome.learning.reviews == (LearningReview(verdict, "alice", "", AT),)
    assert set(snapshot(project)) == {*FILES, f"{MISTAKES}/{state}/{learning.id}.md"}
    assert (project / "src/api/AGENTS.md").read_bytes() == NODE.encode()


def test_what_was_deferred_can_be_reviewed_again_and_the_rest_cannot(project: Path) -> None:
    learning = filed(project)
    review(project, learning, DEFER)
    outcome = review(project, learning)
    assert [each.verdict for each in outcome.learning.reviews] == [DEFER, ACCEPT]
    before = snapshot(project)
    for verdict in ReviewVerdict:
        with pytest.raises(Conflict, match="integrated"):
            review(project, learning, verdict)
    assert snapshot(project) == before


@pytest.mark.parametrize("verdict", ReviewVerdict)
def test_a_dry_run_shows_everything_and_does_nothing(project: Path, verdict: ReviewVerdict) -> None:
    learning = filed(project, "Do not commit .env files")
    before = snapshot(project)
    outcome = review(project, learning, verdict, dry_run=True)
    assert snapshot(project) == before
    assert outcome.learning == learning
    assert outcome.node == ("src/api/AGENTS.md" if verdict is ACCEPT else None)
    assert [each.line for each in outcome.duplicates] == ([9] if verdict is ACCEPT else [])
    assert bool(outcome.diff) == (verdict is ACCEPT)


def test_a_likely_duplicate_is_refused_unless_forced(project: Path) -> None:
    learning = filed(project, "Do not commit .env files")
    before = snapshot(project)
    with pytest.raises(LikelyDuplicate, match=r"src/api/AGENTS\.md, line 9") as refused:
        review(project, learning)
    assert refused.value.duplicates[0].text == "- Never commit the .env file."
    assert snapshot(project) == before
    assert review(project, learning, force=True).learning.state is INTEGRATED


def test_several_paths_meet_in_the_node_above_all(project: Path) -> None:
    learning = filed(project, paths=("src/api/handlers.ts", "src/auth"))
    assert review(project, learning).node == "CLAUDE.md"
    assert "## Pitfalls\n\n### Arrow functions" in (project / "CLAUDE.md").read_text()


def test_edits_replace_what_was_reported(project: Path) -> None:
    learning = filed(project)
    outcome = review(project, learning, edits=LearningEdits("Bare handlers", "Bind them.", "Own"))
    assert outcome.learning.title == "Arrow functions"
    text = (project / "src/api/AGENTS.md").read_bytes().decode()
    assert text.endswith(f"x\r\n\r\n### Bare handlers\r\n\r\nBind them.\r\n\r\n_Source: {learning.id}.md_")


def test_where_nothing_covers_it_a_node_is_created_at_the_root(tmp_path: Path) -> None:
    learning = filed(write_tree(tmp_path, {"src/": ""}), path="src", type=LearningType.CHECK)
    outcome = review(tmp_path, learning)
    assert outcome.node == "CLAUDE.md"
    assert outcome.diff.startswith("--- /dev/null\n+++ b/CLAUDE.md\n")
    assert (tmp_path / "CLAUDE.md").read_text().startswith("## Checks\n\n- [ ] Arrow functions\n")


def test_a_link_stays_and_what_it_leads_to_is_written(project: Path) -> None:
    (project / "AGENTS.md").symlink_to("CLAUDE.md")
    (project / "src/auth/AGENTS.md").symlink_to("../../docs.md")
    (project / "docs.md").write_text("# Auth\n")
    review(project, filed(project, path="."))
    review(project, filed(project, path="src/auth"))
    assert (project / "AGENTS.md").readlink() == Path("CLAUDE.md")
    assert (project / "src/auth/AGENTS.md").readlink() == Path("../../docs.md")
    assert "### Arrow functions" in (project / "CLAUDE.md").read_text()
    assert "### Arrow functions" in (project / "docs.md").read_text()


def test_copies_stay_copies(project: Path) -> None:
    (project / "AGENTS.md").write_text(ROOT_NODE)
    review(project, filed(project, path="."))
    assert (project / "AGENTS.md").read_text() == (project / "CLAUDE.md").read_text() != ROOT_NODE


def test_the_mode_of_files_is_kept(project: Path) -> None:
    learning = filed(project)
    (project / "src/api/AGENTS.md").chmod(0o640)
    (project / learning.file).chmod(0o606)
    outcome = review(project, learning)
    assert (project / "src/api/AGENTS.md").stat().st_mode & 0o777 == 0o640
    assert (project / outcome.learning.file).stat().st_mode & 0o777 == 0o606


def test_a_node_outside_the_project_is_never_written(project: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.md").write_text(NODE)
    (project / "src/api/AGENTS.md").unlink()
    (project / "src/api/AGENTS.md").symlink_to(tmp_path / "outside.md")
    learning = filed(project)
    before = snapshot(project)
    with pytest.raises(InvalidArgument):
        review(project, learning)
    assert snapshot(project) == before
    assert (tmp_path / "outside.md").read_text() == NODE.replace("\r\n", "\n")
    assert review(project, learning, REJECT).learning.state is REJECTED


def test_a_node_that_is_not_utf8_is_left_to_people(project: Path) -> None:
    (project / "src/api/AGENTS.md").write_bytes(b"## Pitfalls\n\xff\n")
    learning = filed(project)
    with pytest.raises(Conflict, match="UTF-8"):
        review(project, learning)
    assert (project / "src/api/AGENTS.md").read_bytes() == b"## Pitfalls\n\xff\n"


def test_a_node_does_not_grow_beyond_what_can_be_read(project: Path) -> None:
    (project / "src/api/AGENTS.md").write_text("x" * (MAX_FILE_BYTES - 10))
    with pytest.raises(Conflict, match="larger than"):
        review(project, filed(project))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"learning": "../../CLAUDE"}, "id"),
        ({"reviewer": ""}, "reviewer"),
        ({"reviewer": "a\nb"}, "reviewer"),
        ({"reason": "x" * 2001}, "reason"),
        ({"edits": LearningEdits(title=" ")}, "edits.title"),
        ({"edits": LearningEdits(detail="")}, "edits.detail"),
        ({"edits": LearningEdits(section="a\n## b")}, "edits.section"),
        ({"edits": LearningEdits(section="a #")}, "edits.section"),
    ],
)
def test_what_cannot_be_is_refused(project: Path, fields: dict[str, object], field: str) -> None:
    learning = filed(project)
    before = snapshot(project)
    with pytest.raises(InvalidArgument) as refused:
        review(project, **{"learning": learning, **fields})  # type: ignore[arg-type]
    assert refused.value.violations[0].field == field
    assert snapshot(project) == before


def test_what_was_never_filed_is_not_found(project: Path) -> None:
    with pytest.raises(NotFound):
        review(project, "PITFALL-1")
    filed(project)
    with pytest.raises(NotFound):
        review(project, "PITFALL-1")


def test_a_report_that_took_the_name_of_another_is_not_overwritten(project: Path) -> None:
    learning = filed(project)
    other = project / MISTAKES / "integrated" / f"{learning.id}.md"
    other.parent.mkdir()
    other.write_text("Another one.")
    with pytest.raises(Conflict, match="another"):
        review(project, learning)
    assert other.read_text() == "Another one."


def test_a_review_waits_for_another_one_but_not_for_ever(project: Path) -> None:
    learning = filed(project)
    with (project / MISTAKES / ".review.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        reviewer = Reviewer(ProjectTree(project), lambda: AT, lock_timeout=0)
        with pytest.raises(Unavailable, match="another review"):
            reviewer.review(ReviewRequest(learning.id, ACCEPT, "alice"))
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(review, project, learning)
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert waiting.result(30).learning.state is INTEGRATED


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"review 1": {}}', '{"review 2": {"id": "a"}}'])
def test_a_journal_that_is_none_stops_reviews_and_says_so(project: Path, content: str) -> None:
    learning = filed(project)
    (project / MISTAKES / ".review.journal").write_text(content)
    before = snapshot(project)
    with pytest.raises(Unavailable, match=r"\.review\.journal"):
        review(project, learning)
    assert snapshot(project) == before


@pytest.mark.parametrize("file", [".git/config", "vendor/lib/.git/config", ".GIT/hooks/post-checkout"])
def test_a_journal_that_came_with_a_clone_changes_nothing_of_git(project: Path, file: str) -> None:
    learning = filed(project)
    write_tree(project, {"evil": "[core]\n\tfsmonitor = evil\n", file: "[core]\n"})
    evil, config = (hashlib.sha256((project / name).read_bytes()).hexdigest() for name in ("evil", file))
    changes = [
        {"file": "evil", "before": None, "after": evil, "marks": 0},
        {"file": file, "before": config, "after": evil, "marks": 0},
    ]
    by = {"verdict": "accept", "reviewer": "mallory", "reason": "", "at": NOW.isoformat()}
    journal = {"review 1": {"id": "PITFALL-1", "review": by, "mark": "m", "changes": changes}}
    (project / MISTAKES / ".review.journal").write_text(json.dumps(journal))
    before = snapshot(project)
    with pytest.raises(Unavailable, match=r"\.review\.journal"):
        review(project, learning, DEFER)
    assert snapshot(project) == before


def test_a_node_that_cannot_be_written_leaves_everything_as_it_was(project: Path) -> None:
    learning = filed(project)
    before = snapshot(project)
    (project / "src/api/.intent-layer-review.tmp").mkdir()
    with pytest.raises(Unavailable):
        review(project, learning)
    (project / "src/api/.intent-layer-review.tmp").rmdir()
    Reviewer(ProjectTree(project), lambda: AT).recover()
    assert snapshot(project) == before


def test_an_edit_while_a_review_is_under_way_stays_and_the_review_does_not_happen(project: Path) -> None:
    learning = filed(project)
    before = snapshot(project)

    def edited() -> datetime:
        (project / "src/api/AGENTS.md").write_text("# Edited\n")
        return AT

    with pytest.raises(Conflict, match="changed while it was reviewed"):
        Reviewer(ProjectTree(project), edited).review(ReviewRequest(learning.id, ACCEPT, "alice"))
    assert snapshot(project) == {**before, "src/api/AGENTS.md": b"# Edited\n"}
    assert review(project, learning).learning.state is INTEGRATED


def test_a_node_that_appears_while_one_is_created_stays(tmp_path: Path) -> None:
    learning = filed(write_tree(tmp_path, {"src/": ""}), path="src")

    def created() -> datetime:
        (tmp_path / "CLAUDE.md").write_text("# Mine\n")
        return AT

    with pytest.raises(Conflict, match="changed while it was reviewed"):
        Reviewer(ProjectTree(tmp_path), created).review(ReviewRequest(learning.id, ACCEPT, "alice"))
    assert (tmp_path / "CLAUDE.md").read_text() == "# Mine\n"
    assert [each.state for each in learnings_of(tmp_path)] == [PENDING]
