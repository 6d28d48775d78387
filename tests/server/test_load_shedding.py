"""What is refused while the event loop is late, and what never is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from cstp_grpc.contract.errors import RateLimited
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.server.interceptors.admission import CallsInProgress
from cstp_grpc.server.interceptors.load_shedding import DEFERRABLE_METHODS, URGENT_METHODS, LoadShedder

THRESHOLD = 4
CHECK, ANNOUNCE, QUERY, IMPORT = (
    "cstp.checkGuardrails",
    "cstp.announceIntent",
    "cstp.queryDecisions",
    "cstp.importDecisions",
)
PROMPT, LATE = 0.00002, 0.002
"""Seconds that a pass of the event loop takes."""
PAUSE = 0.004
BUSY_PASSES = 8


class BusyServer:
    """Calls in progress on an event loop whose passes take a given time."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.calls = CallsInProgress(10_000, 10_000, LoadShedder(THRESHOLD, lambda: self.now))

    def offer(self, method: str) -> bool:
        """Begin a call, and return whether it was admitted."""
        try:
            self.calls.enter("alice", method)
        except RateLimited:
            return False
        return True

    async def run(self, seconds: float, delay: float) -> list[bool]:
        """Offer a query every 4 ms, each of which ends at once, and return which are admitted.

        `delay` is how long a pass takes while there is anything to do.
        """
        admitted = []
        for _ in range(int(seconds / PAUSE)):
            admitted.append(self.offer(QUERY))
            if admitted[-1]:
                self.calls.leave("alice", QUERY)
            for _ in range(BUSY_PASSES):
                self.now += delay
                await asyncio.sleep(0)
            self.now += max(PAUSE - BUSY_PASSES * delay, 0)
        return admitted


def on_busy_server(test: Callable[[BusyServer], Awaitable[None]]) -> None:
    async def main() -> None:
        await test(BusyServer())

    asyncio.run(main())


def fill(server: BusyServer) -> None:
    assert all(server.offer(QUERY) for _ in range(THRESHOLD)), "as many may always be in progress"


def test_searches_and_imports_give_way_to_late_checks_and_announcements() -> None:
    async def test(server: BusyServer) -> None:
        assert server.offer(CHECK)
        fill(server)
        await server.run(0.5, LATE)
        later = await server.run(5, LATE)
        assert 0 < sum(later) < len(later) / 20, "few are admitted, and some"
        assert not server.offer(IMPORT)
        with pytest.raises(RateLimited) as refused:
            server.calls.enter("bob", QUERY)
        assert refused.value.retry_after, "it may be repeated"
        assert server.offer(CHECK)
        assert server.offer(ANNOUNCE)
        assert server.offer("cstp.recordDecision"), "what is neither urgent nor deferrable is not shed"

    on_busy_server(test)


def test_what_is_shed_is_counted() -> None:
    async def test(server: BusyServer) -> None:
        assert server.offer(CHECK)
        fill(server)
        admitted = await server.run(2, LATE)
        assert server.calls.shed_count == admitted.count(False) > 0

    on_busy_server(test)


def test_a_server_that_is_only_searched_refuses_nothing() -> None:
    async def test(server: BusyServer) -> None:
        fill(server)
        assert all(await server.run(5, LATE))

    on_busy_server(test)


def test_a_prompt_server_refuses_nothing() -> None:
    async def test(server: BusyServer) -> None:
        assert server.offer(CHECK)
        fill(server)
        assert all(await server.run(1, PROMPT))

    on_busy_server(test)


def test_few_searches_are_no_overload() -> None:
    async def test(server: BusyServer) -> None:
        assert server.offer(CHECK)
        assert all(await server.run(5, LATE))

    on_busy_server(test)


def test_a_server_that_is_prompt_again_admits_more_and_more_until_it_refuses_nothing() -> None:
    async def test(server: BusyServer) -> None:
        server.offer(CHECK)
        fill(server)
        assert not all(await server.run(2, LATE))
        for _ in range(THRESHOLD):
            server.calls.leave("alice", QUERY)
        admitted = await server.run(14, PROMPT)
        tenth = len(admitted) // 10
        assert sum(admitted[:tenth]) < sum(admitted[-tenth:]) == tenth

    on_busy_server(test)


@pytest.mark.parametrize("methods", [DEFERRABLE_METHODS, URGENT_METHODS])
def test_methods_are_those_of_the_contract(methods: frozenset[str]) -> None:
    assert methods <= contract_methods().keys()


SMALL_LISTINGS = {
    "cstp.explainGuardrails",
    "cstp.listApprovals",
    "cstp.listGuardrails",
    "cstp.listInputs",
    "cstp.listPushConfigs",
    "cstp.listTasks",
    "cstp.listTokens",
    "intentLayer.listNodes",
    "liaison.listEvents",
}
"""Listings of few or small items, which never keep a check waiting."""


def test_every_listing_is_deferrable_or_small() -> None:
    listings = {
        name for name, method in contract_methods().items() if "page_size" in method.request.DESCRIPTOR.fields_by_name
    }
    assert listings - DEFERRABLE_METHODS - URGENT_METHODS == SMALL_LISTINGS, (
        "a new listing belongs to DEFERRABLE_METHODS of cstp_grpc/server/interceptors/load_shedding.py, "
        f"or to SMALL_LISTINGS of {Path(__file__).name}"
    )


def test_no_method_is_both() -> None:
    assert not DEFERRABLE_METHODS & URGENT_METHODS
