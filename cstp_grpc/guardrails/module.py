"""Wiring of the guardrails' own service."""

from __future__ import annotations

from cstp_grpc.gen.cstp.v1 import guardrails_pb2_grpc
from cstp_grpc.guardrails.checker import GuardrailChecker
from cstp_grpc.guardrails.model import RuleSet
from cstp_grpc.guardrails.rule_listing import RuleListing
from cstp_grpc.guardrails.servicer import GuardrailService
from cstp_grpc.server.execution import PoolName
from cstp_grpc.server_module import Module, SharedParts


def build_guardrails_module(shared: SharedParts, rule_set: RuleSet, checker: GuardrailChecker) -> Module:
    """Build the service that tells agents by what they are judged."""
    rules = RuleListing(rule_set, shared.clock())
    # The threads of searches: a batch computes, and must not take those of single checks.
    run_blocking = shared.pools[PoolName.QUERIES].run
    settings = shared.settings
    # Half of a message, because the estimate leaves out what frames the fields.
    max_bytes = settings.grpc.max_message_bytes // 2
    servicer = GuardrailService(settings.agent.name, rules, checker, run_blocking, max_bytes)
    return Module(servicers=[(guardrails_pb2_grpc.add_GuardrailServiceServicer_to_server, servicer)])
