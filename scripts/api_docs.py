"""Write `docs/api.md` from the contract and its comments, or check with `--check` that it is fresh."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)

from bridge.event_streams import APPROVAL_EVENTS, INTENT_EVENTS, DecisionEvents, LiaisonEvents
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.contract.rpc_errors import REASON_CODES
from cstp_grpc.gen.error_reasons import BARE_GRPC_CODES, BARE_HTTP_STATUSES, BARE_JSON_RPC_CODES

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "api.md"
EVENT_PATHS = {
    streamed.method: streamed.path for streamed in (DecisionEvents, INTENT_EVENTS, APPROVAL_EVENTS, LiaisonEvents)
}
"""Where bridges stream the answers of a method as server-sent events."""

HEAD = """# The contract

Made from `proto/` by `make docs`. Over gRPC the names are those of the proto; over JSON-RPC (`POST /cstp`), methods and
fields are named as here, enums are plain words (`STAKES_HIGH` is `"high"`), absent fields are left out and `null` means
absent. No text of a request may contain NUL. [ErrorReason](#errorreason) says how calls fail. Over JSON-RPC,
`error.data` holds:

| member | where | |
|---|---|---|
| `reason`, `requestId` | always | Why it failed, and the id under which the server's log tells more. |
| `detail` | the bridge itself refuses a call | What is wrong with it. |
| `metadata` | there are details | Texts by name; in ErrorInfo over gRPC. |
| `violations` | fields are wrong | A list of `{"field", "description"}`; BadRequest over gRPC. |
| `violations` | guardrails block | A list of `{"guardrailId", "name", "message"}`; PreconditionFailure over gRPC. |
| `retryAfterMs` | waiting helps | RetryInfo over gRPC. |
| `error`, `error_code`, `execution_id` | the method has an intent type | The message, `reason` and `requestId` again. |
| `intent_type`, `details` | the method has an intent type | The type, and `metadata` again or an empty object. |
"""

REASON_COLUMNS = """The columns are the gRPC status, the code of the JSON-RPC error and the HTTP status of its answer,
the code of the JSON-RPC error over A2A, the HTTP status over HTTP+JSON of A2A, and whether clients may repeat the call,
after RESOURCE_EXHAUSTED only if RetryInfo says how long to wait. Only bridges give reasons without a gRPC status.
"""

BARE_CODES = """Answers without a reason come from gRPC itself, from a proxy or from another server. The bridge and the
clients take them as follows; anything else is `INTERNAL`.
"""

SCALARS = {
    FieldDescriptorProto.TYPE_STRING: "text",
    FieldDescriptorProto.TYPE_BOOL: "bool",
    FieldDescriptorProto.TYPE_INT32: "whole number",
    FieldDescriptorProto.TYPE_DOUBLE: "number",
    FieldDescriptorProto.TYPE_BYTES: "bytes (Base64)",
}
WELL_KNOWN = {
    ".google.protobuf.Timestamp": "instant (RFC 3339)",
    ".google.protobuf.Duration": "length of time (`300s`)",
    ".google.protobuf.Struct": "object",
}

# Field numbers in FileDescriptorProto, ServiceDescriptorProto and so on, of which comments' paths are made.
MESSAGES, ENUMS, SERVICES, METHODS, FIELDS, VALUES = 4, 5, 6, 2, 2, 2


class Comments:
    """The comments of one file by the paths of what they stand before."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._found = {tuple(at.path): at.leading_comments for at in file.source_code_info.location}

    def at(self, *path: int) -> str:
        """Return a comment on one line."""
        return " ".join(self._found.get(path, "").split())


def render_document(files: list[FileDescriptorProto]) -> str:
    """Return the whole document."""
    parts = [HEAD]
    for file in files:
        comments = Comments(file)
        for number, service in enumerate(file.service):
            parts.append("\n".join(list_service_lines(file, service, number, comments)))
    parts.append("## Messages\n")
    for file in files:
        comments = Comments(file)
        options = {local_name(extension.type_name) for extension in file.extension}
        for number, message in enumerate(file.message_type):
            if message.name not in options:
                parts.append("\n".join(list_message_lines(message, number, comments)))
    parts.append("## Words\n")
    for file in files:
        comments = Comments(file)
        for number, enum in enumerate(file.enum_type):
            parts.append("\n".join(list_enum_lines(enum, number, comments)))
    return "\n".join(parts)


def list_service_lines(
    file: FileDescriptorProto, service: ServiceDescriptorProto, number: int, comments: Comments
) -> Iterator[str]:
    """Yield the section of a service."""
    known = {method.path: method for method in contract_methods().values()}
    of_service = [known[f"/{file.package}.{service.name}/{rpc.name}"] for rpc in service.method]
    public = all(method.public for method in of_service)
    internal = "" if public else " It is for bridges, and not served over JSON-RPC."
    yield f"## {file.package}.{service.name}\n\n{comments.at(SERVICES, number)}{internal}\n"
    intents = any(method.intent_type for method in of_service)
    yield f"| method | permission |{' intent type |' if intents else ''} takes | answers | |"
    yield f"|---|---|{'---|' if intents else ''}---|---|---|"
    for index, (rpc, method) in enumerate(zip(service.method, of_service, strict=True)):
        intent = f" `{method.intent_type}` |" if intents else ""
        events = EVENT_PATHS.get(method.name)
        takes = describe_exchanged(rpc.input_type, streams=rpc.client_streaming)
        answers = describe_exchanged(rpc.output_type, streams=rpc.server_streaming, events=events)
        comment = comments.at(SERVICES, number, METHODS, index)
        yield f"| `{method.name}` | {method.permission} |{intent} {takes} | {answers} | {comment} |"
    yield ""


def describe_exchanged(type_name: str, *, streams: bool, events: str | None = None) -> str:
    """Return the Markdown of the message that a method takes or answers; `events` is where bridges stream it."""
    name = local_name(type_name)
    how = f"gRPC, or events at `GET {events}`: a stream of " if events else "gRPC only, a stream of "
    return f"{how if streams else ''}[{name}](#{name.lower()})"


def list_message_lines(message: DescriptorProto, number: int, comments: Comments) -> Iterator[str]:
    """Yield the section of a message."""
    yield f"### {message.name}\n\n{comments.at(MESSAGES, number)}\n"
    if message.field:
        yield "| field | type | |\n|---|---|---|"
    for index, field in enumerate(message.field):
        comment = comments.at(MESSAGES, number, FIELDS, index)
        entries = {f".{nested.name}": nested for nested in message.nested_type if nested.options.map_entry}
        entry = next((nested for name, nested in entries.items() if field.type_name.endswith(name)), None)
        kind = f"object of {type_of(entry.field[1])} by {type_of(entry.field[0])}" if entry else type_of(field)
        yield f"| `{field.json_name}` | {kind} | {comment} |"
    yield ""


def list_reason_lines(enum: EnumDescriptorProto, number: int, comments: Comments) -> Iterator[str]:
    """Yield the section of ErrorReason, with the codes of each reason."""
    yield f"### {enum.name}\n\n{comments.at(ENUMS, number)}\n"
    yield REASON_COLUMNS
    yield "| reason | gRPC | JSON-RPC | HTTP | A2A | HTTP+JSON | retriable | |\n|---|---|---|---|---|---|---|---|"
    for index, value in enumerate(enum.value):
        reason = value.name.removeprefix("ERROR_REASON_")
        if codes := REASON_CODES.get(reason):
            cells = [
                "" if codes.bridge_only else codes.grpc_code,
                *(codes.json_rpc_code, codes.http_status, codes.a2a_code, codes.a2a_http_status),
                "yes" if codes.retriable else "",
                comments.at(ENUMS, number, VALUES, index),
            ]
            yield f"| `{reason}` | {' | '.join(map(str, cells))} |"
    yield f"\n{BARE_CODES}\n| gRPC status without ErrorInfo | reason |\n|---|---|"
    yield from list_reasons_by_codes(BARE_GRPC_CODES)
    yield "\n| JSON-RPC error without `data.reason` | reason |\n|---|---|"
    yield from list_reasons_by_codes(BARE_JSON_RPC_CODES)
    yield "\n| HTTP status without JSON-RPC | reason |\n|---|---|"
    yield from list_reasons_by_codes(BARE_HTTP_STATUSES)
    yield ""


def list_reasons_by_codes(table: Mapping[Any, str]) -> Iterator[str]:
    """Yield a row for each reason with the codes that mean it on their own."""
    for reason, codes in groupby(table, key=lambda code: table[code]):
        yield f"| {', '.join(map(str, codes))} | `{reason}` |"


def list_enum_lines(enum: EnumDescriptorProto, number: int, comments: Comments) -> Iterator[str]:
    """Yield the section of an enum."""
    if enum.name == "ErrorReason":
        yield from list_reason_lines(enum, number, comments)
        return
    prefix = enum.value[0].name.removesuffix("UNSPECIFIED")
    yield f"### {enum.name}\n\n{comments.at(ENUMS, number)}\n\n| word | |\n|---|---|"
    for index, value in enumerate(enum.value):
        word = value.name.removeprefix(prefix).lower()
        yield f"| `{word}` | {comments.at(ENUMS, number, VALUES, index)} |"
    yield ""


def type_of(field: FieldDescriptorProto) -> str:
    """Return a field's type as readers of JSON know it."""
    name = SCALARS.get(field.type) or WELL_KNOWN.get(field.type_name)
    if name is None:
        name = f"[{local_name(field.type_name)}](#{local_name(field.type_name).lower()})"
    return f"list of {name}" if field.label == FieldDescriptorProto.LABEL_REPEATED else name


def local_name(type_name: str) -> str:
    """Return a type's name without its package."""
    return type_name.rpartition(".")[2]


def read_descriptors() -> list[FileDescriptorProto]:
    """Return our files with their comments, the protocol itself first."""
    image = subprocess.run(
        ["buf", "build", "--as-file-descriptor-set", "-o", "-"], cwd=ROOT, capture_output=True, check=True
    )
    files: Mapping[str, FileDescriptorProto] = {
        file.name: file for file in FileDescriptorSet.FromString(image.stdout).file
    }
    ours = [name for name in files if not name.startswith(("google/", "buf/"))]
    return [files[name] for name in sorted(ours, key=lambda name: (not name.endswith("/cstp.proto"), name))]


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    text = render_document(read_descriptors())
    if not parser.parse_args().check:
        OUT.write_text(text)
    elif not OUT.exists() or OUT.read_text() != text:
        sys.exit("docs/api.md is stale, run `make docs`")


if __name__ == "__main__":
    main()
