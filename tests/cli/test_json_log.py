"""`logging.format: json`: every line of a server, its workers and its bridge is JSON."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Invoke
from tests.cli.serving import ENVIRONMENT, started


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_every_line_is_an_object_with_time_and_level(home: Path, invoke: Invoke, workers: str) -> None:
    environment = {
        **ENVIRONMENT,
        "CSTP_LOGGING__FORMAT": "json",
        "CSTP_LOGGING__CALLS": "json",
        "CSTP_AUDIT__ENABLED": "false",
    }
    with started("serve", "--dev", "--workers", workers, environment=environment) as process:
        process.wait_for("ready: gRPC ")
        assert invoke("check", "Read the logs", "--agent", "developer").exit_code == 0
        process.wait_for('"method":"cstp.checkGuardrails"')
        process.popen.send_signal(signal.SIGHUP)
        process.wait_for("rulebooks are read again")
        assert process.end() == 0
        process.wait_for('"message":"stopped"')
    lines: list[dict[str, Any]] = [json.loads(line) for line in process.printed]
    assert all(line["time"].endswith("Z") and line["level"] for line in lines)
    messages = [line.get("message", "") for line in lines]
    assert any("records nothing" in message for message in messages)
    assert any(line.get("logger") == "bridge" for line in lines)
    if workers == "2":
        assert {line.get("process") for line in lines} >= {"worker 1", "worker 2"}


def test_uncaught_exceptions_and_warnings_are_objects_too() -> None:
    program = (
        "import threading, warnings\n"
        "from cstp_grpc.platform.config import build_settings, log_events_to_stderr\n"
        "log_events_to_stderr(build_settings(logging={'format': 'json'}).logging)\n"
        "warnings.warn('this is old')\n"
        "thread = threading.Thread(target=lambda: 1 / 0)\n"
        "thread.start(); thread.join()\n"
        "raise ValueError('two\\nlines')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    warning, thread, failure = map(json.loads, done.stderr.splitlines())
    assert "this is old" in warning["message"]
    assert (thread["level"], "ZeroDivisionError" in thread["exception"]) == ("critical", True)
    assert failure["exception"].endswith("ValueError: two\nlines")
    assert (done.stdout, done.returncode) == ("", 1)


def test_other_formats_of_calls_are_refused(home: Path, invoke: Invoke) -> None:
    (home / "cstp.yaml").write_text("logging: {format: json, calls: logfmt}")
    refused = invoke("config", "check", "--config", "cstp.yaml")
    assert refused.exit_code != 0
    assert "calls: must be off or json" in refused.output
