"""Check the required fields of A2A requests, and parse messages.

A message is a method call, or an intent announcement, which may refine an earlier one. This module checks the fields
that only A2A defines, and names them by their paths in the message; the gRPC server checks lengths and params.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from a2a.types.a2a_pb2 import Message, Part, Role, Task
from a2a.utils.errors import ContentTypeNotSupportedError, InvalidParamsError
from google.api import field_behavior_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message as ProtobufMessage
from google.protobuf.struct_pb2 import Struct, Value

from bridge.a2a.call_context import EXTENSION_URI
from bridge.a2a.errors import violations_error
from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.contract.errors import FieldViolation
from cstp_grpc.contract.json_codec import PROTO_JSON, too_many_items
from cstp_grpc.contract.json_scalars import MAX_VIOLATIONS, printable_key
from cstp_grpc.contract.json_values import MAX_NESTING, render_struct, render_value
from cstp_grpc.contract.methods import is_contract_method, method_by_name

TEXT_PLAIN: Final = "text/plain"
APPLICATION_JSON: Final = "application/json"
MEDIA_TYPES: Final = (TEXT_PLAIN, APPLICATION_JSON)
"""The media types of accepted parts and of results."""
MEDIA_TYPE_ALIASES: Final = {"text": TEXT_PLAIN}
"""Names of media types that clients of A2A before 1.0 may send."""


def normalize_media_type(media_type: str) -> str:
    """Return a media type in lower case and without parameters."""
    return media_type.partition(";")[0].strip().lower()


def select_output_types(accepted: Sequence[str]) -> frozenset[str]:
    """Return the supported media types that a caller accepts, or all if it names none.

    Ranges such as `text/*` are supported. Raises ContentTypeNotSupportedError if none matches.
    """
    if not accepted:
        return frozenset(MEDIA_TYPES)
    patterns = {MEDIA_TYPE_ALIASES.get(name, name) for name in map(normalize_media_type, accepted)}
    found = frozenset(item for item in MEDIA_TYPES if patterns & {item, f"{item.partition('/')[0]}/*", "*/*"})
    if not found:
        raise ContentTypeNotSupportedError(
            f"configuration.acceptedOutputModes: answers are {' and '.join(MEDIA_TYPES)}, not "
            f"{printable_key(', '.join(accepted))}"
        )
    return found


Params = dict[str, object]

ANNOUNCE_METHOD: Final = "cstp.announceIntent"
"""The method that a message with plain text calls."""
EXTENSION_PATH: Final = f'message.metadata["{EXTENSION_URI}"]'
MAX_CONTEXT_ID: Final = 200
MAX_NESTING_DEPTH: Final = MAX_NESTING + 2
"""Maximum nesting of a message's structures: free-form data, within the params, within the object of a call."""
MAX_REFERENCES: Final = 10
"""Maximum number of tasks that a message refers to. Chosen: each is read by a call of the server."""


@dataclass(frozen=True, slots=True)
class MethodCall:
    """A call of a method by its JSON-RPC name."""

    name: str
    params: Params


@dataclass(frozen=True, slots=True)
class IntentAnnouncement:
    """An intent to announce."""

    params: Params
    """The params of AnnounceIntent."""
    places: Mapping[str, str] = field(default_factory=dict)
    """The paths in the message of the params, by their names."""

    @property
    def name(self) -> str:
        return ANNOUNCE_METHOD


MessageRequest = MethodCall | IntentAnnouncement


@dataclass(frozen=True, slots=True)
class ParsedMessage:
    """The parsed content of a message."""

    text: str
    """Its text parts, without blank ones."""
    values: Params
    """The members of its data parts, which guardrails read."""
    value_places: tuple[str, ...]
    call: MethodCall | None
    announcement_params: Params
    """The params of an announcement that its metadata gives."""

    @property
    def has_values(self) -> bool:
        """Whether the message has values for guardrails, which can refine an announcement of the same context."""
        return bool(self.value_places)


def parse_message(message: Message) -> ParsedMessage:
    """Parse a message. Raises InvalidParamsError and ContentTypeNotSupportedError."""
    check_envelope(message)
    texts: list[str] = []
    data: list[tuple[str, Params]] = []
    for place, part in enumerate_parts(message):
        check_media_type(place, part)
        kind = part.WhichOneof("content")
        if kind == "text":
            texts += [part.text] if part.text.strip() else []
        elif kind == "data":
            data.append((f"{place}.data", read_object(part.data, f"{place}.data")))
        else:
            raise field_error(place, "must hold text or data")
    params = read_announcement_params(message.metadata)
    call = find_call(data, bool(texts), bool(params))
    # A later data part overwrites members of an earlier one, as the parts stand in the message.
    values = {} if call else {key: value for _, item in data for key, value in item.items()}
    return ParsedMessage("\n".join(texts), values, () if call else tuple(place for place, _ in data), call, params)


