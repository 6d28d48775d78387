"""Posting to hosts that others name."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import SplitResult

from cstp_grpc.client.fetching import Dial, opened, resource_of

HEADERS: Final = {"accept": "application/json", "connection": "close"}


def post(
    url: SplitResult,
    body: bytes,
    headers: Mapping[str, str],
    seconds: float,
    tls: ssl.SSLContext,
    dial: Dial,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Post a JSON document, with nothing in it but `headers` that says who sends it; return the status of the answer.

    What else is answered is not read, redirects are not followed and no proxies used. Raises TimeoutError after
    `seconds`, other OSErrors where nobody answers, and HTTPException where what is answered is not HTTP.
    """
    with opened(url, seconds, tls, clock, dial) as connection:
        connection.request("POST", resource_of(url), body, {**HEADERS, **headers})
        with connection.getresponse() as response:
            return response.status
