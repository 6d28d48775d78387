"""Makes the typed methods of the Python clients from the contract.

Every rpc that is for everyone becomes one function that describes its call (`calls.py`), and one method of the same
signature in the classes that have calls made, plain (`methods.py`) and in an event loop (`async_methods.py`). What a
signature looks like follows from the contract:

- A message that is required, as the action of a check, is flattened: its fields are parameters.
- What must be said comes first, words of enums last among it; all else is by keyword, in the order of the contract.
- A response of a single message is unwrapped.
- Methods with pages yield items, and so do those that answer with a stream; those that take one take an iterable.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from contract import Contract, module_of
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet

WIDTH = 120
BATCH = 100
"""Requests of one stream that is taken: each stream has its own deadline and can be repeated whole."""

OPTIONAL = {"intent_layer.v1.ReviewLearningRequest.reason"}
"""Texts that need not be said although the contract does not mark them optional."""

REQUIRED = {"liaison.v1.ShareContextToAgentRequest.shared_context"}
"""What must be said although the contract does not annotate it so: the server tells its absence by a reason."""

POSITIONAL = {"liaison.v1.GetSessionRequest.chat_session_id"}
"""What need not be said and is not by keyword all the same: it is what the method is about."""

PLAIN = {"string": "str", "bool": "bool", "int32": "int", "int64": "int", "double": "float", "float": "float"}
DEFAULTS = {"str": '""', "bool": "False", "int": "0", "float": "0.0"}
WELL_KNOWN = {
    "google.protobuf.FieldMask": "Sequence[str]",
    "google.protobuf.Struct": "Mapping[str, Json]",
    "google.protobuf.Timestamp": "datetime",
}
PAGING = {"page_token"}
"""Fields of a request that are not for the caller to set."""

TIMEOUTS = {
    "UnaryCall": "Seconds that the call may take, repetitions included; what the client was made with when absent.",
    "PagedCall": "Seconds that a page may take, repetitions included; what the client was made with when absent.",
    "UploadCall": "Seconds that a batch may take, repetitions included; what the client was made with when absent.",
    "WatchCall": "Seconds after which it ends with DeadlineExceeded; without an end when absent.",
}
VERBS = {"UnaryCall": "make", "PagedCall": "pages", "UploadCall": "upload", "WatchCall": "watch"}
COLLECTIONS = (
    "AsyncGenerator",
    "AsyncIterable",
    "AsyncIterator",
    "Generator",
    "Iterable",
    "Iterator",
    "Mapping",
    "Sequence",
)
NOTES = {
    "UnaryCall": "",
    "PagedCall": "Yields one after another and fetches pages as they are needed.",
    "UploadCall": "They travel in batches, each of which is stored when its results are yielded; over gRPC only.",
    "WatchCall": "Yields each as it comes, over gRPC only. After a passing failure a watch goes on by itself behind the"
    " last one that was seen, pausing as the client's RetryPolicy says, anew after each, for as long as it takes.",
}


POSITIONS = ("journal_revision", "resume_token")
"""Fields of answers behind which a watch goes on."""


@dataclass(frozen=True)
class Parameter:
    """What a method can be told."""

    name: str
    annotation: str
    default: str
    """Empty where it must be said."""
    positional: bool
    comment: str

    @property
    def declaration(self) -> str:
        """What stands in the signature."""
        return f"{self.name}: {self.annotation}" + (f" = {self.default}" if self.default else "")

    @property
    def passed(self) -> str:
        """What stands in a call that passes it on."""
        return self.name if self.positional else f"{self.name}={self.name}"


@dataclass(frozen=True)
class Rpc:
    """An rpc as a method of a client."""

    group: str
    """The class that it is in."""
    service: str
    name: str
    kind: str
    """The class of `cstp_grpc.contract.calls` that describes it."""
    types: tuple[str, ...]
    """What that class is of."""
    parameters: tuple[Parameter, ...]
    arguments: tuple[str, ...]
    """What it is made of."""
    comment: str

    @property
    def described(self) -> str:
        """The type of its description."""
        return f"{self.kind}[{', '.join(self.types)}]"


def render_modules(files: FileDescriptorSet) -> dict[str, str]:
    """Return the generated modules by the names of their files."""
    reader = Reader(Contract(files))
    rpcs = list(reader.rpcs())
    imports = "".join(
        f"from {package} import {', '.join(name for _, name in found)}\n"
        for package, found in groupby(sorted(reader.used), key=lambda used: used[0])
    )
    return {
        "calls.py": render_calls_module(rpcs, imports),
        "methods.py": render_methods_module(rpcs, imports, ""),
        "async_methods.py": render_methods_module(rpcs, imports, "Async"),
    }


class Reader:
    """Reads the rpcs; `used` are the packages and modules of the classes that they need."""

    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        self.used: set[tuple[str, str]] = set()

    def rpcs(self) -> Iterator[Rpc]:
        """Yield all rpcs that are for everyone, group by group."""
        found = [self._rpc(rpc) for service in self._contract.services() for rpc in service.methods]
        groups = list(dict.fromkeys(rpc.group for rpc in found))
        yield from sorted(found, key=lambda rpc: groups.index(rpc.group))

    def _rpc(self, rpc: MethodDescriptor) -> Rpc:
        package = rpc.containing_service.file.package.split(".")[0]
        kind, types, arguments = self._form(rpc, f"{to_camel_case(package)}.{to_camel_case(rpc.name)}")
        return Rpc(
            group="".join(part.capitalize() for part in package.split("_")),
            service=rpc.containing_service.full_name,
            name=to_snake_case(rpc.name),
            kind=kind,
            types=types,
            parameters=() if kind == "UploadCall" else tuple(sort_parameters(self._parameters(rpc.input_type))),
            arguments=arguments,
            comment=self._contract.comment(rpc),
        )

    def _form(self, rpc: MethodDescriptor, method: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        """Return the kind of a call's description, its types, and what it is made of."""
        request, response = rpc.input_type, rpc.output_type
        first = response.fields[0]
        named, field, of = quote_text(method), quote_text(first.name), (self._element(first),)
        if rpc.client_streaming:
            return "UploadCall", (self._class(request), *of), (named, field)
        begin = (named, self._values(request))
        if rpc.server_streaming:
            return "WatchCall", *self._watch_form(response, begin, quote_text(method.replace(".watch", ".list")))
        if "next_page_token" in response.fields_by_name:
            return "PagedCall", of, (*begin, field)
        if "more" in response.fields_by_name:
            return "PagedCall", of, (*begin, field, "numbered=True")
        if len(response.fields) == 1 and first.message_type and not first.is_repeated:
            return "UnaryCall", of, (*begin, field)
        return "UnaryCall", (self._class(response),), begin

    def _watch_form(
        self, response: Descriptor, begin: tuple[str, str], listing: str
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the types of a response stream, and what its description is made of."""
        first = response.fields[0]
        for position in POSITIONS:
            if position in response.fields_by_name:
                return (self._class(response),), (*begin, quote_text(""), quote_text(position))
        if len(response.fields) > 1:
            # Parts of different kinds.
            return (self._class(response),), (*begin, quote_text(""), quote_text(""))
        arguments = (*begin, quote_text(first.name))
        if "sequence" in first.message_type.fields_by_name:
            return (self._element(first),), (*arguments, quote_text("sequence"), listing)
        return (self._element(first),), (*arguments, quote_text(""))

    def _values(self, message: Descriptor) -> str:
        """Return an expression of the fields that a request is made of."""
        parts = [
            f"{quote_text(field.name)}: {self._values(field.message_type) if self._is_flattened(field) else field.name}"
            for field in message.fields
            if field.name not in PAGING
        ]
        line = f"{{{', '.join(parts)}}}"
        return line if len(line) < WIDTH // 2 else "{\n" + textwrap.indent(",\n".join(parts), "    ") + ",\n}"

    def _parameters(self, message: Descriptor) -> Iterator[Parameter]:
        for field in message.fields:
            if self._is_flattened(field):
                yield from self._parameters(field.message_type)
            elif field.name not in PAGING:
                yield self._parameter(field)

    def _parameter(self, field: FieldDescriptor) -> Parameter:
        element = self._element(field)
        if field.message_type is not None and field.message_type.full_name not in WELL_KNOWN:
            element = f"{element} | Fields"
        required = self._is_required(field)
        if field.is_repeated:
            annotation, default = f"Sequence[{element}]", "()"
        elif required or (not field.has_presence and not field.enum_type):
            annotation, default = element, DEFAULTS.get(element, "")
        else:
            annotation, default = f"{element} | None", "None"
        return Parameter(
            name=field.name,
            annotation=annotation,
            default="" if required else default,
            positional=required or field.full_name in POSITIONAL,
            comment=self._comment(field),
        )

    def _comment(self, field: FieldDescriptor) -> str:
        comment = self._contract.comment(field) + describe_words(field)
        return f"Of each page: {comment[:1].lower()}{comment[1:]}" if field.name == "page_size" else comment

    def _is_required(self, field: FieldDescriptor) -> bool:
        rules = self._contract.rules(field)
        if field.is_repeated:
            return bool(rules.repeated.min_items)
        if field.enum_type:
            return 0 in rules.enum.not_in
        text = field.type == FieldDescriptor.TYPE_STRING and not field.has_presence
        return bool(rules.required) or field.full_name in REQUIRED or (text and field.full_name not in OPTIONAL)

    def _is_flattened(self, field: FieldDescriptor) -> bool:
        return (
            field.message_type is not None
            and not field.is_repeated
            and field.message_type.full_name not in WELL_KNOWN
            and self._is_required(field)
        )

    def _element(self, field: FieldDescriptor) -> str:
        """Return the type of a field's value, or of each of them."""
        if field.enum_type:
            return "str"
        if field.message_type is None:
            return PLAIN[SCALARS[field.type]]
        return WELL_KNOWN.get(field.message_type.full_name) or self._class(field.message_type)

    def _class(self, message: Descriptor) -> str:
        if message.GetOptions().map_entry:
            raise ValueError(f"{message.full_name}: there is no rule for maps in requests")
        package, module = module_of(message)
        self.used.add((package, module))
        return f"{module}.{message.name}"


SCALARS = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in vars(FieldDescriptor).items()
    if name.startswith("TYPE_")
}


