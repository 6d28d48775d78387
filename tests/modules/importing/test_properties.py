"""What holds for whatever is in the files."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import protovalidate
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.contract.enums import DecisionStatus
from cstp_grpc.core.decisions.messages import IMPORT
from cstp_grpc.core.decisions.model import DecisionContent
from cstp_grpc.modules.importing import FieldMapping, ParsedRecord, ReadResult, load_mapping
from tests.core.decisions import strategies
from tests.modules.importing import inputs
from tests.modules.importing.folder import Folder, nygard

VALIDATOR = protovalidate.Validator()
MAPPING = "fields: {title: '{title}!', id: x, context: [context, x], tags: [tags, id], status: status, date: date}\n"
NAMES = st.sampled_from(["0001-a", "adr-7", "README", "a", "2017-09-04-b", "template"])
STATUSES = {
    "Accepted": DecisionStatus.DECIDED,
    "Proposed": DecisionStatus.PROPOSED,
    "Superseded": DecisionStatus.SUPERSEDED,
}
STYLES: dict[str, Callable[[int, str, date, str], str]] = {
    "nygard": lambda number, title, day, status: nygard(number, title, day.isoformat(), status),
    "madr 2": lambda _, title, day, status: (
        f"# {title}\n\n* Status: {status}\n* Date: {day}\n\n## Decision Outcome\n\nYes.\n"
    ),
    "front matter": lambda _, title, day, status: (
        f"---\nstatus: {status}\ndate: {day}\n---\n# {title}\n\n## Decision\n\nYes.\n"
    ),
}


def read(name: str, data: bytes, mapping: FieldMapping | None = None) -> list[ReadResult]:
    with TemporaryDirectory() as path:
        folder = Folder(Path(path))
        folder.write(name, data)
        return folder.read(name, mapping=mapping)


@pytest.fixture(scope="module")
def mapping(tmp_path_factory: pytest.TempPathFactory) -> FieldMapping:
    """A mapping of fields that the inputs have."""
    return load_mapping(Folder(tmp_path_factory.mktemp("mapping")).write("mapping.yaml", MAPPING))


def assert_fit(results: list[ReadResult]) -> None:
    """Every record is one that the contract takes, and everything else has a reason."""
    for found in results:
        if isinstance(found, ParsedRecord):
            request = IMPORT.encode(found.record)
            VALIDATOR.validate(type(request).FromString(request.SerializeToString()))
        else:
            assert found.reason


@given(inputs.markdown, NAMES)
def test_any_markdown_is_one_record_or_skipped(text: str, name: str) -> None:
    results = read(f"{name}.md", text.encode())
    assert len(results) == 1
    assert_fit(results)


@given(st.binary(), st.sampled_from(["md", "yaml", "jsonl", "txt", "markdown"]))
def test_any_bytes_are_read_or_skipped(data: bytes, suffix: str) -> None:
    results = read(f"0001-a.{suffix}", data)
    assert results
    assert_fit(results)


@given(text=inputs.yaml, mapped=st.booleans())
def test_any_yaml_is_read_or_skipped(mapping: FieldMapping, text: str, mapped: bool) -> None:
    results = read("a.yaml", text.encode(), mapping if mapped else None)
    assert results
    assert_fit(results)


@given(lines=inputs.lines, mapped=st.booleans())
def test_each_line_that_is_not_blank_has_exactly_one_result(
    mapping: FieldMapping, lines: list[bytes], mapped: bool
) -> None:
    data = b"\n".join(lines)
    results = read("a.jsonl", data, mapping if mapped else None)
    marked = data.removeprefix(codecs.BOM_UTF8).split(b"\n")
    expected: list[int | None] = [number for number, line in enumerate(marked, 1) if line.strip()]
    assert [found.line for found in results] == (expected or [None])
    assert_fit(results)
    sources = [found.record.source for found in results if isinstance(found, ParsedRecord)]
    assert len(set(sources)) == len(sources)


def as_object(content: DecisionContent) -> dict[str, object]:
    """Return a decision as its owner would write it."""
    reasons = [{"type": r.type, "text": r.text, "strength": r.strength} for r in content.reasons]
    return {
        **{name: getattr(content, name) for name in ("title", "context", "category", "confidence", "notes", "project")},
        **{
            name: value and str(value) for name in ("stakes", "status", "outcome") for value in [getattr(content, name)]
        },
        "visibility": str(content.visibility),
        "tags": list(content.tags),
        "reasons": reasons,
        "date": content.date and content.date.isoformat(),
        "reviewBy": content.review_by and content.review_by.isoformat(),
    }


def framed(content: DecisionContent) -> DecisionContent:
    """Return a decision whose texts neither begin nor end with white space, which reading takes off."""
    return replace(
        content,
        title=f"«{' '.join(content.title.split())}»",
        context=content.context and f"«{content.context}»",
        notes=content.notes and f"«{content.notes}»",
        reasons=tuple(replace(reason, text=f"«{reason.text}»") for reason in content.reasons),
        date=content.date or datetime(2026, 1, 1, tzinfo=UTC),
    )


@given(st.lists(strategies.contents.map(framed), min_size=1, max_size=3))
def test_decisions_come_back_from_yaml_and_from_json_lines(contents: list[DecisionContent]) -> None:
    objects = [as_object(content) for content in contents]
    for name, text in (
        ("a.jsonl", "\n".join(map(json.dumps, objects))),
        ("a.yaml", yaml.safe_dump(objects)),
        ("a.yaml", yaml.safe_dump_all(objects)),
    ):
        assert [
            found.record.content for found in read(name, text.encode()) if isinstance(found, ParsedRecord)
        ] == contents


@given(
    number=st.integers(1, 99_999),
    name=st.text(st.characters(codec="ascii", categories=["L"]), min_size=1, max_size=9),
    day=st.dates(date(1970, 1, 1), date(2100, 1, 1)),
    status=st.sampled_from(sorted(STATUSES)),
    style=st.sampled_from(sorted(STYLES)),
)
def test_a_record_in_any_style_comes_back(number: int, name: str, day: date, status: str, style: str) -> None:
    title = f"Choose {name} for everything"
    (found,) = read(f"adr-{number:04}-x.md", STYLES[style](number, title, day, status).encode())
    assert isinstance(found, ParsedRecord)
    content = found.record.content
    assert (content.title, content.status) == (title, STATUSES[status])
    assert content.date == datetime(day.year, day.month, day.day, tzinfo=UTC)
    assert content.tags == (f"adr:{number}",)
