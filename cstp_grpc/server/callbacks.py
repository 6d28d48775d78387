"""Building what tells announcing agents what comes after their answers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime, timedelta

from sqlalchemy import Engine

from cstp_grpc.callbacks.outbox import Callbacks
from cstp_grpc.callbacks.removal import CitationRemover
from cstp_grpc.callbacks.sending import CallbackQueue
from cstp_grpc.callbacks.sql_store import SqlCallbackStore
from cstp_grpc.config import Settings
from cstp_grpc.decisions.sharing import Sharing
from cstp_grpc.decisions.sql_store import SqlDecisionStore
from cstp_grpc.server.trails import Trail
from cstp_grpc.server.webhooks import LEASE_SECONDS, HttpWebhookClient, known_agents
from cstp_grpc.storage.dispatch import Dispatcher, Patience
from cstp_grpc.storage.writer import Writer
from cstp_grpc.webhooks.addresses import AllowList
from cstp_grpc.webhooks.sending import WebhookOutbox

logger = logging.getLogger(__name__)


def build_callbacks(
    opened: ExitStack,
    settings: Settings,
    allowed: AllowList,
    engine: Engine,
    writer: Writer,
    sharing: Sharing,
    trail: Trail,
    clock: Callable[[], datetime],
    permitted: Callable[[str], bool],
) -> Callbacks | None:
    """Return what tells agents later, which `opened` stops; None where nobody is to be told anything."""
    wanted = settings.federation.callbacks
    if not wanted.allow:
        return None
    store, decisions = SqlCallbackStore(engine), SqlDecisionStore(engine, sharing)
    notifications = WebhookOutbox(
        CallbackQueue(store, decisions, allowed, settings.agent.name),
        HttpWebhookClient(lambda _, ip: permitted(ip)),
        trail,
        clock,
        Patience(timedelta(hours=wanted.delivery_hours)),
        known_agents(settings).__contains__,
    )
    sender = Dispatcher(
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
    remover = CitationRemover(store, writer, clock)
    for thread in (sender, remover):
        thread.start()
        opened.callback(thread.stop)
    window = timedelta(days=wanted.window_days)
    return Callbacks(store, decisions, allowed, writer, clock, window, sender.wake)
