"""Posting notifications over HTTP to addresses that agents name."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import cache, partial
from http.client import HTTPException
from typing import Final
from urllib.parse import SplitResult

from cstp_grpc.client.addresses import AddressRefused, Dialler
from cstp_grpc.client.posting import post
from cstp_grpc.config import ConfigError, Settings
from cstp_grpc.server.interceptors.auth import ANONYMOUS
from cstp_grpc.webhooks.addresses import Address, AllowList, address_of
from cstp_grpc.webhooks.sending import NotSent, Refused, WebhookRequest

SECONDS: Final = 10.0
"""How long a receiver may take."""
LEASE_SECONDS: Final = 60.0
"""How long a notification is kept from other servers while it is sent; finding its host may take long too."""
PASSING: Final = frozenset({408, 425, 429})
"""The statuses below 500 after which a receiver may take what it did not take."""

Permits = Callable[[Address, str], bool]
"""Whether an address may be connected to at an IP address of its host."""


class HttpWebhookClient:
    """Posts notifications, each on a connection of its own.

    A host is refused if one of its IP addresses is not permitted. Redirects are not followed, proxies not used, and of
    the answer only the status is read.
    """

    def __init__(
        self,
        permits: Permits,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        seconds: float = SECONDS,
    ) -> None:
        """Prepare to post; `tls` says whom to trust, which is read for the first notification: it takes long."""
        self._permits = permits
        self._tls = cache(tls)
        self._seconds = seconds

    def post(self, request: WebhookRequest) -> None:
        """Post a JSON document and return once it was taken. Raises NotSent, Refused, and GivenUp as the body does."""
        body, address = request.body(), request.address
        path, _, query = address.target.partition("?")
        url = SplitResult(address.scheme, address.netloc, path, query, "")
        dial = Dialler(partial(self._permits, address))
        try:
            status = post(url, body, request.headers, self._seconds, self._tls(), dial)
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


def allow_list_of(urls: list[str], key: str) -> AllowList:
    """Return the list of the addresses that begin with one of some URLs; `key` is their setting. Raises ConfigError."""
    prefixes = []
    for number, url in enumerate(urls):
        prefix = address_of(url)
        if prefix is None:
            raise ConfigError(f"{key}.{number}: {url} is not a plain http or https URL")
        prefixes.append(prefix)
    return AllowList(prefixes)


def known_agents(settings: Settings) -> frozenset[str]:
    """Return the names of all that may call."""
    if not settings.auth.enabled:
        return frozenset({ANONYMOUS})
    return frozenset(token.name for token in settings.auth.tokens)
