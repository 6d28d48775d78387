"""Write `docs/api/` from the contract and its comments, or check with `--check` that it is fresh."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import (
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)

from bridge.event_streams import EVENT_STREAMS
from cstp_grpc.contract.methods import RpcMethod, contract_methods
from cstp_grpc.contract.rpc_errors import REASON_CODES
from cstp_grpc.gen.error_reasons import BARE_GRPC_CODES, BARE_HTTP_STATUSES, BARE_JSON_RPC_CODES

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "api"
LINE_LENGTH = 120
SHARED_PAGE = "types.md"
PAGES = {"errors.md": "Errors", SHARED_PAGE: "Shared types"}
"""Pages that are about no service, with their titles."""
EVENT_PATHS = {streamed.method: streamed.path for streamed in EVENT_STREAMS}
"""Where bridges stream the answers of a method as server-sent events."""

HEAD = """# The contract

Every method, message and error of CSTP. `make docs` generates these pages from `proto/`.

Over gRPC the names are those of the proto. Over JSON-RPC (`POST /cstp`), methods and fields are named as here, enums
are plain words (`STAKES_HIGH` is `"high"`), absent fields are left out and `null` means absent. No text of a request
may contain NUL. [ErrorReason](errors.md#errorreason) explains how calls fail. Over JSON-RPC, `error.data` contains:

| member | present | meaning |
|---|---|---|
| `reason`, `requestId` | always | Why it failed, and the id under which the server's log has more. |
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


class Contract:
    """The files of the contract, each message and enum of which stands on one page."""

    def __init__(self, files: list[FileDescriptorProto]) -> None:
        self.files = files
        self._pages = {
            f".{file.package}.{described.name}": page_of(file)
            for file in files
            for described in (*file.message_type, *file.enum_type)
        }

    def __contains__(self, type_name: str) -> bool:
        return type_name in self._pages

    def link(self, type_name: str, page: str) -> str:
        """Return the Markdown of a link to a type from a page."""
        name = local_name(type_name)
        target = self._pages[type_name]
        return f"[{name}]({'' if target == page else target}#{name.lower()})"


def page_of(file: FileDescriptorProto) -> str:
    """Return the name of the page that describes a file: that of its service, or a shared one."""
    stem = Path(file.name).stem
    return f"{stem.replace('_', '-')}.md" if file.service or stem == "errors" else SHARED_PAGE


def render_pages(files: list[FileDescriptorProto]) -> dict[str, str]:
    """Return the text of each page by its name."""
    contract = Contract(files)
    pages = {page: list(list_title_lines(page, files)) for page in dict.fromkeys(map(page_of, files))}
    for heading, listed in (("", list_services), ("Messages", list_messages), ("Enums", list_enums)):
        headed = set()
        for file in files:
            page = page_of(file)
            if lines := list(listed(file, contract)):
                if heading and page not in headed:
                    pages[page].append(f"## {heading}\n")
                headed.add(page)
                pages[page] += lines
    texts = {"README.md": "\n".join(list_first_page_lines(files))}
    texts |= {page: "\n".join(lines) for page, lines in pages.items()}
    return {page: text.rstrip("\n") + "\n" for page, text in texts.items()}


def list_title_lines(page: str, files: list[FileDescriptorProto]) -> Iterator[str]:
    """Yield the title of a page."""
    services = [f"{file.package}.{service.name}" for file in files if page_of(file) == page for service in file.service]
    yield f"# {', '.join(services) or PAGES[page]}\n"
    if page == SHARED_PAGE:
        yield "Messages and enums of several services.\n"
    elif page in PAGES:
        yield "The reasons for which calls fail, and the codes that each transport sends for them.\n"


def list_first_page_lines(files: list[FileDescriptorProto]) -> Iterator[str]:
    """Yield the first page: how to read the others, and every method with its permission."""
    yield HEAD
    for file in files:
        for service in file.service:
            yield f"## [{service.name}]({page_of(file)})\n"
            intents = any(method.intent_type for method in methods_of(file, service))
            yield f"| method | permission |{' intent type |' if intents else ''}\n|---|---|{'---|' if intents else ''}"
            for method in methods_of(file, service):
                intent = f" `{method.intent_type}` |" if intents else ""
                link = f"[`{method.name}`]({page_of(file)}#{slug_of(method.name)})"
                yield f"| {link} | {' or '.join(method.permissions)} |{intent}"
            yield ""
    yield "## Other pages\n"
    for page, title in PAGES.items():
        yield f"- [{title}]({page})"


def methods_of(file: FileDescriptorProto, service: ServiceDescriptorProto) -> list[RpcMethod]:
    """Return the methods of a service as callers know them."""
    known = {method.path: method for method in contract_methods().values()}
    return [known[f"/{file.package}.{service.name}/{rpc.name}"] for rpc in service.method]


def slug_of(name: str) -> str:
    """Return the anchor of a heading that is a method's name."""
    return name.replace(".", "").lower()


def list_services(file: FileDescriptorProto, contract: Contract) -> Iterator[str]:
    """Yield the services of a file with their methods."""
    comments, page = Comments(file), page_of(file)
    for number, service in enumerate(file.service):
        methods = methods_of(file, service)
        public = all(method.public for method in methods)
        internal = "" if public else " It is for bridges, and not served over JSON-RPC."
        yield f"{wrap_text(comments.at(SERVICES, number) + internal)}\n\n## Methods\n"
        for index, (rpc, method) in enumerate(zip(service.method, methods, strict=True)):
            events = EVENT_PATHS.get(method.name)
            takes = stream_prefix(streams=rpc.client_streaming) + contract.link(rpc.input_type, page)
            answers = stream_prefix(streams=rpc.server_streaming, events=events) + contract.link(rpc.output_type, page)
            purpose, _, errors = comments.at(SERVICES, number, METHODS, index).partition(" Errors: ")
            yield f"### `{method.name}`\n\n{wrap_text(purpose)}\n"
            if errors:
                yield f"{wrap_text(f'**Errors**: {errors}')}\n"
            yield f"- Permission: {' or '.join(method.permissions)}"
            if method.intent_type:
                yield f"- Intent type: `{method.intent_type}`"
            yield f"- Request: {takes}\n- Response: {answers}\n"


def stream_prefix(*, streams: bool, events: str | None = None) -> str:
    """Return the words before a message that is streamed; `events` is where bridges stream it."""
    how = f"gRPC, or events at `GET {events}`: a stream of " if events else "gRPC only, a stream of "
    return how if streams else ""


def list_messages(file: FileDescriptorProto, contract: Contract) -> Iterator[str]:
    """Yield the sections of a file's messages."""
    comments, page = Comments(file), page_of(file)
    options = {local_name(extension.type_name) for extension in file.extension}
    for number, message in enumerate(file.message_type):
        if message.name in options:
            continue
        yield f"### {message.name}\n\n{wrap_text(comments.at(MESSAGES, number))}\n"
        maps = {f".{nested.name}": nested for nested in message.nested_type if nested.options.map_entry}
        for index, field in enumerate(message.field):
            entry = next((nested for name, nested in maps.items() if field.type_name.endswith(name)), None)
            kind = type_of(field, contract, page)
            if entry:
                key, value = (type_of(part, contract, page) for part in entry.field)
                kind = f"object of {value} by {key}"
            yield list_item(f"`{field.json_name}` ({kind})", comments.at(MESSAGES, number, FIELDS, index))
        if message.field:
            yield ""


def list_enums(file: FileDescriptorProto, _: Contract) -> Iterator[str]:
    """Yield the sections of a file's enums."""
    comments = Comments(file)
    for number, enum in enumerate(file.enum_type):
        yield f"### {enum.name}\n\n{wrap_text(comments.at(ENUMS, number))}\n"
        if enum.name == "ErrorReason":
            yield from list_reason_lines(enum, number, comments)
            continue
        prefix = enum.value[0].name.removesuffix("UNSPECIFIED")
        for index, value in enumerate(enum.value):
            yield list_item(f"`{value.name.removeprefix(prefix).lower()}`", comments.at(ENUMS, number, VALUES, index))
        yield ""


def list_reason_lines(enum: EnumDescriptorProto, number: int, comments: Comments) -> Iterator[str]:
    """Yield the reasons of ErrorReason, and their codes."""
    reasons = {value.name.removeprefix("ERROR_REASON_"): index for index, value in enumerate(enum.value)}
    reasons = {reason: index for reason, index in reasons.items() if reason in REASON_CODES}
    for reason, index in reasons.items():
        yield list_item(f"`{reason}`", comments.at(ENUMS, number, VALUES, index))
    yield f"\n### Codes\n\n{REASON_COLUMNS}"
    yield "| reason | gRPC | JSON-RPC | HTTP | A2A | HTTP+JSON | retriable |\n|---|---|---|---|---|---|---|"
    for reason in reasons:
        codes = REASON_CODES[reason]
        cells = [
            "" if codes.bridge_only else codes.grpc_code,
            *(codes.json_rpc_code, codes.http_status, codes.a2a_code, codes.a2a_http_status),
            "yes" if codes.retriable else "",
        ]
        yield f"| `{reason}` | {' | '.join(map(str, cells))} |"
    yield f"\n### Answers without a reason\n\n{BARE_CODES}\n| gRPC status without ErrorInfo | reason |\n|---|---|"
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


def type_of(field: FieldDescriptorProto, contract: Contract, page: str) -> str:
    """Return a field's type as readers of JSON know it."""
    name = SCALARS.get(field.type) or WELL_KNOWN.get(field.type_name) or ""
    if not name and field.type_name in contract:
        name = contract.link(field.type_name, page)
    return f"list of {name}" if field.label == FieldDescriptorProto.LABEL_REPEATED else name


def list_item(name: str, comment: str) -> str:
    """Return an item of a list."""
    return wrap_text(f"- {name}: {comment}" if comment else f"- {name}", indent="  ")


def wrap_text(text: str, indent: str = "") -> str:
    """Return a paragraph or an item of a list in lines that are not too long, none of which begins as another item."""
    lines = textwrap.fill(
        " ".join(text.split()),
        LINE_LENGTH - 8,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return re.sub(rf"\n{indent}((?:[-+*>#]|\d+[.)]))(?= )", r" \1", lines)


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
    check = parser.parse_args().check
    pages = render_pages(read_descriptors())
    written = {path.name: path.read_text() for path in FOLDER.glob("*.md")}
    if check:
        if pages != written:
            sys.exit("docs/api is stale, run `make docs`")
        return
    FOLDER.mkdir(exist_ok=True)
    for name in written.keys() - pages.keys():
        (FOLDER / name).unlink()
    for name, text in pages.items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
