"""Records other than those in the usual form of decision records: tables, post-mortems, design documents, any page."""

from __future__ import annotations

import pytest

from cstp_grpc.contract.enums import DecisionStatus, Outcome
from cstp_grpc.modules.importing import ParsedRecord, SkippedRecord, read_records
from tests.modules.importing.folder import Folder

BODY = "\n## Context\n\nThe mailer drops letters.\n\n## Consequences\n\nOne more service to run.\n"

ROWS = "|  |  |\n|---|---|\n| **Status** | Rejected |\n| Date | 2023-05-06 |\n| Author(s) | Ann |\n"
COLUMNS = "| Date | Status | Deciders |\n|:--|:-:|--:|\n| 2023-05-06 | Rejected | Ann |\n"


@pytest.mark.parametrize(
    "text",
    [
        f"# Queue the letters\n\n{ROWS}{BODY}",
        f"# Queue the letters\n\n{COLUMNS}{BODY}",
        f"# Queue the letters\n\n## Document information\n\n{ROWS}{BODY}",
        f"# Queue the letters\n\n## Document information\n\n{COLUMNS}{BODY}",
        "# Queue the letters\n\n| Status | Rejected |\n|---|---|\n| Date | 2023-05-06 |\n" + BODY,
        "# Queue the letters\n\n| Field | Value |\n|---|---|\n| Decision status | Rejected |\n| Date | 2023-05-06 |\n"
        + BODY,
    ],
)
def test_a_table_states_the_status_and_the_date(folder: Folder, text: str) -> None:
    content = folder.content(text, "queue-the-letters.md")
    assert (content.title, content.outcome) == ("Queue the letters", Outcome.ABANDONED)
    assert content.date is not None
    assert content.date.date().isoformat() == "2023-05-06"


def test_a_table_that_compares_options_states_no_status(folder: Folder) -> None:
    table = "\n## Options\n\n| Option | Status |\n|---|---|\n| Kafka | rejected |\n| Redis | deprecated |\n"
    content = folder.content(f"# Queue the letters\n\nStatus: accepted\n{BODY}{table}")
    assert (content.status, content.outcome) == (DecisionStatus.DECIDED, None)


GOOGLE_STYLE = """\
# Letters delayed for five hours (incident 418)

**Date:** 2024-02-03

**Authors:** Ann, Ben

**Status:** Complete, action items in progress

## Summary

No letter left between 02:10 and 07:05 UTC.

## Impact

About 40 000 letters arrived late.

## Root Causes

* A retry without a limit filled the queue.
* The disk of the queue had no alert.

## Trigger

A deployment of the mailer.

## Action Items

| action | owner |
|---|---|
| Limit retries | Ann |

## Lessons Learned

### What went well

* The pager worked.

### What went wrong

* Retries need a limit.

## Timeline

02:10 deployment
"""

SHORT_STYLE = """\
# Postmortem: search answered nothing

## What happened

A certificate expired.

## Contributing factors

Nobody owned the certificate, and the reminder went to a list that no longer exists.

## Follow-up

- Renew certificates by a job.
"""

RCA_STYLE = """\
Incident Report
===============

Date of incident: 4 May 2023

## 1. Incident summary

Logins failed.

## 2. Root cause analysis

The clock of one host was wrong.

## 3. Corrective action(s)

Watch the clocks.
"""


def test_a_post_mortem_is_a_failure_with_its_lesson_and_causes(folder: Folder) -> None:
    folder.write("2024-02-03-letters.md", GOOGLE_STYLE)
    parsed = folder.parsed()
    content = parsed.record.content
    assert content.title == "Letters delayed for five hours (incident 418)"
    assert (content.category, content.outcome) == ("incident", Outcome.FAILURE)
    assert content.notes is not None
    assert "Retries need a limit." in content.notes
    assert [(reason.type, reason.text) for reason in content.reasons] == [
        ("cause", "A retry without a limit filled the queue."),
        ("cause", "The disk of the queue had no alert."),
    ]
    assert "40 000 letters" in (content.context or "")
    assert "outcome failure: it is a post-mortem" in parsed.notes


def test_the_causes_of_a_post_mortem_may_be_prose_and_its_actions_stand_in_for_lessons(folder: Folder) -> None:
    content = folder.content(SHORT_STYLE, "search.md")
    assert content.title == "Postmortem: search answered nothing"
    assert [reason.text[:10] for reason in content.reasons] == ["Nobody own"]
    assert content.notes == "- Renew certificates by a job."


def test_a_post_mortem_with_a_generic_heading_is_named_after_its_file(folder: Folder) -> None:
    content = folder.content(RCA_STYLE, "2023-05-04-failed-logins.md")
    assert (content.title, content.outcome) == ("Failed logins", Outcome.FAILURE)
    assert [reason.text for reason in content.reasons] == ["The clock of one host was wrong."]


def test_the_outcome_that_a_post_mortem_states_counts(folder: Folder) -> None:
    content = folder.content(f"---\noutcome: partial\n---\n{GOOGLE_STYLE}", "letters.md")
    assert content.outcome is Outcome.PARTIAL


