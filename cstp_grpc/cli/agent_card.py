"""The `cstp agent-card` command: show the agent card of a bridge and verify its signature."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import click

from cstp_grpc.cli.command_decorators import FILE, ca_option, config_option, current_state, exit_with_error, with_output
from cstp_grpc.cli.output import Output, to_printable
from cstp_grpc.cli.server_choice import AGENTS_FILE, Endpoint, read_agents, read_ca_file
from cstp_grpc.client.http_client import HttpClient
from cstp_grpc.client.json_rpc import send_http_request
from cstp_grpc.client.targets import MAX_RESPONSE_BYTES, target_scheme
from cstp_grpc.client.tls import tls_context
from cstp_grpc.common.extras import require_extra
from cstp_grpc.common.lazy_imports import LazyModule
from cstp_grpc.platform import config
from cstp_grpc.platform.config import ConfigError, Settings, dial_host, join_host_port

if TYPE_CHECKING:
    from cstp_grpc.contract import card_keys
    from cstp_grpc.contract.card_keys import PublicKey
else:
    # Only verifying needs it, and its libraries are an extra.
    card_keys = LazyModule("cstp_grpc.contract.card_keys")

CARD_PATH: Final = "/.well-known/agent-card.json"
CARD_SUFFIX: Final = ".json"
JSONRPC_PATH: Final = "/cstp"
CARD_TIMEOUT: Final = 10.0
EXIT_NOT_VERIFIED: Final = 3
"""The exit code if a card is not signed by the key."""


@click.command(name="agent-card")
@click.argument("url", required=False)
@click.option("--verify", "wants_proof", is_flag=True, help="Show only signed members; fail without a signature.")
@click.option(
    "--key",
    "key_file",
    type=FILE,
    help="The public key, in PEM or as a JSON Web Key. [default: the configured key for URL]",
)
@ca_option
@config_option
@with_output
def agent_card_command(
    out: Output, url: str | None, wants_proof: bool, key_file: Path | None, ca_file: Path | None
) -> None:
    """Show the agent card of a bridge. URL is that of the bridge. [default: this machine's]

    URL may also name a card, ending with .json. With --verify, only signed members are shown. Exit code
    0 is success, 3 that the card is not signed by the key, 1 an error.

    \b
    Examples:
      cstp agent-card
      cstp agent-card https://security.example.com --json
      cstp agent-card https://security.example.com --verify --key security.pub
    """
    if key_file and not wants_proof:
        raise click.UsageError("--key is for --verify.")
    roots = ca_file or config.command_environment().ca_file
    # Before the card is fetched: without a key there is nothing to verify it by.
    keys = keys_for_bridge(url, key_file) if wants_proof else []
    found = Endpoint(url, "URL") if url else local_bridge(current_state().settings())
    card = fetch_card(found.url, roots or found.ca_file)
    if wants_proof:
        card = require_verified(out, card, keys)
    if out.json_wanted:
        out.document(card)
    else:
        out.line(json.dumps(card, indent=2, ensure_ascii=True))


def keys_for_bridge(url: str | None, key_file: Path | None) -> list[PublicKey]:
    """Return the keys of a file, or those configured for the bridge at a URL.

    Without a URL it is this server's own key. Raises ConfigError and click.UsageError.
    """
    if key_file is not None:
        return read_keys(key_file)
    settings = current_state().settings()
    if url is None:
        require_extra("a2a")
        own = card_keys.SigningKey.load(settings.agent.card_signing, "agent.card_signing")
        if own is None:
            raise click.UsageError("The configuration has no agent.card_signing: name the public key with --key FILE.")
        return [own.public_key]
    for peer in settings.federation.peers:
        if peer.card_key is not None and peer.url == card_url(url):
            return read_keys(peer.card_key)
    raise click.UsageError(f"No peer at {card_url(url)} has a card_key: name the public key with --key FILE.")


def read_keys(path: Path) -> list[PublicKey]:
    """Return the public keys of a file. Raises ConfigError and MissingExtra."""
    require_extra("a2a")
    try:
        return card_keys.read_public_keys(read_ca_file(path))
    except card_keys.UnusableKey as error:
        raise ConfigError(f"{path} {error}") from error


def require_verified(out: Output, card: dict[str, Any], keys: list[PublicKey]) -> dict[str, Any]:
    """Return the members of a card that one of the keys signed, or exit."""
    # Imported here, because it loads the A2A library.
    from cstp_grpc.contract.card_signatures import SIGNATURES_KEY, verify_card

    found = verify_card(card, keys)
    if found is None:
        message = (
            "The card is signed by another key. Compare the keys with its operator before you trust it."
            if card.get(SIGNATURES_KEY)
            else "The card is not signed. Ask its operator for a signed one (agent.card_signing)."
        )
        document = {"reason": "CARD_NOT_VERIFIED", "message": message}
        exit_with_error(click.get_current_context(), message, document, EXIT_NOT_VERIFIED)
    content, key = found
    out.note(to_printable(f"Verified: signed by the key {key.thumbprint}."))
    return content


def local_bridge(settings: Settings) -> Endpoint:
    """Return this machine's own bridge, from the developer's agents file or else from the settings."""
    described = settings.data_dir / AGENTS_FILE
    # The file that `cstp serve --dev` writes has the real ports, also where the settings say 0.
    for agent in read_agents(described).agents if described.exists() else ():
        if target_scheme(agent.url) in {"http", "https"}:
            return Endpoint(agent.url, str(described), ca_file=agent.ca_file)
    address, tls = join_host_port(dial_host(settings.server.host), settings.server.port), settings.server.tls
    # The server's own certificate counts as its authority: on this machine the file itself is at hand.
    url, ca_file = (f"https://{address}", tls.certificate) if tls else (f"http://{address}", None)
    return Endpoint(url, "the configuration", ca_file=ca_file)


def card_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.path.endswith(CARD_SUFFIX):
        return url
    path = parts.path.rstrip("/").removesuffix(JSONRPC_PATH)
    return parts._replace(path=path + CARD_PATH, query="", fragment="").geturl()


def fetch_card(url: str, ca_file: Path | None) -> dict[str, Any]:
    """Fetch the agent card of a bridge. Raises CstpError, ConfigError and click.ClickException."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise click.UsageError(f"{url!r} is not of the form http://HOST:PORT.")
    address = urlsplit(card_url(url))
    tls = tls_context(None if ca_file is None else read_ca_file(ca_file), address.scheme)
    client = HttpClient(tls, max_bytes=MAX_RESPONSE_BYTES)
    # Without a token: cards are public, and the URL may be anybody's.
    answer = send_http_request(client, "GET", address, {"accept": "application/json"}, None, CARD_TIMEOUT)
    if answer.status != 200:
        raise click.ClickException(f"{address.geturl()} answered HTTP {answer.status}.")
    try:
        card = json.loads(answer.body)
    except (ValueError, RecursionError):
        card = None
    if not isinstance(card, dict):
        raise click.ClickException(f"{address.geturl()} did not send an agent card.")
    return card
