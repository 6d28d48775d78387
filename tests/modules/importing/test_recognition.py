"""Which files are decision records."""

from __future__ import annotations

import pytest

from cstp_grpc.modules.importing import ParsedRecord
from tests.modules.importing.folder import Folder, nygard

PAGE = "# How to deploy\n\nPush the button.\n"
DRAFT = "---\ntitle: How to deploy\nstatus: draft\n---\n# How to deploy\n\nPush the button.\n"
RECORD = "# Use X\n\n## Context\n\nA\n\n## Decision\n\nB\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("use-x.md", RECORD),
        ("use-x.md", "# Use X\n\n## Status\n\nAccepted\n\n## Context\n\nA\n"),
        ("use-x.md", "# Use X\n\n## Context\n\nA\n\n## Consequences\n\nB\n"),
        ("0001-use-x.md", "# Use X\n\n## Decision\n\nB\n"),
        ("0001-use-x.md", "# Use X\n\nStatus: accepted\n\nB\n"),
        ("0001-use-x.md", "# 1 Use X\n\nDate: 2021-11-05\n\nB\n"),
        ("decisions/0001-use-x.md", PAGE),
        ("2021-11-05-use-x/README.md", "# Use X\n\n## Decision\n\nB\n"),
        ("use-x/index.md", RECORD),
        ("0007-template-engine.md", nygard(7, title="Choose a template engine")),
    ],
)
def test_a_record_is_recognised(folder: Folder, name: str, text: str) -> None:
    folder.write(name, text)
    assert isinstance(folder.read()[0], ParsedRecord)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("deploy.md", PAGE, "it is not a decision record"),
        ("deploy.md", DRAFT, "it is not a decision record"),
        ("0001-deploy.md", PAGE, "it is not a decision record"),
        ("deploy.md", "# Minutes\n\n## Decision\n\nLunch at noon.\n", "it is not a decision record"),
        ("README.md", "# Shop\n\n## Status\n\nAccepted\n\n## Context\n\nA\n", "it is not a decision record"),
        ("CHANGELOG.md", nygard().replace("## Decision", "## Changes"), "it is not a decision record"),
        ("adr-template.md", RECORD, "it is a template, by its name"),
        ("0000-template.md", RECORD, "it is a template, by its name"),
        ("new.md", RECORD.replace("Use X", "{short title of the problem}"), "it is a template, by its title"),
        ("new.md", RECORD.replace("Use X", "NUMBER. TITLE"), "it is a template, by its title"),
        ("empty.md", "", "it is empty"),
        ("empty.md", " \n\t\n", "it is empty"),
        ("picture.png", b"\x89PNG", "only .md, .markdown, .yaml, .yml, .jsonl, .ndjson can be read"),
    ],
)
def test_what_is_no_record_is_skipped_without_an_error(folder: Folder, name: str, text: str, reason: str) -> None:
    folder.write(name, text)
    skipped = folder.skipped()
    assert skipped.reason.startswith(reason)
    assert not skipped.error


def test_a_record_whose_template_title_was_never_replaced_is_named_after_its_file(folder: Folder) -> None:
    content = folder.content(RECORD.replace("Use X", "Title of the Decision Record"), "2022-08-09-review/README.md")
    assert content.title == "Review"


def test_a_file_that_was_asked_for_and_cannot_be_read_is_an_error(folder: Folder) -> None:
    folder.write("notes.txt", "x")
    assert folder.skipped("notes.txt").error
