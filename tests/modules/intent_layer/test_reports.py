"""What agents report comes back as it was and is taken for nothing else; other tools' reports are read too."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cstp_grpc.modules.intent_layer.model import Learning, LearningReview, LearningState, LearningType, ReviewVerdict
from cstp_grpc.modules.intent_layer.report_format import ReportFormatError, add_review, format_report, parse_report
from tests.example_counts import examples

many = settings(max_examples=examples(500), deadline=None)

ID = "PITFALL-2026-02-06-a1b2c3d4e5f60718-4567"
FILE = f".intent-layer/mistakes/pending/{ID}.md"
AT = datetime(2026, 2, 6, 10, tzinfo=UTC)
REVIEW = LearningReview(ReviewVerdict.ACCEPT, "alice", "Seen twice", datetime(2026, 2, 7, 9, 30, tzinfo=UTC))

LINES = [
    "",
    "  ",
    "text",
    "    code",
    "# Title",
    "### What Happened",
    "### Disposition",
    "## Contracts",
    "**Type**: check",
    "**ID**: other",
    "**Agent**: mallory",
    "**Paths**:",
    "**Review**: accept",
    "- [ ] Rejected",
    "- src",
    "> quoted",
    ">",
    "```",
    "```json",
    "[",
    '"a"',
    '["a"]',
    "]",
    "~~~",
    "---",
    "===",
    "<!--",
    "-->",
    "\r",
    "a\r",
    "a\u2028b",
    "\0",
    "\ufeff",
    '"',
    "`a`",
]

texts = st.one_of(
    st.text(min_size=1),
    st.lists(st.sampled_from(LINES), min_size=1, max_size=6).map("\n".join).filter(bool),
)
instants = st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=st.just(UTC))
reviews = st.builds(LearningReview, st.sampled_from(ReviewVerdict), texts, texts | st.just(""), instants)
learnings = st.builds(
    Learning,
    id=st.just(ID),
    type=st.sampled_from(LearningType),
    state=st.sampled_from(LearningState),
    at=instants,
    paths=st.lists(texts, min_size=1, max_size=3).map(tuple),
    title=texts,
    detail=texts,
    agent_id=texts,
    file=st.just(FILE),
    evidence=st.none() | texts | st.just(""),
    operation=st.none() | texts,
    reviews=st.lists(reviews, max_size=3).map(tuple),
)
LEARNING = Learning(
    id=ID,
    type=LearningType.PITFALL,
    state=LearningState.PENDING,
    at=AT,
    paths=("src/api/handlers.ts",),
    title="Handlers are arrow functions",
    detail="The loader calls them without a receiver.",
    agent_id="worker-3",
    file=FILE,
    evidence="TypeError in handlers.ts:12",
    operation="Adding a handler",
)


def read_report(content: bytes | str, learning_id: str = ID) -> Learning:
    data = content.encode() if isinstance(content, str) else content
    return parse_report(data, learning_id, LearningState.PENDING, FILE)


def first_field(content: bytes, name: str) -> str:
    """The value as scripts take it: from the first line of the file that begins with the field's name."""
    line = next(line for line in content.split(b"\n") if line.startswith(f"**{name}**".encode()))
    return line.decode().partition(":")[2].strip()


def test_a_report_shows_its_fields_to_people_and_scripts() -> None:
    assert format_report(LEARNING, "src/api").decode() == "\n".join(
        [
            "# PITFALL: Handlers are arrow functions",
            "",
            f"**ID**: {ID}",
            "**Type**: pitfall",
            "**Timestamp**: 2026-02-06T10:00:00Z",
            "**Directory**: src/api",
            "**Operation**: Handlers are arrow functions",
            "**Task**: Adding a handler",
            "**Agent**: worker-3",
            "**Paths**:",
            "- src/api/handlers.ts",
            "",
            "### What Happened",
            "",
            "The loader calls them without a receiver.",
            "",
            "### Evidence",
            "",
            "TypeError in handlers.ts:12",
            "",
            "### Disposition",
            "",
            "- [ ] Added to AGENTS.md",
            "- [ ] Rejected",
            "- [ ] Deferred",
            "",
        ]
    )


