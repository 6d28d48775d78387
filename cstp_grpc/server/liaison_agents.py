"""The liaison agents that are elsewhere, and whether they are there."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock

from cstp_grpc.client.words import one_line
from cstp_grpc.config import LiaisonSettings, PillarSettings
from cstp_grpc.errors import LiaisonAgentUnavailable
from cstp_grpc.liaison.agents import DeliveryFailed, DeliveryRefused, Parcel, Receipt
from cstp_grpc.liaison.model import liaison_agent
from cstp_grpc.server.authorities import calling
from cstp_grpc.server.liaison_links import NOT_IN_TIME, Away, Link, link_of

logger = logging.getLogger(__name__)


class RemoteAgent:
    """The liaison agent of a pillar at the other end of a link."""

    def __init__(
        self,
        pillar: str,
        link: Link,
        settings: LiaisonSettings,
        *,
        confirms: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.confirms = confirms
        self._pillar = pillar
        self._name = liaison_agent(pillar)
        self._link = link
        self._delivery_seconds = settings.delivery_seconds
        self._availability = Availability(
            self._name, link.probe, settings.probe_seconds, settings.availability_seconds, clock
        )
        self._failing = False

    def check(self, tenant: str) -> None:  # noqa: ARG002 - it serves all tenants alike
        """Return where the agent was there a moment ago. Raises LiaisonAgentUnavailable."""
        reason, seconds = self._availability.ask()
        if reason is not None:
            raise LiaisonAgentUnavailable(
                f"{self._name} is not available: {reason}",
                metadata={"target_pillar": self._pillar, "reason": reason},
                retry_after=seconds,
            )

    def deliver(self, parcel: Parcel) -> Receipt:
        """Hand over a parcel. Raises DeliveryRefused, DeliveryFailed."""
        try:
            receipt = self._link.deliver(parcel, self._delivery_seconds)
        except DeliveryRefused as error:
            logger.warning("%s refuses the share %s: %s", self._name, parcel.share.id, with_cause(error))
            raise
        except DeliveryFailed as error:
            if not self._failing:
                logger.warning("nothing can be delivered to %s: %s", self._name, with_cause(error))
            self._failing = True
            raise
        self._failing = False
        return receipt

    def close(self) -> None:
        """Give back what is held open; the agent cannot be used any more."""
        self._availability.close()
        self._link.close()


class Availability:
    """Whether an agent is there: asked once by all who want to know at the same time, and remembered for a while.

    Nobody waits for longer than `seconds`, even where asking takes longer.
    """

    def __init__(
        self,
        name: str,
        probe: Callable[[float], None],
        seconds: float,
        remembered: float,
        clock: Callable[[], float],
    ) -> None:
        self._name = name
        self._probe = probe
        self._seconds = seconds
        self._remembered = remembered
        self._clock = clock
        self._pool = ThreadPoolExecutor(1, f"probe-{name}")
        self._entering = Lock()
        self._flight: Future[str | None] | None = None
        self._reason: str | None = None
        self._known_until: float | None = None
        self._away = False

    def ask(self) -> tuple[str | None, float]:
        """Return why the agent is not there, None where it is, and for how many seconds that is remembered."""
        with self._entering:
            left = 0.0 if self._known_until is None else self._known_until - self._clock()
            if left > 0:
                return self._reason, left
            if self._flight is None or self._flight.done():
                self._flight = self._pool.submit(self._try)
            flight = self._flight
        try:
            reason = flight.result(self._seconds)
        except TimeoutError:
            reason = NOT_IN_TIME
            self._remember(reason)
        return reason, self._remembered

    def close(self) -> None:
        """Ask no more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _try(self) -> str | None:
        reason = None
        try:
            self._probe(self._seconds)
        except Away as error:
            reason = str(error)
            if not self._away:
                logger.warning("%s is not available: %s", self._name, with_cause(error))
        except Exception:
            reason = "no answer that can be understood"
            if not self._away:
                logger.exception("%s is not available", self._name)
        self._away = reason is not None
        self._remember(reason)
        return reason

    def _remember(self, reason: str | None) -> None:
        with self._entering:
            self._reason = reason
            self._known_until = self._clock() + self._remembered


def build_remote(name: str, settings: PillarSettings, liaison: LiaisonSettings) -> RemoteAgent:
    """Return the configured remote agent of a pillar, which must be closed. Raises ConfigError."""
    with calling(f"liaison.pillars.{name}", settings.ca_file):
        link = link_of(settings)
    return RemoteAgent(name, link, liaison, confirms=settings.delivery == "confirm")


def with_cause(error: Exception) -> str:
    """Return what the log is told."""
    cause = error.__cause__
    return str(error) if cause is None else one_line(f"{error} ({type(cause).__name__}: {cause})")
