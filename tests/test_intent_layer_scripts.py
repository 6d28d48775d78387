"""The three scripts of the Intent Layer Agent Protocol and the hook, run by a real shell."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from cstp_grpc.cli.main import main
from tests.cli.test_context import API, ROOT
from tests.modules.intent_layer.repositories import IDENTITY, Repository, needs_git, new_repository
from tests.modules.intent_layer.trees import write_tree

REPOSITORY = Path(__file__).resolve().parent.parent
SCRIPTS = REPOSITORY / "scripts"
ODD = "a shop; $(touch owned) `it` 'n' \"all\" * ü"
PITFALL = ["--type", "pitfall", "--title", "Arrow functions", "--detail", "All handlers use arrow syntax"]
TOLD = re.compile(r"  report  (.*)")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    files = {"AGENTS.md": ROOT, "src/api/AGENTS.md": API, "src/api/handlers.ts": "", "src/odd name $HOME/x.ts": ""}
    return write_tree(tmp_path / ODD, files)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder to run scripts in, whose content must not matter."""
    return write_tree(tmp_path / "else where", {"click.py": "raise SystemExit('no')", "cstp_grpc/__init__.py": "1/0"})


def run(
    script: str | Path, *arguments: str | Path | bytes, cwd: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a script; one that is no path is of this repository."""
    command = [SCRIPTS / script if isinstance(script, str) else script, *arguments]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CSTP_", "GIT_"))}
    return subprocess.run(
        command, cwd=cwd, env={**kept, **environment}, capture_output=True, text=True, timeout=120, check=False
    )


class TestResolveContext:
    def test_prints_markdown(self, project: Path, elsewhere: Path) -> None:
        result = run("resolve_context.sh", project, "src/api/handlers.ts", cwd=elsewhere)
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout.startswith("# Context for src/api/handlers.ts\n\n- `AGENTS.md`\n- `src/api/AGENTS.md`\n")

    def test_takes_the_options_of_the_protocol(self, project: Path, elsewhere: Path) -> None:
        run("report_learning.sh", "--project", project, "--path", "src/api", *PITFALL, cwd=elsewhere)
        options = ["--sections", "Contracts,Pitfalls", "--compact", "--with-pending"]
        result = run("resolve_context.sh", project, "src/api", *options, cwd=elsewhere)
        assert result.stdout == (
            "## Contracts\n\n- All endpoints require auth.\n\n"
            "- Handlers are arrow functions.\n\n"
            "## Pitfalls\n\n- The loader calls handlers without a receiver.\n\n"
            "## Pending Learnings\n\n### PITFALL: Arrow functions\n\n> All handlers use arrow syntax\n"
        )

    def test_text_before_the_first_section_is_printed(self, project: Path, elsewhere: Path) -> None:
        write_tree(project, {"AGENTS.md": ROOT.replace("# Shop\n", "# Shop\n\nNever edit by hand.\n")})
        result = run("resolve_context.sh", project, "src/api", cwd=elsewhere)
        assert "## Introduction\n\n<!-- from AGENTS.md -->\nNever edit by hand.\n" in result.stdout

    def test_takes_paths_as_they_come(self, project: Path, elsewhere: Path) -> None:
        for path in ("src/odd name $HOME/x.ts", project / "src/odd name $HOME", "not/yet; there"):
            result = run("resolve_context.sh", project, path, cwd=elsewhere)
            assert (result.returncode, result.stderr) == (0, ""), path
        shutil.move(project, elsewhere / "-project")
        assert run("resolve_context.sh", "-project", "src/api", cwd=elsewhere).returncode == 0
        assert not list(elsewhere.rglob("owned"))

    def test_nothing_covers_the_path(self, elsewhere: Path) -> None:
        result = run("resolve_context.sh", elsewhere, "src", cwd=elsewhere)
        assert (result.returncode, result.stdout) == (2, "")

    @pytest.mark.parametrize(
        "arguments",
        [
            [],
            [".", "../x"],
            *(
                pytest.param(each, marks=pytest.mark.slow)
                for each in (["."], [".", ".", "--nonsense"], ["nowhere", "."], [".", b"caf\xe9"])
            ),
        ],
        ids=repr,
    )
    def test_errors_end_with_1(self, project: Path, arguments: list[str | bytes]) -> None:
        result = run("resolve_context.sh", *arguments, cwd=project)
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr
        assert "Traceback" not in result.stderr


class TestReportLearning:
    def test_prints_a_banner_with_the_report(self, project: Path, elsewhere: Path) -> None:
        options = ["--path", "src/api/handlers.ts", *PITFALL, "--agent-id", "swarm-worker-3"]
        result = run("report_learning.sh", "--project", project, *options, cwd=elsewhere)
        assert (result.returncode, result.stderr) == (0, "")
        (report,) = TOLD.findall(result.stdout)
        assert re.fullmatch(r"PITFALL-\d{4}-\d\d-\d\d-[0-9a-f]{16}-\d+\.md", Path(report).name)
        assert Path(report).parent == project / ".intent-layer/mistakes/pending"
        assert "**Agent**: swarm-worker-3\n" in Path(report).read_text()

    def test_errors_end_with_1(self, project: Path) -> None:
        for arguments in ([], ["--project", project, "--path", "x"], ["--path", "../x", *PITFALL], ["--nonsense"]):
            result = run("report_learning.sh", *arguments, cwd=project)
            assert (result.returncode, result.stdout) == (1, ""), arguments
            assert result.stderr
        assert not (project / ".intent-layer").exists()


class TestIntegratePitfall:
    @pytest.fixture
    def report(self, project: Path, elsewhere: Path) -> Path:
        return self.filed(project, elsewhere)

    def filed(self, project: Path, elsewhere: Path) -> Path:
        options = ["--path", "src/api/handlers.ts", "--type", "check", "--title", "Run the loader's tests"]
        arguments = ["--project", str(project), *options, "--detail", "They take a minute"]
        with contextlib.chdir(elsewhere):
            done = CliRunner().invoke(main, ["learn", "report", *arguments])
        (report,) = TOLD.findall(done.stdout)
        return Path(report)

    def test_merges_a_report_into_the_covering_node(self, project: Path, report: Path, elsewhere: Path) -> None:
        for option in ("--check-only", "--dry-run"):
            assert run("integrate_pitfall.sh", report, option, cwd=elsewhere).returncode == 0
        assert (project / "src/api/AGENTS.md").read_text() == API
        result = run("integrate_pitfall.sh", report, cwd=elsewhere)
        assert (result.returncode, result.stderr) == (0, "")
        node = (project / "src/api/AGENTS.md").read_text()
        assert node.startswith(API)
        assert "\n## Checks\n\n- [ ] Run the loader's tests\n" in node
        assert not report.exists()
        assert (report.parent.parent / "integrated" / report.name).exists()

    def test_a_duplicate_ends_with_2_unless_forced(self, project: Path, report: Path, elsewhere: Path) -> None:
        assert run("integrate_pitfall.sh", "--section", "Pitfalls", report, cwd=elsewhere).returncode == 0
        again, before = self.filed(project, elsewhere), (project / "src/api/AGENTS.md").read_text()
        assert "## Checks" not in before
        for options in (["--check-only"], ["--dry-run"], [], ["--threshold", "90"]):
            result = run("integrate_pitfall.sh", again, *options, cwd=elsewhere)
            assert (result.returncode, "likely the same" in result.stderr) == (2, True), options
        assert (project / "src/api/AGENTS.md").read_text() == before
        assert run("integrate_pitfall.sh", again, "--force", cwd=elsewhere).returncode == 0

    def test_a_relative_file_is_found(self, report: Path) -> None:
        assert run("integrate_pitfall.sh", report.name, "--check-only", cwd=report.parent).returncode == 0

    def test_errors_end_with_1(self, project: Path, report: Path) -> None:
        gone = report.with_name("PITFALL-2026-02-06-gone-1.md")
        for arguments in ([], [project / "AGENTS.md"], [gone], [report, "--nonsense"], [report, "--threshold", "x"]):
            result = run("integrate_pitfall.sh", *arguments, cwd=project)
            assert (result.returncode, result.stdout) == (1, ""), arguments
            assert result.stderr


class TestHelp:
    @pytest.mark.parametrize("script", ["resolve_context.sh", "report_learning.sh", "integrate_pitfall.sh"])
    @pytest.mark.parametrize("option", [pytest.param("-h", marks=pytest.mark.slow), "--help"])
    def test_usage_is_printed_and_no_error(self, elsewhere: Path, script: str, option: str) -> None:
        result = run(script, option, cwd=elsewhere)
        assert (result.returncode, result.stderr) == (0, "")
        assert f"Usage: {script} " in result.stdout


class TestInstallation:
    def test_a_link_to_a_script_works(self, project: Path, elsewhere: Path) -> None:
        link = elsewhere / "my resolve"
        link.symlink_to(SCRIPTS / "resolve_context.sh")
        assert run(link, project, "src/api", cwd=elsewhere).returncode == 0

    def test_without_a_virtual_environment_the_command_on_the_path_is_taken(
        self, project: Path, elsewhere: Path
    ) -> None:
        copied = elsewhere / "copied"
        shutil.copytree(SCRIPTS, copied, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
        tools = elsewhere / "tools"
        tools.mkdir()
        (tools / "cstp").write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
        (tools / "cstp").chmod(0o755)
        path = f"{tools}:/usr/bin:/bin"
        result = run(copied / "resolve_context.sh", "a b", "c d", "--compact", cwd=elsewhere, PATH=path)
        assert result.stdout == "<context><resolve><--project=a b><c d><--compact>"

    def test_without_any_command_it_is_said_what_to_do(self, elsewhere: Path) -> None:
        copied = elsewhere / "copied"
        shutil.copytree(SCRIPTS, copied, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
        result = run(copied / "resolve_context.sh", ".", ".", cwd=elsewhere, PATH="/usr/bin:/bin")
        assert (result.returncode, result.stdout) == (1, "")
        assert "put cstp on PATH" in result.stderr


@needs_git
class TestHook:
    @pytest.fixture
    def repository(self, tmp_path: Path) -> Repository:
        """A project with a hook and a first commit; its nodes are in order."""
        repository = new_repository(tmp_path / ODD)
        write_tree(
            repository.root, {"AGENTS.md": ROOT, "src/api/AGENTS.md": API, "src/api/handlers.ts": "", "notes.txt": ""}
        )
        # The first commit is made without the hook, which takes half a second; tests of the hook make more.
        repository.git("add", "--all")
        assert self.committed(repository, "--no-verify").returncode == 0
        (repository.root / ".git/hooks/pre-commit").symlink_to(SCRIPTS / "pre-commit")
        return repository

    def committed(self, repository: Repository, *options: str) -> subprocess.CompletedProcess[str]:
        """Stage everything, unless options say what, and commit."""
        if not options:
            repository.git("add", "--all")
        environment: Mapping[str, str] = {**IDENTITY, "GIT_CONFIG_GLOBAL": os.devnull}
        arguments = ("commit", "--quiet", "--message", "A change", *options)
        git = shutil.which("git")
        assert git
        return run(Path(git), *arguments, cwd=repository.root, **environment)

    def test_a_node_with_an_error_is_kept_out(self, repository: Repository) -> None:
        node = repository.root / "src/api/AGENTS.md"
        node.write_text(API.replace("## Contracts", "## Rules"))
        result = self.committed(repository)
        assert result.returncode == 1
        assert "src/api/AGENTS.md:1: error missing-section: " in result.stdout + result.stderr
        node.write_text(API)
        assert self.committed(repository, "--allow-empty", "--all").returncode == 0

    def test_a_warning_is_shown_only(self, repository: Repository) -> None:
        write_tree(repository.root, {"src/auth/AGENTS.md": API})
        result = self.committed(repository)
        assert result.returncode == 0
        assert "src/auth/AGENTS.md:1: warning missing-downlink: " in result.stdout + result.stderr

    def test_what_is_staged_counts_and_not_the_work_tree(self, repository: Repository) -> None:
        node = repository.root / "src/api/AGENTS.md"
        node.write_text("# Broken\n")
        repository.git("add", "--all")
        node.write_text(API)
        assert self.committed(repository, "--allow-empty").returncode == 1
        repository.git("add", "--all")
        node.write_text("# Broken\n")
        assert self.committed(repository, "--allow-empty").returncode == 0

    @pytest.mark.slow
    def test_a_commit_of_some_files_is_judged_by_what_it_holds(self, repository: Repository) -> None:
        (repository.root / "src/api/AGENTS.md").write_text("# Broken\n")
        (repository.root / "src/api/handlers.ts").write_text("export {}\n")
        assert self.committed(repository, "src/api/handlers.ts").returncode == 0
        assert self.committed(repository, "src/api/AGENTS.md").returncode == 1

    @pytest.mark.slow
    def test_what_a_commit_breaks_elsewhere_counts(self, repository: Repository) -> None:
        shutil.rmtree(repository.root / "src/api")
        result = self.committed(repository)
        assert result.returncode == 1
        assert "AGENTS.md:17: error dead-downlink: " in result.stdout + result.stderr

    def test_what_was_wrong_before_stops_only_commits_that_have_to_do_with_it(self, repository: Repository) -> None:
        shutil.rmtree(repository.root / "src/api")
        assert self.committed(repository, "--all", "--no-verify").returncode == 0
        (repository.root / "notes.txt").unlink()
        result = self.committed(repository)
        assert result.returncode == 0, result.stderr
        assert "1 node checked, nothing found." in result.stdout + result.stderr
        assert "dead-downlink" not in result.stdout + result.stderr
        (repository.root / "AGENTS.md").write_text(ROOT + "\nMore.\n")
        assert self.committed(repository).returncode == 1

    def test_a_commit_that_can_break_no_node_has_none_judged(self, repository: Repository) -> None:
        write_tree(repository.root, {"src/api/handlers.ts": "export {}\n", "src/other.ts": ""})
        result = self.committed(repository)
        assert (result.returncode, result.stdout + result.stderr) == (0, "0 nodes checked, nothing found.\n")

    @pytest.mark.slow
    def test_a_branch_without_commits_is_judged_whole(self, repository: Repository) -> None:
        repository.git("checkout", "--quiet", "--orphan", "fresh")
        shutil.rmtree(repository.root / "src/api")
        assert self.committed(repository).returncode == 1
        write_tree(repository.root, {"src/api/AGENTS.md": API, "src/api/handlers.ts": ""})
        assert self.committed(repository).returncode == 0

    @pytest.mark.slow
    def test_what_staged_nodes_import_counts_as_it_is_staged(self, repository: Repository) -> None:
        node = repository.root / "src/api/AGENTS.md"
        write_tree(repository.root, {"docs/api.md": "@more/rest.md\n", "docs/more/rest.md": API})
        node.write_text("# API\n\n@../../docs/api.md\n")
        result = self.committed(repository)
        assert result.returncode == 0, result.stdout + result.stderr
        (repository.root / "docs/more/rest.md").write_text(API.replace("## Contracts", "## Rules"))
        result = self.committed(repository)
        assert result.returncode == 1
        assert "src/api/AGENTS.md:1: error missing-section: " in result.stdout + result.stderr

    @pytest.mark.slow
    def test_how_severe_rules_are_is_taken_as_it_is_staged(self, repository: Repository) -> None:
        (repository.root / "src/api/AGENTS.md").write_text(API.replace("## Contracts", "## Rules"))
        write_tree(repository.root, {".intent-layer/config.yaml": "rules: {missing-section: warning}\n"})
        result = self.committed(repository)
        assert result.returncode == 0
        assert "src/api/AGENTS.md:1: warning missing-section: " in result.stdout + result.stderr

    @pytest.mark.slow
    def test_links_and_submodules_are_as_they_are(self, repository: Repository) -> None:
        (repository.root / "CLAUDE.md").symlink_to("AGENTS.md")
        (repository.root / "out").symlink_to("/etc")
        (repository.root / "AGENTS.md").write_text(ROOT.replace("- `src/api/", "- [vendored](vendored/)\n- `src/api/"))
        repository.git("add", "--all")
        repository.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},vendored")
        result = self.committed(repository, "--allow-empty")
        assert result.returncode == 0, result.stderr
        assert "nothing found" in result.stdout + result.stderr

    @pytest.mark.slow
    def test_the_hook_runs_from_any_folder_of_the_work_tree(self, repository: Repository) -> None:
        (repository.root / "src/api/AGENTS.md").write_text("# Broken\n")
        git = shutil.which("git")
        assert git
        environment = {**IDENTITY, "GIT_CONFIG_GLOBAL": os.devnull}
        folder = repository.root / "src"
        result = run(Path(git), "commit", "--quiet", "--all", "--message", "x", cwd=folder, **environment)
        assert result.returncode == 1

    @pytest.mark.slow
    def test_the_pre_commit_framework_runs_the_same(self, repository: Repository) -> None:
        hooks = yaml.safe_load((REPOSITORY / ".pre-commit-hooks.yaml").read_text())
        (hook,) = (hook for hook in hooks if hook["id"] == "intent-layer")
        assert not hook["pass_filenames"]
        program, *arguments = hook["entry"].split()
        assert program == "cstp"
        assert run("cstp.sh", *arguments, cwd=repository.root).returncode == 0
        (repository.root / "AGENTS.md").write_text("# Broken\n")
        assert run("cstp.sh", *arguments, cwd=repository.root).returncode == 0
        repository.git("add", "--all")
        assert run("cstp.sh", *arguments, cwd=repository.root).returncode == 1

    def test_outside_a_work_tree_it_is_told(self, elsewhere: Path) -> None:
        result = run("pre-commit", cwd=elsewhere)
        assert result.returncode == 1
        assert "git cannot list the staged files" in result.stderr
