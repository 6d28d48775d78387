"""The agent card of a bridge: shown, and its signature verified."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click

from cstp_grpc import config
from cstp_grpc.card_keys import PublicKey, SigningKey, UnusableKey, read_public_keys
from cstp_grpc.cli.command import FILE, ca_option, config_option, prints, state
from cstp_grpc.cli.endpoint import AGENTS_FILE, Endpoint, authorities_of, read_agents, read_bytes
from cstp_grpc.cli.output import Output, printable
from cstp_grpc.client.jsonrpc import exchange, tls_context
from cstp_grpc.client.transport import scheme_of
from cstp_grpc.config import ConfigError, Settings, join, reachable

CARD_PATH: Final = "/.well-known/agent-card.json"
SUFFIX: Final = ".json"
ENDPOINT: Final = "/cstp"
CARD_TIMEOUT: Final = 10.0
NOT_VERIFIED: Final = 3
"""The exit code if a card is not signed by the key."""


@click.command(name="agent-card")
@click.argument("url", required=False)
@click.option("--verify", "wants_proof", is_flag=True, help="Show only what is signed by the key, and fail without.")
@click.option(
    "--key",
    "key_file",
    type=FILE,
    help="The public key, in PEM or as a JSON Web Key; when absent, the one that the configuration has for URL.",
)
@ca_option
@config_option
@prints
def agent_card(out: Output, url: str | None, wants_proof: bool, key_file: Path | None, ca_file: Path | None) -> None:
    """Show the agent card of the bridge at URL; when absent, of this machine's bridge.

    URL may also be that of a card, which ends with .json. With --verify, what is shown is signed by the key. Exit code
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
    keys = keys_for(url, key_file) if wants_proof else []
    found = Endpoint(url, "URL") if url else local_bridge(state().settings())
    card = fetch_card(found.url, roots or found.ca_file)
    if wants_proof:
        card = require_verified(out, card, keys)
    if out.json_wanted:
        out.document(card)
    else:
        out.line(json.dumps(card, indent=2, ensure_ascii=True))


def keys_for(url: str | None, key_file: Path | None) -> list[PublicKey]:
    """Return the keys of a file, or those that the configuration has for the bridge at a URL, its own by default.

    Raises ConfigError and click.UsageError.
    """
    if key_file is not None:
        return read_keys(key_file)
    settings = state().settings()
    if url is None:
        own = SigningKey.of(settings.agent.card_signing, "agent.card_signing")
        if own is None:
            raise click.UsageError("The configuration has no agent.card_signing: name the public key with --key FILE.")
        return [own.public_key]
    for peer in settings.federation.peers:
        if peer.card_key is not None and peer.url == card_url(url):
            return read_keys(peer.card_key)
    raise click.UsageError(f"No peer at {card_url(url)} has a card_key: name the public key with --key FILE.")


def read_keys(path: Path) -> list[PublicKey]:
    """Return the public keys of a file. Raises ConfigError."""
    try:
        return read_public_keys(read_bytes(path))
    except UnusableKey as error:
        raise ConfigError(f"{path} {error}") from error


def require_verified(out: Output, card: dict[str, Any], keys: list[PublicKey]) -> dict[str, Any]:
    """Return the members of a card that are signed by one of the keys, or end the command."""
    # Not loaded before it is needed: it brings A2A along.
    from cstp_grpc.client.card_signatures import SIGNATURES, verified_content

    found = verified_content(card, keys)
    if found is None:
        message = (
            "The card is signed by another key. Compare the keys with its operator before you trust it."
            if card.get(SIGNATURES)
            else "The card is not signed. Ask its operator for a signed one (agent.card_signing)."
        )
        if out.json_wanted:
            out.problem({"reason": "CARD_NOT_VERIFIED", "message": message})
        else:
            out.note(f"Error: {message}")
        click.get_current_context().exit(NOT_VERIFIED)
    content, key = found
    out.note(printable(f"Verified: signed by the key {key.thumbprint}."))
    return content


def local_bridge(settings: Settings) -> Endpoint:
    """Return this machine's own bridge, as `cstp serve --dev` describes it or else as it is configured."""
    described = settings.data_dir / AGENTS_FILE
    for agent in read_agents(described).agents if described.exists() else ():
        if scheme_of(agent.url) in {"http", "https"}:
            return Endpoint(agent.url, str(described), ca_file=authorities_of(agent, described))
    address, tls = join(reachable(settings.server.host), settings.server.port), settings.server.tls
    url, ca_file = (f"https://{address}", tls.certificate) if tls else (f"http://{address}", None)
    return Endpoint(url, "the configuration", ca_file=ca_file)


def card_url(url: str) -> str:
    """Return where the card of a site, of a bridge or at an address of a card is."""
    parts = urlsplit(url)
    if parts.path.endswith(SUFFIX):
        return url
    path = parts.path.rstrip("/").removesuffix(ENDPOINT)
    return parts._replace(path=path + CARD_PATH, query="", fragment="").geturl()


def fetch_card(url: str, ca_file: Path | None) -> dict[str, Any]:
    """Return the agent card of a bridge. Raises CstpError, ConfigError and click.ClickException."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise click.UsageError(f"{url!r} is not of the form http://HOST:PORT.")
    address = urlsplit(card_url(url))
    tls = tls_context(None if ca_file is None else read_bytes(ca_file))
    answer = exchange("GET", address, {"accept": "application/json"}, None, CARD_TIMEOUT, tls)
    if answer.status != 200:
        raise click.ClickException(f"{address.geturl()} answered HTTP {answer.status}.")
    try:
        card = json.loads(answer.body)
    except (ValueError, RecursionError):
        card = None
    if not isinstance(card, dict):
        raise click.ClickException(f"{address.geturl()} sent something else than an agent card.")
    return card
