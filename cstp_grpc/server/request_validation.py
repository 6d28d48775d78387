"""Validate requests by the annotations of the contract.

A fast check accepts nearly all valid requests in a fraction of the time of a full validation. All other requests get
the full validation, which reports the violations. So the fast check reads only annotations whose meaning is known for
sure.
"""

from __future__ import annotations

import functools
import math
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import ListValue, Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.errors import FieldViolation, InvalidArgument
from cstp_grpc.contract.json_codec import CONTEXT_FIELDS
from cstp_grpc.contract.json_values import describe_excess
from cstp_grpc.gen.buf.validate import validate_pb2

if TYPE_CHECKING:
    import protovalidate

Accept: TypeAlias = Callable[[Any], bool]
"""Returns True if a value is certainly valid."""

NUL = "\0"
"""The character that no text may contain, since databases do not store it."""
NUL_FLAW = "must not contain NUL"
NANOS = 1_000_000_000
TIMESTAMP = Timestamp.DESCRIPTOR.full_name
STRUCT = Struct.DESCRIPTOR.full_name

MAX_VIOLATIONS: Final = 20
"""Maximum number of reported fields. Chosen: errors travel in trailing metadata, of which many clients take 8 KiB."""
CLEARER_MESSAGES: Final = {
    # An absent enumeration has the number 0, which is the one that is excluded.
    "must not be in list [0]": "must be given",
    # PERMISSION_ANY is what some methods require, and no token has it.
    "must not be in list [0, 7]": "must be a permission that a token can have",
    "must be at least 1 characters": "must not be empty",
}
"""Clearer messages than protovalidate's, which describe missing values as numbers."""


@dataclass(frozen=True, slots=True)
class StructBounds:
    """Limits of structured data: nesting depth, itself included, and values in total, fewer in contexts of checks."""

    depth: int
    values: int
    context_values: int

    def values_of(self, field: FieldDescriptor) -> int:
        """Return the most values that a field may hold."""
        return min(self.values, self.context_values) if field.full_name in CONTEXT_FIELDS else self.values


class FastValidator:
    """Recognizes valid messages. Thread-safe: concurrent compilations give equal results."""

    def __init__(self, bounds: StructBounds) -> None:
        self._bounds = bounds
        self._compiled: dict[Descriptor, MessageAcceptance] = {}

    def accepts(self, message: Message) -> bool:
        return self.acceptance_of(cast(Descriptor, message.DESCRIPTOR))(message)

    def acceptance_of(self, kind: Descriptor) -> MessageAcceptance:
        """Return a predicate of valid messages of a type."""
        found = self._compiled.get(kind)
        if found is None:
            # Stored only when complete, because another thread may use it at once.
            found = self._compiled[kind] = MessageAcceptance(kind, self)
        return found

    def accept_timestamp(self, timestamp: Timestamp) -> bool:
        return 0 <= timestamp.nanos < NANOS

    def acceptance_of_struct(self, field: FieldDescriptor) -> Accept:
        """Return a predicate of JSON objects within the bounds of a field."""
        return functools.partial(self._accept_struct, self._bounds.values_of(field))

    def _accept_struct(self, most: int, struct: Struct) -> bool:
        fields = struct.fields
        if len(fields) > most:
            return False
        # By key, because `values` of a map field is slow Python; flat ones here, because nearly all are.
        for key in fields:
            value = fields[key]
            kind = value.WhichOneof("kind")
            if NUL in key or (kind == "string_value" and NUL in value.string_value):
                return False
            if kind == "number_value":
                if not math.isfinite(value.number_value):
                    return False
            elif kind in ("struct_value", "list_value"):
                return describe_struct_flaw(struct, self._bounds.depth, most) is None
        return True


