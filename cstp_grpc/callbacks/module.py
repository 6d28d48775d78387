"""Wiring of callbacks to announcing agents."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime, timedelta

from sqlalchemy import Engine

from cstp_grpc.callbacks.outbox import CallbackOutbox, CallbackQueue, ExpiredCitationRemover
from cstp_grpc.callbacks.sql_store import SqlCallbackStore
from cstp_grpc.config import Settings
from cstp_grpc.decisions.read_policy import ReadPolicy
from cstp_grpc.decisions.sql_store import SqlDecisionStore
from cstp_grpc.server.audit_adapters import AuditSink
from cstp_grpc.storage.delivery import DeliveryDispatcher, DeliveryRetryPolicy
from cstp_grpc.storage.writer import GroupCommitWriter
from cstp_grpc.webhooks.delivery import WebhookOutbox
from cstp_grpc.webhooks.http_client import LEASE_SECONDS, HttpWebhookClient, authorized_agent_names
from cstp_grpc.webhooks.url_allow_list import UrlAllowList

logger = logging.getLogger(__name__)


def build_callbacks(
    opened: ExitStack,
    settings: Settings,
    allowed: UrlAllowList,
    engine: Engine,
    writer: GroupCommitWriter,
    sharing: ReadPolicy,
    trail: AuditSink,
    clock: Callable[[], datetime],
    permitted: Callable[[str], bool],
) -> CallbackOutbox | None:
    """Build and start callback delivery; `opened` stops it. Return None if no callback URL is allowed."""
    wanted = settings.federation.callbacks
    if not wanted.allow:
        return None
    store, decisions = SqlCallbackStore(engine), SqlDecisionStore(engine, sharing)
    notifications = WebhookOutbox(
        CallbackQueue(store, decisions, allowed, settings.agent.name),
        HttpWebhookClient(lambda _, ip: permitted(ip)),
        trail,
        clock,
        DeliveryRetryPolicy(timedelta(hours=wanted.delivery_hours)),
        authorized_agent_names(settings).__contains__,
    )
    sender = DeliveryDispatcher(
        "callbacks",
        notifications,
        writer,
        clock,
        logger,
        "no feedback is sent to announcing agents",
        refresh_seconds=settings.storage.refresh_seconds,
        lease_seconds=LEASE_SECONDS,
        reading=engine.connect,
    )
    remover = ExpiredCitationRemover(store, writer, clock)
    for thread in (sender, remover):
        thread.start()
        opened.callback(thread.stop)
    window = timedelta(days=wanted.window_days)
    return CallbackOutbox(store, decisions, allowed, writer, clock, window, sender.wake)
