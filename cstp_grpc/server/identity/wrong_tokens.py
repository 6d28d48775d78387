"""Slows down addresses that send wrong tokens."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

logger = logging.getLogger(__name__)

MAX_ADDRESSES: Final = 10_000
"""Maximum number of addresses; above it the least recently seen address is dropped. Chosen: a few megabytes of
memory."""
LOG_SECONDS: Final = 60.0
"""Minimum time between two log lines, so that strangers cannot flood the log."""
GUESSABLE_CHARACTERS: Final = 24
"""Shorter tokens can be guessed. Chosen: 24 random characters of base64 have 144 bits."""


class WrongTokenThrottle:
    """Counts wrong tokens by address: `most` are checked at once, then one every `seconds / most`.

    It keeps a number for each address and waits for nothing. For one event loop.
    """

    def __init__(self, most: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = seconds / most
        self._seconds = seconds
        self._clock = clock
        # By address, when its count will be zero again: each wrong token moves it on by an interval (the generic cell
        # rate algorithm). The address that was counted last is the last one.
        self._clear_at: OrderedDict[str, float] = OrderedDict()
        self._blocked_until = 0.0
        self._logged = -LOG_SECONDS

    @property
    def is_blocking(self) -> bool:
        """Whether any address may have to wait; otherwise callers can skip the look-up."""
        return self._blocked_until > 0 and self._blocked_until > self._clock()

    def find_wait(self, address: str) -> float | None:
        """Return the seconds until a wrong token of an address is checked again; None if one is checked now."""
        wait = self._clear_at.get(address, 0.0) + self._interval - self._seconds - self._clock()
        # The next token would count one more interval, which must still fit.
        return wait if wait > 0 else None

    def count(self, address: str) -> None:
        now = self._clock()
        clear_at = max(self._clear_at.pop(address, now), now) + self._interval
        if len(self._clear_at) >= MAX_ADDRESSES:
            self._clear_at.popitem(last=False)
        self._clear_at[address] = clear_at
        if clear_at + self._interval - self._seconds > now:
            self._blocked_until = max(self._blocked_until, clear_at + self._interval - self._seconds)
            if now - self._logged >= LOG_SECONDS:
                self._logged = now
                logger.warning("wrong tokens from %s are slowed down", address)