class MessageAcceptance:
    """Recognizes valid messages of a type."""

    __slots__ = ("_is_known", "_needed", "_tests")

    def __init__(self, kind: Descriptor, validator: FastValidator) -> None:
        self._is_known = not kind.GetOptions().HasExtension(validate_pb2.message) and not any(
            oneof.GetOptions().HasExtension(validate_pb2.oneof) for oneof in kind.oneofs
        )
        """Whether no rule is about several fields."""
        self._tests: dict[int, Accept] = {}
        needed = set()
        for field in kind.fields:
            rules = field.GetOptions().Extensions[validate_pb2.field]
            accept = compile_field(field, rules, validator)
            self._tests[field.number] = accept
            if rules.required or not is_valid_if_absent(field, rules, accept):
                needed.add(field.number)
        self._needed = frozenset(needed)
        """The fields that must be set to anything but their default."""

    def __call__(self, message: Message) -> bool:
        """Return True if a message is certainly valid."""
        if not self._is_known:
            return False
        tests, needed = self._tests, self._needed
        missing = len(needed)
        for field, value in message.ListFields():
            number = field.number
            if not tests[number](value):
                return False
            if number in needed:
                missing -= 1
        return not missing


def accept_any(value: object) -> bool:  # noqa: ARG001
    return True


def accept_storable(text: str) -> bool:
    return NUL not in text


def accept_nothing(value: object) -> bool:  # noqa: ARG001
    """Return False: the rules are not known here."""
    return False


def is_valid_if_absent(field: FieldDescriptor, rules: validate_pb2.FieldRules, accept: Accept) -> bool:
    """Return whether a field that is not required is certainly valid where it is absent."""
    if field.has_presence or not rules.ByteSize():
        # Messages, and scalars marked `optional`, are validated only where they are set.
        return True
    if field.is_repeated:
        # An empty list can only be too short, but expressions may have any effect on it.
        return set(known_fields(rules)) == {"repeated"} and not rules.repeated.min_items
    return accept(field.default_value)


def compile_field(field: FieldDescriptor, rules: validate_pb2.FieldRules, validator: FastValidator) -> Accept:
    """Return a predicate of valid values of a field."""
    if not field.is_repeated:
        return compile_value(field, rules, validator)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        has_messages = field.message_type.fields_by_name["value"].message_type is not None
        return accept_nothing if has_messages or rules.ByteSize() else accept_any
    if not set(known_fields(rules)) <= {"repeated", "required"}:
        return accept_nothing
    sizes = known_fields(rules.repeated)
    items = sizes.pop("items", validate_pb2.FieldRules())
    accept_item = compile_value(field, items, validator)
    return compile_list(sizes, accept_item)


def compile_list(sizes: Mapping[str, int], accept_item: Accept) -> Accept:
    """Return a predicate of lists of these sizes, perhaps of different items."""
    if not set(sizes) <= {"min_items", "max_items", "unique"}:
        return accept_nothing
    least, most = sizes.get("min_items", 0), sizes.get("max_items", math.inf)
    unique = sizes.get("unique", False)

    def accept(values: Collection[Any]) -> bool:
        return (
            least <= len(values) <= most
            and all(map(accept_item, values))
            # Only scalars may have the rule `unique`.
            and not (unique and len(set(values)) < len(values))
        )

    return accept


def compile_value(field: FieldDescriptor, rules: validate_pb2.FieldRules, validator: FastValidator) -> Accept:
    """Return a predicate of valid values of a field that is not repeated, or of one item of a repeated one."""
    given = known_fields(rules)
    given.pop("required", None)
    if field.message_type is not None:
        if field.message_type.full_name == STRUCT and not given:
            return validator.acceptance_of_struct(field)
        return accept_nothing if given else compile_message(field.message_type, validator)
    tests = [KNOWN_EXPRESSIONS.get(rule.expression, accept_nothing) for rule in given.pop("cel", ())]
    if field.type == FieldDescriptor.TYPE_STRING:
        tests.append(accept_storable)
    for name, kind_rules in given.items():
        compile_rules = RULES.get(name)
        tests.append(accept_nothing if compile_rules is None else compile_rules(known_fields(kind_rules), field))
    if len(tests) == 1:
        return tests[0]
    return (lambda value: all(test(value) for test in tests)) if tests else accept_any


def compile_message(kind: Descriptor, validator: FastValidator) -> Accept:
    """Return a predicate of valid messages of a type within others."""
    if kind.full_name == TIMESTAMP:
        return validator.accept_timestamp
    if kind.file.package == "google.protobuf":
        return accept_nothing
    # Looked up when it is needed, since types may contain themselves.
    return lambda message: validator.acceptance_of(kind)(message)


def known_fields(message: Message) -> dict[str, Any]:
    return {field.name: value for field, value in message.ListFields()}


