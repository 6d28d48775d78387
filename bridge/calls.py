"""Answers the calls of one JSON-RPC body, alone or as a batch, whoever performs them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from bridge import headers, jsonrpc
from bridge.status import Failure

BATCH_CONCURRENCY: Final = 4
"""How many calls of one batch are in progress at once: half of the threads that a server has unless configured."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one call: its response, absent for a notification, and how it failed."""

    response: str | None
    failure: Failure | None = None


Entry = jsonrpc.Call | jsonrpc.Invalid
Answer = Callable[[Entry], Awaitable[Outcome]]


async def respond(
    body: jsonrpc.Body, answer: Answer, request_id: str, marks: Mapping[str, str] | None = None
) -> web.Response:
    """Return the HTTP answer to a body, whose calls `answer` performs; `marks` are headers of every answer."""
    if body.is_batch:
        outcomes = await answer_batch(body.calls, answer)
        responses = [outcome.response for outcome in outcomes if outcome.response is not None]
        if responses:
            return headers.respond(jsonrpc.to_bytes(f"[{','.join(responses)}]"), request_id, marks=marks)
        return silent(outcomes, request_id, marks)
    outcome = await answer(body.calls[0])
    if outcome.response is None:
        return silent([outcome], request_id, marks)
    return headers.respond(jsonrpc.to_bytes(outcome.response), request_id, outcome.failure, marks)


async def answer_batch(calls: Sequence[Entry], answer: Answer) -> list[Outcome]:
    """Return what became of the calls of a batch, in their order."""
    places = asyncio.Semaphore(BATCH_CONCURRENCY)

    async def answer_in_turn(call: Entry) -> Outcome:
        async with places:
            return await answer(call)

    return await asyncio.gather(*map(answer_in_turn, calls))


def silent(outcomes: Sequence[Outcome], request_id: str, marks: Mapping[str, str] | None) -> web.Response:
    """Answer notifications alone: without a body, and with 401 for a caller that the server does not know."""
    strangers = [found.failure for found in outcomes if found.failure and found.failure.codes.http_status == 401]
    return headers.respond(None, request_id, strangers[0] if strangers else None, marks)
