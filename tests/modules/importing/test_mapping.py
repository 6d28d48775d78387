"""Records of another make, by a mapping."""

from __future__ import annotations

import json

import pytest

from cstp_grpc.common.yaml_with_lines import PlainValue
from cstp_grpc.contract.enums import DecisionStatus, Outcome, Visibility
from cstp_grpc.core.decisions.model import DecisionContent
from cstp_grpc.modules.importing import DateOrigin, MappingError, ParsedRecord, SkippedRecord, load_mapping
from tests.modules.importing.folder import Folder

RECORD: dict[str, PlainValue] = {"number": 634, "name": "Pattern matching", "state": "Final"}


def mapped(folder: Folder, mapping: str, *records: dict[str, PlainValue]) -> list[ParsedRecord | SkippedRecord]:
    folder.write("a.jsonl", "\n".join(map(json.dumps, records or [RECORD])))
    return folder.read("a.jsonl", mapping=folder.mapping(mapping))


def content(folder: Folder, mapping: str, *records: dict[str, PlainValue]) -> DecisionContent:
    (result,) = mapped(folder, mapping, *records)
    assert isinstance(result, ParsedRecord), result
    return result.record.content


def test_fields_are_taken_from_paths_and_templates(folder: Folder) -> None:
    mapping = """\
fields:
  id: number
  title: "PEP {number}: {name}"
  context: "{{{meta.by.0.name}}} {dotted.key}"
  date: meta.created
  tags: [state, meta.topics]
constants: {category: language, visibility: shared}
links: {dependsOn: meta.needs, superseded_by: [meta.after, meta.later]}
"""
    meta: PlainValue = {
        "by": [{"name": "Ann"}],
        "created": "12-Sep-2020",
        "topics": ["syntax", None],
        "needs": "484, 526",
        "later": [700],
    }
    (result,) = mapped(folder, mapping, {**RECORD, "meta": meta, "dotted.key": 1})
    assert isinstance(result, ParsedRecord)
    assert result.record.source.endswith("a.jsonl#634")
    assert result.record.content.title == "PEP 634: Pattern matching"
    assert result.record.content.context == "{Ann} 1"
    assert result.record.content.tags == ("Final", "syntax")
    assert (result.record.content.category, result.record.content.visibility) == ("language", Visibility.SHARED)
    assert result.date_from is DateOrigin.FIELD
    assert [source.rpartition("#")[2] for source in result.record.links.depends_on] == ["484", "526"]
    assert [source.rpartition("#")[2] for source in result.record.links.superseded_by] == ["700"]


def test_texts_of_several_places_are_joined(folder: Folder) -> None:
    found = content(folder, "fields: {title: name, context: [a, b, c]}", {**RECORD, "a": "One.", "b": "", "c": "Two."})
    assert found.context == "One.\n\nTwo."


def test_a_template_with_a_path_that_leads_nowhere_gives_no_value(folder: Folder) -> None:
    found = content(folder, 'fields: {title: name, context: "{state} of {nowhere}", notes: "{state} {name}"}')
    assert found.context is None
    assert found.notes == "Final Pattern matching"


STATES = """\
fields: {title: name, status: state, outcome: state}
values:
  status: {Final: decided, 7: proposed, true: decided}
  outcome: {Final: success, 7: null, true: null}
"""


@pytest.mark.parametrize(
    ("state", "status", "outcome"),
    [
        ("Final", DecisionStatus.DECIDED, Outcome.SUCCESS),
        (7, DecisionStatus.PROPOSED, None),
        (True, DecisionStatus.DECIDED, None),
        (None, None, None),
        ("", None, None),
    ],
)
def test_values_are_translated(
    folder: Folder, state: PlainValue, status: DecisionStatus | None, outcome: Outcome | None
) -> None:
    found = content(folder, STATES, {**RECORD, "state": state})
    assert (found.status, found.outcome) == (status, outcome)


def test_a_word_that_is_ours_needs_no_translation(folder: Folder) -> None:
    mapping = "fields: {title: name, status: state}\nvalues: {status: {Final: decided}}"
    assert content(folder, mapping, {**RECORD, "state": "Superseded"}).status is DecisionStatus.SUPERSEDED


@pytest.mark.parametrize(
    ("mapping", "reason"),
    [
        (STATES, "status: 'Odd' is none of 'Final', '7', 'true', and the mapping has no default"),
        (
            "fields: {title: name, status: state}",
            "status: 'Odd' is none of proposed, decided, reviewed, superseded, and the mapping has no default",
        ),
    ],
)
def test_an_unknown_word_is_an_error_of_its_record(folder: Folder, mapping: str, reason: str) -> None:
    good, bad = mapped(folder, mapping, {**RECORD, "state": "proposed"}, {**RECORD, "state": "Odd"})
    assert isinstance(good, ParsedRecord | SkippedRecord)
    assert isinstance(bad, SkippedRecord)
    assert (bad.reason, bad.line, bad.error) == (reason, 2, True)


