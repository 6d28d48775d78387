"""What a release consists of: one version everywhere, notes, and workflows that publish only what is tested."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from typing import Any

import yaml

from cstp_grpc.common.version import VERSION
from tests.installations import ROOT

WORKFLOWS = ROOT / ".github" / "workflows"
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()


def read_workflow(name: str) -> dict[str, Any]:
    """Return a workflow."""
    return yaml.safe_load((WORKFLOWS / f"{name}.yml").read_text())


def release_notes(tag: str) -> tuple[int, str]:
    """Return the exit code and output of the script that prints the notes of a tag."""
    command = [sys.executable, str(ROOT / "scripts" / "release_notes.py"), tag]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


def test_all_packages_have_the_same_version() -> None:
    java = re.search(r"<version>(.*)</version>", (ROOT / "clients/java/pom.xml").read_text())
    assert java
    assert {
        json.loads((ROOT / "clients/typescript/package.json").read_text())["version"],
        json.loads((ROOT / "plugins/claude-code/.claude-plugin/plugin.json").read_text())["version"],
        tomllib.loads((ROOT / "clients/rust/Cargo.toml").read_text())["package"]["version"],
        yaml.safe_load((ROOT / "deploy/kubernetes/kustomization.yaml").read_text())["images"][0]["newTag"],
        java[1],
    } == {VERSION}


def test_the_notes_of_a_release_are_its_section_of_the_changelog() -> None:
    code, notes = release_notes(f"v{VERSION}")
    assert code == 0
    assert f"## {VERSION} - " in CHANGELOG
    assert notes.strip() in CHANGELOG
    assert "\n## " not in notes


KINDS = ["Upgrading", "Added", "Changed", "Fixed", "Removed", "Security"]


def test_the_changelog_has_one_short_line_for_each_change() -> None:
    sections = CHANGELOG.partition("\n## ")[2]
    assert [line for line in sections.splitlines() if len(line) > 120 or line.startswith(" ")] == []


def test_each_version_has_its_kinds_of_changes_once_and_upgrading_first() -> None:
    for section in re.split(r"^## ", CHANGELOG, flags=re.MULTILINE)[1:]:
        kinds = re.findall(r"^### (.*)$", section, re.MULTILINE)
        assert kinds == [kind for kind in KINDS if kind in kinds], section.partition("\n")[0]


def test_a_tag_of_another_version_is_no_release() -> None:
    assert release_notes("v0.0.9") == (1, f"The tag is v0.0.9, and the version of the package is {VERSION}.\n")


def test_nothing_is_published_before_all_tests_have_passed() -> None:
    jobs = read_workflow("release")["jobs"]
    assert jobs["test"]["uses"] == "./.github/workflows/ci.yml"

    def prerequisites(job: str) -> set[str]:
        needed = jobs[job].get("needs", [])
        direct = {needed} if isinstance(needed, str) else set(needed)
        return direct.union(*map(prerequisites, direct))

    assert {job for job in jobs if "test" not in prerequisites(job)} == {"test"}


def test_ci_runs_on_each_supported_python_on_linux_and_macos() -> None:
    matrix = read_workflow("ci")["jobs"]["test"]["strategy"]["matrix"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert matrix["python"][0] == project["requires-python"].removeprefix(">=")
    assert {system.partition("-")[0] for system in matrix["system"]} == {"ubuntu", "macos"}
    everything = read_workflow("ci")["jobs"]["all"]["steps"]
    (python,) = [step["with"]["python-version"] for step in everything if "python-version" in step.get("with", {})]
    assert matrix["exclude"] == [{"python": python, "system": "ubuntu-24.04"}]
