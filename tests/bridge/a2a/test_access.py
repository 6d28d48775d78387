"""Who is let in, what an agent is told of itself, and how the extension is activated, over every binding."""

from __future__ import annotations

from typing import Any

import pytest

from cstp_grpc.contract.enums import Permission
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.platform.config import Settings
from tests.bridge.a2a.bindings import (
    BINDINGS,
    Binding,
    connected,
    sending,
)
from tests.bridge.a2a.operation_params import PARAMS
from tests.bridge.a2a.products import Product
from tests.bridge.a2a.raw import URI, Core
from tests.bridge.a2a.refusals import assert_refused
from tests.bridge.a2a.tasks import INTENT
from tests.harness import Peers, peering


def access_of(card: Any) -> Any:
    """Return the access of its reader that the extension of a card states."""
    (params,) = [each["params"] for each in card["capabilities"]["extensions"] if each["uri"] == URI]
    return params["access"]


def urls_of(binding: Binding, card: Any) -> dict[str, str]:
    """Return the URLs of a card's bindings; a card of 0.3 has them in members of their own."""
    if binding.version == "1.0":
        return {each["protocolBinding"]: each["url"] for each in card["supportedInterfaces"]}
    others = {each["transport"]: each["url"] for each in card.get("additionalInterfaces", [])}
    return {**others, card["preferredTransport"]: card["url"]}


@pytest.mark.parametrize(
    ("who", "headers"), [(None, {}), ("a-token-of-nobody", {"A2A-Extensions": URI})], ids=["nobody", "unknown"]
)
def test_strangers_learn_only_that_they_are_strangers(
    binding: Binding, who: str | None, headers: dict[str, str]
) -> None:
    for operation in binding.operations:
        for params in PARAMS[operation]:
            refusal = assert_refused(
                binding, binding.perform(operation, params, who=who, headers=headers), "AUTHENTICATION_REQUIRED"
            )
            assert (refusal.fields, list(refusal.metadata)) == ((), ["requestId"]), operation


def test_strangers_learn_nothing_of_a_task_that_there_is(binding: Binding) -> None:
    task_id = binding.send(INTENT).task["id"]
    for operation in ("GetTask", "CancelTask", "SubscribeToTask"):
        there, nowhere = (
            assert_refused(binding, binding.perform(operation, {"id": each}, who=None), "AUTHENTICATION_REQUIRED")
            for each in (task_id, "none")
        )
        assert there.message == nowhere.message


def test_the_extended_card_tells_what_its_reader_may_do(binding: Binding) -> None:
    alice, reader = (binding.call("GetExtendedAgentCard", {}, who=who).result for who in ("alice", "reader"))
    assert [access_of(card)["agent"] for card in (alice, reader)] == ["alice", "reader"]
    assert access_of(alice)["permissions"] == sorted(Permission)
    assert access_of(reader)["permissions"] == ["check", "query"]
    callable_methods = {
        method.name
        for method in contract_methods().values()
        if method.public and not method.streaming and not method.secret_response
    }
    assert {skill["id"] for skill in alice["skills"]} == callable_methods
    assert {skill["id"] for skill in reader["skills"]} < callable_methods
    assert urls_of(binding, alice) == urls_of(binding, reader)


def test_the_extended_card_names_the_bridge(binding: Binding, peers: Peers) -> None:
    urls = urls_of(binding, binding.call("GetExtendedAgentCard", {}).result)
    assert urls["JSONRPC"] == f"{peers.url}/a2a/"
    assert urls["GRPC"] == peers.grpc_target
    if binding.version == "1.0":
        assert urls["HTTP+JSON"] == f"{peers.url}/a2a/v1"


def test_the_configured_address_is_on_the_extended_card(script: Core, target: str) -> None:
    wanted = {"server": {"port": 0, "public_url": "https://agent.example.com/"}, "a2a": {"grpc_port": 0}}
    with peering(Settings.model_validate(wanted), target) as peers:
        for kind in BINDINGS:
            with connected(kind, peers) as binding:
                urls = urls_of(binding, binding.call("GetExtendedAgentCard", {}).result)
            assert urls["JSONRPC"] == "https://agent.example.com/a2a/"
            assert urls.get("HTTP+JSON", "https://agent.example.com/a2a/v1") == "https://agent.example.com/a2a/v1"


# The extension


@pytest.mark.parametrize(
    ("headers", "echoed"),
    [
        ({}, set()),
        ({"A2A-Extensions": "urn:other"}, set()),
        ({"A2A-Extensions": f"urn:other , {URI}"}, {"a2a-extensions"}),
        ({"X-A2A-Extensions": URI}, {"a2a-extensions", "x-a2a-extensions"}),
    ],
)
def test_the_activated_extension_is_echoed(binding: Binding, headers: dict[str, str], echoed: set[str]) -> None:
    for operation, params in (
        ("SendMessage", sending(INTENT)),
        ("SendStreamingMessage", sending(INTENT)),
        ("GetTask", {"id": "none"}),
    ):
        found = binding.perform(operation, params, headers=headers).headers
        assert {name: value for name, value in found.items() if name.endswith("a2a-extensions")} == dict.fromkeys(
            echoed, URI
        )


@pytest.mark.parametrize("kind", BINDINGS)
def test_a_required_extension_is_required_of_every_operation_but_the_card(strict: Product, kind: type[Binding]) -> None:
    binding = strict.binding(kind)
    active = {"A2A-Extensions": URI}
    task_id = binding.send(INTENT, headers=active).task["id"]
    assert binding.call("GetTask", {"id": task_id}, headers=active).task["id"] == task_id
    for operation in binding.operations:
        right = PARAMS[operation][0]
        if operation == "GetExtendedAgentCard":
            assert binding.call(operation, right).result["name"]
        else:
            assert_refused(binding, binding.perform(operation, right), "EXTENSION_SUPPORT_REQUIRED")
    assert_refused(binding, binding.call("GetTask", {"id": task_id}, who=None), "AUTHENTICATION_REQUIRED")
