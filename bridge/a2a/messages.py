"""From an A2A message to what it asks for: a call of a method, or an announcement, perhaps of an earlier one anew.

Pure functions. What only A2A can judge is judged here and named by its place in the message; all the rest, such as
lengths and the values of params, is the gRPC server's to judge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from a2a.types.a2a_pb2 import Message, Part, Role, Task
from a2a.utils.errors import ContentTypeNotSupportedError, InvalidParamsError
from google.protobuf.struct_pb2 import Struct, Value

from bridge.a2a.context import EXTENSION_URI
from bridge.a2a.errors import invalid_params
from bridge.a2a.media import JSON, TEXT, plain_type
from cstp_grpc.client.json_forms import shown
from cstp_grpc.client.json_known import MAX_DEPTH, render_struct, render_value

Params = dict[str, object]

ANNOUNCE: Final = "cstp.announceIntent"
"""The method that takes plain text too."""
EXTENSION_PLACE: Final = f'message.metadata["{EXTENSION_URI}"]'
MAX_CONTEXT_ID: Final = 200
MAX_LEVELS: Final = MAX_DEPTH + 2
"""How deep the structures of a message may be nested: free-form data, within the params of a call."""
MAX_REFERENCES: Final = 10
"""How many tasks a message may refer to: each is looked up."""


@dataclass(frozen=True, slots=True)
class MethodCall:
    """A call of a method by its JSON-RPC name."""

    name: str
    params: Params


@dataclass(frozen=True, slots=True)
class Announcement:
    """An intent to announce."""

    params: Params
    """Those of AnnounceIntent."""
    places: Mapping[str, str] = field(default_factory=dict)
    """Where in the message params come from, by their names."""

    @property
    def name(self) -> str:
        """The JSON-RPC name of the method."""
        return ANNOUNCE


Request = MethodCall | Announcement


@dataclass(frozen=True, slots=True)
class Content:
    """What a message says."""

    text: str
    """Its text parts, without blank ones."""
    values: Params
    """What its data parts say to the guardrails."""
    value_places: tuple[str, ...]
    call: MethodCall | None
    given: Params
    """The params of an announcement that its metadata gives."""

    @property
    def has_values(self) -> bool:
        """Whether data parts speak to the guardrails, which can refine an announcement of the same context."""
        return bool(self.value_places)


def read(message: Message) -> Content:
    """Return what a message says. Raises InvalidParamsError and ContentTypeNotSupportedError."""
    check_envelope(message)
    texts: list[str] = []
    data: list[tuple[str, Params]] = []
    for place, part in placed(message):
        check_media_type(place, part)
        kind = part.WhichOneof("content")
        if kind == "text":
            texts += [part.text] if part.text.strip() else []
        elif kind == "data":
            data.append((f"{place}.data", read_object(part.data, f"{place}.data")))
        else:
            raise wrong(place, "must hold text or data")
    given = read_given(message.metadata)
    call = read_call(data, bool(texts), bool(given))
    values = {} if call else {key: value for _, item in data for key, value in item.items()}
    return Content("\n".join(texts), values, () if call else tuple(place for place, _ in data), call, given)


def request_of(content: Content, earlier: Params | None = None) -> Request:
    """Return what a message asks for; `earlier` are the params of the announcement that it refines.

    Raises InvalidParamsError where there is nothing to announce.
    """
    if content.call:
        return content.call
    if earlier is None and not content.text:
        raise wrong("message.parts", "must say in a text part what is intended, or hold a call in a data part")
    return announcement(content, earlier)


def announcement(content: Content, earlier: Params | None) -> Announcement:
    """Return the intent to announce, on top of an earlier one where there is one."""
    given = dict(content.given)
    said = given.pop("context", None)
    lines = [said] if isinstance(said, str) else []
    params = dict(earlier or {})
    # An announcement has a correlation id of its own, also where it repeats another's words.
    params.pop("correlationId", None)
    metadata, sources = merged_metadata(content, given.pop("metadata", None), said, params.get("metadata"))
    params |= given
    places = {shown(name): f"{EXTENSION_PLACE}.{shown(name)}" for name in given}
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
        places["context"] = "message.parts" if earlier and content.text else f"{EXTENSION_PLACE}.context"
    return Announcement(params, places)


def merged_metadata(content: Content, given: object, said: object, before: object) -> tuple[Params, list[str]]:
    """Return what the guardrails read, later words over earlier ones, and the places in the message it comes from."""
    layers = [
        (f"{EXTENSION_PLACE}.metadata", given),
        (f"{EXTENSION_PLACE}.context", said),
        *((place, content.values) for place in content.value_places),
    ]
    merged: Params = dict(before) if isinstance(before, dict) else {}
    sources = []
    for place, layer in layers:
        if isinstance(layer, dict):
            merged |= layer
            sources.append(place)
    return merged, sources


def announced_in(task: Task) -> Params | None:
    """Return the params of the announcement that a task is about; None where it is about something else."""
    if EXTENSION_URI not in task.metadata.fields:
        return None
    kept = render_value(task.metadata.fields[EXTENSION_URI])
    params = kept.get("params") if isinstance(kept, dict) and kept.get("method") == ANNOUNCE else None
    return params if isinstance(params, dict) else None


def check_envelope(message: Message) -> None:
    """Judge what a message says around its parts."""
    if message.role != Role.ROLE_USER:
        raise wrong("message.role", "must be ROLE_USER")
    if len(message.context_id) > MAX_CONTEXT_ID:
        raise wrong("message.contextId", f"must have at most {MAX_CONTEXT_ID} characters")
    if len(message.reference_task_ids) > MAX_REFERENCES:
        raise wrong("message.referenceTaskIds", f"must name at most {MAX_REFERENCES} tasks")
    # The message is kept as it came and shown again as JSON.
    read_struct(message.metadata, "message.metadata")
    for place, part in placed(message):
        read_struct(part.metadata, f"{place}.metadata")


def check_media_type(place: str, part: Part) -> None:
    """Refuse files, and media types that the agent card does not declare."""
    wanted = {"text": TEXT, "data": JSON}.get(part.WhichOneof("content") or "")
    if part.WhichOneof("content") in ("raw", "url"):
        raise ContentTypeNotSupportedError(f"{place}: files are not taken; send text ({TEXT}) or data ({JSON})")
    if wanted and part.media_type and plain_type(part.media_type) != wanted:
        raise ContentTypeNotSupportedError(f"{place}.mediaType: must be {wanted}, not {shown(part.media_type)}")


def read_given(metadata: Struct) -> Params:
    """Return the params of an announcement that a message's metadata gives."""
    if EXTENSION_URI not in metadata.fields:
        return {}
    said = read_object(metadata.fields[EXTENSION_URI], EXTENSION_PLACE)
    given = {key: value for key, value in said.items() if value is not None}
    if "intent" in given:
        raise wrong(f"{EXTENSION_PLACE}.intent", "belongs into a text part")
    if not isinstance(given.get("context", ""), (str, dict)):
        raise wrong(f"{EXTENSION_PLACE}.context", "must be text or an object")
    if not isinstance(given.get("metadata", {}), dict):
        raise wrong(f"{EXTENSION_PLACE}.metadata", "must be an object")
    return given


