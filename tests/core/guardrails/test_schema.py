"""The JSON Schema of rulebooks, beside the parser."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cstp_grpc.core.guardrails.parsing import parse_rulebook
from cstp_grpc.core.guardrails.rulebook import load_rule_set
from cstp_grpc.core.guardrails.rulebook_schema import build_rulebook_schema
from cstp_grpc.core.guardrails.yaml_document import read_document
from tests.example_counts import examples
from tests.named_case import named_case
from tests.snippets import DOCUMENTS, ROOT, read_snippets

SCHEMA = build_rulebook_schema()
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)
PACKAGED = [*sorted((ROOT / "guardrails").glob("*.yaml")), ROOT / "cstp_grpc" / "cli" / "examples" / "rulebook.yaml"]
CASES = sorted((ROOT / "tests" / "cases" / "rulebooks").glob("*.yaml"))


def plain(content: bytes) -> Any:
    """Return a rulebook as JSON, as the parser reads it."""
    problems: list[object] = []
    node = read_document(content, lambda *problem: problems.append(problem))
    assert node is not None, problems
    assert not problems
    return node.plain


def schema_problems(document: object) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(document)]


DOCUMENTED = [
    snippet
    for document in DOCUMENTS
    for snippet in read_snippets(document)
    if snippet.language == "yaml" and "apiVersion: cstp.guardrails" in snippet.text
]


def test_the_schema_is_one_and_what_is_shipped_is_fresh() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    assert json.loads((ROOT / "guardrails" / "rulebook.schema.json").read_text()) == SCHEMA, "run `make docs`"


def test_packaged_rulebooks_are_valid() -> None:
    for path in [*PACKAGED, *CASES]:
        with named_case(path):
            assert schema_problems(plain(path.read_bytes())) == []


def test_documented_rulebooks_are_valid() -> None:
    for snippet in DOCUMENTED:
        with named_case(snippet):
            assert schema_problems(plain(snippet.text.encode())) == []


WHOLE: dict[str, Any] = {
    "apiVersion": "cstp.guardrails/v1",
    "metadata": {"name": "whole", "version": "1", "owner": "team"},
    "parameters": {"most": {"type": "number", "default": 5, "description": "the most"}},
    "inputs": {
        "rows": {"type": "number", "default": 0, "description": "how many"},
        "place": {"type": "string", "values": ["here", "there"], "required": True},
    },
    "guardrails": [
        {
            "id": "many-rows",
            "name": "Many Rows",
            "match": {"stakes": ["high"], "category": "database", "agent": ["ci"], "project": "shop"},
            "when": "context.rows > parameters.most",
            "scope": {"agents": "ci", "projects": ["shop"]},
            "severity": "approve",
            "enforcement": "dryrun",
            "expires": "2030-01-01",
            "owner": "data",
            "tags": ["database"],
            "approvers": ["ann"],
            "message": "too many",
            "suggestion": "fewer",
            "description": "rows",
        },
        {"id": "place", "name": "Place", "when": "context.place == 'here'", "severity": "warn", "message": "here"},
    ],
    "tests": [
        {
            "name": "many",
            "action": {
                "description": "fix prices",
                "category": "database",
                "stakes": "high",
                "confidence": 0.5,
                "context": {"rows": 9, "place": "there"},
                "code": {
                    "paths": ["a"],
                    "boundaries": {"never": ["x"], "ask_first": [], "always": []},
                    "checks": ["c"],
                },
                "related_intents": ["10m"],
                "project": "shop",
                "agent": "ci",
                "permissions": ["check"],
                "now": "2026-03-01T00:00:00Z",
                "announced_context": "more",
                "history": [{"outcome": "failure", "ago": "2h", "category": "x"}],
            },
            "expect": ["many-rows"],
            "expect_errors": [],
            "expect_allowed": True,
            "expect_approval": False,
        }
    ],
}


def parser_problems(document: object) -> list[str]:
    return [problem.reason for problem in parse_rulebook("whole.yaml", json.dumps(document).encode()).problems]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value in a document."""
    yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(item, (*path, key))


def test_a_rulebook_with_every_key_is_accepted_by_both() -> None:
    assert parser_problems(WHOLE) == []
    assert schema_problems(WHOLE) == []


FREE = {("inputs", "rows", "default"), ("parameters", "most", "default")}
"""Where anything may stand; what is within contexts is left out, too."""
PLACES = [path for path in places(WHOLE) if path and path not in FREE and "context" not in path[:-1]]


def changed(path: tuple[Any, ...], value: object = None, *, removed: bool = False) -> Any:
    document = copy.deepcopy(WHOLE)
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    if removed:
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    return document


@settings(deadline=None, max_examples=examples(1000))
@given(
    st.sampled_from(PLACES), st.sampled_from([5, True, "", "  ", "no such word", "a b", [], {}, [5], {"x": 1}, [""]])
)
def test_whatever_the_schema_refuses_the_parser_refuses(path: tuple[Any, ...], value: object) -> None:
    document = changed(path, value)
    if schema_problems(document):
        assert parser_problems(document), (path, value)


@settings(deadline=None, max_examples=examples(500))
@given(st.sampled_from(PLACES), st.sampled_from([5, True, "", "  ", {"x": 1}, [5]]))
def test_the_schema_refuses_what_the_parser_refuses_for_its_form(path: tuple[Any, ...], value: object) -> None:
    document = changed(path, value)
    forms = ("must be a ", "is missing", "is blank", "unknown key", "must be one of", "must contain strings")
    refused = [reason for reason in parser_problems(document) if any(form in reason for form in forms)]
    # Problems with values that depend on types or on other places are the parser's alone.
    refused = [reason for reason in refused if "the default" not in reason and "the value" not in reason]
    if refused:
        assert schema_problems(document), (path, value, refused)


def test_a_key_that_is_left_out_is_missed_by_both_or_by_none() -> None:
    for path in [path for path in PLACES if not isinstance(path[-1], int)]:
        with named_case(path):
            document = changed(path, removed=True)
            missed = [reason for reason in parser_problems(document) if "is missing" in reason]
            assert bool(missed) == bool(schema_problems(document)), (missed, schema_problems(document))


@pytest.mark.parametrize("path", [(), ("metadata",), ("inputs", "rows"), ("guardrails", 0), ("tests", 0, "action")])
def test_keys_that_nobody_knows_are_refused_by_both(path: tuple[Any, ...]) -> None:
    document = changed((*path, "sevrity"), "x")
    assert any("unknown key" in reason for reason in parser_problems(document))
    assert schema_problems(document)


def test_a_line_for_editors_changes_nothing(tmp_path: Path) -> None:
    text = yaml.safe_dump(WHOLE)
    path = tmp_path / "rules.yaml"
    path.write_text(f"# yaml-language-server: $schema=rulebook.schema.json\n# $schema: rulebook.schema.json\n{text}")
    assert [rule.id for rule in load_rule_set(path).guardrails] == ["many-rows", "place"]
