"""Try the clients of every language that this machine has tools for: their tests, what their README has one do, and
their packages.

python -m tests.clients            all that there are tools for; the others are skipped
python -m tests.clients go rust    these, for which there must be tools
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.clients.serving import Table, table

ROOT = Path(__file__).parents[2]
TOOLS: Mapping[str, tuple[str, ...]] = {
    "typescript": ("node", "npm"),
    "go": ("go",),
    "java": ("javac", "mvn"),
    "rust": ("cargo",),
}
"""What each language needs, in the order of their importance."""
SECONDS = 900.0
"""How long the tests of one language may take, with everything that they fetch and build, and how long its README."""


@dataclass(frozen=True)
class Outcome:
    """What became of a language; `missing` names the tools that are not there."""

    language: str
    missing: tuple[str, ...] = ()
    passed: bool = False
    seconds: float = 0.0

    def __str__(self) -> str:
        if self.missing:
            return f"{self.language:10} skipped: {' and '.join(self.missing)} not installed"
        return f"{self.language:10} {'passed' if self.passed else 'FAILED'} in {self.seconds:.0f} s"


def attempt(language: str) -> Outcome:
    """Run the tests and the example of a language."""
    missing = tuple(tool for tool in TOOLS[language] if shutil.which(tool) is None)
    if missing:
        return Outcome(language, missing)
    print(f"== {language}", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, table(Path(folder), language) as served:
        passed = make_tests(language, served) and try_in_other_projects(language)
    return Outcome(language, passed=passed, seconds=time.monotonic() - started)


def make_tests(language: str, served: Table) -> bool:
    """Make the tests of a language's client and return whether they passed."""
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "CSTP_CASES": str(served.path),
        "CSTP_TARGET": served.content["servers"]["plain"],
        "CSTP_TOKEN": served.content["tokens"]["alice"],
    }
    return succeeds(["make", "--no-print-directory", "-C", str(ROOT / "clients" / language), "test"], **environment)


def try_in_other_projects(language: str) -> bool:
    """Try what the README of a language's client has one do, and its package; return whether all of it works."""
    tests = [f"tests/clients/{name}.py" for name in ("documents", "packages", "examples")]
    return succeeds([sys.executable, "-m", "pytest", *tests, "--timeout", f"{SECONDS:g}", "-k", language])


def succeeds(command: list[str], **environment: str) -> bool:
    """Run a command and return whether it went well, in time."""
    # A session of its own, so that nothing of what it starts is left behind.
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment}, start_new_session=True)
    try:
        return process.wait(SECONDS) == 0
    except subprocess.TimeoutExpired:
        print(f"{shlex.join(command)} took more than {SECONDS:g} s", file=sys.stderr)
        return False
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("languages", nargs="*", metavar="LANGUAGE", help=f"one of {', '.join(TOOLS)}")
    wanted = parser.parse_args().languages
    if unknown := [language for language in wanted if language not in TOOLS]:
        parser.error(f"there is no client for {', '.join(unknown)}; there is: {', '.join(TOOLS)}")
    outcomes = [attempt(language) for language in wanted or TOOLS]
    print(*outcomes, sep="\n")
    sys.exit(0 if all(outcome.passed or (outcome.missing and not wanted) for outcome in outcomes) else 1)


if __name__ == "__main__":
    main()
