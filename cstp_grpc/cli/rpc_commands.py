"""Commands of single rpcs: their options are the fields of the request, their functions print the answer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import click

from cstp_grpc.cli.command_decorators import LIMIT, Command, with_client
from cstp_grpc.cli.output import ReconnectNotices
from cstp_grpc.common.lazy_imports import LazyModule

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from cstp_grpc.cli.output import Output
    from cstp_grpc.client import CstpClient, call_steps
    from cstp_grpc.gen import calls
else:
    call_steps = LazyModule("cstp_grpc.client.call_steps")
    calls = LazyModule("cstp_grpc.gen.calls")

Show = Callable[..., Any]
"""Prints an answer on a console, or returns the line that describes a change."""


def call_rpc(client: CstpClient, name: str, **fields: Any) -> Any:
    """Return the whole response of an rpc, named as in `cstp_grpc.gen.calls`. Raises CstpError."""
    described = getattr(calls, name)(**fields)
    return client.call(call_steps.method_of_call(described), call_steps.build_request(described))


def list_items(client: CstpClient, name: str, limit: int, max_page: int = 1000, **fields: Any) -> Message:
    """Return a response with the first items of a listing, at most `limit`. Raises CstpError.

    `name` is a method of the client, such as `list_intents` or `liaison.list_sessions`.
    """
    # No more than is wanted, and no more than the contract gives in a page; `islice` stops the paging.
    fields["page_size"] = min(limit, max_page)
    listing = getattr(calls, name.rpartition(".")[2])(**fields)
    found = list(islice(attrgetter(name)(client)(**fields), limit))
    return call_steps.method_of_call(listing).response(**{listing.items: found})


def calls_rpc(name: str, role: str | None = None) -> Callable[[Show], Command]:
    """Return a decorator that makes a command of a function `(console, answer)`: it calls the rpc with its options."""

    def decorate(show: Show) -> Command:
        @functools.wraps(show)
        def command(client: CstpClient, out: Output, **fields: Any) -> None:
            out.answer(call_rpc(client, name, **fields), show)

        return with_client(command, role)

    return decorate


def lists_items(name: str, role: str | None = None, max_page: int = 1000) -> Callable[[Show], Command]:
    """Return a decorator as `calls_rpc` does, for a listing: it adds --limit, and fetches as many pages as needed."""

    def decorate(show: Show) -> Command:
        @functools.wraps(show)
        def command(client: CstpClient, out: Output, limit: int, **fields: Any) -> None:
            out.answer(list_items(client, name, limit, max_page, **fields), show)

        return limit_option(with_client(command, role))

    return decorate


limit_option = click.option("--limit", type=LIMIT, default=50, show_default=True, help="Maximum number of results.")


def watches_changes(
    name: str, *kinds: str, role: str | None = None, check: Callable[..., object] | None = None
) -> Callable[[Show], Command]:
    """Return a decorator that makes a command of a function which describes a change on one line.

    The command has an option --limit, and prints those of the changes that have one of the fields `kinds`, or all. It
    watches until Ctrl-C, and calls `check` first: a wrong address or token must fail at once, while the watch retries
    until it is stopped.
    """

    def decorate(describe: Show) -> Command:
        @functools.wraps(describe)
        def command(client: CstpClient, out: Output, limit: int | None, **fields: Any) -> None:
            if check is None:
                client.get_access()
            else:
                check(client, **fields)
            interruptions = ReconnectNotices(out)
            changes = attrgetter(name)(client)(**fields, on_failure=interruptions.report)
            # Ctrl-C is the regular end of a watch.
            with suppress(KeyboardInterrupt), closing(changes):
                found = (each for each in changes if not kinds or any(map(each.HasField, kinds)))
                for change in islice(found, limit):
                    interruptions.reset()
                    if out.json_wanted:
                        out.json_line(change)
                    else:
                        out.line(describe(change))

        return with_client(command, role)

    return decorate
