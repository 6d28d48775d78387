"""Searches that wait run together; each caller gets its own result."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

import pytest

from cstp_grpc.contract.errors import QueryFailed
from cstp_grpc.core.decisions.model import DecisionFilter, Match
from cstp_grpc.core.decisions.search.decision_search import UNRESTRICTED, DecisionSearch, MoreResultsNeeded
from cstp_grpc.core.decisions.search.search_results import SearchParameters
from cstp_grpc.core.decisions.search.search_scheduler import MAX_BATCH, SearchScheduler

P = ParamSpec("P")
T = TypeVar("T")

caller_name: ContextVar[str] = ContextVar("caller_name")


class Search(DecisionSearch):
    """Finds nothing, and remembers what it was asked together; texts that begin with "new" are not embedded yet.

    Unless it embeds together, no vector is cached; nor is that of "new broken", which cannot be embedded.
    """

    embeds_together = False
    never_waits = False

    def __init__(self, *, embeds_together: bool = False, never_waits: bool = False) -> None:
        self.embeds_together = embeds_together
        self.never_waits = never_waits
        self.embedded: list[list[str]] = []
        self.batches: list[list[str]] = []
        self.callers: dict[str, str] = {}
        self.recalled: list[Match] = []
        self.may_embed = threading.Event()
        self.may_embed.set()

    def may_recall(self, parameters: SearchParameters) -> bool:
        return parameters.text == "known"

    def recall(self, parameters: SearchParameters) -> list[Match] | None:
        return self.recalled if parameters.text == "known" else None

    def is_short(self, text: str, preferences: Sequence[DecisionFilter], limit: int) -> bool:
        return "short" in text and self.is_cached(text)

    def is_cached(self, text: str) -> bool:
        return not text.startswith("new") or any(text in batch for batch in self.embedded)

    def embed_together(self, texts: Iterable[str]) -> None:
        assert self.may_embed.wait(30)
        if self.embeds_together and (
            new := [text for text in texts if not self.is_cached(text) and "broken" not in text]
        ):
            self.embedded.append(new)

    @contextmanager
    def expect_texts(self, texts: Iterable[str]) -> Iterator[None]:
        if together := list(texts):
            self.batches.append(together)
        yield

    def find_precedents(
        self,
        text: str,
        preferences: Sequence[DecisionFilter],
        caller: str,
        limit: int,
        min_score: float,
        *_: Any,
        may_grow: bool = True,
        **__: Any,
    ) -> list[Match]:
        self.callers[text] = caller_name.get("nobody")
        if text == "short series" and not may_grow:
            raise MoreResultsNeeded
        if "broken" in text:
            raise QueryFailed("the journal does not respond")
        return []


class Pool:
    """Runs nothing until it is opened; `begun` counts what it was given."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.begun = 0
        self.turns = 0
        self.refuses = False

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self.refuses:
            raise RuntimeError("it is closed")
        self.begun += 1

        def wait_and_run() -> T:
            assert self.open.wait(30)
            return function(*args, **kwargs)

        return await asyncio.to_thread(wait_and_run)

    async def run_short(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        self.turns += 1
        return function(*args, **kwargs)


async def ask(scheduler: SearchScheduler, text: str) -> list[Match]:
    caller_name.set(f"caller of {text}")
    return await scheduler.search(text, UNRESTRICTED, "alice", 10, 0.0)


async def begin(scheduler: SearchScheduler, texts: Iterable[str]) -> list[asyncio.Task[list[Match]]]:
    """Begin searches, and return when they wait."""
    tasks = [asyncio.create_task(ask(scheduler, text)) for text in texts]
    # Each task runs until it waits, and so do the runners that they start.
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


@pytest.mark.parametrize(("never_waits", "batches"), [(False, [1, 1, 8, MAX_BATCH]), (True, [1, 9, MAX_BATCH])])
def test_what_waits_is_the_next_batch(*, never_waits: bool, batches: list[int]) -> None:
    search, pool = Search(never_waits=never_waits), Pool()
    texts = [f"text {number}" for number in range(MAX_BATCH + 10)]

    async def ask_all() -> list[list[Match]]:
        scheduler = SearchScheduler(search, pool)
        first = [*await begin(scheduler, texts[:1]), *await begin(scheduler, texts[1:2])]
        rest = await begin(scheduler, texts[2:])
        pool.open.set()
        return await asyncio.gather(*first, *rest)

    assert asyncio.run(ask_all()) == [[]] * len(texts)
    assert sorted(len(batch) for batch in search.batches) == batches
    assert sorted(text for batch in search.batches for text in batch) == sorted(texts)
    assert search.callers == {text: f"caller of {text}" for text in texts}


def test_a_failing_search_fails_for_its_caller_alone() -> None:
    search, pool = Search(), Pool()

    async def ask_all() -> list[list[Match] | BaseException]:
        tasks = await begin(SearchScheduler(search, pool), ["one", "two", "broken", "three"])
        pool.open.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    one, two, broken, three = asyncio.run(ask_all())
    assert (one, two, three) == ([], [], [])
    assert isinstance(broken, QueryFailed)


def test_a_caller_that_was_cancelled_is_left_out() -> None:
    search, pool = Search(), Pool()

    async def ask_all() -> list[Match]:
        scheduler = SearchScheduler(search, pool)
        first = [*await begin(scheduler, ["one"]), *await begin(scheduler, ["two"])]
        cancelled, last = await begin(scheduler, ["cancelled", "last"])
        cancelled.cancel()
        pool.open.set()
        await asyncio.gather(*first)
        return await last

    assert asyncio.run(ask_all()) == []
    assert "cancelled" not in search.callers


def test_callers_learn_that_the_pool_is_closed() -> None:
    pool = Pool()
    pool.refuses = True

    async def ask_all() -> list[list[Match] | BaseException]:
        tasks = await begin(SearchScheduler(Search(), pool), ["one", "two", "three"])
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert [str(error) for error in asyncio.run(ask_all())] == ["it is closed"] * 3


def test_what_is_known_is_recalled_in_turn_without_a_search() -> None:
    search, pool = Search(), Pool()
    assert asyncio.run(ask(SearchScheduler(search, pool), "known")) is search.recalled
    assert (search.callers, search.batches, pool.begun, pool.turns) == ({}, [], 0, 1)


@pytest.mark.parametrize(("text", "begun"), [("short", 0), ("new", 1)])
def test_short_searches_and_those_that_embed_wait_for_no_batch(text: str, begun: int) -> None:
    search, pool = Search(), Pool()
    pool.open.set()
    assert asyncio.run(ask(SearchScheduler(search, pool), text)) == []
    assert (search.batches, pool.begun) == ([], begun)


@pytest.mark.parametrize("kind", ["new short", "new long"])
def test_new_texts_that_wait_are_embedded_together(kind: str) -> None:
    search, pool = Search(embeds_together=True), Pool()
    texts = [f"{kind} {number}" for number in range(4)]

    async def ask_all() -> list[list[Match]]:
        scheduler = SearchScheduler(search, pool)
        tasks = [*await begin(scheduler, texts[:1]), *await begin(scheduler, texts[1:])]
        pool.open.set()
        return await asyncio.gather(*tasks)

    assert asyncio.run(ask_all()) == [[]] * len(texts)
    assert search.embedded == [texts[:1], texts[1:]]
    assert search.callers == {text: f"caller of {text}" for text in texts}
    # Two batches may run at a time.
    searched_in_batches = sorted(text for batch in search.batches for text in batch)
    assert (pool.turns, searched_in_batches) == ((4, []) if kind == "new short" else (0, texts))


def test_a_search_for_a_known_text_does_not_wait_for_new_texts() -> None:
    search, pool = Search(embeds_together=True), Pool()
    search.may_embed.clear()
    pool.open.set()

    async def ask_all() -> list[list[Match]]:
        scheduler = SearchScheduler(search, pool)
        new = [*await begin(scheduler, ["new one"]), *await begin(scheduler, ["new two"])]
        found = await ask(scheduler, "text")
        search.may_embed.set()
        return [found, *await asyncio.gather(*new)]

    assert asyncio.run(ask_all()) == [[]] * 3
    assert search.embedded == [["new one"], ["new two"]]


def test_a_text_that_cannot_be_embedded_fails_for_its_caller_alone() -> None:
    search, pool = Search(embeds_together=True), Pool()

    async def ask_all() -> list[list[Match] | BaseException]:
        tasks = await begin(SearchScheduler(search, pool), ["new one", "new broken", "new short"])
        pool.open.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    one, broken, short = asyncio.run(ask_all())
    assert (one, short) == ([], [])
    assert isinstance(broken, QueryFailed)


def test_a_short_search_that_series_make_long_leaves_the_loop() -> None:
    search, pool = Search(), Pool()
    pool.open.set()

    async def ask_both() -> list[list[Match]]:
        scheduler = SearchScheduler(search, pool)
        return [await ask(scheduler, text) for text in ("short", "short series")]

    assert asyncio.run(ask_both()) == [[], []]
    assert pool.begun == 1
