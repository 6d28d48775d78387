"""The cases of all clients, with the Python ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf import json_format
from google.protobuf.message import Message

from cstp_grpc.client import AsyncCstpClient, CstpClient, RetryPolicy
from cstp_grpc.contract.errors import CstpError
from cstp_grpc.contract.methods import RpcMethod, contract_methods
from tests.clients.serving import CASES, Table, table

NAMES = [case["name"] for case in yaml.safe_load(CASES.read_text(encoding="utf-8"))["cases"]]


@pytest.fixture(scope="module", params=["threads", "event loop"])
def kind(request: pytest.FixtureRequest) -> str:
    given: str = request.param
    return given


@pytest.fixture(scope="module")
def served(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    with table(tmp_path_factory.mktemp("clients"), f"python-{kind.replace(' ', '-')}") as found:
        yield found


@pytest.mark.parametrize("name", NAMES)
def test_case(served: Table, kind: str, name: str) -> None:
    case = served.case(name)
    for step in case.get("steps", [case]):
        judge(step, lambda: attempt(kind, served, case, step))  # noqa: B023 - called at once


def attempt(kind: str, served: Table, case: dict[str, Any], step: dict[str, Any]) -> Any:
    """Make a call of a case with one of the two clients."""
    target, token, options = told(served, case)
    timeout = case["timeoutMs"] / 1000 if "timeoutMs" in case else None
    if kind == "threads":
        with CstpClient(target, token, **options) as client:
            return make(client, step, timeout)

    async def within() -> Any:
        async with AsyncCstpClient(target, token, **options) as client:
            return await make_async(client, step, timeout)

    return asyncio.run(within())


def told(served: Table, case: dict[str, Any]) -> tuple[str, str | None, dict[str, Any]]:
    """Return the arguments of a client: target, token and options."""
    target = served.content["servers"][case.get("server", "plain")]
    token = served.content["tokens"][case.get("token", "alice")]
    roots = Path(served.content["rootCertificates"]).read_bytes()
    # To this client an https address is that of a bridge.
    target = target.replace("https://", "grpcs://")
    retries = {"retries": RetryPolicy(attempts=case["attempts"])} if "attempts" in case else {}
    return target, token, {"root_certificates": roots, **retries}


def make(client: CstpClient, step: dict[str, Any], timeout: float | None) -> Any:
    method, requests = asked(step)
    if step["call"] == "importDecisions":
        return {"results": [printed(each) for each in client.import_decisions(requests, timeout=timeout)]}
    if step["call"] == "watchEvents":
        with client.watch(method, requests[0], timeout) as answers:
            return [printed(next(answers)) for _ in range(step["take"])]
    return printed(client.call(method, requests[0], timeout))


async def make_async(client: AsyncCstpClient, step: dict[str, Any], timeout: float | None) -> Any:
    method, requests = asked(step)
    if step["call"] == "importDecisions":
        return {"results": [printed(each) async for each in client.import_decisions(requests, timeout=timeout)]}
    if step["call"] == "watchEvents":
        async with await client.watch(method, requests[0], timeout) as answers:
            return [printed(await anext(answers)) for _ in range(step["take"])]
    return printed(await client.call(method, requests[0], timeout))


def asked(step: dict[str, Any]) -> tuple[RpcMethod, list[Any]]:
    """Return the method of a call, and what is sent."""
    name = step["call"]
    method = contract_methods()[f"liaison.{name}" if name == "watchEvents" else f"cstp.{name}"]
    return method, [
        json_format.ParseDict(each, method.request()) for each in step.get("requests", [step.get("request")])
    ]


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