def test_a_review_ticks_its_box_and_says_who_when_and_why() -> None:
    content = add_review(format_report(LEARNING, "src/api"), REVIEW)
    assert content.decode().endswith(
        "- [x] Added to AGENTS.md\n- [ ] Rejected\n- [ ] Deferred\n\n"
        "**Review**: accept\n**Reviewer**: alice\n**Reviewed**: 2026-02-07T09:30:00Z\n**Reason**: Seen twice\n"
    )
    assert read_report(content).reviews == (REVIEW,)


@many
@given(learnings, texts)
def test_whatever_was_reported_comes_back(learning: Learning, directory: str) -> None:
    content = format_report(learning, directory)
    assert parse_report(content, ID, learning.state, FILE) == learning
    assert parse_report(content.replace(b"\n", b"\r\n"), ID, learning.state, FILE) == learning


@many
@given(learnings)
def test_scripts_that_take_the_first_line_of_a_name_cannot_be_misled(learning: Learning) -> None:
    content = format_report(learning, "src/api")
    assert first_field(content, "ID") == ID
    assert first_field(content, "Type") == learning.type
    assert first_field(content, "Directory") == "src/api"
    assert "\n" not in first_field(content, "Operation")
    assert content.split(b"\n").count(b"### What Happened") == 1
    assert content.split(b"\n").count(b"### Disposition") == 1


@many
@given(learnings, reviews)
def test_a_review_changes_nothing_but_its_box_and_the_end(learning: Learning, review: LearningReview) -> None:
    content = format_report(learning, "src/api")
    reviewed = add_review(content, review)
    begin = content.rindex(b"\n### Disposition\n")
    assert reviewed[:begin] == content[:begin]
    assert reviewed[: len(content)].replace(b"- [x]", b"- [ ]") == content.replace(b"- [x]", b"- [ ]")
    assert parse_report(reviewed, ID, learning.state, FILE) == replace(learning, reviews=(*learning.reviews, review))


@many
@given(st.binary() | st.lists(st.sampled_from(LINES)).map(lambda lines: "\n".join(lines).encode(errors="replace")))
def test_no_file_makes_reading_fail_in_another_way(content: bytes) -> None:
    with suppress(ReportFormatError):
        assert read_report(content).detail
    reviewed = add_review(content, REVIEW)
    assert reviewed.endswith(b"Seen twice\n") or reviewed.endswith((b"Seen twice\r\n", b"Seen twice\r"))


def test_text_that_means_something_to_markdown_is_quoted() -> None:
    content = format_report(replace(LEARNING, detail="Before\n### Disposition\n**Type**: check"), "src/api").decode()
    assert "\n> Before\n> ### Disposition\n> **Type**: check\n" in content


def test_text_with_hidden_characters_is_spelled_out() -> None:
    content = format_report(replace(LEARNING, detail="one\r\ntwo\u2028é"), "src/api").decode()
    assert '```json\n[\n"one\\r",\n"two\\u2028é"\n]\n```' in content


CAPTURED = """## Learning Report

**ID**: PITFALL-2026-02-06-000123-4567
**Type**: pitfall
**Timestamp**: 2026-02-06T10:00:00Z
**Directory**: `src/api`
**Operation**: Adding a handler

### What Went Wrong
A declaration lost its receiver.

### How Discovered
- [x] Tests failed
- [ ] Code review

### Why This Matters
The loader calls handlers bare.

### Suggested Pitfall Entry
```markdown
### Short title

Text
```

### Impact
Two hours.

### Disposition
<!-- To be filled in -->
- [ ] Added to AGENTS.md (section: ____)
- [ ] Rejected (reason: ____)
"""


def test_a_report_of_another_tool_is_read() -> None:
    learning = read_report(CAPTURED, "PITFALL-2026-02-06-000123-4567")
    assert learning.type is LearningType.PITFALL
    assert learning.at == AT
    assert learning.paths == ("src/api",)
    assert learning.title == "Adding a handler"
    assert learning.operation == "Adding a handler"
    assert learning.agent_id == "unknown"
    assert learning.evidence is None
    assert learning.detail == (
        "A declaration lost its receiver.\n\nThe loader calls handlers bare.\n\n**Impact**\n\nTwo hours."
    )