def build_request(content: ParsedMessage, earlier: Params | None = None) -> MessageRequest:
    """Return the request of a message; `earlier` are the params of the announcement that it refines.

    Raises InvalidParamsError if there is nothing to announce.
    """
    if content.call:
        return content.call
    if earlier is None and not content.text:
        raise field_error("message.parts", "must say in a text part what is intended, or hold a call in a data part")
    return build_announcement(content, earlier)


def build_announcement(content: ParsedMessage, earlier: Params | None) -> IntentAnnouncement:
    """Return the intent to announce, merged with the earlier one if there is one."""
    own = dict(content.announcement_params)
    context = own.pop("context", None)
    lines = [context] if isinstance(context, str) else []
    params = dict(earlier or {})
    # An announcement never takes over the correlation id of the one it refines, or it would be a revision of that.
    params.pop("correlationId", None)
    metadata, sources = merge_metadata(content, own.pop("metadata", None), context, params.get("metadata"))
    params |= own
    places = {printable_key(name): f"{EXTENSION_PATH}.{printable_key(name)}" for name in own}
    if metadata:
        params["metadata"] = metadata
        if len(sources) == 1:
            places["metadata"] = sources[0]
    if earlier is None:
        params["intent"] = content.text
        places["intent"] = "message.parts"
    elif content.text:
        lines.append(content.text)
    if lines:
        before = params.get("context")
        params["context"] = "\n".join([before, *lines] if isinstance(before, str) else lines)
        places["context"] = "message.parts" if earlier and content.text else f"{EXTENSION_PATH}.context"
    return IntentAnnouncement(params, places)


def merge_metadata(
    content: ParsedMessage, metadata: object, context: object, before: object
) -> tuple[Params, list[str]]:
    """Merge the metadata for guardrails, later values first, and return it with the paths it comes from."""
    layers = [
        (f"{EXTENSION_PATH}.metadata", metadata),
        (f"{EXTENSION_PATH}.context", context),
        *((place, content.values) for place in content.value_places),
    ]
    merged: Params = dict(before) if isinstance(before, dict) else {}
    sources = []
    for place, layer in layers:
        if isinstance(layer, dict):
            merged |= layer
            sources.append(place)
    return merged, sources


def announced_params(task: Task) -> Params | None:
    """Return the params of a task's announcement, or None if the task is not about one."""
    if EXTENSION_URI not in task.metadata.fields:
        return None
    # Checked as if it were foreign: a token holder can store a task without a bridge.
    kept = render_value(task.metadata.fields[EXTENSION_URI])
    params = kept.get("params") if isinstance(kept, dict) and kept.get("method") == ANNOUNCE_METHOD else None
    return params if isinstance(params, dict) else None


def check_envelope(message: Message) -> None:
    if message.role != Role.ROLE_USER:
        raise field_error("message.role", "must be ROLE_USER")
    if len(message.context_id) > MAX_CONTEXT_ID:
        raise field_error("message.contextId", f"must have at most {MAX_CONTEXT_ID} characters")
    if len(message.reference_task_ids) > MAX_REFERENCES:
        raise field_error("message.referenceTaskIds", f"must name at most {MAX_REFERENCES} tasks")
    # Checked although they are not used: the message is stored as it came, and must have a form in JSON.
    read_struct(message.metadata, "message.metadata")
    for place, part in enumerate_parts(message):
        read_struct(part.metadata, f"{place}.metadata")


def check_media_type(place: str, part: Part) -> None:
    """Raise ContentTypeNotSupportedError for files and for media types that the agent card does not declare."""
    expected = {"text": TEXT_PLAIN, "data": APPLICATION_JSON}.get(part.WhichOneof("content") or "")
    if part.WhichOneof("content") in ("raw", "url"):
        raise ContentTypeNotSupportedError(
            f"{place}: files are not taken; send text ({TEXT_PLAIN}) or data ({APPLICATION_JSON})"
        )
    if expected and part.media_type and normalize_media_type(part.media_type) != expected:
        raise ContentTypeNotSupportedError(
            f"{place}.mediaType: must be {expected}, not {printable_key(part.media_type)}"
        )


def read_announcement_params(metadata: Struct) -> Params:
    if EXTENSION_URI not in metadata.fields:
        return {}
    members = read_object(metadata.fields[EXTENSION_URI], EXTENSION_PATH)
    params = {key: value for key, value in members.items() if value is not None}
    if "intent" in params:
        raise field_error(f"{EXTENSION_PATH}.intent", "belongs into a text part")
    if not isinstance(params.get("context", ""), (str, dict)):
        raise field_error(f"{EXTENSION_PATH}.context", "must be text or an object")
    if not isinstance(params.get("metadata", {}), dict):
        raise field_error(f"{EXTENSION_PATH}.metadata", "must be an object")
    return params


