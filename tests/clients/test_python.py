"""The cases of all clients, with the Python ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf import json_format
from google.protobuf.message import Message

from cstp_grpc.client import CstpClient, RetryPolicy
from cstp_grpc.client.contract import methods
from cstp_grpc.errors import CstpError
from tests.clients.serving import CASES, Table, table

NAMES = [case["name"] for case in yaml.safe_load(CASES.read_text(encoding="utf-8"))["cases"]]
ONCE = RetryPolicy(attempts=1)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    with table(tmp_path_factory.mktemp("clients"), "python") as found:
        yield found


@pytest.mark.parametrize("name", NAMES)
def test_case(served: Table, name: str) -> None:
    case = served.case(name)
    for step in case.get("steps", [case]):
        with client_of(served, case) as client:
            judge(step, lambda: make(client, step, case.get("timeoutMs")))  # noqa: B023 - called at once


def client_of(served: Table, case: dict[str, Any]) -> CstpClient:
    target = served.content["servers"][case.get("server", "plain")]
    token = served.content["tokens"][case.get("token", "alice")]
    roots = Path(served.content["rootCertificates"]).read_bytes()
    # To this client an https address is that of a bridge.
    target = target.replace("https://", "grpcs://")
    retries = {"retries": RetryPolicy(attempts=case["attempts"])} if "attempts" in case else {}
    return CstpClient(target, token, root_certificates=roots, **retries)


def make(client: CstpClient, step: dict[str, Any], timeout_ms: int | None) -> Any:
    timeout = None if timeout_ms is None else timeout_ms / 1000
    call = step["call"]
    if call == "importDecisions":
        method = methods()["cstp.importDecisions"]
        requests = [json_format.ParseDict(each, method.request()) for each in step["requests"]]
        return {"results": [printed(each) for each in client.import_decisions(requests, timeout=timeout)]}
    if call == "watchEvents":
        method = methods()["liaison.watchEvents"]
        with client.watch(method, json_format.ParseDict(step["request"], method.request()), timeout) as answers:
            return [printed(next(answers)) for _ in range(step["take"])]
    method = methods()[f"cstp.{call}"]
    return printed(client.call(method, json_format.ParseDict(step["request"], method.request()), timeout))


def printed(message: Message) -> dict[str, Any]:
    return json_format.MessageToDict(message, always_print_fields_with_no_presence=True)


def judge(step: dict[str, Any], call: Any) -> None:
    if "error" not in step:
        assert holds(step.get("answer", step.get("answers")), call())
        return
    with pytest.raises(CstpError) as caught:
        call()
    wanted, error = step["error"], caught.value
    assert error.reason == wanted["reason"]
    assert wanted.get("message", "") in error.message
    assert {violation.field for violation in error.violations} == set(wanted.get("violations", []))
    assert [block.guardrail_id for block in error.blocks] == wanted.get("blocks", [])
    assert all(block.name and block.message for block in error.blocks)
    assert wanted.get("metadata", {}).items() <= error.metadata.items()
    if "requestId" in wanted:
        assert bool(error.metadata.get("requestId")) is wanted["requestId"]
    if "retryDelayMs" in wanted:
        least, most = wanted["retryDelayMs"]
        assert error.retry_after is not None
        assert least <= error.retry_after * 1000 <= most


def holds(wanted: Any, given: Any) -> bool:
    """Whether an answer holds what is wanted, as clients/cases.yaml says."""
    if wanted == "$any":
        return given is not None
    if isinstance(wanted, dict):
        return isinstance(given, dict) and all(name in given and holds(wanted[name], given[name]) for name in wanted)
    if isinstance(wanted, list):
        return isinstance(given, list) and len(wanted) == len(given) and all(map(holds, wanted, given))
    return bool(wanted == given)