def read_call(data: list[tuple[str, Params]], has_text: bool, has_given: bool) -> MethodCall | None:
    """Return the call that a message holds; None where it holds none."""
    calls = [(place, item) for place, item in data if "method" in item]
    if not calls:
        return None
    place, item = calls[0]
    if len(data) > 1:
        other = next(name for name, _ in data if name != place)
        raise wrong(other, f"cannot be beside the call in {place}: a message holds one call and nothing else")
    if has_text:
        raise wrong("message.parts", f"cannot hold text beside the call in {place}")
    if has_given:
        raise wrong(EXTENSION_PLACE, f"is about announcing; the call in {place} has its own params")
    return to_call(item, place)


def to_call(item: Params, place: str) -> MethodCall:
    """Return the call that the object of a data part describes."""
    for key in item:
        if key not in ("method", "params"):
            raise wrong(f"{place}.{shown(key)}", "is no member of a call, which has method and params")
    name, params = item["method"], item.get("params")
    if not isinstance(name, str):
        raise wrong(f"{place}.method", "must be a string")
    if params is not None and not isinstance(params, dict):
        raise wrong(f"{place}.params", "must be an object")
    return MethodCall(name, params or {})


def placed(message: Message) -> Iterator[tuple[str, Part]]:
    """Yield the parts of a message with their places in it."""
    for position, part in enumerate(message.parts):
        yield f"message.parts[{position}]", part


def read_object(value: Value, place: str) -> Params:
    """Return the object that a value is."""
    if value.WhichOneof("kind") != "struct_value":
        raise wrong(place, "must be an object")
    return read_struct(value.struct_value, place)


def read_struct(struct: Struct, place: str) -> dict[str, Any]:
    """Return a structure as JSON."""
    try:
        found = render_struct(struct)
    except ValueError:
        raise wrong(place, "must not hold NaN or Infinity, which are no JSON") from None
    if levels(found) > MAX_LEVELS:
        raise wrong(place, f"is nested more than {MAX_LEVELS} levels deep")
    return found


def levels(value: object) -> int:
    """Return how many objects and lists a JSON value nests, its outermost one counted."""
    if not isinstance(value, (dict, list)):
        return 0
    return 1 + max(map(levels, value.values() if isinstance(value, dict) else value), default=0)


def wrong(place: str, description: str) -> InvalidParamsError:
    """Return the error that names a place in a message."""
    return invalid_params(f"{place}: {description}", (place, description))
