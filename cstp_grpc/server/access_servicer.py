"""The servicer that reports the caller's permissions and limits."""

from __future__ import annotations

import re

import grpc

from cstp_grpc.contract.caller import current_caller
from cstp_grpc.contract.enums import Permission
from cstp_grpc.contract.proto_values import EnumMapping
from cstp_grpc.core.guardrails.rules_in_force import RulesInForce
from cstp_grpc.gen.cstp.v1 import access_pb2, access_pb2_grpc, options_pb2
from cstp_grpc.platform.config import Settings

PERMISSION = EnumMapping(options_pb2.Permission, Permission)
RATE_SEPARATOR = re.compile(r"\s*(?:/|per)\s*")


class AccessService(access_pb2_grpc.AccessServiceServicer):
    """Serves cstp.v1.AccessService."""

    def __init__(self, settings: Settings, rules: RulesInForce, version: str) -> None:
        self._name = settings.agent.name
        self._version = version
        self._rules = rules
        self._limits = caller_limits(settings)

    def GetAccess(
        self, request: access_pb2.GetAccessRequest, context: grpc.ServicerContext
    ) -> access_pb2.GetAccessResponse:
        """Return the identity, permissions and limits of the caller."""
        caller = current_caller.get()
        rules = self._rules.current.listing
        return access_pb2.GetAccessResponse(
            requesting_agent=caller.agent,
            permissions=[PERMISSION.number(permission) for permission in sorted(caller.permissions)],
            guardrails=access_pb2.GuardrailSet(version=rules.version, count=rules.count),
            limits=self._limits,
            agent=self._name,
            version=self._version,
            tenant=caller.tenant,
        )


def caller_limits(settings: Settings) -> access_pb2.Limits:
    bounds = access_pb2.Limits(
        max_results=settings.cstp.query.max_results,
        max_message_bytes=settings.grpc.max_message_bytes,
        max_depth=settings.grpc.max_depth,
    )
    rates = settings.rate_limits
    if rates.enabled:
        bounds.per_method = normalize_rate(rates.per_agent)
        bounds.methods.update({name: normalize_rate(rate) for name, rate in rates.methods.items()})
        if rates.overall is not None:
            bounds.overall = normalize_rate(rates.overall)
    return bounds


def normalize_rate(rate: str) -> str:
    """Return a configured rate in the contract's form: `600 per minute` as `600/minute`."""
    return RATE_SEPARATOR.sub("/", rate)
