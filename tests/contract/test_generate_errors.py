"""The generator refuses options of error reasons that cannot be used, and says which."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("generate_errors")


def make_reason(generator: ModuleType, **options: Any) -> Any:
    plain = generator.Reason(
        name="TOPIC_CLOSED",
        comment="The topic is closed.",
        grpc_code="FAILED_PRECONDITION",
        json_rpc_code=-32012,
        http_status=200,
        a2a_code=-31012,
        a2a_http_status=400,
        retriable=False,
        parent=None,
        bridge_only=False,
        bare_grpc_codes=(),
        bare_json_rpc_codes=(),
        bare_http_statuses=(),
    )
    return replace(plain, **options)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, None),
        ({"grpc_code": ""}, "grpc_code"),
        ({"grpc_code": "OK"}, "grpc_code"),
        ({"bare_grpc_codes": ("FORBIDDEN",)}, "bare_grpc_codes"),
        ({"json_rpc_code": 0}, "json_rpc_code"),
        ({"a2a_http_status": 0}, "a2a_http_status"),
        ({"json_rpc_code": -32014, "a2a_code": -32014}, "a2a_code"),
        ({"grpc_code": "", "json_rpc_code": 0, "a2a_code": 0, "a2a_http_status": 0}, "add the option error_codes"),
        ({"bare_grpc_codes": ("ABORTED",)}, "EARLIER has ABORTED"),
        ({"parent": "EARLIER"}, "parent"),
    ],
)
def test_options_that_cannot_be_used_are_named(
    generator: ModuleType, options: dict[str, Any], problem: str | None
) -> None:
    earlier = make_reason(generator, name="EARLIER", parent="CONFLICT", bare_grpc_codes=("ABORTED",))
    reason = make_reason(generator, **options)
    found = generator.find_problem(reason, [earlier, reason])
    assert found is None if problem is None else problem in found