def describe_words(field: FieldDescriptor) -> str:
    """Return a sentence on the words of an enum."""
    if not field.enum_type:
        return ""
    unspecified, *values = [value.name for value in field.enum_type.values]
    prefix = unspecified.removesuffix("UNSPECIFIED")
    return f" One of {', '.join(value.removeprefix(prefix).lower() for value in values)}."


def sort_parameters(parameters: Iterable[Parameter]) -> list[Parameter]:
    """Return parameters in the order of a signature."""

    def rank(parameter: Parameter) -> int:
        if not parameter.positional:
            return 3
        if parameter.default:
            return 2
        return int(" One of " in parameter.comment)

    return sorted(parameters, key=rank)


def render_calls_module(rpcs: list[Rpc], imports: str) -> str:
    """Return the module of functions that describe calls."""
    functions = "".join(f"\n\n{render_call_function(rpc)}" for rpc in rpcs)
    doc = '"""What every call of the contract is, as `cstp_grpc.contract.calls` writes it."""'
    return render_head(doc, ("Fields", "UnaryCall", "Json", "PagedCall", "UploadCall", "WatchCall"), imports, functions)


def render_call_function(rpc: Rpc) -> str:
    """Return the function that describes a call."""
    doc = f'"""Describe {to_camel_case(rpc.name)} of {rpc.service}."""'
    lines = render_signature("def", rpc.name, render_declarations(rpc.parameters), rpc.described)
    return f"{lines}\n    {doc}\n{render_invocation(f'return {rpc.kind}', rpc.arguments)}\n"


