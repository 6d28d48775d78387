"""Agents without peers, and peers that read a part."""

from __future__ import annotations

import pytest

from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.gen.cstp.v1 import cstp_pb2, types_pb2
from tests.harness import TOKENS, GrpcCaller
from tests.modules.federation.agents import PEER_TOKEN
from tests.modules.federation.house import METHODS, TIMEOUT, given


@pytest.mark.parametrize("scope", ["federated", "local", None])
@pytest.mark.parametrize("method", METHODS)
def test_an_agent_without_peers_answers_alone_whatever_the_scope(
    lone: GrpcCaller, method: str, scope: str | None
) -> None:
    outcome = lone.call(method, {**METHODS[method], **given(scope)})
    assert outcome.result is not None, outcome
    assert outcome.result["responses"] == []
    verdict = outcome.result.get("guardrailStatus", outcome.result)
    if "violations" in verdict:
        assert [each["guardrailId"] for each in verdict["violations"]] == ["not-twice"]
        assert "agent" not in verdict["violations"][0]


@pytest.mark.parametrize("hops", ["id=x;hops=1;path=b", "id=x;hops=0;path=a", "nonsense"])
def test_what_hop_metadata_say_means_nothing_to_an_agent_without_peers(lone: GrpcCaller, hops: str) -> None:
    rpc = contract_methods()["cstp.checkGuardrails"]
    invoke = lone.channel.unary_unary(rpc.path, rpc.request.SerializeToString, rpc.response.FromString)
    request = cstp_pb2.CheckGuardrailsRequest(
        action=cstp_pb2.Action(description="Ship it"), scope=types_pb2.SCOPE_FEDERATED
    )
    metadata = (("authorization", f"Bearer {TOKENS['alice']}"), ("x-cstp-federation", hops))
    answer = invoke(request, timeout=TIMEOUT, metadata=metadata)
    assert isinstance(answer, cstp_pb2.CheckGuardrailsResponse)
    assert answer.allowed
    assert not answer.responses


@pytest.mark.parametrize("method", METHODS)
def test_an_agent_without_peers_has_none_to_be_named(lone: GrpcCaller, method: str) -> None:
    for scope in ("federated", None):
        outcome = lone.call(method, {**METHODS[method], **given(scope), "agents": ["b", "c"]})
        assert (outcome.reason, outcome.message) == ("INVALID_ARGUMENT", "There is no peer b")
        assert outcome.fields == ("agents[0]", "agents[1]")
    contradicting = lone.call(method, {**METHODS[method], "scope": "local", "agents": ["b"]})
    assert contradicting.fields == ("agents",)


def test_a_peer_that_reads_a_part_is_answered_by_the_agent_alone_whomever_it_names(lone: GrpcCaller) -> None:
    params = {**METHODS["cstp.queryDecisions"], "agents": ["b"]}
    assert lone.call("cstp.queryDecisions", params, token=PEER_TOKEN).result is not None
    local = lone.call("cstp.queryDecisions", {**params, "scope": "local"}, token=PEER_TOKEN)
    assert local.reason == "INVALID_ARGUMENT"
