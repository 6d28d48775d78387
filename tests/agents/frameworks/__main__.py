"""Try the adapters of agent frameworks, each against the real package in an environment of its own.

python -m tests.agents.frameworks               all of them; one that cannot be installed is skipped, with the reason
python -m tests.agents.frameworks langchain     these, which must be installed
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.agents.frameworks.scenario import MODULE_VARIABLE, RULEBOOK, TARGET_VARIABLE, TOKEN_VARIABLE
from tests.harness import TOKENS, running, settings

ROOT = Path(__file__).parents[3]
ENVIRONMENTS = ROOT / "build" / "frameworks"
"""Where the environments are, which the Intent Layer does not look into; one is kept until pyproject.toml changes."""
FRAMEWORKS: Mapping[str, str] = {
    "langchain": "langchain",
    "openai-agents": "openai_agents",
    "pydantic-ai": "pydantic_ai",
    "agent-framework": "agent_framework",
    "crewai": "crewai",
    "google-adk": "google_adk",
    "smolagents": "smolagents",
    "llama-index": "llama_index",
}
"""The frameworks by their extras in pyproject.toml, each with its module in cstp_grpc/agents/frameworks."""
TOOLS = ("pip>=25", "pytest>=9.0", "pytest-timeout>=2.3", "mypy>=2.0", "mypy-protobuf>=5.0", "types-grpcio>=1.85")
"""What is installed beside a framework."""
QUIET = {"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false", "OTEL_SDK_DISABLED": "true"}
"""By which variables frameworks tell nobody that they run."""
SECONDS = 900.0
"""How long one step may take, such as an installation."""


@dataclass(frozen=True)
class FrameworkOutcome:
    """What became of a framework; `missing` says why it is not installed."""

    name: str
    missing: str = ""
    passed: bool = False
    seconds: float = 0.0

    def __str__(self) -> str:
        if self.missing:
            return f"{self.name:16} skipped: {self.missing}"
        return f"{self.name:16} {'passed' if self.passed else 'FAILED'} in {self.seconds:.0f} s"


def try_framework(name: str, target: str) -> FrameworkOutcome:
    """Install a framework, check the types of its adapter and run its tests."""
    print(f"== {name}", flush=True)
    started = time.monotonic()
    python = ENVIRONMENTS / name / "bin" / "python"
    if missing := install_framework(name, python):
        return FrameworkOutcome(name, missing)
    passed = all([has_right_types(name, python), passes_tests(name, python, target)])
    return FrameworkOutcome(name, passed=passed, seconds=time.monotonic() - started)


def install_framework(name: str, python: Path) -> str:
    """Make the environment of a framework, and return why it cannot be made; empty if it is there."""
    wanted = hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + "".join(TOOLS).encode()).hexdigest()
    stamp = python.parent.parent / ".installed"
    if stamp.exists() and stamp.read_text() == wanted:
        return ""
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-compile"]
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(python.parent.parent)],
        [*pip, *TOOLS],
        [*pip, "--editable", f"{ROOT}[{name}]"],
    ):
        ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        if ended.returncode:
            print(ended.stderr, file=sys.stderr)
            return (ended.stderr.strip().splitlines() or ["pip said nothing"])[-1]
    stamp.write_text(wanted)
    return ""


def has_right_types(name: str, python: Path) -> bool:
    """Check the types of an adapter against its framework, which mypy does not know elsewhere."""
    module = f"cstp_grpc.agents.frameworks.{FRAMEWORKS[name]}"
    cache = ENVIRONMENTS / name / ".mypy_cache"
    return succeeds([str(python), "-m", "mypy", "--follow-imports=silent", f"--cache-dir={cache}", "-m", module])


def passes_tests(name: str, python: Path, target: str) -> bool:
    """Run the tests of an adapter, the example among them."""
    folder = "tests/agents/frameworks"
    # The settings of the project and the fixtures of its other tests need what is not installed there.
    options = [
        "-c",
        f"{folder}/environments.ini",
        "--rootdir",
        str(ROOT),
        "--confcutdir",
        folder,
        "-p",
        "no:cacheprovider",
    ]
    command = [str(python), "-m", "pytest", *options, f"{folder}/{FRAMEWORKS[name]}_agents.py", f"{folder}/examples.py"]
    home = ENVIRONMENTS / name / "home"
    home.mkdir(exist_ok=True)
    said = {
        **QUIET,
        "HOME": str(home),
        TARGET_VARIABLE: target,
        TOKEN_VARIABLE: TOKENS["alice"],
        MODULE_VARIABLE: FRAMEWORKS[name],
    }
    return succeeds(command, **said)


def succeeds(command: Sequence[str], **environment: str) -> bool:
    """Run a command and return whether it went well, in time."""
    try:
        own = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        return subprocess.run(command, cwd=ROOT, env=own, timeout=SECONDS, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"{command[0]} took more than {SECONDS:g} s", file=sys.stderr)
        return False


@contextmanager
def serving() -> Iterator[str]:
    """Run a server with the rules of the scenario, and yield its target."""
    with tempfile.TemporaryDirectory() as folder:
        rules = Path(folder) / "rules.yaml"
        rules.write_text(RULEBOOK)
        wanted = settings(Path(folder) / "data", cstp={"guardrails": {"config_path": str(rules)}})
        with running(wanted) as app:
            yield f"grpc://{app.target}"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("frameworks", nargs="*", metavar="FRAMEWORK", help=f"one of {', '.join(FRAMEWORKS)}")
    wanted = parser.parse_args().frameworks
    if unknown := [name for name in wanted if name not in FRAMEWORKS]:
        parser.error(f"there is no adapter for {', '.join(unknown)}; there is: {', '.join(FRAMEWORKS)}")
    with serving() as target:
        tested = [try_framework(name, target) for name in wanted or FRAMEWORKS]
    print(*tested, sep="\n")
    sys.exit(0 if all(each.passed or (each.missing and not wanted) for each in tested) else 1)


if __name__ == "__main__":
    main()