def find_call(data: list[tuple[str, Params]], has_text: bool, has_params: bool) -> MethodCall | None:
    """Return the method call that a message holds, or None."""
    # Any other data part has values for guardrails.
    calls = [(place, item) for place, item in data if "method" in item]
    if not calls:
        return None
    place, item = calls[0]
    if len(data) > 1:
        other = next(name for name, _ in data if name != place)
        raise field_error(other, f"cannot be combined with the call in {place}: a message has one call, nothing else")
    if has_text:
        raise field_error("message.parts", f"cannot combine text with the call in {place}")
    if has_params:
        raise field_error(EXTENSION_PATH, f"is about announcing; the call in {place} has its own params")
    return parse_call(item, place)


def parse_call(item: Params, place: str) -> MethodCall:
    for key in item:
        if key not in ("method", "params"):
            raise field_error(f"{place}.{printable_key(key)}", "is not a member of a call: use method and params")
    name, params = item["method"], item.get("params")
    if not isinstance(name, str):
        raise field_error(f"{place}.method", "must be a string")
    if params is not None and not isinstance(params, dict):
        raise field_error(f"{place}.params", "must be an object")
    if is_contract_method(name) and method_by_name(name).secret_response:
        raise field_error(f"{place}.method", "answers with a secret, which the task would keep; call it without a task")
    return MethodCall(name, params or {})


def enumerate_parts(message: Message) -> Iterator[tuple[str, Part]]:
    for position, part in enumerate(message.parts):
        yield f"message.parts[{position}]", part


def read_object(value: Value, place: str) -> Params:
    """Return a value as an object. Raises InvalidParamsError if it is not one."""
    if value.WhichOneof("kind") != "struct_value":
        raise field_error(place, "must be an object")
    return read_struct(value.struct_value, place)


def read_struct(struct: Struct, place: str) -> dict[str, Any]:
    """Return a structure as JSON. Raises InvalidParamsError."""
    try:
        found = render_struct(struct)
    except ValueError:
        raise field_error(place, "must not hold NaN or Infinity, which are no JSON") from None
    if nesting_depth(found) > MAX_NESTING_DEPTH:
        raise field_error(place, f"is nested more than {MAX_NESTING_DEPTH} levels deep")
    return found


def nesting_depth(value: object) -> int:
    """Return the nesting depth of a JSON value, counting the outermost object or list."""
    # Level by level and not recursively: the depth is another party's choice, and Python's stack is limited.
    depth, level = 0, [value]
    while containers := [item for item in level if isinstance(item, (dict, list))]:
        depth += 1
        level = [item for each in containers for item in (each.values() if isinstance(each, dict) else each)]
    return depth


def field_error(place: str, description: str) -> InvalidParamsError:
    return violations_error([FieldViolation(place, description)])


MAX_ITEMS: Final = PROTO_JSON.max_items or 0
"""Maximum number of items of a list in a request, over every transport."""
TOO_MANY: Final = too_many_items(MAX_ITEMS)
WELL_KNOWN: Final = "google.protobuf."


@dataclass(frozen=True, slots=True)
class FieldRule:
    """The checks that apply to a field."""

    name: str
    is_required: bool
    is_list: bool
    has_presence: bool
    has_fields: bool
    """True if its values are messages with fields to check."""


def check_required_fields(message: ProtobufMessage) -> None:
    """Check that a request has its required fields and no endless lists. Raises InvalidParamsError.

    The SDK's own check also walks through free-form data, which takes seconds for a large message.
    """
    # The generator stops after the last violation that is reported, however many there are.
    found = list(islice(find_wrong_fields(message, ""), MAX_VIOLATIONS))
    if found:
        raise violations_error(found)


def find_wrong_fields(message: ProtobufMessage, prefix: str) -> Iterator[FieldViolation]:
    """Yield the paths of invalid fields with descriptions."""
    for rule in checked_fields(message.DESCRIPTOR):
        value, place = getattr(message, rule.name), f"{prefix}{rule.name}"
        is_given = message.HasField(rule.name) if rule.has_presence else bool(value)
        if not is_given:
            if rule.is_required:
                yield FieldViolation(place, "is required")
        elif not rule.is_list:
            if rule.has_fields:
                yield from find_wrong_fields(value, f"{place}.")
        elif len(value) > MAX_ITEMS:
            yield FieldViolation(place, TOO_MANY)
        elif rule.has_fields:
            for position, item in enumerate(value):
                yield from find_wrong_fields(item, f"{place}[{position}].")


@functools.cache
def checked_fields(kind: Descriptor) -> tuple[FieldRule, ...]:
    return tuple(
        field for field in map(build_field_rule, kind.fields) if field.is_required or field.is_list or field.has_fields
    )


def build_field_rule(field: FieldDescriptor) -> FieldRule:
    required = field_behavior_pb2.FieldBehavior.Value("REQUIRED")
    return FieldRule(
        name=field.name,
        is_required=required in field.GetOptions().Extensions[field_behavior_pb2.field_behavior],
        is_list=field.is_repeated,
        has_presence=field.has_presence,
        has_fields=field.message_type is not None and not field.message_type.full_name.startswith(WELL_KNOWN),
    )
