"""YAML and JSON Lines with the names of the contract."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from cstp_grpc.contract.enums import DecisionStatus, Outcome, Stakes, Visibility
from cstp_grpc.core.decisions.model import DecisionContent, Reason, SourceLinks
from cstp_grpc.modules.importing import DateOrigin, ParsedRecord, SkippedRecord
from cstp_grpc.modules.importing.read_records import MAX_LINE_BYTES
from tests.modules.importing.folder import Folder

WHOLE = {
    "id": "cache",
    "title": "Cache pages for a minute",
    "context": "Rendering is slow.",
    "category": "performance",
    "stakes": "low",
    "confidence": 0.8,
    "status": "reviewed",
    "outcome": "Partial",
    "date": "2024-05-02T10:00:00+02:00",
    "notes": "Prices were stale.",
    "reasons": [{"type": "analysis", "text": "Few pages.", "strength": 1}, "habit"],
    "tags": ["cache", "web", "cache"],
    "project": "shop",
    "visibility": "shared",
    "links": {"supersedes": ["none"], "supersededBy": "edge", "dependsOn": [7], "relates_to": "a, b"},
}
CONTENT = DecisionContent(
    title="Cache pages for a minute",
    context="Rendering is slow.",
    category="performance",
    stakes=Stakes.LOW,
    confidence=0.8,
    status=DecisionStatus.REVIEWED,
    outcome=Outcome.PARTIAL,
    date=datetime(2024, 5, 2, 8, tzinfo=UTC),
    notes="Prices were stale.",
    reasons=(Reason("analysis", "Few pages.", 1.0), Reason("reason", "habit")),
    tags=("cache", "web"),
    project="shop",
    visibility=Visibility.SHARED,
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", json.dumps(WHOLE)),
        ("a.ndjson", "\ufeff" + json.dumps(WHOLE) + "\r\n"),
        ("a.yaml", json.dumps(WHOLE)),
        ("a.yml", json.dumps([WHOLE])),
        ("a.yaml", json.dumps({"decisions": [WHOLE]})),
        ("a.yaml", f"---\n---\n{json.dumps(WHOLE)}\n"),
    ],
)
def test_every_field_is_read(folder: Folder, name: str, text: str) -> None:
    path = folder.write(name, text)
    parsed = folder.parsed(name)
    source = path.resolve().as_posix()
    assert parsed.record.source == f"{source}#cache"
    assert parsed.record.content == CONTENT
    assert parsed.date_from is DateOrigin.FIELD
    assert parsed.record.links == SourceLinks(
        supersedes=(f"{source}#none",),
        superseded_by=(f"{source}#edge",),
        depends_on=(f"{source}#7",),
        relates_to=(f"{source}#a", f"{source}#b"),
    )


def test_only_the_title_is_needed(folder: Folder) -> None:
    folder.write("a.jsonl", '{"title": " A  title\\nof two lines ", "context": null, "notes": "", "tags": []}')
    content = folder.parsed("a.jsonl").record.content
    assert content == DecisionContent(title="A title of two lines", date=content.date)


def test_yaml_keeps_texts_that_look_like_something_else(folder: Folder) -> None:
    folder.write("a.yaml", "- {id: 0012, title: no, tags: [1.10, on, 2020-01-01, 0x1F], confidence: 1}\n")
    parsed = folder.parsed("a.yaml")
    assert parsed.record.source.endswith("a.yaml#0012")
    assert parsed.record.content.title == "no"
    assert parsed.record.content.tags == ("1.1", "on", "2020-01-01", "0x1F")


def test_an_entry_without_id_is_known_by_its_line_and_one_alone_by_its_file(folder: Folder) -> None:
    folder.write("list.jsonl", '\n{"title": "A"}\n\n{"title": "B"}')
    folder.write("list.yaml", "- title: A\n\n- title: B\n")
    folder.write("one.yaml", "title: A\nstatus: decided\n")
    names = [found.record.source.rpartition("/")[2] for found in folder.read() if isinstance(found, ParsedRecord)]
    assert names == ["list.jsonl#L2", "list.jsonl#L4", "list.yaml#L1", "list.yaml#L3", "one.yaml"]
    assert [found.line for found in folder.read()] == [2, 4, 1, 3, 1]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "it is not JSON: Expecting property name enclosed in double quotes at column 2"),
        ('{"title": "A"} x', "it is not JSON: Extra data at column 16"),
        ('{"title": "A", "title": "B"}', "it is not JSON: the key 'title' is given twice"),
        ('{"title": "A", "confidence": NaN}', "it is not JSON: NaN is no number"),
        ('{"title": ' + "[" * 100_000, "it is nested too deeply"),
        ('{"title": "A", "confidence": ' + "9" * 5000 + "}", "it is not JSON: Exceeds the limit"),
        ("[1]", "it is not an object with fields"),
        ('"A"', "it is not an object with fields"),
        ("{}", "title: it is missing or blank"),
        ('{"title": "\u200b"}', "title: it is missing or blank"),
        ('{"title": ["A"]}', "title: it is a list, not a text"),
        ('{"title": true}', "title: it is true or false, not a text"),
        ('{"title": "a\\u0000b"}', "title: it contains a NUL character"),
        ('{"title": "\\ud800"}', "title: it contains half of a surrogate pair"),
        ('{"title": "A", "titel": "B"}', "titel: there is no such field; records of another make need a mapping"),
        ('{"title": "A", "status": "Final"}', "status: 'Final' is none of proposed, decided, reviewed, superseded"),
        ('{"title": "A", "stakes": 3}', "stakes: '3' is none of low, medium, high, critical"),
        ('{"title": "A", "confidence": "high"}', "confidence: 'high' is not a number"),
        ('{"title": "A", "confidence": 1.5}', "confidence: 1.5 is not from 0 to 1"),
        ('{"title": "A", "confidence": true}', "confidence: it is true or false, not a text"),
        ('{"title": "A", "date": ["2017-09-04"]}', "date: it is a list, not a text"),
        ('{"title": "A", "category": "' + "x" * 101 + '"}', "category: 101 characters, at most 100 are possible"),
        ('{"title": "A", "tags": ["' + "x" * 101 + '"]}', "tags: "),
        ('{"title": "A", "reasons": [{"text": "B"}]}', "reasons[0].type: it is missing or blank"),
        ('{"title": "A", "reasons": [{"type": "B", "why": 1}]}', "reasons[0].why: there is no such field"),
        ('{"title": "A", "reasons": [{"type": "B", "strength": 2}]}', "reasons[0].strength: 2 is not from 0 to 1"),
        ('{"title": "A", "links": ["B"]}', "links: it is not an object"),
        ('{"title": "A", "links": {"blocks": ["B"]}}', "links.blocks: there is no such link"),
        ('{"title": "A", "links": {"dependsOn": [{}]}}', "depends_on: it is an object, not a text"),
        (b'{"title": "caf\xe9"}', "it is not UTF-8 text: byte 0xe9 at offset 14"),
        (b'{"title": "A"\0}', "it is not text: NUL at offset 13"),
    ],
)
def test_a_line_that_is_broken_is_an_error_and_stops_nothing(folder: Folder, line: str | bytes, reason: str) -> None:
    middle = line if isinstance(line, bytes) else line.encode()
    folder.write("a.jsonl", b'{"title": "first"}\n' + middle + b'\n{"title": "last"}\n')
    first, broken, last = folder.read("a.jsonl")
    assert isinstance(first, ParsedRecord)
    assert isinstance(last, ParsedRecord)
    assert isinstance(broken, SkippedRecord)
    assert broken.reason.startswith(reason)
    assert (broken.line, broken.error) == (2, True)


def test_a_line_that_is_too_long_is_an_error(folder: Folder) -> None:
    folder.write(
        "a.jsonl", b'{"title": "' + b"x" * MAX_LINE_BYTES * 2 + b'"}\n{"title": "last"}\n' + b" " * MAX_LINE_BYTES
    )
    first, second = folder.read("a.jsonl")
    assert isinstance(first, SkippedRecord)
    assert (first.line, first.reason) == (1, "the line is longer than 4 MiB")
    assert (isinstance(second, ParsedRecord), second.line) == (True, 2)


def test_an_id_that_is_used_twice_is_an_error_that_names_the_other_line(folder: Folder) -> None:
    folder.write(
        "a.jsonl", '{"id": 1, "title": "A"}\n{"id": "1", "title": "B"}\n{"id": "L4", "title": "C"}\n{"title": "D"}\n'
    )
    results = folder.read("a.jsonl")
    assert [found.reason if isinstance(found, SkippedRecord) else None for found in results] == [
        None,
        "the id '1' is that of line 1, too",
        None,
        "the id 'L4' is that of line 3, too",
    ]


def test_a_broken_line_does_not_take_its_id(folder: Folder) -> None:
    folder.write("a.jsonl", '{"id": 1, "title": ""}\n{"id": 1, "title": "A"}\n')
    assert [type(found) for found in folder.read("a.jsonl")] == [SkippedRecord, ParsedRecord]


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("- title: A\n- title: [\n", 3, "broken YAML"),
        ("- title: A\n  title: B\n", 2, "the key 'title' is given twice"),
        ("title: &a [*a]\n", 1, "the alias *a stands for nothing"),
        ("title: A\ncontext: " + "[" * 30 + "]" * 30, 2, "it is nested deeper than 24 levels"),
        ("title: A\n? [b]\n: c\n", 2, "a key must be a plain text"),
    ],
)
def test_broken_yaml_is_an_error_with_its_line(folder: Folder, text: str, line: int, reason: str) -> None:
    folder.write("a.yaml", text)
    skipped = folder.skipped("a.yaml")
    assert skipped.reason.startswith(reason)
    assert (skipped.line, skipped.error) == (line, True)


def test_entries_of_yaml_that_are_broken_are_errors_with_their_lines(folder: Folder) -> None:
    folder.write("a.yaml", "- title: A\n- just words\n- title: B\n  stakes: none\n- {status: decided}\n")
    results = folder.read("a.yaml")
    assert [(type(found), found.line) for found in results] == [
        (ParsedRecord, 1),
        (SkippedRecord, 2),
        (SkippedRecord, 3),
        (SkippedRecord, 5),
    ]
    assert all(found.error for found in results if isinstance(found, SkippedRecord))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "services: {web: {image: nginx}}\n",
        "- one\n- two\n",
        "title: My site\ntheme: dark\n",
        "{{ helm }}: [\n",
        "just words",
    ],
)
def test_yaml_of_something_else_is_no_error(folder: Folder, text: str) -> None:
    folder.write("a.yaml", text)
    assert not folder.skipped("a.yaml").error


def test_an_empty_file_of_json_lines_is_no_error(folder: Folder) -> None:
    folder.write("a.jsonl", "\n \n")
    assert (folder.skipped("a.jsonl").reason, folder.skipped("a.jsonl").error) == ("it is empty", False)


def test_what_is_too_long_is_cut_and_reported(folder: Folder) -> None:
    record = {"title": "T" * 501, "notes": "n" * 5001, "tags": [str(n) for n in range(51)], "reasons": ["r"] * 101}
    folder.write("a.jsonl", json.dumps(record))
    parsed = folder.parsed("a.jsonl")
    content = parsed.record.content
    assert (len(content.title), len(content.notes or ""), len(content.tags), len(content.reasons)) == (
        500,
        5000,
        50,
        100,
    )
    assert parsed.notes == (
        "title: cut from 501 to 500 characters",
        "notes: cut from 5001 to 5000 characters",
        "reasons: the first 100 of 101 are taken",
        "tags: the first 50 of 51 are taken",
    )


def test_a_source_that_is_too_long_is_an_error_of_its_entry(folder: Folder) -> None:
    deep = "/".join(["d" * 200] * 4)
    folder.write(f"{deep}/a.jsonl", '{"title": "A", "id": "' + "x" * 200 + '"}\n{"title": "B"}\n')
    first, second = folder.read()
    assert isinstance(first, SkippedRecord)
    assert "at most 1000 are possible" in first.reason
    assert isinstance(second, ParsedRecord)


def test_what_only_the_server_sets_is_reported(folder: Folder) -> None:
    folder.write("a.jsonl", '{"title": "A", "agent": "bot", "reviewedDate": "2024-01-01T00:00:00Z", "score": null}')
    assert folder.parsed("a.jsonl").notes == ("agent, reviewedDate: given by the server, not imported",)


@pytest.mark.parametrize(
    ("date", "remark"),
    [
        ("2023-02-30", "date: there is no day '2023-02-30'; it is not used"),
        ("2023-02-30T10:00:00Z", "date: there is no day '2023-02-30T10:00:00Z'; it is not used"),
        ("2023-02-28T25:00:00Z", "date: there is no time '2023-02-28T25:00:00Z'; it is not used"),
        ("04/09/2017", "date: '04/09/2017' could be two days; it is not used"),
        ("soon", "date: 'soon' is not a date; it is not used"),
        (1504483200, "date: '1504483200' is not a date; it is not used"),
    ],
)
@pytest.mark.parametrize("ending", ["jsonl", "yaml"])
def test_a_date_that_cannot_be_is_remarked_and_that_of_the_file_is_used(
    folder: Folder, ending: str, date: object, remark: str
) -> None:
    folder.write(f"a.{ending}", json.dumps({"title": "A", "date": date}) + "\n")
    parsed = folder.parsed(f"a.{ending}")
    assert parsed.record.content.date is not None
    assert parsed.date_from is DateOrigin.MODIFIED
    assert parsed.notes == (remark,)


@pytest.mark.parametrize("ending", ["jsonl", "yaml"])
def test_a_link_to_no_record_of_the_file_is_remarked(folder: Folder, ending: str) -> None:
    entries = [
        {"id": "a", "title": "A", "links": {"supersededBy": ["b"], "relatesTo": ["c", "L4"]}},
        {"id": "b", "title": "B", "links": {"supersedes": ["a", "aa"], "dependsOn": ["x/b.jsonl#a"]}},
        {"id": "c", "title": ""},
        {"title": "D"},
    ]
    mark = "" if ending == "jsonl" else "- "
    folder.write(f"a.{ending}", "\n".join(f"{mark}{json.dumps(entry)}" for entry in entries))
    first, second, skipped, last = folder.read()
    assert isinstance(first, ParsedRecord)
    assert isinstance(second, ParsedRecord)
    assert first.notes == ()
    assert second.notes == (
        "links.supersedes: there is no record 'aa' in this file",
        "links.dependsOn: there is no record 'x/b.jsonl#a' in this file",
    )
    # They take effect if such a record is there one day.
    assert len(second.record.links.supersedes) == 2
    assert isinstance(skipped, SkippedRecord)
    assert isinstance(last, ParsedRecord)


def test_a_field_is_called_in_remarks_as_in_the_file(folder: Folder) -> None:
    folder.write("a.jsonl", '{"title": "A", "date": "2024-01-01", "reviewBy": "2024-02-30"}\n')
    assert folder.parsed("a.jsonl").notes == ("reviewBy: there is no day '2024-02-30'; it is not used",)
