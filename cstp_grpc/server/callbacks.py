"""Building what tells announcing agents what comes after their answers."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime, timedelta
from http.client import HTTPException
from typing import Final
from urllib.parse import SplitResult

from sqlalchemy import Engine

from cstp_grpc.callbacks.addresses import Address, AllowList, address_of
from cstp_grpc.callbacks.outbox import Callbacks
from cstp_grpc.callbacks.removal import CitationRemover
from cstp_grpc.callbacks.sending import Notifications, NotSent, Refused
from cstp_grpc.callbacks.sql_store import SqlCallbackStore
from cstp_grpc.client.addresses import AddressRefused, Dialler
from cstp_grpc.client.posting import post
from cstp_grpc.config import CallbackSettings, ConfigError, Settings
from cstp_grpc.decisions.sharing import Sharing
from cstp_grpc.decisions.sql_store import SqlDecisionStore
from cstp_grpc.server.interceptors.auth import ANONYMOUS
from cstp_grpc.server.trails import Trail
from cstp_grpc.storage.dispatch import Dispatcher, Patience
from cstp_grpc.storage.writer import Writer

logger = logging.getLogger(__name__)

SECONDS: Final = 10.0
"""How long a receiver may take."""
LEASE_SECONDS: Final = 60.0
"""How long a notification is kept from other servers while it is sent; finding its host may take long too."""
PASSING: Final = frozenset({408, 425, 429})
"""The statuses below 500 after which a receiver may take what it did not take."""


class HttpCourier:
    """Posts notifications, each on a connection of its own, without anything that says who sends it.

    `permitted` tells of the IP addresses of a host whether they may be connected to; one that may not refuses the host.
    """

    def __init__(self, permitted: Callable[[str], bool], tls: ssl.SSLContext, seconds: float = SECONDS) -> None:
        self._dial = Dialler(permitted)
        self._tls = tls
        self._seconds = seconds

    def post(self, address: Address, body: bytes) -> None:
        """Post a JSON document and return once it was taken. Raises NotSent and Refused."""
        path, _, query = address.target.partition("?")
        url = SplitResult(address.scheme, address.netloc, path, query, "")
        try:
            status = post(url, body, self._seconds, self._tls, self._dial)
        except AddressRefused as error:
            raise Refused(str(error)) from error
        except TimeoutError as error:
            raise NotSent(f"no answer within {self._seconds:g} s") from error
        except (OSError, HTTPException) as error:
            raise NotSent(str(error) or type(error).__name__) from error
        if 200 <= status < 300:
            return
        final = 400 <= status < 500 and status not in PASSING
        raise (Refused if final else NotSent)(f"HTTP {status}")


def allow_list_of(settings: CallbackSettings) -> AllowList | None:
    """Return the addresses that feedback is sent to; None where there are none. Raises ConfigError."""
    prefixes = []
    for number, url in enumerate(settings.allow):
        prefix = address_of(url)
        if prefix is None:
            raise ConfigError(f"federation.callbacks.allow.{number}: {url} is not a plain http or https URL")
        prefixes.append(prefix)
    return AllowList(prefixes) if prefixes else None


def build_callbacks(
    opened: ExitStack,
    settings: Settings,
    allowed: AllowList | None,
    engine: Engine,
    writer: Writer,
    sharing: Sharing,
    trail: Trail,
    clock: Callable[[], datetime],
    permitted: Callable[[str], bool],
) -> Callbacks | None:
    """Return what tells agents later, which `opened` stops; None where nobody is to be told anything."""
    if allowed is None:
        return None
    wanted = settings.federation.callbacks
    store, decisions = SqlCallbackStore(engine), SqlDecisionStore(engine, sharing)
    notifications = Notifications(
        store,
        decisions,
        allowed,
        HttpCourier(permitted, ssl.create_default_context()),
        trail,
        clock,
        Patience(timedelta(hours=wanted.delivery_hours)),
        known_agents(settings).__contains__,
        settings.agent.name,
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
    )
    remover = CitationRemover(store, writer, clock)
    for thread in (sender, remover):
        thread.start()
        opened.callback(thread.stop)
    window = timedelta(days=wanted.window_days)
    return Callbacks(store, decisions, allowed, writer, clock, window, sender.wake)


def known_agents(settings: Settings) -> frozenset[str]:
    """Return the names of all that may call."""
    if not settings.auth.enabled:
        return frozenset({ANONYMOUS})
    return frozenset(token.name for token in settings.auth.tokens)
