"""Commands that know no rpc in particular: call, version."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from cstp_grpc.cli.command import calls, prints
from cstp_grpc.cli.options import parse_json
from cstp_grpc.errors import InvalidArgument
from cstp_grpc.version import VERSION

if TYPE_CHECKING:
    from cstp_grpc.cli.output import Output
    from cstp_grpc.client import CstpClient
    from cstp_grpc.client.contract import Method


@click.command()
@click.argument("method")
@click.argument("params", default="{}")
@calls
def call(client: CstpClient, out: Output, method: str, params: str) -> None:
    """Call any unary METHOD by its JSON-RPC name with PARAMS, a JSON object; `-` reads it from standard input.

    \b
    Examples:
      cstp call cstp.checkGuardrails '{"action": {"description": "deploy"}}'
      cstp call cstp.listDecisions < params.json -
    """
    from cstp_grpc.client import codec

    described = find_method(method)
    text = sys.stdin.read() if params == "-" else params
    try:
        request = codec.from_json(parse_json(text), described.request)
    except codec.CodecError as error:
        raise InvalidArgument(f"{method}: {error}", violations=error.violations) from error
    except ValueError as error:
        raise click.UsageError(f"PARAMS is not JSON: {error}") from error
    answer = client.call(described, request)
    out.document(codec.to_json(answer))


def find_method(name: str) -> Method:
    """Return a method by its JSON-RPC name. Raises click.UsageError, which lists those there are."""
    from cstp_grpc.client.contract import method_named, methods

    with suppress(KeyError):
        if not (method := method_named(name)).streaming:
            return method
    import difflib

    unary = [key for key, method in methods().items() if not method.streaming]
    close = difflib.get_close_matches(name, unary, n=1)
    meant = f" Did you mean '{close[0]}'?" if close else ""
    raise click.UsageError(f"There is no unary method {name!r}.{meant} There are: {', '.join(unary)}.")


@click.command()
@prints
def version(out: Output) -> None:
    """Show the version.

    \b
    Example:
      cstp version --json
    """
    if out.json_wanted:
        out.document({"version": VERSION})
    else:
        out.verbatim(f"{VERSION}\n")
