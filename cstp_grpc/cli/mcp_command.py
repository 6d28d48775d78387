"""The command that serves the Model Context Protocol."""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from cstp_grpc.cli.command_decorators import config_option, current_state, server_options
from cstp_grpc.cli.output import Output
from cstp_grpc.common.extras import require_extra
from cstp_grpc.contract.errors import CannotListen
from cstp_grpc.platform.config.environment import command_environment, is_loopback

if TYPE_CHECKING:
    from cstp_grpc.agents.mcp_server.http_transport import HttpOptions
    from cstp_grpc.cli.server_choice import Endpoint, ServerChoice

DEFAULT_PORT: Final = 8150


@click.command()
@click.option("--http", is_flag=True, help="Serve over streamable HTTP, where each caller sends a bearer token.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on, with --http.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="The port to listen on, with --http; 0 for any free one.",
)
@click.option(
    "--allow-host",
    "allowed_hosts",
    metavar="HOST[:PORT]",
    multiple=True,
    help="A further name of this server, in addition to its local ones; `NAME:*` for any port.",
)
@click.option(
    "--allow-origin",
    "allowed_origins",
    metavar="ORIGIN",
    multiple=True,
    help="A further origin whose pages may call this server, in addition to local ones.",
)
@click.option(
    "--public-url", metavar="URL", help="The URL by which hosts call it, with /mcp; for --authorization-server."
)
@click.option(
    "--authorization-server",
    "authorization_servers",
    metavar="URL",
    multiple=True,
    help="An issuer of auth.jwt, where hosts get tokens; they find it by themselves (RFC 9728).",
)
@click.option("--insecure", is_flag=True, help="Listen beyond loopback without TLS; tokens travel unencrypted.")
@server_options
@config_option
def mcp_command(
    http: bool,
    host: str,
    port: int,
    allowed_hosts: Sequence[str],
    allowed_origins: Sequence[str],
    public_url: str | None,
    authorization_servers: Sequence[str],
    insecure: bool,
    choice: ServerChoice,
    timeout: float | None,
) -> None:
    """Serve the tools of CSTP over MCP. MCP is the Model Context Protocol, which hosts of agents speak.

    It ends with Ctrl-C or SIGTERM, and over standard streams with its input.

    \b
    Examples:
      cstp mcp
      cstp mcp --local --as claude-code
      cstp mcp --agent grpc://cstp.example.com:50051
      cstp mcp --http --port 8150
    """
    require_extra("mcp")
    from cstp_grpc.cli.server_choice import choose_server

    # Standard output is the protocol's, or that of the one line which says where it is served.
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    state = current_state()
    state.endpoint = choose_server(choice, command_environment(), state)
    if http and state.endpoint.is_folder:
        raise click.UsageError("--http needs a server: its callers send tokens, which nobody checks without one.")
    check_urls(public_url, authorization_servers)
    if not http:
        serve_host(state.endpoint, timeout)
        return
    if not (insecure or is_loopback(host)):
        raise click.ClickException(
            f"--host: others than this machine reach {host}, and their tokens would travel unencrypted; "
            "listen on loopback behind a proxy that terminates TLS, or start with --insecure"
        )
    import asyncio

    from cstp_grpc.agents.mcp_server.http_transport import HttpOptions

    options = HttpOptions(host, port, allowed_hosts, allowed_origins, public_url or "", authorization_servers)
    try:
        asyncio.run(serve_hosts(state.endpoint, timeout, options))
    except CannotListen as error:
        raise click.ClickException(str(error)) from error


def check_urls(public_url: str | None, authorization_servers: Sequence[str]) -> None:
    """Raise click.UsageError for a URL that HTTP clients cannot call, and for issuers without the public URL."""
    for url in (*(() if public_url is None else (public_url,)), *authorization_servers):
        # Imported here: most hosts are served without a URL, and wait for the first answer.
        from pydantic import AnyHttpUrl, TypeAdapter, ValidationError

        try:
            TypeAdapter(AnyHttpUrl).validate_python(url)
        except ValidationError as error:
            raise click.UsageError(f"{url} is not an http or https URL.") from error
    if authorization_servers and not public_url:
        raise click.UsageError("--authorization-server needs --public-url, which tokens are for.")


def serve_host(endpoint: Endpoint, timeout: float | None) -> None:
    """Serve the host that started this process until it closes standard input. Raises InvalidArgument for a bridge."""
    from cstp_grpc.agents.mcp_server.first_answers import FirstAnswers, HostInput

    if endpoint.url.startswith(("http://", "https://")):
        # It raises: a host that will not be served gets no answer.
        endpoint.connect_async(timeout)

    # Python's own handler would wait for the thread that reads standard input, which ends with the next line only.
    # What was answered is on disk, so the process may end at any point.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    first = FirstAnswers(HostInput())
    if not first.answer_host():
        return
    # Loaded here, since hosts do not wait that long for the first answers.
    import asyncio

    from cstp_grpc.agents.mcp_server.stdio_transport import serve_stdio

    async def serve() -> None:
        async with endpoint.connect_async(timeout) as client:
            await serve_stdio(client, first)

    asyncio.run(serve())


async def serve_hosts(endpoint: Endpoint, timeout: float | None, options: HttpOptions) -> None:
    """Serve hosts over HTTP until SIGINT or SIGTERM. Raises CannotListen."""
    import asyncio

    from cstp_grpc.agents.mcp_server.http_transport import open_http_server

    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    # The token of the command itself is no caller's, so that it is never used.
    async with open_http_server(lambda token: endpoint._replace(token=token).connect_async(timeout), options) as url:
        Output().line(f"MCP is served at {url} for the server at {endpoint.url}. Ctrl-C stops it.")
        await stopped.wait()
