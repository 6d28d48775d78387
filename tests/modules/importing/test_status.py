"""What status lines mean."""

from __future__ import annotations

import pytest

from cstp_grpc.contract.enums import DecisionStatus, Outcome
from tests.modules.importing.folder import Folder, nygard

PROPOSED = (DecisionStatus.PROPOSED, None)
DECIDED = (DecisionStatus.DECIDED, None)
IN_PART = (DecisionStatus.DECIDED, Outcome.PARTIAL)
DROPPED = (DecisionStatus.DECIDED, Outcome.ABANDONED)
SUPERSEDED = (DecisionStatus.SUPERSEDED, Outcome.PARTIAL)


@pytest.mark.parametrize(
    ("status", "meaning"),
    [
        ("Proposed", PROPOSED),
        ("DRAFT", PROPOSED),
        ("on hold", PROPOSED),
        ("Not yet decided", PROPOSED),
        ("✅ Accepted", DECIDED),
        ("**Accepted**", DECIDED),
        ("Accepted.", DECIDED),
        ("Accepted on 2017-09-04 by the team", DECIDED),
        ("4 May 2017: accepted", DECIDED),
        ("Currently accepted", DECIDED),
        ("Partially accepted", DECIDED),
        ("Done", DECIDED),
        ("Partly superseded", IN_PART),
        ("Accepted (partially superseded by 3)", IN_PART),
        ("Superseded in part by [3](0003-x.md)", IN_PART),
        ("Superseded (partially) by [3](0003-x.md)", IN_PART),
        ("Rejected", DROPPED),
        ("Not accepted", DROPPED),
        ("Deprecated", IN_PART),
        ("No longer valid since we moved", IN_PART),
        ("Superseded", SUPERSEDED),
        ("Superceded by 0003", SUPERSEDED),
        ("~~Accepted~~ Superseded by [3](0003-x.md)", SUPERSEDED),
        ("This decision was replaced by 3.", SUPERSEDED),
        ("Accepted\n\nAmended by [3](0003-x.md)", DECIDED),
        ("Accepted\n\nSupersedes [3](0003-x.md)", DECIDED),
        ("Proposed\n\nAccepted\n\nSuperseded by [3](0003-x.md)", SUPERSEDED),
        ("- 2019-01-01: Deprecated\n- 2017-01-01: Accepted", IN_PART),
        ("Proposed\n\nCurrent hosting is too slow.", PROPOSED),
    ],
)
def test_a_status_has_its_meaning(folder: Folder, status: str, meaning: tuple[DecisionStatus, Outcome | None]) -> None:
    content = folder.content(nygard(status=status))
    assert (content.status, content.outcome) == meaning


@pytest.mark.parametrize(
    ("status", "remark"),
    [
        ("", "no status: taken as decided"),
        ("Hibernating", "the status 'Hibernating' is unknown: taken as decided"),
        ("Deprecated", "outcome partial: taken from the status 'Deprecated'"),
    ],
)
def test_what_a_status_does_not_say_is_reported(folder: Folder, status: str, remark: str) -> None:
    folder.write("0001-a.md", nygard(status=status))
    parsed = folder.parsed("0001-a.md")
    assert parsed.notes == (remark,)
    assert parsed.record.content.status is DecisionStatus.DECIDED


@pytest.mark.parametrize(
    "status",
    [
        "[proposed | rejected | accepted | superseded by [ADR-0005](0005-x.md)]",
        "{proposed | accepted | deprecated}",
        "Draft / Final / Cancelled",
        "What is the status, such as proposed, accepted, rejected, superseded?",
    ],
)
def test_the_choices_of_a_template_are_no_status(folder: Folder, status: str) -> None:
    folder.write("0001-a.md", nygard(status=status))
    notes = folder.parsed("0001-a.md").notes
    assert any(note.endswith("still lists the choices of a template: taken as decided") for note in notes)
    assert folder.parsed("0001-a.md").record.content.status is DecisionStatus.DECIDED


def test_an_outcome_in_the_front_matter_outranks_that_of_the_status(folder: Folder) -> None:
    content = folder.content("---\nstatus: superseded\noutcome: failure\n---\n# A\n\n## Decision\n\nB\n")
    assert (content.status, content.outcome) == (DecisionStatus.SUPERSEDED, Outcome.FAILURE)
