"""Post JSON documents to URLs that callers name."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import SplitResult

from cstp_grpc.client.fetching import DialHost, open_connection, request_target

POST_HEADERS: Final = {"accept": "application/json", "connection": "close"}


def post_json(
    url: SplitResult,
    body: bytes,
    headers: Mapping[str, str],
    seconds: float,
    tls: ssl.SSLContext,
    dial: DialHost,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Post a JSON document and return the status of the response.

    No header but the given ones identifies the sender. The rest of the response is not read, redirects are not
    followed and proxies are not used. Raises TimeoutError after `seconds`, other OSErrors if no host answers, and
    HTTPException if the response is not HTTP.
    """
    with open_connection(url, seconds, tls, clock, dial) as connection:
        connection.request("POST", request_target(url), body, {**POST_HEADERS, **headers})
        with connection.getresponse() as response:
            return response.status
