"""Records in Nygard's format and its variations."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from cstp_grpc.contract.enums import DecisionStatus, Visibility
from cstp_grpc.modules.importing import DateOrigin
from tests.modules.importing.folder import Folder, nygard


def test_a_record_is_read_whole(folder: Folder) -> None:
    folder.write("0012-sessions.md", nygard(12))
    parsed = folder.parsed("0012-sessions.md")
    content = parsed.record.content
    assert content.title == "Keep sessions in Redis"
    assert content.status is DecisionStatus.DECIDED
    assert content.outcome is None
    assert content.date == datetime(2017, 9, 4, tzinfo=UTC)
    assert parsed.date_from is DateOrigin.DATE_LINE
    assert content.notes == "Losing Redis logs everybody out."
    assert content.tags == ("adr:12",)
    assert content.category == "architecture"
    assert content.visibility is Visibility.PRIVATE
    assert parsed.line is None
    assert parsed.notes == ()


def test_the_context_begins_with_the_matter_and_keeps_everything_else(folder: Folder) -> None:
    context = folder.content(nygard(status="Accepted, after a long argument")).context
    assert context is not None
    assert context.startswith("## Context\n\nSessions are read with every request.\n\n## Decision")
    assert context.endswith("Date: 2017-09-04\n\n## Status\n\nAccepted, after a long argument")
    assert "Losing Redis" in context
    assert "# 1." not in context


@pytest.mark.parametrize(
    ("heading", "title"),
    [
        ("# 12. Use Redis", "Use Redis"),
        ("# 0012 - Use Redis", "Use Redis"),
        ("# 12: Use Redis", "Use Redis"),
        ("# #12 Use Redis", "Use Redis"),
        ("# 12 Use Redis", "Use Redis"),
        ("# 3 ways to log in", "3 ways to log in"),
        ("# 12-factor apps", "12-factor apps"),
        ("# ADR-0012: Use Redis", "ADR-0012: Use Redis"),
        ("# ADR: Use Redis", "Use Redis"),
        ("# Architecture Decision Record: Use Redis", "Use Redis"),
        ("# 12. Use `Redis` for [sessions](https://example.org) ", "Use Redis for sessions"),
        ("Use Redis\n=========", "Use Redis"),
        ("# 12. Use Redis #", "Use Redis"),
    ],
)
def test_the_title_loses_its_bare_number_only(folder: Folder, heading: str, title: str) -> None:
    content = folder.content(nygard(12).replace("# 12. Keep sessions in Redis", heading), "0012-redis.md")
    assert content.title == title
    assert content.tags == ("adr:12",)


@pytest.mark.parametrize(
    ("name", "tags"),
    [
        ("0012-redis.md", ("adr:12",)),
        ("adr-012-redis.md", ("adr:12",)),
        ("ADR0012.md", ("adr:12",)),
        ("12_redis.markdown", ("adr:12",)),
        ("rfc-7-redis.md", ("rfc:7",)),
        ("redis.md", ("adr:3",)),
        ("2021-redis.md", ("adr:3",)),
        ("0012-redis/README.md", ("adr:12",)),
    ],
)
def test_the_number_of_the_file_name_identifies_else_that_of_the_title(
    folder: Folder, name: str, tags: tuple[str, ...]
) -> None:
    assert folder.content(nygard(3), name).tags == tags


def test_a_title_with_another_number_than_the_file_name_is_reported(folder: Folder) -> None:
    folder.write("0033-sessions.md", nygard(3))
    parsed = folder.parsed("0033-sessions.md")
    assert parsed.record.content.tags == ("adr:33",)
    assert parsed.notes == ("its title says 3; 33 is taken from the file name",)


@pytest.mark.parametrize(
    "described",
    [
        "## Status\n\nProposed\n\n## Date\n\n2017-09-04",
        "* Status: proposed\n* Date: 2017-09-04",
        "**Status:** Proposed  \n**Date:** 4 September 2017",
        "Status: Proposed\nDate: 2017/09/04",
        "| Status | Proposed |\n|---|---|\n| Date | 2017-09-04 |",
        "### Status: Proposed\n\nDate: 2017-09-04",
        "## 1. Status\n\n📝 Proposed (2017-09-04)",
        "# Status\n\n_Proposed_ on September 4th, 2017",
        "## STATUS ##\n\n- 2017-09-04: proposed",
    ],
)
def test_status_and_date_are_found_however_they_are_set(folder: Folder, described: str) -> None:
    content = folder.content(f"# Use Redis\n\n{described}\n\n## Context\n\nA.\n\n## Decision\n\nB.\n", "redis.md")
    assert content.title == "Use Redis"
    assert content.status is DecisionStatus.PROPOSED
    assert content.date == datetime(2017, 9, 4, tzinfo=UTC)


def test_what_looks_like_a_heading_in_a_code_block_is_none(folder: Folder) -> None:
    context = "We write:\n\n```markdown\n# 9. Another title\n## Status\nRejected\n```\n\n    # 8. Indented"
    content = folder.content(nygard(context=context))
    assert content.title == "Keep sessions in Redis"
    assert content.status is DecisionStatus.DECIDED
    assert content.context is not None
    assert "# 9. Another title" in content.context


@pytest.mark.parametrize("ending", ["\r\n", "\r"])
def test_other_line_endings_and_a_byte_order_mark_change_nothing(folder: Folder, ending: str) -> None:
    plain = folder.content(nygard())
    other = folder.content("\ufeff" + nygard().replace("\n", ending))
    assert other == plain


def test_the_lesson_is_the_first_consequences_and_bounded(folder: Folder) -> None:
    consequences = "First *one*,\nof two lines.\n\n- a\n- b\n\n" + "Long. " * 300
    assert folder.content(nygard(consequences=consequences)).notes == "First one, of two lines.\n- a\n- b"
    assert len(folder.content(nygard(consequences="word " * 3000)).notes or "") == 5000


@pytest.mark.parametrize("unfilled", ["TBC", "*To be decided.*", "N/A", "", "..."])
def test_consequences_that_are_not_written_yet_are_no_lesson(folder: Folder, unfilled: str) -> None:
    assert folder.content(nygard(consequences=unfilled)).notes is None


def test_a_record_without_a_title_is_named_after_its_file(folder: Folder) -> None:
    folder.write("0004-use-a-queue.md", "## Status\n\nAccepted\n\n## Decision\n\nWe do.\n")
    parsed = folder.parsed("0004-use-a-queue.md")
    assert parsed.record.content.title == "Use a queue"
    assert "the title is taken from the file name" in parsed.notes


def test_a_title_that_is_too_long_is_cut_and_reported(folder: Folder) -> None:
    folder.write("0001-long.md", nygard(title="word " * 200))
    parsed = folder.parsed("0001-long.md")
    assert len(parsed.record.content.title) == 500
    assert "title: cut from 999 to 500 characters" in parsed.notes
