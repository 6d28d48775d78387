"""Wiring of the tokens that are created while servers run."""

from __future__ import annotations

import logging
from datetime import timedelta
from functools import partial
from typing import Final

from cstp_grpc.core.tokens.administration import TokenAdministration, TokenLifetimes
from cstp_grpc.core.tokens.live_tokens import TokenFollower
from cstp_grpc.core.tokens.servicer import AdminService
from cstp_grpc.core.tokens.sql_store import SqlTokenStore
from cstp_grpc.gen.cstp.v1 import admin_pb2_grpc
from cstp_grpc.platform.storage.background_work import ExpiryTask
from cstp_grpc.server.server_module import Module, SharedParts

logger = logging.getLogger(__name__)

RETENTION_SECONDS: Final = 600.0
"""Interval of the search for tokens that ended long ago."""
REMOVAL_BATCH: Final = 200
"""Tokens removed in one transaction. Chosen: other writes wait for it."""


def build_tokens_module(shared: SharedParts) -> Module:
    """Build the administration of tokens, and the part that accepts tokens created by other processes."""
    auth, live = shared.settings.auth, shared.live_tokens
    store = SqlTokenStore(shared.database)
    follower = TokenFollower(
        store, shared.writer, live, shared.clock, shared=shared.database_is_shared, resident=shared.deployment.resident
    )
    managed = auth.managed_tokens
    administration = TokenAdministration(
        store,
        shared.sink,
        shared.writer,
        live,
        follower.refresh,
        shared.clock,
        TokenLifetimes(timedelta(days=managed.default_days), timedelta(days=managed.max_days)),
        auth.tenants,
    )
    return Module(
        servicers=[(admin_pb2_grpc.add_AdminServiceServicer_to_server, AdminService(administration))],
        background=[follower, build_token_retention(shared, store)],
        on_foreign_commit=[follower.refresh],
    )


def build_token_retention(shared: SharedParts, store: SqlTokenStore) -> ExpiryTask:
    kept_for = timedelta(days=shared.settings.auth.managed_tokens.keep_days)

    def remove_batch() -> bool:
        job = partial(store.remove_ended, before=shared.clock() - kept_for, limit=REMOVAL_BATCH)
        return shared.writer.run(job) == REMOVAL_BATCH

    return ExpiryTask(
        "token-retention", remove_batch, RETENTION_SECONDS, logger, "tokens that ended long ago are not removed"
    )
