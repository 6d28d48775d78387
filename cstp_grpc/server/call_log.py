"""The call log: one structured line for each call, without tokens and without the content of calls."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from cstp_grpc.contract.errors import error_reason

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from cstp_grpc.server.interceptors.admission import InboundCall

CALL_LOGGER: Final = "cstp.calls"
"""The name of the logger of calls."""

calls = logging.getLogger(CALL_LOGGER)

TRACEPARENT: Final = "traceparent"
TRACEPARENT_FORM: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
"""The header of the W3C Trace Context, of this or a later version."""
NO_TRACE: Final = "0" * 32

LoggedValue: TypeAlias = str | int | float | bool


class CallLog:
    """Logs calls when they end; fulfils `CallObserver`.

    Calls that take at least `slow_seconds` are warnings; without `logs_all` only they are logged. Response streams are
    never slow, since their duration has no meaning.
    """

    def __init__(self, *, logs_all: bool, slow_seconds: float | None) -> None:
        self._logs_all = logs_all
        self._slow_seconds = float("inf") if slow_seconds is None else slow_seconds

    def begin(self, call: InboundCall) -> None:
        call.started = time.perf_counter()

    def end(self, call: InboundCall, status: str, error: BaseException | None, response: Message | None) -> None:
        seconds = time.perf_counter() - call.started
        is_slow = seconds >= self._slow_seconds and not call.method.server_streaming
        if not (is_slow or self._logs_all):
            return
        level = logging.WARNING if is_slow else logging.INFO
        # Before the line is built, which takes most of the time.
        if calls.isEnabledFor(level):
            calls.log(level, "%s", describe_call(call, status, error, response, seconds, is_slow=is_slow))


def describe_call(
    call: InboundCall,
    status: str,
    error: BaseException | None,
    response: Message | None,
    seconds: float,
    *,
    is_slow: bool,
) -> CallLine:
    """Return the log fields of a call; missing values are left out."""
    fields: dict[str, LoggedValue] = {"request_id": call.request_id}
    trace_id = call.trace_id or read_trace_id(call.metadata.get(TRACEPARENT))
    if trace_id is not None:
        fields["trace_id"] = trace_id
    if call.agent is not None:
        fields["agent"] = call.agent
    fields["method"] = call.method.name
    fields["status"] = status
    if isinstance(error, Exception):
        fields["reason"] = error_reason(error)
    fields["ms"] = round(seconds * 1000, 3)
    if response is not None:
        read_verdict, read_rows = response_readers(response)
        if read_verdict is not None and (verdict := read_verdict(response)):
            fields["verdict"] = verdict
        if read_rows is not None:
            fields["rows"] = read_rows(response)
    if is_slow:
        fields["slow"] = True
    return CallLine(fields)


def read_trace_id(header: str | bytes | None) -> str | None:
    """Return the trace id of a `traceparent` header, or None if it is missing or invalid."""
    found = TRACEPARENT_FORM.fullmatch(header) if isinstance(header, str) else None
    return None if found is None or found[1] == NO_TRACE else found[1]


ReadVerdict: TypeAlias = Callable[[Any], str]
ReadRows: TypeAlias = Callable[[Any], int]


known_readers: Final[dict[str, tuple[ReadVerdict | None, ReadRows | None]]] = {}
"""The readers of the responses of a type, by its full name; only ever added to."""


def response_readers(response: Message) -> tuple[ReadVerdict | None, ReadRows | None]:
    """Return the readers of a response's verdict and of its number of items; None for a part that it lacks."""
    name = response.DESCRIPTOR.full_name
    if name not in known_readers:
        known_readers[name] = make_readers(response)
    return known_readers[name]


def make_readers(response: Message) -> tuple[ReadVerdict | None, ReadRows | None]:
    kind = response.DESCRIPTOR
    if "allowed" in kind.fields_by_name:
        # It lists guardrails that fired.
        return verdict_word, None
    read_verdict: ReadVerdict | None = None
    if "guardrail_status" in kind.fields_by_name:

        def read_verdict(response: Any) -> str:
            return verdict_word(response.guardrail_status) if response.HasField("guardrail_status") else ""

    listed = next((each.name for each in kind.fields if each.is_repeated and each.message_type is not None), None)
    return read_verdict, None if listed is None else lambda response: len(getattr(response, listed))


def verdict_word(verdict: Any) -> str:
    return "allowed" if verdict.allowed else "approval" if verdict.approval_required else "blocked"


class CallLine:
    """The fields of a line; the formatter of the call log writes them, any other formatter prints logfmt."""

    __slots__ = ("fields",)

    def __init__(self, fields: Mapping[str, LoggedValue]) -> None:
        self.fields = fields

    def __str__(self) -> str:
        return to_logfmt(self.fields)


class CallFormatter(logging.Formatter):
    """Writes the lines of the call log, with the time, the level and the process, as JSON or logfmt."""

    def __init__(self, write: Callable[[Mapping[str, LoggedValue]], str], process: str | None) -> None:
        super().__init__()
        self._write = write
        self._process = {} if process is None else {"process": process}

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = record.args[0] if isinstance(record.args, tuple) and record.args else None
        fields = line.fields if isinstance(line, CallLine) else {"message": record.getMessage()}
        return self._write({"time": at, "level": record.levelname.lower(), **self._process, **fields})


def to_json_line(fields: Mapping[str, LoggedValue]) -> str:
    return json.dumps(fields, separators=(",", ":"))


PLAIN: Final = re.compile(r"[!#-<>-\[\]-~]+")
"""Printable ASCII except spaces, quotes, equals signs and backslashes."""


def to_logfmt(fields: Mapping[str, LoggedValue]) -> str:
    """Return fields as `key=value`; values that need quotes are quoted as in JSON."""
    return " ".join(f"{name}={logfmt_value(value)}" for name, value in fields.items())


def logfmt_value(value: LoggedValue) -> str:
    if isinstance(value, str):
        return value if PLAIN.fullmatch(value) else json.dumps(value)
    return json.dumps(value)
