"""Run the tests nearest to what changed, in seconds: `make near`.

Changed is what differs from where the branch left main, or BASE, in commits and in the working tree. The tests of a
module are its own (`tests/core/audit/test_export.py` for `cstp_grpc/core/audit/export.py`), then those that import it.
A changed test or case runs itself, and any other file has the tests that name it. The first 12 files run.

nearest_tests.py [--list] [--base BASE]
"""

from __future__ import annotations

import argparse
import ast
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

PACKAGES = ("cstp_grpc", "bridge", "console")
TESTS = PurePosixPath("tests")
CASES = TESTS / "cases"
CASE_TEST = "tests/test_cases.py::test_case"
JSONRPC_CASE_TESTS = "tests/test_jsonrpc_cases.py"
DOCUMENT_TESTS = "tests/test_docs.py"
LIMIT = 12
"""Files that run at most; more take longer than anybody waits."""


class TestFiles:
    """The files of tests in a checkout, with the modules that each imports."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._texts = {
            PurePosixPath(path.relative_to(root)): path.read_text(encoding="utf-8")
            for path in sorted((root / TESTS).rglob("*.py"))
        }
        self._imports: Mapping[PurePosixPath, set[str]] = {
            path: set(imported_names(text)) for path, text in self._texts.items() if path.name.startswith("test_")
        }

    def importing(self, module: str) -> list[PurePosixPath]:
        """Return the tests that import a module, or a name of it."""
        return [path for path, names in self._imports.items() if module in names]

    def naming(self, name: str) -> list[PurePosixPath]:
        """Return the tests that contain the name of a file."""
        return [path for path in self._imports if name in self._texts[path]]

    def is_case(self, path: PurePosixPath) -> bool:
        """Return True if a file is a case of the contract."""
        text = (self._root / path).read_text(encoding="utf-8")
        return path.suffix == ".yaml" and bool(re.search("^call: ", text, re.MULTILINE))

    def below(self, folder: PurePosixPath) -> list[PurePosixPath]:
        """Return the tests in a folder and below it."""
        return [path for path in self._imports if folder in path.parents]


def imported_names(text: str) -> Iterator[str]:
    """Yield the modules that Python code imports; of `from package import name` also `package.name`."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


def changed_files(root: Path, base: str) -> list[PurePosixPath]:
    """Return the files that differ from where the branch left `base`, in commits and in the working tree."""

    def git(*arguments: str) -> list[str]:
        done = subprocess.run(["git", *arguments], cwd=root, stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout.splitlines()

    (fork,) = git("merge-base", base, "HEAD")
    # Neither what is deleted nor what is generated has tests of its own.
    changed = git("diff", "--name-only", "--diff-filter=d", "--relative", fork)
    return [PurePosixPath(name) for name in [*changed, *git("ls-files", "--others", "--exclude-standard")]]


def nearest(path: PurePosixPath, tests: TestFiles) -> Iterator[str]:
    """Yield the tests of a changed file, the nearest first."""
    if path.parent.parent == CASES and tests.is_case(path):
        yield f"{CASE_TEST}[{path.parent.name}/{path.stem}]"
    elif path.parent == CASES / "jsonrpc":
        yield JSONRPC_CASE_TESTS
    elif path.suffix == ".md":
        yield DOCUMENT_TESTS
        yield from map(str, tests.naming(str(path)))
    elif path.suffix != ".py":
        yield from map(str, tests.naming(path.name))
    elif path.name.startswith("test_"):
        yield str(path)
    elif path.parts[0] in PACKAGES:
        yield from map(str, nearest_of_module(path, tests))
    else:
        module = ".".join(path.with_suffix("").parts)
        yield from map(str, tests.importing(module) or tests.naming(path.name))


def nearest_of_module(path: PurePosixPath, tests: TestFiles) -> list[PurePosixPath]:
    """Return the tests of a module: its own, those that import it, or if there are none, those of its folder."""
    mirrored = TESTS.joinpath(*path.parent.parts[1:] if path.parts[0] == PACKAGES[0] else path.parent.parts)
    parts = path.parent.parts if path.stem == "__init__" else path.with_suffix("").parts
    importing = tests.importing(".".join(parts))
    own = [test for test in tests.below(mirrored) if test.name == f"test_{path.stem}.py"]
    found = [*own, *sorted(importing, key=lambda test: mirrored not in test.parents)]
    return found or tests.below(mirrored)


def choose(changed: Sequence[PurePosixPath], tests: TestFiles) -> list[str]:
    """Return all tests of changed files, each once: the nearest of each file, then the next one of each."""
    ranks = itertools.zip_longest(*(nearest(path, tests) for path in changed))
    return list(dict.fromkeys(test for rank in ranks for test in rank if test is not None))


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the tests and do not run them")
    parser.add_argument("--base", default="main", help="the branch or commit to compare with")
    arguments = parser.parse_args()
    top = subprocess.run(["git", "rev-parse", "--show-toplevel"], stdout=subprocess.PIPE, text=True, check=True)
    root = Path(top.stdout.strip())
    changed = changed_files(root, arguments.base)
    found = choose(changed, TestFiles(root))
    chosen, left = found[:LIMIT], found[LIMIT:]
    print(f"{len(changed)} files changed; the nearest tests are {len(found)} files.", file=sys.stderr)
    if left:
        print(f"{len(left)} of them are left to `make test`.", file=sys.stderr)
    if arguments.list or not chosen:
        print(*chosen, sep="\n")
        return
    # A case that changed is run even if it is slow.
    cases = [test for test in chosen if test.startswith(f"{CASE_TEST}[")]
    runs = [["-m", "slow or not slow", *cases]] if cases else []
    runs += [others] if (others := [test for test in chosen if test not in cases]) else []
    pytest = [sys.executable, "-m", "pytest", "-n", "2"]
    sys.exit(max(subprocess.run([*pytest, *run], cwd=root, check=False).returncode for run in runs))


if __name__ == "__main__":
    main()
