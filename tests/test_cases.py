"""Runs every case under tests/cases over both transports.

A case is one exchange: `requirement` (what it proves), `rulebook` (a file under cases/rulebooks, or `default`),
`decisions` (recorded by `by`, alice unless stated), `settings`, `before` (earlier exchanges), `caller`, `call`,
`params`, and `expect`: a whole `result`, in which `$instant`, `$uuid`, `$text`, `$number` and `$whole` stand for
anything of that kind, or an `error` with `reason` and the violated `fields`.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml

from tests.harness import TOKENS, GrpcCaller, JsonRpcCaller, Outcome, bridging, running, settings

CASES = Path(__file__).parent / "cases"
FILES = sorted(path for path in CASES.glob("*/*.yaml") if path.parent.name != "rulebooks")
TRANSPORTS = ["grpc", "jsonrpc"]

INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


def is_uuid(value: Any) -> bool:
    return isinstance(value, str) and str(UUID(value)) == value


PLACEHOLDERS = {
    "$instant": lambda value: isinstance(value, str) and bool(INSTANT.fullmatch(value)),
    "$uuid": is_uuid,
    "$text": lambda value: isinstance(value, str) and bool(value),
    "$number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "$whole": lambda value: isinstance(value, int) and not isinstance(value, bool),
}


def differences(expected: Any, actual: Any, path: str = "result") -> Iterator[str]:
    """Yield where two JSON values differ."""
    if isinstance(expected, datetime):
        expected = expected.strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(expected, str) and expected in PLACEHOLDERS:
        if not PLACEHOLDERS[expected](actual):
            yield f"{path}: {actual!r} is not {expected}"
    elif isinstance(expected, dict) and isinstance(actual, dict):
        for key in sorted(expected.keys() | actual.keys()):
            if key not in actual:
                yield f"{path}.{key} is missing"
            elif key not in expected:
                yield f"{path}.{key} is not expected: {actual[key]!r}"
            else:
                yield from differences(expected[key], actual[key], f"{path}.{key}")
    elif isinstance(expected, list) and isinstance(actual, list):
        if len(expected) != len(actual):
            yield f"{path} has {len(actual)} items, not {len(expected)}: {actual!r}"
        for index, (wanted, found) in enumerate(zip(expected, actual, strict=False)):
            yield from differences(wanted, found, f"{path}[{index}]")
    elif isinstance(expected, float) and isinstance(actual, int | float):
        if not math.isclose(expected, actual, abs_tol=1e-9):
            yield f"{path}: {actual!r} is not {expected!r}"
    elif expected != actual or isinstance(expected, bool) != isinstance(actual, bool):
        yield f"{path}: {actual!r} is not {expected!r}"


def judge(expect: dict[str, Any], outcome: Outcome) -> None:
    if "error" in expect:
        assert outcome.reason == expect["error"]["reason"], outcome
        assert sorted(map(snake, outcome.fields)) == sorted(map(snake, expect["error"].get("fields", []))), outcome
    else:
        assert outcome.reason is None, outcome
        found = list(differences(expect["result"], outcome.result))
        assert not found, "\n".join(found)


def snake(path: str) -> str:
    """Field paths are written as the contract does on gRPC and as JSON does on JSON-RPC."""
    return re.sub(r"([A-Z])", lambda match: "_" + match[1].lower(), path)


def runs() -> Iterator[Any]:
    """Yield every case with each transport that it is about."""
    for path in FILES:
        case = yaml.safe_load(path.read_text())
        assert case["requirement"], path
        for transport in case.get("transports", TRANSPORTS):
            yield pytest.param(case, transport, id=f"{path.parent.name}/{path.stem}-{transport}")


@pytest.mark.parametrize(("case", "transport"), list(runs()))
def test_case(case: dict[str, Any], transport: str, tmp_path: Path) -> None:
    case = copy.deepcopy(case)
    overrides = case.get("settings", {})
    if case.get("rulebook", "default") != "default":
        overrides.setdefault("cstp", {})["guardrails"] = {"config_path": str(CASES / "rulebooks" / case["rulebook"])}
    wanted = settings(tmp_path, **overrides)
    with running(wanted) as app, bridging(wanted, app.target) as url:
        caller = GrpcCaller(app.target) if transport == "grpc" else JsonRpcCaller(url)
        try:
            for decision in case.get("decisions", []):
                by = decision.pop("by", "alice")
                earlier = caller.call("cstp.recordDecision", {"decision": plain(decision)}, TOKENS[by])
                assert earlier.reason is None, earlier
            for exchange in case.get("before", []):
                earlier = caller.call(exchange["call"], plain(exchange["params"]), token_of(exchange))
                assert earlier.reason == exchange.get("reason"), earlier
            outcome = caller.call(case["call"], plain(case.get("params", {})), token_of(case))
        finally:
            caller.close()
    judge(case["expect"], outcome)


def token_of(exchange: dict[str, Any]) -> str | None:
    caller = exchange.get("caller", "alice")
    return TOKENS.get(caller, caller) if caller else None


def plain(value: Any) -> Any:
    """YAML reads instants; JSON has them as text."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.strftime("%Y-%m-%dT%H:%M:%SZ") if isinstance(value, datetime) else value