def render_methods_module(rpcs: list[Rpc], imports: str, prefix: str) -> str:
    """Return the module of classes whose methods have calls made; `prefix` is that of names in an event loop."""
    classes = "".join(
        f"\n\n{render_methods_class(name, list(group), prefix)}"
        for name, group in groupby(rpcs, key=lambda rpc: rpc.group)
    )
    where = " in an event loop" if prefix else ""
    doc = f'"""A method for every call of the contract{where}; each raises CstpError."""'
    return render_head(doc, (f"{prefix}CallExecutor", "Fields", "Json", "OnFailure"), imports, classes)


def render_methods_class(group: str, rpcs: list[Rpc], prefix: str) -> str:
    """Return the class of the methods of a group."""
    services = ", ".join(dict.fromkeys(rpc.service for rpc in rpcs))
    doc = render_docstring(f"The methods of {services}.", [], indent=4)
    begin = f"    def __init__(self, caller: {prefix}CallExecutor) -> None:\n        self._caller = caller\n"
    methods = "".join(f"\n{textwrap.indent(render_method(rpc, prefix), '    ')}" for rpc in rpcs)
    return f"class {prefix}{group}:\n{doc}\n\n{begin}{methods}"


def render_method(rpc: Rpc, prefix: str) -> str:
    """Return the method of an rpc."""
    around = around_call(rpc, prefix)
    told = [*rpc.parameters, *around]
    returned, waits = returned_type(rpc, prefix), prefix and rpc.kind == "UnaryCall"
    lines = render_signature("async def" if waits else "def", rpc.name, ["self", *render_declarations(told)], returned)
    described = render_invocation(f"call = calls.{rpc.name}", [parameter.passed for parameter in rpc.parameters])
    made = f"self._caller.{VERBS[rpc.kind]}({', '.join(['call', *(parameter.passed for parameter in around)])})"
    text = render_docstring(f"{rpc.comment} {NOTES[rpc.kind]}".strip(), told, indent=4)
    return f"{lines}\n{text}\n{described}\n    return {'await ' if waits else ''}{made}\n"


