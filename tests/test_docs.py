"""What the documents say is there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from bridge.status import REASONS
from cstp_grpc.cli.main import main
from cstp_grpc.client.contract import methods
from cstp_grpc.client.errors import CLASSES, InvalidRequest, ParseError
from cstp_grpc.gen.cstp.v1 import errors_pb2
from cstp_grpc.server.status import to_status

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", document.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose):
        if not target.startswith(("http://", "https://")):
            assert (document.parent / target).exists(), target


def test_every_rpc_and_every_reason_is_documented() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    for name in methods():
        assert f"`{name}`" in text
    for name in errors_pb2.ErrorReason.keys():  # noqa: SIM118
        assert f"`{name.removeprefix('ERROR_REASON_')}`" in text


def test_every_intent_type_is_documented_with_its_method() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    for method in methods().values():
        if method.intent_type:
            assert f"| `{method.name}` | {method.permission} | `{method.intent_type}` |" in text


def test_every_reason_is_documented_with_its_status_and_its_code() -> None:
    rows = dict(re.findall(r"^\| `([A-Z_]+)` \| (.*) \|$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE))
    for kind in CLASSES:
        assert re.search(rf"[,;] {REASONS[kind.reason].code}\.", rows[kind.reason]), kind.reason
    for kind in set(CLASSES) - {ParseError, InvalidRequest}:
        assert to_status(kind("No"), "r-1").code.name in rows[kind.reason], kind.reason


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
    from cstp_grpc.decisions.importing import Parsed, read

    found = list(read([ROOT / "docs" / "adr"]))
    assert found
    assert all(isinstance(result, Parsed) for result in found), found