def test_a_decision_with_actions_and_a_timeline_stays_a_decision(folder: Folder) -> None:
    text = "# Use X\n\n## Context\n\nA\n\n## Decision\n\nB\n\n## Timeline\n\nC\n\n## Action items\n\nD\n"
    content = folder.content(text, "use-x.md")
    assert (content.category, content.outcome) == ("architecture", None)


@pytest.mark.parametrize(
    "text", ["# Guide\n\n## Summary\n\nA\n\n## Timeline\n\nB\n", "# Minutes\n\n## Summary\n\nA\n\n## Next steps\n\nB\n"]
)
def test_a_summary_with_a_timeline_or_actions_is_no_post_mortem(folder: Folder, text: str) -> None:
    folder.write("page.md", text)
    assert not folder.skipped().error


GO_STYLE = """\
# Proposal: Limits for retries

Author(s): Ann Example

Last updated: 2019-03-04

Discussion at https://example.org/issue/7.

## Abstract

Let callers limit retries.

## Background

Retries are endless.

## Proposal

Add a limit.

## Rationale

A limit is simpler than a budget.

## Compatibility

Nothing changes without a limit.
"""

RUST_STYLE = """\
- Feature Name: retry_limits
- Start Date: 2020-05-06

# Summary

Let callers limit retries.

# Motivation

Retries are endless.

# Guide-level explanation

Pass a limit.

# Drawbacks

One more parameter.

# Unresolved questions

The name.
"""


def test_a_design_document_is_a_proposal(folder: Folder) -> None:
    folder.write("design/7-retries.md", GO_STYLE)
    parsed = folder.parsed()
    content = parsed.record.content
    assert (content.title, content.category) == ("Proposal: Limits for retries", "design")
    assert (content.status, content.outcome) == (DecisionStatus.PROPOSED, None)
    assert "no status: taken as proposed" in parsed.notes
    assert content.date is not None
    assert content.date.date().isoformat() == "2019-03-04"
    assert [(reason.type, reason.text) for reason in content.reasons] == [
        ("rationale", "A limit is simpler than a budget.")
    ]


def test_a_design_document_without_a_title_is_named_after_its_file(folder: Folder) -> None:
    content = folder.content(RUST_STYLE, "text/0042-retry-limits.md")
    assert (content.title, content.notes) == ("Retry limits", "One more parameter.")
    assert content.date is not None
    assert content.date.year == 2020


@pytest.mark.parametrize("name", ["12-retries.md", "proposals/retries.md", "rfcs/retries.md"])
def test_a_short_design_document_is_recognised_by_its_name_and_author(folder: Folder, name: str) -> None:
    content = folder.content("# Retries\n\nAuthor: Ann\n\n## Semantics\n\nRetry twice.\n", name)
    assert (content.title, content.category) == ("Retries", "design")


@pytest.mark.parametrize(
    "text",
    [
        "# Guide\n\n## Design\n\nA\n\n## Implementation\n\nB\n",
        "# Guide\n\nAuthor: Ann\n\n## Usage\n\nA\n",
        "# Guide\n\n## Introduction\n\nA\n\n## Goals\n\nB\n\n## Open questions\n\nC\n",
    ],
)
def test_a_page_about_a_design_is_no_design_document(folder: Folder, text: str) -> None:
    folder.write("page.md", text)
    assert not folder.skipped().error


@pytest.mark.parametrize(
    "heading",
    [
        "Title",
        "ADR Title",
        "Architecture Decision Record",
        "Architecture Decision Record (ADR)",
        "Architecture Decision Record Template",
        "ADR template",
        "ADR-0007",
        "7. Title",
        "Post-mortem template",
    ],
)
def test_the_file_names_a_record_whose_heading_is_that_of_a_template(folder: Folder, heading: str) -> None:
    text = f"# {heading}\n\n## Status\n\nAccepted\n\n## Context\n\nA\n\n## Decision\n\nB\n"
    assert folder.content(text, "queue-the-letters.md").title == "Queue the letters"


def test_the_file_names_a_record_in_use_whose_title_is_a_placeholder(folder: Folder) -> None:
    text = "# <short title>\n\n## Status\n\nAccepted\n\n## Context\n\nA\n\n## Decision\n\nB\n"
    assert folder.content(text, "queue-the-letters.md").title == "Queue the letters"


def test_anything_is_a_record_on_demand(folder: Folder) -> None:
    folder.write("notes/README.md", "# Ways of working\n\nWe pair on Mondays. See [the rota](rota.md).\n")
    folder.write("notes/rota.md", "Ann, then Ben.\n")
    folder.write("notes/adr-template.md", "# Title\n\n## Status\n\nx\n")
    folder.write("notes/empty.md", "\n")
    assert {type(each) for each in read_records([folder.path])} == {SkippedRecord}
    found = list(read_records([folder.path], as_records=True))
    records = [each for each in found if isinstance(each, ParsedRecord)]
    assert [each.record.content.title for each in records] == ["Ways of working", "Rota"]
    assert [each.record.content.category for each in records] == [None, None]
    assert [source.rpartition("/")[2] for source in records[0].record.links.relates_to] == ["rota.md"]
    assert [each.reason for each in found if isinstance(each, SkippedRecord)] == [
        "it is a template, by its name",
        "it is empty",
    ]