def around_call(rpc: Rpc, prefix: str) -> list[Parameter]:
    """Return the parameters that say how a call is made, beside those of its request."""
    timeout = Parameter("timeout", "float | None", "None", positional=False, comment=TIMEOUTS[rpc.kind])
    if rpc.kind == "WatchCall":
        failing = "Whether it goes on after a passing failure; it is else raised."
        noting = "Is told each such failure, and how many seconds the pause is."
        return [
            Parameter("resume", "bool", "True", positional=False, comment=failing),
            Parameter("on_failure", "OnFailure | None", "None", positional=False, comment=noting),
            timeout,
        ]
    if rpc.kind == "UploadCall":
        of = f"{rpc.types[0]} | Fields"
        iterable = f"Iterable[{of}] | AsyncIterable[{of}]" if prefix else f"Iterable[{of}]"
        return [
            Parameter("requests", iterable, "", positional=True, comment="What is sent."),
            Parameter("batch", "int", str(BATCH), positional=False, comment="How many travel together."),
            timeout,
        ]
    return [timeout]


def returned_type(rpc: Rpc, prefix: str) -> str:
    """Return the type that a method returns."""
    of = rpc.types[-1]
    if rpc.kind == "UnaryCall":
        return of
    if rpc.kind == "WatchCall":
        return f"AsyncGenerator[{of}, None]" if prefix else f"Generator[{of}, None, None]"
    return f"{prefix}Iterator[{of}]"


def render_declarations(parameters: Iterable[Parameter]) -> list[str]:
    """Return the parameters of a signature, with the mark after which all are by keyword."""
    found = list(parameters)
    by_keyword = [parameter.declaration for parameter in found if not parameter.positional]
    marked = ["*", *by_keyword] if by_keyword else []
    return [*(parameter.declaration for parameter in found if parameter.positional), *marked]


def render_signature(keyword: str, name: str, parts: list[str], returned: str) -> str:
    """Return the lines of a signature."""
    line = f"{keyword} {name}({', '.join(parts)}) -> {returned}:"
    if len(line) <= WIDTH - 4:
        return line
    inner = "".join(f"    {part},\n" for part in parts)
    return f"{keyword} {name}(\n{inner}) -> {returned}:"


def render_invocation(begin: str, arguments: Iterable[str]) -> str:
    """Return the lines of a call in a function, in one where it fits."""
    listed = list(arguments)
    line = f"    {begin}({', '.join(listed)})"
    if len(line) <= WIDTH - 4 and "\n" not in line:
        return line
    inner = "".join(f"{textwrap.indent(argument, '        ')},\n" for argument in listed)
    return f"    {begin}(\n{inner}    )"


def render_docstring(text: str, parameters: Iterable[Parameter], indent: int) -> str:
    """Return the lines of a docstring."""
    space = " " * indent
    first, _, rest = text.partition(". ")
    opening = f'{space}"""{first.removesuffix(".")}.'
    parts = [wrap_text(opening, space)]
    if rest:
        parts.append("\n" + wrap_text(space + rest, space))
    lines = [wrap_text(f"{space}    {each.name}: {each.comment}", f"{space}        ") for each in parameters]
    if lines:
        parts.append(f"\n{space}Args:\n" + "\n".join(lines))
    if len(parts) == 1 and len(parts[0]) + 3 <= WIDTH and "\n" not in parts[0]:
        return f'{parts[0]}"""'
    return "\n".join(parts) + f'\n{space}"""'


def wrap_text(text: str, indent: str) -> str:
    """Return a text in lines, of which all but the first are indented."""
    return "\n".join(textwrap.wrap(text, WIDTH - 4, subsequent_indent=indent, break_on_hyphens=False))


def render_head(doc: str, names: Iterable[str], imports: str, body: str) -> str:
    """Return the beginning of a module, which imports what its body needs."""
    collections = [name for name in COLLECTIONS if re.search(rf"\b{name}\b", body)]
    lines = [doc, "", "from __future__ import annotations", ""]
    if collections:
        lines.append(f"from collections.abc import {', '.join(collections)}")
    if re.search(r"\bdatetime\b", body):
        lines.append("from datetime import datetime")
    used = [name for name in names if re.search(rf"\b{name}\b", body)]
    lines += ["from typing import TYPE_CHECKING", "", f"from cstp_grpc.contract.calls import {', '.join(used)}"]
    if re.search(r"\bcalls\.", body):
        lines.append("from cstp_grpc.gen import calls")
    # The messages of a service are loaded by those who call it.
    lines += ["", "if TYPE_CHECKING:", textwrap.indent(imports.rstrip(), "    "), ""]
    return "\n".join(lines) + body


def quote_text(text: str) -> str:
    """Return a text as Python writes it."""
    return f'"{text}"'


def to_snake_case(name: str) -> str:
    """Return `AnnounceIntent` as `announce_intent`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def to_camel_case(name: str) -> str:
    """Return `intent_layer` as `intentLayer` and `AnnounceIntent` as `announceIntent`."""
    first, *others = name.split("_")
    return first[:1].lower() + first[1:] + "".join(part.capitalize() for part in others)
