"""One line for each call: what it holds, what it never holds, and its forms."""

from __future__ import annotations

import io
import json
import logging
import queue
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.contract.json_codec import from_json
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.contract.rpc_errors import REQUEST_ID_KEY
from cstp_grpc.platform.config.process_log import LoggingSettings
from cstp_grpc.server.call_log import (
    CALL_LOGGER,
    CallFormatter,
    CallLine,
    LoggedValue,
    read_trace_id,
    to_json_line,
    to_logfmt,
)
from cstp_grpc.server.call_log_output import BoundedQueueHandler, write_call_log
from tests.harness import TIMEOUT, TOKENS, GrpcCaller, running, settings

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SECRET = "zebra-in-the-garden"


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrpcCaller]:
    """What calls a server that logs each call."""
    with running(settings(tmp_path_factory.mktemp("logged"), logging={"calls": "json"})) as app:
        caller = GrpcCaller(app.target)
        yield caller
        caller.close()


def call(caller: GrpcCaller, method: str, params: Mapping[str, Any], token: str = TOKENS["alice"]) -> None:
    """Call a method with a request id and a trace, whatever comes of it."""
    rpc = contract_methods()[method]
    metadata = (
        (REQUEST_ID_KEY, "r-1"),
        ("traceparent", f"00-{TRACE}-00f067aa0ba902b7-01"),
        ("authorization", f"Bearer {token}"),
    )
    invoke = caller.channel.unary_unary(rpc.path, rpc.request.SerializeToString, rpc.response.FromString)
    invoke.future(from_json(params, rpc.request), timeout=TIMEOUT, metadata=metadata).exception()