def test_a_review_of_another_tools_report_keeps_the_rest_of_it() -> None:
    content = add_review(CAPTURED.encode(), replace(REVIEW, verdict=ReviewVerdict.REJECT)).decode()
    assert content.startswith(CAPTURED.replace("- [ ] Rejected", "- [x] Rejected"))
    assert read_report(content).reviews[0].verdict is ReviewVerdict.REJECT


def test_a_report_without_a_disposition_gets_one() -> None:
    content = b"**Type**: check\r\n**Directory**: src\r\n\r\n### Check Needed\r\nRun it\xff first"
    reviewed = add_review(content, REVIEW)
    assert reviewed.startswith(content + b"\r\n\r\n### Disposition\r\n")
    assert re.search(rb"[^\r]\n", reviewed) is None
    assert read_report(reviewed).reviews == (REVIEW,)


@pytest.mark.parametrize(
    ("content", "learning_id", "type_", "at", "title"),
    [
        ("# CHECK: Migrate\n\nIn full.", "CHECK-2026-03-01-1-2", LearningType.CHECK, (2026, 3, 1), "Migrate"),
        ("In full.", "SKELETON-2026-02-15-0001", LearningType.PITFALL, (2026, 2, 15), "In full."),
        ("**Type:** Insight\n\nA\nB", "x-2026-02-15", LearningType.INSIGHT, (2026, 2, 15), "A"),
        ("# Odd: B\n**Timestamp**: 2026-01-02\n### X\nA", "PATTERN-1", LearningType.PATTERN, (2026, 1, 2), "Odd: B"),
    ],
)
def test_what_is_missing_is_taken_from_elsewhere(
    content: str, learning_id: str, type_: LearningType, at: tuple[int, int, int], title: str
) -> None:
    learning = read_report(content, learning_id)
    assert (learning.type, learning.at, learning.title) == (type_, datetime(*at, tzinfo=UTC), title)
    assert learning.paths == (".",)


@pytest.mark.parametrize(
    ("content", "learning_id", "reason"),
    [
        ("", ID, "the learning is missing"),
        ("**Type**: pitfall\n\n### Disposition\n- [ ] Rejected", ID, "the learning is missing"),
        ("Read me first.", "README", "type is not known"),
        ("**Type**: pitfall\n\nText", "note", "when it was filed"),
        ("**Type**: pitfall\n**Timestamp**: yesterday\n\nText", "note", "when it was filed"),
    ],
)
def test_a_file_that_is_no_report_is_refused_with_a_reason(content: str, learning_id: str, reason: str) -> None:
    with pytest.raises(ReportFormatError, match=reason):
        read_report(content, learning_id)


def test_a_fence_that_nothing_ends_hides_no_section() -> None:
    learning = read_report("**Type**: check\n### What Happened\n```\ncode\n### Evidence\nproof", "CHECK-2026-01-02")
    assert (learning.detail, learning.evidence) == ("```\ncode", "proof")


def test_others_find_the_title_where_they_look_for_it() -> None:
    for operation in (None, "Adding a handler", LEARNING.title):
        content = format_report(replace(LEARNING, operation=operation), "src/api")
        assert b"\n**Operation**: Handlers are arrow functions\n" in content
        again = read_report(content)
        assert (again.title, again.operation) == (LEARNING.title, operation)


def test_earlier_reports_keep_their_operation() -> None:
    content = format_report(LEARNING, "src/api").decode().replace("**Task**", "**Other**")
    said = content.replace("**Operation**: Handlers are arrow functions", "**Operation**: Adding a handler")
    assert read_report(said).operation == "Adding a handler"
    assert (
        read_report(content.replace("**Operation**: Handlers are arrow functions", "**Operation**:")).operation is None
    )


def test_what_two_sections_say_is_told_once() -> None:
    twice = CAPTURED.replace("The loader calls handlers bare.", "A declaration\nlost its receiver.")
    assert read_report(twice, "PITFALL-1").detail == "A declaration lost its receiver.\n\n**Impact**\n\nTwo hours."
    waiting = CAPTURED.replace("The loader calls handlers bare.", "_Awaiting analysis_")
    assert read_report(waiting, "PITFALL-1").detail == "A declaration lost its receiver.\n\n**Impact**\n\nTwo hours."
