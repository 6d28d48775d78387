"""JSON Schema (2020-12) of the contract's messages, from their descriptors, validation rules and comments.

The JSON codec accepts every value that the schema of a request accepts. Rules across fields are checked by the server,
since JSON Schema cannot express them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final, cast

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from cstp_grpc.contract.json_values import MAX_NESTING
from cstp_grpc.gen.buf.validate import validate_pb2
from cstp_grpc.gen.field_comments import FIELD_COMMENTS

JsonSchema = dict[str, Any]

TIMESTAMP_PATTERN: Final = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"
)
FREE_FORM_SCHEMAS: Final[Mapping[str, JsonSchema]] = {
    "google.protobuf.Struct": {"type": "object"},
    "google.protobuf.ListValue": {"type": "array"},
    "google.protobuf.Value": {},
}
FREE_FORM_NOTE: Final = f"At most {MAX_NESTING} levels deep."
MAX_MEMBERS: Final = 50
"""Maximum number of items in a list of structured content. Chosen: the limit of a search."""
CEL_MATCH: Final = re.compile(r"(!?)this\.matches\('((?:[^'\\]|\\.)*)'\)")
"""A term of the CEL expressions of text fields: a regular expression, possibly negated."""

INTEGER_SCHEMAS: Final[Mapping[int, JsonSchema]] = {
    FieldDescriptor.TYPE_INT32: {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1},
    FieldDescriptor.TYPE_UINT32: {"type": "integer", "minimum": 0, "maximum": 2**32 - 1},
    # Decimal text, as in ProtoJSON.
    FieldDescriptor.TYPE_INT64: {"type": "string", "pattern": "^-?[0-9]{1,18}$"},
    FieldDescriptor.TYPE_UINT64: {"type": "string", "pattern": "^[0-9]{1,19}$"},
}
SCALAR_SCHEMAS: Final[Mapping[int, JsonSchema]] = {
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_BYTES: {"type": "string", "contentEncoding": "base64"},
    FieldDescriptor.TYPE_DOUBLE: {"type": "number"},
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    **INTEGER_SCHEMAS,
}


def request_schema(message: Descriptor, *, lifted: str | None = None, omitted: Collection[str] = ()) -> JsonSchema:
    """Return the schema of a request as one object.

    The fields of the message in the field `lifted` join the other fields; fields in `omitted`, by their JSON names, are
    left out. The schema has no references, since some model APIs do not accept them. Raises ValueError if two fields
    have the same name, and TypeError for rules that JSON Schema cannot express.
    """
    fields = [field for field in message.fields if field.name != lifted]
    if lifted is not None:
        fields = [*nested_message(message.fields_by_name[lifted]).fields, *fields]
    wanted = [field for field in fields if field.json_name not in omitted]
    if len({field.json_name for field in wanted}) != len(wanted):
        raise ValueError(f"fields of {message.full_name} and of its {lifted} have the same name")
    return request_object(wanted)


def request_object(fields: Collection[FieldDescriptor]) -> JsonSchema:
    """Return the schema of an object with these fields and no others."""
    schema: JsonSchema = {
        "type": "object",
        "properties": {field.json_name: describe_field(field, request_field(field)) for field in fields},
        "additionalProperties": False,
    }
    if required := [field.json_name for field in fields if is_required(field)]:
        schema["required"] = required
    return schema


def request_field(field: FieldDescriptor) -> JsonSchema:
    rules = field_rules(field)
    if not field.is_repeated:
        return request_value(field, rules)
    if is_map(field):
        return {"type": "object", "additionalProperties": request_value(map_value(field), rules.map.values)}
    schema: JsonSchema = {"type": "array", "items": request_value(field, rules.repeated.items)}
    if rules.repeated.HasField("min_items"):
        schema["minItems"] = rules.repeated.min_items
    if rules.repeated.HasField("max_items"):
        schema["maxItems"] = rules.repeated.max_items
    return schema | ({"uniqueItems": True} if rules.repeated.unique else {})


def request_value(field: FieldDescriptor, rules: validate_pb2.FieldRules) -> JsonSchema:
    """Return the schema of a single value of a field, under its rules."""
    if field.enum_type is not None:
        return {"type": "string", "enum": list(enum_words(field.enum_type))}
    if field.message_type is not None:
        message = field.message_type
        return well_known_schema(message) or request_object(message.fields)
    schema = {**scalar_schema(field)}
    if field.type == FieldDescriptor.TYPE_STRING:
        schema |= text_bounds(rules)
    elif rules.WhichOneof("type") in ("int32", "uint32", "double"):
        numbers = getattr(rules, cast(str, rules.WhichOneof("type")))
        bounds = {"gte": "minimum", "lte": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}
        schema |= {word: getattr(numbers, name) for name, word in bounds.items() if numbers.HasField(name)}
    return schema


def text_bounds(rules: validate_pb2.FieldRules) -> JsonSchema:
    bounds: JsonSchema = {}
    if rules.string.HasField("min_len"):
        bounds["minLength"] = rules.string.min_len
    if rules.string.HasField("max_len"):
        bounds["maxLength"] = rules.string.max_len
    patterns = [{"pattern": rules.string.pattern}] if rules.string.HasField("pattern") else []
    patterns += [pattern for rule in rules.cel for pattern in cel_patterns(rule.expression)]
    if len(patterns) == 1:
        return bounds | patterns[0]
    return bounds | ({"allOf": patterns} if patterns else {})


def cel_patterns(expression: str) -> list[JsonSchema]:
    """Return the schemas for a conjunction of regular expressions in CEL. Raises TypeError for any other expression."""
    schemas: list[JsonSchema] = []
    for term in expression.split(" && "):
        match = CEL_MATCH.fullmatch(term)
        if match is None:
            raise TypeError(f"JSON Schema cannot say {expression}")
        # CEL text doubles the backslashes of a regular expression.
        pattern: JsonSchema = {"pattern": match[2].replace("\\\\", "\\")}
        schemas.append({"not": pattern} if match[1] else pattern)
    return schemas


def is_required(field: FieldDescriptor) -> bool:
    """Return whether a request must have a field: the rules require it, or refuse its default value."""
    rules = field_rules(field)
    if rules.required:
        return True
    if field.has_presence:
        return False
    if field.is_repeated:
        return rules.repeated.min_items > 0
    if field.type == FieldDescriptor.TYPE_STRING:
        # No text of the contract with a pattern may be empty.
        return rules.string.min_len > 0 or bool(rules.cel)
    return field.enum_type is not None and 0 in rules.enum.not_in


def member_schema(message: Descriptor, path: str) -> JsonSchema:
    """Return the schema of the values at a path in a response, such as `violations.guardrailId`."""
    *outer, last = path.split(".")
    repeated = False
    for name in outer:
        field = message.fields_by_camelcase_name[name]
        repeated, message = repeated or field.is_repeated, nested_message(field)
    field = message.fields_by_camelcase_name[last]
    schema: JsonSchema = describe_field(field, {"type": scalar_schema(field)["type"]})
    return {"type": "array", "items": schema, "maxItems": MAX_MEMBERS} if repeated else schema


def well_known_schema(message: Descriptor) -> JsonSchema | None:
    """Return the schema of a well-known type of protobuf, or None for other messages."""
    if message.full_name == "google.protobuf.Timestamp":
        return {"type": "string", "format": "date-time", "pattern": TIMESTAMP_PATTERN}
    if message.full_name in FREE_FORM_SCHEMAS:
        return {**FREE_FORM_SCHEMAS[message.full_name], "description": FREE_FORM_NOTE}
    if message.full_name.startswith("google.protobuf."):
        raise TypeError(f"{message.full_name} has no schema here")
    return None


def describe_field(field: FieldDescriptor, schema: JsonSchema) -> JsonSchema:
    comment = FIELD_COMMENTS.get(field.full_name, "")
    if field.enum_type is not None:
        words = enum_words(field.enum_type)
        comment += " " + " ".join(f"{word}: {meaning}" for word, meaning in words.items())
    return schema | {"description": comment.strip()} if comment else schema


def enum_words(enum: EnumDescriptor) -> dict[str, str]:
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return {
        value.name.removeprefix(prefix).lower(): FIELD_COMMENTS.get(f"{enum.full_name}.{value.name}", "")
        for value in enum.values
        if value.number
    }


def scalar_schema(field: FieldDescriptor) -> JsonSchema:
    """Return the schema of a scalar type. Raises TypeError for a type that the contract does not use."""
    schema = SCALAR_SCHEMAS.get(field.type)
    if schema is None:
        raise TypeError(f"{field.full_name} has a type without a schema")
    return schema


def field_rules(field: FieldDescriptor) -> validate_pb2.FieldRules:
    return field.GetOptions().Extensions[validate_pb2.field]


def nested_message(field: FieldDescriptor) -> Descriptor:
    """Return the message type of a field. Raises TypeError for a scalar."""
    if field.message_type is None:
        raise TypeError(f"{field.full_name} is no message")
    return field.message_type


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def map_value(field: FieldDescriptor) -> FieldDescriptor:
    return nested_message(field).fields_by_name["value"]
