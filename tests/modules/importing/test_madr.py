"""Records in the formats of MADR, and front matter in general."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from cstp_grpc.contract.enums import DecisionStatus, Outcome, Stakes, Visibility
from cstp_grpc.core.decisions.model import Reason
from cstp_grpc.modules.importing import DateOrigin
from tests.modules.importing.folder import Folder

MADR_2 = """\
# Use a queue for mail

* Status: accepted <!-- optional -->
* Deciders: the team
* Date: 2019-03-01

Technical Story: mail is slow

## Context and Problem Statement

Sending mail blocks requests.

## Decision Drivers <!-- optional -->

* answers within 200 ms
* nothing gets [lost](https://example.org)

## Considered Options

* a queue
* a thread

## Decision Outcome

Chosen option: "a queue", because it survives a restart.

### Positive Consequences

* requests are fast

### Negative Consequences

* one more thing to run

## Links

* Refines [sessions](0002-sessions.md)
"""

MADR_4 = """\
---
# These are optional metadata elements.
status: "accepted"
date: 2024-05-06
decision-makers: [the team]
consulted: everyone
---

# Use a queue for mail

## Context and Problem Statement

Sending mail blocks requests.

## Considered Options

### a queue
### a thread

## Decision Outcome

Chosen option: "a queue".

### Consequences

* Good, because requests are fast
"""


def test_madr_2_is_read(folder: Folder) -> None:
    content = folder.content(MADR_2, "queue.md")
    assert (content.title, content.status) == ("Use a queue for mail", DecisionStatus.DECIDED)
    assert content.date == datetime(2019, 3, 1, tzinfo=UTC)
    assert content.notes == "- requests are fast\n- one more thing to run"
    assert content.reasons == (
        Reason("driver", "answers within 200 ms"),
        Reason("driver", "nothing gets lost"),
        Reason("option", "a queue"),
        Reason("option", "a thread"),
    )
    assert content.context is not None
    assert content.context.startswith("Technical Story: mail is slow\n\n## Context and Problem Statement")
    assert "* Deciders: the team" in content.context


def test_madr_4_is_read(folder: Folder) -> None:
    folder.write("0009-queue.md", MADR_4)
    parsed = folder.parsed("0009-queue.md")
    content = parsed.record.content
    assert (content.title, content.status) == ("Use a queue for mail", DecisionStatus.DECIDED)
    assert (content.date, parsed.date_from) == (datetime(2024, 5, 6, tzinfo=UTC), DateOrigin.FRONT_MATTER)
    assert content.notes == "- Good, because requests are fast"
    assert [reason.text for reason in content.reasons] == ["a queue", "a thread"]
    assert content.context is not None
    assert content.context.startswith("## Context and Problem Statement")
    assert content.context.endswith("Decision makers: the team\nConsulted: everyone")


def test_front_matter_states_fields_of_ours(folder: Folder) -> None:
    text = """\
---
title: Use a queue
status: Rejected
Date: 2024-05-06T10:00:00+02:00
tags: [mail, 0012, mail]
category: operations
project: shop
stakes: High
confidence: 0.7
visibility: shared
---
## Decision

No queue.
"""
    content = folder.content(text)
    assert content.title == "Use a queue"
    assert (content.status, content.outcome) == (DecisionStatus.DECIDED, Outcome.ABANDONED)
    assert content.date == datetime(2024, 5, 6, 8, tzinfo=UTC)
    assert content.tags == ("adr:1", "mail", "0012")
    assert (content.category, content.project) == ("operations", "shop")
    assert (content.stakes, content.confidence) == (Stakes.HIGH, 0.7)
    assert content.visibility is Visibility.SHARED


def test_a_summary_begins_the_context(folder: Folder) -> None:
    body = "# Use X\n\n## Status\n\nAccepted\n\n## Decision\n\nWe use X, as it is faster.\n"
    content = folder.content(f"---\nsummary: Mail goes through X.\n---\n{body}")
    assert content.context is not None
    assert content.context.startswith("Mail goes through X.\n\n## Decision\n\nWe use X")
    repeated = folder.content(f"---\nsummary: We use X, as it is faster.\n---\n{body}")
    assert repeated.context is not None
    assert repeated.context.count("as it is faster") == 1
    lines = folder.content(f"---\nsummary: [Mail goes through X., No queue is lost.]\n---\n{body}")
    assert lines.context is not None
    assert lines.context.startswith("Mail goes through X.\nNo queue is lost.\n\n")


@pytest.mark.parametrize(
    ("key", "value"), [("tags", "{a: b}"), ("labels", "[mail, [queue]]"), ("summary", "{text: X}")]
)
def test_front_matter_that_is_no_text_is_reported(folder: Folder, key: str, value: str) -> None:
    folder.write("0007-a.md", f"---\n{key}: {value}\n---\n# Use X\n\n## Status\n\nAccepted\n")
    notes = folder.parsed("0007-a.md").notes
    assert f"front matter, {key}: values that are neither a text nor a list of texts are left out" in notes


@pytest.mark.parametrize(
    "tags",
    ["[mail, queue]", "\n- mail\n- queue", "mail, queue", "'#mail #queue'", "'#mail, #queue'", "[mail, queue, null]"],
)
@pytest.mark.parametrize("key", ["tags", "Tags", "keywords", "labels"])
def test_tags_are_kept_however_they_are_written(folder: Folder, key: str, tags: str) -> None:
    content = folder.content(f"---\n{key}: {tags}\n---\n# Use X\n\n## Status\n\nAccepted\n", "0007-use-x.md")
    assert content.tags == ("adr:7", "mail", "queue")


def test_a_tag_that_is_too_long_leaves_the_others(folder: Folder) -> None:
    folder.write("0007-a.md", f"---\ntags: [mail, {'x' * 101}]\n---\n# Use X\n\n## Status\n\nAccepted\n")
    parsed = folder.parsed("0007-a.md")
    assert parsed.record.content.tags == ("adr:7", "mail")
    assert any("is longer than 100 characters: left out" in note for note in parsed.notes)


def test_front_matter_that_does_not_fit_is_left_out_and_reported(folder: Folder) -> None:
    folder.write("0001-a.md", "---\nstatus: accepted\nstakes: enormous\nconfidence: 70\n---\n# A\n\n## Decision\n\nB\n")
    parsed = folder.parsed("0001-a.md")
    assert parsed.record.content.stakes is None
    assert parsed.record.content.confidence is None
    assert "front matter, stakes: 'enormous' is none of low, medium, high, critical: left out" in parsed.notes
    assert "front matter, confidence: 70 is not from 0 to 1: left out" in parsed.notes


@pytest.mark.parametrize(
    ("front", "line", "reason"),
    [
        ("title: Use X: because\nstatus: accepted", 2, "front matter: broken YAML"),
        ("status: accepted\nstatus: rejected", 3, "front matter: the key 'status' is given twice"),
        ("status: [a\ndate: b: c", 3, "front matter: broken YAML"),
        ('title: "a\\0b"', None, "front matter: it contains a NUL character"),
    ],
)
def test_broken_front_matter_is_an_error_with_its_line(
    folder: Folder, front: str, line: int | None, reason: str
) -> None:
    folder.write("0001-a.md", f"---\n{front}\n---\n## Decision\n\nB\n")
    skipped = folder.skipped("0001-a.md")
    assert skipped.reason.startswith(reason)
    assert (skipped.line, skipped.error) == (line, True)


def test_a_rule_at_the_beginning_is_no_front_matter(folder: Folder) -> None:
    content = folder.content("---\n\n# Use X\n\n## Status\n\nAccepted\n\n## Decision\n\nWe do.\n")
    assert content.title == "Use X"
    assert folder.content("---\njust words\n---\n# Use Y\n\n## Status\n\nAccepted\n").title == "Use Y"


def test_aliases_of_yaml_cannot_blow_up(folder: Folder) -> None:
    levels = "\n".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 20))
    content = folder.content(
        f"---\nl0: &l0 [lol]\n{levels}\ntags: *l19\nstatus: accepted\n---\n# A\n\n## Decision\n\nB\n"
    )
    assert content.tags == ("adr:1",)
