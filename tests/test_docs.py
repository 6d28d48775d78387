"""What the documents say is there."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import click
from click.testing import CliRunner

from cstp_grpc.cli.main import main
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.contract.rpc_errors import REASON_CODES
from tests.modules.intent_layer.repositories import needs_git
from tests.named_case import named_case

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted(
    path
    for pattern in (
        *("*.md", "actions/*.md", "docs/**/*.md", "examples/**/*.md", "released/*.md", "clients/*/README.md"),
        *(f"{folder}/**/AGENTS.md" for folder in ("bridge", "clients", "console", "cstp_grpc", "tests")),
    )
    for path in ROOT.glob(pattern)
)
README = (ROOT / "README.md").read_text()
ERRORS = (ROOT / "docs" / "api" / "errors.md").read_text()
SOURCES = [
    f"/{path.relative_to(ROOT)}"
    for folder in ("bridge", "console", "cstp_grpc", "examples", "proto", "scripts", "tests", "third_party")
    for path in (ROOT / folder).rglob("*.*")
]
ELSEWHERE = {"scripted_inputs.py", "cstp_kit.py", "grpc_urls.py"}
"""Modules that documents name and that are not ours: plugins of A2A's test kits, which the document shows."""


def test_links_lead_somewhere() -> None:
    for document in DOCUMENTS:
        with named_case(str(document.relative_to(ROOT))):
            prose = re.sub(r"```.*?```|`[^`\n]*`", "", document.read_text(), flags=re.DOTALL)
            for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose):
                if not target.startswith(("http://", "https://")):
                    assert (document.parent / target).exists(), target


def test_no_line_is_longer_than_120_characters() -> None:
    for document in DOCUMENTS:
        with named_case(str(document.relative_to(ROOT))):
            # Blocks show files, commands and what these print; a definition of a link is one long word.
            prose = re.sub(r"^ *```.*?^ *```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
            long_lines = [line for line in prose.splitlines() if len(line) > 120]
            assert [line for line in long_lines if not re.match(r"\[\w+\]: \S+$", line)] == []


def test_the_modules_that_documents_name_exist() -> None:
    for document in DOCUMENTS:
        with named_case(str(document.relative_to(ROOT))):
            prose = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
            named = set(re.findall(r"`((?:[\w-]+/)*\w+\.(?:py|proto))`", prose))
            # A document may leave out the package, or name a module alone below its folder.
            assert {name for name in named if not any(path.endswith(f"/{name}") for path in SOURCES)} <= ELSEWHERE


def test_every_rpc_is_documented_with_its_permission_and_intent_type() -> None:
    for name in contract_methods():
        with named_case(name):
            method = contract_methods()[name]
            sections = [
                section
                for page in (ROOT / "docs" / "api").glob("*.md")
                for section in re.findall(
                    rf"^### `{re.escape(name)}`\n(.*?)(?=^##|\Z)", page.read_text(), re.MULTILINE | re.DOTALL
                )
            ]
            assert len(sections) == 1, f"docs/api: {name} is missing; run `make docs`"
            assert f"\n- Permission: {' or '.join(method.permissions)}\n" in sections[0]
            assert ("- Intent type: " in sections[0]) == bool(method.intent_type)
            assert f"- Intent type: `{method.intent_type}`\n" in sections[0] or not method.intent_type


@cache
def written_pages() -> str:
    """Return the pages of docs/ that are written by hand."""
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.name != "rpcs.md"]
    return "".join(path.read_text() for path in pages if not {"api", "adr"} & {*path.relative_to(ROOT).parts})


def test_a_page_names_every_public_rpc() -> None:
    for name in [method.name for method in contract_methods().values() if method.public]:
        with named_case(name):
            method = contract_methods()[name]
            is_named = bool(re.search(rf"\b(?:{re.escape(name)}|{method.rpc})\b", written_pages()))
            assert is_named, f"docs: no page but docs/api names {method.rpc}"


