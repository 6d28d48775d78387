"""Which nodes are older than what they cover, as git tells it; and when nothing is said."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from cstp_grpc.modules.intent_layer.node_staleness import GitHistory, StaleNode
from cstp_grpc.modules.intent_layer.project_tree import ProjectTree
from tests.modules.intent_layer.repositories import Repository, needs_git, new_repository
from tests.modules.intent_layer.trees import validate_nodes, write_large_tree

pytestmark = needs_git

SECONDS = 30.0
"""How long git may take that is expected to answer."""


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return new_repository(tmp_path / "project")


def stale(root: Path, *paths: str) -> dict[str, str]:
    """The messages of stale nodes by file, cut before the advice."""
    findings = validate_nodes(ProjectTree(root), paths, GitHistory(root, os.environ, SECONDS))
    assert all(finding.line == 1 for finding in findings if finding.rule == "stale")
    return {finding.file: finding.message.partition(";")[0] for finding in findings if finding.rule == "stale"}


def behind(root: Path, history: GitHistory | None = None) -> dict[str, StaleNode]:
    """What the history says of a project whose only node is the one in its root."""
    return dict(
        (history or GitHistory(root, os.environ, SECONDS)).stale_nodes({".": frozenset({"CLAUDE.md"})}, lambda _: ".")
    )


def test_files_that_changed_after_their_node_make_it_stale(repository: Repository) -> None:
    repository.commit("CLAUDE.md", "a.py", "b.py")
    repository.commit("a.py")
    repository.commit("a.py", "b.py")
    assert stale(repository.root) == {
        "CLAUDE.md": "2 files changed in 2 commits since 2026-01-01, when the node last did: a.py, b.py"
    }


def test_a_node_that_changed_last_or_together_with_its_files_is_not_stale(repository: Repository) -> None:
    repository.commit("a.py")
    repository.commit("CLAUDE.md", "a.py")
    assert stale(repository.root) == {}


def test_each_change_belongs_to_the_nearest_node_above(repository: Repository) -> None:
    repository.commit("CLAUDE.md", "src/AGENTS.md", "src/api/AGENTS.md", "src/web/x.ts", "top.py")
    repository.commit("src/api/handlers/x.py", "src/web/x.ts")
    repository.commit("src/api/AGENTS.md")
    assert stale(repository.root) == {
        "src/AGENTS.md": "1 file changed in 1 commit since 2026-01-01, when the node last did: src/web/x.ts"
    }


def test_one_node_is_judged_as_it_is_among_all(repository: Repository) -> None:
    repository.commit("CLAUDE.md", "src/AGENTS.md", "src/api/AGENTS.md")
    repository.commit("src/api/x.py", "src/x.py")
    assert stale(repository.root, "src/AGENTS.md") == {
        "src/AGENTS.md": "1 file changed in 1 commit since 2026-01-01, when the node last did: src/x.py"
    }


def test_deleted_and_renamed_files_count(repository: Repository) -> None:
    repository.commit("CLAUDE.md", "old/a.py", "b.py")
    repository.git("mv", "b.py", "c.py")
    shutil.rmtree(repository.root / "old")
    repository.commit()
    assert behind(repository.root) == {".": StaleNode("2026-01-01", 1, ("b.py", "c.py", "old/a.py"))}


def test_learnings_and_folders_that_are_passed_over_do_not_count(repository: Repository) -> None:
    repository.commit("CLAUDE.md")
    repository.commit(".intent-layer/mistakes/pending/x.md", "src/dist/x.js", "AGENTS.md")
    assert behind(repository.root) == {}


@pytest.mark.parametrize("staged", [False, True])
def test_a_node_with_changes_that_are_not_committed_is_not_stale(repository: Repository, staged: bool) -> None:
    repository.commit("CLAUDE.md", "src/AGENTS.md")
    repository.commit("a.py", "src/a.py")
    repository.write("CLAUDE.md")
    if staged:
        repository.git("add", "CLAUDE.md")
    assert set(stale(repository.root)) == {"src/AGENTS.md"}


@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
def test_a_node_that_was_only_touched_is_as_old_as_its_commit(tmp_path: Path, object_format: str) -> None:
    repository = new_repository(tmp_path, f"--object-format={object_format}")
    repository.write("CLAUDE.md")
    (tmp_path / "AGENTS.md").symlink_to("CLAUDE.md")
    repository.commit()
    repository.commit("a.py")
    os.utime(tmp_path / "CLAUDE.md", (1, 1))
    os.utime(tmp_path / "AGENTS.md", (1, 1), follow_symlinks=False)
    assert set(stale(tmp_path)) == {"CLAUDE.md"}
    repository.git("rm", "--quiet", "--cached", "CLAUDE.md")
    repository.write("CLAUDE.md")
    assert stale(tmp_path) == {}


def test_nodes_that_were_never_committed_are_not_stale(repository: Repository) -> None:
    repository.commit("a.py", "src/AGENTS.md")
    (repository.root / "src/AGENTS.md").unlink()
    repository.commit("a.py")
    repository.commit("src/a.py")
    repository.write("CLAUDE.md", "src/AGENTS.md")
    assert stale(repository.root) == {}


def test_a_node_that_is_a_link_is_as_old_as_the_file_that_it_leads_to(repository: Repository) -> None:
    repository.write("docs/agents.md")
    (repository.root / "AGENTS.md").symlink_to("docs/agents.md")
    repository.commit("a.py")
    repository.commit("a.py")
    assert set(stale(repository.root)) == {"AGENTS.md"}
    repository.commit("docs/agents.md")
    assert stale(repository.root) == {}
    repository.commit("a.py")
    repository.write("docs/agents.md")
    assert stale(repository.root) == {}


def test_changes_on_merged_branches_count(repository: Repository) -> None:
    repository.commit("CLAUDE.md", "a.py")
    repository.git("checkout", "--quiet", "-b", "branch")
    repository.commit("b.py")
    repository.git("checkout", "--quiet", "main")
    repository.commit("c.py")
    repository.git("merge", "--quiet", "--no-edit", "branch")
    assert behind(repository.root) == {".": StaleNode("2026-01-01", 2, ("b.py", "c.py"))}


def test_names_of_any_kind_are_told(repository: Repository) -> None:
    repository.commit("CLAUDE.md")
    names = ["ä b.py", 'q"uote.py', "new\nline.py", "\x1erecord.py", "M"]
    repository.write(*names)
    (repository.root / os.fsdecode(b"caf\xe9.py")).touch()
    repository.commit()
    assert behind(repository.root) == {".": StaleNode("2026-01-01", 1, tuple(sorted([*names, "caf\ufffd.py"])))}
    assert all(message.isprintable() for message in stale(repository.root).values())


def test_a_project_may_lie_within_a_repository(repository: Repository) -> None:
    repository.commit("CLAUDE.md", "packages/shop/CLAUDE.md", "packages/shop/a.py")
    repository.commit("other.py", "packages/other.py")
    assert stale(repository.root / "packages/shop") == {}
    repository.commit("packages/shop/a.py")
    assert set(stale(repository.root / "packages/shop")) == {"CLAUDE.md"}
    assert behind(repository.root / "packages/shop") == {".": StaleNode("2026-01-01", 1, ("a.py",))}


def test_a_linked_work_tree_has_a_history_also_within_a_hook(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commit("CLAUDE.md")
    repository.commit("a.py")
    repository.git("worktree", "add", "--quiet", "--detach", str(tmp_path / "linked"))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path))
    assert behind(tmp_path / "linked") == {".": StaleNode("2026-01-01", 1, ("a.py",))}


def test_a_shallow_clone_says_nothing(repository: Repository, tmp_path: Path) -> None:
    repository.commit("CLAUDE.md")
    repository.commit("a.py")
    repository.commit("b.py")
    repository.git("clone", "--quiet", "--depth", "2", f"file://{repository.root}", str(tmp_path / "clone"))
    assert behind(tmp_path / "clone") == {}


def test_a_clone_without_trees_fetches_nothing(repository: Repository, tmp_path: Path) -> None:
    repository.commit("CLAUDE.md")
    repository.commit("a.py")
    repository.git("config", "uploadpack.allowFilter", "true")
    clone = tmp_path / "clone"
    repository.git("clone", "--quiet", "--filter=tree:0", f"file://{repository.root}", str(clone))
    packs = sorted((clone / ".git/objects/pack").iterdir())
    assert behind(clone) == {}
    assert sorted((clone / ".git/objects/pack").iterdir()) == packs


def test_without_a_repository_or_a_commit_there_is_no_history(tmp_path: Path) -> None:
    assert behind(tmp_path) == {}
    empty = new_repository(tmp_path / "empty")
    empty.write("CLAUDE.md")
    assert behind(empty.root) == {}
    assert behind(tmp_path / "gone") == {}


def test_without_git_there_is_no_history(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    repository.commit("CLAUDE.md")
    repository.commit("a.py")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert behind(repository.root) == {}


def test_the_settings_of_a_repository_start_no_program(repository: Repository, tmp_path: Path) -> None:
    repository.commit("CLAUDE.md")
    repository.commit("a.py")
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    for setting in ("core.fsmonitor", "core.pager", "pager.log", "diff.external", "gpg.program", "core.editor"):
        repository.git("config", setting, str(program))
    for setting in ("clean", "smudge", "process"):
        repository.git("config", f"filter.own.{setting}", str(program))
    (repository.root / ".git/info/attributes").write_text("* filter=own diff=own\n")
    repository.git("config", "diff.own.textconv", str(program))
    os.utime(repository.root / "CLAUDE.md", (1, 1))
    repository.git("config", "log.showSignature", "true")
    repository.git("config", "color.ui", "always")
    assert behind(repository.root) == {".": StaleNode("2026-01-01", 1, ("a.py",))}
    assert not (tmp_path / "started").exists()


def test_git_that_does_not_answer_is_ended(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commit("CLAUDE.md")
    program = tmp_path / "bin/git"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    assert behind(repository.root, GitHistory(repository.root, os.environ, timeout=0.2)) == {}


def test_what_was_read_before_the_time_was_up_holds(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = shutil.which("git")
    repository.commit("CLAUDE.md", "src/AGENTS.md")
    program = tmp_path / "bin/git"
    program.parent.mkdir()
    log = "\\0362026-01-03\\0\\nM\\0src/a.py\\0M\\0b.py\\0\\0\\0362026-01-02\\0\\nM\\0src/AGENTS.md\\0\\0"
    unfinished = "\\0362026-01-01\\0\\nM\\0CLAUDE.md\\0"
    program.write_text(
        f"#!/bin/sh\ncase \" $* \" in *' log '*) printf '{log}{unfinished}'; exec sleep 600;; esac\nexec {git} \"$@\"\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    nodes = {".": frozenset({"CLAUDE.md"}), "src": frozenset({"src/AGENTS.md"})}
    # On a busy machine nothing at all may have been read when a short time is up.
    histories = (GitHistory(repository.root, os.environ, timeout=seconds) for seconds in (1.0, 5.0, 25.0))
    found = (history.stale_nodes(nodes, lambda folder: folder) for history in histories)
    assert next(filter(None, found), {}) == {"src": StaleNode("2026-01-02", 1, ("src/a.py",))}


@pytest.mark.slow
def test_a_large_project_is_read_in_one_go(tmp_path: Path) -> None:
    repository = new_repository(tmp_path)
    nodes = write_large_tree(tmp_path, folders=2_000, nodes=500)
    repository.commit()
    for node in nodes[:20]:
        repository.commit("code.py" if node == "." else f"{node}/code.py")
    findings = validate_nodes(ProjectTree(tmp_path), history=GitHistory(tmp_path, os.environ, SECONDS))
    assert len([finding for finding in findings if finding.rule == "stale"]) == 20
