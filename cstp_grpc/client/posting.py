"""Posting to hosts that others name."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import SplitResult

from cstp_grpc.client.fetching import Dial, opened, resource_of

HEADERS: Final = {"content-type": "application/json", "accept": "application/json", "connection": "close"}


def post(
    url: SplitResult,
    body: bytes,
    seconds: float,
    tls: ssl.SSLContext,
    dial: Dial,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Post a JSON document, with nothing that says who sends it, and return the status of the answer.

    What else is answered is not read, redirects are not followed and no proxies used. Raises TimeoutError after
    `seconds`, other OSErrors where nobody answers, and HTTPException where what is answered is not HTTP.
    """
    with opened(url, seconds, tls, clock, dial) as connection:
        connection.request("POST", resource_of(url), body, HEADERS)
        with connection.getresponse() as response:
            return response.status