def logged_lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Return the lines that were logged of calls, as JSON has them."""
    formatter = CallFormatter(to_json_line, None)
    return [json.loads(formatter.format(each)) for each in caplog.records if each.name == CALL_LOGGER]


@pytest.mark.parametrize(
    ("method", "params", "expected"),
    [
        ("cstp.checkGuardrails", {"action": {"description": SECRET}}, {"status": "OK", "verdict": "allowed"}),
        (
            "cstp.checkGuardrails",
            {
                "action": {
                    "description": SECRET,
                    "stakes": "critical",
                    "context": {"affectsProduction": True, "codeReviewCompleted": False},
                }
            },
            {"status": "OK", "verdict": "blocked"},
        ),
        (
            "cstp.announceIntent",
            {"intent": SECRET, "correlationId": "c-1", "agent": {"id": "alice"}},
            {"status": "OK", "verdict": "allowed", "rows": 0},
        ),
        ("cstp.queryDecisions", {"query": SECRET}, {"status": "OK", "rows": 0}),
        ("cstp.getDecision", {"id": SECRET}, {"status": "NOT_FOUND", "reason": "NOT_FOUND"}),
        ("cstp.checkGuardrails", {}, {"status": "INVALID_ARGUMENT", "reason": "INVALID_ARGUMENT"}),
    ],
)
def test_a_line_says_what_became_of_a_call_and_nothing_of_what_was_said(
    caller: GrpcCaller,
    caplog: pytest.LogCaptureFixture,
    method: str,
    params: dict[str, Any],
    expected: dict[str, object],
) -> None:
    with caplog.at_level(logging.INFO, CALL_LOGGER):
        call(caller, method, params)
    (line,) = logged_lines(caplog)
    known = {"level": "info", "request_id": "r-1", "trace_id": TRACE, "agent": "alice", "method": method}
    assert line.pop("ms") > 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == known | expected
    assert SECRET not in json.dumps(line)


def test_the_guide_names_every_field(caller: GrpcCaller, caplog: pytest.LogCaptureFixture) -> None:
    guide = (Path(__file__).parents[3] / "docs/observability.md").read_text().partition("## The call log")[2]
    rows = re.findall(r"^- ([^:]+):", guide.partition("\n## ")[0], re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    with caplog.at_level(logging.INFO, CALL_LOGGER):
        call(caller, "cstp.announceIntent", {"intent": "x", "correlationId": "c-2", "agent": {"id": "alice"}})
        call(caller, "cstp.checkGuardrails", {})
    written = {name for line in logged_lines(caplog) for name in line}
    assert written | {"process", "slow"} == documented


def test_who_is_not_known_has_no_name_and_no_token_in_the_log(
    caller: GrpcCaller, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        call(caller, "cstp.queryDecisions", {"query": "x"}, "a-wrong-token")
    (line,) = logged_lines(caplog)
    assert "agent" not in line
    assert line["status"] == "UNAUTHENTICATED"
    assert "a-wrong-token" not in caplog.text


@pytest.mark.parametrize(("seconds", "slow"), [(1e-6, True), (3600.0, False)])
def test_slow_calls_alone_are_warnings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, seconds: float, slow: bool
) -> None:
    with (
        running(settings(tmp_path, logging={"slow_call_seconds": seconds})) as app,
        caplog.at_level(logging.INFO, CALL_LOGGER),
    ):
        caller = GrpcCaller(app.target)
        call(caller, "cstp.getAccess", {})
        caller.close()
    assert [(line["level"], line["slow"]) for line in logged_lines(caplog)] == [("warning", True)] * slow


VALUES = st.one_of(st.text(max_size=20), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans())
NAMES = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=10)


@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=5))
def test_logfmt_keeps_every_value_on_one_line(fields: dict[str, Any]) -> None:
    written = to_logfmt(fields)
    assert written.isprintable()
    assert written.isascii()
    found = dict(re.findall(r'(\w+)=("(?:[^"\\]|\\.)*"|[^ ]*)(?: |$)', written))
    read = {name: json.loads(text) if text.startswith('"') else text for name, text in found.items()}
    assert read == {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}


def test_logfmt_reads_well() -> None:
    fields: dict[str, LoggedValue] = {
        "agent": "alice",
        "method": "cstp.getAccess",
        "ms": 1.5,
        "slow": True,
        "process": "worker 1",
    }
    assert to_logfmt(fields) == 'agent=alice method=cstp.getAccess ms=1.5 slow=true process="worker 1"'
    assert shlex.split(to_logfmt(fields))[-1] == "process=worker 1"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (f"00-{TRACE}-00f067aa0ba902b7-01", TRACE),
        (f"cc-{TRACE}-00f067aa0ba902b7-01-what-comes-later", TRACE),
        (f"00-{'0' * 32}-00f067aa0ba902b7-01", None),
        (f"00-{TRACE.upper()}-00f067aa0ba902b7-01", None),
        ("nonsense", None),
        (b"00", None),
        (None, None),
    ],
)
def test_the_trace_is_that_of_the_header(header: str | bytes | None, expected: str | None) -> None:
    assert read_trace_id(header) == expected


@pytest.fixture
def call_logger() -> Iterator[logging.Logger]:
    """The logger of calls, which is as before afterwards."""
    logger = logging.getLogger(CALL_LOGGER)
    before = list(logger.handlers), logger.propagate, logger.level
    logger.setLevel(logging.INFO)
    yield logger
    logger.handlers[:], logger.propagate, logger.level = before


@pytest.mark.parametrize("form", ["json", "logfmt"])
def test_lines_are_written_in_the_form_of_the_settings(call_logger: logging.Logger, form: str) -> None:
    written = io.StringIO()
    listener = write_call_log(LoggingSettings.model_validate({"calls": form}), "worker 2", written)
    call_logger.info("%s", CallLine({"agent": "alice", "ms": 2}))
    listener.stop()
    (line,) = written.getvalue().splitlines()
    if form == "json":
        fields = json.loads(line)
        assert fields.pop("time")
        assert fields == {"level": "info", "process": "worker 2", "agent": "alice", "ms": 2}
    else:
        assert line.endswith('Z level=info process="worker 2" agent=alice ms=2')


def test_nobody_waits_for_who_does_not_read(call_logger: logging.Logger) -> None:
    waiting: queue.Queue[logging.LogRecord] = queue.Queue(2)
    call_logger.addHandler(BoundedQueueHandler(waiting))
    call_logger.propagate = False
    for number in range(5):
        call_logger.info("%s", CallLine({"number": number}))
    lines = [waiting.get_nowait().getMessage() for _ in range(2)]
    call_logger.info("%s", CallLine({"number": 5}))
    lines += [waiting.get_nowait().getMessage() for _ in range(2)]
    said = "lines of calls were dropped, because they were not read fast enough: 3"
    assert lines == ["number=0", "number=1", said, "number=5"]