def compile_text_rules(rules: Mapping[str, Any], field: FieldDescriptor) -> Accept:  # noqa: ARG001
    """Return a predicate of texts or bytes of allowed lengths, in characters or bytes."""
    if not set(rules) <= {"min_len", "max_len"}:
        return accept_nothing
    least, most = rules.get("min_len", 0), rules.get("max_len", math.inf)
    return lambda text: least <= len(text) <= most


def compile_number_rules(rules: Mapping[str, Any], field: FieldDescriptor) -> Accept:  # noqa: ARG001
    """Return a predicate of numbers within bounds."""
    # If two bounds exclude each other, protovalidate accepts the values outside of them.
    if not set(rules) <= {"gte", "lte", "finite"} or rules.get("gte", -math.inf) > rules.get("lte", math.inf):
        return accept_nothing
    least, most = rules.get("gte", -math.inf), rules.get("lte", math.inf)
    if rules.get("finite"):
        return lambda number: math.isfinite(number) and least <= number <= most
    return lambda number: least <= number <= most


def compile_enum_rules(rules: Mapping[str, Any], field: FieldDescriptor) -> Accept:
    if not set(rules) <= {"defined_only", "not_in"}:
        return accept_nothing
    kind = field.enum_type
    assert kind is not None, "its rules are those of an enum"
    accepted = frozenset(kind.values_by_number) - set(rules.get("not_in", ()))
    # Without `defined_only` other numbers are valid too, which nobody sends.
    return accepted.__contains__


RULES: Mapping[str, Callable[[Mapping[str, Any], FieldDescriptor], Accept]] = {
    "string": compile_text_rules,
    "bytes": compile_text_rules,
    "int32": compile_number_rules,
    "int64": compile_number_rules,
    "double": compile_number_rules,
    "enum": compile_enum_rules,
}
"""The compilers of the rules of a type of field, by their name in `FieldRules`."""

VISIBLE_ASCII = re.compile("[!-~]{1,128}")


def is_not_blank(text: str) -> bool:
    """Return True if a text has a character that no definition of white space contains."""
    # `isspace` knows more characters than Unicode's White_Space, which `\S` of protovalidate excludes.
    return bool(text) and not text.isspace()


KNOWN_EXPRESSIONS: Mapping[str, Accept] = {
    r"this.matches('\\S')": is_not_blank,
    # Not `match` with `$`, which in Python also matches before a line break at the end.
    "this.matches('^[!-~]{1,128}$')": lambda text: VISIBLE_ASCII.fullmatch(text) is not None,
}
"""The predicates for the annotations' expressions on hot paths."""


def describe_struct_flaw(struct: Struct, max_depth: int, max_values: int) -> str | None:
    """Return why a Struct is not a JSON object within bounds, or None."""
    # An explicit stack in place of recursion, whose depth a caller could exhaust.
    pending: list[tuple[Struct | ListValue, int]] = [(struct, 1)]
    left = max_values
    while pending:
        holder, depth = pending.pop()
        if isinstance(holder, Struct):
            values: Collection[Value] = holder.fields.values()
            if any(NUL in key for key in holder.fields):
                return NUL_FLAW
        else:
            values = holder.values
        left -= len(values)
        if left < 0:
            return describe_excess(max_values)
        for value in values:
            kind = value.WhichOneof("kind")
            if kind == "number_value":
                if not math.isfinite(value.number_value):
                    return "holds a number that is not finite"
            elif kind == "string_value":
                if NUL in value.string_value:
                    return NUL_FLAW
            elif kind in ("struct_value", "list_value"):
                if depth == max_depth:
                    return f"is nested deeper than {max_depth} levels"
                pending.append((getattr(value, kind), depth + 1))
    return None


def count_values(message: Message) -> int:
    count = 0
    for field, found in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for each in found if field.is_repeated else (found,):
                count += count_struct_values(each) if isinstance(each, Struct) else count_values(each)
    return count


def count_struct_values(struct: Struct) -> int:
    """Return the number of values in a Struct, nested ones included."""
    count = 0
    pending: list[Collection[Value]] = [struct.fields.values()]
    while pending:
        values = pending.pop()
        count += len(values)
        for value in values:
            kind = value.WhichOneof("kind")
            if kind == "struct_value":
                pending.append(value.struct_value.fields.values())
            elif kind == "list_value":
                pending.append(value.list_value.values)
    return count


