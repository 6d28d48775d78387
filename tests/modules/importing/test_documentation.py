"""What docs/importing.md says is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cstp_grpc.common.yaml_with_lines import PlainValue, YamlReader
from cstp_grpc.modules.importing import FieldMapping, ParsedRecord, load_mapping
from tests.modules.importing.folder import Folder, nygard

GUIDE = (Path(__file__).resolve().parents[3] / "docs" / "importing.md").read_text()
BLOCK = re.compile(r'^```\w+ title="(?P<title>[^"]+)"\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL)
STATUS_ROW = re.compile(r"^\| (?P<words>[a-z][^|]*) \| (?P<status>\w+) \| ?(?P<outcome>\w*) ?\|$", re.MULTILINE)
RESULT, MAPPING = "result", "mapping.yaml"


def examples() -> list[tuple[dict[str, str], str]]:
    """Return the files of each example with its result."""
    found: list[tuple[dict[str, str], str]] = []
    files: dict[str, str] = {}
    for block in BLOCK.finditer(GUIDE):
        if block["title"] == RESULT:
            found.append((files, block["text"]))
            files = {}
        else:
            files[block["title"]] = block["text"]
    assert not files, "an example has no result"
    return found


def told(parsed: ParsedRecord, names: set[str], base: str) -> dict[str, PlainValue]:
    """Return the fields of a record that the guide states."""
    content, links = parsed.record.content, parsed.record.links
    facts: dict[str, PlainValue] = {
        "source": parsed.record.source,
        "date": content.date.date().isoformat() if content.date else None,
        "date_from": parsed.date_from.value,
        "reasons": [reason.type for reason in content.reasons],
        "tags": list(content.tags),
        **{name: getattr(content, name) for name in ("title", "context", "category", "project", "notes")},
        **{name: value and str(value) for name in ("status", "outcome") for value in [getattr(content, name)]},
        **{name: list(getattr(links, name)) for name in ("supersedes", "superseded_by", "depends_on", "relates_to")},
    }
    return {name: relative(facts[name], base) for name in names}


def relative(value: PlainValue, base: str) -> PlainValue:
    if isinstance(value, list):
        return [relative(item, base) for item in value]
    return value.removeprefix(base) if isinstance(value, str) else value


@pytest.mark.parametrize("number", range(3))
def test_an_example_gives_what_the_guide_says(folder: Folder, number: int) -> None:
    files, result = examples()[number]
    mapping: FieldMapping | None = None
    (folder.path / "shop" / ".git").mkdir(parents=True)
    for name, text in files.items():
        if name == MAPPING:
            mapping = load_mapping(folder.write(f"../{name}", text))
        else:
            folder.write(name, text)
    found = folder.read(mapping=mapping)
    assert [type(each) for each in found] == [ParsedRecord] * len(found)
    (document,) = YamlReader().read(result)
    expected = document.plain
    assert isinstance(expected, list)
    base = f"{folder.path.resolve().as_posix()}/"
    for each, facts in zip(found, expected, strict=True):
        assert isinstance(each, ParsedRecord)
        assert isinstance(facts, dict)
        assert told(each, set(facts), base) == facts


def test_every_example_is_tried() -> None:
    assert len(examples()) == 3


@pytest.mark.parametrize(
    ("word", "status", "outcome"),
    [
        (word.strip().removesuffix(" …"), row["status"], row["outcome"])
        for row in STATUS_ROW.finditer(GUIDE)
        for word in row["words"].split(",")
        if row["words"] != "status"
    ],
)
def test_a_status_means_what_the_table_says(folder: Folder, word: str, status: str, outcome: str) -> None:
    content = folder.content(nygard(status=word))
    assert (content.status, content.outcome or "") == (status, outcome)


@pytest.mark.parametrize("ending", [".md", ".markdown", ".yaml", ".yml", ".jsonl", ".ndjson"])
def test_every_ending_is_in_the_guide(ending: str) -> None:
    assert f"`{ending}`" in GUIDE
