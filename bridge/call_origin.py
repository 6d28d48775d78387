"""Telling the server from where the bridge was called, so that it judges callers and not the bridge."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote

import grpc
from aiohttp import hdrs, web

from cstp_grpc.contract.call_origin import (
    BRIDGE_KEY_METADATA_KEY,
    CERTIFICATE_METADATA_KEY,
    FORWARDED_FOR_METADATA_KEY,
)
from cstp_grpc.platform.config import Settings
from cstp_grpc.platform.config.trusted_networks import PORT_SUFFIX, TrustedNetworks, parse_forwarded_node

FORWARDED_FOR_HEADER: Final = "X-Forwarded-For"
UNKNOWN_ADDRESS: Final = "unknown"
"""Stands for an address that nobody can tell, as of a caller who has broken the connection off already (RFC 7239)."""
MAX_CERTIFICATE_CHARACTERS: Final = 5500
"""The longest certificate that is passed on, encoded: 4 KiB, of the 8 KiB of metadata that gRPC takes by default."""


class CallOriginReporter:
    """Returns the metadata that tell the server a caller's address, as trusted proxies have it.

    They go with the bridge's key; without one the server believes only networks of its own settings. Raises
    ConfigError.
    """

    def __init__(self, settings: Settings, key: str | None) -> None:
        self._trusted = TrustedNetworks.parse(settings.server.trusted_proxies, "server.trusted_proxies")
        tls = settings.server.tls
        # Without the key the server would not look at it.
        self._passes_certificates = key is not None and tls is not None and tls.client_ca is not None
        self._key = [] if key is None else [(BRIDGE_KEY_METADATA_KEY, key)]

    def metadata_of_request(self, request: web.Request) -> Sequence[tuple[str, str]]:
        shown = self._certificate_of_request(request)
        if not self._trusted.contains(request.remote):
            return [*self._metadata(request.remote or ""), *shown]
        sent = ",".join(request.headers.getall(FORWARDED_FOR_HEADER, []))
        forwarded = (
            sent.split(",") if sent else [parse_forwarded_node(each.get("for", "")) for each in request.forwarded]
        )
        return [*self._metadata(self._trusted.find_client(request.remote or "", forwarded)), *shown]

    def metadata_of_call(self, peer: str, forwarded: Sequence[str]) -> Sequence[tuple[str, str]]:
        """Return the metadata of a gRPC call; `forwarded` are the values of its header of that name."""
        place = peer.partition(":")[2] if peer.startswith(("ipv4:", "ipv6:")) else ""
        address = PORT_SUFFIX.sub("", unquote(place)).strip("[]")
        nodes = ",".join(forwarded).split(",") if forwarded else []
        return self._metadata(self._trusted.find_client(address, nodes))

    def certificate_of_call(self, context: grpc.aio.ServicerContext[Any, Any]) -> Sequence[tuple[str, str]]:
        """Return the metadata of the certificate that the caller of a gRPC call showed, if it sends no token."""
        if not self._passes_certificates:
            return ()
        shown = next(iter(context.auth_context().get("x509_pem_cert", ())), None)
        return () if shown is None else self._certificate(ssl.PEM_cert_to_DER_cert(shown.decode("ascii")))

    def _certificate_of_request(self, request: web.Request) -> Sequence[tuple[str, str]]:
        # With a token it would not be looked at.
        if not self._passes_certificates or hdrs.AUTHORIZATION in request.headers or request.transport is None:
            return ()
        connection: ssl.SSLObject | None = request.transport.get_extra_info("ssl_object")
        shown = None if connection is None else connection.getpeercert(binary_form=True)
        return () if shown is None else self._certificate(shown)

    def _certificate(self, shown: bytes) -> Sequence[tuple[str, str]]:
        # A longer one, with much else in the metadata, is beyond what gRPC takes: the call is then one without it.
        encoded = base64.urlsafe_b64encode(shown).decode()
        return [(CERTIFICATE_METADATA_KEY, encoded)] if len(encoded) <= MAX_CERTIFICATE_CHARACTERS else ()

    def _metadata(self, address: str) -> Sequence[tuple[str, str]]:
        # Security: never without an address, by which the server sees that the bridge's own certificate is not that of
        # the caller.
        return [*self._key, (FORWARDED_FOR_METADATA_KEY, address or UNKNOWN_ADDRESS)]


CALL_ORIGINS: Final = web.AppKey("call_origins", CallOriginReporter)
"""Where an application has its reporter."""
