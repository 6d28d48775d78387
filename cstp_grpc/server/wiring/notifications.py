"""Wiring of notices for webhooks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta

from cstp_grpc.contract.enums import JudgedContent
from cstp_grpc.core.audit.model import AuditSink
from cstp_grpc.modules.notifications.model import NoticeEvent, NoticeFormat, WebhookRule
from cstp_grpc.modules.notifications.outbox import NoticeBuilder, NoticeOutbox, NotifyingAuditSink
from cstp_grpc.modules.notifications.sql_store import SqlNoticeStore
from cstp_grpc.modules.webhooks.delivery import WebhookDelivery, WebhookUrl, parse_webhook_url
from cstp_grpc.modules.webhooks.webhook_client import HttpWebhookClient
from cstp_grpc.platform.config import ConfigError, Settings
from cstp_grpc.platform.storage.delivery import DeliveryDispatcher, DeliveryRetryPolicy, DispatcherOptions
from cstp_grpc.platform.storage.delivery_queue import build_outbox_measures
from cstp_grpc.server.server_module import Module, SharedParts

logger = logging.getLogger(__name__)


def read_webhook_rules(settings: Settings) -> Sequence[WebhookRule]:
    """Return the rules of the configured webhooks. Raises ConfigError."""
    rules = []
    for number, each in enumerate(settings.notifications.webhooks):
        address = parse_webhook_url(each.url.get_secret_value())
        if address is None:
            raise ConfigError(f"notifications.webhooks.{number}.url: is not a plain http or https URL")
        rules.append(
            WebhookRule(
                each.name,
                address,
                NoticeFormat(each.format),
                frozenset(map(NoticeEvent, each.events)),
                frozenset(each.stakes),
                frozenset(each.categories),
                None if each.secret is None else each.secret.get_secret_value().encode(),
                each.any_address,
                each.max_per_hour,
            )
        )
    return rules


def build_notifications_module(
    shared: SharedParts, rules: Sequence[WebhookRule], is_permitted_ip: Callable[[str], bool]
) -> tuple[Module, AuditSink]:
    """Build the delivery of notices, and the sink that queues them with the audit entries that cause them."""
    settings, database, writer, clock = shared.settings, shared.database, shared.writer, shared.clock
    store = SqlNoticeStore(database)
    anywhere = [rule.address for rule in rules if rule.any_address]

    def permits(address: WebhookUrl, ip: str) -> bool:
        return address in anywhere or is_permitted_ip(ip)

    # The operator named the webhooks, so that no agent has to be known.
    delivery = WebhookDelivery(
        store, NoticeBuilder(rules), HttpWebhookClient(permits), shared.sink, clock, lambda _: True
    )
    options = DispatcherOptions(
        "notices",
        logger,
        "webhooks are not notified",
        refresh_seconds=settings.storage.refresh_seconds,
        reading=database.background_snapshot,
    )
    policy = DeliveryRetryPolicy(timedelta(hours=settings.notifications.delivery_hours))
    sender = DeliveryDispatcher(store, delivery, writer, clock, policy, options)
    keeps_text = settings.audit.judged_content is not JudgedContent.NOTHING
    outbox = NoticeOutbox(store, rules, clock, settings.agent.name, keeps_text=keeps_text, wake=sender.wake)
    measures = build_outbox_measures("notices", store, database.background_snapshot, clock)
    return Module(background=[sender], measures=measures), NotifyingAuditSink(shared.sink, outbox, writer)
