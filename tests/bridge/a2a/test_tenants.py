"""A tenant that a request names is that of its token, or the request is refused, over every binding."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bridge.a2a.bindings import BINDINGS, Binding, OldGrpc, with_tenant
from tests.bridge.a2a.operation_params import PARAMS
from tests.bridge.a2a.raw import Raw, call, info_of, saying, saying_in_0_3
from tests.bridge.a2a.refusals import assert_refused

OWN = {"alice": "default", "carol": "other"}
NAMING = pytest.mark.parametrize("binding", [kind for kind in BINDINGS if kind is not OldGrpc], indirect=True)
"""Over gRPC, 0.3 names no tenants."""


@NAMING
@pytest.mark.parametrize("who", OWN)
def test_the_tenant_of_the_token_may_be_named(binding: Binding, who: str) -> None:
    task = binding.send("Deploy", who=who, tenant=OWN[who]).task
    assert binding.get(task["id"], who=who, tenant=OWN[who]).task == task == binding.get(task["id"], who=who).task
    assert binding.cancel(task["id"], who=who, tenant=OWN[who]).reason == "TASK_NOT_CANCELABLE"


@NAMING
@pytest.mark.parametrize("who", OWN)
def test_another_tenant_is_refused(binding: Binding, who: str) -> None:
    task_id = binding.send("Deploy", who=who).task["id"]
    for tenant in {"other", "default", "nobody", "Default"} - {OWN[who]}:
        for at_once in (False, True):
            sent = binding.send("Deploy", who=who, tenant=tenant, at_once=at_once)
            assert_refused(binding, sent, "PERMISSION_DENIED")
        assert_refused(binding, binding.get(task_id, who=who, tenant=tenant), "PERMISSION_DENIED")
        assert_refused(binding, binding.cancel(task_id, who=who, tenant=tenant), "PERMISSION_DENIED")


@NAMING
def test_every_operation_looks_at_the_tenant(binding: Binding) -> None:
    for operation in binding.operations:
        right = PARAMS[operation][0]
        assert_refused(binding, binding.perform(operation, with_tenant(right, "nobody")), "PERMISSION_DENIED")
        own = binding.perform(operation, with_tenant(right, "default"))
        assert own.reason == binding.perform(operation, right).reason != "PERMISSION_DENIED", operation


@NAMING
@pytest.mark.parametrize("tenant", ["default", "nobody"])
def test_a_stranger_learns_nothing_of_tenants(binding: Binding, tenant: str) -> None:
    reply = binding.call("GetTask", {"id": "t", "tenant": tenant}, who="a-token-of-nobody")
    assert_refused(binding, reply, "AUTHENTICATION_REQUIRED")


# Where a tenant can be named besides


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/tasks", None),
        ("GET", "/tasks/t", None),
        ("GET", "/tasks/t:subscribe", None),
        ("DELETE", "/tasks/t/pushNotificationConfigs/c", None),
        ("POST", "/message:send", saying("x")),
    ],
)
def test_a_tenant_beside_the_path_is_looked_at_too(raw: Raw, method: str, path: str, body: Any) -> None:
    for below in ("", "/default"):
        target = f"/a2a/v1{below}{path}" + ("" if body else "?tenant=nobody")
        answer = raw.send(method, target, body and {**body, "tenant": "nobody"})
        assert (answer.status, info_of(answer.json["error"]["details"])[1]) == (403, "PERMISSION_DENIED")


@pytest.mark.parametrize("method", ["message/send", "message/stream"])
def test_a_tenant_of_0_3_is_a_text(raw: Raw, method: str) -> None:
    answer = raw.post(call(method, {**saying_in_0_3("x"), "tenant": 1}), version="0.3")
    assert b"-32602" in answer.body
    assert b"tenant: must be a string" in answer.body


def test_a_batch_has_the_tenant_of_each_call(raw: Raw) -> None:
    calls = [
        call("message/send", {**saying_in_0_3("x"), "tenant": "nobody"}),
        call("message/send", saying_in_0_3("x"), id=2),
    ]
    first, second = raw.post(calls, version="0.3").json
    assert "error" in first
    assert second["result"]["status"]["state"] == "completed"
