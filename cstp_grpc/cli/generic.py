"""Commands that know no rpc in particular: call, version."""

from __future__ import annotations

import difflib
import importlib.metadata
import sys

import click

from cstp_grpc.cli.command import calls, prints
from cstp_grpc.cli.options import parse_json
from cstp_grpc.cli.output import Output
from cstp_grpc.client import CstpClient, codec
from cstp_grpc.client.contract import Method, methods
from cstp_grpc.errors import InvalidArgument


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
    unary = {key: method for key, method in methods().items() if not method.streaming}
    if name not in unary:
        close = difflib.get_close_matches(name, unary, n=1)
        meant = f" Did you mean '{close[0]}'?" if close else ""
        raise click.UsageError(f"There is no unary method {name!r}.{meant} There are: {', '.join(unary)}.")
    return unary[name]


@click.command()
@prints
def version(out: Output) -> None:
    """Show the version.

    \b
    Example:
      cstp version --json
    """
    number = importlib.metadata.version("cstp-grpc")
    if out.json_wanted:
        out.document({"version": number})
    out.line(number)
