"""Open the peers that the settings name, for servers and for the commands that list and add peers.

It loads no part of the server, since commands are run often and wait for each import.
"""

from __future__ import annotations

from contextlib import ExitStack

from cstp_grpc.client.tls import raise_config_errors, read_ca_file, read_card_keys
from cstp_grpc.config import FederationSettings, PeerSettings
from cstp_grpc.federation.peer import CircuitBreaker, Peer, open_peer


def open_peers(opened: ExitStack, settings: FederationSettings) -> list[Peer]:
    """Open the configured peers without calling them; `opened` closes them. Raises ConfigError."""
    peers = []
    for number, configured in enumerate(settings.peers):
        peer = open_configured_peer(configured, settings, f"federation.peers.{number}")
        # At once, so that an error of a later peer closes those that are open.
        opened.callback(peer.close)
        peers.append(peer)
    return peers


def open_configured_peer(configured: PeerSettings, settings: FederationSettings, key: str) -> Peer:
    """Open a configured peer, which the caller must close; `key` names it in messages. Raises ConfigError."""
    card_keys = read_card_keys(configured.card_key, key)
    with raise_config_errors(key, configured.ca_file):
        return open_peer(
            configured.name,
            configured.url,
            configured.token.get_secret_value() if configured.token else None,
            required=configured.role == "required",
            trust=configured.trust,
            timeout=min(configured.timeout_seconds, settings.timeout_seconds),
            categories=frozenset(configured.categories),
            root_certificates=read_ca_file(configured.ca_file),
            card_keys=card_keys,
            breaker=CircuitBreaker(settings.breaker_failures, settings.breaker_seconds),
        )