def test_the_first_page_of_the_contract_lists_every_rpc() -> None:
    text = (ROOT / "docs" / "api" / "README.md").read_text()
    listed = re.findall(r"^\| \[`([\w.]+)`\]\([\w.#-]+\) \| ([\w ]+) \|(?: `([\w.]+)` \|)?$", text, re.MULTILINE)
    methods = contract_methods().values()
    assert sorted(listed) == sorted(
        (method.name, " or ".join(method.permissions), method.intent_type) for method in methods
    )


def test_every_reason_is_documented_with_its_codes() -> None:
    rows = dict(re.findall(r"^\| `([A-Z_]+)` \| (.*) \|$", ERRORS, re.MULTILINE))
    for reason, codes in REASON_CODES.items():
        assert reason in rows, f"docs/api/errors.md: {reason} is missing; run `make docs`"
        assert re.search(rf"^- `{reason}`: \w", ERRORS, re.MULTILINE), reason
        shown = rows[reason].split(" | ")
        assert shown[0] == ("" if codes.bridge_only else codes.grpc_code), reason
        assert shown[1:5] == [
            str(each) for each in (codes.json_rpc_code, codes.http_status, codes.a2a_code, codes.a2a_http_status)
        ], reason


def test_the_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"\bmake ([a-z-]+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_commands_of_the_readme_exist() -> None:
    known = main.list_commands(click.Context(main))
    for line in re.findall(r"(?:^\$ \.venv/bin/|`(?:\.venv/bin/)?)cstp ([^`\n]+)", README, re.MULTILINE):
        words = shlex.split(line.removesuffix("\\").split("&&")[0])
        assert words[0] in known, line
        options = {option for word in words if (option := word.split("=")[0]).startswith("--")}
        helped = CliRunner().invoke(main, [words[0], "--help"]).output
        assert all(option in helped for option in options), line


def test_every_decision_record_is_one_our_importer_reads() -> None:
    from cstp_grpc.modules.importing import ParsedRecord, read_records

    found = list(read_records([ROOT / "docs" / "adr"]))
    assert found
    assert all(isinstance(result, ParsedRecord) for result in found), found


@needs_git
def test_the_names_that_a_publisher_chooses_stand_where_the_guide_says() -> None:
    guide = (ROOT / "docs" / "clients.md").read_text().partition("## Publishing")[2]
    rows = re.findall(r"^- ([A-Z]\w+): `([^`]+)`, in (.*(?:\n  .*)*)$", guide, re.MULTILINE)
    assert {language: name for language, name, _ in rows} == {
        "Python": tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"],
        "TypeScript": json.loads((ROOT / "clients/typescript/package.json").read_text())["name"],
        "Go": (ROOT / "clients/go/go.mod").read_text().split()[1],
        "Java": ":".join(
            re.findall(r"^  <(?:groupId|artifactId)>(.*)<", (ROOT / "clients/java/pom.xml").read_text(), re.M)
        ),
        "Rust": tomllib.loads((ROOT / "clients/rust/Cargo.toml").read_text())["package"]["name"],
    }
    told = tuple(place for *_, places in rows for place in re.findall(r"`([^`]+)`", places))
    # That of the crate is the word for everything here.
    names = [name.partition(":")[0] for _, name, _ in rows if name != "cstp"]
    search = ["git", "grep", "--untracked", "-lF", *(argument for name in names for argument in ("-e", name))]
    found = set(subprocess.run(search, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split())
    assert {path for path in found if not path.startswith(told)} - {"CHANGELOG.md"} == {"docs/clients.md"}


def test_a_go_module_and_a_maven_group_have_names_that_tools_accept_from_outside() -> None:
    module = (ROOT / "clients/go/go.mod").read_text().split()[1]
    assert "." in module.partition("/")[0]
    group = re.findall(r"^  <groupId>(.*)<", (ROOT / "clients/java/pom.xml").read_text(), re.M)[0]
    assert "." in group


def test_the_rust_crate_pins_no_version() -> None:
    manifest = tomllib.loads((ROOT / "clients/rust/Cargo.toml").read_text())
    versions = [
        wanted if isinstance(wanted, str) else wanted["version"]
        for kind in ("dependencies", "dev-dependencies")
        for wanted in manifest[kind].values()
    ]
    assert [version for version in versions if not re.fullmatch(r"[\d.]+", version)] == []
