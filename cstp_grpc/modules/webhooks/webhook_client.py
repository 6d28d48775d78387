"""Posts notifications over HTTP to URLs that agents name."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import cache, partial
from typing import Final
from urllib.parse import SplitResult

from cstp_grpc.client.http_client import AddressNotAllowed, HttpClient
from cstp_grpc.client.http_exchange import HttpProtocolError
from cstp_grpc.contract.caller import ANONYMOUS
from cstp_grpc.core.tokens.live_tokens import LiveTokens
from cstp_grpc.modules.webhooks.delivery import UrlAllowList, WebhookRequest, WebhookUrl, parse_webhook_url
from cstp_grpc.platform.config import ConfigError, Settings
from cstp_grpc.platform.storage.delivery_queue import DeliveryFailed, DeliveryRejected

RESPONSE_SECONDS: Final = 10.0
"""Seconds that a receiver may take to answer. Chosen: receivers should accept first and process later, and with
the resolution of its host it is shorter than the lease of a notification, so that no other server sends it meanwhile.
"""
TRANSIENT_STATUSES: Final = frozenset({408, 425, 429})
"""Statuses below 500 after which a retry may succeed: Request Timeout (RFC 9110, 15.5.9), Too Early (RFC 8470, 5.2) and
Too Many Requests (RFC 6585, 4).
"""

AddressCheck = Callable[[WebhookUrl, str], bool]
"""Returns whether an address may be connected to at an IP address of its host."""


class HttpWebhookClient:
    """Posts notifications, each on its own connection.

    A host is refused if one of its IP addresses is not permitted. Redirects are not followed, proxies not used, and
    only the status of the response is read.
    """

    def __init__(
        self,
        permits: AddressCheck,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        seconds: float = RESPONSE_SECONDS,
    ) -> None:
        """Prepare to post; `tls` returns the trusted certificates and is called at the first notification, since it is
        slow.
        """
        self._permits = permits
        self._tls = cache(tls)
        self._seconds = seconds

    def post(self, request: WebhookRequest) -> None:
        """Post a JSON document and return once it was accepted. Raises DeliveryFailed and DeliveryRejected."""
        body, address = request.body(), request.address
        path, _, query = address.target.partition("?")
        url = SplitResult(address.scheme, address.netloc, path, query, "")
        # The addresses are checked at connection, and the checked one is dialled: a name that resolves to a
        # public address now and to an internal one later (DNS rebinding) leads nowhere.
        client = HttpClient(self._tls(), permitted=partial(self._permits, address))
        try:
            status = client.post(url, {"accept": "application/json", **request.headers}, body, self._seconds)
        except AddressNotAllowed as error:
            raise DeliveryRejected(str(error)) from error
        except TimeoutError as error:
            raise DeliveryFailed(f"no answer within {self._seconds:g} s") from error
        except (OSError, HttpProtocolError) as error:
            # Some OSErrors have no text.
            raise DeliveryFailed(str(error) or type(error).__name__) from error
        if 200 <= status < 300:
            return
        # Redirects count as transient, like a 5xx: the receiver may be behind a proxy that is being changed.
        final = 400 <= status < 500 and status not in TRANSIENT_STATUSES
        raise (DeliveryRejected if final else DeliveryFailed)(f"HTTP {status}")


def parse_allow_list(urls: list[str], key: str) -> UrlAllowList:
    """Parse URL prefixes into an allow-list; `key` is their setting. Raises ConfigError."""
    prefixes = []
    for number, url in enumerate(urls):
        prefix = parse_webhook_url(url)
        if prefix is None:
            raise ConfigError(f"{key}.{number}: {url} is not a plain http or https URL")
        prefixes.append(prefix)
    return UrlAllowList(prefixes)


def build_agent_authorizer(settings: Settings, live: LiveTokens) -> Callable[[str], bool]:
    """Return a function that returns whether an agent may call now."""
    if not settings.auth.enabled:
        return frozenset({ANONYMOUS}).__contains__
    auth = settings.auth
    configured = frozenset(
        (*(token.name for token in auth.tokens), *(certificate.name for certificate in auth.certificates))
    )
    # Whom issuers of JWTs know, they alone know.
    return lambda agent: bool(auth.jwt) or agent in configured or live.has_agent(agent)
