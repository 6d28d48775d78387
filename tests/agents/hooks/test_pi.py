"""Events of Pi as they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from cstp_grpc.agents.hooks.pi import read_event
from tests.agents.hooks.payloads import payload


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("src/.env", "/project/src/.env"),
        ("@src/.env", "/project/src/.env"),
        ("~/.ssh/id_rsa", str(Path("~/.ssh/id_rsa").expanduser())),
        ("@file:///etc/my%20passwords", "/etc/my passwords"),
    ],
)
def test_a_path_is_read_as_pi_reads_it(written: str, meant: str) -> None:
    assert read_event(payload("bash", agent="pi", tool_name="read", tool_input={"path": written})).arguments == {
        "path": meant
    }
