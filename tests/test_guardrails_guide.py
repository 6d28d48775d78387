"""The first rule of docs/guardrails/first-rule.md, and the names that the reference must contain."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest

from cstp_grpc.cli.main import main
from cstp_grpc.contract.enums import Enforcement, Severity
from cstp_grpc.core.guardrails.fact_readers import FACT_READERS
from cstp_grpc.core.guardrails.history import HISTORY_SCOPES, HistoryMeasure
from cstp_grpc.core.guardrails.inputs import InputType
from cstp_grpc.core.guardrails.rulebook_schema import TEST_ACTION
from tests.snippets import ROOT, read_snippets, reading

DOCUMENT = "docs/guardrails/first-rule.md"
TOOLS = (ROOT / "docs" / "guardrails" / "tools.md").read_text(encoding="utf-8")
REFERENCE = "\n".join(
    page.read_text(encoding="utf-8")
    for page in sorted((ROOT / "docs" / "guardrails").glob("*.md"))
    if page.name not in {"first-rule.md", "tools.md"}
)
RULE = "bulk-change-needs-backup"


# Its commands are bounded one by one, and there are so many that it is one of the longest documents.
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_first_rule_is_written_tested_replayed_and_rolled_out(tmp_path: Path) -> None:
    with reading(tmp_path) as reader:
        reader.try_document(read_snippets(DOCUMENT))
        recorded = json.loads(reader.run(f"cstp audit --guardrail {RULE} --json").text)["entries"]
        blocked = reader.run('cstp check "Fix them again" --category database --context rows=2000')
    # Latest first: it blocked, it warned, it only looked on.
    kinds = [
        next(kind for kind in ("violations", "warnings", "dryrunViolations") if RULE in entry[kind])
        for entry in recorded
    ]
    assert kinds == ["violations", "warnings", "dryrunViolations"]
    assert [entry["allowed"] for entry in recorded] == [False, True, True]
    versions = [re.match(r"ours@(\d)\+", entry["ruleSetVersion"]) for entry in recorded]
    assert [version and version[1] for version in versions] == ["4", "3", "2"]
    assert blocked.status == 3


@pytest.mark.parametrize("name", sorted({*FACT_READERS} - {*HISTORY_SCOPES, "intents"}))
def test_every_variable_is_in_the_reference(name: str) -> None:
    assert re.search(rf"^(?:\|| ?-| ) .*`{re.escape(name)}\b", REFERENCE, re.MULTILINE), name


@pytest.mark.parametrize("measure", HistoryMeasure)
def test_every_question_about_the_past_is_in_the_reference(measure: HistoryMeasure) -> None:
    assert re.search(rf"^- `history\.{measure}\(", REFERENCE, re.MULTILINE)


@pytest.mark.parametrize("word", [*InputType, *Severity, *Enforcement, *TEST_ACTION.optional])
def test_every_word_of_a_rulebook_is_in_the_reference(word: str) -> None:
    assert f"`{word}`" in REFERENCE


def test_every_command_is_on_one_of_the_pages() -> None:
    commands = main.get_command(click.Context(main), "guardrails")
    assert isinstance(commands, click.Group)
    pages = REFERENCE + TOOLS
    for name in commands.commands:
        assert re.search(rf"`(cstp guardrails )?{name}\b|\$ cstp guardrails {name}\b", pages), name
