"""Commands that know no rpc in particular: call, agent-card, version."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from cstp_grpc import config
from cstp_grpc.cli.command import ca_option, calls, config_option, prints, state
from cstp_grpc.cli.endpoint import AGENTS_FILE, Endpoint, authorities_of, read_agents, read_bytes
from cstp_grpc.cli.options import parse_json
from cstp_grpc.cli.output import Output
from cstp_grpc.client import CstpClient, codec
from cstp_grpc.client.contract import Method, methods
from cstp_grpc.client.jsonrpc import exchange, tls_context
from cstp_grpc.client.transport import scheme_of
from cstp_grpc.config import Settings, join, reachable
from cstp_grpc.errors import InvalidArgument

CARD_PATH = "/.well-known/agent.json"
CARD_TIMEOUT = 10.0


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
        raise click.UsageError(f"There is no unary method {name!r}. There are: {', '.join(unary)}.")
    return unary[name]


@click.command(name="agent-card")
@click.argument("url", required=False)
@ca_option
@config_option
@prints
def agent_card(out: Output, url: str | None, ca_file: Path | None) -> None:
    """Show the agent card of the bridge at URL; when absent, of this machine's bridge.

    \b
    Examples:
      cstp agent-card
      cstp agent-card https://security.example.com --json
    """
    roots = ca_file or config.command_environment().ca_file
    found = Endpoint(url, "URL") if url else local_bridge(state().settings())
    card = fetch_card(found.url, roots or found.ca_file)
    if out.json_wanted:
        out.document(card)
    else:
        out.line(json.dumps(card, indent=2, ensure_ascii=True))


def local_bridge(settings: Settings) -> Endpoint:
    """Return this machine's own bridge, as `cstp serve --dev` describes it or else as it is configured."""
    described = settings.data_dir / AGENTS_FILE
    for agent in read_agents(described).agents if described.exists() else ():
        if scheme_of(agent.url) in {"http", "https"}:
            return Endpoint(agent.url, str(described), ca_file=authorities_of(agent, described))
    address, tls = join(reachable(settings.server.host), settings.server.port), settings.server.tls
    url, ca_file = (f"https://{address}", tls.certificate) if tls else (f"http://{address}", None)
    return Endpoint(url, "the configuration", ca_file=ca_file)


def fetch_card(url: str, ca_file: Path | None) -> Any:
    """Return the agent card of a bridge. Raises CstpError, ConfigError and click.ClickException."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise click.UsageError(f"{url!r} is not of the form http://HOST:PORT.")
    address = parts._replace(path=parts.path.rstrip("/").removesuffix(CARD_PATH) + CARD_PATH, query="", fragment="")
    tls = tls_context(None if ca_file is None else read_bytes(ca_file))
    answer = exchange("GET", address, {"accept": "application/json"}, None, CARD_TIMEOUT, tls)
    if answer.status != 200:
        raise click.ClickException(f"{address.geturl()} answered HTTP {answer.status}.")
    try:
        return json.loads(answer.body)
    except ValueError as error:
        raise click.ClickException(f"{address.geturl()} sent something else than JSON.") from error


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
