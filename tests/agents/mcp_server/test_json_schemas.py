"""The schemas of tools: valid, in agreement with the contract, and no wider than the codec."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import jsonschema
import mcp_types
import protovalidate
import pytest
from google.protobuf.descriptor_pb2 import MethodOptions
from google.protobuf.descriptor_pool import Default
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.agents.mcp_server.tool_calls import answered_call_result
from cstp_grpc.agents.mcp_server.tools import TOOLS, TOOLS_BY_NAME, ContractTool
from cstp_grpc.contract.json_codec import from_json, to_json
from cstp_grpc.contract.json_values import MAX_NESTING
from tests.hostile_texts import fill

BETWEEN_FIELDS = {"filters.confidence_range", "filters.date_range", "links.not_summarizes", "thought.target"}
"""The rules of the contract that hold between fields, which JSON Schema cannot express."""
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
assert MAX_NESTING > 6
by_tool = pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)


def values_of(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Return the values that a schema of a request accepts, at the ends of its bounds too."""
    match schema:
        case {"enum": words}:
            return st.sampled_from(words)
        case {"format": "date-time"}:
            instants = st.datetimes(
                min_value=datetime(1, 1, 1), max_value=datetime(9999, 12, 31), timezones=st.just(UTC)
            )
            return instants.map(lambda instant: instant.isoformat().rjust(len("0001-01-01T00:00:00+00:00"), "0"))
        case {"type": "string"}:
            return texts_of(schema)
        case {"type": "boolean"}:
            return st.booleans()
        case {"type": "integer"}:
            return st.integers(schema["minimum"], schema["maximum"])
        case {"type": "number"}:
            return st.floats(schema.get("minimum"), schema.get("maximum"), allow_nan=False, allow_infinity=False)
        case {"type": "array", "items": items}:
            most = min(3, schema.get("maxItems", 3))
            return st.lists(values_of(items), min_size=schema.get("minItems", 0), max_size=most, unique_by=json.dumps)
        case {"type": "object", "properties": properties}:
            required = schema.get("required", [])
            return st.fixed_dictionaries(
                {name: values_of(properties[name]) for name in required},
                optional={name: values_of(each) for name, each in properties.items() if name not in required},
            )
        case {"type": "object"}:
            return st.dictionaries(st.text(max_size=8), JSON_VALUES, max_size=3)
    raise AssertionError(f"no values are made for {schema}")


def texts_of(schema: dict[str, Any]) -> st.SearchStrategy[str]:
    """Return texts of a schema: of its pattern, and at the ends of its lengths."""
    least, most = schema.get("minLength", 0), schema.get("maxLength", 200)
    if schema.get("pattern", "").startswith("^"):
        return st.from_regex(schema["pattern"].replace("$", r"\Z"))
    texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=least, max_size=min(most, 20))
    longest = st.just("é" * most)
    return (texts | longest).filter(lambda text: jsonschema.Draft202012Validator(schema).is_valid(text))


@by_tool
@given(data=st.data())
def test_what_the_schema_accepts_the_contract_accepts(tool: ContractTool, data: st.DataObject) -> None:
    arguments = data.draw(values_of(tool.input_schema))
    jsonschema.Draft202012Validator(tool.input_schema).validate(arguments)
    request = tool.parse_arguments(arguments)
    violations = protovalidate.collect_violations(request)
    assert {each.proto.rule_id for each in violations} <= BETWEEN_FIELDS


@pytest.mark.parametrize(
    "tool", [tool for tool in TOOLS if "required" in tool.input_schema], ids=lambda tool: tool.name
)
@given(data=st.data())
def test_what_is_required_is_required_by_the_contract(tool: ContractTool, data: st.DataObject) -> None:
    arguments = data.draw(values_of(tool.input_schema))
    name = data.draw(st.sampled_from(tool.input_schema["required"]))
    del arguments[name]
    violations = protovalidate.collect_violations(tool.parse_arguments(arguments))
    paths = [each.proto.field.elements for each in violations if each.proto.field is not None]
    assert name in {path[-1].field_name for path in paths}


@by_tool
def test_the_schemas_are_schemas(tool: ContractTool) -> None:
    listed = mcp_types.Tool.model_validate(tool.to_json())
    for schema in (listed.input_schema, listed.output_schema):
        jsonschema.Draft202012Validator.check_schema(schema)
    undescribed = [name for name, each in listed.input_schema["properties"].items() if not each.get("description")]
    assert not undescribed


@by_tool
@pytest.mark.parametrize("text", ["", "x"], ids=["empty", "full"])
def test_structured_content_has_its_schema_and_begins_with_the_text(tool: ContractTool, text: str) -> None:
    empty = tool.method.response()
    response = to_json(fill(empty, text) if text else empty)
    content = tool.structure(response, response, "ALLOWED")
    validator = jsonschema.Draft202012Validator(tool.output_schema)
    validator.validate(content)
    assert next(value for name, value in content.items() if name != "verdict") == "ALLOWED"
    assert set(tool.members) <= set(content) or not text
    assert not validator.is_valid(content | {"text": 1})


def test_the_structured_content_of_a_large_verdict_is_small() -> None:
    inputs = [{"name": "x", "type": "bool"}, {"name": "y", "type": "bool"}]
    rules = [{"guardrailId": f"rule-{number}", "message": "m" * 400, "missingInputs": inputs} for number in range(200)]
    response = from_json({"violations": [*rules, *rules]}, TOOLS_BY_NAME["check_action"].method.response)
    content = answered_call_result(TOOLS_BY_NAME["check_action"], to_json(response)).structured_content
    assert list(content)[:3] == ["verdict", "text", "allowed"]
    assert (content["verdict"], content["allowed"]) == ("blocked", False)
    assert content["violatedRules"] == [f"rule-{number}" for number in range(50)]
    assert content["missingInputs"] == ["x", "y"]


@by_tool
def test_a_tool_that_says_it_changes_nothing_calls_what_changes_nothing(tool: ContractTool) -> None:
    rpc = Default().FindMethodByName(f"{tool.method.service}.{tool.method.rpc}")
    # A check is recorded in the audit trail, as every call is, and nowhere else.
    expected = rpc.GetOptions().idempotency_level == MethodOptions.NO_SIDE_EFFECTS or tool.name == "check_action"
    assert tool.read_only == expected
