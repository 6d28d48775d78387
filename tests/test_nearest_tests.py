"""The script that finds the tests nearest to a change, in a small repository."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.installations import ROOT
from tests.modules.intent_layer.repositories import needs_git

pytestmark = needs_git

FILES = {
    "cstp_grpc/core/export.py": "",
    "cstp_grpc/core/__init__.py": "",
    "cstp_grpc/core/lonely.py": "",
    "cstp_grpc/common/enums.py": "",
    "bridge/app.py": "",
    "tests/paging.py": "",
    "tests/core/test_export.py": "from cstp_grpc.common import enums\nfrom cstp_grpc.core.export import write_rows\n",
    "tests/core/test_trail.py": "import cstp_grpc.core.export\n",
    "tests/bridge/test_app.py": "from tests.paging import pages\n",
    "tests/cli/test_command.py": "from cstp_grpc.core import export\nfrom cstp_grpc.common.enums import Outcome\n",
    "tests/test_docs.py": 'IMAGE = "logo.svg"\n',
    "tests/test_jsonrpc_cases.py": "",
    "tests/cases/journal/record.yaml": "requirement: it is on disk\ncall: cstp.recordDecision\n",
    "tests/cases/jsonrpc/batch.yaml": "body: '[]'\n",
    "docs/concepts.md": "",
    "docs/logo.svg": "",
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose files are all on main."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    run_git(tmp_path, "init", "--quiet", "--initial-branch", "main")
    commit(tmp_path)
    return tmp_path


def run_git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com")
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    subprocess.run(["git", *identity, *arguments], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)


def commit(folder: Path) -> None:
    run_git(folder, "add", "--all")
    run_git(folder, "commit", "--quiet", "--message", "a change")


def nearest_tests(folder: Path) -> list[str]:
    """Return what the script lists."""
    command = [sys.executable, str(ROOT / "scripts" / "nearest_tests.py"), "--list"]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("cstp_grpc/core/export.py", ["core/test_export.py", "core/test_trail.py", "cli/test_command.py"]),
        ("cstp_grpc/common/enums.py", ["cli/test_command.py", "core/test_export.py"]),
        ("cstp_grpc/core/lonely.py", ["core/test_export.py", "core/test_trail.py"]),
        ("bridge/app.py", ["bridge/test_app.py"]),
        ("tests/core/test_trail.py", ["core/test_trail.py"]),
        ("tests/paging.py", ["bridge/test_app.py"]),
        ("tests/cases/journal/record.yaml", ["test_cases.py::test_case[journal/record]"]),
        ("tests/cases/jsonrpc/batch.yaml", ["test_jsonrpc_cases.py"]),
        ("docs/concepts.md", ["test_docs.py"]),
        ("docs/logo.svg", ["test_docs.py"]),
    ],
)
def test_the_nearest_tests_of_a_file(changed: str, expected: list[str], repository: Path) -> None:
    with (repository / changed).open("a") as file:
        file.write("# changed\n")
    assert nearest_tests(repository) == [f"tests/{name}" for name in expected]


def test_commits_of_the_branch_and_new_files_count(repository: Path) -> None:
    assert nearest_tests(repository) == []
    run_git(repository, "switch", "--quiet", "--create", "topic")
    (repository / "bridge/app.py").write_text("changed = True\n")
    (repository / "cstp_grpc/core/export.py").unlink()
    commit(repository)
    (repository / "tests/core/test_new.py").write_text("")
    assert nearest_tests(repository) == ["tests/bridge/test_app.py", "tests/core/test_new.py"]


def test_a_file_that_many_tests_import_runs_the_first_ones(repository: Path) -> None:
    for number in range(25):
        (repository / f"tests/cli/test_{number:02}.py").write_text("import bridge.app\n")
    commit(repository)
    (repository / "bridge/app.py").write_text("changed = True\n")
    found = nearest_tests(repository)
    assert found == ["tests/bridge/test_app.py", *(f"tests/cli/test_{number:02}.py" for number in range(11))]