def test_a_default_stands_for_what_is_unknown_and_says_so_and_for_what_is_absent(folder: Folder) -> None:
    mapping = STATES + "defaults: {status: proposed, outcome: null}\n"
    odd, absent, left_out = mapped(folder, mapping, {**RECORD, "state": "Odd"}, {"name": "A"}, {**RECORD, "state": 7})
    assert isinstance(odd, ParsedRecord)
    assert isinstance(absent, ParsedRecord)
    assert isinstance(left_out, ParsedRecord)
    assert odd.record.content.status is DecisionStatus.PROPOSED
    assert odd.notes == (
        "status: 'Odd' is unknown to the mapping; its default is taken",
        "outcome: 'Odd' is unknown to the mapping; its default is taken",
    )
    assert absent.record.content.status is DecisionStatus.PROPOSED
    assert absent.notes == ()
    assert left_out.record.content.outcome is None


def test_values_of_free_fields_are_translated_where_they_are_known(folder: Folder) -> None:
    mapping = """\
fields: {title: name, confidence: sure, tags: labels}
values: {confidence: {very: 0.9}, tags: {py: python, x: null}}
"""
    found = content(folder, mapping, {**RECORD, "sure": "very", "labels": ["py", "x", "other"]})
    assert (found.confidence, found.tags) == (0.9, ("python", "other"))
    assert content(folder, mapping, {**RECORD, "sure": 0.25}).confidence == 0.25


def test_yaml_is_mapped_too_and_markdown_is_not(folder: Folder) -> None:
    folder.write("a.yaml", "name: A\nstate: x\n---\nname: B\n")
    folder.write("0001-b.md", "# B\n\n## Status\n\nAccepted\n")
    results = folder.read(mapping=folder.mapping("fields: {title: name}"))
    assert [found.record.content.title for found in results if isinstance(found, ParsedRecord)] == ["B", "A", "B"]


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("- title", ["1: it must be one mapping with the keys fields, values, defaults, constants, links"]),
        ("fields: {title: [\n", ["2: broken YAML: "]),
        ("fields:\n  titel: name", ["1: fields.title: it is missing", "2: fields.titel: there is no such field"]),
        ("fields:\n  title: name\nextra: 1", ["3: extra: there is no such key"]),
        ("fields: name", ["1: fields: it must be a mapping", "1: fields.title: it is missing"]),
        ("fields:\n  title: [a, b]", ["2: fields.title: it can be taken from one place only"]),
        ("fields:\n  title: {a: b}", ["1: fields.title: it is missing", "2: fields.title: it must be a path such as"]),
        ("fields:\n  title: '{a'", ["1: fields.title: it is missing", "2: fields.title: '{' has no partner"]),
        (
            "fields:\n  title: '{}'",
            ["1: fields.title: it is missing", "2: fields.title: '{}' has no partner or no path"],
        ),
        (
            "fields: {title: a}\nvalues:\n  status: {x: done}",
            ["3: values.status: it is not in `fields`", "3: values.status.x: 'done' is none of"],
        ),
        ("fields: {title: a, status: b}\nvalues:\n  status: x", ["3: values.status: it must be a mapping of values"]),
        ("fields: {title: a}\ndefaults:\n  stakes: low", ["3: defaults.stakes: it is not in `fields`"]),
        ("fields: {title: a}\nconstants:\n  confidence: 2", ["3: constants.confidence: 2 is not from 0 to 1"]),
        ("fields: {title: a}\nconstants:\n  title: b", ["3: constants.title: it is in `fields` too"]),
        (
            "fields: {title: a}\nlinks:\n  blocks: b",
            ["3: links.blocks: there is no such field; possible are supersedes"],
        ),
    ],
)
def test_a_mapping_that_cannot_be_used_names_file_line_and_key(folder: Folder, text: str, problems: list[str]) -> None:
    path = folder.write("mapping.yaml", text)
    with pytest.raises(MappingError) as error:
        load_mapping(path)
    lines = str(error.value).splitlines()
    assert len(lines) == len(problems)
    for line, problem in zip(lines, problems, strict=True):
        assert line.startswith(f"{path}:{problem}")


def test_a_mapping_that_is_not_there_names_its_path(folder: Folder) -> None:
    with pytest.raises(MappingError, match=r"missing\.yaml: it cannot be read"):
        load_mapping(folder.path / "missing.yaml")
