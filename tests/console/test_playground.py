"""The state of the playground in a link, its lines of actions, and the words that its editor completes."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from console.screens import playground
from tests.installations import ROOT


@pytest.mark.parametrize("text", ["", "é\n: {x}", "x" * 50_000])
def test_a_link_has_the_state(text: str) -> None:
    assert playground.read_state(playground.write_state(text, "actions")) == (text, "actions")


def test_an_invalid_link_or_one_that_would_fill_the_memory_has_none() -> None:
    bomb = base64.urlsafe_b64encode(zlib.compress(json.dumps(["x" * 10_000_000, ""]).encode(), 9)).decode()
    assert len(bomb) < playground.MAX_LINK * 2
    for text in ("", "%%%", "eJw", playground.write_state("a", "b")[:-12], bomb):
        assert playground.read_state(text) is None


def test_a_line_is_a_command_or_a_description_with_inputs() -> None:
    lines = '$ git push\n\nChange prices {"rows": 5, "category": "database"}\nUse {braces} as text'
    assert playground.parse_actions(lines) == [
        {"description": "git push", "command": "git push", "shell": "bash"},
        {"description": "Change prices", "context": {"rows": 5}, "category": "database"},
        {"description": "Use {braces} as text", "context": {}},
    ]


def test_the_editor_completes_the_keys_of_the_schema() -> None:
    schema = json.loads((ROOT / "guardrails" / "rulebook.schema.json").read_text())
    contents = yaml.safe_load(Path(playground.__file__).with_suffix(".yaml").read_text())
    keys = contents["keys"].keys()
    assert schema["properties"].keys() <= keys
    assert set(schema["properties"]["guardrails"]["items"]["properties"]) <= keys
    assert keys <= set(property_names(schema))


def property_names(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        for value in schema.values():
            yield from property_names(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from property_names(value)
