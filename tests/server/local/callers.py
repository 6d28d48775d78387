"""Calls of a data folder without a server, with the JSON of the other transports."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from typing import Any

from cstp_grpc.contract.errors import REQUEST_ID, CstpError
from cstp_grpc.contract.json_codec import from_json, to_json
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.platform import config
from cstp_grpc.server.local.local_transport import LocalFolder, LocalTransport
from tests.harness import TIMEOUT, TOKENS, Outcome


class LocalCaller:
    """Calls as the agents of the settings, each of which opens the folder for itself, as processes of their own do."""

    name = "local"

    def __init__(self, wanted: config.Settings) -> None:
        self._settings = wanted
        self._agents = {token.token.get_secret_value(): token.name for token in wanted.auth.tokens}
        self._opened = ExitStack()
        self._transports: dict[str, LocalTransport] = {}

    def call(self, method: str, params: Mapping[str, Any], token: str | None = TOKENS["alice"]) -> Outcome:
        rpc = contract_methods()[method]
        try:
            return Outcome(to_json(self._transport(token or "").call(rpc, from_json(params, rpc.request), TIMEOUT)))
        except CstpError as error:
            return Outcome(
                reason=error.reason,
                message=error.message,
                fields=tuple(violation.field for violation in error.violations),
                data=error.metadata,
                details={key: value for key, value in error.metadata.items() if key != REQUEST_ID},
                guardrails=tuple(block.guardrail_id for block in error.blocks),
            )

    def close(self) -> None:
        self._opened.close()

    def _transport(self, token: str) -> LocalTransport:
        agent = self._agents[token]
        if agent not in self._transports:
            transport = LocalTransport(LocalFolder(self._settings, agent))
            self._transports[agent] = self._opened.enter_context(closing(transport))
        return self._transports[agent]
