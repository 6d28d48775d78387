"""Wiring of callbacks to announcing agents."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta

from cstp_grpc.core.decisions.sql_store import SqlDecisionStore
from cstp_grpc.modules.callbacks.outbox import CallbackBuilder, CallbackOutbox
from cstp_grpc.modules.callbacks.sql_store import SqlCallbackStore
from cstp_grpc.modules.webhooks.delivery import UrlAllowList, WebhookDelivery
from cstp_grpc.modules.webhooks.webhook_client import HttpWebhookClient, build_agent_authorizer, parse_allow_list
from cstp_grpc.platform.config import Settings
from cstp_grpc.platform.storage.background_work import ExpiryTask
from cstp_grpc.platform.storage.delivery import DeliveryDispatcher, DeliveryRetryPolicy, DispatcherOptions
from cstp_grpc.platform.storage.delivery_queue import build_outbox_measures
from cstp_grpc.server.server_module import Module, SharedParts

logger = logging.getLogger(__name__)

REMOVAL_SECONDS = 300.0
"""Interval of the search for expired citations, which have no effect, so that their removal is not urgent."""


def read_callback_urls(settings: Settings) -> UrlAllowList:
    """Return the URLs that callbacks may be sent to. Raises ConfigError."""
    return parse_allow_list(settings.federation.callbacks.allow, "federation.callbacks.allow")


def build_callbacks_module(
    shared: SharedParts, allowed: UrlAllowList, is_permitted_ip: Callable[[str], bool]
) -> tuple[Module, CallbackOutbox]:
    """Build callback delivery to the allowed URLs whose hosts have permitted IP addresses, and its outbox."""
    settings, database, writer, clock = shared.settings, shared.database, shared.writer, shared.clock
    callbacks = settings.federation.callbacks
    store, decisions = SqlCallbackStore(database), SqlDecisionStore(database, shared.read_policy)
    notifications = WebhookDelivery(
        store,
        CallbackBuilder(store, decisions, allowed, settings.agent.name),
        # The allow list checks the URL when the request is built; here only the addresses of its host are checked.
        HttpWebhookClient(lambda _, ip: is_permitted_ip(ip)),
        shared.sink,
        clock,
        build_agent_authorizer(settings, shared.live_tokens),
    )
    policy = DeliveryRetryPolicy(timedelta(hours=callbacks.delivery_hours))
    options = DispatcherOptions(
        "callbacks",
        logger,
        "no feedback is sent to announcing agents",
        refresh_seconds=settings.storage.refresh_seconds,
        reading=database.background_snapshot,
    )
    sender = DeliveryDispatcher(store, notifications, writer, clock, policy, options)
    window = timedelta(days=callbacks.window_days)
    outbox = CallbackOutbox(store, decisions, allowed, writer, clock, window, sender.wake)
    remover = ExpiryTask(
        "citation-removal", outbox.remove_expired_citations, REMOVAL_SECONDS, logger, "old citations are not removed"
    )
    measures = build_outbox_measures("callbacks", store, database.background_snapshot, clock)
    return Module(background=[sender, remover], measures=measures), outbox
