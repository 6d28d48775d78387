"""Load shedding: while urgent calls are late, for which agents wait before they act, deferrable calls are refused.

grpc.aio delivers calls one after another, so no call can overtake earlier ones. Only the time between two calls can
be kept short: an admitted search computes for milliseconds and competes for the interpreter's lock, while a refusal
takes a few hundred microseconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from cstp_grpc.contract.errors import RateLimited

DEFERRABLE_METHODS: Final = frozenset(
    {
        "cstp.queryDecisions",
        "cstp.importDecisions",
        "cstp.findDuplicateDecisions",
        "cstp.explainSearch",
        "cstp.compactDecisions",
        "cstp.exportDecisions",
        "cstp.listDecisions",
        "cstp.listThoughts",
        "cstp.getDecisionGraph",
        "cstp.getCalibration",
        "cstp.getPatterns",
        "cstp.getReadyQueue",
        "cstp.getSessionContext",
        "cstp.listIntents",
        "cstp.listAuditEntries",
        "cstp.listJudgedActions",
        "cstp.listAgents",
        "cstp.summarizeAudit",
        "cstp.verifyAudit",
        "cstp.exportAudit",
        "cstp.getEvidence",
        "cstp.listCheckpoints",
        "cstp.tryRulebook",
        "cstp.replayRulebook",
        "intentLayer.validateNodes",
        "intentLayer.listLearnings",
        "liaison.listSessions",
        "liaison.listMessages",
    }
)
"""Searches, imports, listings and analyses, by their JSON-RPC names."""
URGENT_METHODS: Final = frozenset(
    {"cstp.checkGuardrails", "cstp.batchCheckGuardrails", "cstp.announceIntent", "cstp.preAction"}
)
"""The methods for which agents wait before they act. Calls of all others are neither refused nor a reason to refuse."""

PASSES: Final = 6
"""Passes of the event loop whose delay is measured: about as many as a check takes from its acceptance to its
verdict."""
LATE_SECONDS: Final = 0.0004
"""Mean delay of PASSES from which urgent calls are late. Measured on two cores: 0.05 to 0.1 ms idle, 0.2 to 0.5 ms with
1 000 refusals a second, 1.1 ms and more once searches are admitted with them."""
WINDOW_SECONDS: Final = 0.1
"""Length of a window, in which a number of deferrable calls is admitted. Chosen: about ten searches end within it."""
LEAST_ADMITTED: Final = 0.1
"""Minimum number of deferrable calls admitted in a window: one a second, so that none of them waits forever."""
URGENT_SECONDS: Final = 60.0
"""Time after an urgent call in which others are expected. Chosen: agents work on a step for seconds to minutes."""
CALM_SECONDS: Final = 2.0
"""Time without refusals after which shedding ends. Chosen: four times RETRY_SECONDS, after which refused calls
return."""
RETRY_SECONDS: Final = 0.5
"""Retry delay for refused calls."""


class LoadShedder:
    """Refuses deferrable calls at a rate that keeps urgent calls quick. For one event loop.

    It begins if `threshold` deferrable calls are in progress, urgent calls were seen lately and the loop is late.
    Fewer in progress, or a server that is only searched, are no reason: then calls wait in line.
    """

    def __init__(self, threshold: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._threshold = threshold
        self._clock = clock
        self._in_progress = 0
        self._urgent_at = -URGENT_SECONDS
        self._rate: float | None = None
        """Deferrable calls to admit in a window; None if all are admitted."""
        self._credit = 0.0
        """Deferrable calls that may still be admitted in this window."""
        self._admitted = 0
        self._window_began = 0.0
        self._refused_at = 0.0
        self._is_measuring = False
        self._delays = 0.0
        self._measured = 0
        self.shed_count = 0
        """The number of refused calls."""

    def note_urgent(self) -> None:
        self._urgent_at = self._clock()

    def enter(self) -> None:
        """Count a deferrable call as in progress until `leave`. Raises RateLimited if it is refused."""
        if self._rate is not None or self._in_progress >= self._threshold:
            self._decide()
        self._in_progress += 1

    def leave(self) -> None:
        """End a call that `enter` has counted."""
        self._in_progress -= 1

    def _decide(self) -> None:
        """Admit or refuse a deferrable call under load. Raises RateLimited."""
        now = self._clock()
        if now - self._window_began >= WINDOW_SECONDS:
            self._begin_window(now)
        if not self._is_measuring:
            self._measure()
        if self._rate is not None:
            if self._credit < 1:
                self._refused_at = now
                self.shed_count += 1
                raise RateLimited(
                    "The server is overloaded and answers checks and announcements first; try again later",
                    retry_after=RETRY_SECONDS,
                )
            self._credit -= 1
        self._admitted += 1

    def _begin_window(self, now: float) -> None:
        """Choose the rate of the next window by the delays of the last: half of the admitted calls if it was late."""
        # A window without calls for a long time does not describe the current load.
        is_recent = now - self._window_began < 2 * WINDOW_SECONDS
        is_late = is_recent and (not self._measured or self._delays > LATE_SECONDS * self._measured)
        if is_late and now - self._urgent_at < URGENT_SECONDS:
            if self._rate is None:
                self._refused_at = now
            self._rate = max(self._admitted / 2, LEAST_ADMITTED)
        elif self._rate is not None:
            self._rate = None if now - self._refused_at > CALM_SECONDS else self._rate * 1.1 + LEAST_ADMITTED
        # Unused calls of a window are not added to the next, except for the fraction of a call.
        self._credit = min(self._credit, 1.0) + (self._rate or 0.0)
        self._window_began, self._admitted, self._delays, self._measured = now, 0, 0.0, 0

    def _measure(self) -> None:
        """Measure how long some passes of the running loop take, which includes waiting for the interpreter's lock."""
        self._is_measuring = True
        loop = asyncio.get_running_loop()
        loop.call_soon(self._pass, loop, PASSES - 1, self._clock())

    def _pass(self, loop: asyncio.AbstractEventLoop, passes: int, began: float) -> None:
        if passes:
            loop.call_soon(self._pass, loop, passes - 1, began)
            return
        self._is_measuring = False
        self._delays += self._clock() - began
        self._measured += 1