@functools.cache
def contract_validator() -> protovalidate.Validator:
    """Return the validator of the annotations, whose compiled rules all servers of the process share."""
    # Imported here: a process that makes one valid call needs no full validation, and loading it takes 45 ms.
    import protovalidate

    return protovalidate.Validator()


class RequestValidator:
    """Validates requests against the annotations of the contract, and limits the depth and size of structured data."""

    def __init__(self, bounds: StructBounds) -> None:
        self._bounds = bounds
        self._fast = FastValidator(self._bounds)

    def warm_up(self, requests: Iterable[type[Message]]) -> None:
        """Compile the quick checks of message types and load the full validator, in a thread.

        Otherwise the first request of each type is slower, and the first invalid one takes 60 ms of the event loop.
        """
        threading.Thread(target=self._warm, args=(list(requests),), name="validation", daemon=True).start()

    def _warm(self, requests: Iterable[type[Message]]) -> None:
        for request in requests:
            self._fast.accepts(request())
        contract_validator()

    def validate_numbered(self, request: Message, number: int) -> None:
        """Validate a message of a stream. Raises InvalidArgument with its number and each invalid field."""
        try:
            self.validate(request)
        except InvalidArgument as error:
            violations = [FieldViolation(f"[{number}].{v.field}", v.description) for v in error.violations]
            raise InvalidArgument(f"Message {number}: {error.message}", violations=violations) from error

    def validate(self, request: Message) -> None:
        """Validate a request. Raises InvalidArgument, which names each invalid field."""
        if self._fast.accepts(request):
            return
        violations = list(find_malformed_fields(request, "", self._bounds))
        if not violations and (found := contract_validator().collect_violations(request)):
            violations = [
                FieldViolation(
                    format_field_path(each.proto.field), CLEARER_MESSAGES.get(each.proto.message, each.proto.message)
                )
                for each in found
            ]
        if violations:
            violations = violations[:MAX_VIOLATIONS]
            summary = "; ".join(f"{v.field}: {v.description}" if v.field else v.description for v in violations)
            raise InvalidArgument(summary, violations=violations)


def format_field_path(path: Any) -> str:
    """Return a protovalidate field path as text: `decision.reasons[2].type`."""
    parts = []
    for element in path.elements if path is not None else ():
        index = element.subscript
        parts.append(f"{element.field_name}[{index.value}]" if index is not None else element.field_name)
    return ".".join(parts)


@functools.cache
def inspected_fields(kind: Descriptor) -> tuple[FieldDescriptor, ...]:
    """Return the fields of a message type that contain texts, timestamps or structured data, directly or nested."""
    return tuple(
        field
        for field in kind.fields
        if field.type == FieldDescriptor.TYPE_STRING
        or (
            field.message_type is not None
            and not field.message_type.GetOptions().map_entry
            and (field.message_type.full_name in (TIMESTAMP, STRUCT) or inspected_fields(field.message_type))
        )
    )


def find_malformed_fields(message: Message, prefix: str, bounds: StructBounds) -> Iterator[FieldViolation]:
    """Yield violations beyond annotations: NUL, invalid timestamps, and structured data that exceeds its bounds."""
    for field in inspected_fields(message.DESCRIPTOR):
        if field.is_repeated:
            for index, item in enumerate(getattr(message, field.name)):
                yield from find_malformed_value(item, field, f"{prefix}{field.name}[{index}]", bounds)
        elif not field.has_presence or message.HasField(field.name):
            yield from find_malformed_value(getattr(message, field.name), field, prefix + field.name, bounds)


def find_malformed_value(
    value: Any, field: FieldDescriptor, path: str, bounds: StructBounds
) -> Iterator[FieldViolation]:
    """Yield the violations of the value of a field."""
    if isinstance(value, str):
        if NUL in value:
            yield FieldViolation(path, NUL_FLAW)
        return
    kind = value.DESCRIPTOR.full_name
    if kind == TIMESTAMP:
        if not 0 <= value.nanos < NANOS:
            yield FieldViolation(path, "is not an instant: nanos must be from 0 to 999999999")
    elif kind == STRUCT:
        if flaw := describe_struct_flaw(value, bounds.depth, bounds.values_of(field)):
            yield FieldViolation(path, flaw)
    else:
        yield from find_malformed_fields(value, f"{path}.", bounds)
